package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/restart"
	"github.com/fastrelay/fastrelay-gen/examples/moq/webtransport"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config is what a relay needs to know. Zero means the default, but for Address and TLS.
type Config struct {
	Address netip.AddrPort
	TLS     *tls.Config // certificates; the relay sets the protocols
	// Key is what stateless resets and tokens for address validation are made of (RFC 9000 §10.3, §8.1.3). A relay
	// that is started with the Key of one that was killed has peers of that one learn at once that their sessions are
	// gone. Nil: they learn it by their idle timeouts.
	Key *[32]byte
	// Generation has the relay share its address with the one that it succeeds; nil: it has the address for itself.
	// The relay closes it.
	Generation *restart.Generation
	// Authorize is asked before a session or a request is accepted; it may take its time. Nil allows everything. An
	// error refuses: with its own code if it is a [*wire.Rejection], else as unauthorized. The peer gets its text.
	Authorize func(ctx context.Context, r *Request) error

	Sessions int // at most (default: 10,000)
	Requests int // requests that a peer may have open (default: 1,024)
	Streams  int // data streams that a publisher may have open (default: 4,096)
	// Window is how many bytes of a stream a publisher may have on their way; of all its streams, it may have four
	// times as many (default: 1 MiB).
	Window uint64

	// Backlog is how many bytes wait for a subscriber's session at most (default: 2 MiB). Beyond that, streams are
	// reset, the least urgent ones first, and of these the oldest.
	Backlog int
	// Keep is how long an object is kept, for subscribers that are slow or come late (default: 10 s). The largest
	// group is kept for longer, until it isn't the largest.
	Keep time.Duration
	// TrackCache and Cache are how many bytes of objects are kept, of a track and in all (default: 16 MiB, 256 MiB).
	TrackCache, Cache int

	ACKs acks.Policy // of subscribers
	// Wait is how long what a publisher sends waits at most, while two packets or more come in that time: what is
	// made of several at once costs less (default: 2 ms; negative: it never waits).
	Wait time.Duration
	// Segments has what leaves for dozens of subscribers at once leave in segments of few datagrams (package
	// runtime/segments, which says what that needs), instead of by sendmmsg.
	Segments bool
	// Null are where relays are, above and below, with which packets aren't protected after the handshake (null
	// protection, package quicfork), if they ask for the same: on a network that protects itself. Connections with all
	// others are protected as ever. Upstream relays that are there are connected to from Address.
	Null []netip.Prefix
	// Interfaces are where packets of upstream relays without protection come in, and ACKs of such relays below. The
	// kernel copies what it can of the former to the latter; Address is one address then. Without any, user space sends
	// all.
	Interfaces []string
	// Watch is how the programs in the kernel are watched and operated, beside the relay (package operate).
	Watch control.Flags

	// Rendezvous is how long a subscription may wait for a publisher at most (default: 30 s).
	Rendezvous time.Duration
	// Patience is how long a peer may take to answer (default: 10 s).
	Patience time.Duration
	// Grace is how long peers have to leave when the relay is drained (default: 10 s).
	Grace time.Duration
	// Upstreams are relays that this one connects to. They are asked, in this order, for what no client here publishes,
	// and learn what clients here publish. Authorize isn't asked about their requests.
	Upstreams []Upstream
	Logger    *slog.Logger // default: slog.Default()
	sealAll   bool         // tests: packets are sealed also while few come and go
}

