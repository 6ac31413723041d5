package relay

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/webtransport"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
)

// An Upstream is a relay that this relay connects to, and keeps a session with.
type Upstream struct {
	// URI is moqt://host:port/path, or https://host:port/path for WebTransport (§6.1). Without a port it is 443. The
	// path is the scope of the tracks that are exchanged, here as well as there.
	URI string
	// TLS says how its certificate is verified, and may have one of the relay's own; nil means by the system's roots.
	// NextProtos, if it isn't empty, are the drafts that are offered, by their ALPN.
	TLS    *tls.Config
	Tokens []Token // for its SETUP
}

// How long the relay waits before it connects again, at least and at most.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// maxMoved is how often the relay tries a URI of a GOAWAY before it goes back to the one that is configured.
const maxMoved = 3

// An upstream is an upstream relay, with the session to it.
type upstream struct {
	relay  *Relay
	config Upstream
	target *target
	name   string // the URI without its query, which may have a secret
	scope  string

	session *session // that is used; the relay's mutex guards it

	grouping sync.Mutex
	group    *moqrelay.ReceiversGroup // of relays below, in the kernel; nil: it has none

	sessions, failures atomic.Uint64
	lastError          atomic.Value // string
}

// A target is an upstream's address.
type target struct {
	uri       string
	address   string // host:port
	host      string
	authority string
	path      string // with the query; "" if there is none
	http      bool   // WebTransport
}

// parseTarget parses the URI of a relay.
func parseTarget(uri string) (*target, error) {
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return nil, fmt.Errorf("upstream %q isn't a URI: %w", uri, err)
	case u.Scheme != "moqt" && u.Scheme != "https":
		return nil, fmt.Errorf("upstream %q: write moqt://host:port/path, or https://host:port/path for WebTransport",
			uri)
	case u.Hostname() == "":
		return nil, fmt.Errorf("upstream %q has no host", uri)
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("upstream %q: a user or a fragment isn't sent to a relay, leave it out", uri)
	}
	t := &target{
		uri: uri, host: u.Hostname(), authority: u.Host, path: u.EscapedPath(), http: u.Scheme == "https",
		address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")),
	}
	if u.RawQuery != "" {
		t.path = cmp.Or(t.path, "/") + "?" + u.RawQuery
	}
	return t, nil
}

// newUpstreams checks what the configuration says of upstream relays.
func (r *Relay) newUpstreams() error {
	for _, c := range r.config.Upstreams {
		t, err := parseTarget(c.URI)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(r.upstreams, func(u *upstream) bool { return u.config.URI == c.URI }) {
			return fmt.Errorf("upstream %q is there twice", c.URI)
		}
		r.upstreams = append(r.upstreams, &upstream{
			relay: r, config: c, target: t, name: strings.SplitN(c.URI, "?", 2)[0], scope: scopeOf(t.path),
		})
	}
	return nil
}

