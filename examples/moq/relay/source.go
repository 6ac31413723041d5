package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/webtransport"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// lateStreams is how long streams of a subscription may come after its PUBLISH_DONE, at least (§9.9).
const lateStreams = time.Second

// A source is an upstream subscription of a track, established by the relay's SUBSCRIBE or by the peer's PUBLISH. The
// track's mutex guards it.
type source struct {
	track     *track
	session   *session
	request   *request
	published bool // by PUBLISH
	followed  bool // a PUBLISH has come beside the relay's SUBSCRIBE
	alias     uint64

	forward  bool // as the publisher knows it
	raised   bool // the relay has asked for it
	update   wire.Parameters
	updating bool                   // a REQUEST_UPDATE isn't answered
	pending  bool                   // update is to be sent
	streams  uint64                 // that have come
	open     map[*incoming]struct{} // of these, those that are being received
	done     *wire.PublishDone
	over     atomic.Bool     // it isn't one of the track's any more
	until    time.Time       // an upstream relay is asked to wait for a publisher until then
	dropped  bool            // it isn't to be established any more
	retired  bool            // another one replaces it,
	ripe     bool            // for long enough
	timer    *time.Timer     // after done
	early    []earlyDatagram // that came before the alias was known
}

// ask sends SUBSCRIBE to a publisher, unless it was sent one.
func (t *track) ask(p *session) {
	if _, ok := t.asking[p]; ok {
		return
	}
	for _, src := range t.sources {
		if src.session == p {
			return
		}
	}
	forward := t.wantsForward(p)
	src := &source{track: t, session: p, forward: forward, raised: forward, open: map[*incoming]struct{}{}}
	t.asking[p] = src
	parameters := wire.Parameters{NewGroupRequest: t.wanted}
	if !forward {
		parameters.Forward = wire.Some(false)
	}
	if p.upstream != nil {
		src.until = t.wantedUntil()
		parameters.RendezvousTimeout = rendezvous(src.until)
	}
	r := t.relay
	r.mu.Lock()
	t.users++ // this is called for one that uses it
	r.mu.Unlock()
	r.running.Go(func() {
		defer r.release(t)
		if e := src.subscribe(parameters); e != nil {
			t.refused(src, e)
		}
	})
}

// subscribe asks for the track until the subscription is over. It returns the publisher's refusal.
func (src *source) subscribe(parameters wire.Parameters) *wire.RequestError {
	t, s := src.track, src.session
	failed := &wire.RequestError{Code: wire.RequestInternalError, Reason: "the publisher can't be asked"}
	request, err := s.open(true)
	if err != nil {
		return failed
	}
	defer request.close()
	t.mu.Lock()
	src.request = request
	dropped, wait := src.dropped, max(time.Until(src.until), 0)
	t.mu.Unlock()
	m := &wire.Subscribe{RequestID: s.newID(), Track: t.name, Parameters: parameters}
	if dropped || request.send(m) != nil {
		return failed
	}
	_ = request.stream.SetReadDeadline(time.Now().Add(wait + s.relay.config.Patience))
	answer, err := request.next()
	if err != nil {
		src.cutOff()
		failed.Code, failed.Reason = wire.RequestTimeout, "the publisher didn't answer"
		return failed
	}
	_ = request.stream.SetReadDeadline(time.Time{})
	switch answer := answer.(type) {
	case *wire.RequestError:
		return answer
	case *wire.SubscribeOK:
		if kind, ok := answer.Properties.Mandatory(); ok {
			return unsupported(kind)
		}
		t.mu.Lock()
		superfluous := t.superfluous(src)
		t.mu.Unlock()
		if superfluous {
			return failed
		}
		if err := s.name(answer.TrackAlias, src); err != nil {
			s.fail(err)
			return failed
		}
		if src.establish(answer.Properties, answer.Parameters.LargestObject) {
			src.serve()
		}
		return nil
	}
	s.fail(violated("%v in answer to SUBSCRIBE", answer.Type()))
	return failed
}

