package relay

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/webtransport"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A transport carries a session: a QUIC connection, or a WebTransport session (§6.2).
type transport interface {
	AcceptStream(ctx context.Context) (bidiStream, error)
	AcceptUniStream(ctx context.Context) (receiveStream, error)
	OpenStream() (bidiStream, error) // fails if the peer allows none now
	OpenStreamSync(ctx context.Context) (bidiStream, error)
	OpenUniStreamSync(ctx context.Context) (sendStream, error)
	SendDatagram(b []byte) error // waits while the library's queue is full
	ReceiveDatagram(ctx context.Context) ([]byte, error)
	CloseWithError(code quic.ApplicationErrorCode, reason string) error
	Context() context.Context
	RemoteAddr() net.Addr
}

// A sendStream is a stream to the peer.
type sendStream interface {
	subgroupStream
	SetWriteDeadline(t time.Time) error
}

// A subgroupStream is one that carries a subgroup; package quic describes the methods.
type subgroupStream interface {
	io.WriteCloser
	TryWriteAll(b []byte) error
	TryWriteNext(b []byte) error
	TakeNext(b []byte) *quic.OutsideFrame
	CancelWrite(code quic.StreamErrorCode)
	SetPriority(urgency int8, incremental bool)
	SetReliableBoundary()
	Context() context.Context
}

// A receiveStream is a stream from the peer.
type receiveStream interface {
	io.Reader
	CancelRead(code quic.StreamErrorCode)
	SetReadDeadline(t time.Time) error
}

// A bidiStream is a bidirectional stream.
type bidiStream interface {
	sendStream
	receiveStream
}

// rawQUIC is a connection whose ALPN is MOQT's.
type rawQUIC struct{ *quic.Conn }

func (c rawQUIC) AcceptStream(ctx context.Context) (bidiStream, error) {
	s, err := c.Conn.AcceptStream(ctx)
	return orNil[bidiStream](s, err)
}

func (c rawQUIC) AcceptUniStream(ctx context.Context) (receiveStream, error) {
	s, err := c.Conn.AcceptUniStream(ctx)
	return orNil[receiveStream](s, err)
}

func (c rawQUIC) OpenStream() (bidiStream, error) {
	s, err := c.Conn.OpenStream()
	return orNil[bidiStream](s, err)
}

func (c rawQUIC) OpenStreamSync(ctx context.Context) (bidiStream, error) {
	s, err := c.Conn.OpenStreamSync(ctx)
	return orNil[bidiStream](s, err)
}

func (c rawQUIC) OpenUniStreamSync(ctx context.Context) (sendStream, error) {
	s, err := c.Conn.OpenUniStreamSync(ctx)
	return orNil[sendStream](s, err)
}

// overHTTP is a WebTransport session.
type overHTTP struct{ *webtransport.Session }

func (c overHTTP) AcceptStream(ctx context.Context) (bidiStream, error) {
	s, err := c.Session.AcceptStream(ctx)
	return orNil[bidiStream](s, err)
}

func (c overHTTP) AcceptUniStream(ctx context.Context) (receiveStream, error) {
	s, err := c.Session.AcceptUniStream(ctx)
	return orNil[receiveStream](s, err)
}

func (c overHTTP) OpenStream() (bidiStream, error) {
	s, err := c.Session.OpenStream()
	return orNil[bidiStream](s, err)
}

func (c overHTTP) OpenStreamSync(ctx context.Context) (bidiStream, error) {
	s, err := c.Session.OpenStreamSync(ctx)
	return orNil[bidiStream](s, err)
}

func (c overHTTP) OpenUniStreamSync(ctx context.Context) (sendStream, error) {
	s, err := c.Session.OpenUniStreamSync(ctx)
	return orNil[sendStream](s, err)
}

// orNil returns a stream as an interface, which is nil if there is an error.
func orNil[I, S any](s S, err error) (I, error) {
	if err != nil {
		var none I
		return none, err
	}
	return any(s).(I), nil
}
