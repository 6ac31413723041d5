package socket

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket/internal/unpolled"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// Config is what a socket needs to know.
type Config struct {
	Address netip.AddrPort
	// Conn, if it isn't nil, is taken over instead of a socket that is opened at Address.
	Conn *net.UDPConn
	// Drain, if it isn't nil, is called when datagrams were read, before they are handled.
	Drain func()
	// Turn, if it isn't nil, is called at the end of each round while there are rounds (see [Socket.StartRounds]), on
	// the goroutine that reads. It says how long the next round is, or 0 if there is none, and whether datagrams wait
	// for its end.
	Turn func(now time.Time) (length time.Duration, wait bool)
	// Segments has what connections send leave in segments of few datagrams (package runtime/segments, which says what
	// that needs), if dozens leave together. Lease is its relay's.
	Segments bool
	Lease    time.Duration
	Logger   *slog.Logger // segments'
}

// A Socket is what a quic.Transport has as Conn.
type Socket struct {
	*udp
	// Turns is for the hooks of all connections (quic.Hooks).
	Turns quic.Turns

	own      source // the socket itself
	waiter   *waiter
	doors    *doors
	drain    func()
	begun    bool      // by the reader
	pass     int       // datagrams that were read since then
	pending  []*source // have datagrams
	rounds   *rounds
	patience *patience
	heard    bool // the process is woken for datagrams
}

// Rounds are when a server looks for records of the kernel's program while there are any: being woken for each would
// cost more than all else that is done with it.
type rounds struct {
	on   atomic.Bool
	over chan struct{} // capacity 1
	turn func(now time.Time) (length time.Duration, wait bool)

	end  time.Time // of this one
	wait bool
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

// Listen opens a socket.
func Listen(c Config) (_ *Socket, err error) {
	conn := c.Conn
	if conn == nil {
		if conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(c.Address)); err != nil {
			return nil, err
		}
	}
	u, err := unpolled.Of(conn)
	if err != nil {
		return nil, err
	}
	s := &Socket{
		udp: &udp{UDP: u}, own: source{u.File, ipv4.NewPacketConn(u)}, drain: c.Drain,
		rounds: &rounds{over: make(chan struct{}, 1), turn: c.Turn}, patience: &patience{},
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
		if sender, err = segments.New(segments.Config{Conn: s.udp, Lease: c.Lease, Logger: c.Logger}); err != nil {
			return nil, err
		}
	}
	s.outbox = newOutbox(s.own.batch, sender)
	s.doors, err = newDoors(s.waiter, s.udp, peer(u.LocalAddr().(*net.UDPAddr)))
	return s, err
}

// Close closes the socket.
func (s *Socket) Close() error {
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
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s.udp.SyscallConn() }

// SetReadDeadline implements [net.PacketConn].
func (s *Socket) SetReadDeadline(t time.Time) error { return s.waiter.setDeadline(t) }

// Begin has connections, and what they send, wait for End. Several may have begun.
func (s *Socket) Begin() {
	s.outbox.begin()
	s.Turns.Begin()
}

// End does what connections have to do, and sends.
func (s *Socket) End() {
	s.Turns.End()
	s.outbox.end()
}

// Sweep forgets peers to whom nothing was sent for a while. It is to be called now and then.
func (s *Socket) Sweep(now time.Time) { s.outbox.sweep(now) }

// Busy reports whether datagrams wait for others.
func (s *Socket) Busy() bool { return s.patience.busy() > 0 }

// Segments returns what sends segments; nil: there is none.
func (s *Socket) Segments() *segments.Sender { return s.outbox.sender }

// longestPass is how many datagrams, at least, connections have had when they do what they have to do.
const longestPass = 64

// ReadBatch is what the library reads datagrams with.
func (s *Socket) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
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
func (s *Socket) received(n int) {
	s.pass += n
	s.startPass()
	s.patience.read(n, &s.outbox.sent, time.Now())
	if s.drain != nil {
		s.drain()
	}
}

// startPass has connections wait until the reader finishes.
func (s *Socket) startPass() {
	if !s.begun {
		s.begun = true
		s.Begin()
	}
}

// finish ends what the reader has begun.
func (s *Socket) finish() {
	if s.pass = 0; s.begun {
		s.begun = false
		s.End()
	}
}

// wait waits until there are datagrams that don't have to wait any longer. When a round ends, it does what belongs to
// that.
func (s *Socket) wait() error {
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

// StartRounds begins rounds, unless there are any. They end when Config.Turn says so.
func (s *Socket) StartRounds() error {
	if s.rounds.on.Load() {
		return nil
	}
	s.rounds.on.Store(true)
	return s.waiter.wake()
}

// RoundsOver gets a value when rounds have ended.
func (s *Socket) RoundsOver() <-chan struct{} { return s.rounds.over }

// endRound ends a round, and begins the next one.
func (s *Socket) endRound(now time.Time) {
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
func (s *Socket) hear(own, doors bool) error {
	err := s.doors.hear(doors)
	if s.heard == own {
		return err
	}
	s.heard = own
	return errors.Join(err, s.waiter.listen(s.own.Descriptor, own))
}
