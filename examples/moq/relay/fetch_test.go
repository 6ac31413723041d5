package relay

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A got is what a fetch stream carries: an object, or a marker.
type got struct {
	end       wire.EndOfRange
	group, id uint64
	payload   string
	datagram  bool
}

// fetched reads the next stream, which has to be the fetch stream of a request, to its end.
func (p *peer) fetched(id uint64, descending bool) (all []got, err error) {
	p.t.Helper()
	var v *viewed
	select {
	case v = <-p.streams:
	case <-time.After(patience):
		p.t.Fatal("no stream has come")
	}
	parser := wire.Fetched{Draft: p.draft, Descending: descending}
	for begun := false; ; {
		if !begun {
			got, n, err := wire.ParseFetchHeader(v.buf)
			if err == nil {
				same(p.t, got, id)
				v.buf, begun = v.buf[n:], true
				continue
			}
		} else {
			before := parser
			o, n, err := parser.Next(v.buf)
			if err == nil && uint64(len(v.buf)-n) >= o.Length {
				payload := string(v.buf[n : n+int(o.Length)])
				all = append(all, got{o.EndOfRange, o.Group, o.ID, payload, o.Datagram})
				v.buf = v.buf[n+int(o.Length):]
				continue
			}
			if err != nil && !errors.Is(err, wire.ErrIncomplete) {
				p.t.Fatal(err)
			}
			parser = before
		}
		if err := v.more(); err != nil {
			if errors.Is(err, io.EOF) && len(v.buf) == 0 {
				return all, nil
			}
			return all, err
		}
	}
}

// text is an object of a test.
func text(id uint64, payload string) item { return item{id: id, payload: []byte(payload)} }

// history has a relay know of a track: groups 3 and 4, whole, of two subgroups, and the first object of group 5.
func history(t *testing.T) (r *Relay, p *peer, live *flow) {
	t.Helper()
	r = start(t, nil)
	p = dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
	for group := uint64(3); group < 5; group++ {
		p.opens(header(1, group, 0)).send(text(0, "a"), text(2, "c"), item{id: 9, status: wire.EndOfGroup}).close()
		p.opens(header(1, group, 1)).send(text(1, "b"), text(5, "f")).close()
	}
	live = p.opens(header(1, 5, 0)).send(text(0, "x"))
	until(t, "all has come", func() bool {
		s := r.Stats().Tracks[0].Received
		return s.Objects == 11 && s.Streams == 5
	})
	until(t, "the groups have ended", func() bool {
		for _, t := range r.list() {
			t.mu.Lock()
			defer t.mu.Unlock()
			return !t.byID[3].live() && !t.byID[4].live()
		}
		return false
	})
	return r, p, live
}

// A fetched is a publisher that answers FETCH.
type fetched struct {
	p     *peer
	asked chan wire.Parameters
}

// serves has a peer answer FETCH with those of some objects that are in the range, in their order.
func (p *peer) serves(objects ...got) *fetched {
	u := &fetched{p, make(chan wire.Parameters, 64)}
	go func() {
		for c := range p.requests {
			m := c.first.(*wire.Fetch)
			u.asked <- m.Parameters
			filter := m.Parameters.LocationFilter.Value
			c.send(&wire.FetchOK{End: filter.End})
			p.fetchStream(m, filter, objects)
		}
	}()
	return u
}

func (p *peer) fetchStream(m *wire.Fetch, filter wire.LocationFilter, objects []got) {
	w := wire.Fetched{Draft: p.draft, Descending: m.Parameters.GroupOrder.Value == wire.Descending}
	b := wire.AppendFetchHeader(nil, m.RequestID)
	for _, o := range objects {
		at := wire.Location{Group: o.group, Object: o.id}
		if at.Less(filter.Start) || filter.End.Less(at) {
			continue
		}
		var err error
		if b, err = w.Append(b, wire.FetchObject{
			EndOfRange: o.end, Group: o.group, ID: o.id, Datagram: o.datagram, Length: uint64(len(o.payload)),
		}); err != nil {
			panic(err)
		}
		b = append(b, o.payload...)
	}
	_ = p.writeUni(b).Close()
}

