package relay

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// Urgencies of streams (RFC 9218): control messages first, then requests, then data (§5.1.2).
const (
	urgencyControl = 0
	urgencyRequest = 1
	urgencyData    = 3 // the library's default, and the most urgent of data
	urgencyLeast   = 7
)

// maxUpdates is how many REQUEST_UPDATEs a peer may have unanswered on a request (§9.1.7). They are answered one after
// the other, so it can't be exceeded; peers may want to know.
const maxUpdates = 16

const implementation = "fastrelay"

// A session is one with a client: a publisher, a subscriber, or both; or with an upstream relay. But for SETUP, GOAWAY
// and request IDs, they are the same.
type session struct {
	relay  *Relay
	serial uint64 // sessions count from 1
	conn   transport
	quic   *connection // nil: the relay has connected to the peer from another socket
	draft  wire.Draft
	ctx    context.Context // ends with the session
	ready  chan struct{}   // is closed when the peer's SETUP has come
	over   bool            // WebTransport's, which has the path

	upstream   *upstream       // the peer is a server, and the relay its client; nil: the peer is a client
	target     *target         // that the relay has connected to
	asks       context.Context // ends when the relay's own requests that aren't about a track do
	stopAsking context.CancelFunc
	synced     chan struct{} // is closed when the relay has asked for the namespaces that its clients want
	moved      chan struct{} // is closed when the peer has sent GOAWAY, which is
	moving     *wire.GoAway
	idle       chan struct{} // gets a value when no request is open

	scope  string  // set before ready
	tokens []Token // of SETUP; the same

	datagrams chan datagram // for the peer
	fetching  chan struct{} // has something for each fetch stream of the peer's that is read

	mu            sync.Mutex
	control       *outbox
	asked         bool // to leave, by GOAWAY
	setup         bool // there was a control stream
	used          ids
	nextID        uint64
	cache         tokenCache
	requests      int                       // that are open, of both sides
	leaving       bool                      // the peer has sent GOAWAY
	aliases       map[uint64]*source        // tracks that the peer publishes
	aliased       chan struct{}             // is closed when there is a new one
	early         []earlyDatagram           // that came before their alias
	fetches       map[uint64]chan *incoming // by the ID of the relay's request
	served        map[*fetching]struct{}    // fetch streams to the peer
	subscriptions map[uint64]*subscription  // of the peer's, by the ID of its request
	more          chan struct{}             // is closed when there is a new one
	outgoing      map[*outgoing]struct{}
	backlog       int // bytes that wait for the peer
}

func newSession(r *Relay, conn transport, d wire.Draft, path string) *session {
	c, _ := conn.Context().Value(connectionKey{}).(*connection)
	return &session{
		relay: r, conn: conn, quic: c, draft: d, ctx: conn.Context(), over: path != "", scope: scopeOf(path),
		ready: make(chan struct{}), nextID: 1, datagrams: make(chan datagram, 64),
		aliases: map[uint64]*source{}, aliased: make(chan struct{}), outgoing: map[*outgoing]struct{}{},
		fetches: map[uint64]chan *incoming{}, served: map[*fetching]struct{}{},
		fetching: make(chan struct{}, maxFetching), subscriptions: map[uint64]*subscription{},
		more:  make(chan struct{}),
		moved: make(chan struct{}), idle: make(chan struct{}, 1),
	}
}

// scopeOf returns the scope of a path and query (§2.5). The authority is left out, since one relay has one set of
// tracks under all its names.
func scopeOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	if path == "" {
		return "/"
	}
	return path
}

// fail closes the session for a violation.
func (s *session) fail(e *wire.Error) {
	if s.ctx.Err() == nil {
		s.relay.counters.failed.Add(1)
		s.relay.log.Info("a session is closed", "remote", s.conn.RemoteAddr(), "code", uint64(e.Code), "error", e.Text)
	}
	_ = s.conn.CloseWithError(quic.ApplicationErrorCode(e.Code), e.Text)
}

