package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/testnet"
	"github.com/fastrelay/fastrelay-gen/internal/turnlab"
)

// variant is a way from client to peer.
type variant string

const (
	forwarding variant = "forwarding" // the kernel's own routing: the limit
	inKernel   variant = "relay"      // the generated relay
	userSpace  variant = "user space" // the same server without it
)

var variants = []variant{forwarding, inKernel, userSpace}

// Comparison is what all variants did with one kind of traffic.
type Comparison struct {
	Direction string             `json:"direction"` // "to_peer", "to_client"
	Size      int                `json:"size"`      // bytes of payload
	Results   map[variant]Result `json:"results"`
}

// Result is one variant's, as medians over the rounds.
type Result struct {
	Peak     float64 `json:"peak_pps"`      // most packets delivered in a second, over all rates offered
	LossFree float64 `json:"loss_free_pps"` // highest rate at which 99.5% arrived
	CPU      float64 `json:"cpu_ns"`        // of the relay's processor, a packet, at steadyRate
	P50      float64 `json:"p50_us"`        // one-way delay at delayRate
	P99      float64 `json:"p99_us"`
}

const (
	steadyRate = 50_000 // packets a second, below what user space loses packets at
	delayRate  = 10_000
	delayCount = 2_000
	delayTries = 3
	stepTime   = 150 * time.Millisecond
	spells     = 8
	spellTime  = 80 * time.Millisecond
	firstRate  = 60_000
	rateStep   = 1.3
	lastRate   = 4_000_000
)

// channelNumber is the channel that all traffic uses.
const channelNumber = 0x4001

// path is a line with one variant set up on it.
type path struct {
	variant variant
	net     *testnet.Net
	line    *testnet.Line
	server  *turnlab.Process
	client  *turnlab.Client
	peer    netip.AddrPort
	peerFd  int
	direct  int            // forwarding: the client's socket
	own     netip.AddrPort // its address
}

func newPath(v variant) (_ *path, err error) {
	p := &path{variant: v, peerFd: -1, direct: -1}
	defer func() {
		if err != nil {
			p.close()
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
		l.RelayIn.SetReceiveCPU(relayCPU), l.RelayOut.SetReceiveCPU(relayCPU),
		l.ClientDev.SetReceiveCPU(loadCPU), l.PeerDev.SetReceiveCPU(loadCPU),
		// Packets come as from a network card: one by one, with complete checksums.
		l.ClientDev.SetSegmentation(false), l.PeerDev.SetSegmentation(false),
		l.ClientDev.SetTxChecksum(false), l.PeerDev.SetTxChecksum(false),
		// While a sink is on, nobody answers questions for neighbours.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC), l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
	)
	if err != nil {
		return nil, err
	}
	if p.peerFd, p.peer, err = turnlab.BlockingSocket(l.Peer, netip.AddrPortFrom(l.PeerAddr.V4, 0)); err != nil {
		return nil, err
	}
	if v == forwarding {
		if p.direct, p.own, err = turnlab.BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0)); err != nil {
			return nil, err
		}
		return p, l.Relay.SetForwarding(true)
	}
	listen := netip.AddrPortFrom(l.RelayInAddr.V4, 3478)
	flags := []string{"--listen", listen.String(), "--relay", l.RelayOutAddr.V4.String()}
	if v == userSpace {
		flags = append(flags, "--no-offload")
	}
	if p.server, err = turnlab.Serve(l.Relay, flags...); err != nil {
		return nil, err
	}
	if err := p.server.Pin(relayCPU); err != nil {
		return nil, err
	}
	if p.client, err = turnlab.Dial(l.Client, l.ClientAddr.V4, listen); err != nil {
		return nil, err
	}
	if err := p.client.Open(channelNumber, p.peer); err != nil {
		return nil, err
	}
	stats, err := p.server.Stats()
	if err != nil {
		return nil, err
	}
	if want := map[variant]int{inKernel: 1, userSpace: 0}[v]; stats.InKernel != want {
		return nil, fmt.Errorf("%s: %d channels in the kernel, want %d: %s", v, stats.InKernel, want, p.server.Log())
	}
	return p, nil
}

