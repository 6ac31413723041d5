package relay

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

const (
	maxQueued = 1 << 20         // bytes of messages that a peer hasn't taken from a stream
	lingering = 2 * time.Second // how long a peer may take to end its half of a request that is over
)

// An outbox sends messages on a stream. It never waits for the peer: messages wait in it.
type outbox struct {
	stream sendStream
	draft  wire.Draft

	mu       sync.Mutex
	queue    []byte
	writing  bool
	finished bool // nothing more is sent
	broken   bool
}

// send queues messages. It fails if the peer has left too many in the queue, or a message can't be sent in the draft.
func (o *outbox) send(messages ...wire.Message) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished || o.broken {
		return nil // what it was about is over
	}
	for _, m := range messages {
		if o.queue, err = wire.Append(o.queue, o.draft, m); err != nil {
			break
		}
	}
	if len(o.queue) > maxQueued {
		err = errors.New("the peer doesn't read its messages")
	}
	if err != nil {
		o.abort(wire.ResetExcessiveLoad)
		return err
	}
	o.flush()
	return nil
}

// finish ends the stream after what is queued.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.finished && !o.broken {
		o.finished = true
		o.flush()
	}
}

// reset resets the stream, unless it is finished.
func (o *outbox) reset(code wire.ResetCode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.finished {
		o.abort(code)
	}
}

func (o *outbox) abort(code wire.ResetCode) {
	if !o.broken {
		o.broken, o.queue = true, nil
		o.stream.CancelWrite(quic.StreamErrorCode(code))
	}
}

func (o *outbox) flush() {
	if !o.writing {
		o.writing = true
		go o.write()
	}
}

// write writes what is queued until nothing is.
func (o *outbox) write() {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.writing = false }()
	for !o.broken && len(o.queue) > 0 {
		b := o.queue
		o.queue = nil
		o.mu.Unlock()
		_, err := o.stream.Write(b)
		o.mu.Lock()
		if err != nil {
			o.broken = true
		}
	}
	if o.finished && !o.broken {
		o.broken = o.stream.Close() != nil
	}
}

// A request is a bidirectional stream that began with a request, of the peer's or of ours (§6.4.2).
type request struct {
	outbox
	session *session
	stream  bidiStream
	reader  *wire.Reader
	goaway  bool // the peer has sent GOAWAY on it
}

func (s *session) newRequest(stream bidiStream, ours bool) *request {
	stream.SetPriority(urgencyRequest, true)
	r := &request{
		outbox: outbox{stream: stream, draft: s.draft}, session: s, stream: stream,
		reader: wire.NewReader(stream, s.draft),
	}
	// A peer cancels a request by STOP_SENDING, after a FIN of its own too. What was finished here is over when the
	// peer has ended its half, or after a while. A request of ours that the peer stops may have its answer on the way:
	// REQUEST_ERROR with a FIN, and STOP_SENDING.
	context.AfterFunc(stream.Context(), func() {
		wait := lingering
		switch stopped := isRemote(context.Cause(stream.Context())); {
		case stopped && ours:
			wait = s.relay.config.Patience
		case stopped:
			wait = 0
		}
		_ = stream.SetReadDeadline(time.Now().Add(wait))
	})
	s.count(1)
	return r
}

// isRemote reports whether an error of a stream comes from the peer.
func isRemote(err error) bool {
	var e *quic.StreamError
	return errors.As(err, &e) && e.Remote
}

// next returns the next message. An error ends the request, and the session if it is a violation of the draft.
func (r *request) next() (wire.Message, error) {
	for {
		m, err := r.reader.Next()
		var violation *wire.Error
		if errors.As(err, &violation) {
			r.session.fail(violation)
		}
		e, refused := m.(*wire.RequestError)
		if refused && e.Redirect != nil && e.Redirect.URI != "" && r.session.upstream == nil {
			err := violated("a redirect of a client's that names a URI")
			r.session.fail(err)
			return nil, err
		}
		g, ok := m.(*wire.GoAway)
		if err != nil || !ok {
			return m, err
		}
		// It asks for this request to be sent again, on this session or another one: a subscriber does that by itself,
		// and the relay when what it has subscribed to ends.
		if r.goaway || g.URI != "" && r.session.upstream == nil {
			err := violated("a second GOAWAY on a request, or one of a client that names a URI")
			r.session.fail(err)
			return nil, err
		}
		r.goaway = true
	}
}

// An updater takes a REQUEST_UPDATE, or refuses one that can't be taken. It answers, or returns a refusal as the
// answer.
type updater func(m *wire.RequestUpdate, refused *wire.Rejection) *wire.Rejection

// updates reads what follows the first messages of a request until it is over: other gets what isn't REQUEST_UPDATE.
func (r *request) updates(update updater, other func(wire.Message) bool) {
	for {
		m, err := r.next()
		if errors.Is(err, io.EOF) { // no more messages; it isn't cancelled (§6.4.2.2)
			<-r.stream.Context().Done()
			return
		}
		var rejection *wire.Rejection
		if err != nil && !errors.As(err, &rejection) {
			return
		}
		u, ok := m.(*wire.RequestUpdate)
		switch {
		case ok && update != nil:
			if err := r.session.useID(u.RequestID); err != nil {
				r.session.fail(err)
				return
			}
			if rejection = update(u, rejection); rejection != nil {
				_ = r.send(&wire.RequestError{Code: rejection.Code, Reason: rejection.Text})
			}
		case rejection == nil && other != nil && other(m):
		default:
			r.session.fail(violated("%v isn't expected on this request", m.Type()))
			return
		}
	}
}

// refuse answers a request with REQUEST_ERROR, which ends it.
func (r *request) refuse(rejection *wire.Rejection) {
	r.refuseWith(&wire.RequestError{Code: rejection.Code, Reason: rejection.Text})
}

func (r *request) refuseWith(e *wire.RequestError) {
	_ = r.send(e)
	r.finish()
}

// cancel cancels a request, unless it was finished.
func (r *request) cancel() {
	r.reset(wire.ResetCancelled)
	r.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
}

// close ends what is left of a request.
func (r *request) close() {
	r.cancel()
	r.session.count(-1)
}
