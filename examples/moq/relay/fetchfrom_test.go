package relay

import (
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// fetches sends FETCH for the live track, and expects FETCH_OK.
func (p *peer) fetches(parameters wire.Parameters) (id uint64, c *call) {
	p.t.Helper()
	id = p.id()
	c = p.call(&wire.Fetch{RequestID: id, Track: track0("live"), Parameters: parameters})
	expect[*wire.FetchOK](c)
	return id, c
}

// gets reads the fetch stream of a request to its FIN.
func (p *peer) gets(id uint64, descending bool, want ...got) {
	p.t.Helper()
	all, err := p.fetched(id, descending)
	if err != nil {
		p.t.Fatal(err)
	}
	same(p.t, all, want)
}

// TestFetchPieces asks a publisher for what is missing alone, and puts it where it belongs. What the publisher has said
// is known then, and isn't asked again (§7.5, §9.11).
func TestFetchPieces(t *testing.T) {
	for _, tt := range []struct {
		name       string
		subscriber options
		order      wire.GroupOrder
	}{
		{"ascending", options{}, wire.Ascending}, {"descending", options{http: true}, wire.Descending},
		{"draft 18", older(false), wire.Ascending}, {"draft 18, descending", older(true), wire.Descending},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, p, _ := history(t)
			u := p.serves(got{group: 1, id: 1, payload: "past"}, got{group: 3, id: 3, payload: "d"},
				got{group: 3, id: 7, payload: "h"}, got{group: 4, id: 4, payload: "e", datagram: true})
			a := dial(t, r, tt.subscriber)
			filter := wire.Parameters{GroupOrder: wire.Some(tt.order), LocationFilter: wire.Some(wire.LocationFilter{
				Kind: wire.FilterRange, Start: wire.Location{Group: 3}, End: wire.Location{Group: 5}})}
			third := []got{{group: 3, payload: "a"}, {group: 3, id: 1, payload: "b"}, {group: 3, id: 2, payload: "c"},
				{group: 3, id: 3, payload: "d"}, {group: 3, id: 5, payload: "f"}, {group: 3, id: 7, payload: "h"}}
			fourth := []got{{group: 4, payload: "a"}, {group: 4, id: 1, payload: "b"}, {group: 4, id: 2, payload: "c"},
				{group: 4, id: 4, payload: "e", datagram: true}, {group: 4, id: 5, payload: "f"}}
			all := append(append(third, fourth...), got{group: 5, payload: "x"})
			asked := gaps
			if tt.order == wire.Descending {
				all = append(append([]got{{group: 5, payload: "x"}}, fourth...), third...)
				asked = []span{gaps[2], gaps[3], gaps[0], gaps[1]}
			}
			for i := range 2 {
				id, c := a.fetches(filter)
				a.gets(id, tt.order == wire.Descending, all...)
				c.ends()
				if i == 0 {
					u.ranges(asked...)
				}
			}
			u.ranges()
			// What precedes is asked for in one piece, in the same order.
			filter.LocationFilter = wire.Some(wire.LocationFilter{
				Kind: wire.FilterRange, Start: wire.Location{Group: 1}, End: wire.Location{Group: 3}})
			id, _ := a.fetches(filter)
			want := []got{{group: 1, id: 1, payload: "past"}, third[0]}
			if tt.order == wire.Descending {
				want = []got{want[1], want[0]}
			}
			a.gets(id, tt.order == wire.Descending, want...)
			u.ranges(span{wire.Location{Group: 1}, wire.Location{Group: 2, Object: wire.WholeGroup}})
		})
	}
}

