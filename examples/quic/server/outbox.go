package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// An outbox has datagrams that leave together (sendmmsg) when the connections that were given something to do at once
// have done it, while the socket leaves datagrams waiting.
type outbox struct {
	conn     *ipv4.PacketConn
	patience *patience
	kick     chan struct{} // capacity 1: there are datagrams

	mu      sync.Mutex
	waiting []ipv4.Message // whose memory is kept; of capacity outboxSize
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

const outboxSize = 64

func newOutbox(conn *ipv4.PacketConn, p *patience) *outbox {
	waiting := make([]ipv4.Message, outboxSize)
	for i := range waiting {
		waiting[i].Buffers = make([][]byte, 1)
	}
	return &outbox{
		conn: conn, patience: p, kick: make(chan struct{}, 1), waiting: waiting[:0], failed: map[netip.AddrPort]error{},
	}
}

// add takes a datagram if datagrams wait; false: it has to be sent now, and what was there before it has left.
func (o *outbox) add(b, oob []byte, to *net.UDPAddr) (taken bool, err error) {
	o.patience.sent.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failed) > 0 {
		at := to.AddrPort()
		if err := o.failed[at]; err != nil {
			delete(o.failed, at)
			return true, err
		}
	}
	if o.patience.busy() == 0 {
		o.flush()
		return false, nil
	}
	o.waiting = o.waiting[:len(o.waiting)+1]
	m := &o.waiting[len(o.waiting)-1]
	m.Buffers[0], m.OOB, m.Addr = append(m.Buffers[0][:0], b...), append(m.OOB[:0], oob...), to
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
		o.mu.Unlock()
	}
}

// flush sends what waits. o.mu is held.
func (o *outbox) flush() {
	for at := 0; at < len(o.waiting); {
		n, err := o.conn.WriteBatch(o.waiting[at:], 0)
		at += max(n, 0)
		if err != nil && n <= 0 { // of the first one
			if !errors.Is(err, unix.EMSGSIZE) { // else the library tries how much the path takes
				o.failed[o.waiting[at].Addr.(*net.UDPAddr).AddrPort()] = err
			}
			at++
		}
	}
	o.waiting = o.waiting[:0]
}
