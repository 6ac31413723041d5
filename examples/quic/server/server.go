package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime"
	relaycontrol "github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config is what a server needs to know.
type Config struct {
	Address netip.AddrPort // of this host
	TLS     *tls.Config
	// Interfaces are where packets of unprotected connections come in. Without any, all connections are protected, and
	// user space does all.
	Interfaces []string
	// Window is how many bytes a publisher may have on their way (default: 256 KiB). As much of a subscriber's own
	// window is never used by the kernel.
	Window  uint64
	Streams int // how many streams a publisher may have open (default: 4096)
	Backlog int // bytes that wait for a subscriber at most; beyond that streams are dropped (default: 512 KiB)
	// Keep is how long a stream's data is kept: what a subscriber lost before, or couldn't take, is not sent any more
	// (default: 2 s).
	Keep time.Duration
	// Segments has what user space sends leave in segments of few datagrams (package runtime/segments, which says what
	// that needs), instead of by sendmmsg.
	Segments bool
	// Wait is how long what a publisher sends waits at most, while two packets or more come in that time: what is
	// made of several at once costs less (default: 1 ms; negative: it never waits).
	Wait time.Duration
	ACKs acks.Policy // of subscribers
	Pins string      // a folder in a BPF file system, so that a successor takes over from a server that was killed
	// ResetKey, if a successor has the same, lets it tell clients at once that their connections are gone.
	ResetKey *quic.StatelessResetKey
	Watch    relaycontrol.Flags // how the relay is watched and operated
	Control  control.Algorithm  // of the windows of the kernel's subscribers (examples/congestion); nil: the library's
	Logger   *slog.Logger       // default: slog.Default()
}

// A Server is a running relay.
type Server struct {
	config    Config
	log       *slog.Logger
	relay     *quicrelay.Relay // nil: there is none
	socket    *socket.Socket
	transport *quic.Transport
	listener  *quic.Listener
	read      func()                          // reads the events up to where they are now
	quiesce   func(ctx context.Context) error // waits until programs that run now have ended
	stop      context.CancelFunc
	running   sync.WaitGroup
	dropper   *dropper

	reading sync.Mutex    // events are read,
	got     []*subscriber // and who got the packet at hand
	opening sync.Mutex    // groups of feeds are opened

	latest     time.Time                // when there was a record; rounds'
	kernelOnly atomic.Bool              // all streams get to all subscribers through the kernel
	freed      []runtime.TranslationKey // stream IDs of streams that are over; tick's

	mu          sync.Mutex
	conns       map[*quic.Conn]struct{}
	feeds       map[string]*feed
	users       map[*feed]int
	subscribers map[uint32]*subscriber // by ID
	receivers   map[*quicrelay.SubscribersReceiver]*subscriber
	nextID      uint32
}

// Start starts a server.
func Start(config Config) (_ *Server, err error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if a := config.Address; !a.IsValid() || a.Addr().IsUnspecified() || a.Addr().Zone() != "" {
		return nil, fmt.Errorf("%v is not an address of this host", a)
	}
	config.Window = cmp.Or(config.Window, 256<<10)
	config.Streams = cmp.Or(config.Streams, 4096)
	config.Backlog = cmp.Or(config.Backlog, 512<<10)
	config.Keep = cmp.Or(config.Keep, 2*time.Second)
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		config: config, log: config.Logger, stop: stop, dropper: newDropper(),
		feeds: map[string]*feed{}, users: map[*feed]int{}, conns: map[*quic.Conn]struct{}{},
		subscribers: map[uint32]*subscriber{}, receivers: map[*quicrelay.SubscribersReceiver]*subscriber{},
	}
	s.read = s.drain
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if len(config.Interfaces) > 0 {
		if s.relay, err = load(config); err != nil {
			return nil, err
		}
		s.quiesce = s.relay.Runtime().Quiesce
	}
	if s.socket, err = socket.Listen(socket.Config{
		Address: config.Address, Drain: s.drain, Turn: s.endRound,
		Wait: config.Wait, Segments: config.Segments, Lease: lease, Logger: config.Logger,
	}); err != nil {
		return nil, err
	}
	s.transport = &quic.Transport{
		Conn: s.socket, ConnectionIDLength: 8, ConnContext: s.newConn, StatelessResetKey: config.ResetKey,
	}
	s.listener, err = s.transport.Listen(config.TLS, &quic.Config{
		InitialStreamReceiveWindow: config.Window, MaxStreamReceiveWindow: config.Window,
		InitialConnectionReceiveWindow: config.Window, MaxConnectionReceiveWindow: config.Window,
		MaxIncomingUniStreams: int64(config.Streams), EnableDatagrams: true,
	})
	if err != nil {
		return nil, err
	}
	s.running.Go(func() { s.accept(ctx) })
	s.running.Go(func() { s.tick(ctx) })
	s.running.Go(func() { s.runDropper(ctx) })
	if s.relay != nil {
		s.running.Go(func() { s.events(ctx) })
	}
	return s, nil
}

