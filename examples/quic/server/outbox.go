package server

import (
	"encoding/binary"
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

	mu    sync.Mutex
	begun int // calls of begin without end
	// What waits, of capacity outboxSize, whose memory is kept: for sendmmsg, and for the sender.
	waiting   []ipv4.Message
	packets   []segments.Packet
	receivers *segments.Receivers
	// A device takes several in one call only if it computes checksums (else EIO, udp(7)): then the library sends them
	// one by one, if it is told at once.
	single bool
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const outboxSize = 64

func newOutbox(conn *ipv4.PacketConn, sender *segments.Sender) *outbox {
	o := &outbox{conn: conn, sender: sender, failed: map[netip.AddrPort]error{}}
	if sender != nil {
		o.packets, o.receivers = make([]segments.Packet, 0, outboxSize), segments.NewReceivers(sender)
		return o
	}
	o.waiting = make([]ipv4.Message, outboxSize)
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
	if o.sender != nil {
		return o.pack(b, oob, to), nil
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

// pack adds packets for the sender; false if they have to be sent otherwise.
func (o *outbox) pack(b, oob []byte, to *net.UDPAddr) bool {
	r := o.receivers.Of(peer(to))
	if r == nil {
		o.flush()
		return false
	}
	size, ecn := parseControl(oob)
	for first := true; first || len(b) > 0; first = false {
		n := len(b)
		if size > 0 {
			n = min(n, size)
		}
		o.packets = o.packets[:len(o.packets)+1]
		p := &o.packets[len(o.packets)-1]
		p.To, p.Payload, p.ECN = r, append(p.Payload[:0], b[:n]...), ecn
		if len(o.packets) == outboxSize {
			o.flush()
		}
		b = b[n:]
	}
	return true
}

// several reports whether a message is several datagrams.
func several(b, oob []byte) bool {
	size, _ := parseControl(oob)
	return size > 0 && len(b) > size
}

// parseControl returns what control data (cmsg(3)) says of a message: the size of its datagrams, if it may be several,
// and ECN.
func parseControl(oob []byte) (size int, ecn uint8) {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		switch {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_SEGMENT && len(data) >= 2:
			size = int(binary.NativeEndian.Uint16(data))
		case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS && len(data) > 0,
			h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) > 0:
			if ecn = data[0] & 3; len(data) >= 4 {
				ecn = uint8(binary.NativeEndian.Uint32(data)) & 3
			}
		}
		oob = rest
	}
	return size, ecn
}

func peer(a *net.UDPAddr) netip.AddrPort {
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// flush sends what waits. o.mu is held.
func (o *outbox) flush() {
	for ms := o.waiting; len(ms) > 0; {
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
	if len(o.packets) > 0 && o.sender.Send(o.packets) != nil {
		for i := range o.packets {
			if p := &o.packets[i]; p.Err != nil {
				o.fail(p.To.Remote(), p.Err)
			}
		}
	}
	o.waiting, o.packets = o.waiting[:0], o.packets[:0]
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