// ranges expects that the publisher was asked for ranges, and for nothing else.
func (u *fetched) ranges(want ...span) {
	u.p.t.Helper()
	for _, s := range want {
		select {
		case p := <-u.asked:
			same(u.p.t, p.LocationFilter.Value, wire.LocationFilter{
				Kind: wire.FilterRange, Start: s.first, End: s.last})
		case <-time.After(patience):
			u.p.t.Fatal("the publisher wasn't asked")
		}
	}
	select {
	case p := <-u.asked:
		u.p.t.Fatalf("the publisher was asked for %+v too", p.LocationFilter.Value)
	default:
	}
}

// gaps are what isn't known of the history.
var gaps = []span{within(3, 3, 4), within(3, 6, 8), within(4, 3, 4), within(4, 6, 8)}

// within is a range in a group.
func within(group, first, last uint64) span {
	return span{wire.Location{Group: group, Object: first}, wire.Location{Group: group, Object: last}}
}

func from(group, object uint64) wire.LocationFilter {
	return wire.LocationFilter{Kind: wire.FilterStart, Start: wire.Location{Group: group, Object: object}}
}

// TestFetch serves FETCH from what is kept, across subgroups and in both orders (§9.11). A publisher is asked for what
// isn't known, and says that there is nothing.
func TestFetch(t *testing.T) {
	third := []got{{group: 3, payload: "a"}, {group: 3, id: 1, payload: "b"}, {group: 3, id: 2, payload: "c"},
		{group: 3, id: 5, payload: "f"}}
	fourth := []got{{group: 4, payload: "a"}, {group: 4, id: 1, payload: "b"}, {group: 4, id: 2, payload: "c"},
		{group: 4, id: 5, payload: "f"}}
	fifth := []got{{group: 5, payload: "x"}}
	join := func(runs ...[]got) (all []got) {
		for _, r := range runs {
			all = append(all, r...)
		}
		return all
	}
	at := func(group, object uint64) wire.Location { return wire.Location{Group: group, Object: object} }
	for _, tt := range []struct {
		name   string
		filter wire.LocationFilter
		order  wire.GroupOrder
		end    wire.Location
		want   []got
	}{
		{"from a group on", from(3, 0), wire.Ascending, at(5, 0), join(third, fourth, fifth)},
		{"from within", from(3, 2), wire.Ascending, at(5, 0), join(third[2:], fourth, fifth)},
		{"descending", from(3, 0), wire.Descending, at(5, 0), join(fifth, fourth, third)},
		{"a group", wire.LocationFilter{Kind: wire.FilterGroups, Start: at(3, 0), End: at(3, 0)}, wire.Ascending,
			at(3, wire.WholeGroup), third},
		{"a range", wire.LocationFilter{Kind: wire.FilterRange, Start: at(3, 1), End: at(4, 1)}, wire.Ascending,
			at(4, 1), join(third[1:], fourth[:2])},
		{"the current group", wire.LocationFilter{Kind: wire.FilterRelative, Start: at(1, 0)}, wire.Ascending,
			at(5, 0), fifth},
		{"nothing there", wire.LocationFilter{Kind: wire.FilterRange, Start: at(3, 3), End: at(3, 4)}, wire.Ascending,
			at(3, 4), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, o options) {
				r, p, _ := history(t)
				p.serves()
				a := dial(t, r, o)
				c := a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
					LocationFilter: wire.Some(tt.filter), GroupOrder: wire.Some(tt.order)}})
				same(t, *expect[*wire.FetchOK](c), wire.FetchOK{End: tt.end})
				got, err := a.fetched(0, tt.order == wire.Descending)
				if err != nil {
					t.Fatal(err)
				}
				same(t, got, tt.want)
				c.ends()
			})
		})
	}
}

// TestFetchRefused refuses what isn't there.
func TestFetchRefused(t *testing.T) {
	r, _, _ := history(t)
	a := dial(t, r, options{})
	fetch := func(name string, f wire.LocationFilter) *call {
		return a.call(&wire.Fetch{RequestID: a.id(), Track: track0(name), Parameters: wire.Parameters{
			LocationFilter: wire.Some(f)}})
	}
	fetch("live", from(5, 1)).fails(wire.InvalidRange)
	fetch("other", from(0, 0)).fails(wire.DoesNotExist)
}