// run serves the session until it is closed.
func (s *session) run() {
	control, err := s.conn.OpenUniStreamSync(s.ctx)
	if err != nil {
		return
	}
	control.SetPriority(urgencyControl, true)
	out := &outbox{stream: control, draft: s.draft}
	if err := out.send(s.setupMessage()); err != nil {
		s.fail(&wire.Error{Code: wire.SessionInternalError, Text: err.Error()})
		return
	}
	s.mu.Lock()
	s.control = out
	s.mu.Unlock()
	if s.relay.draining.Load() {
		s.goAway()
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(s.acceptRequests)
	running.Go(s.receiveDatagrams)
	running.Go(s.sendDatagrams)
	running.Go(func() {
		select {
		case <-s.ready:
		case <-s.ctx.Done():
		case <-time.After(s.relay.config.Patience):
			s.fail(&wire.Error{Code: wire.ControlMessageTimeout, Text: "no SETUP has come"})
		}
	})
	for {
		stream, err := s.conn.AcceptUniStream(s.ctx)
		if err != nil {
			break
		}
		running.Go(func() { s.receive(stream) })
	}
}

func (s *session) acceptRequests() {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		stream, err := s.conn.AcceptStream(s.ctx)
		if err != nil {
			return
		}
		running.Go(func() { s.serve(stream) })
	}
}

// goAway asks the peer to leave, once; a session that hasn't sent SETUP does so after it.
func (s *session) goAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control != nil && !s.asked {
		s.asked = true
		_ = s.control.send(s.goAwayMessage())
	}
}

