package relay

import (
	"context"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// older is a peer that speaks draft 18.
func older(http bool) options { return options{http: http, draft: wire.Draft18} }

// TestDrafts has publishers and subscribers of both drafts: each gets the same bytes.
func TestDrafts(t *testing.T) {
	for _, draft := range []wire.Draft{wire.Draft18, wire.Draft22} {
		t.Run(draft.ALPN(), func(t *testing.T) {
			r := start(t, nil)
			p := dial(t, r, options{draft: draft})
			p.publishes("live")
			subscribers := []*peer{dial(t, r, older(false)), dial(t, r, older(true)), dial(t, r, options{})}
			var calls []*call
			for i, a := range subscribers {
				calls = append(calls, a.subscribes(track0("live"), wire.Parameters{}))
				if i == 0 {
					publisher(p, 77, track0("live"), wire.SubscribeOK{})
				}
				expect[*wire.SubscribeOK](calls[i])
			}
			p.opens(header(77, 3, 1)).send(items(0, 3, 100)...).close()
			var all []byte
			for _, a := range subscribers {
				v := a.views()
				v.has(items(0, 3, 100)...)
				v.ends()
				if all == nil {
					all = v.all
				}
				same(t, v.all, all)
			}
		})
	}
}

// TestDuplicate refuses a second subscription of a session to a track, in draft 18 alone.
func TestDuplicate(t *testing.T) {
	r := start(t, nil)
	p, a, b := dial(t, r, older(false)), dial(t, r, older(false)), dial(t, r, options{})
	publish := func() *call {
		return p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
	}
	same(t, expect[*wire.RequestOK](publish()).Parameters, wire.Parameters{Forward: wire.Some(true)})
	publish().fails(wire.DuplicateSubscription)
	expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
	a.subscribes(track0("live"), wire.Parameters{}).fails(wire.DuplicateSubscription)
	expect[*wire.RequestOK](a.call(&wire.SubscribeTracks{RequestID: a.id(), Prefix: wire.Namespace{"live"}}))
	a.none()
	expect[*wire.SubscribeOK](b.subscribes(track0("live"), wire.Parameters{}))
	expect[*wire.SubscribeOK](b.subscribes(track0("live"), wire.Parameters{}))
}

// TestPublishOK has the answer to PUBLISH say what is wanted, in draft 18.
func TestPublishOK(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, older(false)), dial(t, r, older(false))
	paused := wire.Parameters{Forward: wire.Some(false)}
	c := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1, Parameters: paused})
	same(t, expect[*wire.RequestOK](c).Parameters, paused)
	waits := a.subscribes(track0("other"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1 << 30))})
	until(t, "it waits", func() bool { return len(r.Stats().Tracks) == 2 && r.Stats().Tracks[1].Waiting == 1 })
	d := p.call(&wire.Publish{RequestID: p.id(), Track: track0("other"), TrackAlias: 2, Parameters: paused})
	same(t, expect[*wire.RequestOK](d).Parameters, wire.Parameters{Forward: wire.Some(true)})
	expect[*wire.SubscribeOK](waits)

	f := a.call(&wire.SubscribeTracks{RequestID: a.id(), Prefix: wire.Namespace{"live"}, Parameters: paused})
	expect[*wire.RequestOK](f)
	up, m := asked[*wire.Publish](a)
	same(t, m.Parameters, paused)
	up.send(&wire.RequestOK{Parameters: wire.Parameters{SubscriberPriority: wire.Some(uint8(7))}})
	same(t, expect[*wire.RequestUpdate](c).Parameters, wire.Parameters{Forward: wire.Some(true)})
	for _, t2 := range r.list() {
		t2.mu.Lock()
		for _, u := range t2.subs {
			if want := map[bool]uint32{true: 7, false: 128}[u.offered]; u.urgency() != want {
				t.Errorf("the priority is %d, not %d", u.urgency(), want)
			}
		}
		t2.mu.Unlock()
	}
}

