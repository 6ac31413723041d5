package socket

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// An outbox has datagrams that leave together when the connections that were given something to do at once have done
// it: between begin and end. They leave by sendmmsg, or by a sender in segments.
type outbox struct {
	conn   *ipv4.PacketConn // of either family
	sender *segments.Sender // nil: there is none
	sent   atomic.Int64     // what was added

	mu        sync.Mutex
	begun     int            // calls of begin without end
	waiting   []ipv4.Message // of capacity outboxSize, whose memory is kept
	receivers *segments.Receivers
	packets   []segments.Packet // inSegments'
	// A device takes several in one call only if it computes checksums (else EIO, udp(7)): then the library sends them
	// one by one, if it is told at once.
	single bool
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const (
	outboxSize = 64
	fewest     = 32 // datagrams that are worth segments: with 8, sendmmsg costs a seventh less
)

func newOutbox(conn *ipv4.PacketConn, sender *segments.Sender) *outbox {
	o := &outbox{
		conn: conn, sender: sender, waiting: make([]ipv4.Message, outboxSize), failed: map[netip.AddrPort]error{},
	}
	if sender != nil {
		o.receivers = segments.NewReceivers(sender)
	}
	for i := range o.waiting {
		o.waiting[i].Buffers = make([][]byte, 1)
	}
	o.waiting = o.waiting[:0]
	return o
}

// begin has datagrams wait for end. Several may have begun.
func (o *outbox) begin() {
	o.mu.Lock()
	o.begun++
	o.mu.Unlock()
}

// end sends what waits, whoever it was that began.
func (o *outbox) end() {
	o.mu.Lock()
	o.begun--
	o.flush()
	o.mu.Unlock()
}

// add takes a datagram, or several of one size (UDP_SEGMENT), with its control data, if datagrams wait; false: it has
// to be sent now, and what was there before it has left. The address stays as it is.
func (o *outbox) add(b, oob []byte, to *net.UDPAddr) (taken bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent.Add(1)
	if len(o.failed) > 0 {
		at := peer(to)
		if err := o.failed[at]; err != nil {
			delete(o.failed, at)
			return true, err
		}
	}
	if o.begun == 0 {
		return false, nil
	}
	if o.single && several(b, oob) {
		o.flush()
		return false, nil
	}
	o.waiting = o.waiting[:len(o.waiting)+1]
	m := &o.waiting[len(o.waiting)-1]
	m.Buffers[0], m.OOB, m.Addr = append(m.Buffers[0][:0], b...), append(m.OOB[:0], oob...), to
	if len(o.waiting) == outboxSize {
		o.flush()
	}
	return true, nil
}

// several reports whether a message is several datagrams.
func several(b, oob []byte) bool {
	size, _ := parseControl(oob)
	return size > 0 && len(b) > size
}

func peer(a *net.UDPAddr) netip.AddrPort {
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// flush sends what waits. o.mu is held.
func (o *outbox) flush() {
	ms := o.waiting
	if o.sender != nil && len(ms) >= fewest {
		ms = o.inSegments(ms)
	}
	for len(ms) > 0 {
		n, err := o.conn.WriteBatch(ms, 0)
		if err != nil { // of the first one
			if n = 1; errors.Is(err, unix.EIO) && several(ms[0].Buffers[0], ms[0].OOB) {
				o.single = true
			} else {
				o.fail(peer(ms[0].Addr.(*net.UDPAddr)), err)
			}
		}
		ms = ms[n:]
	}
	o.waiting = o.waiting[:0]
}

// inSegments sends what it can, and returns the rest.
func (o *outbox) inSegments(ms []ipv4.Message) (rest []ipv4.Message) {
	o.packets = o.packets[:0]
	for i := range ms {
		r := o.receivers.Of(peer(ms[i].Addr.(*net.UDPAddr)))
		if r == nil {
			ms[len(rest)], ms[i] = ms[i], ms[len(rest)]
			rest = ms[:len(rest)+1]
			continue
		}
		b := ms[i].Buffers[0]
		size, ecn := parseControl(ms[i].OOB)
		if size == 0 {
			size = len(b)
		}
		for len(b) > 0 {
			n := min(size, len(b))
			o.packets = append(o.packets, segments.Packet{To: r, Payload: b[:n], ECN: ecn})
			b = b[n:]
		}
	}
	if o.sender.Send(o.packets) != nil {
		for i := range o.packets {
			if p := &o.packets[i]; p.Err != nil {
				o.fail(p.To.Remote(), p.Err)
			}
		}
	}
	clear(o.packets)
	return rest
}

// fail notes that a datagram wasn't sent. That it was too large is no error: the library tries how much the path takes.
func (o *outbox) fail(to netip.AddrPort, err error) {
	if !errors.Is(err, unix.EMSGSIZE) {
		o.failed[to] = err
	}
}

// sweep forgets peers to whom nothing was sent for a while.
func (o *outbox) sweep(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.receivers != nil {
		o.receivers.Sweep(now)
	}
}