// Close closes all connections, whose peers are told so, and takes the relay out of the kernel.
func (s *Server) Close() error {
	s.stop()
	var errs []error
	if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	var closing sync.WaitGroup
	for _, q := range open {
		closing.Go(func() { _ = q.CloseWithError(0, "the server ends") })
	}
	closing.Wait()
	if s.transport != nil {
		errs = append(errs, s.transport.Close())
	}
	if s.socket != nil {
		if err := s.socket.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	s.running.Wait()
	if s.relay != nil {
		errs = append(errs, s.relay.Close())
	}
	return errors.Join(errs...)
}

func (s *Server) accept(ctx context.Context) {
	for {
		q, err := s.listener.Accept(ctx)
		if err != nil {
			return
		}
		c := q.Context().Value(connKey{}).(*conn)
		c.quic = q
		c.mu.Lock()
		if !c.remote.IsValid() {
			c.remote = addrPort(q.RemoteAddr())
			c.sealer.SetRemote(c.remote)
		}
		c.mu.Unlock()
		s.mu.Lock()
		s.conns[q] = struct{}{}
		s.mu.Unlock()
		s.running.Go(func() {
			if err := c.serve(q.Context()); err != nil && q.Context().Err() == nil {
				s.log.Info("a connection is closed", "remote", q.RemoteAddr(), "error", err)
				_ = q.CloseWithError(codeRequest, "")
			}
			<-q.Context().Done()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, q)
		})
	}
}

// feed returns the feed of a name, for a connection that releases it.
func (s *Server) feed(name string) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[name]
	if f == nil {
		s.nextID++
		f = &feed{server: s, name: name, id: s.nextID, streams: map[uint64]*stream{}, datagrams: map[datagram]copies{}}
		s.feeds[name] = f
	}
	s.users[f]++
	return f
}

func (s *Server) release(f *feed) {
	s.mu.Lock()
	s.users[f]--
	last := s.users[f] == 0
	if last {
		delete(s.users, f)
		delete(s.feeds, f.name)
	}
	s.mu.Unlock()
	if last && f.group != nil {
		if err := f.group.Close(context.Background()); err != nil {
			s.log.Warn("a feed's group stays in the kernel", "feed", f.name, "error", err)
		}
	}
}

// newSubscriber makes a connection a subscriber's.
func (s *Server) newSubscriber(c *conn, f *feed) *subscriber {
	s.mu.Lock()
	s.nextID++
	u := &subscriber{
		feed: f, id: s.nextID, library: c.quic.Outside(), streams: map[uint64]*outgoing{},
		byID:     map[quic.StreamID]*outgoing{},
		unopened: map[quic.StreamErrorCode]int{},
		Sender: outside.Sender{Library: c.quic.Outside(), Traffic: func() (sent, lost uint64) {
			st := c.quic.ConnectionStats()
			return st.BytesSent, st.BytesLost
		}},
		datagrams: make(chan []byte, 64),
		close:     func() { _ = c.quic.CloseWithError(codeRequest, "") },
	}
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	u.lease(c.limits)
	u.Size, u.Room = c.path.CongestionWindow, c.path.Window
	u.packetSize, u.ecn = c.path.MaxPacketSize, c.path.ECN
	u.thin(c.path.CongestionWindow, c.path.MaxPacketSize)
	c.sub.Store(u)
	return u
}

// accelerate has the kernel send a subscriber its feed's streams, from the next one on.
func (s *Server) accelerate(ctx context.Context, c *conn, u *subscriber) error {
	ids, err := c.destinations()
	if err != nil {
		return err
	}
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	c.mu.Lock()
	row := quicrelay.SubscribersRow{
		Local: s.config.Address, Remote: c.remote, DCID: ids, ID: u.id, Limit: c.limits.MaxStreamData,
		Datagram: c.limits.MaxDatagramFrameSize,
	}
	path, streams := c.path, c.limits.MaxUniStreams
	c.mu.Unlock()
	// With fewer, those that remain beside the margin (receiver) might end too seldom for it to allow more.
	if least := 2 * uint64(processors); streams < least {
		return fmt.Errorf("it allows %d streams at a time, and the kernel needs %d: two for each processor",
			streams, least)
	}
	group, err := s.group(ctx, u.feed)
	if err != nil {
		return err
	}
	// Without credits it gets no copies yet.
	v, err := group.Add(ctx, row)
	if err != nil {
		return err
	}
	r := newReceiver(s, v, u.id, processors)
	c.mu.Lock()
	c.fast = r
	c.mu.Unlock()
	s.mu.Lock()
	s.receivers[v], s.subscribers[u.id] = u, u
	s.mu.Unlock()
	if err := c.quic.Outside().ShareNumbers(ctx, v.State.Next.Memory()); err != nil {
		return err
	}
	u.feed.mu.Lock()
	u.budget.margin = s.config.Window
	r.from = u.feed.next
	r.setBegin(r.from)
	v.State.NextStream.Store(uint64(u.nextID))
	r.setIDs(u.endID)
	r.setPath(path.LargestAcked, path.MaxPacketSize)
	r.setUrgent(u.feed.urgent)
	u.kernel = r
	if s.config.Control != nil {
		u.steering = newSteering(s.config.Control, path, time.Now())
	}
	u.pump(time.Now())
	u.feed.mu.Unlock()
	return c.onFastPath(ctx, quicrelay.ConnectionsRow{Subscriber: u.id})
}

