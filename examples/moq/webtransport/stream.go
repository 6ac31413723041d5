package webtransport

import (
	"context"
	"errors"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A session's codes of streams are 32 bits wide. On the wire they are among HTTP/3's, from first on, without those
// that HTTP/3 reserves: each 31st (section 4.4).
const (
	firstCode = 0x52e4a40fa8db
	lastCode  = 0x52e5ac983162
)

// toWire returns a code as HTTP/3 has it. What doesn't fit 32 bits is sent as the largest that does.
func toWire(code quic.StreamErrorCode) quic.StreamErrorCode {
	n := min(uint64(code), 1<<32-1)
	return quic.StreamErrorCode(firstCode + n + n/0x1e)
}

// fromWire returns a session's code. Codes that aren't one's, HTTP/3's own among them, are 0.
func fromWire(code quic.StreamErrorCode) quic.StreamErrorCode {
	if code < firstCode || code > lastCode || (code-0x21)%0x1f == 0 {
		return 0
	}
	shifted := code - firstCode
	return shifted - shifted/0x1f
}

// translate makes an error of a stream one with a session's code.
func translate(err error) error {
	var e *quic.StreamError
	if !errors.As(err, &e) {
		return err
	}
	return &quic.StreamError{StreamID: e.StreamID, ErrorCode: fromWire(e.ErrorCode), Remote: e.Remote}
}

// A sender is the half of a stream that is sent.
type sender interface {
	Write(b []byte) (int, error)
	TryWriteAll(b []byte) error
	TryWriteNext(b []byte) error
	TakeNext(b []byte) *quic.OutsideFrame
	Close() error
	CancelWrite(code quic.StreamErrorCode)
	SetPriority(urgency int8, incremental bool)
	SetReliableBoundary()
	SetWriteDeadline(t time.Time) error
	Context() context.Context
}

// A receiver is the half of a stream that is received.
type receiver interface {
	Read(b []byte) (int, error)
	CancelRead(code quic.StreamErrorCode)
	SetReadDeadline(t time.Time) error
}

// A SendStream is a stream that this end sends. Its methods are those of [quic.SendStream], with the session's codes.
type SendStream struct {
	sender
	forget func() bool // it isn't the session's business any more
}

// sending makes a half of a stream the session's: it is reset when the session ends.
func (s *Session) sending(half sender) *SendStream {
	return &SendStream{half, context.AfterFunc(s.ctx, func() { half.CancelWrite(codeSessionGone) })}
}

// Write writes data. An error that the peer has caused is a [quic.StreamError] with a code of the session's.
func (s *SendStream) Write(b []byte) (int, error) {
	n, err := s.sender.Write(b)
	return n, translate(err)
}

// TryWriteAll queues data if flow control has room for all of it, or none.
func (s *SendStream) TryWriteAll(b []byte) error { return translate(s.sender.TryWriteAll(b)) }

// TryWriteNext queues data if flow control has room for all of it, and nothing that was written before waits, or none.
func (s *SendStream) TryWriteNext(b []byte) error { return translate(s.sender.TryWriteNext(b)) }

// Close ends the stream.
func (s *SendStream) Close() error {
	s.forget()
	return translate(s.sender.Close())
}

// CancelWrite resets the stream with a code of at most 32 bits.
func (s *SendStream) CancelWrite(code quic.StreamErrorCode) {
	s.forget()
	s.sender.CancelWrite(toWire(code))
}

// A ReceiveStream is a stream that the peer sends. Its methods are those of [quic.ReceiveStream], with the session's
// codes.
type ReceiveStream struct {
	receiver
	forget func() bool
}

// receiving makes a half of a stream the session's.
func (s *Session) receiving(half receiver) *ReceiveStream {
	return &ReceiveStream{half, context.AfterFunc(s.ctx, func() { half.CancelRead(codeSessionGone) })}
}

// Read reads data. An error that the peer has caused is a [quic.StreamError] with a code of the session's.
func (r *ReceiveStream) Read(b []byte) (int, error) {
	n, err := r.receiver.Read(b)
	if err != nil {
		r.forget()
	}
	return n, translate(err)
}

// CancelRead asks the peer to stop, with a code of at most 32 bits.
func (r *ReceiveStream) CancelRead(code quic.StreamErrorCode) {
	r.forget()
	r.receiver.CancelRead(toWire(code))
}

// A Stream is a bidirectional stream.
type Stream struct {
	*SendStream
	*ReceiveStream
}
