package server

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/internal/unpolled"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// A socket is the UDP socket of all connections. Before a datagram that it received is handled, the ring of events is
// read up to where it stood then. The kernel's program has written its records of a datagram when the datagram reaches
// the socket, so whoever handles it knows all its copies; and whoever handles an ACK knows the copies that it is for.
//
// What connections have to do because of what was received, they do one after the other when the next datagrams are
// read, on the goroutine that reads; and what they send leaves then.
type socket struct {
	*udp
	own      source // the socket itself
	waiter   *waiter
	doors    *doors
	drain    func()
	turns    quic.Turns
	begun    bool      // by the reader
	pass     int       // datagrams that were read since then
	pending  []*source // have datagrams
	rounds   *rounds
	patience *patience
	heard    bool // the process is woken for datagrams
}

// Rounds are when the server looks for records of the kernel's program while there are any: being woken for each would
// cost more than all else that is done with it.
type rounds struct {
	on   atomic.Bool
	over chan struct{} // capacity 1: there are no records any more
	// turn reads records, and does what follows. It says how long the next round is, or 0 if there is none, and whether
	// datagrams wait for its end.
	turn func(now time.Time) (length time.Duration, wait bool)

	end  time.Time // of this one
	wait bool
}

func newRounds(turn func(time.Time) (time.Duration, bool)) *rounds {
	return &rounds{over: make(chan struct{}, 1), turn: turn}
}

// A patience is how long the reader of a socket leaves datagrams waiting, so that it gets several at once, and the
// answers to them leave together. Being woken for each one costs more than most of what is done with it. While few come
// and few are sent, it leaves none waiting. Those that come through doors, publishers', end a wait.
type patience struct {
	wait  atomic.Int64 // a time.Duration
	since time.Time    // when counting began
	count int          // of datagrams that were read since
	last  time.Time    // when a datagram was read
}

const (
	few  = 2000 // datagrams a second: up to so many none waits,
	many = 4000 // and from so many on they wait for the longest time.

	longestWait = 2 * time.Millisecond
	weight      = 2 // so many that are sent count as one that comes: their ACK, also if peers send fewer
	counting    = 20 * time.Millisecond
	idle        = 20 * time.Millisecond // after so long without a datagram, the reader waits as other goroutines do
)

// read notes how many datagrams were read, and how many were sent.
func (p *patience) read(n int, sent *atomic.Int64, now time.Time) {
	p.count += n
	if n > 0 {
		p.last = now
	}
	took := now.Sub(p.since)
	if took < counting {
		return
	}
	received, left := float64(p.count)/took.Seconds(), float64(sent.Swap(0))/took.Seconds()
	wait := float64(longestWait) * min(1, max(0, max(received, left/weight)-few)/(many-few))
	if wait*max(received, left) < float64(time.Second) { // rounds without a datagram would cost more than they save
		wait = 0
	}
	p.wait.Store(int64(wait))
	p.since, p.count = now, 0
}

// busy is how long datagrams wait; 0: they don't.
func (p *patience) busy() time.Duration { return time.Duration(p.wait.Load()) }

