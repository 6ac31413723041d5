package turnlab

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Two processors, as measuring needs them: load and receivers on one, the relay alone on the other.
const (
	LoadCPU  = 0
	RelayCPU = 1
)

// Variant is a kind of path from client to peer.
type Variant string

const (
	Forwarding Variant = "forwarding" // the kernel's own routing: the limit
	InKernel   Variant = "relay"      // the generated relay
	UserSpace  Variant = "user space" // the same server without it: pion
)

// Traffic is what the ends of a path send.
type Traffic int

const (
	Channel  Traffic = iota // ChannelData, on a channel that nothing was asked for
	Asked                   // the same, on one that the client asks a TURN server for
	Payloads                // payloads alone
)

// Baseline is what a path has in the place of our server.
type Baseline struct {
	Variant Variant
	Traffic Traffic
	// Start starts it on the relay's host, with the devices of a line, and returns the process that does the work,
	// 0 where it is the kernel, and what ends it.
	Start func(l *testnet.Line, ends Ends) (pid int, stop func(), err error)
}

// Ends are the addresses of a channel. A client of the type Asked gets another relayed address.
type Ends struct{ Client, Server, Relayed, Peer netip.AddrPort }

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
	steadyRate = 50_000 // packets a second, below what user space loses packets at
	delayRate  = 10_000
	delayCount = 2_000
	delayTries = 3
	stepTime   = 100 * time.Millisecond
	stepTries  = 4
	lossFree   = 0.995
	drainTime  = 20 * time.Millisecond // for packets in flight, at most
	spells     = 12
	spellTime  = 80 * time.Millisecond
	firstRate  = 60_000
	rateStep   = 1.3
	lastRate   = 4_000_000
)

// ChannelNumber is the channel that all traffic uses.
const ChannelNumber = 0x4001

// Path is a line with one variant set up on it.
type Path struct {
	Variant Variant
	net     *testnet.Net
	line    *testnet.Line
	server  *Process                      // ours
	stop    func()                        // ends a baseline
	used    func() (time.Duration, error) // by the process that does the work; nil: it is the kernel
	client  *Client
	peer    netip.AddrPort
	peerFd  int
	direct  int            // without channels: the client's socket
	to      netip.AddrPort // where it sends to
	back    netip.AddrPort // where the peer sends to
}

// NewPath sets up a variant on hosts of its own. Packets come as from a network card, with complete checksums; or with
// partial ones, as from a virtual machine on the same host. This process has to stay away from the relay's processor
// (Prefer).
func NewPath(v Variant, partial bool) (*Path, error) {
	return newPath(v, partial, func(p *Path) error {
		if v == Forwarding {
			return p.forward()
		}
		return p.serve()
	})
}

// NewBaseline is NewPath for what isn't ours.
func NewBaseline(b Baseline, partial bool) (*Path, error) {
	return newPath(b.Variant, partial, func(p *Path) error { return p.start(b) })
}

func newPath(v Variant, partial bool, setUp func(*Path) error) (_ *Path, err error) {
	p := &Path{Variant: v, peerFd: -1, direct: -1}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.net, err = testnet.New(); err != nil {
		return nil, err
	}
	l, err := p.net.Line()
	if err != nil {
		return nil, err
	}
	p.line = l
	err = errors.Join(
		l.RelayIn.SetReceiveCPU(RelayCPU), l.RelayOut.SetReceiveCPU(RelayCPU),
		l.ClientDev.SetReceiveCPU(LoadCPU), l.PeerDev.SetReceiveCPU(LoadCPU),
		l.ClientDev.SetSegmentation(false), l.PeerDev.SetSegmentation(false),
		l.ClientDev.SetTxChecksum(partial), l.PeerDev.SetTxChecksum(partial),
		// While a sink is attached, no host answers neighbour solicitations.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
		l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
	)
	if err != nil {
		return nil, err
	}
	if p.peerFd, p.peer, err = BlockingSocket(l.Peer, netip.AddrPortFrom(l.PeerAddr.V4, 0)); err != nil {
		return nil, err
	}
	return p, setUp(p)
}

// forward makes the relay's host a router.
func (p *Path) forward() error {
	own, err := p.sendDirectly(p.peer)
	p.back = own
	return errors.Join(err, p.line.Relay.SetForwarding(true))
}

