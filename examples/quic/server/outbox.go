package server

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// An outbox has datagrams that leave together (sendmmsg) when the connections that were given something to do at once
// have done it: between begin and end.
type outbox struct {
	conn *ipv4.PacketConn // of either family
	sent atomic.Int64     // datagrams; a patience's

	mu      sync.Mutex
	begun   int            // calls of begin without end
	waiting []ipv4.Message // of capacity outboxSize, whose memory is kept
	// A device takes several in one call only if it computes checksums (EIO, udp(7)): then the library sends them one by
	// one, if it is told at once.
	single bool
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const outboxSize = 64

func newOutbox(conn *ipv4.PacketConn) *outbox {
	o := &outbox{conn: conn, waiting: make([]ipv4.Message, outboxSize), failed: map[netip.AddrPort]error{}}
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
	if o.begun == 0 || o.single && several(b, oob) {
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
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_SEGMENT && len(data) >= 2 {
			return len(b) > int(binary.NativeEndian.Uint16(data))
		}
		oob = rest
	}
	return false
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
			// That a datagram was too large is no error: the library tries how much the path takes.
			n = 1
			switch {
			case errors.Is(err, unix.EMSGSIZE):
			case errors.Is(err, unix.EIO) && several(ms[0].Buffers[0], ms[0].OOB):
				o.single = true
			default:
				o.failed[peer(ms[0].Addr.(*net.UDPAddr))] = err
			}
		}
		ms = ms[n:]
	}
	o.waiting = o.waiting[:0]
}
