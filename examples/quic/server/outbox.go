package server

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// An outbox has datagrams that leave together (sendmmsg) when the connections that were given something
// to do at once have done it, while the socket leaves datagrams waiting.
type outbox struct {
	sender   *segments.Sender
	patience *patience
	kick     chan struct{} // capacity 1: there are datagrams

	mu        sync.Mutex
	receivers *segments.Receivers
	waiting   []segments.Packet // whose memory is kept; of capacity outboxSize
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const outboxSize = 64

func newOutbox(s *segments.Sender, p *patience) *outbox {
	return &outbox{
		sender: s, patience: p, kick: make(chan struct{}, 1), receivers: segments.NewReceivers(s),
		waiting: make([]segments.Packet, 0, outboxSize), failed: map[netip.AddrPort]error{},
	}
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
	var r *segments.Receiver
	if o.patience.busy() > 0 && (size == 0 || len(b) <= size) {
		r = o.receivers.Of(at)
	}
	if r == nil {
		o.flush()
		return false, nil
	}
	o.waiting = o.waiting[:len(o.waiting)+1]
	p := &o.waiting[len(o.waiting)-1]
	p.To, p.Payload, p.ECN = r, append(p.Payload[:0], b...), ecn
	switch len(o.waiting) {
	case outboxSize:
		o.flush()
	case 1:
		select {
		case o.kick <- struct{}{}:
		default:
		}
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

// run sends what waits, until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.kick:
		}
		runtime.Gosched() // after all who can run now
		o.mu.Lock()
		o.flush()
		o.receivers.Sweep(time.Now())
		o.mu.Unlock()
	}
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