// TestFetchRest asks another publisher for what the first one doesn't say, from there on.
func TestFetchRest(t *testing.T) {
	r, p, _ := history(t)
	q, a := dial(t, r, older(false)), dial(t, r, options{})
	expect[*wire.RequestOK](q.call(&wire.Publish{RequestID: q.id(), Track: track0("live"), TrackAlias: 1}))
	u := q.serves(got{group: 3, id: 3, payload: "wrong"}, got{group: 3, id: 4, payload: "e"})
	id, _ := a.fetches(wire.Parameters{LocationFilter: wire.Some(wire.LocationFilter{
		Kind: wire.FilterRange, Start: wire.Location{Group: 3, Object: 2}, End: wire.Location{Group: 3, Object: 5}})})
	up, m := asked[*wire.Fetch](p)
	same(t, m.Parameters.LocationFilter.Value.Start, wire.Location{Group: 3, Object: 3})
	up.send(&wire.FetchOK{End: wire.Location{Group: 3, Object: 4}})
	w := wire.Fetched{Draft: wire.Draft22}
	b, err := w.Append(wire.AppendFetchHeader(nil, m.RequestID), wire.FetchObject{Group: 3, ID: 3, Length: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := p.writeUni(append(b, 'd'))
	v := <-a.streams
	for len(v.buf) < len("..")+len(".....c")+len("...d") {
		if err := v.more(); err != nil {
			t.Fatal(err)
		}
	}
	s.CancelWrite(0)
	a.streams <- v
	a.gets(id, false, got{group: 3, id: 2, payload: "c"}, got{group: 3, id: 3, payload: "d"},
		got{group: 3, id: 4, payload: "e"}, got{group: 3, id: 5, payload: "f"})
	u.ranges(within(3, 4, 4))
}

// TestFillTimeout doesn't wait longer for a publisher than the subscriber does (§9.20.6): what hasn't come then is
// marked, and what is kept goes on.
func TestFillTimeout(t *testing.T) {
	for _, tt := range []struct {
		o       options
		timeout uint64
		end     wire.EndOfRange
	}{
		{options{}, 0, wire.TimedOut}, {options{http: true}, 100, wire.TimedOut}, {older(false), 0, wire.Unknown},
		{older(true), 100, wire.Unknown},
	} {
		r, p, live := history(t)
		one := live.object(text(1, "payload"))
		live.write(one[:len(one)-3])
		until(t, "it has begun", func() bool { return r.Stats().Tracks[0].Received.Objects == 12 })
		a := dial(t, r, tt.o)
		id, c := a.fetches(wire.Parameters{
			FillTimeout: wire.Some(tt.timeout), LocationFilter: wire.Some(wire.LocationFilter{
				Kind:  wire.FilterRange,
				Start: wire.Location{Group: 4, Object: 2}, End: wire.Location{Group: 5, Object: 9}})})
		timedOut := func(group, id uint64) got { return got{end: tt.end, group: group, id: id} }
		a.gets(id, false, got{group: 4, id: 2, payload: "c"}, timedOut(4, 4), got{group: 4, id: 5, payload: "f"},
			timedOut(4, 8), got{group: 5, payload: "x"}, timedOut(5, 1))
		c.ends()
		asked := len(p.requests) > 0
		if asked != (tt.timeout > 0) {
			t.Errorf("a publisher was asked: %v", asked)
		}
	}
}

// TestFetchLate has the time end while a publisher sends: what has come of it counts.
func TestFetchLate(t *testing.T) {
	r, p, _ := history(t)
	a := dial(t, r, options{})
	id, _ := a.fetches(wire.Parameters{FillTimeout: wire.Some(uint64(300)),
		LocationFilter: wire.Some(wire.LocationFilter{
			Kind: wire.FilterRange, Start: wire.Location{Group: 4, Object: 5}, End: wire.Location{Group: 5}})})
	up, m := asked[*wire.Fetch](p)
	up.send(&wire.FetchOK{End: wire.Location{Group: 4, Object: 8}})
	w := wire.Fetched{Draft: wire.Draft22}
	b, err := w.Append(wire.AppendFetchHeader(nil, m.RequestID), wire.FetchObject{Group: 4, ID: 7, Length: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := p.writeUni(append(b, 'h'))
	a.gets(id, false, got{group: 4, id: 5, payload: "f"}, got{group: 4, id: 7, payload: "h"},
		got{end: wire.TimedOut, group: 4, id: 8}, got{group: 5, payload: "x"})
	select {
	case <-s.Context().Done():
	case <-time.After(patience):
		t.Fatal("the publisher's stream isn't stopped")
	}
}

// TestFetchFilters leaves out what doesn't pass, of what is kept and of what is asked for; gaps say nothing then.
func TestFetchFilters(t *testing.T) {
	r, p, _ := history(t)
	p.serves(got{group: 3, id: 3, payload: "d"}, got{group: 3, id: 4, payload: "e", datagram: true},
		got{group: 4, id: 3, payload: "d"}, got{end: wire.Unknown, group: 4, id: 4})
	a := dial(t, r, options{})
	id, _ := a.fetches(wire.Parameters{
		LocationFilter: wire.Some(wire.LocationFilter{
			Kind: wire.FilterRange, Start: wire.Location{Group: 3}, End: wire.Location{Group: 4, Object: 5}}),
		RangeFilters: []wire.RangeFilter{passing(wire.FilterObjectID, 2, 5), passing(wire.FilterSubgroup, 0, 0)},
	})
	a.gets(id, false, got{group: 3, id: 2, payload: "c"}, got{group: 3, id: 3, payload: "d"},
		got{group: 4, id: 2, payload: "c"}, got{group: 4, id: 3, payload: "d"},
		got{end: wire.Unknown, group: 4, id: 4})
	a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: filtered(
		wire.RangeFilter{Kind: wire.FilterObjectID})}).fails(wire.InvalidFilter)
}

// TestFetchDatagrams serves objects of datagrams, which have no subgroup.
func TestFetchDatagrams(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r, p, _ := history(t)
		u := p.serves()
		for i, d := range []wire.Datagram{
			{Payload: []byte("zero")}, {Object: 1, Payload: []byte("one")}, {Object: 3, Payload: []byte("three"),
				Properties: properties(t, wire.Property{Type: wire.PropertyPriorObjectIDGap, Value: 1})},
			{Object: 4, EndOfGroup: true},
		} {
			d.TrackAlias, d.Group = 1, 6
			b, err := d.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.conn.SendDatagram(b); err != nil {
				t.Fatal(err)
			}
			until(t, "it has come", func() bool { return r.Stats().Tracks[0].Received.Datagrams == uint64(i+1) })
		}
		a := dial(t, r, o)
		id, _ := a.fetches(wire.Parameters{LocationFilter: wire.Some(from(5, 0))})
		a.gets(id, false, got{group: 5, payload: "x"}, got{group: 6, payload: "zero", datagram: true},
			got{group: 6, id: 1, payload: "one", datagram: true},
			got{group: 6, id: 3, payload: "three", datagram: true}, got{group: 6, id: 4, datagram: true})
		u.ranges(within(5, 1, wire.WholeGroup))
		if r.Stats().Cached == 0 {
			t.Fatal("nothing is counted")
		}
		_ = p.conn.CloseWithError(0, "")
		_ = a.conn.CloseWithError(0, "")
		until(t, "nothing is kept of what isn't in use", func() bool { return r.Stats().Cached == 0 })
	})
}