func (p *path) close() {
	if p.server != nil {
		p.server.Kill()
	}
	for _, fd := range []int{p.peerFd, p.direct} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if p.net != nil {
		_ = p.net.Close() // what stays is swept away by the next network
	}
}

// ends returns the receiving device for a direction, and a sender. done releases what that needs.
func (p *path) ends(direction string, size int) (to *testnet.Dev, sender *turnlab.Sender, done func(), err error) {
	payload, done := turnlab.Payload(size), func() {}
	switch {
	case p.client == nil && direction == "to_peer":
		return p.line.PeerDev, turnlab.NewSender(p.direct, p.peer, payload), done, nil
	case p.client == nil:
		return p.line.ClientDev, turnlab.NewSender(p.peerFd, p.own, payload), done, nil
	case direction == "to_client":
		return p.line.ClientDev, turnlab.NewSender(p.peerFd, p.client.Relayed, payload), done, nil
	}
	fd, err := p.client.Fd()
	if err != nil {
		return nil, nil, nil, err
	}
	done = func() { unix.Close(fd) }
	return p.line.PeerDev, turnlab.NewSender(fd, netip.AddrPort{}, turnlab.ChannelData(channelNumber, payload)), done, nil
}

// measurePath compares all variants on all kinds of traffic.
func measurePath(rounds int) ([]Comparison, error) {
	busy, err := turnlab.NewBusy(relayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	var paths []*path
	for _, v := range variants {
		p, err := newPath(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v, err)
		}
		defer p.close()
		paths = append(paths, p)
	}
	var list []Comparison
	for _, direction := range []string{"to_peer", "to_client"} {
		for _, size := range []int{120, 1200} {
			all := map[variant][]Result{}
			for range rounds {
				for _, p := range paths {
					fmt.Fprintf(os.Stderr, "\r%-40s", fmt.Sprintf("%s, %d bytes: %s", direction, size, p.variant))
					r, err := p.measure(direction, size, busy)
					if err != nil {
						return nil, fmt.Errorf("%s, %s, %d bytes: %w", p.variant, direction, size, err)
					}
					all[p.variant] = append(all[p.variant], r)
				}
			}
			c := Comparison{Direction: direction, Size: size, Results: map[variant]Result{}}
			for v, results := range all {
				c.Results[v] = medians(results)
			}
			list = append(list, c)
		}
	}
	fmt.Fprintf(os.Stderr, "\r%-40s\r", "")
	return list, nil
}

func (p *path) measure(direction string, size int, busy *turnlab.Busy) (r Result, err error) {
	to, sender, done, err := p.ends(direction, size)
	if err != nil {
		return r, err
	}
	defer done()
	if err := p.throughput(to, sender, busy, &r); err != nil {
		return r, err
	}
	r.P50, r.P99 = math.Inf(1), math.Inf(1)
	for range delayTries {
		delays, failed := p.delays(direction, size)
		if failed != nil {
			err = failed // counts where no try succeeds
			continue
		}
		r.P50 = min(r.P50, float64(delays.Quantile(0.5))/1e3)
		r.P99 = min(r.P99, float64(delays.Quantile(0.99))/1e3)
	}
	if math.IsInf(r.P50, 1) {
		return r, err
	}
	return r, nil
}

