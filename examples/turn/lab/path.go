package lab

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
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
	// 0 if it is the kernel, and what ends it.
	Start func(l *testnet.Line, ends Ends) (pid int, stop func(), err error)
}

// Ends are the addresses of a channel. A client of the type Asked gets another relayed address.
type Ends struct{ Client, Server, Relayed, Peer netip.AddrPort }

const (
	delayRate  = 10_000
	delayCount = 2_000
	delayTries = 3
)

// Path is a line with one variant set up on it.
type Path struct {
	Variant Variant
	net     *testnet.Net
	line    *testnet.Line
	server  *Process                      // ours
	stop    func()                        // ends a baseline
	used    func() (time.Duration, error) // by the process that does the work; nil: it is the kernel
	client  *turnlab.Client
	peer    netip.AddrPort
	peerFd  int
	direct  int            // without channels: the client's socket
	to      netip.AddrPort // where it sends to
	back    netip.AddrPort // where the peer sends to
}

// NewPath sets up a variant on hosts of its own. Packets come as from a network card, with complete checksums; or with
// partial ones, as from a virtual machine on the same host. This process has to stay away from the relay's processor
// (measure.Prefer).
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
		l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.RelayOut.SetReceiveCPU(measure.RelayCPU),
		l.ClientDev.SetReceiveCPU(measure.LoadCPU), l.PeerDev.SetReceiveCPU(measure.LoadCPU),
		offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.PeerDev, false),
		offloads.TxChecksum(l.ClientDev, partial), offloads.TxChecksum(l.PeerDev, partial),
		// While a sink is attached, no host answers neighbour solicitations.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
		l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
	)
	if err != nil {
		return nil, err
	}
	if p.peerFd, p.peer, err = measure.BlockingSocket(l.Peer, netip.AddrPortFrom(l.PeerAddr.V4, 0)); err != nil {
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
	p.direct, own, err = measure.BlockingSocket(p.line.Client, netip.AddrPortFrom(p.line.ClientAddr.V4, 0))
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
	if err := errors.Join(measure.Prefer(p.server.cmd.Process.Pid, measure.RelayCPU), p.ask()); err != nil {
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
	if p.client, err = turnlab.Dial(p.line.Client, p.line.ClientAddr.V4, p.listen()); err != nil {
		return err
	}
	err = p.client.Open(turnlab.ChannelNumber, p.peer)
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
		if p.client, err = turnlab.Dial(p.line.Client, p.line.ClientAddr.V4, e.Server); err == nil {
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
		p.used = func() (time.Duration, error) { return measure.CPUTime(pid) }
		err = measure.Prefer(pid, measure.RelayCPU)
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
func (p *Path) ends(direction string, size int) (to *testnet.Dev, sender *measure.Sender, done func(), err error) {
	payload, done := turnlab.Payload(size), func() {}
	switch {
	case p.client == nil && direction == "to_peer":
		return p.line.PeerDev, measure.NewSender(p.direct, p.to, payload), done, nil
	case direction == "to_client":
		return p.line.ClientDev, measure.NewSender(p.peerFd, p.back, payload), done, nil
	}
	fd, err := p.client.Fd()
	if err != nil {
		return nil, nil, nil, err
	}
	done = func() { unix.Close(fd) }
	data := turnlab.ChannelData(turnlab.ChannelNumber, payload)
	return p.line.PeerDev, measure.NewSender(fd, netip.AddrPort{}, data), done, nil
}

// Measure sends traffic in a direction ("to_peer", "to_client") with so many bytes of payload: first for rates, then
// for cost, then for delays. busy measures measure.RelayCPU. With measure.ErrUnsteady, all but the cost is measured.
func (p *Path) Measure(direction string, size int, busy *measure.Busy) (r measure.Result, err error) {
	to, sender, done, err := p.ends(direction, size)
	if err != nil {
		return r, err
	}
	defer done()
	r, unsteady := measure.Throughput(to, sender, busy, p.used)
	if unsteady != nil && !errors.Is(unsteady, measure.ErrUnsteady) {
		return r, unsteady
	}
	r.P50, r.P99, r.DeviceP50, r.DeviceP99 = math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	for range delayTries {
		toDevice, toProcess, failed := p.Delays(direction, size, delayCount, delayRate)
		if failed != nil {
			err = failed // counts if no try succeeds
			continue
		}
		for _, q := range []struct {
			least  *float64
			delays measure.Delays
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

// Cost is the part of Measure that says what a packet costs measure.RelayCPU, in ns, if the kernel forwards.
func (p *Path) Cost(direction string, size int, busy *measure.Busy) (float64, error) {
	to, sender, done, err := p.ends(direction, size)
	if err != nil {
		return 0, err
	}
	defer done()
	return measure.Cost(to, sender, busy)
}

// Delays measures one-way delays of so many packets at a low rate, through ordinary sockets on both ends.
func (p *Path) Delays(
	direction string, size, count int, rate float64,
) (toDevice, toProcess measure.Delays, err error) {
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
	return measure.Delay(measure.LoadCPU, count, rate, size, send, receiver, stamp)
}

func (p *Path) sendToPeer(payload []byte) error {
	if p.client != nil {
		return p.client.Send(turnlab.ChannelNumber, payload)
	}
	return measure.SendTo(p.direct, payload, p.to)
}

func (p *Path) sendToClient(payload []byte) error {
	return measure.SendTo(p.peerFd, payload, p.back)
}
