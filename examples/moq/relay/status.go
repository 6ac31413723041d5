package relay

import (
	"io"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// trackStatus answers a TRACK_STATUS: from a subscription of the relay's, or by asking a publisher (§9.13).
func (s *session) trackStatus(r *request, m *wire.TrackStatus) *wire.Rejection {
	if s.relay.cycle(m.Track) {
		return &wire.Rejection{Code: wire.DoesNotExist, Text: "the relay itself asks for this track"}
	}
	if rejection := s.admit(TrackStatus, m.Track, m.Parameters.Tokens); rejection != nil {
		return rejection
	}
	t := s.relay.use(s.scope, m.Track)
	defer s.relay.release(t)
	ok := &wire.RequestOK{}
	t.mu.Lock()
	known := t.serves(s)
	ok.Parameters.LargestObject, ok.Properties = t.largest, t.settings.properties
	t.mu.Unlock()
	if !known {
		answer, refused := s.statusFrom(t)
		if refused != nil {
			r.refuseWith(downstream(refused, s))
			_, _ = io.Copy(io.Discard, r.stream) // until the peer has ended its half
			return nil
		}
		ok.Parameters.LargestObject, ok.Properties = answer.Parameters.LargestObject, answer.Properties
	}
	if !m.Parameters.IncludeProperties.Or(true) {
		ok.Properties = nil
	}
	_ = r.send(ok)
	r.finish()
	r.updates(nil, nil)
	return nil
}

// statusFrom asks publishers, and upstream relays.
func (s *session) statusFrom(t *track) (answer *wire.RequestOK, refused *wire.RequestError) {
	refused = s.askEach(t, s.relay.publishers(t), true, func(p *session) (refused *wire.RequestError) {
		answered, ok := t.question(p)
		if !ok {
			return &wire.RequestError{Code: wire.RequestTimeout, Reason: "the upstream relay has too much to answer"}
		}
		defer answered()
		answer, refused = p.askStatus(t.name)
		return refused
	})
	return answer, refused
}

// askStatus asks a publisher. It returns its refusal.
func (s *session) askStatus(name wire.Track) (*wire.RequestOK, *wire.RequestError) {
	failed := &wire.RequestError{Code: wire.RequestTimeout, Reason: "the publisher didn't answer"}
	r, err := s.open(true)
	if err != nil {
		return nil, failed
	}
	defer r.close()
	if r.send(&wire.TrackStatus{RequestID: s.newID(), Track: name}) != nil {
		return nil, failed
	}
	r.finish()
	_ = r.stream.SetReadDeadline(time.Now().Add(s.relay.config.Patience))
	answer, err := r.next()
	if err != nil {
		return nil, failed
	}
	switch answer := answer.(type) {
	case *wire.RequestOK:
		return answer, nil
	case *wire.RequestError:
		return nil, answer
	}
	s.fail(violated("%v in answer to TRACK_STATUS", answer.Type()))
	return nil, failed
}
