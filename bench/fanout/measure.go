package fanout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// Result is what one variant did with one kind of traffic. Packets are delivered copies.
type Result struct {
	Peak      float64 `json:"peak_pps"`      // most delivered in a second, over all rates offered
	LossFree  float64 `json:"loss_free_pps"` // highest rate of which 99.5% arrived
	CPU       float64 `json:"cpu_ns"`        // of the relay's processor, a packet, at 90% of LossFree
	Single    float64 `json:"cpu_single_ns"` // likewise, if packets come one by one, at singleLoad
	Calls     float64 `json:"calls"`         // system calls a packet, at 90% of LossFree
	Saturated float64 `json:"calls_saturated"`
	P50       float64 `json:"p50_us"` // from the publisher's send to the relay's device, at delayRate
	P99       float64 `json:"p99_us"`
}

// The publisher sends datagrams in bursts, as a network card under load hands them over, and as a frame of video is
// several of them. The copies of a burst fit twice into the queue of a processor (netdev_max_backlog, 1,000).
const (
	longestBurst = 32
	burstCopies  = 512
)

const (
	firstRate = 40_000
	lastRate  = 8_000_000
	halvings  = 4 // of the interval between a rate without loss and one with, in proportion
	stepTime  = 100 * time.Millisecond
	stepTries = 3
	lossFree  = 0.995
	// for what is still on its way, at most: what comes later was not delivered at that rate
	drainTime    = time.Millisecond
	quietTime    = 30 * time.Millisecond // until queues are empty
	paced        = 0.9                   // of the loss-free rate
	corrections  = 8
	correction   = 0.95
	intervals    = 7
	steady       = 0.08 // how far what is delivered in an interval may be from the rate, in proportion
	intervalTime = 60 * time.Millisecond
	// how long the sender sends for an interval: before it, through it and a little longer
	intervalLoad = 100 * time.Millisecond
	callTime     = 150 * time.Millisecond
	singleLoad   = 100_000 // copies a second
	singleRate   = 10_000  // packets a second, at most
	delayCount   = 400
	delayTime    = 1      // second, at most: with many receivers few packets are copies enough
	delayLoad    = 60_000 // copies a second, below which delays are measured
	delayRate    = 1_000  // packets a second, at most
)

// bench is what measures all paths alike.
type bench struct {
	busy  *measure.Busy
	calls *CallCounter
}

// measure sends datagrams of a size: first for rates, then for cost, then for delays.
func (b *bench) measure(p *path, size int) (r Result, err error) {
	sender := p.sender(size)
	sender.SetBatch(min(longestBurst, max(1, burstCopies/p.receivers)))
	s, err := newSink(p.line.PeerDev)
	if err != nil {
		return r, err
	}
	defer s.close()
	run := &run{path: p, sender: sender, sink: s}
	if err := b.throughput(run, &r); err != nil {
		return r, err
	}
	r.P50, r.P99, err = run.delay(packet(size))
	if err != nil {
		return r, err
	}
	sender.SetBatch(1)
	r.Single, err = b.cost(run, min(singleLoad, singleRate*float64(p.receivers)))
	return r, err
}

// run is a path with traffic and a sink.
type run struct {
	path   *path
	sender *measure.Sender
	sink   *sink
}

// send offers so many copies a second (0: as many as it can) and returns how many should have been made, and were
// delivered.
func (r *run) send(d time.Duration, rate float64) (want, delivered uint64, err error) {
	n := r.path.receivers
	before, err := r.sink.total()
	if err != nil {
		return 0, 0, err
	}
	sent, err := r.sender.Send(measure.LoadCPU, d, rate/float64(n))
	if err != nil {
		return 0, 0, err
	}
	want = uint64(sent) * uint64(n)
	if delivered, err = r.sink.drain(before, want, drainTime); err == nil && delivered < want {
		err = r.settle()
	}
	return want, delivered, err
}

// settle waits until what is still queued anywhere has been delivered or dropped.
func (r *run) settle() error {
	last, err := r.sink.total()
	for err == nil {
		time.Sleep(quietTime)
		var now uint64
		if now, err = r.sink.total(); now == last {
			break
		}
		last = now
	}
	return err
}

func (b *bench) throughput(run *run, r *Result) (err error) {
	if _, _, err := run.send(stepTime, firstRate); err != nil { // warm up
		return err
	}
	try := func(rate float64) (ok bool, err error) {
		for range stepTries { // less arrives if something else took a processor
			want, delivered, err := run.send(stepTime, rate)
			if err != nil {
				return false, err
			}
			r.Peak = max(r.Peak, min(float64(delivered), float64(want))/stepTime.Seconds())
			if offered := float64(want) / stepTime.Seconds(); float64(delivered) >= lossFree*float64(want) &&
				offered > 0.9*rate {
				r.LossFree = max(r.LossFree, float64(delivered)/stepTime.Seconds())
				return true, nil
			}
		}
		return false, nil
	}
	good, bad := 0.0, math.Inf(1)
	for rate := float64(firstRate); rate < lastRate; rate *= 2 {
		ok, err := try(rate)
		if err != nil {
			return err
		}
		if !ok {
			bad = rate
			break
		}
		good = rate
	}
	if good == 0 {
		return fmt.Errorf("%s, %d receivers: losses at %d copies a second already", run.path.variant,
			run.path.receivers, firstRate)
	}
	if math.IsInf(bad, 1) {
		bad = lastRate
	}
	for range halvings {
		middle := math.Sqrt(good * bad)
		ok, err := try(middle)
		if err != nil {
			return err
		}
		if ok {
			good = middle
		} else {
			bad = middle
		}
	}
	// A rate that holds for one step only, because queues take the rest, doesn't hold in the intervals.
	for range corrections {
		if r.CPU, err = b.cost(run, paced*r.LossFree); err == nil {
			break
		}
		r.LossFree *= correction
	}
	if err != nil {
		return err
	}
	if r.Calls, err = b.callsPerPacket(run, paced*r.LossFree); err != nil {
		return err
	}
	r.Saturated, err = b.callsPerPacket(run, 0)
	return err
}

