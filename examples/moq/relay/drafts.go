package relay

import (
	"context"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// drafts are those that sessions may speak, the preferred one first. Objects are the same in both, and so are most
// messages: what differs is here, and in package wire.
var drafts = []wire.Draft{wire.Draft22, wire.Draft18}

// draftOf returns the draft of an ALPN that was negotiated.
func draftOf(protocol string) wire.Draft {
	return drafts[slices.IndexFunc(drafts, func(d wire.Draft) bool { return d.ALPN() == protocol })]
}

// setupMessage is the relay's SETUP.
func (s *session) setupMessage() *wire.Setup {
	m := &wire.Setup{Implementation: implementation, MaxAuthTokenCacheSize: maxTokens}
	if s.draft != wire.Draft18 {
		m.MaxRequestUpdates, m.MaxFilterRanges = maxUpdates, maxRanges
	}
	if s.upstream != nil {
		s.upstream.setupOptions(s, m)
	}
	return m
}

// goAwayMessage asks the peer to leave. In draft 18, it says from which request on none may have been processed.
func (s *session) goAwayMessage() *wire.GoAway {
	m := &wire.GoAway{Timeout: uint64(s.relay.config.Grace.Milliseconds())}
	if s.draft == wire.Draft18 {
		next := 1 - s.nextID%2 // the peer's first
		if n := len(s.used); n > 0 {
			next += 2 * s.used[n-1].end
		}
		m.RequestID = wire.Some(next)
	}
	return m
}

// publishOK answers a PUBLISH. In draft 18, it says whether objects are wanted; else REQUEST_UPDATE does.
func (src *source) publishOK() *wire.RequestOK {
	m := &wire.RequestOK{}
	if src.session.draft == wire.Draft18 {
		if want := src.track.wantsForward(src.session); want && !src.forward {
			src.forward, src.raised = true, true
		}
		m.Parameters.Forward = wire.Some(src.forward)
	}
	return m
}

// publishParameters are those of a PUBLISH to a subscriber that has sent SUBSCRIBE_TRACKS with some.
func (s *session) publishParameters(t *track, p *wire.Parameters) wire.Parameters {
	out := wire.Parameters{Forward: p.Forward, LargestObject: t.largest}
	if s.draft != wire.Draft18 { // there, they are the subscriber's to send in PUBLISH_OK
		out.SubscriberPriority, out.GroupOrder = p.SubscriberPriority, p.GroupOrder
		out.LocationFilter = p.LocationFilter
		out.ObjectDeliveryTimeout, out.SubgroupDeliveryTimeout = p.ObjectDeliveryTimeout, p.SubgroupDeliveryTimeout
	}
	return out
}

// acceptedWith takes the parameters of a subscriber's PUBLISH_OK.
func (u *subscription) acceptedWith(p *wire.Parameters) {
	if u.session.draft == wire.Draft18 {
		u.forward = p.Forward.Or(true)
		u.order = p.GroupOrder
		u.set(p)
	}
}

// subscribed reports whether a session has a subscription to the track. In draft 18, it may have one.
func (t *track) subscribed(s *session) bool {
	has := func(u *subscription) bool { return u.session == s }
	return slices.ContainsFunc(t.subs, has) || slices.ContainsFunc(t.waiting, has)
}

// duplicate refuses a second subscription of a session in one direction, which draft 18 doesn't have.
func duplicate(s *session, is bool) *wire.Rejection {
	if s.draft == wire.Draft18 && is {
		return &wire.Rejection{Code: wire.DuplicateSubscription, Text: "the session has a subscription to the track"}
	}
	return nil
}

// upstream is a FETCH for a publisher of some draft: draft 18 needs a start and an end.
func (f *fetching) upstream(p *session, id uint64, c *course) *wire.Fetch {
	out := &wire.Fetch{RequestID: id, Track: f.track.name}
	left := wire.LocationFilter{Kind: wire.FilterRange, Start: c.at, End: c.last}
	if f.descending() {
		left.Start, left.End = c.first, c.leave(c.at.Group)
		out.Parameters.GroupOrder = wire.Some(wire.Descending)
	}
	out.Parameters.LocationFilter = wire.Some(left)
	if m := f.asks; m != nil {
		out.Parameters.FillTimeout = m.Parameters.FillTimeout
		if p.draft != wire.Draft18 && m.Joining == nil {
			out.Parameters.LocationFilter = m.Parameters.LocationFilter
		}
	}
	return out
}

// joined returns the subscription that a FETCH of draft 18 joins, as soon as that is established.
func (s *session) joined(j *wire.Joining) (*subscription, *wire.Rejection) {
	missing := &wire.Rejection{Code: wire.InvalidJoiningRequestID, Text: "no subscription has this request ID"}
	ctx, cancel := context.WithTimeout(s.ctx, s.relay.config.Patience)
	defer cancel()
	late := time.After(lateStreams)
	var u *subscription
	for u == nil { // its SUBSCRIBE may come after the FETCH
		s.mu.Lock()
		more := s.more
		u = s.subscriptions[j.RequestID]
		s.mu.Unlock()
		if u != nil {
			break
		}
		select {
		case <-more:
		case <-late:
			return nil, missing
		case <-ctx.Done():
			return nil, missing
		}
	}
	select {
	case <-u.settled:
	case <-ctx.Done():
		return nil, missing
	}
	u.track.mu.Lock()
	defer u.track.mu.Unlock()
	switch {
	case !u.established:
		return nil, missing
	case !u.forward || !u.since.Present:
		return nil, &wire.Rejection{Code: wire.InvalidRange, Text: "the subscription has nothing to be joined with"}
	}
	return u, nil
}

// joins sets the range that precedes a subscription (draft 18, section 10.12.2).
func (w *wanted) joins(u *subscription, j *wire.Joining) {
	w.last = u.since.Value
	w.first = wire.Location{Group: j.Start}
	if j.Relative {
		w.first.Group = w.last.Group - min(w.last.Group, j.Start)
	}
}
