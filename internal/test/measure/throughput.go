package measure

import (
	"fmt"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Two processors, as measuring needs them: load and receivers on one, the relay alone on the other.
const (
	LoadCPU  = 0
	RelayCPU = 1
)

// Result is what one variant did with one kind of traffic.
type Result struct {
	Peak     float64 `json:"peak_pps"`      // most packets delivered in a second, over all rates offered
	AtLeast  bool    `json:"peak_at_least"` // the sender was the limit: nothing was lost, and it could send no more
	LossFree float64 `json:"loss_free_pps"` // highest rate offered of which 99.5% arrived; 0: there was none
	CPU      float64 `json:"cpu_ns"`        // of the relay's processor, a packet, at steadyRate; 0: not measured
	P50      float64 `json:"p50_us"`        // one-way delay at delayRate, until the receiving process has the packet
	P99      float64 `json:"p99_us"`
	// The same until the receiver's network device has the packet: without the wait for the scheduler to run the
	// receiver.
	DeviceP50 float64 `json:"device_p50_us"`
	DeviceP99 float64 `json:"device_p99_us"`
}

const (
	steadyRate   = 50_000 // packets a second, below what user space loses packets at
	stepTime     = 100 * time.Millisecond
	stepTries    = 4
	drainTime    = 20 * time.Millisecond // for packets in flight, at most
	intervals    = 12
	intervalTime = 80 * time.Millisecond
	firstRate    = 60_000
	rateStep     = 1.3
	lastRate     = 4_000_000
)

// LossFree is the share of packets that has to arrive at a rate that counts as one without loss.
const LossFree = 0.995

// Throughput finds the rates that a path takes, and what a packet costs the relay's processor, without delays. used is
// the CPU time of a server in user space so far; nil if the kernel forwards.
func Throughput(to *testnet.Dev, sender *Sender, busy *Busy, used func() (time.Duration, error)) (r Result, err error) {
	sink, err := NewSink(to)
	if err != nil {
		return r, err
	}
	defer sink.Close()
	send := func(d time.Duration, rate float64) (sent, delivered int, err error) {
		before, err := to.Received()
		if err != nil {
			return 0, 0, err
		}
		if sent, err = sender.Send(LoadCPU, d, rate); err != nil {
			return 0, 0, err
		}
		delivered, err = arrived(to, before, sent)
		return sent, delivered, err
	}
	if _, _, err := send(stepTime, steadyRate); err != nil { // warm up
		return r, err
	}
	for rate := float64(firstRate); rate < lastRate; rate *= rateStep {
		best, offered := 0.0, 0.0
		for range stepTries { // less arrives if something else took a processor
			sent, delivered, err := send(stepTime, rate)
			if err != nil {
				return r, err
			}
			best = max(best, float64(delivered)/stepTime.Seconds())
			offered = max(offered, float64(sent)/stepTime.Seconds())
			if best >= LossFree*rate {
				r.LossFree = best
				break
			}
		}
		if best > r.Peak {
			r.Peak, r.AtLeast = best, senderIsLimit(rate, offered, best)
		}
		if best < 0.5*r.Peak || offered < 0.6*rate {
			break // overload, or far more than the sender can do
		}
	}
	r.CPU, err = cost(to, sender, busy, used)
	return r, err
}

// Cost returns the nanoseconds of the relay's processor that a packet takes if the kernel forwards. It is the same
// as in Throughput, without the search for rates.
func Cost(to *testnet.Dev, sender *Sender, busy *Busy) (float64, error) {
	sink, err := NewSink(to)
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	if _, err := sender.Send(LoadCPU, stepTime, steadyRate); err != nil { // warm up
		return 0, err
	}
	return cost(to, sender, busy, nil)
}

// ErrUnsteady says that what a packet costs could not be measured.
var ErrUnsteady = fmt.Errorf(
	"%d tries to send and receive %d packets a second failed; is the machine busy with other work?",
	intervals, steadyRate)

// senderIsLimit reports whether a sender could not offer a rate, while all that it did offer was delivered.
func senderIsLimit(rate, offered, delivered float64) bool {
	return offered < LossFree*rate && delivered >= LossFree*offered
}

// arrived returns how many packets a device has received since its counter was before: as soon as all that were sent
// have arrived, or after drainTime, since what comes later was not delivered at the rate that it was sent at.
func arrived(to *testnet.Dev, before uint64, sent int) (int, error) {
	deadline := time.Now().Add(drainTime)
	for {
		late := !time.Now().Before(deadline)
		now, err := to.Received()
		if n := int(now - before); err != nil || late || n >= sent {
			return n, err
		}
		time.Sleep(time.Millisecond)
	}
}

// cost returns the nanoseconds of the relay's processor that a packet takes at the steady rate: the median of several
// short intervals, without those in which the sender or the relay couldn't keep up.
func cost(to *testnet.Dev, sender *Sender, busy *Busy, used func() (time.Duration, error)) (float64, error) {
	var costs, idles []float64
	for range intervals {
		idle, err := busy.Interval(intervalTime / 4)
		if err != nil {
			return 0, err
		}
		idles = append(idles, idle)
		ended := make(chan error, 1)
		go func() {
			_, err := sender.Send(LoadCPU, 2*intervalTime, steadyRate)
			ended <- err
		}()
		share, rate, err := interval(to, busy, used)
		if failed := <-ended; err == nil {
			err = failed
		}
		if err != nil {
			return 0, err
		}
		if rate > 0.97*steadyRate && rate < 1.03*steadyRate {
			costs = append(costs, share*1e9/rate)
		}
		time.Sleep(drainTime)
	}
	if len(costs) == 0 {
		return 0, ErrUnsteady
	}
	cost := Median(costs)
	if used == nil {
		cost -= slices.Min(idles) * 1e9 / steadyRate
	}
	return cost, nil
}

// interval returns the share of the relay's processor that the relay takes, and the packets a second that are delivered
// meanwhile.
func interval(to *testnet.Dev, busy *Busy, used func() (time.Duration, error)) (share, rate float64, err error) {
	time.Sleep(intervalTime / 4) // until traffic flows
	received, begin := uint64(0), time.Now()
	if received, err = to.Received(); err != nil {
		return 0, 0, err
	}
	if used != nil {
		share, err = processShare(used)
	} else {
		share, err = busy.Interval(intervalTime)
	}
	if err != nil {
		return 0, 0, err
	}
	wall := time.Since(begin)
	now, err := to.Received()
	return share, float64(now-received) / wall.Seconds(), err
}

// processShare returns the share of an interval in which the server's process had a processor.
func processShare(used func() (time.Duration, error)) (float64, error) {
	begin := time.Now()
	before, err := used()
	if err != nil {
		return 0, err
	}
	time.Sleep(intervalTime)
	after, err := used()
	return float64(after-before) / float64(time.Since(begin)), err
}

// Medians returns the medians of all figures, of the results that have them.
func Medians(results []Result) Result {
	of := func(f func(Result) float64) float64 {
		var values []float64
		for _, r := range results {
			if x := f(r); x != 0 {
				values = append(values, x)
			}
		}
		if len(values) == 0 {
			return 0
		}
		return Median(values)
	}
	return Result{
		AtLeast:  slices.ContainsFunc(results, func(r Result) bool { return r.AtLeast }),
		Peak:     of(func(r Result) float64 { return r.Peak }),
		LossFree: of(func(r Result) float64 { return r.LossFree }),
		CPU:      of(func(r Result) float64 { return r.CPU }),
		P50:      of(func(r Result) float64 { return r.P50 }),
		P99:      of(func(r Result) float64 { return r.P99 }),

		DeviceP50: of(func(r Result) float64 { return r.DeviceP50 }),
		DeviceP99: of(func(r Result) float64 { return r.DeviceP99 }),
	}
}

// NoRate is in tables if packets were lost at each rate that was offered, and LossFree is 0.
const NoRate = "no rate without loss"

// LossFreeKpps is a loss-free rate for a table, in thousands of packets a second.
func LossFreeKpps(pps float64) string {
	if pps == 0 {
		return NoRate
	}
	return fmt.Sprintf("%.0f", pps/1e3)
}

// Ratio is a quotient for a table; –: one of both wasn't measured, or there is none.
func Ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// Median returns the middle of values, which it sorts.
func Median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}