// sendDirectly opens the client's socket, for payloads alone.
func (p *Path) sendDirectly(to netip.AddrPort) (own netip.AddrPort, err error) {
	p.to = to
	p.direct, own, err = BlockingSocket(p.line.Client, netip.AddrPortFrom(p.line.ClientAddr.V4, 0))
	return own, err
}

func (p *Path) listen() netip.AddrPort { return netip.AddrPortFrom(p.line.RelayInAddr.V4, 3478) }

// serve starts our server, with its relay or without.
func (p *Path) serve() (err error) {
	flags := []string{"--listen", p.listen().String(), "--relay", p.line.RelayOutAddr.V4.String()}
	if p.Variant == UserSpace {
		flags = append(flags, "--no-offload")
	}
	if p.server, err = Serve(p.line.Relay, flags...); err != nil {
		return err
	}
	if p.Variant == UserSpace {
		p.used = p.server.CPUTime
	}
	if err := errors.Join(Prefer(p.server.cmd.Process.Pid, RelayCPU), p.ask()); err != nil {
		return err
	}
	stats, err := p.server.Stats()
	if err != nil {
		return err
	}
	if want := map[Variant]int{InKernel: 1, UserSpace: 0}[p.Variant]; stats.InKernel != want {
		return fmt.Errorf("%s: %d channels in the kernel, want %d: %s", p.Variant, stats.InKernel, want, p.server.Log())
	}
	return nil
}

// ask opens a channel by TURN.
func (p *Path) ask() (err error) {
	if p.client, err = Dial(p.line.Client, p.line.ClientAddr.V4, p.listen()); err != nil {
		return err
	}
	err = p.client.Open(ChannelNumber, p.peer)
	p.back = p.client.Relayed
	return err
}

// start starts a baseline.
func (p *Path) start(b Baseline) (err error) {
	e := Ends{Server: p.listen(), Relayed: netip.AddrPortFrom(p.line.RelayOutAddr.V4, 50000), Peer: p.peer}
	switch b.Traffic {
	case Payloads:
		e.Client, err = p.sendDirectly(e.Server)
	case Channel:
		if p.client, err = Dial(p.line.Client, p.line.ClientAddr.V4, e.Server); err == nil {
			e.Client = p.client.Addr()
		}
	}
	if err != nil {
		return err
	}
	p.back = e.Relayed
	pid, stop, err := b.Start(p.line, e)
	p.stop = stop
	if err != nil {
		return err
	}
	if pid != 0 {
		p.used = func() (time.Duration, error) { return CPUTime(pid) }
		err = Prefer(pid, RelayCPU)
	}
	if b.Traffic == Asked {
		err = errors.Join(err, p.ask())
	}
	return err
}

// Stats returns the server's counters; none for plain forwarding.
func (p *Path) Stats() (server.Stats, error) {
	if p.server == nil {
		return server.Stats{}, nil
	}
	return p.server.Stats()
}

// Close ends the server and the hosts.
func (p *Path) Close() {
	if p.server != nil {
		p.server.Kill()
	}
	if p.stop != nil {
		p.stop()
	}
	for _, fd := range []int{p.peerFd, p.direct} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if p.net != nil {
		_ = p.net.Close() // what remains is removed by the next network
	}
}

// ends returns the receiving device for a direction, and a sender. done releases what that needs.
func (p *Path) ends(direction string, size int) (to *testnet.Dev, sender *Sender, done func(), err error) {
	payload, done := Payload(size), func() {}
	switch {
	case p.client == nil && direction == "to_peer":
		return p.line.PeerDev, NewSender(p.direct, p.to, payload), done, nil
	case direction == "to_client":
		return p.line.ClientDev, NewSender(p.peerFd, p.back, payload), done, nil
	}
	fd, err := p.client.Fd()
	if err != nil {
		return nil, nil, nil, err
	}
	done = func() { unix.Close(fd) }
	return p.line.PeerDev, NewSender(fd, netip.AddrPort{}, ChannelData(ChannelNumber, payload)), done, nil
}

