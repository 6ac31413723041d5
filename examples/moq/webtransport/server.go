package webtransport

import (
	"cmp"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// A Server serves QUIC connections that have negotiated HTTP/3, and becomes the server of their sessions.
type Server struct {
	// Protocols are what sessions may speak, the preferred one first. A request that offers none of them is refused
	// with 400.
	Protocols []string
	// Handle is called with each session. The session is closed without an error when it returns.
	Handle func(s *Session, r *http.Request)
	// Patience is how long a connection may be without a session (default: 10 s).
	Patience time.Duration
}

// A connection is a QUIC connection with HTTP/3 on it, and at most one session.
type connection struct {
	quic     *quic.Conn
	taken    sync.Once
	session  *Session      // when there is one
	accepted chan struct{} // is closed then
}

// Serve serves a connection until it is closed.
func (s *Server) Serve(conn *quic.Conn) error {
	c := &connection{quic: conn, accepted: make(chan struct{})}
	h3 := &http3.Server{
		EnableDatagrams: true, AdditionalSettings: settings(),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.request(c, w, r) }),
	}
	raw, err := h3.NewRawServerConn(conn)
	if err != nil {
		return err
	}
	idle := time.AfterFunc(cmp.Or(s.Patience, 10*time.Second), func() {
		select {
		case <-c.accepted:
		default:
			_ = conn.CloseWithError(codeNoError, "no session was asked for")
		}
	})
	defer idle.Stop()
	go c.acceptUni(raw.HandleUnidirectionalStream)
	for {
		str, err := conn.AcceptStream(conn.Context())
		if err != nil {
			return err
		}
		go c.bidi(str, raw.HandleRequestStream)
	}
}

// request answers a request: one for a session becomes it.
func (s *Server) request(c *connection, w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Proto != "webtransport" && r.Proto != "webtransport-h3" {
		http.Error(w, "only WebTransport is served here", http.StatusNotFound)
		return
	}
	protocol, ok := choose(s.Protocols, parseStrings(r.Header.Values(availableProtocols)))
	if !ok {
		http.Error(w, "WT-Available-Protocols has to offer one of "+formatStrings(s.Protocols...),
			http.StatusBadRequest)
		return
	}
	settings := w.(http3.Settingser)
	select {
	case <-settings.ReceivedSettings():
	case <-r.Context().Done():
		return
	}
	if !settings.Settings().EnableDatagrams {
		http.Error(w, "WebTransport needs SETTINGS_H3_DATAGRAM", http.StatusBadRequest)
		return
	}
	first := false
	c.taken.Do(func() { first = true })
	if !first {
		http.Error(w, "a connection has one session", http.StatusTooManyRequests)
		return
	}
	w.Header().Set(chosenProtocol, formatStrings(protocol))
	w.WriteHeader(http.StatusOK)
	str, err := w.(http3.HTTPStreamer).HTTPStream()
	if err != nil {
		_ = c.quic.CloseWithError(codeNoError, "") // the connection has no session, and can't get another one
		return
	}
	c.session = newSession(c.quic, str, protocol)
	close(c.accepted)
	s.Handle(c.session, r)
	c.end()
}

// end closes the session and its connection, as soon as the peer has read why.
func (c *connection) end() {
	_ = c.session.CloseWithError(0, "")
	select {
	case <-c.session.finished:
	case <-time.After(patience):
	}
	_ = c.quic.CloseWithError(codeNoError, "")
}

// buffered is how long a stream may be there before its session.
const buffered = 5 * time.Second

// of returns the session of a stream. It waits for one that isn't there yet; nil means that there will be none.
func (c *connection) of(id uint64) *Session {
	select {
	case <-c.accepted:
	case <-time.After(buffered):
		return nil
	case <-c.quic.Context().Done():
		return nil
	}
	if c.session.id != id {
		return nil
	}
	return c.session
}

// peeker is a stream whose first bytes can be looked at.
type peeker interface {
	Peek(b []byte) (int, error)
	Read(b []byte) (int, error)
}

// peek returns the varint that a stream begins with, and how long it is.
func peek(str peeker) (v uint64, length int, err error) {
	var b [8]byte
	if _, err := str.Peek(b[:1]); err != nil {
		return 0, 0, err
	}
	length = 1 << (b[0] >> 6)
	if _, err := str.Peek(b[:length]); err != nil {
		return 0, 0, err
	}
	v, _, err = quicvarint.Parse(b[:length])
	return v, length, err
}

// head takes what a stream of a session begins with off it. ok is false if it isn't one's.
func (c *connection) head(str peeker, kind uint64) (id uint64, ok bool, err error) {
	v, length, err := peek(str)
	if err != nil || v != kind {
		return 0, false, nil // HTTP/3 says what is wrong with it
	}
	var b [8]byte
	if _, err := io.ReadFull(str, b[:length]); err != nil {
		return 0, true, err
	}
	id, err = quicvarint.Read(quicvarint.NewReader(str))
	if err == nil && id%4 != 0 { // not the ID of a request
		_ = c.quic.CloseWithError(codeIDError, "a session's ID is that of a bidirectional stream of the client's")
	}
	return id, true, err
}

// acceptUni accepts unidirectional streams: a session's, and all others.
func (c *connection) acceptUni(other func(*quic.ReceiveStream)) {
	for {
		str, err := c.quic.AcceptUniStream(c.quic.Context())
		if err != nil {
			return
		}
		go func() {
			id, ok, err := c.head(str, uniStream)
			if !ok {
				other(str)
				return
			}
			var s *Session
			if err == nil {
				s = c.of(id)
			}
			if s == nil || !deliver(s, s.uni, s.receiving(str)) {
				str.CancelRead(codeBufferedStreamRejected)
			}
		}()
	}
}

// bidi handles a bidirectional stream: a session's, or another one.
func (c *connection) bidi(str *quic.Stream, other func(*quic.Stream)) {
	id, ok, err := c.head(str, bidiStream)
	if !ok {
		other(str)
		return
	}
	var s *Session
	if err == nil {
		s = c.of(id)
	}
	if s == nil || !deliver(s, s.bidi, &Stream{s.sending(str), s.receiving(str)}) {
		str.CancelRead(codeBufferedStreamRejected)
		str.CancelWrite(codeBufferedStreamRejected)
	}
}

func deliver[T any](s *Session, to chan T, str T) bool {
	select {
	case to <- str:
		return true
	case <-s.ctx.Done():
		return false
	}
}
