package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/ipvs/balance/balancerelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// discard drops packets at the director's door: what is left is what sending costs.
const discard Variant = "discard"

const (
	interval  = 50 * time.Millisecond
	cpu       = 0 // all there is
	patience  = time.Second
	mostLost  = 0.001 // of the packets
	servePort = 53
)

// Directions of packets.
const (
	Request = "request" // client to server
	Answer  = "answer"  // server to client
)

// Sizes are bytes of payload.
var Sizes = []int{200, 1000}

// director is a line of hosts, client — director — server, with a variant set up on the one in the middle.
type director struct {
	variant        Variant
	net            *testnet.Net
	line           *testnet.Line
	client, server end
	service        netip.AddrPort
	relay          *balancerelay.Relay
	sinks          []*measure.Sink
}

// end is a socket.
type end struct {
	fd   int
	addr netip.AddrPort
}

// newDirector sets up a variant and makes sure that a packet arrives as it should in each direction. All that is sent
// from then on is dropped as soon as the receiver's device has it.
func newDirector(v Variant) (_ *director, err error) {
	d := &director{variant: v, client: end{fd: -1}, server: end{fd: -1}}
	defer func() {
		if err != nil {
			d.close()
			err = fmt.Errorf("%s: %w", v, err)
		}
	}()
	if d.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if d.line, err = d.net.Line(); err != nil {
		return nil, err
	}
	l := d.line
	if err := errors.Join(
		offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.PeerDev, false),
		offloads.TxChecksum(l.ClientDev, false), offloads.TxChecksum(l.PeerDev, false),
		// Where packets are dropped, no host answers for its address.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
		l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
		l.Relay.SetForwarding(v != Relay),
	); err != nil {
		return nil, err
	}
	d.service = netip.AddrPortFrom(l.RelayInAddr.V4, servePort)
	server := netip.AddrPortFrom(l.PeerAddr.V4, 0)
	if v == Direct { // such a server has the service's address, too
		if err := l.PeerDev.AddAddr(d.service.Addr().String() + "/32"); err != nil {
			return nil, err
		}
		server = d.service
	}
	if d.client, err = open(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0)); err != nil {
		return nil, err
	}
	if d.server, err = open(l.Peer, server); err != nil {
		return nil, err
	}
	return d, errors.Join(d.start(), d.check(), d.discard())
}

func open(host *testnet.Host, local netip.AddrPort) (e end, err error) {
	e.fd, e.addr, err = measure.BlockingSocket(host, local)
	if err != nil {
		e.fd = -1
		return e, err
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	return e, unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
}

func (d *director) close() {
	for _, s := range d.sinks {
		_ = s.Close()
	}
	if d.relay != nil {
		_ = d.relay.Close()
	}
	for _, e := range []end{d.client, d.server} {
		if e.fd >= 0 {
			unix.Close(e.fd)
		}
	}
	if d.net != nil {
		_ = d.net.Close() // what remains is removed by the next network
	}
}

// start starts the variant.
func (d *director) start() error {
	forward := uint32(masquerade)
	if d.variant == Direct {
		forward = directRoute
	}
	switch d.variant {
	case NAT, Direct:
		server := netip.AddrPortFrom(d.line.PeerAddr.V4, d.server.addr.Port())
		return d.line.Relay.Do(func() error { return assign(d.service, server, forward) })
	case Relay:
		return d.line.Relay.Do(d.load)
	}
	return nil
}

// load loads the relay, with one connection.
func (d *director) load() (err error) {
	if d.relay, err = balancerelay.Load(balancerelay.Options{}); err != nil {
		return err
	}
	return errors.Join(
		d.relay.ByClient.Put(balancerelay.ByClientKey{Client: d.client.addr, Service: d.service},
			balancerelay.ByClientRow{Server: d.server.addr, Hop: d.server.addr.Addr()}),
		d.relay.ByServer.Put(balancerelay.ByServerKey{Server: d.server.addr, Client: d.client.addr},
			balancerelay.ByServerRow{Service: d.service, Hop: d.client.addr.Addr()}),
		d.relay.Request.Attach(d.line.RelayIn.Name), d.relay.Answer.Attach(d.line.RelayOut.Name))
}

// carries reports whether packets of a direction come by the director.
func (d *director) carries(direction string) bool { return d.variant != Direct || direction == Request }

// ends returns the ends of a direction: where packets are sent from and to, and where they arrive.
func (d *director) ends(direction string) (from end, to netip.AddrPort, at end) {
	if direction == Answer {
		return d.server, d.client.addr, d.client
	}
	if d.variant == Routing || d.variant == discard {
		return d.client, d.server.addr, d.server
	}
	return d.client, d.service, d.server
}

// check sends a packet there and back, and expects it from the right address.
func (d *director) check() error {
	for _, direction := range []string{Request, Answer} {
		if !d.carries(direction) {
			continue
		}
		from, to, at := d.ends(direction)
		seen := from.addr // by the receiver
		if direction == Answer && d.variant != Routing && d.variant != discard {
			seen = d.service
		}
		payload, got := turnlab.Payload(Sizes[0]), make([]byte, 2048)
		if err := measure.SendTo(from.fd, payload, to); err != nil {
			return err
		}
		n, sender, err := unix.Recvfrom(at.fd, got, 0)
		if err != nil {
			return fmt.Errorf("no %s arrives: %w", direction, err)
		}
		a, _ := sender.(*unix.SockaddrInet4)
		if a == nil || netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) != seen ||
			!bytes.Equal(got[:n], payload) {
			return fmt.Errorf("%s: %x comes from %+v, not %x from %v", direction, got[:n], a, payload, seen)
		}
	}
	return nil
}

