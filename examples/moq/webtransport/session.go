package webtransport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// An Error says why a session has ended: what the capsule that closed it said, or the end of its CONNECT stream.
type Error struct {
	Code   uint32
	Reason string
	Remote bool
}

func (e *Error) Error() string {
	by := "this end"
	if e.Remote {
		by = "the peer"
	}
	return fmt.Sprintf("the WebTransport session was closed by %s: %q (%#x)", by, e.Reason, e.Code)
}

// A connect is the stream of a CONNECT request, in DATA frames.
type connect interface {
	io.ReadWriteCloser
	StreamID() quic.StreamID
	SetWriteDeadline(t time.Time) error
	CancelRead(code quic.StreamErrorCode)
	SendDatagram(b []byte) error
	ReceiveDatagram(ctx context.Context) ([]byte, error)
}

var _ = []connect{(*http3.Stream)(nil), (*http3.RequestStream)(nil)}

// A Session is a WebTransport session: streams and datagrams, like a QUIC connection's.
type Session struct {
	conn     *quic.Conn
	connect  connect
	id       uint64
	protocol string
	ctx      context.Context
	cancel   context.CancelCauseFunc
	closing  sync.Mutex    // the sending half of the CONNECT stream is closed
	finished chan struct{} // the peer has ended the CONNECT stream
	uni      chan *ReceiveStream
	bidi     chan *Stream
}

func newSession(conn *quic.Conn, c connect, protocol string) *Session {
	s := &Session{
		conn: conn, connect: c, id: uint64(c.StreamID()), protocol: protocol, finished: make(chan struct{}),
		uni: make(chan *ReceiveStream), bidi: make(chan *Stream),
	}
	s.ctx, s.cancel = context.WithCancelCause(conn.Context())
	go s.readCapsules()
	return s
}

// Protocol is what was negotiated by WT-Available-Protocols.
func (s *Session) Protocol() string { return s.protocol }

// Context ends with the session. Its cause is an [*Error] if one of the ends has closed it.
func (s *Session) Context() context.Context { return s.ctx }

// RemoteAddr is the peer's address.
func (s *Session) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// ConnectionState is the state of the connection.
func (s *Session) ConnectionState() quic.ConnectionState { return s.conn.ConnectionState() }

// AcceptStream returns the next bidirectional stream that the peer has opened.
func (s *Session) AcceptStream(ctx context.Context) (*Stream, error) { return accept(ctx, s, s.bidi) }

// AcceptUniStream returns the next unidirectional stream that the peer has opened.
func (s *Session) AcceptUniStream(ctx context.Context) (*ReceiveStream, error) {
	return accept(ctx, s, s.uni)
}

func accept[T any](ctx context.Context, s *Session, streams chan T) (one T, err error) {
	select {
	case one = <-streams:
		return one, nil
	case <-ctx.Done():
		return one, ctx.Err()
	case <-s.ctx.Done():
		return one, context.Cause(s.ctx)
	}
}

// OpenStreamSync opens a bidirectional stream, as soon as the peer allows one.
func (s *Session) OpenStreamSync(ctx context.Context) (*Stream, error) {
	str, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return s.opened(str)
}

// OpenStream opens a bidirectional stream if the peer allows one now.
func (s *Session) OpenStream() (*Stream, error) {
	str, err := s.conn.OpenStream()
	if err != nil {
		return nil, err
	}
	return s.opened(str)
}

func (s *Session) opened(str *quic.Stream) (*Stream, error) {
	if err := s.head(str, bidiStream); err != nil {
		return nil, err
	}
	return &Stream{s.sending(str), s.receiving(str)}, nil
}

// OpenUniStreamSync opens a unidirectional stream, as soon as the peer allows one.
func (s *Session) OpenUniStreamSync(ctx context.Context) (*SendStream, error) {
	str, err := s.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.head(str, uniStream); err != nil {
		return nil, err
	}
	return s.sending(str), nil
}

// head writes what a stream begins with. A reset leaves it, so that the peer knows whose stream was reset, if flow
// control has room for it: the library would exceed the peer's limit.
func (s *Session) head(str sender, kind uint64) error {
	if err := context.Cause(s.ctx); err != nil {
		str.CancelWrite(codeSessionGone)
		return err
	}
	b := quicvarint.Append(quicvarint.Append(nil, kind), s.id)
	err := str.TryWriteAll(b)
	if err == nil {
		str.SetReliableBoundary()
	} else if errors.Is(err, quic.ErrWouldBlock) {
		_, err = str.Write(b)
	}
	return err
}

// SendDatagram sends a datagram, or none if it doesn't fit a packet.
func (s *Session) SendDatagram(b []byte) error { return s.connect.SendDatagram(b) }

// ReceiveDatagram returns the next datagram.
func (s *Session) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	return s.connect.ReceiveDatagram(ctx)
}

// patience is how long a peer may take to read what it has to know.
const patience = time.Second

// CloseWithError closes the session: with a capsule, of whose code 32 bits are sent, and of whose text 1,024 bytes.
func (s *Session) CloseWithError(code quic.ApplicationErrorCode, reason string) error {
	reason = reason[:min(len(reason), maxReason)]
	e := &Error{Code: uint32(min(code, 1<<32-1)), Reason: reason}
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ctx.Err() != nil {
		return nil
	}
	s.cancel(e)
	value := append(binary.BigEndian.AppendUint32(nil, e.Code), reason...)
	capsule := quicvarint.Append(quicvarint.Append(nil, capsuleClose), uint64(len(value)))
	_ = s.connect.SetWriteDeadline(time.Now().Add(patience))
	_, err := s.connect.Write(append(capsule, value...))
	return errors.Join(err, s.connect.Close())
}

// readCapsules reads the CONNECT stream until the session ends.
func (s *Session) readCapsules() {
	defer close(s.finished)
	capsules := http3.NewCapsuleParser(quicvarint.NewReader(s.connect))
	for {
		kind, r, err := capsules.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.closed(&Error{Remote: true})
			return
		case err != nil:
			s.cancel(err)
			return
		case kind == capsuleClose:
			s.closed(readClose(r))
			s.connect.CancelRead(codeSessionGone) // nothing may follow
			return
		}
		if err := r.Discard(); err != nil { // unknown ones are ignored (RFC 9297, section 3.2)
			s.cancel(err)
			return
		}
	}
}

func readClose(r http3.CapsuleReader) *Error {
	b, err := io.ReadAll(io.LimitReader(r, 4+maxReason))
	if err != nil || len(b) < 4 {
		return &Error{Remote: true}
	}
	return &Error{Code: binary.BigEndian.Uint32(b), Reason: string(b[4:]), Remote: true}
}

// closed ends the session, which the peer has closed.
func (s *Session) closed(e *Error) {
	s.cancel(e)
	s.closing.Lock()
	defer s.closing.Unlock()
	_ = s.connect.Close() // closed already if this end has closed the session as well
}
