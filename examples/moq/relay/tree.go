package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A track in a tree of relays. Publishers among the clients of this relay go first; an upstream relay is asked only for
// a track that none of them has, and one at a time. What comes from upstream relays goes to clients, never to another
// upstream relay. The track's mutex guards all of it.

// needed reports whether a client subscribes to the track.
func (t *track) needed() bool {
	client := func(u *subscription) bool { return u.session.upstream == nil }
	return slices.ContainsFunc(t.subs, client) || slices.ContainsFunc(t.waiting, client)
}

// serves reports whether a publisher is there for a peer.
func (t *track) serves(to *session) bool {
	return slices.ContainsFunc(t.sources, func(src *source) bool { return reaches(src.session, to) })
}

// awaits reports whether a publisher that is being asked may serve a peer, or an upstream relay that is to come.
func (t *track) awaits(to *session) bool {
	for p := range t.asking {
		if reaches(p, to) {
			return true
		}
	}
	return t.held != nil && to.upstream == nil
}

// provided reports whether the track has a publisher that stays, or one is being asked.
func (t *track) provided() bool {
	stays := func(p *session) bool { return p.upstream == nil || !p.departing() }
	for p := range t.asking {
		if stays(p) {
			return true
		}
	}
	return slices.ContainsFunc(t.sources, func(src *source) bool { return stays(src.session) })
}

// seek asks an upstream relay for a track that clients subscribe to, and no publisher here has: the first one that
// hasn't refused. If none is connected, subscriptions wait for Config.Patience.
func (t *track) seek() {
	if !t.needed() || t.provided() {
		return
	}
	r := t.relay
	connecting := false
	for _, u := range r.upstreams {
		if _, refused := t.tried[u]; refused || u.scope != t.key.scope {
			continue
		}
		r.mu.Lock()
		s := u.usable()
		r.mu.Unlock()
		if s != nil {
			t.ask(s)
			return
		}
		connecting = true
	}
	if connecting && t.held == nil {
		var held *time.Timer
		held = time.AfterFunc(r.config.Patience, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.held == held {
				t.release()
				t.settle(unreachable(), true, wire.DoneInternalError, "the upstream relay is gone")
			}
		})
		t.held = held
	}
}

func unreachable() *wire.RequestError {
	return &wire.RequestError{Code: wire.RequestTimeout, Reason: "no upstream relay can be reached"}
}

// release has no subscription wait for an upstream relay any more.
func (t *track) release() {
	if t.held != nil {
		t.held.Stop()
		t.held = nil
	}
}

// refusedBy takes note of an upstream relay's refusal. It is asked again if it has gone meanwhile, or if a subscriber
// wants to wait for a publisher for longer than the relay was asked to.
func (t *track) refusedBy(src *source, absent bool) {
	p := src.session
	longer := absent && slices.ContainsFunc(t.waiting, func(u *subscription) bool {
		return u.session.upstream == nil && u.until.After(src.until)
	})
	if !p.departing() && !longer {
		if t.tried == nil {
			t.tried = map[*upstream]struct{}{}
		}
		t.tried[p.upstream] = struct{}{}
	}
}

// maxQuestions is how many requests about a track may wait for upstream relays' answers. If upstreams form a cycle,
// requests go around it no more often.
const maxQuestions = 16

// question has a request about the track wait for others, if it is for an upstream relay; answered is called when it is
// answered, and may be called twice.
func (t *track) question(p *session) (answered func(), ok bool) {
	if p.upstream == nil {
		return func() {}, true
	}
	select {
	case t.questions <- struct{}{}:
		return sync.OnceFunc(func() { <-t.questions }), true
	case <-time.After(t.relay.config.Patience):
		return nil, false
	case <-p.ctx.Done():
		return nil, false
	}
}

// askEach asks publishers of a track until one doesn't refuse, and then upstream relays if above is true. It returns
// the last refusal.
func (s *session) askEach(
	t *track, publishers []*session, above bool, ask func(*session) *wire.RequestError,
) *wire.RequestError {
	refused := &wire.RequestError{Code: wire.DoesNotExist, Reason: "the track has no publisher"}
	for _, p := range publishers {
		if refused = ask(p); refused == nil {
			return nil
		}
	}
	if s.upstream != nil || !above {
		return refused
	}
	relays, some := s.relay.aboves(s.ctx, s.scope)
	if some && len(relays) == 0 {
		return unreachable()
	}
	for _, p := range relays {
		if refused = ask(p); refused == nil {
			return nil
		}
	}
	return refused
}

// isAbsent reports whether a refusal says that there is no publisher, for which subscribers may want to wait.
func isAbsent(e *wire.RequestError) bool {
	return e.Code == wire.DoesNotExist || e.Code == wire.RequestTimeout
}

// settle ends the subscriptions which no publisher is left for: those that wait get e, unless patient is true and they
// want to wait for longer.
func (t *track) settle(e *wire.RequestError, patient bool, code wire.DoneCode, reason string) {
	t.waiting = slices.DeleteFunc(t.waiting, func(u *subscription) bool {
		if t.awaits(u.session) || t.serves(u.session) {
			return false
		}
		u.stopTimer()
		if left := time.Until(u.until); patient && left > 0 {
			u.timer = time.AfterFunc(left, func() { t.giveUp(u) })
			return false
		}
		answer := downstream(e, u.session)
		if patient && !u.until.IsZero() {
			answer = &wire.RequestError{Code: wire.RequestTimeout, Reason: "no publisher came in time"}
		}
		u.request.refuseWith(answer)
		return true
	})
	for _, u := range slices.Clone(t.subs) {
		if !t.awaits(u.session) && !t.serves(u.session) {
			t.remove(u)
			u.end(code, reason)
		}
	}
}

