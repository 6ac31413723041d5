package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// TestMalformed has objects contradict one another (§12.1, §7.1, §10.8, §10.9): the subscription that has them is
// cancelled, those of subscribers end, and so do fetches.
func TestMalformed(t *testing.T) {
	gap := func(typ, n uint64) wire.Properties { return properties(t, wire.Property{Type: typ, Value: n}) }
	const objectGap, groupGap = wire.PropertyPriorObjectIDGap, wire.PropertyPriorGroupIDGap
	with := func(h wire.SubgroupHeader, change func(*wire.SubgroupHeader)) wire.SubgroupHeader {
		change(&h)
		return h
	}
	ending := func(h *wire.SubgroupHeader) { h.EndOfGroup = true }
	datagram := func(p *peer, d wire.Datagram) {
		t.Helper()
		d.TrackAlias = 1
		b, err := d.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.conn.SendDatagram(b); err != nil {
			t.Fatal(err)
		}
	}
	// Streams are sent one after the other, each when what precedes has been taken.
	type stream struct {
		h     wire.SubgroupHeader
		items []item
		end   bool
	}
	end := func(id uint64, status wire.Status) item { return item{id: id, status: status} }
	for _, tt := range []struct {
		name    string
		streams []stream
		last    wire.Optional[wire.Datagram] // instead of the last stream
		valid   bool
	}{
		{name: "valid", valid: true, streams: []stream{
			{with(header(1, 0, 0), ending), []item{text(0, "a"), text(1, "b")}, true},
			{header(1, 0, 1), []item{end(2, wire.EndOfGroup)}, true},
			{header(1, 3, 0), []item{{id: 2, properties: gap(objectGap, 2), payload: []byte("c")}}, false},
			{header(1, 3, 0), []item{{id: 2, properties: gap(objectGap, 2), payload: []byte("c")}}, true},
			{header(1, 4, 0), []item{{properties: gap(groupGap, 0)}, {id: 1, properties: gap(groupGap, 0)}}, true},
		}},
		{name: "1: two priorities", streams: []stream{
			{header(1, 0, 0), []item{text(0, "a")}, false},
			{with(header(1, 0, 0), func(h *wire.SubgroupHeader) { h.Priority = wire.Some(uint8(11)) }),
				[]item{text(1, "b")}, true},
		}},
		{name: "2: after the end of the subgroup", streams: []stream{
			{header(1, 0, 0), []item{text(0, "a")}, true}, {header(1, 0, 0), []item{text(1, "b")}, false},
		}},
		{name: "3: two ends of a subgroup", streams: []stream{
			{header(1, 0, 0), []item{text(0, "a"), text(1, "b")}, true}, {header(1, 0, 0), []item{text(0, "a")}, true},
		}},
		{name: "4: after the end of the group", streams: []stream{
			{header(1, 0, 0), []item{end(3, wire.EndOfGroup)}, true}, {header(1, 0, 1), []item{text(4, "x")}, false},
		}},
		{name: "4: after the group's last stream", streams: []stream{
			{with(header(1, 0, 0), ending), []item{text(3, "a")}, true}, {header(1, 0, 1), []item{text(4, "x")}, false},
		}},
		{name: "4: an end before an object", streams: []stream{
			{header(1, 0, 0), []item{text(4, "a")}, true}, {header(1, 0, 1), []item{end(3, wire.EndOfGroup)}, false},
		}},
		{name: "4: a last stream before an object", streams: []stream{
			{header(1, 0, 0), []item{text(4, "a")}, true}, {with(header(1, 0, 1), ending), []item{text(3, "b")}, true},
		}},
		{name: "4: a datagram after the end of the group", streams: []stream{
			{header(1, 0, 0), []item{end(3, wire.EndOfGroup)}, true}},
			last: wire.Some(wire.Datagram{Object: 3, Payload: []byte("x")})},
		{name: "5: after the end of the track", streams: []stream{
			{header(1, 1, 0), []item{end(0, wire.EndOfTrack)}, true}, {header(1, 2, 0), []item{text(0, "x")}, false},
		}},
		{name: "5: an end of the track before an object", streams: []stream{
			{header(1, 2, 0), []item{text(0, "x")}, true}, {header(1, 1, 0), []item{end(0, wire.EndOfTrack)}, true},
		}},
		{name: "6: another payload", streams: []stream{
			{header(1, 0, 0), []item{text(0, "abc")}, false}, {header(1, 0, 0), []item{text(0, "abd")}, false},
		}},
		{name: "6: another length", streams: []stream{
			{header(1, 0, 0), []item{text(0, "abc")}, false}, {header(1, 0, 0), []item{text(0, "abcd")}, false},
		}},
		{name: "6: other immutable properties", streams: []stream{
			{header(1, 0, 0), []item{{properties: properties(t, wire.Property{
				Type: wire.PropertyImmutable, Bytes: gap(0x3c00, 1)})}}, false},
			{header(1, 0, 0), []item{{properties: properties(t, wire.Property{
				Type: wire.PropertyImmutable, Bytes: gap(0x3c00, 2)})}}, false},
		}},
		{name: "another subgroup", streams: []stream{
			{header(1, 0, 0), []item{text(0, "a")}, false}, {header(1, 0, 1), []item{text(0, "a")}, false},
		}},
		{name: "7: a datagram that was on a stream", streams: []stream{{header(1, 0, 0), []item{text(0, "a")}, false}},
			last: wire.Some(wire.Datagram{Priority: wire.Some(uint8(10)), Payload: []byte("a")})},
		{name: "an object in a gap", streams: []stream{
			{header(1, 0, 0), []item{{id: 5, properties: gap(objectGap, 2)}}, true},
			{header(1, 0, 1), []item{text(4, "x")}, false},
		}},
		{name: "a gap with an object", streams: []stream{
			{header(1, 0, 1), []item{text(4, "x"), text(6, "y")}, false},
			{header(1, 0, 0), []item{{id: 5, properties: gap(objectGap, 2)}}, true},
		}},
		{name: "a group in a gap", streams: []stream{
			{header(1, 5, 0), []item{{properties: gap(groupGap, 2)}}, true},
			{header(1, 3, 1), []item{text(4, "x")}, false},
		}},
		{name: "a gap with a group", streams: []stream{
			{header(1, 3, 1), []item{text(4, "x")}, false},
			{header(1, 5, 0), []item{{properties: gap(groupGap, 2)}}, true},
		}},
		{name: "two gaps of a group", streams: []stream{
			{header(1, 5, 0), []item{{properties: gap(groupGap, 2)}, {id: 1, properties: gap(groupGap, 1)}}, true},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, nil)
			p, a := dial(t, r, options{}), dial(t, r, options{})
			pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1,
				Parameters: wire.Parameters{LargestObject: wire.Some(wire.Location{Group: 9})}})
			expect[*wire.RequestOK](pub)
			c := a.subscribes(track0("live"), wire.Parameters{})
			expect[*wire.SubscribeOK](c)
			fetch := a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live"), Parameters: wire.Parameters{
				LocationFilter: wire.Some(from(7, 0))}})
			asked[*wire.Fetch](p) // which it doesn't answer
			taken := uint64(0)
			for i, s := range tt.streams {
				s.h.Properties = true
				f := p.opens(s.h).send(s.items...)
				taken += uint64(len(s.items))
				precedes := i < len(tt.streams)-1 || tt.valid || tt.last.Present
				if precedes {
					until(t, "it was taken", func() bool {
						s := r.Stats().Tracks[0].Received
						return s.Objects+s.Duplicates == taken
					})
				}
				if s.end {
					f.close()
				} else if precedes {
					f.stream.CancelWrite(0)
				}
				if precedes {
					until(t, "it is over", r.allOver)
				}
			}
			if tt.last.Present {
				datagram(p, tt.last.Value)
			}
			if tt.valid {
				a.none()
				same(t, r.Stats().Tracks[0].Sent.Dropped[droppedMalformed], 0)
				return
			}
			same(t, expect[*wire.PublishDone](c).Code, wire.DoneMalformedTrack)
			fetch.fails(wire.RequestMalformedTrack)
			if m, err := pub.next(); err == nil {
				t.Fatalf("%#v instead of a subscription that is cancelled", m)
			}
			same(t, r.Stats().FailedSessions, 0)
		})
	}
}

