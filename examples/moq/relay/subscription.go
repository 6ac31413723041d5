package relay

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A subscription is one of a peer to a track, by its SUBSCRIBE or by the relay's PUBLISH. The track's mutex guards it.
type subscription struct {
	track   *track
	session *session
	request *request
	offered bool        // by PUBLISH, which needs no answer
	timer   *time.Timer // while it waits for a publisher,
	until   time.Time   // at most until then; zero: not at all

	forward         bool
	priority        atomic.Uint32
	serial          uint64 // in which order subscriptions came
	order           wire.Optional[wire.GroupOrder]
	filter          wire.LocationFilter
	first, last     wire.Location // what passes the filter, both inclusive
	ranges          []wire.RangeFilter
	objects         objectFilter  // by ranges; nil: all pass
	objectTimeout   time.Duration // 0: none
	subgroupTimeout time.Duration
	withProperties  bool

	outgoing map[*outgoing]struct{}
	fills    map[*fetching]struct{}
	id       uint64           // of the request
	filling  *wire.Parameters // what SUBSCRIBE asked to be filled
	opened   uint64           // streams
	ending   *wire.PublishDone
	behind   time.Time // since when no stream was sent whole, and one was given up; zero: it keeps up
	gone     bool
	stats    SubscriptionStats

	established bool
	settled     chan struct{}                // is closed then, or when the subscription is over
	since       wire.Optional[wire.Location] // the largest object then
	early       int                          // REQUEST_UPDATEs that came before
}

// count counts, for the subscription and for its track.
func (u *subscription) count(f func(*SubscriptionStats)) {
	f(&u.stats)
	f(&u.track.sent)
	if r := u.track.relay; u.track.closed { // its counters were taken already
		r.mu.Lock()
		f(&r.past.Sent)
		r.mu.Unlock()
	}
}

// newSubscription returns a subscription with a request's parameters.
func newSubscription(r *request, p *wire.Parameters) *subscription {
	u := &subscription{
		session: r.session, request: r, forward: p.Forward.Or(true), order: p.GroupOrder,
		serial:         r.session.relay.counters.subscriptions.Add(1),
		withProperties: p.IncludeProperties.Or(true),
		outgoing:       map[*outgoing]struct{}{}, fills: map[*fetching]struct{}{}, filling: p.Fill,
		settled: make(chan struct{}),
	}
	u.priority.Store(128)
	r.session.quic.subscribe()
	u.set(p)
	return u
}

// urgency is the subscriber's priority: 0 is the most urgent.
func (u *subscription) urgency() uint32 { return u.priority.Load() }

// set takes the parameters that a subscriber may change.
func (u *subscription) set(p *wire.Parameters) {
	if p.SubscriberPriority.Present {
		u.priority.Store(uint32(p.SubscriberPriority.Value))
	}
	if p.LocationFilter.Present {
		u.filter = p.LocationFilter.Value
	}
	u.ranges = updateRanges(u.ranges, p.RangeFilters)
	if p.ObjectDeliveryTimeout.Present {
		u.objectTimeout = milliseconds(p.ObjectDeliveryTimeout.Value)
	}
	if p.SubgroupDeliveryTimeout.Present {
		u.subgroupTimeout = milliseconds(p.SubgroupDeliveryTimeout.Value)
	}
}

// subscribe takes a SUBSCRIBE until it is over (§9.6).
func (s *session) subscribe(r *request, m *wire.Subscribe) *wire.Rejection {
	rejection := s.admit(Subscribe, m.Track, m.Parameters.Tokens)
	if rejection == nil {
		rejection = checkFilters(nil, &m.Parameters)
	}
	if rejection != nil {
		return rejection
	}
	t := s.relay.use(s.scope, m.Track)
	defer s.relay.release(t)
	u := newSubscription(r, &m.Parameters)
	u.track, u.id = t, m.RequestID
	t.mu.Lock()
	if n := m.Parameters.NewGroupRequest; t.serves(s) {
		t.requestGroup(n)
	} else if n.Present {
		t.wanted = n
	}
	t.mu.Unlock()
	s.mu.Lock()
	s.subscriptions[u.id] = u
	close(s.more)
	s.more = make(chan struct{})
	s.mu.Unlock()
	defer s.forget(u)
	rendezvous := milliseconds(m.Parameters.RendezvousTimeout.Or(0))
	if rejection := t.subscribe(u, min(rendezvous, s.relay.config.Rendezvous)); rejection != nil {
		return rejection
	}
	r.updates(u.update, nil)
	t.leave(u)
	return nil
}