// throughput finds the rates that the path takes and what a packet costs the relay's processor.
func (p *path) throughput(to *testnet.Dev, sender *turnlab.Sender, busy *turnlab.Busy, r *Result) error {
	sink, err := turnlab.NewSink(to)
	if err != nil {
		return err
	}
	defer sink.Close()
	send := func(d time.Duration, rate float64) (sent, delivered int, err error) {
		before, err := to.Received()
		if err != nil {
			return 0, 0, err
		}
		if sent, err = sender.Send(loadCPU, d, rate); err != nil {
			return 0, 0, err
		}
		time.Sleep(20 * time.Millisecond) // what is still on its way
		after, err := to.Received()
		return sent, int(after - before), err
	}
	if _, _, err := send(stepTime, steadyRate); err != nil { // warm up
		return err
	}
	for rate := float64(firstRate); rate < lastRate; rate *= rateStep {
		sent, delivered, err := send(stepTime, rate)
		if err != nil {
			return err
		}
		got := float64(delivered) / stepTime.Seconds()
		r.Peak = max(r.Peak, got)
		if float64(delivered) >= 0.995*float64(sent) {
			r.LossFree = max(r.LossFree, got)
		}
		if got < 0.5*r.Peak || float64(sent)/stepTime.Seconds() < 0.6*rate {
			break // overload, or far more than the sender can do
		}
	}
	r.CPU, err = p.cost(send, busy)
	return err
}

// cost returns the nanoseconds of the relay's processor that a packet takes at the steady rate. What else goes on there only
// adds, so the least of several spells is the truest.
func (p *path) cost(send func(d time.Duration, rate float64) (sent, delivered int, err error), busy *turnlab.Busy) (float64, error) {
	least, idle := math.Inf(1), 1.0
	for range spells {
		var delivered int
		around := func() (err error) {
			sent := 0
			sent, delivered, err = send(spellTime+spellTime/4, steadyRate)
			if err == nil && float64(delivered) < 0.99*float64(sent) {
				delivered = 0 // it lost packets: not a measurement
			}
			return err
		}
		if p.variant == userSpace {
			before, err := p.server.CPUTime()
			if err != nil {
				return 0, err
			}
			if err := around(); err != nil {
				return 0, err
			}
			after, err := p.server.CPUTime()
			if err != nil {
				return 0, err
			}
			if delivered > 0 {
				least = min(least, float64(after-before)/float64(delivered))
			}
			continue
		}
		quiet, err := busy.Spell(spellTime/4, func() error { return nil })
		if err != nil {
			return 0, err
		}
		idle = min(idle, quiet)
		share, err := busy.Spell(spellTime, around)
		if err != nil {
			return 0, err
		}
		if delivered > 0 {
			least = min(least, max(share-idle, 0)*1e9/steadyRate)
		}
	}
	if math.IsInf(least, 1) {
		return 0, fmt.Errorf("packets are lost at %d a second in each of %d tries", steadyRate, spells)
	}
	return least, nil
}

// delays measures one-way delays at a low rate, through ordinary sockets on both ends.
func (p *path) delays(direction string, size int) (turnlab.Delays, error) {
	const header = 4 // of channel data
	toPeer := direction == "to_peer"
	send, receiver, stamp := p.sendToClient, p.direct, 0
	if toPeer {
		send, receiver = p.sendToPeer, p.peerFd
	}
	if !toPeer && p.client != nil {
		fd, err := p.client.Fd()
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		receiver, stamp = fd, header
	}
	return turnlab.MeasureDelay(loadCPU, delayCount, delayRate, size, send, receiver, stamp)
}

func (p *path) sendToPeer(payload []byte) error {
	if p.client != nil {
		return p.client.Send(channelNumber, payload)
	}
	return turnlab.SendTo(p.direct, payload, p.peer)
}

func (p *path) sendToClient(payload []byte) error {
	if p.client != nil {
		return turnlab.SendTo(p.peerFd, payload, p.client.Relayed)
	}
	return turnlab.SendTo(p.peerFd, payload, p.own)
}

func medians(results []Result) Result {
	of := func(f func(Result) float64) float64 {
		var values []float64
		for _, r := range results {
			values = append(values, f(r))
		}
		return median(values)
	}
	return Result{
		Peak:     of(func(r Result) float64 { return r.Peak }),
		LossFree: of(func(r Result) float64 { return r.LossFree }),
		CPU:      of(func(r Result) float64 { return r.CPU }),
		P50:      of(func(r Result) float64 { return r.P50 }),
		P99:      of(func(r Result) float64 { return r.P99 }),
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}