// allOver reports whether all streams of publishers have ended, but for those that go on.
func (r *Relay) allOver() bool {
	for _, t := range r.list() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, g := range t.groups {
			if g.live() {
				return false
			}
		}
	}
	return true
}

// TestMalformedFetch resets the streams of fetches and fills of a malformed track: also if it is what was fetched that
// contradicts what is kept.
func TestMalformedFetch(t *testing.T) {
	r, p, _ := history(t)
	a := dial(t, r, options{})
	c := a.subscribes(track0("live"), wire.Parameters{
		LocationFilter: wire.Some(wire.LocationFilter{Kind: wire.FilterRelative}),
		Fill:           &wire.Parameters{LocationFilter: wire.Some(from(4, 2))}})
	expect[*wire.SubscribeOK](c)
	asked[*wire.Fetch](p) // which it doesn't answer
	fill := <-a.streams
	id := a.id()
	a.call(&wire.Fetch{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
		LocationFilter: wire.Some(from(4, 2))}})
	up, m := asked[*wire.Fetch](p)
	up.send(&wire.FetchOK{End: wire.Location{Group: 4, Object: 4}})
	// Meanwhile, the object comes live; what is fetched differs.
	p.opens(header(1, 4, 3)).send(text(3, "live"))
	until(t, "it has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 12 })
	w := wire.Fetched{Draft: wire.Draft22}
	b, err := w.Append(wire.AppendFetchHeader(nil, m.RequestID), wire.FetchObject{
		Group: 4, ID: 3, Subgroup: 3, Priority: 10, Length: 4})
	if err != nil {
		t.Fatal(err)
	}
	p.writeUni(append(b, "past"...))
	for _, v := range []*viewed{fill, <-a.streams} {
		err = nil
		for err == nil {
			err = v.more()
		}
		if !isReset(err, wire.ResetMalformedTrack) {
			t.Error(err)
		}
	}
	same(t, expect[*wire.PublishDone](c).Code, wire.DoneMalformedTrack)
	same(t, r.Stats().FailedSessions, 0)
}