// unsupported refuses a track with a mandatory property, none of which the relay knows (§3.6).
func unsupported(kind uint64) *wire.RequestError {
	return &wire.RequestError{Code: wire.UnsupportedExtension,
		Reason: "the track has a mandatory property that the relay doesn't know: " + fmt.Sprintf("%#x", kind)}
}

// publish takes a PUBLISH until its subscription is over (§9.8).
func (s *session) publish(r *request, m *wire.Publish) *wire.Rejection {
	if rejection := s.admit(Publish, m.Track, m.Parameters.Tokens); rejection != nil {
		return rejection
	}
	if kind, ok := m.Properties.Mandatory(); ok {
		e := unsupported(kind)
		return &wire.Rejection{Code: e.Code, Text: e.Reason}
	}
	t := s.relay.use(s.scope, m.Track)
	defer s.relay.release(t)
	t.mu.Lock()
	rejection := duplicate(s, slices.ContainsFunc(t.sources, func(src *source) bool { return src.session == s }))
	has := s.upstream != nil && t.provided()
	for _, src := range append(slices.Collect(maps.Values(t.asking)), t.sources...) {
		src.followed = src.followed || has && src.session == s
	}
	t.mu.Unlock()
	if rejection != nil && !has {
		return rejection
	}
	src := &source{
		track: t, session: s, request: r, published: true, forward: m.Parameters.Forward.Or(true),
		open: map[*incoming]struct{}{},
	}
	waiting := t.waiters()
	if has { // clients that follow it get it from where it comes already
		s.relay.offer(src, waiting)
		return &wire.Rejection{Code: wire.Uninterested, Text: "the relay has the track already"}
	}
	if err := s.name(m.TrackAlias, src); err != nil {
		s.fail(err)
		return nil
	}
	src.establish(m.Properties, m.Parameters.LargestObject)
	s.relay.offer(src, waiting) // now that those who follow it from now on find it
	src.serve()
	return nil
}

// name makes an alias the one of a track of the peer's (§3.1.2).
func (s *session) name(alias uint64, src *source) *wire.Error {
	s.mu.Lock()
	if other := s.aliases[alias]; other != nil && other.track != src.track && !other.over.Load() {
		s.mu.Unlock()
		return &wire.Error{Code: wire.DuplicateTrackAlias, Text: "a track has the alias of another one"}
	}
	src.alias = alias
	s.aliases[alias] = src
	close(s.aliased)
	s.aliased = make(chan struct{})
	src.early = s.takeEarly(alias)
	s.mu.Unlock()
	s.quic.openDoor()
	return nil
}

// source returns the source of an alias. It waits for one that isn't known yet, since its message may be late; nil
// means that it didn't come.
func (s *session) source(alias uint64) *source {
	timeout := time.NewTimer(lateStreams)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		src, more := s.aliases[alias], s.aliased
		s.mu.Unlock()
		if src != nil {
			return src
		}
		select {
		case <-more:
		case <-timeout.C:
			return nil
		case <-s.ctx.Done():
			return nil
		}
	}
}

// establish makes a source one of its track's, and answers a PUBLISH.
// It reports whether it is one: a SUBSCRIBE may have been abandoned.
func (src *source) establish(p wire.Properties, largest wire.Optional[wire.Location]) bool {
	t := src.track
	t.mu.Lock()
	defer t.mu.Unlock()
	if src.dropped {
		return false
	}
	t.learn(p, largest)
	if src.published {
		_ = src.request.send(src.publishOK())
	}
	t.established(src)
	return true
}

// serve takes a source's messages until the subscription is over.
func (src *source) serve() {
	t := src.track
	for _, d := range src.early {
		src.datagram(d)
	}
	src.early = nil
	update := src.updated
	if !src.published {
		update = nil // what the relay asked for, the relay changes
	}
	src.request.updates(update, src.handle)
	t.mu.Lock()
	done := src.done
	t.mu.Unlock()
	if done == nil {
		code, reason := src.cause()
		t.ended(src, code, reason)
	}
}

