package server

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// An outbox has datagrams that leave together (sendmmsg) when the connections that were given something to do at once
// have done it: between begin and end.
type outbox struct {
	sender *segments.Sender
	sent   atomic.Int64 // datagrams; a patience's

	mu        sync.Mutex
	begun     int // calls of begin without end
	receivers *segments.Receivers
	waiting   []segments.Packet // whose memory is kept; of capacity outboxSize
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const outboxSize = 64

func newOutbox(s *segments.Sender) *outbox {
	return &outbox{
		sender: s, receivers: segments.NewReceivers(s),
		waiting: make([]segments.Packet, 0, outboxSize), failed: map[netip.AddrPort]error{},
	}
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

// add takes a datagram if datagrams wait; false: it has to be sent now, and what was there before it has left. So have
// several of one size to one peer (UDP_SEGMENT), which leave together anyway.
func (o *outbox) add(b, oob []byte, to *net.UDPAddr) (taken bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := to.AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if err := o.failed[at]; err != nil {
		delete(o.failed, at)
		return true, err
	}
	size, ecn := parseControl(oob)
	o.sent.Add(1)
	var r *segments.Receiver
	if o.begun > 0 && (size == 0 || len(b) <= size) {
		r = o.receivers.Of(at)
	}
	if r == nil {
		o.flush()
		return false, nil
	}
	o.waiting = o.waiting[:len(o.waiting)+1]
	p := &o.waiting[len(o.waiting)-1]
	p.To, p.Payload, p.ECN = r, append(p.Payload[:0], b...), ecn
	if len(o.waiting) == outboxSize {
		o.flush()
	}
	return true, nil
}

// parseControl returns what control data (cmsg(3)) says of a datagram: the size of segments, if it has several, and
// ECN.
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

// sweep forgets peers to whom nothing was sent for a while.
func (o *outbox) sweep(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.receivers.Sweep(now)
}

// flush sends what waits. o.mu is held.
func (o *outbox) flush() {
	if len(o.waiting) > 0 && o.sender.Send(o.waiting) != nil {
		for i := range o.waiting {
			// That a datagram was too large is no error: the library tries how much the path takes.
			if p := &o.waiting[i]; p.Err != nil && !errors.Is(p.Err, unix.EMSGSIZE) {
				o.failed[p.To.Remote()] = p.Err
			}
		}
	}
	o.waiting = o.waiting[:0]
}