// seal has packets for a subscriber sealed as they come.
func (s *Server) seal(ctx context.Context, c *conn, u *subscriber) error {
	if err := c.quic.Outside().ShareNumbers(ctx, &c.sealer.Counter); err != nil {
		return err
	}
	s.mu.Lock()
	s.subscribers[u.id] = u
	s.mu.Unlock()
	u.feed.mu.Lock()
	defer u.feed.mu.Unlock()
	u.sealer = &c.sealer
	return nil
}

// sealed has the library learn of packets in rounds, if it doesn't before.
func (s *Server) sealed() {
	_ = s.socket.StartRounds() // which fails if it is closed, and its connections with it
}

// group returns a feed's group.
func (s *Server) group(ctx context.Context, f *feed) (_ *quicrelay.SubscribersGroup, err error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if f.group == nil {
		f.group, err = s.relay.Subscribers.Open(ctx, f.id)
	}
	return f.group, err
}

// forget is called when a subscriber is gone, whose receiver is removed, if it had one.
func (s *Server) forget(u *subscriber, v *quicrelay.SubscribersReceiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.receivers, v)
	delete(s.subscribers, u.id)
}

// drain reads the events up to where they are now.
func (s *Server) drain() {
	if s.relay == nil {
		return
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	// Only this process reads events, so there is nothing to wait for. When the server closes, they count to the end.
	for e, err := range s.relay.Pending(context.Background()) {
		if err != nil {
			if !errors.Is(err, runtime.ErrClosed) {
				s.log.Error("reading events", "error", err)
			}
			return
		}
		switch e := e.(type) {
		case quicrelay.SentEvent:
			if f := s.received(len(e.Copies), func(i int) receiverOf { return e.Copies[i].Receiver }); f != nil {
				f.copied(s.got, &e)
			}
		case quicrelay.DatagramEvent:
			if f := s.received(len(e.Copies), func(i int) receiverOf { return e.Copies[i].Receiver }); f != nil {
				f.copiedDatagram(s.got, &e)
			}
		case quicrelay.AckedEvent:
			s.mu.Lock()
			u := s.subscribers[e.Subscriber]
			s.mu.Unlock()
			if u != nil {
				u.feed.acked(u, &e)
			}
		}
	}
}

type receiverOf = *quicrelay.SubscribersReceiver

// received finds who got n copies, nil who is gone. All are of the feed that it returns, or none is left.
func (s *Server) received(n int, receiver func(i int) receiverOf) (f *feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = s.got[:0]
	for i := range n {
		u := s.receivers[receiver(i)]
		if u != nil {
			f = u.feed
		}
		s.got = append(s.got, u)
	}
	return f
}

// While there are events or sealed packets, they are read once in a round, and then datagrams, which are handled
// together. A round is short while a subscriber has to wait for its end.
const (
	round      = 4 * time.Millisecond
	shortRound = time.Millisecond
	quiet      = 100 * time.Millisecond // without any event
)

// events has the socket's reader begin rounds when there are events; it sleeps until then.
func (s *Server) events(ctx context.Context) {
	for s.relay.Runtime().AwaitEvents(ctx) == nil && s.socket.StartRounds() == nil {
		select {
		case <-ctx.Done():
			return
		case <-s.socket.RoundsOver():
		}
	}
}

// endRound hands copies and ACKs over to the connections. While the kernel sends all there is, datagrams wait for
// rounds.
func (s *Server) endRound(now time.Time) (length time.Duration, wait bool) {
	s.drain()
	any, urgent := s.handOver()
	switch {
	case any || s.latest.IsZero():
		s.latest = now
	case now.Sub(s.latest) > quiet:
		s.latest = time.Time{}
		return 0, false
	}
	if urgent {
		return shortRound, s.kernelOnly.Load()
	}
	return round, s.kernelOnly.Load()
}

func (s *Server) handOver() (any, urgent bool) {
	s.mu.Lock()
	all := make([]*subscriber, 0, len(s.subscribers))
	for _, u := range s.subscribers {
		all = append(all, u)
	}
	s.mu.Unlock()
	now := time.Now()
	for _, u := range all {
		u.feed.mu.Lock()
		some, soon := u.handOver(now)
		any, urgent = any || some, urgent || soon
		u.feed.mu.Unlock()
	}
	return any, urgent
}

func (s *Server) tick(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
		s.socket.Begin()
		only, some := true, false
		for _, f := range s.list() {
			kernel, all := f.tick(now)
			only, some = only && all, some || kernel
		}
		s.socket.End()
		s.socket.Sweep(now)
		s.kernelOnly.Store(only && some)
		if len(s.freed) > 0 {
			if err := s.relay.Runtime().DeleteTranslations(s.freed...); err != nil && ctx.Err() == nil {
				s.log.Warn("stream IDs of streams that are over take up room", "error", err)
			}
			s.freed = s.freed[:0]
		}
	}
}