// arrival returns the device at which packets of a direction end.
func (d *director) arrival(direction string) *testnet.Dev {
	l := d.line
	switch {
	case d.variant == discard && direction == Request:
		return l.RelayIn
	case d.variant == discard:
		return l.RelayOut
	case direction == Request:
		return l.PeerDev
	}
	return l.ClientDev
}

// discard has all packets dropped where they end.
func (d *director) discard() error {
	for _, direction := range []string{Request, Answer} {
		s, err := measure.NewSink(d.arrival(direction))
		if err != nil {
			return err
		}
		d.sinks = append(d.sinks, s)
	}
	return nil
}

// cost returns the nanoseconds that a packet takes, from the sender's system call to its end, which are instructions by
// the machine's clock. All of that runs on one processor.
func (d *director) cost(direction string, size int) (float64, error) {
	from, to, _ := d.ends(direction)
	dev := d.arrival(direction)
	sender := measure.NewSender(from.fd, to, turnlab.Payload(size))
	before, err := dev.Received()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	sent, err := sender.Send(cpu, interval, 0)
	if err != nil {
		return 0, err
	}
	for {
		now, err := dev.Received()
		if err != nil {
			return 0, err
		}
		took := time.Since(start)
		if float64(now-before) >= (1-mostLost)*float64(sent) {
			return float64(took.Nanoseconds()) / float64(sent), nil
		}
		if took > interval+patience {
			return 0, fmt.Errorf("%s, %s: %d of %d packets arrived", d.variant, direction, now-before, sent)
		}
		time.Sleep(100 * time.Microsecond) // the one processor is the kernel's meanwhile: it may still be at work
	}
}

// Compare measures all variants on this machine's kernel, in rounds in which they alternate, and reports medians.
func Compare(rounds int, report func(Cell) error) error {
	var directors []*director
	defer func() {
		for _, d := range directors {
			d.close()
		}
	}()
	for _, v := range append([]Variant{discard}, Variants...) {
		d, err := newDirector(v)
		if err != nil {
			return err
		}
		directors = append(directors, d)
	}
	for _, direction := range []string{Request, Answer} {
		for _, size := range Sizes {
			c, err := compare(directors, rounds, direction, size)
			if err != nil {
				return err
			}
			if err := report(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func compare(directors []*director, rounds int, direction string, size int) (Cell, error) {
	costs := map[Variant][]float64{}
	for range rounds {
		sending := 0.0
		for _, d := range directors { // discard is the first one
			if !d.carries(direction) {
				continue
			}
			n, err := d.cost(direction, size)
			if err != nil {
				return Cell{}, err
			}
			if d.variant == discard {
				sending = n
				continue
			}
			costs[d.variant] = append(costs[d.variant], n-sending)
		}
	}
	c := Cell{Direction: direction, Size: size, Instructions: map[Variant]float64{}}
	for v, list := range costs {
		c.Instructions[v] = measure.Median(list)
	}
	return c, nil
}
