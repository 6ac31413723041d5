package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// passing is a filter of a test: values from a to b, in the set 0.
func passing(kind wire.RangeKind, a, b uint64) wire.RangeFilter {
	return wire.RangeFilter{Kind: kind, Ranges: []wire.Range{{Start: a, End: b}}}
}

func filtered(filters ...wire.RangeFilter) wire.Parameters {
	return wire.Parameters{RangeFilters: filters}
}

// TestObjectFilter combines filters: those of a set have to pass all, of the sets one, and of ranges one (§3.3.2).
func TestObjectFilter(t *testing.T) {
	in := func(set uint8, f wire.RangeFilter) wire.RangeFilter {
		f.Set = set
		return f
	}
	property := func(kind wire.RangeKind, typ, a, b uint64) wire.RangeFilter {
		f := passing(kind, a, b)
		f.Property = typ
		return f
	}
	immutable := properties(t, wire.Property{Type: 0x3c00, Value: 7})
	track := properties(t, wire.Property{Type: wire.PropertyImmutable, Bytes: immutable})
	object := wire.FetchObject{ID: 5, Subgroup: 2, Priority: 10, Properties: properties(t,
		wire.Property{Type: 0x3c02, Value: 1}, wire.Property{Type: wire.PropertyImmutable, Bytes: immutable})}
	datagram := object
	datagram.Subgroup, datagram.Datagram = 0, true
	const subgroup, id, priority = wire.FilterSubgroup, wire.FilterObjectID, wire.FilterPriority
	for _, tt := range []struct {
		name             string
		filters          []wire.RangeFilter
		object, datagram bool
	}{
		{"none", nil, true, true},
		{"the ID", []wire.RangeFilter{passing(id, 5, 5)}, true, true},
		{"a lower ID", []wire.RangeFilter{passing(id, 0, 4)}, false, false},
		{"several ranges", []wire.RangeFilter{{Kind: id, Ranges: []wire.Range{{Start: 1, End: 2}, {Start: 5, End: 9}}}},
			true, true},
		{"the subgroup, which a datagram lacks", []wire.RangeFilter{passing(subgroup, 0, 2)}, true, false},
		{"the priority", []wire.RangeFilter{passing(priority, 10, 255)}, true, true},
		{"a set", []wire.RangeFilter{passing(id, 5, 5), passing(priority, 0, 9)}, false, false},
		{"two sets", []wire.RangeFilter{passing(id, 6, 6), in(1, passing(priority, 10, 10))}, true, true},
		{"a property", []wire.RangeFilter{property(wire.FilterObjectProperty, 0x3c02, 1, 1)}, true, true},
		{"an immutable property", []wire.RangeFilter{property(wire.FilterObjectProperty, 0x3c00, 7, 7)}, true, true},
		{"a property that isn't there", []wire.RangeFilter{property(wire.FilterObjectProperty, 0x3c04, 0, 99)},
			false, false},
		{"the track's", []wire.RangeFilter{property(wire.FilterTrackProperty, 0x3c00, 7, 7)}, true, true},
		{"not the track's", []wire.RangeFilter{property(wire.FilterTrackProperty, 0x3c02, 1, 1)}, false, false},
		{"the track's or a subgroup", []wire.RangeFilter{
			property(wire.FilterTrackProperty, 0x3c02, 1, 1), passing(id, 5, 5), in(1, passing(subgroup, 2, 2))},
			true, false},
	} {
		f := newObjectFilter(tt.filters, track)
		if f.passesObject(&object) != tt.object || f.passesObject(&datagram) != tt.datagram {
			t.Errorf("%s: %v, %v", tt.name, f.passesObject(&object), f.passesObject(&datagram))
		}
	}
}

// bytesOf is a stream as it has to be.
func bytesOf(t *testing.T, h wire.SubgroupHeader, items ...item) []byte {
	t.Helper()
	b, w := h.Append(nil), wire.Subgroup{Header: h}
	for _, i := range items {
		var err error
		if b, err = w.Append(b, wire.Object{
			ID: i.id, Properties: i.properties, Length: uint64(len(i.payload)), Status: i.status,
		}); err != nil {
			t.Fatal(err)
		}
		b = append(b, i.payload...)
	}
	return b
}

