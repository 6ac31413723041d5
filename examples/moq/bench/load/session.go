package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A session is one of MOQT.
type session struct {
	*client
	draft  wire.Draft
	nextID uint64
	// subscribed answers SUBSCRIBE; nil: nothing is published.
	subscribed func(*wire.Subscribe) wire.Message
}

// begin sends SETUP, and answers the relay's requests from now on.
func (s *session) begin(ctx context.Context) error {
	control, err := s.OpenUniStreamSync(ctx)
	if err == nil {
		err = s.send(control, &wire.Setup{Implementation: "bench"})
	}
	if err != nil {
		return err
	}
	go func() {
		for {
			request, err := s.AcceptStream(s.Context())
			if err != nil {
				return
			}
			go s.serve(request)
		}
	}()
	return nil
}

func (s *session) send(w io.Writer, messages ...wire.Message) error {
	for _, m := range messages {
		b, err := wire.Append(nil, s.draft, m)
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// serve answers a request of the relay's, and leaves its stream open, as long as the relay does.
func (s *session) serve(request *quic.Stream) {
	reader := wire.NewReader(request, s.draft)
	for {
		m, err := reader.Next()
		if err != nil {
			return
		}
		var answer []wire.Message
		switch m := m.(type) {
		case *wire.Subscribe:
			if s.subscribed != nil {
				answer = append(answer, s.subscribed(m))
			} else {
				answer = append(answer, &wire.RequestError{Code: wire.DoesNotExist})
			}
		case *wire.SubscribeNamespace:
			answer = append(answer, &wire.RequestOK{})
			if s.subscribed != nil && len(m.Prefix) == 0 {
				answer = append(answer, &wire.NamespaceAvailable{Suffix: wire.Namespace{namespace}})
			}
		case *wire.PublishNamespace, *wire.RequestUpdate:
			answer = append(answer, &wire.RequestOK{})
		default:
			answer = append(answer, &wire.RequestError{Code: wire.NotSupported})
		}
		if s.send(request, answer...) != nil {
			return
		}
	}
}

// request sends a request, and returns the answer.
func (s *session) request(ctx context.Context, of func(id uint64) wire.Message) (wire.Message, error) {
	stream, err := s.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	id := s.nextID
	s.nextID += 2
	if err := s.send(stream, of(id)); err != nil {
		return nil, err
	}
	answer, err := wire.NewReader(stream, s.draft).Next()
	if e, ok := answer.(*wire.RequestError); ok {
		err = fmt.Errorf("the relay refuses with %#x: %s", uint64(e.Code), e.Reason)
	}
	return answer, err
}

// parse parses what a reader has next, and waits until there is enough of it.
func parse[T any](r *bufio.Reader, of func([]byte) (T, int, error)) (v T, err error) {
	for n := 1; ; n = r.Buffered() + 1 {
		if _, err := r.Peek(n); err != nil {
			return v, err
		}
		b, err := r.Peek(r.Buffered())
		if err != nil {
			return v, err
		}
		v, used, err := of(b)
		if errors.Is(err, wire.ErrIncomplete) {
			continue
		}
		if err == nil {
			_, err = r.Discard(used)
		}
		return v, err
	}
}