// run keeps a session with the upstream relay until ctx ends.
func (u *upstream) run(ctx context.Context) {
	next, failures := u.target, 0
	lost := time.Now() // when the last session ended, or was asked to, that had lasted
	var old *session
	for ctx.Err() == nil {
		s, err := u.connect(ctx, next)
		if err == nil {
			began := time.Now()
			if leaver := old; leaver != nil {
				u.relay.running.Go(func() { leaver.retire(ctx, s) })
			}
			old, next = nil, u.target
			select {
			case <-s.moved:
				old, next = s, u.follow(s)
			case <-s.ctx.Done():
				err = fmt.Errorf("the session has ended: %w", context.Cause(s.ctx))
			case <-ctx.Done():
			}
			if time.Since(began) > u.relay.config.Patience {
				lost, failures = time.Now(), 0
			}
		}
		if ctx.Err() != nil {
			break
		}
		wait := retryAfter(time.Since(lost))
		if err != nil {
			if failures++; failures%maxMoved == 0 {
				next = u.target
			}
			u.failed(err, wait)
			if old != nil && !old.busy() { // no session follows it yet, and it isn't needed for that
				_ = old.conn.CloseWithError(quic.ApplicationErrorCode(wire.NoError), "")
				old = nil
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// retryAfter returns how long to wait before the next attempt: up to a quarter of the time since there was a session,
// so that a relay that is back is found before subscriptions have waited for much longer. Relays that have lost the
// same upstream spread.
func retryAfter(gone time.Duration) time.Duration {
	most := min(max(gone/4, firstRetry), lastRetry)
	return most/2 + mathrand.N(most/2)
}

// follow returns where a session's GOAWAY asks the relay to connect.
func (u *upstream) follow(s *session) *target {
	m := s.moving
	u.relay.log.Info("the upstream relay asks to leave", "upstream", u.name, "uri", m.URI)
	if m.URI == "" {
		return s.target
	}
	t, err := parseTarget(m.URI)
	if err != nil {
		u.relay.log.Warn("GOAWAY names no URI of a relay", "upstream", u.name, "error", err)
		return u.target
	}
	return t
}

// failed says why there is no session.
func (u *upstream) failed(err error, wait time.Duration) {
	u.failures.Add(1)
	u.lastError.Store(err.Error())
	u.relay.log.Warn("no session with the upstream relay", "upstream", u.name, "error", err, "retry", wait)
}

// connect makes a session, which is used when it returns.
func (u *upstream) connect(ctx context.Context, to *target) (*session, error) {
	r := u.relay
	conn, protocol, err := u.dial(ctx, to)
	if err != nil {
		return nil, err
	}
	s := newSession(r, conn, draftOf(protocol), "")
	s.upstream, s.target, s.scope, s.over, s.nextID = u, to, u.scope, to.http, 0
	s.synced = make(chan struct{})
	s.asks, s.stopAsking = context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, func() { _ = conn.CloseWithError(quic.ApplicationErrorCode(wire.NoError), "") })
	r.running.Go(func() {
		s.run()
		stop()
		s.stopAsking()
		u.end(s)
	})
	if !s.await() {
		return nil, fmt.Errorf("the upstream relay has closed the session: %w", context.Cause(s.ctx))
	}
	u.sessions.Add(1)
	r.log.Info("a session with the upstream relay", "upstream", u.name, "uri", to.uri, "draft", protocol)
	if why := s.notForKernel(); r.kernel != nil && why != "" {
		r.log.Warn("the kernel copies nothing of an upstream relay", "upstream", u.name, "why", why)
	}
	u.begin(s)
	return s, nil
}

// dial connects; the protocol is the ALPN of a draft.
func (u *upstream) dial(ctx context.Context, to *target) (_ transport, protocol string, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.relay.config.Patience)
	defer cancel()
	t := &tls.Config{}
	if u.config.TLS != nil {
		t = u.config.TLS.Clone()
	}
	t.ServerName = cmp.Or(t.ServerName, to.host)
	var protocols []string
	for _, d := range drafts {
		if len(t.NextProtos) == 0 || slices.Contains(t.NextProtos, d.ALPN()) {
			protocols = append(protocols, d.ALPN())
		}
	}
	t.NextProtos = protocols
	if to.http {
		t.NextProtos = []string{http3.NextProtoH3}
	}
	config := u.relay.quicConfig()
	config.KeepAlivePeriod, config.MaxIdleTimeout = u.relay.config.Patience/4, u.relay.config.Patience
	q, err := u.relay.dial(ctx, to, t, config)
	if err != nil {
		return nil, "", dialError(to, err)
	}
	if !to.http {
		return rawQUIC{q}, q.ConnectionState().TLS.NegotiatedProtocol, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = q.CloseWithError(0, "") })
	defer stop()
	s, err := webtransport.Dial(ctx, q, to.uri, protocols...)
	if err != nil {
		_ = q.CloseWithError(0, "")
		return nil, "", dialError(to, err)
	}
	return overHTTP{s}, s.Protocol(), nil
}

// dial connects to a relay: from a socket of the connection's own, or without protection, where that is allowed, from
// this relay's address, by which the peer knows it.
func (r *Relay) dial(ctx context.Context, to *target, t *tls.Config, config *quic.Config) (*quic.Conn, error) {
	at, err := r.config.nullAddress(ctx, to)
	if err != nil {
		return nil, err
	}
	if !at.IsValid() {
		return quic.DialAddr(ctx, to.address, t, config)
	}
	// The relay above may have much on its way, so that its kernel has credit for many streams: all is read at once.
	config.InitialConnectionReceiveWindow *= 4
	config.MaxConnectionReceiveWindow *= 4
	q, err := r.transport.Dial(r.hook(ctx, at), net.UDPAddrFromAddrPort(at), t, config)
	if err == nil {
		connectionOf(q).quic.Store(q)
	}
	return q, err
}

// nullAddress returns a relay's address that may have null protection, if there is one.
func (c *Config) nullAddress(ctx context.Context, to *target) (none netip.AddrPort, err error) {
	if len(c.Null) == 0 {
		return none, nil
	}
	_, service, err := net.SplitHostPort(to.address)
	if err != nil {
		return none, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return none, err
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", to.host)
	for _, a := range all {
		if at := netip.AddrPortFrom(a.Unmap(), uint16(port)); c.isNull(at) {
			return at, nil
		}
	}
	return none, err
}

// dialError says what can be done about an error.
func dialError(to *target, err error) error {
	var failed *quic.TransportError
	var unverified *tls.CertificateVerificationError
	const noProtocol = 0x100 + 120 // TLS' alert no_application_protocol (RFC 9001, section 4.8)
	switch {
	case errors.As(err, &failed) && failed.ErrorCode == quic.ConnectionRefused:
		return fmt.Errorf("%s takes no connections: it is drained: %w", to.uri, err)
	case errors.As(err, &failed) && failed.ErrorCode == noProtocol:
		return fmt.Errorf("%s speaks no draft that this relay does on this transport: %w", to.uri, err)
	case errors.As(err, &unverified):
		return fmt.Errorf("the certificate of %s can't be verified, give its CA or hash: %w", to.uri, err)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*quic.IdleTimeoutError)):
		return fmt.Errorf("%s doesn't answer at %s: %w", to.uri, to.address, err)
	}
	return fmt.Errorf("%s: %w", to.uri, err)
}