// forget forgets a subscription that is over.
func (s *session) forget(u *subscription) {
	s.mu.Lock()
	delete(s.subscriptions, u.id)
	s.mu.Unlock()
	u.track.mu.Lock()
	defer u.track.mu.Unlock()
	if !u.established {
		close(u.settled)
	}
}

// all passes every location.
var all = wire.Location{Group: 1<<64 - 1, Object: wire.WholeGroup}

// rangeOf returns what passes a filter, both ends inclusive (§9.20.10).
func rangeOf(f wire.LocationFilter, largest wire.Optional[wire.Location]) (start, end wire.Location) {
	l := largest.Value
	switch f.Kind {
	case wire.FilterRelative:
		if next := l.Group + 1; largest.Present && next > f.Start.Group {
			start.Group = next - f.Start.Group
		}
	case wire.FilterNextObject:
		if largest.Present {
			start = wire.Location{Group: l.Group, Object: l.Object + 1}
		}
	case wire.FilterStart:
		start = f.Start
	case wire.FilterGroups:
		return f.Start, wire.Location{Group: f.End.Group, Object: wire.WholeGroup}
	case wire.FilterRange:
		return f.Start, f.End
	}
	return start, all
}

// passes reports whether an object at a location is asked for.
func (u *subscription) passes(at wire.Location) bool { return !at.Less(u.first) && !u.last.Less(at) }

// answer answers the request: it is established.
func (u *subscription) answer() {
	t := u.track
	u.first, u.last = rangeOf(u.filter, t.largest)
	u.objects = newObjectFilter(u.ranges, t.settings.properties)
	u.since = t.largest
	if u.offered {
		return
	}
	ok := &wire.SubscribeOK{TrackAlias: t.alias, Parameters: wire.Parameters{LargestObject: t.largest}}
	if u.withProperties {
		ok.Properties = t.settings.properties
	}
	_ = u.request.send(ok)
	for range u.early {
		_ = u.request.send(&wire.RequestOK{})
	}
}

// begin has a subscription that is new get what comes, and before it what it wants filled, or else the largest group,
// as far as it is kept and asked for.
func (u *subscription) begin() {
	u.fill(u.id, u.filling)
	u.attach(u.filling == nil)
}

// attach has the subscription get what is kept of the largest group, if kept is true, and what comes of all subgroups
// that aren't whole.
func (u *subscription) attach(kept bool) {
	if !u.established {
		return
	}
	t := u.track
	for _, g := range t.groups {
		for _, sg := range g.subgroups {
			if !u.has(sg) {
				u.take(sg, kept && t.largest.Present && g.id == t.largest.Value.Group)
			}
		}
	}
}

// take has the subscription get a subgroup, which it doesn't get yet: what is kept of it, if kept is true, and what
// comes.
func (u *subscription) take(sg *subgroup, kept bool) {
	if !u.forward || u.gone || u.ending != nil {
		return
	}
	filter := u.passing(sg)
	if filter.none() {
		return
	}
	o := &outgoing{subscription: u, subgroup: sg, wake: make(chan struct{}, 1), limit: noLimit}
	if filter != nil {
		o.sieve = &sieve{filter: filter}
	}
	if kept {
		o.joinKept()
	}
	if o.joined || !sg.ended() {
		u.outgoing[o], sg.outgoing[o] = struct{}{}, struct{}{}
	}
	if o.joined {
		o.start()
	}
}

