package relay

import (
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// trackStatus answers a TRACK_STATUS: from a subscription of the relay's, or by asking a publisher (§9.13).
func (s *session) trackStatus(r *request, m *wire.TrackStatus) *wire.Rejection {
	if rejection := s.admit(TrackStatus, m.Track, m.Parameters.Tokens); rejection != nil {
		return rejection
	}
	t := s.relay.use(s.scope, m.Track)
	defer s.relay.release(t)
	ok := &wire.RequestOK{}
	t.mu.Lock()
	known := len(t.sources) > 0
	ok.Parameters.LargestObject, ok.Properties = t.largest, t.settings.properties
	t.mu.Unlock()
	if !known {
		publishers := s.relay.publishers(t)
		if len(publishers) == 0 {
			return &wire.Rejection{Code: wire.DoesNotExist, Text: "the track has no publisher"}
		}
		answer, rejection := publishers[0].askStatus(t)
		if rejection != nil {
			return rejection
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

// askStatus asks a publisher.
func (s *session) askStatus(t *track) (*wire.RequestOK, *wire.Rejection) {
	failed := &wire.Rejection{Code: wire.RequestTimeout, Text: "the publisher didn't answer"}
	r, err := s.open(true)
	if err != nil {
		return nil, failed
	}
	defer r.close()
	if r.send(&wire.TrackStatus{RequestID: s.newID(), Track: t.name}) != nil {
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
		if answer.Code != wire.RedirectRequest { // which isn't followed
			failed.Code, failed.Text = answer.Code, answer.Reason
		}
		return nil, failed
	}
	s.fail(violated("%T in answer to TRACK_STATUS", answer))
	return nil, failed
}