// setupOptions adds what a client says in SETUP (§9.1.1, §9.1.2).
func (u *upstream) setupOptions(s *session, m *wire.Setup) {
	for _, t := range u.config.Tokens {
		m.Tokens = append(m.Tokens, wire.Token{AliasType: wire.UseValue, Type: t.Type, Value: t.Value})
	}
	if !s.over {
		m.Authority = wire.Some(s.target.authority)
		m.Path = wire.Optional[string]{Value: s.target.path, Present: s.target.path != ""}
	}
}

// begin has a session be used: what clients publish and want is announced and asked for on it.
func (u *upstream) begin(s *session) {
	r := u.relay
	f := &trackFollower{
		session: s, offered: map[*track]struct{}{}, parameters: wire.Parameters{Forward: wire.Some(false)},
	}
	r.mu.Lock()
	u.set(s)
	r.followers[f] = struct{}{}
	for _, p := range r.namespaces {
		if p.scope == u.scope && p.below() {
			s.announce(p)
		}
	}
	r.mu.Unlock()
	context.AfterFunc(s.asks, func() {
		r.mu.Lock()
		delete(r.followers, f)
		r.mu.Unlock()
	})
	for _, t := range r.list() {
		t.mu.Lock()
		published := slices.ContainsFunc(t.sources, func(src *source) bool {
			return src.published && src.session.upstream == nil
		})
		delete(t.tried, u)
		if t.key.scope == u.scope {
			t.seek()
		}
		t.mu.Unlock()
		if published {
			f.offer(t)
		}
	}
	r.running.Go(func() { s.aggregate(s.synced) })
	r.running.Go(s.probe)
}

// set makes a session the one that is used; nil: none is. The relay's mutex is held.
func (u *upstream) set(s *session) {
	u.session = s
	close(u.relay.connected)
	u.relay.connected = make(chan struct{})
}

// end takes note of a session's end.
func (u *upstream) end(s *session) {
	u.relay.mu.Lock()
	defer u.relay.mu.Unlock()
	if u.session == s {
		u.set(nil)
	}
}

// usable returns the session if requests may be sent. The relay's mutex is held.
func (u *upstream) usable() *session {
	if u.session == nil || u.session.departing() {
		return nil
	}
	return u.session
}

// departing reports whether a session has ended, or its peer has sent GOAWAY.
func (s *session) departing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving || s.ctx.Err() != nil
}

// aboves returns the sessions with upstream relays of a scope, in the order of configuration; some is true if there are
// any such relays. It waits a while for a session if there is none.
func (r *Relay) aboves(ctx context.Context, scope string) (all []*session, some bool) {
	timeout := time.NewTimer(r.config.Patience)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		changed := r.connected
		for _, u := range r.upstreams {
			if u.scope != scope {
				continue
			}
			some = true
			if s := u.usable(); s != nil {
				all = append(all, s)
			}
		}
		r.mu.Unlock()
		if len(all) > 0 || !some {
			return all, some
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, some
		case <-ctx.Done():
			return nil, some
		}
	}
}