func (c *Config) defaults() {
	c.Sessions = cmp.Or(c.Sessions, 10_000)
	c.Requests = cmp.Or(c.Requests, 1024)
	c.Streams = cmp.Or(c.Streams, 4096)
	c.Window = cmp.Or(c.Window, 1<<20)
	c.Backlog = cmp.Or(c.Backlog, 2<<20)
	c.Keep = cmp.Or(c.Keep, 10*time.Second)
	c.TrackCache = cmp.Or(c.TrackCache, 16<<20)
	c.Cache = cmp.Or(c.Cache, 256<<20)
	c.Rendezvous = cmp.Or(c.Rendezvous, 30*time.Second)
	c.Patience = cmp.Or(c.Patience, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	c.Wait = cmp.Or(c.Wait, 2*time.Millisecond)
	c.Logger = cmp.Or(c.Logger, slog.Default())
}

// An Action is what a peer wants to do.
type Action int

// The actions.
const (
	OpenSession Action = iota
	Publish
	PublishNamespace
	Subscribe
	Fetch
	TrackStatus
	SubscribeNamespace
	SubscribeTracks
)

// A Request is what Config.Authorize decides.
type Request struct {
	Action Action
	// Scope is the path of the URI that the session was opened with: names of tracks are unique within a scope (§2.5).
	Scope  string
	Remote net.Addr
	Track  wire.Track // of a namespace or prefix only the namespace
	Tokens []Token    // of the request
	// SessionTokens are those that came with the session's SETUP.
	SessionTokens []Token
}

// A Relay is a running relay.
type Relay struct {
	config    Config
	log       *slog.Logger
	socket    *socket.Socket
	kernel    *kernel // nil: user space sends all
	transport *quic.Transport
	listener  *quic.Listener
	stop      context.CancelFunc
	running   sync.WaitGroup
	cached    atomic.Int64 // bytes of objects that are kept
	draining  atomic.Bool
	closing   atomic.Bool // subscribers aren't told that publishers have left
	counters  counters
	rounds    rounds

	mu         sync.Mutex
	past       Totals // of tracks that are forgotten
	sessions   map[*session]struct{}
	gone       chan struct{} // is closed when there are no sessions and it isn't nil
	tracks     map[trackKey]*track
	nextAlias  uint64
	namespaces map[namespaceKey]*publishedNamespace
	watchers   map[*namespaceWatcher]struct{} // SUBSCRIBE_NAMESPACE
	followers  map[*trackFollower]struct{}    // SUBSCRIBE_TRACKS
	connected  chan struct{}                  // is closed when a session with an upstream relay comes up, or ends
	probes     map[string]*session            // that are on their way
	interests  chan struct{}                  // is closed when clients follow other namespaces or tracks
	upstreams  []*upstream                    // from the beginning on
}

// Start starts a relay.
func Start(config Config) (_ *Relay, err error) {
	config.defaults()
	if config.TLS == nil || len(config.TLS.Certificates) == 0 && config.TLS.GetCertificate == nil {
		return nil, errors.New("TLS has no certificate")
	}
	if !config.Address.IsValid() {
		return nil, fmt.Errorf("%v is not an address with a port", config.Address)
	}
	k, err := config.loadKernel()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Relay{
		config: config, log: config.Logger, kernel: k, stop: stop, nextAlias: config.firstAlias(),
		sessions: map[*session]struct{}{}, tracks: map[trackKey]*track{},
		namespaces: map[namespaceKey]*publishedNamespace{},
		watchers:   map[*namespaceWatcher]struct{}{}, followers: map[*trackFollower]struct{}{},
		connected: make(chan struct{}), interests: make(chan struct{}), probes: map[string]*session{},
	}
	if r.socket, err = r.listen(); err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	r.transport = &quic.Transport{Conn: r.socket, ConnContext: r.newConnection}
	config.persist(r.transport)
	if err = r.newUpstreams(); err != nil {
		return nil, err
	}
	t := config.TLS.Clone()
	t.NextProtos = nil
	for _, d := range drafts {
		t.NextProtos = append(t.NextProtos, d.ALPN())
	}
	t.NextProtos = append(t.NextProtos, http3.NextProtoH3)
	accepted := r.quicConfig()
	accepted.GetConfigForClient = func(*quic.ClientInfo) (*quic.Config, error) {
		if r.draining.Load() {
			return nil, errDraining
		}
		return accepted, nil
	}
	r.listener, err = r.transport.Listen(t, accepted)
	if err != nil {
		return nil, err
	}
	k.run(ctx, r.socket, r.Addr())
	for _, u := range r.upstreams {
		r.running.Go(func() { u.run(ctx) })
	}
	r.running.Go(func() { r.accept(ctx) })
	r.running.Go(func() { r.tick(ctx) })
	return r, nil
}

// errDraining has the library refuse a connection. (A session that is asked to leave at once would be followed by
// another one.)
var errDraining = errors.New("the relay is drained")

// quicConfig says what peers may send.
func (r *Relay) quicConfig() *quic.Config {
	c := &r.config
	return &quic.Config{
		MaxIncomingStreams: int64(c.Requests), MaxIncomingUniStreams: int64(c.Streams),
		InitialStreamReceiveWindow: c.Window, MaxStreamReceiveWindow: c.Window,
		InitialConnectionReceiveWindow: 4 * c.Window, MaxConnectionReceiveWindow: 4 * c.Window,
		EnableDatagrams: true, EnableStreamResetPartialDelivery: true, KeepAlivePeriod: 10 * time.Second,
	}
}

// firstAlias is the first alias of a track. Where the kernel may copy what a relay sends, aliases of all relays have
// the same size (3 bytes, of 2 million tracks), so that offsets are the same.
func (c *Config) firstAlias() uint64 {
	if len(c.Null) > 0 {
		return 1 << 14
	}
	return 0
}

// Addr is where the relay listens.
func (r *Relay) Addr() netip.AddrPort { return r.listener.Addr().(*net.UDPAddr).AddrPort() }

// Close closes all sessions.
func (r *Relay) Close() error {
	r.closing.Store(true)
	r.stop()
	var errs []error
	if r.listener != nil {
		errs = append(errs, r.listener.Close())
	}
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	for _, s := range sessions {
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(wire.NoError), "")
	}
	ended := make(chan struct{})
	go func() {
		r.running.Wait()
		close(ended)
	}()
	select { // peers are to learn why
	case <-ended:
	case <-time.After(2 * lateStreams):
	}
	if r.transport != nil {
		errs = append(errs, r.transport.Close())
	}
	<-ended
	errs = append(errs, r.socket.Close(), r.kernel.close())
	if g := r.config.Generation; g != nil {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// Drain asks all peers to leave (GOAWAY, §9.2), and closes the relay when clients have, or after Config.Grace, or when
// ctx ends. New sessions and requests are refused.
func (r *Relay) Drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Grace)
	defer cancel()
	if r.Leave(ctx) != nil {
		r.expel(true)
	}
	return r.Close()
}