// TestFillMissing asks a publisher for what is missing in a range that is filled. If nothing of it is known, the stream
// is reset after its header (§3.4.1).
func TestFillMissing(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r, p, _ := history(t)
		a := dial(t, r, o)
		fill := func(f wire.LocationFilter) (id uint64) {
			t.Helper()
			id = a.id()
			expect[*wire.SubscribeOK](a.call(&wire.Subscribe{RequestID: id, Track: track0("live"),
				Parameters: wire.Parameters{Fill: &wire.Parameters{LocationFilter: wire.Some(f)},
					LocationFilter: wire.Some(wire.LocationFilter{Kind: wire.FilterRelative})}}))
			return id
		}
		one := func(group uint64) wire.LocationFilter {
			at := wire.Location{Group: group}
			return wire.LocationFilter{Kind: wire.FilterGroups, Start: at, End: at}
		}
		id := fill(one(2))
		up, _ := asked[*wire.Fetch](p)
		up.send(&wire.RequestError{Code: wire.NotSupported})
		v := <-a.streams
		same(t, v.all, wire.AppendFetchHeader(nil, id))
		v.resets(wire.ResetUnknownObjectStatus)
		u := p.serves(got{group: 2, payload: "past"}, got{group: 3, id: 4, payload: "e"})
		a.gets(fill(one(2)), false, got{group: 2, payload: "past"})
		u.ranges(within(2, 0, wire.WholeGroup))
		a.gets(fill(one(3)), false, got{group: 3, payload: "a"}, got{group: 3, id: 1, payload: "b"},
			got{group: 3, id: 2, payload: "c"}, got{group: 3, id: 4, payload: "e"}, got{group: 3, id: 5, payload: "f"})
		u.ranges(gaps[0], gaps[1])
	})
}

// resets expects that nothing more comes, but a reset.
func (v *viewed) resets(code wire.ResetCode) {
	v.t.Helper()
	if err := v.more(); !isReset(err, code) {
		v.t.Fatalf("%v instead of a reset with %#x", err, code)
	}
}