// TestFetchUnknown marks what isn't kept as unknown if the publisher refuses to say more, which is asked once
// (§11.4.1.2).
func TestFetchUnknown(t *testing.T) {
	r, p, live := history(t)
	live.send(text(4, "y"))
	until(t, "it has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 12 })
	live.stream.CancelWrite(0)
	p.opens(header(1, 6, 0)).send(text(0, "z")).close()
	until(t, "it has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 13 })
	a := dial(t, r, options{})
	c := a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(from(2, 1))}})
	up, m := asked[*wire.Fetch](p)
	same(t, m.Parameters.LocationFilter, wire.Some(wire.LocationFilter{
		Kind: wire.FilterRange, Start: wire.Location{Group: 2, Object: 1},
		End: wire.Location{Group: 2, Object: wire.WholeGroup}}))
	up.send(&wire.RequestError{Code: wire.NotSupported})
	same(t, expect[*wire.FetchOK](c).End, wire.Location{Group: 6})
	all, err := a.fetched(0, false)
	if err != nil {
		t.Fatal(err)
	}
	unknown := func(group, id uint64) got { return got{end: wire.Unknown, group: group, id: id} }
	same(t, all, []got{
		unknown(2, wire.WholeGroup), {group: 3, payload: "a"}, {group: 3, id: 1, payload: "b"},
		{group: 3, id: 2, payload: "c"}, unknown(3, 4), {group: 3, id: 5, payload: "f"}, unknown(3, 8),
		{group: 4, payload: "a"}, {group: 4, id: 1, payload: "b"}, {group: 4, id: 2, payload: "c"}, unknown(4, 4),
		{group: 4, id: 5, payload: "f"}, unknown(4, 8), {group: 5, payload: "x"}, unknown(5, 3),
		{group: 5, id: 4, payload: "y"}, unknown(5, wire.WholeGroup), {group: 6, payload: "z"},
	})
	id := a.id()
	c = a.call(&wire.Fetch{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(from(2, 1)), GroupOrder: wire.Some(wire.Descending)}})
	up, _ = asked[*wire.Fetch](p)
	up.send(&wire.RequestError{Code: wire.NotSupported})
	expect[*wire.FetchOK](c)
	if all, err = a.fetched(id, true); err != nil {
		t.Fatal(err)
	}
	same(t, all[0], got{group: 6, payload: "z"})
	// What is known not to exist is set apart from what isn't known.
	same(t, all[len(all)-2:], []got{
		{end: wire.NonExistent, group: 3, id: wire.WholeGroup}, unknown(2, wire.WholeGroup)})
}

// TestFetchUpstream has a publisher serve what isn't kept: its answer and its stream are handed on.
func TestFetchUpstream(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		p.publishes("live")
		extra := properties(t, wire.Property{Type: 0x3c00, Value: 7})
		for _, tt := range []struct {
			end  func(s sendStream)
			code wire.ResetCode // 0: the stream ends
		}{
			{func(s sendStream) { _ = s.Close() }, 0},
			{func(s sendStream) { s.CancelWrite(quic.StreamErrorCode(wire.ResetUnknownObjectStatus)) },
				wire.ResetUnknownObjectStatus},
		} {
			id := a.id()
			c := a.call(&wire.Fetch{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
				LocationFilter: wire.Some(from(1, 0)), SubscriberPriority: wire.Some(uint8(4))}})
			up, m := asked[*wire.Fetch](p)
			same(t, m.Parameters, wire.Parameters{LocationFilter: wire.Some(from(1, 0))})
			ok := &wire.FetchOK{End: wire.Location{Group: 1, Object: 9}, EndOfTrack: true, Properties: extra}
			up.send(ok)
			same(t, expect[*wire.FetchOK](c), ok)
			f := wire.Fetched{Draft: wire.Draft22}
			b, err := f.Append(wire.AppendFetchHeader(nil, m.RequestID), wire.FetchObject{Group: 1, ID: 7, Length: 3})
			if err != nil {
				t.Fatal(err)
			}
			s := p.writeUni(b)
			if _, err := s.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			if tt.code == 0 {
				tt.end(s)
				all, err := a.fetched(id, false)
				if err != nil {
					t.Fatal(err)
				}
				same(t, all, []got{{group: 1, id: 7, payload: "abc"}})
				c.ends()
				continue
			}
			// What the publisher has cut off isn't known.
			v := <-a.streams
			for len(v.buf) < len(b)+3 {
				if err := v.more(); err != nil {
					t.Fatal(err)
				}
			}
			tt.end(s)
			a.streams <- v
			all, err := a.fetched(id, false)
			if err != nil {
				t.Fatal(err)
			}
			same(t, all[len(all)-1], got{end: wire.Unknown, group: 1, id: 9})
			c.ends()
		}
		// A fetch that is cancelled is cancelled upstream.
		c := a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live")})
		up, m := asked[*wire.Fetch](p)
		up.send(&wire.FetchOK{End: wire.Location{Group: 1}})
		expect[*wire.FetchOK](c)
		s := p.writeUni(wire.AppendFetchHeader(nil, m.RequestID))
		c.cancel()
		select {
		case <-s.Context().Done():
		case <-time.After(patience):
			t.Fatal("the stream isn't stopped")
		}
		// One that contradicts the draft closes the publisher's session alone.
		c = a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live")})
		up, m = asked[*wire.Fetch](p)
		up.send(&wire.FetchOK{End: wire.Location{Group: 1}})
		expect[*wire.FetchOK](c)
		p.writeUni(append(wire.AppendFetchHeader(nil, m.RequestID), 0))
		p.closes(wire.ProtocolViolation)
		a.none()
	})
}

