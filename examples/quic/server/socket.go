package server

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A socket is the UDP socket of all connections. Before a datagram that it received is handled, the ring of events is
// read up to where it stood then. The kernel's program has written its records of a datagram when the datagram reaches
// the socket, so whoever handles it knows all its copies; and whoever handles an ACK knows the copies that it is for.
//
// What connections have to do because of what was received, they do one after the other when the next datagrams are
// read, on the goroutine that reads; and what they send leaves then.
type socket struct {
	*udp
	batch *ipv4.PacketConn
	drain func()
	turns quic.Turns
	begun bool // by the reader
	pass  int  // datagrams that were read since then
	*rounds
	patience *patience
	ticker   *ticker
	deaf     bool // the process isn't woken for datagrams
	full     bool // the last call filled all there was room for
}

// Rounds are when the server looks for records and datagrams while it is busy: being woken for each would cost more
// than all else that is done with it.
type rounds struct {
	on   atomic.Bool
	next chan struct{}
}

func newRounds() *rounds { return &rounds{next: make(chan struct{}, 1)} }

// begin begins a round; with on, another one will come soon.
func (r *rounds) begin(on bool) {
	r.on.Store(on)
	select {
	case r.next <- struct{}{}:
	default:
	}
}

// await waits for the next round; false if there are none now.
func (r *rounds) await() bool {
	if !r.on.Load() {
		return false
	}
	<-r.next
	return r.on.Load()
}

// A patience is how long the reader of a socket leaves datagrams waiting, so that it gets several at once, and the
// answers to them leave together. Being woken for each one costs more than most of what is done with it. While few come
// and few are sent, it leaves none waiting.
type patience struct {
	longest time.Duration
	wait    atomic.Int64 // a time.Duration
	since   time.Time    // when counting began
	count   int          // of datagrams that were read since
}

const (
	few      = 2000 // datagrams a second: up to so many none waits,
	many     = 4000 // and from so many on they wait for the longest time.
	weight   = 2    // so many that are sent count as one that comes: their ACK, also if peers send fewer
	counting = 20 * time.Millisecond
)

// read notes how many datagrams were read, and how many were sent.
func (p *patience) read(n int, sent *atomic.Int64, now time.Time) {
	p.count += n
	took := now.Sub(p.since)
	if took < counting {
		return
	}
	received, left := float64(p.count)/took.Seconds(), float64(sent.Swap(0))/took.Seconds()
	wait := float64(p.longest) * min(1, max(0, max(received, left/weight)-few)/(many-few))
	if wait*max(received, left) < float64(time.Second) { // rounds without a datagram would cost more than they save
		wait = 0
	}
	p.wait.Store(int64(wait))
	p.since, p.count = now, 0
}

// busy is how long datagrams wait; 0: they don't.
func (p *patience) busy() time.Duration { return time.Duration(p.wait.Load()) }

func listen(at *net.UDPAddr, drain func(), r *rounds, longest time.Duration) (*socket, error) {
	u, err := listenUDP(at)
	if err != nil {
		return nil, err
	}
	// A socket that takes several datagrams as one makes the kernel merge them before the program sees them, which then
	// passes them all to user space.
	if err := u.set(unix.IPPROTO_UDP, unix.UDP_GRO, 0); err != nil {
		return nil, fmt.Errorf("turn UDP_GRO off: %w", errors.Join(err, u.Close()))
	}
	t, err := newTicker()
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	batch := ipv4.NewPacketConn(u)
	u.outbox = newOutbox(batch)
	p := &patience{longest: longest}
	return &socket{udp: u, batch: batch, drain: drain, rounds: r, patience: p, ticker: t}, nil
}

// Close closes the socket.
func (s *socket) Close() error {
	return errors.Join(s.udp.Close(), s.ticker.Close())
}

// begin has connections, and what they send, wait for end.
func (s *socket) begin() {
	s.outbox.begin()
	s.turns.Begin()
}

// end does what connections have to do, and sends.
func (s *socket) end() {
	s.turns.End()
	s.outbox.end()
}

// longestPass is how many datagrams, at least, connections have had when they do what they have to do.
const longestPass = 64

// ReadBatch is what the library reads datagrams with.
func (s *socket) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
	if !s.full || s.pass >= longestPass {
		s.finish()
	}
	for s.full || s.rest() {
		n, err = s.read(ms, flags|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		s.finish()
	}
	if err := s.hear(true); err != nil {
		return 0, err
	}
	return s.read(ms, flags)
}

// finish ends what the reader has begun.
func (s *socket) finish() {
	if s.begun {
		s.begun, s.pass = false, 0
		s.end()
	}
}

func (s *socket) read(ms []ipv4.Message, flags int) (n int, err error) {
	n, err = s.batch.ReadBatch(ms, flags)
	s.full = n == len(ms)
	s.pass += max(n, 0)
	if err == nil && !s.begun {
		s.begun = true
		s.begin()
	}
	s.patience.read(max(n, 0), &s.outbox.sent, time.Now())
	s.drain()
	return n, err
}

// rest leaves datagrams waiting until the next round, or for a while; false if there are too few of them.
func (s *socket) rest() bool {
	if s.rounds.on.Load() || s.patience.busy() > 0 {
		if s.hear(false) != nil {
			return false
		}
	}
	return s.await() || s.pause()
}

// pause leaves datagrams waiting for a while; false if there are too few of them.
func (s *socket) pause() bool {
	d := s.patience.busy()
	return s.ticker.every(d) == nil && d > 0 && s.ticker.wait() == nil
}

// hear has the process woken when a datagram comes, or not.
func (s *socket) hear(datagrams bool) error {
	if s.deaf == !datagrams {
		return nil
	}
	s.deaf = !datagrams
	return s.listen(datagrams)
}