// cost returns the nanoseconds of the relay's processor that a delivered copy takes at a rate: the median of several
// short intervals, without those in which the sender or the relay couldn't keep up.
func (b *bench) cost(run *run, rate float64) (float64, error) {
	var costs, idles []float64
	for range intervals {
		idle, err := b.busy.Interval(intervalTime / 4)
		if err != nil {
			return 0, err
		}
		idles = append(idles, idle)
		ended := make(chan error, 1)
		go func() {
			_, err := run.sender.Send(measure.LoadCPU, intervalLoad, rate/float64(run.path.receivers))
			ended <- err
		}()
		share, delivered, err := b.interval(run)
		if failed := <-ended; err == nil {
			err = failed
		}
		if err != nil {
			return 0, err
		}
		if math.Abs(delivered-rate) < steady*rate {
			costs = append(costs, share*1e9/delivered)
		}
		if err := run.settle(); err != nil {
			return 0, err
		}
	}
	if len(costs) < intervals/3 {
		return 0, fmt.Errorf("%s, %d receivers: in %d of %d tries only could %.0f copies a second be sent and "+
			"received; is the machine busy with other work?",
			run.path.variant, run.path.receivers, len(costs), intervals, rate)
	}
	return measure.Median(costs) - slices.Min(idles)*1e9/rate, nil
}

// interval returns the share of the relay's processor that is taken, and the copies a second that are delivered
// meanwhile.
func (b *bench) interval(run *run) (share, rate float64, err error) {
	time.Sleep(intervalTime / 4) // until traffic flows
	begin := time.Now()
	before, err := run.sink.total()
	if err != nil {
		return 0, 0, err
	}
	if share, err = b.busy.Interval(intervalTime); err != nil {
		return 0, 0, err
	}
	wall := time.Since(begin)
	after, err := run.sink.total()
	return share, float64(after-before) / wall.Seconds(), err
}

// callsPerPacket returns the system calls of the relay's process for each delivered copy; 0 if there is no process.
func (b *bench) callsPerPacket(run *run, rate float64) (float64, error) {
	if run.path.process == nil {
		return 0, nil
	}
	if err := b.calls.Watch(run.path.process.Process.Pid); err != nil {
		return 0, err
	}
	before, err := b.calls.Count()
	if err != nil {
		return 0, err
	}
	_, delivered, err := run.send(callTime, rate)
	if err != nil {
		return 0, err
	}
	after, err := b.calls.Count()
	if err != nil || delivered == 0 {
		return 0, err
	}
	return float64(after-before) / float64(delivered), nil
}

// delay returns the median and the 99th percentile, in µs, of the time from the publisher's send until the relay's
// device has a copy to send, over all copies. What comes after is no longer the relay's: on veth it would be the
// receiving processor's, which begins only when all copies are made.
func (r *run) delay(payload []byte) (p50, p99 float64, err error) {
	p := r.path
	if err := r.settle(); err != nil {
		return 0, 0, err
	}
	d, err := newDelays(p.line.RelayOut)
	if err != nil {
		return 0, 0, err
	}
	defer d.close()
	send := func(payload []byte) error {
		p.last++
		binary.BigEndian.PutUint16(payload[sequence:], p.last)
		return measure.SendTo(p.publisher, payload, p.to)
	}
	rate := min(delayRate, delayLoad/float64(p.receivers))
	count := min(delayCount, maxDelays/p.receivers, int(delayTime*rate))
	before, err := r.sink.total()
	if err != nil {
		return 0, 0, err
	}
	if err := measure.SendStamped(measure.LoadCPU, count, rate, payload, stampAt, send); err != nil {
		return 0, 0, err
	}
	want := uint64(count * p.receivers)
	if delivered, err := r.sink.drain(before, want, quietTime); err != nil || delivered < want*9/10 {
		return 0, 0, errors.Join(fmt.Errorf("only %d of %d copies arrived", delivered, want), err)
	}
	taken, err := d.values()
	if err != nil {
		return 0, 0, err
	}
	if len(taken) == 0 {
		return 0, 0, errors.New("no copy left the relay")
	}
	slices.Sort(taken)
	at := func(q float64) float64 { return float64(taken[min(int(q*float64(len(taken))), len(taken)-1)]) / 1e3 }
	return at(0.5), at(0.99), nil
}
