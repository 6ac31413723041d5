package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// fetchFrom asks a publisher for a range, and hands what it sends on. It returns the publisher's refusal.
func (w *wanted) fetchFrom(p *session, r *request, m *wire.Fetch) *wire.RequestError {
	failed := &wire.RequestError{Code: wire.RequestTimeout, Reason: "the publisher didn't answer"}
	answered, ok := w.track.question(p)
	if !ok {
		return failed
	}
	defer answered()
	ask, err := p.open(true)
	if err != nil {
		return failed
	}
	defer ask.close()
	id := p.newID()
	streams := p.expectFetch(id)
	defer p.forgetFetch(id, streams)
	if ask.send(w.upstream(p, id, m)) != nil {
		return failed
	}
	_ = ask.stream.SetReadDeadline(time.Now().Add(p.relay.config.Patience))
	answer, err := ask.next()
	answered()
	if err != nil {
		return failed
	}
	_ = ask.stream.SetReadDeadline(time.Time{})
	switch answer := answer.(type) {
	case *wire.RequestError:
		return answer
	case *wire.FetchOK:
		if kind, ok := answer.Properties.Mandatory(); ok {
			return unsupported(kind)
		}
		if !m.Parameters.IncludeProperties.Or(true) {
			answer.Properties = nil
		}
		_ = r.send(answer)
	default:
		p.fail(violated("%T in answer to FETCH", answer))
		return failed
	}
	ctx, cancel := context.WithCancel(w.session.ctx)
	defer cancel()
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		select {
		case in := <-streams:
			in.handOn(ctx, w)
			r.finish()
			return
		case <-ctx.Done():
		case <-p.ctx.Done():
		case <-time.After(p.relay.config.Patience):
		}
		r.reset(wire.ResetInternalError) // there is no stream
	}()
	r.updates(r.accept, nil)
	cancel()
	<-handed
	return nil
}

// expectFetch has a fetch stream of the peer's be handed over.
func (s *session) expectFetch(id uint64) <-chan *incoming {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan *incoming, 1)
	s.fetches[id] = c
	return c
}

// forgetFetch has a fetch stream be stopped that wasn't taken.
func (s *session) forgetFetch(id uint64, streams <-chan *incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fetches, id)
	select {
	case in := <-streams:
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	default:
	}
}

// receiveFetch takes a fetch stream of the peer's, whose request the relay has sent.
func (in *incoming) receiveFetch() {
	for {
		id, n, err := wire.ParseFetchHeader(in.held)
		if errors.Is(err, wire.ErrIncomplete) {
			err = in.more()
		} else if err == nil {
			in.held = in.held[n:]
			s := in.session
			s.mu.Lock()
			c, ours := s.fetches[id], id%2 == s.nextID%2 && id < s.nextID
			delete(s.fetches, id)
			if c != nil {
				c <- in // it has room for the one stream that there is
			}
			s.mu.Unlock()
			switch {
			case c != nil:
			case ours: // it was cancelled
				in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
			default:
				s.fail(violated("a fetch stream for a FETCH that wasn't sent"))
			}
			return
		}
		if err != nil {
			in.session.ended(err)
			return
		}
	}
}

// handOn sends a fetch stream to a session: headers when they are whole and valid, payloads as they come.
func (in *incoming) handOn(ctx context.Context, w *wanted) {
	stop := context.AfterFunc(ctx, func() { in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled)) })
	defer stop()
	stream, err := w.session.conn.OpenUniStreamSync(ctx)
	if err != nil {
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
		return
	}
	unblock := context.AfterFunc(ctx, func() { stream.CancelWrite(quic.StreamErrorCode(wire.ResetCancelled)) })
	defer unblock()
	parser := wire.Fetched{Draft: in.session.draft, Descending: w.order == wire.Descending}
	_, err = stream.Write(wire.AppendFetchHeader(nil, w.id))
	for err == nil {
		good := 0
		for good < len(in.held) && err == nil {
			if n := min(in.payload, uint64(len(in.held)-good)); n > 0 {
				good += int(n)
				in.payload -= n
				continue
			}
			var o wire.FetchObject
			var n int
			if o, n, err = parser.Next(in.held[good:]); err != nil {
				continue
			}
			if o.EndOfRange == wire.TimedOut && w.session.draft == wire.Draft18 { // which has no such range
				o.EndOfRange = wire.Unknown
				var marker []byte
				if marker, err = (&wire.Fetched{Draft: wire.Draft18}).Append(nil, o); err == nil {
					in.held = slices.Replace(in.held, good, good+n, marker...)
					n = len(marker)
				}
			}
			good, in.payload = good+n, o.Length
		}
		if err != nil && !errors.Is(err, wire.ErrIncomplete) {
			break
		}
		if _, err = stream.Write(in.held[:good]); err == nil {
			in.held = append(in.held[:0:0], in.held[good:]...)
			err = in.more()
		}
	}
	if errors.Is(err, io.EOF) && in.payload == 0 && len(in.held) == 0 {
		_ = stream.Close() // or the subscriber has stopped it
		return
	}
	in.session.ended(err)
	stream.CancelWrite(quic.StreamErrorCode(resetCode(err)))
	in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
}