// TestFill has a subscriber join with what precedes (§3.4): a fill fetch stream up to the largest object, and what
// comes then on other streams. The stream counts.
func TestFill(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r, p, live := history(t)
		p.serves()
		a := dial(t, r, o)
		id := a.id()
		c := a.call(&wire.Subscribe{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
			LocationFilter: wire.Some(wire.LocationFilter{Kind: wire.FilterNextObject}),
			Fill: &wire.Parameters{LocationFilter: wire.Some(wire.LocationFilter{
				Kind: wire.FilterRelative, Start: wire.Location{Group: 2}})},
		}})
		expect[*wire.SubscribeOK](c)
		all, err := a.fetched(id, false)
		if err != nil {
			t.Fatal(err)
		}
		want := []got{{group: 4, payload: "a"}, {group: 4, id: 1, payload: "b"}, {group: 4, id: 2, payload: "c"},
			{group: 4, id: 5, payload: "f"}, {group: 5, payload: "x"}}
		same(t, all, want)
		live.send(text(1, "y")).close()
		v := a.views()
		v.has(text(1, "y"))
		v.ends()
		// Once more, by an update; without FILL_PARAMETERS, nothing is filled.
		c.send(&wire.RequestUpdate{RequestID: a.id()})
		expect[*wire.RequestOK](c)
		id = a.id()
		c.send(&wire.RequestUpdate{RequestID: id, Parameters: wire.Parameters{Fill: &wire.Parameters{
			LocationFilter: wire.Some(from(5, 0))}}})
		expect[*wire.RequestOK](c)
		all, err = a.fetched(id, false)
		if err != nil {
			t.Fatal(err)
		}
		same(t, all, []got{{group: 5, payload: "x"}, {group: 5, id: 1, payload: "y"}})
		_ = p.conn.CloseWithError(0, "")
		same(t, expect[*wire.PublishDone](c).Streams, uint64(3))
	})
}

// TestFetchIncomplete waits for the rest of an object, or for the end of its stream.
func TestFetchIncomplete(t *testing.T) {
	for _, resets := range []bool{false, true} {
		r, p, live := history(t)
		p.serves()
		one := live.object(text(1, "payload"))
		live.write(one[:len(one)-3])
		until(t, "it has begun", func() bool { return r.Stats().Tracks[0].Received.Objects == 12 })
		a := dial(t, r, options{})
		c := a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
			LocationFilter: wire.Some(from(5, 0))}})
		same(t, expect[*wire.FetchOK](c).End, wire.Location{Group: 5, Object: 1})
		want := []got{{group: 5, payload: "x"}, {group: 5, id: 1, payload: "payload"}}
		if resets {
			live.stream.CancelWrite(0)
			want = want[:1] // the publisher says that there is no such object
		} else {
			live.write(one[len(one)-3:])
		}
		all, err := a.fetched(0, false)
		if err != nil {
			t.Fatal(err)
		}
		same(t, all, want)
	}
}