// TestTooFarBehind ends the subscription of a session that takes nothing for too long (§5.2): its streams are reset,
// and PUBLISH_DONE says why.
func TestTooFarBehind(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		const size = 50_000
		r := start(t, func(c *Config) { c.Backlog, c.Patience = 2*size, time.Second })
		slow := narrow(16 << 10)
		slow.http = o.http
		p, a, b := dial(t, r, o), dial(t, r, o), dial(t, r, slow)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		good, bad := a.subscribes(track0("live"), wire.Parameters{}), b.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](good)
		expect[*wire.SubscribeOK](bad)
		done := make(chan error, 1)
		go func() {
			m, err := bad.next()
			if d, ok := m.(*wire.PublishDone); err == nil && (!ok || d.Code != wire.DoneTooFarBehind) {
				err = errors.New("another message")
			}
			done <- err
		}()
		for i := uint64(0); ; i++ {
			p.opens(header(1, i, 0)).send(items(0, 1, size)...).close()
			v := a.views()
			v.has(items(0, 1, size)...)
			v.ends()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				s := &r.Stats().Tracks[0]
				same(t, len(s.Subscriptions), 1)
				if s.Sent.Dropped[droppedBehind] == 0 || s.Subscriptions[0].DroppedStreams()["backlog"] > 0 {
					t.Fatalf("%+v", s)
				}
				return
			default:
			}
		}
	})
}