func (r *Relay) accept(ctx context.Context) {
	http := webtransport.Server{Patience: r.config.Patience, Handle: func(s *webtransport.Session, q *http.Request) {
		r.serve(overHTTP{s}, s.Protocol(), q.URL.Path)
	}}
	for _, d := range drafts {
		http.Protocols = append(http.Protocols, d.ALPN())
	}
	for {
		q, err := r.listener.Accept(ctx)
		if err != nil {
			return
		}
		connectionOf(q).quic.Store(q)
		r.running.Go(func() {
			if protocol := q.ConnectionState().TLS.NegotiatedProtocol; protocol == http3.NextProtoH3 {
				_ = http.Serve(q) // it says why the connection was closed
			} else {
				r.serve(rawQUIC{q}, protocol, "")
			}
			<-q.Context().Done()
		})
	}
}

// serve serves a session until it is closed. A path is WebTransport's.
func (r *Relay) serve(conn transport, protocol, path string) {
	s := newSession(r, conn, draftOf(protocol), path)
	r.mu.Lock()
	full := len(r.sessions) >= r.config.Sessions
	if !full {
		s.serial = r.counters.sessions.Add(1)
		r.sessions[s] = struct{}{}
	}
	r.mu.Unlock()
	if full {
		s.fail(&wire.Error{Code: wire.SessionInternalError, Text: "the relay has too many sessions"})
		return
	}
	s.run()
	r.mu.Lock()
	delete(r.sessions, s)
	if len(r.sessions) == 0 && r.gone != nil {
		close(r.gone)
		r.gone = nil
	}
	r.mu.Unlock()
}

// tick has objects expire that nothing else would look at, and says whether datagrams may wait for rounds.
func (r *Relay) tick(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			alone := true
			r.socket.Sweep(now)
			for _, t := range r.list() {
				t.mu.Lock()
				t.expire(now)
				t.trim()
				alone = alone && t.isForHops()
				t.mu.Unlock()
			}
			if r.kernel != nil {
				r.kernel.alone.Store(alone)
			}
		}
	}
}

// authorize asks the hook. It returns nil if there is none.
func (r *Relay) authorize(ctx context.Context, q *Request) *wire.Rejection {
	if r.config.Authorize == nil {
		return nil
	}
	err := r.config.Authorize(ctx, q)
	var rejection *wire.Rejection
	if err == nil || errors.As(err, &rejection) {
		return rejection
	}
	return &wire.Rejection{Code: wire.RequestUnauthorized, Text: err.Error()}
}

// violated is a violation of the draft.
func violated(format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.ProtocolViolation, Text: fmt.Sprintf(format, args...)}
}