// await waits for SETUP. What comes before it waits in its stream.
func (s *session) await() bool {
	select {
	case <-s.ready:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// receive reads a unidirectional stream.
func (s *session) receive(stream receiveStream) {
	var in incoming
	in.session, in.stream = s, stream
	kind, err := in.kind()
	if err != nil {
		s.ended(err)
		return
	}
	switch kind {
	case wire.StreamControl:
		s.receiveControl(wire.NewReader(io.MultiReader(strings.NewReader(string(in.held)), stream), s.draft))
	case wire.StreamPadding:
		_, _ = io.Copy(io.Discard, stream)
	case wire.StreamSubgroup:
		if s.await() {
			in.receiveSubgroup()
		}
	case wire.StreamFetch:
		if s.await() {
			in.receiveFetch()
		}
	}
}

// ended closes the session if what ended a stream is a violation.
func (s *session) ended(err error) {
	var violation *wire.Error
	if errors.As(err, &violation) {
		s.fail(violation)
	}
}

// receiveControl reads the peer's control stream (§6.3).
func (s *session) receiveControl(r *wire.Reader) {
	s.mu.Lock()
	second := s.setup
	s.setup = true
	s.mu.Unlock()
	if second {
		s.fail(violated("a second control stream"))
		return
	}
	for {
		m, err := r.Next()
		var violation *wire.Error
		switch {
		case err == nil:
			violation = s.handleControl(m)
		case errors.As(err, &violation):
		case errors.Is(err, io.EOF) || !s.ends():
			violation = violated("the control stream was closed")
		default:
			return
		}
		if violation != nil {
			s.fail(violation)
			return
		}
	}
}

// ends waits for the end of a session whose control stream was reset: WebTransport resets a session's streams when it
// ends, which may be known before the end is. It reports whether the session has ended.
func (s *session) ends() bool {
	select {
	case <-s.ctx.Done():
	case <-time.After(lateStreams):
	}
	return s.ctx.Err() != nil
}

func (s *session) handleControl(m wire.Message) *wire.Error {
	isReady := false
	select {
	case <-s.ready:
		isReady = true
	default:
	}
	switch m := m.(type) {
	case *wire.Setup:
		if isReady {
			return violated("a second SETUP")
		}
		if err := s.handleSetup(m); err != nil {
			return err
		}
		close(s.ready)
		return nil
	case *wire.GoAway:
		s.mu.Lock()
		second := s.leaving
		s.leaving = true
		s.mu.Unlock()
		if isReady && !second && (m.URI == "" || s.upstream != nil) {
			s.moving = m
			close(s.moved)
			return nil
		}
		return violated("a second GOAWAY, or a client's that names a URI")
	}
	return violated("%v on a control stream", m.Type())
}

// handleSetup takes the peer's options (§9.1).
func (s *session) handleSetup(m *wire.Setup) *wire.Error {
	var violation *wire.Error
	if errors.As(m.Check(s.upstream != nil, s.over), &violation) {
		return violation
	}
	if m.Path.Present {
		s.scope = scopeOf(m.Path.Value)
	}
	s.mu.Lock()
	tokens, err := s.cache.setup(m.Tokens)
	s.mu.Unlock()
	if errors.As(err, &violation) {
		return violation
	}
	if err != nil {
		return &wire.Error{Code: wire.SessionMalformedToken, Text: err.Error()}
	}
	s.tokens = tokens
	if refused := s.authorize(&Request{Action: OpenSession}); refused != nil {
		return &wire.Error{Code: wire.SessionUnauthorized, Text: refused.Text}
	}
	return nil
}

// authorize asks the hook about a request of the session's.
func (s *session) authorize(q *Request) *wire.Rejection {
	if s.upstream != nil { // it is trusted by configuration
		return nil
	}
	q.Scope, q.Remote, q.SessionTokens = s.scope, s.conn.RemoteAddr(), s.tokens
	return s.relay.authorize(s.ctx, q)
}

// admit resolves the tokens of a request, and asks the hook.
func (s *session) admit(action Action, t wire.Track, tokens []wire.Token) *wire.Rejection {
	s.mu.Lock()
	resolved, err := s.cache.resolve(tokens)
	s.mu.Unlock()
	var violation *wire.Error
	if errors.As(err, &violation) {
		s.fail(violation)
		return &wire.Rejection{Code: wire.RequestMalformedToken, Text: violation.Text}
	}
	var rejection *wire.Rejection
	if errors.As(err, &rejection) {
		return rejection
	}
	if len(t.Namespace) > 0 && (t.Namespace[0] == "." || t.Namespace[0] == ".session") {
		return &wire.Rejection{Code: wire.DoesNotExist, Text: "the namespace is reserved"} // §2.4.2, §6.5
	}
	return s.authorize(&Request{Action: action, Track: t, Tokens: resolved})
}

// count counts requests that are open.
func (s *session) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests += n
	if s.requests == 0 {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// busy reports whether requests are open.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests > 0
}

// open opens a request of ours. It doesn't wait if wait is false and the peer allows none now.
func (s *session) open(wait bool) (*request, error) {
	s.mu.Lock()
	leaving := s.leaving
	s.mu.Unlock()
	if leaving {
		return nil, errors.New("the peer is leaving")
	}
	if !s.await() {
		return nil, context.Cause(s.ctx)
	}
	if !wait {
		stream, err := s.conn.OpenStream()
		if err != nil {
			return nil, err
		}
		return s.newRequest(stream, true), nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.relay.config.Patience)
	defer cancel()
	stream, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return s.newRequest(stream, true), nil
}

// serve serves a request of the peer's.
func (s *session) serve(stream bidiStream) {
	if !s.await() {
		return
	}
	r := s.newRequest(stream, false)
	defer r.close()
	m, err := r.next()
	var rejection *wire.Rejection
	if err != nil && !errors.As(err, &rejection) {
		return
	}
	id, ok := requestID(m)
	if !ok {
		s.fail(violated("%v as the first message of a request", m.Type()))
		return
	}
	if err := s.useID(id); err != nil {
		s.fail(err)
		return
	}
	if rejection == nil && s.relay.draining.Load() {
		rejection = &wire.Rejection{Code: wire.RequestGoingAway, Text: "the relay is drained"}
	}
	if rejection == nil {
		rejection = s.handle(r, m)
	}
	if rejection != nil {
		s.relay.counters.refused.Add(1)
		r.refuse(rejection)
		_, _ = io.Copy(io.Discard, stream) // until the peer has ended its half
	}
}

// requestID returns the ID of a message that begins a request.
func requestID(m wire.Message) (id uint64, ok bool) {
	switch m := m.(type) {
	case *wire.Subscribe:
		return m.RequestID, true
	case *wire.Publish:
		return m.RequestID, true
	case *wire.Fetch:
		return m.RequestID, true
	case *wire.TrackStatus:
		return m.RequestID, true
	case *wire.PublishNamespace:
		return m.RequestID, true
	case *wire.SubscribeNamespace:
		return m.RequestID, true
	case *wire.SubscribeTracks:
		return m.RequestID, true
	}
	return 0, false
}

// handle does what a request asks for, until it is over. A rejection is left to the caller.
func (s *session) handle(r *request, m wire.Message) *wire.Rejection {
	switch m := m.(type) {
	case *wire.Subscribe:
		return s.subscribe(r, m)
	case *wire.Publish:
		return s.publish(r, m)
	case *wire.TrackStatus:
		return s.trackStatus(r, m)
	case *wire.PublishNamespace:
		return s.publishNamespace(r, m)
	case *wire.SubscribeNamespace:
		return s.subscribeNamespace(r, m)
	case *wire.SubscribeTracks:
		return s.subscribeTracks(r, m)
	}
	return s.fetch(r, m.(*wire.Fetch)) // no other message has a request ID
}