// TestRangeFilters leaves out what doesn't pass: the IDs that follow are right, and a header doesn't say that a stream
// ends its group which may lack its last object. A subgroup of which nothing passes has no stream. Who comes late gets
// the same, and who has no filter gets all.
func TestRangeFilters(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		for _, late := range []bool{false, true} {
			r := start(t, nil)
			p, a, b, c := dial(t, r, o), dial(t, r, o), dial(t, r, o), dial(t, r, o)
			pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
			expect[*wire.RequestOK](pub)
			var calls []*call
			var alias uint64
			subscribe := func() {
				all := wire.Parameters{}
				some := filtered(wire.RangeFilter{Kind: wire.FilterObjectID, Ranges: []wire.Range{
					{Start: 1, End: 2}, {Start: 5, End: 5}, {Start: 8, Open: true, End: 1<<64 - 1}}})
				second := filtered(passing(wire.FilterSubgroup, 2, 2))
				for i, s := range []*peer{a, b, c} {
					calls = append(calls, s.subscribes(track0("live"), []wire.Parameters{all, some, second}[i]))
					alias = expect[*wire.SubscribeOK](calls[i]).TrackAlias
				}
			}
			if !late {
				subscribe()
			}
			h := header(1, 7, 2)
			h.EndOfGroup = true
			whole := slices.Concat(items(0, 3, 100), items(4, 3, 20_000), items(300, 2, 10))
			f := p.opens(h).send(whole[:4]...)
			first := header(1, 7, 0)
			first.SubgroupIsFirst = true
			p.opens(first).send(items(3, 1, 10)...).close()
			if late {
				until(t, "it has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 5 })
				subscribe()
			}
			f.send(whole[4:]...).close()
			h.TrackAlias, first.TrackAlias = alias, alias
			cut := h
			cut.EndOfGroup, cut.FirstObject = false, false
			for range 2 {
				v := a.views()
				want := bytesOf(t, h, whole...)
				if v.header.SubgroupIsFirst {
					want = bytesOf(t, first, items(3, 1, 10)...)
				}
				for v.more() == nil {
				}
				same(t, v.all, want)
			}
			v := b.views()
			passed := slices.Concat(whole[1:3], whole[4:5], whole[6:])
			v.has(passed...)
			v.ends()
			same(t, v.all, bytesOf(t, cut, passed...))
			// All of a subgroup passes, as it was sent.
			v = c.views()
			v.has(whole...)
			v.ends()
			same(t, v.all, bytesOf(t, h, whole...))
			pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 2})
			for i, streams := range []uint64{2, 1, 1} {
				same(t, expect[*wire.PublishDone](calls[i]).Streams, streams)
			}
		}
	})
}

// TestFilterProperties has an object of a subscriber's come while its payload does, and others be left out by their
// properties; the end of the group doesn't pass.
func TestFilterProperties(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
	filter := passing(wire.FilterObjectProperty, 1, 1)
	filter.Property = 0x3c00
	ok := expect[*wire.SubscribeOK](a.subscribes(track0("live"), filtered(filter)))
	h := header(1, 0, 0)
	h.Properties = true
	key := properties(t, wire.Property{Type: 0x3c00, Value: 1})
	delta := properties(t, wire.Property{Type: 0x3c00, Value: 2})
	all := []item{
		{id: 0, properties: key, payload: []byte("k")}, {id: 1, properties: delta, payload: []byte("d")},
		{id: 2, properties: key, payload: make([]byte, 5000)}, {id: 3, payload: []byte("n")},
	}
	f := p.opens(h).send(all[:2]...)
	one := f.object(all[2])
	f.write(one[:3]) // within the header of the object
	f.write(one[3:1000])
	v := a.views()
	v.has(all[0])
	for len(v.all) < 900 {
		if err := v.more(); err != nil {
			t.Fatal(err)
		}
	}
	f.write(one[1000:])
	f.send(all[3], item{id: 4, status: wire.EndOfGroup}).close()
	v.has(all[2])
	v.ends()
	h.TrackAlias = ok.TrackAlias
	same(t, v.all, bytesOf(t, h, all[0], all[2]))
	// A publisher's reset comes after what passes.
	h.TrackAlias, h.Group = 1, 1
	f = p.opens(h).send(all[:2]...)
	v = a.views()
	v.has(all[0])
	f.stream.CancelWrite(quic.StreamErrorCode(wire.ResetDeliveryTimeout))
	v.isReset(wire.ResetDeliveryTimeout)
}

