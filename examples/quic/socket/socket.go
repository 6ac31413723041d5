package socket

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
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
	// Wait is how long publishers' datagrams, which come through doors, wait at most, while two or more come in that
	// time: what is made of several at once costs less (default: 1 ms; negative: they never wait).
	Wait time.Duration
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
	crowded  bool // more doors have some than the last wait has returned

	mu    sync.Mutex
	users int       // calls of Begin without End
	since time.Time // when the first of them was
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

// A patience is how long the reader of a socket leaves datagrams waiting, so that it gets several at once, and what
// follows from them leaves together. Being woken for each one costs more than most of what is done with it. While few
// come and few are sent, it leaves none waiting.
type patience struct {
	longest time.Duration
	few     float64       // in that time: with so few none waits, with twice as many they wait for the longest time
	sent    *atomic.Int64 // datagrams that were sent since counting began; nil: they don't matter

	wait  atomic.Int64 // a time.Duration
	since time.Time    // when counting began
	count int          // of datagrams that were read since
	last  time.Time    // when a datagram was read
}

// What comes to the socket itself, ACKs mostly, waits for longer than what comes through doors, publishers' datagrams,
// which end a wait while they don't wait themselves.
const (
	longestWait   = 2 * time.Millisecond
	few           = 4
	longestByDoor = time.Millisecond
	fewByDoor     = 1
	weight        = 2 // so many that are sent count as one that comes: their ACK, also if peers send fewer
	counting      = 20 * time.Millisecond
	idle          = 20 * time.Millisecond // after so long without one, the reader waits as other goroutines do
)

// read notes how many datagrams were read.
func (p *patience) read(n int, now time.Time) {
	p.count += n
	if n > 0 {
		p.last = now
	}
	took := now.Sub(p.since)
	if took < counting {
		return
	}
	rate, left := float64(p.count)/took.Seconds(), 0.0
	if p.sent != nil {
		left = float64(p.sent.Swap(0)) / took.Seconds()
	}
	share := min(1, max(0, max(rate, left/weight)*p.longest.Seconds()/p.few-1))
	wait := time.Duration(float64(p.longest) * share)
	if wait.Seconds()*max(rate, left) < 1 { // waits without a datagram would cost more than they save
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
		rounds: &rounds{over: make(chan struct{}, 1), turn: c.Turn},
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
	s.patience = &patience{longest: longestWait, few: few, sent: &s.outbox.sent}
	s.doors, err = newDoors(s.waiter, s.udp, peer(u.LocalAddr().(*net.UDPAddr)), cmp.Or(c.Wait, longestByDoor))
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		s.begin()
	}
}

// begin begins what all users share. The mutex is held.
func (s *Socket) begin() {
	s.since = time.Now()
	s.outbox.begin()
	s.Turns.Begin()
}

// End has connections do what they have to do, and send, when all who have begun have ended, or when the first of them
// has begun long ago. While publishers' datagrams wait for each other, so do those who handle them.
func (s *Socket) End() {
	if s.doors.patience.busy() > 0 {
		runtime.Gosched() // others who are about to begin
	}
	s.end()
}

func (s *Socket) end() {
	s.mu.Lock()
	s.users--
	wait := s.users > 0 && time.Since(s.since) < longestTogether
	if !wait && s.users > 0 {
		s.begin() // anew, for them
	}
	s.mu.Unlock()
	if !wait {
		s.Turns.End()
		s.outbox.end()
	}
}

// longestTogether is how long what one has to send waits for what others have, at most.
const longestTogether = time.Millisecond

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
				s.received(from, n)
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
func (s *Socket) received(from *source, n int) {
	s.pass += n
	s.startPass()
	now := time.Now()
	s.patience.read(n, now)
	if from != &s.own {
		s.doors.patience.read(n, now)
	}
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
		s.end()
	}
}

// wait waits until there are datagrams that don't have to wait any longer. When a round ends, it does what belongs to
// that.
func (s *Socket) wait() error {
	s.pending = s.pending[:0]
	d, door, rounds := s.patience.busy(), s.doors.patience.busy(), s.rounds.on.Load()
	together := door > 0 || rounds && s.rounds.wait // no datagram ends the wait
	if err := s.hear(d == 0); err != nil {
		return err
	}
	if door > 0 {
		d = door
	}
	now := time.Now()
	if left := s.rounds.end.Sub(now); rounds && (d == 0 || s.rounds.wait || left < d) {
		d = max(left, 0)
	}
	if runtime.GOMAXPROCS(0) == 1 {
		s.yield()
	}
	var ready []unix.EpollEvent
	var err error
	switch {
	case s.crowded:
		ready, err = s.waiter.rest(0)
	case together:
		ready, err = s.waiter.pause(d)
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
	s.crowded = len(ready) == len(s.waiter.events)
	now = time.Now()
	if rounds && !now.Before(s.rounds.end) {
		s.startPass()
		s.endRound(now)
	}
	for _, e := range ready {
		if from := s.doors.of(int(e.Fd)); from != nil {
			s.pending = append(s.pending, &from.source)
		}
	}
	// The socket itself has datagrams, or they have waited long enough, or others are read anyway.
	s.pending = append(s.pending, &s.own)
	s.patience.read(0, now) // else it would stay as it is when nothing comes any more
	s.doors.patience.read(0, now)
	return nil
}

// yield has others do what they do now, before the reader keeps the only processor.
func (s *Socket) yield() {
	for others := true; others; {
		runtime.Gosched()
		s.mu.Lock()
		others = s.users > 0 && time.Since(s.since) < longestTogether
		s.mu.Unlock()
	}
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
	r.on.Store(false) // so that who begins rounds from now on isn't overlooked
	var length time.Duration
	if length, r.wait = r.turn(now); length > 0 {
		r.end = now.Add(length)
		r.on.Store(true)
		return
	}
	r.end, r.wait = time.Time{}, false
	select {
	case r.over <- struct{}{}:
	default:
	}
}

// hear has the process woken when a datagram comes to the socket itself, or not.
func (s *Socket) hear(on bool) error {
	if s.heard == on {
		return nil
	}
	s.heard = on
	return s.waiter.listen(s.own.Descriptor, on)
}