// reaches reports whether what one peer publishes is for another. What is learnt of an upstream relay isn't for
// upstream relays: in a tree, requests reach the root at most, and from there the leaves.
func reaches(from, to *session) bool { return from.upstream == nil || to.upstream == nil }

// probe asks the upstream relay for a track that has a name of this session's. Each relay asks its own upstream relays,
// so if the request comes back, they form a cycle.
func (s *session) probe() {
	name := wire.Track{Namespace: wire.Namespace{"cycle of relays"}, Name: rand.Text()}
	r := s.relay
	r.mu.Lock()
	r.probes[name.Name] = s
	r.mu.Unlock()
	_, _ = s.askStatus(name)
	r.mu.Lock()
	delete(r.probes, name.Name)
	r.mu.Unlock()
}

// cycle ends the session with an upstream relay if a probe of it has come back; it reports whether one has.
func (r *Relay) cycle(name wire.Track) bool {
	r.mu.Lock()
	s := r.probes[name.Name]
	r.mu.Unlock()
	if s != nil {
		const text = "the relay's own request has come back: its upstreams form a cycle"
		s.fail(&wire.Error{Code: wire.SessionInternalError, Text: text})
	}
	return s != nil
}

// retire ends a session whose peer has sent GOAWAY, once what it carries has moved to the next session, or after the
// peer's timeout (§6.6.1).
func (s *session) retire(ctx context.Context, next *session) {
	r := s.relay
	timeout := r.config.Patience
	if s.moving.Timeout > 0 {
		timeout = milliseconds(s.moving.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	after := func(c <-chan struct{}) {
		select {
		case <-c:
		case <-s.ctx.Done():
		case <-ctx.Done():
		}
	}
	after(next.synced)
	late, done := context.WithTimeout(ctx, lateStreams) // for what the next one has still to say
	after(late.Done())
	done()
	s.stopAsking()
	for _, t := range r.list() {
		t.mu.Lock()
		for _, u := range slices.Clone(t.subs) {
			if u.session == s && u.offered && !u.forward {
				t.remove(u)
				u.end(wire.DoneGoingAway, "the track is published on another session")
			}
		}
		t.mu.Unlock()
	}
	for s.busy() && ctx.Err() == nil && s.ctx.Err() == nil {
		after(s.idle)
	}
	_ = s.conn.CloseWithError(quic.ApplicationErrorCode(wire.NoError), "")
}

// UpstreamStats say what there is of an upstream relay.
type UpstreamStats struct {
	URI       string // without its query
	Connected bool
	Null      bool   // packets aren't protected after the handshake
	Sessions  uint64 // that were established
	Failures  uint64 // attempts that have failed, and sessions that have ended without GOAWAY
	Error     string // the last failure
}

// upstreamStats returns them, in the order of configuration.
func (r *Relay) upstreamStats() (all []UpstreamStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.upstreams {
		text, _ := u.lastError.Load().(string)
		null := u.session != nil && u.session.quic.isNull()
		all = append(all, UpstreamStats{
			URI: u.name, Connected: u.session != nil, Null: null, Sessions: u.sessions.Load(),
			Failures: u.failures.Load(), Error: text,
		})
	}
	return all
}

// gauge is 1 if something is so.
func gauge(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

func (s *Stats) writeUpstreams(b *strings.Builder) {
	for _, m := range []struct {
		name, kind, help string
		value            func(u *UpstreamStats) uint64
	}{
		{"upstream_connected", "gauge", "1 while there is a session with the upstream relay.",
			func(u *UpstreamStats) uint64 { return gauge(u.Connected) }},
		{"upstream_null_protection", "gauge", "1 while packets to and from the upstream relay aren't protected.",
			func(u *UpstreamStats) uint64 { return gauge(u.Null) }},
		{"upstream_sessions_total", "counter", "Sessions with the upstream relay.",
			func(u *UpstreamStats) uint64 { return u.Sessions }},
		{"upstream_failures_total", "counter", "Attempts to connect that failed, and sessions that were cut off.",
			func(u *UpstreamStats) uint64 { return u.Failures }},
	} {
		fmt.Fprintf(b, "# HELP moq_%s %s\n# TYPE moq_%s %s\n", m.name, m.help, m.name, m.kind)
		for i := range s.Upstreams {
			u := &s.Upstreams[i]
			fmt.Fprintf(b, "moq_%s{upstream=%s} %d\n", m.name, label(u.URI), m.value(u))
		}
	}
}