// TestFilterUpdate changes range filters while a stream is sent: it goes on with what passes then (§3.3.2). One that
// has said that it ends its group, and lacks its end, is reset.
func TestFilterUpdate(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		c := a.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](c)
		update := func(filters ...wire.RangeFilter) {
			t.Helper()
			c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: filtered(filters...)})
			expect[*wire.RequestOK](c)
		}
		h := header(1, 5, 0)
		h.EndOfGroup = true
		f := p.opens(h).send(items(0, 1, 10)...)
		v := a.views()
		v.has(items(0, 1, 10)...)
		one := f.object(items(1, 1, 1000)[0])
		f.write(one[:500])
		for len(v.all) < 400 {
			if err := v.more(); err != nil {
				t.Fatal(err)
			}
		}
		update(passing(wire.FilterObjectID, 3, 4)) // what has begun is finished
		f.write(one[500:])
		f.send(items(2, 2, 10)...)
		v.has(append(items(1, 1, 1000), items(3, 1, 10)...)...)
		update(passing(wire.FilterObjectID, 5, 6), passing(wire.FilterPriority, 0, 200))
		f.send(items(4, 2, 10)...)
		v.has(items(5, 1, 10)...)
		update(wire.RangeFilter{Kind: wire.FilterObjectID, Removed: true})
		f.send(items(6, 2, 10)...)
		v.has(items(6, 2, 10)...)
		update(passing(wire.FilterObjectID, 0, 8))
		f.send(items(8, 2, 10)...)
		v.has(items(8, 1, 10)...)
		f.close()
		v.isReset(wire.ResetCancelled)
		// A subgroup that doesn't pass any more is reset; if it does again, what comes has another stream.
		g := p.opens(header(1, 6, 0)).send(items(0, 1, 10)...)
		v = a.views()
		v.has(items(0, 1, 10)...)
		update(passing(wire.FilterPriority, 0, 9))
		v.isReset(wire.ResetCancelled)
		update(passing(wire.FilterPriority, 0, 10))
		g.send(items(1, 1, 10)...).close()
		v = a.views()
		same(t, v.header.FirstObject, false)
		v.has(items(1, 1, 10)...)
		v.ends()
	})
}

// TestFilterDatagrams sends the datagrams that pass; one has no subgroup, and the track's priority unless it says so.
func TestFilterDatagrams(t *testing.T) {
	r := start(t, nil)
	p, a, b := dial(t, r, options{}), dial(t, r, options{}), dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1,
		Properties: properties(t, wire.Property{Type: wire.PropertyPublisherPriority, Value: 20})}))
	expect[*wire.SubscribeOK](a.subscribes(track0("live"), filtered(passing(wire.FilterPriority, 20, 30))))
	other := passing(wire.FilterObjectID, 3, 3)
	other.Set = 1
	expect[*wire.SubscribeOK](b.subscribes(track0("live"), filtered(passing(wire.FilterSubgroup, 0, 9), other)))
	priority := wire.Some[uint8]
	for i, priority := range []wire.Optional[uint8]{priority(19), {}, priority(30), priority(31)} {
		d, err := wire.Datagram{TrackAlias: 1, Object: uint64(i), Priority: priority, Payload: []byte("x")}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.conn.SendDatagram(d); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, want := range []struct {
		p   *peer
		ids []uint64
	}{{a, []uint64{1, 2}}, {b, []uint64{3}}} {
		for _, id := range want.ids {
			data, err := want.p.conn.ReceiveDatagram(ctx)
			if err != nil {
				t.Fatal(err)
			}
			d, _, err := wire.ParseDatagram(data)
			if err != nil {
				t.Fatal(err)
			}
			same(t, d.Object, id)
		}
	}
	for _, u := range r.Stats().Tracks[0].Subscriptions {
		same(t, u.DroppedDatagrams, 0)
	}
	same(t, r.Stats().Tracks[0].Sent.Datagrams, 3)
}