// TestJoin has fetches of draft 18 join subscriptions: they get what precedes them (draft 18, section 10.12.2).
func TestJoin(t *testing.T) {
	for _, http := range []bool{false, true} {
		r, p, live := history(t)
		p.serves()
		a := dial(t, r, older(http))
		subscribe, fetch := a.id(), a.id()
		// The FETCH comes first.
		join := func(id uint64, j wire.Joining) *call { return a.call(&wire.Fetch{RequestID: id, Joining: &j}) }
		c := join(fetch, wire.Joining{Relative: true, RequestID: subscribe, Start: 1})
		s := a.call(&wire.Subscribe{RequestID: subscribe, Track: track0("live"), Parameters: wire.Parameters{
			LocationFilter: wire.Some(wire.LocationFilter{Kind: wire.FilterNextObject})}})
		expect[*wire.SubscribeOK](s)
		same(t, expect[*wire.FetchOK](c).End, wire.Location{Group: 5})
		fourth := []got{{group: 4, payload: "a"}, {group: 4, id: 1, payload: "b"}, {group: 4, id: 2, payload: "c"},
			{group: 4, id: 5, payload: "f"}, {group: 5, payload: "x"}}
		all, err := a.fetched(fetch, false)
		if err != nil {
			t.Fatal(err)
		}
		same(t, all, fourth)
		live.send(text(1, "y")).close()
		a.views().has(text(1, "y"))
		// Later, the range is the same.
		fetch = a.id()
		c = join(fetch, wire.Joining{RequestID: subscribe, Start: 4})
		expect[*wire.FetchOK](c)
		if all, err = a.fetched(fetch, false); err != nil {
			t.Fatal(err)
		}
		same(t, all, fourth)
		s.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(false)}})
		expect[*wire.RequestOK](s)
		join(a.id(), wire.Joining{RequestID: subscribe, Start: 4}).fails(wire.InvalidRange)
		join(a.id(), wire.Joining{RequestID: 998}).fails(wire.InvalidJoiningRequestID)
		_ = p.conn.CloseWithError(0, "")
	}
}

// TestFetchDrafts asks a publisher of another draft: a range that draft 18 can say, and a marker that it has.
func TestFetchDrafts(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, older(false)), dial(t, r, options{})
	p.publishes("live")
	a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(from(1, 0))}})
	_, m := asked[*wire.Fetch](p)
	f := m.Parameters.LocationFilter.Value
	same(t, []wire.Location{f.Start, {Group: f.End.Group}}, []wire.Location{{Group: 1}, {Group: 1<<64 - 1}})

	p, a = dial(t, r, options{}), dial(t, r, older(false))
	p.publishes("other")
	id := a.id()
	c := a.call(&wire.Fetch{RequestID: id, Track: track0("other"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(wire.LocationFilter{
			Kind: wire.FilterRange, Start: wire.Location{Group: 1}, End: wire.Location{Group: 2, Object: 3}})}})
	up, m := asked[*wire.Fetch](p)
	up.send(&wire.FetchOK{End: wire.Location{Group: 2, Object: 3}})
	same(t, expect[*wire.FetchOK](c).End, wire.Location{Group: 2, Object: 3})
	w := wire.Fetched{Draft: wire.Draft22}
	b := wire.AppendFetchHeader(nil, m.RequestID)
	for _, o := range []wire.FetchObject{
		{Group: 1, ID: 7, Length: 0}, {EndOfRange: wire.TimedOut, Group: 2, ID: 1}, {Group: 2, ID: 3, Length: 0},
	} {
		var err error
		if b, err = w.Append(b, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.writeUni(b).Close(); err != nil {
		t.Fatal(err)
	}
	all, err := a.fetched(id, false)
	if err != nil {
		t.Fatal(err)
	}
	same(t, all, []got{{group: 1, id: 7}, {end: wire.Unknown, group: 2, id: 1}, {group: 2, id: 3}})
}

// TestDrainOlder says in draft 18 which requests GOAWAY is about.
func TestDrainOlder(t *testing.T) {
	r := start(t, func(c *Config) { c.Grace = time.Hour })
	p := dial(t, r, older(false))
	p.publishes("live")
	p.publishes("other")
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(context.Background()) }()
	<-p.messages // SETUP
	same(t, (<-p.messages).(*wire.GoAway).RequestID, wire.Some(uint64(4)))
	_ = p.conn.CloseWithError(0, "")
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
}