// Measure sends traffic in a direction ("to_peer", "to_client") with so many bytes of payload: first for rates, then
// for cost, then for delays. busy measures RelayCPU. With ErrUnsteady, all but the cost is measured.
func (p *Path) Measure(direction string, size int, busy *Busy) (r Result, err error) {
	to, sender, done, err := p.ends(direction, size)
	if err != nil {
		return r, err
	}
	defer done()
	r, unsteady := Throughput(to, sender, busy, p.used)
	if unsteady != nil && !errors.Is(unsteady, ErrUnsteady) {
		return r, unsteady
	}
	r.P50, r.P99, r.DeviceP50, r.DeviceP99 = math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	for range delayTries {
		toDevice, toProcess, failed := p.Delays(direction, size, delayCount, delayRate)
		if failed != nil {
			err = failed // counts where no try succeeds
			continue
		}
		for _, q := range []struct {
			least  *float64
			delays Delays
			share  float64
		}{
			{&r.P50, toProcess, 0.5}, {&r.P99, toProcess, 0.99},
			{&r.DeviceP50, toDevice, 0.5}, {&r.DeviceP99, toDevice, 0.99},
		} {
			*q.least = min(*q.least, float64(q.delays.Quantile(q.share))/1e3)
		}
	}
	if math.IsInf(r.P50, 1) {
		return r, err
	}
	return r, unsteady
}

// Throughput finds the rates that a path takes, and what a packet costs the relay's processor, without delays. used is
// the processor time of a server in user space so far; nil where the kernel forwards.
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
		for range stepTries { // less arrives where something else took a processor
			sent, delivered, err := send(stepTime, rate)
			if err != nil {
				return r, err
			}
			best = max(best, float64(delivered)/stepTime.Seconds())
			offered = max(offered, float64(sent)/stepTime.Seconds())
			if best >= lossFree*rate {
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

// Cost returns the nanoseconds of the relay's processor that a packet takes where the kernel forwards. It is the same
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
	spells, steadyRate)

// senderIsLimit reports whether a sender could not offer a rate, while all that it did offer was delivered.
func senderIsLimit(rate, offered, delivered float64) bool {
	return offered < lossFree*rate && delivered >= lossFree*offered
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
// short spells, without those in which the sender or the relay couldn't keep up.
func cost(to *testnet.Dev, sender *Sender, busy *Busy, used func() (time.Duration, error)) (float64, error) {
	var costs, idles []float64
	for range spells {
		idle, err := busy.Spell(spellTime / 4)
		if err != nil {
			return 0, err
		}
		idles = append(idles, idle)
		ended := make(chan error, 1)
		go func() {
			_, err := sender.Send(LoadCPU, 2*spellTime, steadyRate)
			ended <- err
		}()
		share, rate, err := spell(to, busy, used)
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

// spell returns the share of the relay's processor that the relay takes, and the packets a second that are delivered
// meanwhile.
func spell(to *testnet.Dev, busy *Busy, used func() (time.Duration, error)) (share, rate float64, err error) {
	time.Sleep(spellTime / 4) // until traffic flows
	received, begin := uint64(0), time.Now()
	if received, err = to.Received(); err != nil {
		return 0, 0, err
	}
	if used != nil {
		share, err = processShare(used)
	} else {
		share, err = busy.Spell(spellTime)
	}
	if err != nil {
		return 0, 0, err
	}
	wall := time.Since(begin)
	now, err := to.Received()
	return share, float64(now-received) / wall.Seconds(), err
}

// processShare returns the share of a spell in which the server's process had a processor.
func processShare(used func() (time.Duration, error)) (float64, error) {
	begin := time.Now()
	before, err := used()
	if err != nil {
		return 0, err
	}
	time.Sleep(spellTime)
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

// NoRate is in tables where packets were lost at each rate that was offered, and LossFree is 0.
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

// Delays measures one-way delays of so many packets at a low rate, through ordinary sockets on both ends.
func (p *Path) Delays(direction string, size, count int, rate float64) (toDevice, toProcess Delays, err error) {
	const header = 4 // of channel data
	toPeer := direction == "to_peer"
	send, receiver, stamp := p.sendToClient, p.direct, 0
	if toPeer {
		send, receiver = p.sendToPeer, p.peerFd
	}
	if !toPeer && p.client != nil {
		fd, err := p.client.Fd()
		if err != nil {
			return nil, nil, err
		}
		defer unix.Close(fd)
		receiver, stamp = fd, header
	}
	return MeasureDelay(LoadCPU, count, rate, size, send, receiver, stamp)
}

func (p *Path) sendToPeer(payload []byte) error {
	if p.client != nil {
		return p.client.Send(ChannelNumber, payload)
	}
	return SendTo(p.direct, payload, p.to)
}

func (p *Path) sendToClient(payload []byte) error {
	return SendTo(p.peerFd, payload, p.back)
}