// listen opens the socket.
func listen(c *Config, drain func(), r *rounds) (_ *socket, err error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(c.Address))
	if err != nil {
		return nil, err
	}
	u, err := unpolled.Of(conn)
	if err != nil {
		return nil, err
	}
	s := &socket{
		udp: &udp{UDP: u}, own: source{u.File, ipv4.NewPacketConn(u)}, drain: drain, rounds: r,
		patience: &patience{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// A socket that takes several datagrams as one makes the kernel merge them before the program sees them, which then
	// passes them all to user space.
	if err := u.File.Set(unix.IPPROTO_UDP, unix.UDP_GRO, 0); err != nil {
		return nil, fmt.Errorf("turn UDP_GRO off: %w", err)
	}
	if s.waiter, err = newWaiter(); err != nil {
		return nil, err
	}
	var sender *segments.Sender
	if c.Segments {
		if sender, err = segments.New(segments.Config{Conn: s.udp, Lease: lease, Logger: c.Logger}); err != nil {
			return nil, err
		}
	}
	s.outbox = newOutbox(s.own.batch, sender)
	s.doors, err = newDoors(s.waiter, s.udp, peer(u.LocalAddr().(*net.UDPAddr)))
	return s, err
}

// Close closes the socket.
func (s *socket) Close() error {
	err := s.udp.Close()
	if s.outbox != nil && s.outbox.sender != nil {
		err = errors.Join(err, s.outbox.sender.Close())
	}
	if s.waiter != nil {
		err = errors.Join(err, s.waiter.Close())
	}
	if s.doors != nil {
		err = errors.Join(err, s.doors.Close())
	}
	return err
}

// SyscallConn returns the socket itself.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.udp.SyscallConn() }

// SetReadDeadline implements [net.PacketConn].
func (s *socket) SetReadDeadline(t time.Time) error { return s.waiter.setDeadline(t) }

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
	for {
		for len(s.pending) > 0 && s.pass < longestPass {
			last := len(s.pending) - 1
			from := s.pending[last]
			n, err = from.batch.ReadBatch(ms, flags|unix.MSG_DONTWAIT)
			if n < len(ms) {
				s.pending = s.pending[:last]
			}
			if n > 0 {
				s.received(n)
				return n, nil
			}
			if from == &s.own && !errors.Is(err, unix.EAGAIN) {
				s.finish()
				return n, err
			}
		}
		s.finish()
		if len(s.pending) == 0 {
			if err := s.wait(); err != nil {
				return 0, err
			}
		}
	}
}

// received is called when datagrams were read, before they are handled.
func (s *socket) received(n int) {
	s.pass += n
	s.startPass()
	s.patience.read(n, &s.outbox.sent, time.Now())
	s.drain()
}

// startPass has connections wait until the reader finishes.
func (s *socket) startPass() {
	if !s.begun {
		s.begun = true
		s.begin()
	}
}

// finish ends what the reader has begun.
func (s *socket) finish() {
	if s.pass = 0; s.begun {
		s.begun = false
		s.end()
	}
}

// wait waits until there are datagrams that don't have to wait any longer. When a round ends, it does what belongs to
// that.
func (s *socket) wait() error {
	s.pending = s.pending[:0]
	d, rounds := s.patience.busy(), s.rounds.on.Load()
	wait := rounds && s.rounds.wait
	if err := s.hear(d == 0 && !wait, !wait); err != nil {
		return err
	}
	now := time.Now()
	if left := s.rounds.end.Sub(now); rounds && (d == 0 || wait || left < d) {
		d = max(left, 0)
	}
	var ready []unix.EpollEvent
	var err error
	switch {
	case rounds || d > 0:
		ready, err = s.waiter.rest(d)
	case now.Sub(s.patience.last) < idle:
		ready, err = s.waiter.rest(longestWait) // woken by each datagram, but Go isn't
	default:
		ready, err = s.waiter.wait()
	}
	if err != nil {
		return err
	}
	now = time.Now()
	if rounds && !now.Before(s.rounds.end) {
		s.startPass()
		s.endRound(now)
	}
	if wait {
		s.pending = s.doors.list(s.pending)
	}
	for _, e := range ready {
		if from := s.doors.of(int(e.Fd)); from != nil {
			s.pending = append(s.pending, &from.source)
		}
	}
	// The socket itself has datagrams, or they have waited long enough, or others are read anyway.
	s.pending = append(s.pending, &s.own)
	s.patience.read(0, &s.outbox.sent, now) // else it would stay as it is when nothing comes any more
	return nil
}

// startRounds begins rounds, until there are no records any more.
func (s *socket) startRounds() error {
	s.rounds.on.Store(true)
	return s.waiter.wake()
}

// endRound ends a round, and begins the next one.
func (s *socket) endRound(now time.Time) {
	r := s.rounds
	var length time.Duration
	if length, r.wait = r.turn(now); length > 0 {
		r.end = now.Add(length)
		return
	}
	r.end, r.wait = time.Time{}, false
	r.on.Store(false)
	select {
	case r.over <- struct{}{}:
	default:
	}
}

// hear has the process woken when a datagram comes, or not.
func (s *socket) hear(own, doors bool) error {
	err := s.doors.hear(doors)
	if s.heard == own {
		return err
	}
	s.heard = own
	return errors.Join(err, s.waiter.listen(s.own.Descriptor, own))
}