// TestFilterTracks offers tracks whose properties pass, and of these the objects that do (§4.3).
func TestFilterTracks(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	kind := func(a, b uint64) wire.RangeFilter {
		f := passing(wire.FilterTrackProperty, a, b)
		f.Property = 0x3c00
		return f
	}
	publish := func(n uint64) {
		t.Helper()
		expect[*wire.RequestOK](p.call(&wire.Publish{
			RequestID: p.id(), Track: track0(fmt.Sprint(n)), TrackAlias: n,
			Properties: properties(t, wire.Property{Type: 0x3c00, Value: n})}))
	}
	publish(1)
	publish(2)
	c := a.call(&wire.SubscribeTracks{
		RequestID: a.id(), Parameters: filtered(kind(2, 3), passing(wire.FilterObjectID, 1, 1))})
	expect[*wire.RequestOK](c)
	up, m := asked[*wire.Publish](a)
	same(t, m.Track, track0("2"))
	same(t, len(m.Parameters.RangeFilters), 0)
	up.send(&wire.RequestOK{})
	until(t, "it is subscribed", func() bool {
		return slices.ContainsFunc(r.Stats().Tracks, func(t TrackStats) bool { return len(t.Subscriptions) == 1 })
	})
	publish(4)
	p.opens(header(2, 0, 0)).send(items(0, 3, 10)...).close()
	v := a.views()
	v.has(items(1, 1, 10)...)
	v.ends()
	a.none()
	c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: filtered(kind(2, 4))})
	expect[*wire.RequestOK](c)
	_, m = asked[*wire.Publish](a)
	same(t, m.Track, track0("4"))
	a.none()
	c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: filtered(wire.RangeFilter{Kind: wire.FilterObjectID})})
	c.fails(wire.InvalidFilter)
}

// TestFilterFill has a fill go by the subscription's range filters, but for those of FILL_PARAMETERS (§9.20.16).
func TestFilterFill(t *testing.T) {
	r, p, live := history(t)
	p.serves()
	a := dial(t, r, options{})
	id := a.id()
	c := a.call(&wire.Subscribe{RequestID: id, Track: track0("live"), Parameters: wire.Parameters{
		RangeFilters: []wire.RangeFilter{passing(wire.FilterSubgroup, 0, 0), passing(wire.FilterObjectID, 1, 2)},
		Fill: &wire.Parameters{
			LocationFilter: wire.Some(from(4, 0)),
			RangeFilters:   []wire.RangeFilter{passing(wire.FilterSubgroup, 1, 1)},
		},
	}})
	expect[*wire.SubscribeOK](c)
	all, err := a.fetched(id, false)
	if err != nil {
		t.Fatal(err)
	}
	same(t, all, []got{{group: 4, id: 1, payload: "b"}})
	live.send(text(1, "y"), text(3, "z")).close()
	v := a.views()
	v.has(text(1, "y"))
	v.ends()
}

// TestFilterErrors offers range filters in draft 22 alone, and refuses what is too much or wrong.
func TestFilterErrors(t *testing.T) {
	r := start(t, nil)
	old, p := dial(t, r, older(false)), dial(t, r, options{})
	same(t, (<-old.messages).(*wire.Setup).MaxFilterRanges, 0)
	same(t, (<-p.messages).(*wire.Setup).MaxFilterRanges, maxRanges)
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
	many := wire.RangeFilter{Kind: wire.FilterObjectID}
	for i := range uint64(maxRanges) {
		many.Ranges = append(many.Ranges, wire.Range{Start: 2 * i, End: 2 * i})
	}
	full := p.subscribes(track0("live"), filtered(many))
	expect[*wire.SubscribeOK](full)
	one := passing(wire.FilterSubgroup, 0, 0)
	for _, parameters := range []wire.Parameters{
		filtered(many, one), filtered(wire.RangeFilter{Kind: wire.FilterPriority}),
		{RangeFilters: []wire.RangeFilter{one}, Fill: &wire.Parameters{RangeFilters: []wire.RangeFilter{many}}},
	} {
		p.subscribes(track0("live"), parameters).fails(wire.InvalidFilter)
		if parameters.Fill == nil {
			p.call(&wire.SubscribeTracks{RequestID: p.id(), Parameters: parameters}).fails(wire.InvalidFilter)
		}
	}
	full.send(&wire.RequestUpdate{RequestID: p.id(), Parameters: filtered(one)})
	same(t, expect[*wire.RequestError](full).Code, wire.InvalidFilter)
	same(t, expect[*wire.PublishDone](full).Code, wire.UpdateFailed)
	c := p.subscribes(track0("live"), wire.Parameters{})
	expect[*wire.SubscribeOK](c)
	tracks := passing(wire.FilterTrackProperty, 0, 0)
	c.send(&wire.RequestUpdate{RequestID: p.id(), Parameters: filtered(tracks)})
	p.closes(wire.ProtocolViolation)
}