// cause says why a subscription has ended without PUBLISH_DONE.
func (src *source) cause() (code wire.DoneCode, reason string) {
	var raw *quic.ApplicationError
	var http *webtransport.Error
	if src.session.over { // its streams are reset before its end is known
		src.session.ends()
	}
	err := context.Cause(src.session.ctx)
	if errors.As(err, &raw) && raw.ErrorCode == 0 || errors.As(err, &http) && http.Code == 0 {
		return wire.TrackEnded, "the publisher has left"
	}
	return wire.DoneInternalError, "the publisher's subscription was cut off"
}

// updated takes a REQUEST_UPDATE of the publisher's, which changes nothing that the relay goes by.
func (src *source) updated(m *wire.RequestUpdate, rejection *wire.Rejection) *wire.Rejection {
	t := src.track
	if rejection == nil && len(m.Parameters.Tokens) > 0 {
		rejection = src.session.admit(Publish, t.name, m.Parameters.Tokens)
	}
	if rejection != nil {
		return rejection
	}
	if m.Parameters.Forward.Present {
		t.mu.Lock()
		src.forward = m.Parameters.Forward.Value
		t.steer()
		t.mu.Unlock()
	}
	_ = src.request.send(&wire.RequestOK{})
	return nil
}

// handle takes the publisher's messages; it reports whether one is expected.
func (src *source) handle(m wire.Message) bool {
	t := src.track
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m := m.(type) {
	case *wire.PublishDone:
		if src.done != nil {
			return false
		}
		src.finish(m)
		return true
	case *wire.PublishStateNotify:
		if l := m.Parameters.LargestObject; l.Present {
			t.see(l.Value)
		}
		return true
	case *wire.RequestOK, *wire.RequestError: // a publisher that refuses ends the subscription (§9.5.1)
		if !src.updating {
			return false
		}
		src.updating = false
		if ok, is := m.(*wire.RequestOK); is && ok.Parameters.LargestObject.Present {
			t.see(ok.Parameters.LargestObject.Value)
		}
		if src.pending {
			src.sendUpdate()
		}
		return true
	}
	return false
}

// setForward asks the publisher to send objects, or to stop if it was the relay that asked.
func (src *source) setForward(want bool) {
	if src.forward == want || !want && !src.raised {
		return
	}
	src.forward, src.raised = want, want
	src.update.Forward = wire.Some(want)
	src.sendUpdate()
}

func (src *source) requestGroup(n wire.Optional[uint64]) {
	src.update.NewGroupRequest = n
	src.sendUpdate()
}

// sendUpdate sends what is to be changed, once the last change is answered.
func (src *source) sendUpdate() {
	if src.pending = src.updating; src.pending || src.done != nil {
		return
	}
	src.updating = true
	_ = src.request.send(&wire.RequestUpdate{RequestID: src.session.newID(), Parameters: src.update})
	src.update = wire.Parameters{}
}

// cancel ends the relay's own subscription.
func (src *source) cancel() {
	src.stop()
	src.request.cancel()
}

// finish takes PUBLISH_DONE: the subscription ends when all its streams have, or after a while.
func (src *source) finish(m *wire.PublishDone) {
	src.done = m
	src.request.finish()
	if src.complete() {
		return
	}
	t := src.track
	wait := max(lateStreams, t.settings.objectTimeout, t.settings.subgroupTimeout)
	src.timer = time.AfterFunc(min(wait, t.relay.config.Patience), func() { t.ended(src, m.Code, m.Reason) })
}

// complete ends a subscription of which all streams have ended; it reports whether it has.
func (src *source) complete() bool {
	if src.done == nil || len(src.open) > 0 || src.streams < src.done.Streams {
		return false
	}
	if src.stop() {
		src.track.lost(src, src.done.Code, src.done.Reason)
	}
	return true
}

// stop removes a source from its track, and stops its streams. It reports whether it was there. Its alias is known for
// a while, so that streams that are late are stopped at once.
func (src *source) stop() bool {
	t, s := src.track, src.session
	i := slices.Index(t.sources, src)
	if i < 0 {
		return false
	}
	t.sources = slices.Delete(t.sources, i, i+1)
	src.over.Store(true)
	if src.timer != nil {
		src.timer.Stop()
	}
	for in := range src.open {
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	}
	time.AfterFunc(lateStreams, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.aliases[src.alias] == src {
			delete(s.aliases, src.alias)
		}
	})
	return true
}
