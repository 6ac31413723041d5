package server

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/internal/unpolled"
)

// While the kernel sends to all who get a stream, what comes up is for the cache and the history alone. Being woken for
// each packet, and again for the records of its copies, would cost more than all else that is done with them. So the
// server looks for them in rounds. Who needs to know of all that has come, such as one who answers a request for a
// packet, looks first (rounds.catchUp).
const round = 4 * time.Millisecond

// rounds reads what the publishers send whose streams the kernel relays.
type rounds struct {
	s     *Server
	begun chan struct{} // capacity 1: there is a first publisher

	mu       sync.Mutex
	all      map[*Publisher]time.Time // when something came
	idle     time.Duration            // without a packet, until the publisher's goroutine waits for the next one
	messages []ipv4.Message
}

// inRound is how many datagrams are read at once.
const inRound = 32

func newRounds(s *Server) *rounds {
	r := &rounds{s: s, begun: make(chan struct{}, 1), all: map[*Publisher]time.Time{}, idle: time.Second}
	for range inRound {
		r.messages = append(r.messages, ipv4.Message{Buffers: [][]byte{make([]byte, longest)}})
	}
	return r
}

// run makes rounds while there is a publisher to read from, until the server is closed.
func (r *rounds) run() {
	for {
		select {
		case <-r.s.stop:
			return
		case <-r.begun:
		}
		ticker := time.NewTicker(round)
		for more := true; more; {
			select {
			case <-r.s.stop:
				ticker.Stop()
				return
			case now := <-ticker.C:
				more = r.turn(now)
			}
		}
		ticker.Stop()
	}
}

// add has a publisher's socket read in rounds, until its goroutine gets it back.
func (r *rounds) add(p *Publisher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[p] = time.Now()
	select {
	case r.begun <- struct{}{}:
	default:
	}
}

// turn is a round. It reports whether there is another one.
func (r *rounds) turn(now time.Time) bool {
	defer r.s.offload.read() // after the packets that the records are about
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, last := range r.all {
		n, err := r.read(p, now)
		if n > 0 {
			r.all[p], last = now, now
		}
		if err != nil || now.Sub(last) > r.idle || !p.relayed() {
			delete(r.all, p)
			p.back <- struct{}{}
		}
	}
	return len(r.all) > 0
}

// catchUp reads what has come from a publisher, if it is read in rounds.
func (r *rounds) catchUp(p *Publisher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.all[p]; ok {
		now := time.Now()
		if n, _ := r.read(p, now); n > 0 {
			r.all[p] = now
		}
	}
}

// read reads what has come from a publisher, and returns how many datagrams that were. The error says that its socket
// is closed. r.mu is held.
func (r *rounds) read(p *Publisher, now time.Time) (datagrams int, err error) {
	for {
		n, err := p.batch.ReadBatch(r.messages, unix.MSG_DONTWAIT)
		for _, m := range r.messages[:max(n, 0)] {
			p.receive(m.Buffers[0][:m.N], m.Addr.(*net.UDPAddr).AddrPort(), now)
		}
		datagrams += max(n, 0)
		switch {
		case errors.Is(err, net.ErrClosed):
			return datagrams, err
		case n < inRound: // all, or an ICMP error
			return datagrams, nil
		}
	}
}

// publisherSocket is what a publisher sends to.
type publisherSocket struct {
	conn  *unpolled.UDP
	batch *ipv4.PacketConn // of conn
	back  chan struct{}    // capacity 1: no round reads it any more

	mu     sync.Mutex
	polled *net.UDPConn // what Go's poller has, if the publisher's goroutine reads
}

func newPublisherSocket(c *net.UDPConn) (*publisherSocket, error) {
	conn, err := unpolled.Of(c)
	if err != nil {
		return nil, err
	}
	return &publisherSocket{conn: conn, batch: ipv4.NewPacketConn(conn), back: make(chan struct{}, 1)}, nil
}

// poll has Go's poller have the socket.
func (k *publisherSocket) poll() (_ *net.UDPConn, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.polled, err = k.conn.Polled()
	return k.polled, err
}

// unpoll has the poller not have it any more.
func (k *publisherSocket) unpoll() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.polled == nil {
		return nil
	}
	defer func() { k.polled = nil }()
	return k.polled.Close()
}

// close ends who reads.
func (k *publisherSocket) close() error { return errors.Join(k.conn.Close(), k.unpoll()) }