// downstream is a refusal as a peer gets it: an upstream relay isn't redirected, since a client's redirect may name no
// URI (§9.4.1).
func downstream(e *wire.RequestError, to *session) *wire.RequestError {
	if e.Redirect != nil && to.upstream != nil {
		return &wire.RequestError{Code: wire.DoesNotExist, Reason: "the publisher redirects to another relay"}
	}
	return e
}

// lost seeks another publisher after one has gone, unless it has ended the track, and ends subscriptions that none is
// left for.
func (t *track) lost(src *source, code wire.DoneCode, reason string) {
	if t.relay.closing.Load() {
		return // a relay below, which has subscribed, waits for this one to come back
	}
	p := src.session
	gone := src.done == nil && (p.upstream == nil || p.departing())
	asked := src.done != nil && src.done.Code == wire.DoneGoingAway && (src.request.goaway || p.departing())
	if gone || p.upstream != nil && asked {
		t.tried, t.ending = nil, nil
		if p.upstream == nil {
			t.ending = &wire.PublishDone{Code: code, Reason: reason}
		}
		t.seek()
	}
	t.settle(&wire.RequestError{Code: wire.DoesNotExist, Reason: reason}, true, code, reason)
}

// wantedUntil is how long the relay asks an upstream relay to wait for a publisher: as long as a subscriber does, and
// for Config.Patience if subscriptions are to go on that an upstream relay served (§9.20.7).
func (t *track) wantedUntil() time.Time {
	until := time.Now()
	if len(t.subs) > 0 && t.ending == nil {
		until = until.Add(t.relay.config.Patience)
	}
	for _, u := range t.waiting {
		if u.session.upstream == nil && u.until.After(until) {
			until = u.until
		}
	}
	return until
}

// rendezvous is what is left until a time, as the parameter of a SUBSCRIBE.
func rendezvous(until time.Time) wire.Optional[uint64] {
	left := time.Until(until)
	if left <= 0 {
		return wire.Optional[uint64]{}
	}
	return wire.Some(uint64((left + time.Millisecond - 1) / time.Millisecond))
}

// superfluous reports whether an upstream subscription isn't needed any more when it is answered: a publisher here has
// the track, or the same relay has published it.
func (t *track) superfluous(src *source) bool {
	return src.dropped || src.session.upstream != nil && slices.ContainsFunc(t.sources, func(other *source) bool {
		return other.session.upstream == nil || other.session == src.session
	})
}

// succeed has an upstream subscription go on for those that it replaces: of an upstream relay that is leaving, or of
// any, if a publisher here has the track.
func (t *track) succeed(src *source) {
	replaces := func(p *session) bool {
		return p.upstream != nil && p != src.session && (src.session.upstream == nil || p.departing())
	}
	t.abandonIf(replaces)
	for _, other := range slices.Clone(t.sources) {
		if replaces(other.session) && !other.retired {
			other.retire()
		}
	}
}

// abandon cancels a SUBSCRIBE that isn't answered yet.
func (t *track) abandon(src *source) {
	delete(t.asking, src.session)
	src.dropped = true
	if src.request != nil {
		src.request.cancel()
	}
}

// cutOff waits for the end of a session with an upstream relay, if that may be why there is no answer: WebTransport
// resets streams before.
func (src *source) cutOff() {
	src.track.mu.Lock()
	dropped := src.dropped
	src.track.mu.Unlock()
	if src.session.upstream != nil && src.session.over && !dropped {
		src.session.ends()
	}
}

// abandonIf cancels the SUBSCRIBEs of some publishers that aren't answered yet.
func (t *track) abandonIf(some func(p *session) bool) {
	for p, src := range t.asking {
		if some(p) {
			t.abandon(src)
		}
	}
}

// retire ends a subscription that another one replaces: each of its streams goes on, until one of the other source has
// come as far.
func (src *source) retire() {
	src.retired = true
	time.AfterFunc(lateStreams, func() { // until then, streams may come that the other source doesn't have
		src.track.mu.Lock()
		defer src.track.mu.Unlock()
		src.ripe = true
		src.depart()
	})
}

// depart ends a subscription that retires if none of its streams is forwarded any more.
func (src *source) depart() {
	if !src.ripe || src.over.Load() {
		return
	}
	for in := range src.open {
		if in.subgroup != nil {
			return
		}
	}
	src.cancel()
}

// takeOver has the stream take the place of one of a source that retires, if that one is between two objects, and this
// one has come as far. It waits for the end of an object; the track's mutex isn't held meanwhile.
func (in *incoming) takeOver(o *wire.Object) {
	t := in.source.track
	for !in.source.retired {
		_, p := in.progress()
		old := p.live
		if old == nil || old == in || !old.source.retired || o.ID < p.last || old.subgroup.above != nil ||
			old.parser.Header.Properties != in.parser.Header.Properties {
			return
		}
		if old.settled {
			in.subgroup, in.size, in.settled = old.subgroup, old.subgroup.size, true
			in.last, in.cut = p.last, true
			p.live, old.subgroup = in, nil
			old.source.depart()
			return
		}
		more := old.subgroup.next()
		t.mu.Unlock()
		in.leave()
		select {
		case <-more:
		case <-in.session.ctx.Done():
		}
		t.mu.Lock()
		if in.session.ctx.Err() != nil {
			return
		}
	}
}

// unfinish has an object that was cut off be forwarded again if it comes again.
func (in *incoming) unfinish(p *progress) {
	sg := in.subgroup
	if in.settled {
		return
	}
	p.began, p.last, p.normal = in.before.began, in.before.last, in.before.normal
	if n := len(sg.objects); n > 0 && sg.objects[n-1].end > sg.size {
		sg.objects = sg.objects[:n-1]
	}
}
