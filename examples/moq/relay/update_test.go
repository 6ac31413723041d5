package relay

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// TestUpdate changes a subscription's filter and priority (§9.5.1).
func TestUpdate(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		c := a.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](c)
		old := p.opens(header(1, 5, 0)).send(items(0, 1, 10)...)
		v := a.views()
		v.has(items(0, 1, 10)...)
		// From the next group on: what is being sent of this one is reset.
		c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{
			LocationFilter:     wire.Some(wire.LocationFilter{Kind: wire.FilterRelative}),
			SubscriberPriority: wire.Some(uint8(3)),
		}})
		same(t, expect[*wire.RequestOK](c).Parameters.LargestObject, wire.Some(wire.Location{Group: 5}))
		v.isReset(wire.ResetCancelled)
		old.send(items(1, 1, 10)...)
		p.opens(header(1, 6, 0)).send(items(0, 1, 10)...).close()
		w := a.views()
		same(t, w.header.Group, 6)
		w.has(items(0, 1, 10)...)
		for _, t2 := range r.list() {
			t2.mu.Lock()
			same(t, t2.subs[0].urgency(), 3)
			t2.mu.Unlock()
		}
		until(t, "all has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 3 })
		// From the old group on again: what comes of it.
		c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{
			LocationFilter: wire.Some(wire.LocationFilter{})}})
		expect[*wire.RequestOK](c)
		old.send(items(2, 1, 10)...).close()
		w = a.views()
		same(t, w.header.Group, 5)
		w.has(items(2, 1, 10)...)
		w.ends()
		// An update that fails ends the subscription.
		c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{RangeFilters: []wire.RangeFilter{{
			Kind: wire.FilterObjectID}}}})
		same(t, expect[*wire.RequestError](c).Code, wire.InvalidFilter)
		same(t, expect[*wire.PublishDone](c).Code, wire.UpdateFailed)
		c.ends()
	})
}

// TestEarlyUpdate answers an update that comes before the subscription is established after SUBSCRIBE_OK.
func TestEarlyUpdate(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	c := a.call(&wire.Subscribe{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
		RendezvousTimeout: wire.Some(uint64(1 << 30))}},
		&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(false)}})
	until(t, "both have come", func() bool {
		for _, t2 := range r.list() {
			t2.mu.Lock()
			defer t2.mu.Unlock()
			return len(t2.waiting) == 1 && t2.waiting[0].early == 1
		}
		return false
	})
	pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1, Parameters: wire.Parameters{
		Forward: wire.Some(false)}})
	expect[*wire.RequestOK](pub)
	expect[*wire.SubscribeOK](c)
	expect[*wire.RequestOK](c)
	// The subscription is paused, so nothing is asked of the publisher.
	c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(true)}})
	same(t, expect[*wire.RequestUpdate](pub).Parameters, wire.Parameters{Forward: wire.Some(true)})
}

// TestNewGroup passes requests for new groups on, each once (§9.20.20).
func TestNewGroup(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	p.publishes("live")
	dynamic := properties(t, wire.Property{Type: wire.PropertyDynamicGroups, Value: 1})
	request := func(n uint64) wire.Parameters { return wire.Parameters{NewGroupRequest: wire.Some(n)} }
	c := a.subscribes(track0("live"), request(0))
	up, m := asked[*wire.Subscribe](p)
	same(t, m.Parameters, request(0))
	up.send(&wire.SubscribeOK{TrackAlias: 1, Properties: dynamic})
	expect[*wire.SubscribeOK](c)
	update := func(n uint64) {
		t.Helper()
		c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: request(n)})
		expect[*wire.RequestOK](c)
	}
	begin := func(group uint64) {
		t.Helper()
		p.opens(header(1, group, 0)).send(items(0, 1, 10)...).close()
		a.views().has(items(0, 1, 10)...)
	}
	update(0) // one is outstanding
	begin(4)
	update(4) // the group is there
	update(5)
	same(t, expect[*wire.RequestUpdate](up).Parameters, request(5))
	update(5)
	update(7) // while the first isn't answered
	up.send(&wire.RequestOK{})
	same(t, expect[*wire.RequestUpdate](up).Parameters, request(7))
	up.send(&wire.RequestOK{})
	begin(8)
	update(0)
	same(t, expect[*wire.RequestUpdate](up).Parameters, request(0))
}

// TestStateNotify learns from a publisher's PUBLISH_STATE_NOTIFY what the largest object is (§9.10).
func TestStateNotify(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
	expect[*wire.RequestOK](pub)
	at := wire.Some(wire.Location{Group: 7, Object: 3})
	pub.send(&wire.PublishStateNotify{Parameters: wire.Parameters{LargestObject: at}},
		&wire.RequestUpdate{RequestID: p.id()})
	expect[*wire.RequestOK](pub) // both have been handled
	same(t, expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{})).Parameters.LargestObject, at)
}