// TestNoFilter has subscribers without range filters cost nothing more.
func TestNoFilter(t *testing.T) {
	u, sg, d := &subscription{}, &subgroup{}, &wire.Datagram{}
	same(t, testing.AllocsPerRun(100, func() {
		if u.passing(sg) != nil || !u.objects.passesDatagram(d, 0) {
			t.Error("there is a filter")
		}
	}), 0)
}

// FuzzSieve sends a subgroup, which comes in pieces of any sizes, through a filter that changes: what comes out are the
// objects that pass, and as many bytes as were announced.
func FuzzSieve(f *testing.F) {
	f.Add(uint64(0b0110), uint64(1), []byte{0, 3, 1, 0, 2, 200, 1, 1, 1, 0, 0, 5, 9, 9})
	f.Add(uint64(0xf0f0), uint64(0), bytes.Repeat([]byte{1, 7, 2}, 30))
	f.Fuzz(func(t *testing.T, mask, first uint64, steps []byte) {
		filter := func(mask uint64) objectFilter {
			one := wire.RangeFilter{Kind: wire.FilterObjectID}
			for i := range uint64(64) {
				if mask>>i&1 == 1 {
					one.Ranges = append(one.Ranges, wire.Range{Start: i, End: i})
				}
			}
			return objectFilter{{one}}
		}
		sg := &subgroup{header: header(1, 0, 0), group: &group{}}
		sg.head = sg.header.Append(nil)
		o := &outgoing{subscription: &subscription{last: all}, subgroup: sg, sieve: &sieve{filter: filter(mask)}}
		w := wire.Subgroup{Header: sg.header}
		var want []item
		var got []byte
		for id, announced := first%8, 0; len(steps) >= 3 && id < 64; id, steps = id+1+uint64(steps[0]%3), steps[3:] {
			payload := bytes.Repeat([]byte{byte(id)}, int(steps[1]))
			b, err := w.Append(nil, wire.Object{ID: id, Length: uint64(len(payload))})
			if err != nil {
				t.Fatal(err)
			}
			one := object{id: id, at: sg.size, body: sg.size + uint64(wire.VarintLen(id))}
			if id != first%8 {
				_, n := wire.ParseVarint(b)
				one.body = sg.size + uint64(n)
			}
			b = append(b, payload...)
			one.end = sg.size + uint64(len(b))
			if mask>>id&1 == 1 {
				want = append(want, item{id: id, payload: payload})
			}
			objects := []object{one}
			cut := len(b) - int(steps[2])%(len(payload)+1)
			for _, data := range [][]byte{b[:cut], b[cut:]} {
				sg.chunks = append(sg.chunks, chunk{at: sg.size, data: data})
				sg.objects = append(sg.objects, objects...)
				sg.size += uint64(len(data))
				announced += o.sift(objects, len(data))
				objects = nil
				for data, step := o.take(); step == sending; data, step = o.take() {
					announced -= len(data)
					got = append(got, data...)
				}
				same(t, announced, 0)
			}
			if steps[2]%5 == 0 {
				mask = mask<<7 | mask>>57
				o.sieve.filter = filter(mask)
			}
		}
		if len(want) == 0 {
			same(t, o.joined, false)
			return
		}
		sg.fin = true
		_, step := o.take()
		same(t, step, ending)
		v := &viewed{t: t, buf: append(bytes.Clone(o.head), got...), stream: ended{}}
		v.parse()
		v.has(want...)
		v.ends()
	})
}

// ended is a stream of which everything was read.
type ended struct{ receiveStream }

func (ended) Read([]byte) (int, error) { return 0, io.EOF }

func (ended) SetReadDeadline(time.Time) error { return nil }