// has reports whether the subscription gets a subgroup, on a stream that isn't given up.
func (u *subscription) has(sg *subgroup) bool {
	for o := range sg.outgoing {
		if o.subscription == u && !o.isDropped() {
			return true
		}
	}
	return false
}

// end ends the subscription, after what it is being sent.
func (u *subscription) end(code wire.DoneCode, reason string) {
	if u.ending != nil {
		return
	}
	u.ending = &wire.PublishDone{Code: code, Reason: reason}
	for o := range u.outgoing {
		if !o.joined {
			o.forget()
		}
	}
	u.finish()
}

// keepsUp takes note of a stream that is over. A subscription that gets none whole for Config.Patience, while streams
// are given up since it takes too little, is ended as too far behind (§5.2, §12.4): it gets nothing that is of use.
func (u *subscription) keepsUp(whole bool, why reason) {
	switch {
	case whole:
		u.behind = time.Time{}
	case why != droppedBacklog && why != droppedExpired || u.ending != nil || u.gone:
	case u.behind.IsZero():
		u.behind = time.Now()
	case time.Since(u.behind) > u.session.relay.config.Patience:
		u.track.remove(u)
		for o := range u.outgoing {
			o.drop(droppedBehind)
		}
		for f := range u.fills {
			f.cancel(errCancelled)
		}
		u.end(wire.DoneTooFarBehind, "streams were given up for too long")
		u.track.unsubscribe()
	}
}

// finish sends PUBLISH_DONE if all streams have ended.
func (u *subscription) finish() {
	if u.ending == nil || len(u.outgoing) > 0 || len(u.fills) > 0 {
		return
	}
	u.ending.Streams = u.opened
	_ = u.request.send(u.ending)
	u.request.finish()
}

// update takes a REQUEST_UPDATE of the subscriber's (§9.5.1).
func (u *subscription) update(m *wire.RequestUpdate, rejection *wire.Rejection) *wire.Rejection {
	t, p := u.track, &m.Parameters
	if rejection == nil {
		rejection = checkFilters(u.ranges, p)
	}
	if rejection == nil && len(p.Tokens) > 0 {
		rejection = u.session.admit(Subscribe, t.name, p.Tokens)
	}
	if slices.ContainsFunc(p.RangeFilters, filtersTracks) {
		u.session.fail(violated("a filter of tracks in an update of a subscription"))
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if rejection != nil && !u.established {
		t.stopWaiting(u)
		u.request.refuse(rejection)
		return nil
	}
	if rejection != nil {
		_ = u.request.send(&wire.RequestError{Code: rejection.Code, Reason: rejection.Text})
		t.remove(u)
		for o := range u.outgoing {
			o.drop(droppedCancelled)
		}
		for f := range u.fills {
			f.cancel(errCancelled)
		}
		u.end(wire.UpdateFailed, rejection.Text)
		return nil
	}
	resumed := p.Forward.Or(false) && !u.forward
	u.forward = p.Forward.Or(u.forward)
	u.set(p)
	if p.SubscriberPriority.Present {
		u.session.rank()
	}
	if p.LocationFilter.Present {
		u.first, u.last = rangeOf(u.filter, t.largest)
	}
	refiltered := len(p.RangeFilters) > 0
	if refiltered {
		u.objects = newObjectFilter(u.ranges, t.settings.properties)
	}
	for o := range u.outgoing {
		switch {
		case !u.forward || !o.inRange():
			o.drop(droppedCancelled)
		case refiltered:
			o.refilter()
		}
	}
	if resumed || refiltered || p.LocationFilter.Present {
		u.attach(resumed && u.offered && u.session.upstream != nil) // a relay is to have what a late subscriber gets
	}
	if !u.established {
		u.early++
		return nil
	}
	u.fill(m.RequestID, p.Fill)
	t.requestGroup(p.NewGroupRequest)
	t.steer()
	_ = u.request.send(&wire.RequestOK{Parameters: wire.Parameters{LargestObject: t.largest}})
	return nil
}