// TestFetchPriority ranks fetch streams among the others: by the subscriber's priority, and the publisher's of the
// object that they are at. A fill comes before the streams of its group (§5.1.2).
func TestFetchPriority(t *testing.T) {
	s := &session{outgoing: map[*outgoing]struct{}{}, served: map[*fetching]struct{}{}}
	u := &subscription{serial: 1, order: wire.Some(wire.Ascending)}
	u.priority.Store(10)
	fetch := func(serial uint64, priority, publisher uint8, group uint64) *fetching {
		f := &fetching{
			wanted: wanted{order: wire.Ascending}, serial: serial, priority: priority, publisher: publisher,
			group: group, stream: ranked{}, urgency: -1,
		}
		s.served[f] = struct{}{}
		return f
	}
	fill := fetch(1, 99, 5, 4)
	fill.of, fill.inherits, fill.ordered = u, true, wire.Ascending
	behind := fetch(1, 99, 5, 1)
	behind.of, behind.inherits, behind.ordered = u, true, wire.Descending
	earlier, same4 := queued(s, u, 5, 3, 0), queued(s, u, 5, 4, 0)
	urgent, lazy := fetch(2, 9, 200, 0), fetch(3, 10, 6, 0)
	check := func(want map[*int8]int8) {
		t.Helper()
		s.assign()
		for got, w := range want {
			if *got != w {
				t.Fatalf("urgency %d instead of %d", *got, w)
			}
		}
	}
	check(map[*int8]int8{
		&urgent.urgency: 3, &earlier.urgency: 4, &fill.urgency: 5, &same4.urgency: 6, &behind.urgency: 7,
		&lazy.urgency: 7,
	})
	delete(s.served, behind)
	s.place(lazy, 4, 0) // its next object is more urgent to the publisher
	check(map[*int8]int8{
		&urgent.urgency: 3, &lazy.urgency: 4, &earlier.urgency: 5, &fill.urgency: 6, &same4.urgency: 7,
	})
}

// TestFetchUpdate changes a fetch's priority; an update that fails resets its stream (§9.5.1).
func TestFetchUpdate(t *testing.T) {
	r, p, _ := history(t)
	a := dial(t, r, options{})
	id := a.id()
	c := a.call(&wire.Fetch{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(from(2, 0)), SubscriberPriority: wire.Some(uint8(4))}},
		&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{SubscriberPriority: wire.Some(uint8(9))}})
	expect[*wire.FetchOK](c)
	expect[*wire.RequestOK](c)
	for _, t2 := range r.list() {
		t2.mu.Lock()
		for f := range t2.fetches {
			f.session.mu.Lock()
			same(t, f.priority, 9)
			f.session.mu.Unlock()
		}
		same(t, len(t2.fetches), 1)
		t2.mu.Unlock()
	}
	up, m := asked[*wire.Fetch](p)
	up.send(&wire.FetchOK{End: wire.Location{Group: 2, Object: wire.WholeGroup}})
	w := wire.Fetched{Draft: wire.Draft22}
	b, err := w.Append(wire.AppendFetchHeader(nil, m.RequestID), wire.FetchObject{Group: 2, ID: 7, Length: 9})
	if err != nil {
		t.Fatal(err)
	}
	p.writeUni(append(b, 'h'))
	v := <-a.streams
	token := wire.Token{AliasType: wire.UseValue, Value: "x"}
	c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Tokens: []wire.Token{token, token}}})
	same(t, expect[*wire.RequestError](c).Code, wire.RequestMalformedToken)
	for err = nil; err == nil; err = v.more() {
	}
	if !isReset(err, wire.ResetCancelled) {
		t.Fatal(err)
	}
	a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live")},
		&wire.RequestUpdate{RequestID: a.id(), Parameters: filtered(passing(wire.FilterObjectID, 0, 0))})
	a.closes(wire.ProtocolViolation)
}

// TestFetchFits keeps what was fetched while there is room, and drops it before what was live.
func TestFetchFits(t *testing.T) {
	r := &Relay{config: Config{TrackCache: 3 * (singleCharged + 100), Cache: 1 << 20}}
	live := &track{relay: r, byID: map[uint64]*group{}, sources: []*source{{}}}
	object := func(group uint64) *single {
		return &single{FetchObject: wire.FetchObject{Group: group}, payload: make([]byte, 100)}
	}
	live.hold(live.group(9), object(9))
	for group := range uint64(5) {
		live.holdFetched(object(group))
	}
	ids := func() (all []uint64) {
		for _, g := range live.groups {
			all = append(all, g.id)
		}
		return all
	}
	same(t, ids(), []uint64{1, 0, 9})
	live.hold(live.group(10), object(10))
	live.trim()
	same(t, ids(), []uint64{0, 9, 10})
	same(t, r.cached.Load(), int64(live.cached))
	live.forget()
	same(t, r.cached.Load(), 0)
}
