package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// publisher has a peer publish a track by SUBSCRIBE, with an alias of its own: the relay subscribes once.
func publisher(p *peer, alias uint64, name wire.Track, ok wire.SubscribeOK) *call {
	p.t.Helper()
	c, m := asked[*wire.Subscribe](p)
	same(p.t, m.Track, name)
	ok.TrackAlias = alias
	c.send(&ok)
	return c
}

// header is that of a stream of a test's, with the publisher's alias.
func header(alias, group, id uint64) wire.SubgroupHeader {
	return wire.SubgroupHeader{
		TrackAlias: alias, Group: group, Subgroup: id, Priority: wire.Some(uint8(10)), FirstObject: true,
	}
}

// TestFanOut has two subscribers of one track: the relay subscribes once, and both get what the publisher has sent,
// byte for byte but for the alias, which is the same for both.
func TestFanOut(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a, b := dial(t, r, o), dial(t, r, o), dial(t, r, o)
		p.publishes("live")
		track := wire.Track{Namespace: wire.Namespace{"live", "camera"}, Name: "video"}
		extra := properties(t, wire.Property{Type: 0x3c00, Value: 7}, wire.Property{Type: 0x3c01, Bytes: []byte("x")})
		first := a.subscribes(track, wire.Parameters{})
		up := publisher(p, 77, track, wire.SubscribeOK{Properties: extra})
		ok := expect[*wire.SubscribeOK](first)
		same(t, ok.Properties, extra)
		same(t, ok.Parameters.LargestObject.Present, false)
		second := b.subscribes(track, wire.Parameters{})
		same(t, expect[*wire.SubscribeOK](second), ok)
		p.none()

		h := header(77, 3, 1)
		h.Properties = true
		f := p.opens(h).send(items(0, 3, 100)...).send(item{id: 7, properties: extra, payload: []byte("p")})
		f.send(item{id: 9, status: wire.EndOfGroup})
		f.close()
		h.TrackAlias = ok.TrackAlias
		for _, v := range []*viewed{a.views(), b.views()} {
			same(t, v.header, h)
			v.has(items(0, 3, 100)...)
			v.has(item{id: 7, properties: extra, payload: []byte("p")}, item{id: 9, status: wire.EndOfGroup})
			v.ends()
			// Byte for byte, but for the header.
			own := len(header(77, 3, 1).Append(nil))
			same(t, v.all[len(h.Append(nil)):], f.sent[own:])
		}
		up.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1, Reason: "over"})
		for _, c := range []*call{first, second} {
			done := expect[*wire.PublishDone](c)
			same(t, *done, wire.PublishDone{Code: wire.TrackEnded, Streams: 1, Reason: "over"})
			c.ends()
		}
	})
}

// TestIncomplete has an object reach its subscriber while the publisher hasn't sent all of it.
func TestIncomplete(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	f := p.opens(header(1, 0, 0))
	one := f.object(item{id: 0, payload: slices.Repeat([]byte{5}, 5000)})
	f.write(one[:1]) // within the header of the object
	f.write(one[1:1000])
	v := a.views()
	for len(v.all) < 900 {
		if err := v.more(); err != nil {
			t.Fatal(err)
		}
	}
	f.write(one[1000:])
	f.close()
	v.has(item{id: 0, payload: slices.Repeat([]byte{5}, 5000)})
	v.ends()
}

// TestLate has subscribers come while a group is being sent: each gets what its filter asks for.
func TestLate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		filter wire.Optional[wire.LocationFilter]
		groups []uint64 // that it gets, in order
		first  uint64   // object of the first one
	}{
		{"no filter", wire.Optional[wire.LocationFilter]{}, []uint64{5, 6}, 0},
		{"next object", wire.Some(wire.LocationFilter{Kind: wire.FilterNextObject}), []uint64{5, 6}, 4},
		{"current group", wire.Some(wire.LocationFilter{
			Kind: wire.FilterRelative, Start: wire.Location{Group: 1}}), []uint64{5, 6}, 0},
		{"next group", wire.Some(wire.LocationFilter{Kind: wire.FilterRelative}), []uint64{6}, 0},
		{"from within", wire.Some(wire.LocationFilter{
			Kind: wire.FilterStart, Start: wire.Location{Group: 5, Object: 2}}), []uint64{5, 6}, 2},
		{"to the end of a group", wire.Some(wire.LocationFilter{
			Kind: wire.FilterGroups, End: wire.Location{Group: 5}}), []uint64{5}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, nil)
			p, a, b := dial(t, r, options{}), dial(t, r, options{}), dial(t, r, options{})
			p.publishes("live")
			c := a.subscribes(track0("live"), wire.Parameters{})
			up := publisher(p, 1, track0("live"), wire.SubscribeOK{})
			ok := expect[*wire.SubscribeOK](c)
			f := p.opens(header(1, 5, 2)).send(items(0, 4, 10)...)
			v := a.views()
			v.has(items(0, 4, 10)...)

			late := b.subscribes(track0("live"), wire.Parameters{LocationFilter: tt.filter})
			same(t, expect[*wire.SubscribeOK](late).Parameters.LargestObject,
				wire.Some(wire.Location{Group: 5, Object: 3}))
			f.send(items(4, 2, 10)...).close()
			v.has(items(4, 2, 10)...)
			p.opens(header(1, 6, 2)).send(items(0, 1, 10)...).close()
			views := map[uint64]*viewed{} // they may come in any order
			for range tt.groups {
				w := b.views()
				views[w.header.Group] = w
			}
			for _, group := range tt.groups {
				w := views[group]
				if w == nil {
					t.Fatalf("group %d hasn't come", group)
				}
				want := header(ok.TrackAlias, group, 2)
				first, n := tt.first, 6
				if group == 6 {
					first, n = 0, 1
				}
				want.FirstObject = first == 0
				same(t, w.header, want)
				all := items(0, n, 10)
				if first >= 4 {
					all = items(4, 2, 10)
					first = 0
				}
				w.has(all[first:]...)
				w.ends()
			}
			up.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 2})
			same(t, expect[*wire.PublishDone](late).Streams, uint64(len(tt.groups)))
		})
	}
}

// TestLeave has the relay end its own subscription when the last subscriber leaves, and begin another one later.
func TestLeave(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a, b := dial(t, r, o), dial(t, r, o), dial(t, r, o)
		p.publishes("live")
		first := a.subscribes(track0("live"), wire.Parameters{})
		up := publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](first)
		second := b.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](second)
		f := p.opens(header(1, 0, 0)).send(items(0, 1, 10)...)
		a.views().has(items(0, 1, 10)...)
		v := b.views()
		v.has(items(0, 1, 10)...)
		first.cancel()
		f.send(items(1, 1, 10)...)
		v.has(items(1, 1, 10)...)
		second.cancel()
		v.isReset(wire.ResetCancelled)
		if m, err := up.next(); !isRemote(err) {
			t.Fatalf("%#v, %v instead of the end of the relay's subscription", m, err)
		}
		third := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 2, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](third)
	})
}

// TestRefused hands a publisher's refusal down to all that wait for it.
func TestRefused(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	p.publishes("live")
	first, second := a.subscribes(track0("live"), wire.Parameters{}), a.subscribes(track0("live"), wire.Parameters{})
	c, _ := asked[*wire.Subscribe](p)
	until(t, "both wait", func() bool { return len(r.Stats().Tracks) > 0 && r.Stats().Tracks[0].Waiting == 2 })
	c.send(&wire.RequestError{Code: wire.RequestExcessiveLoad, Retry: 11, Reason: "later"})
	for _, call := range []*call{first, second} {
		same(t, *call.fails(wire.RequestExcessiveLoad),
			wire.RequestError{Code: wire.RequestExcessiveLoad, Retry: 11, Reason: "later"})
	}
	a.subscribes(track0("other"), wire.Parameters{}).fails(wire.DoesNotExist)
	a.subscribes(track0("."), wire.Parameters{}).fails(wire.DoesNotExist)
	a.subscribes(track0(".session"), wire.Parameters{}).fails(wire.DoesNotExist)
}

// TestRefusedAndStopped hands down the refusal of a publisher that stops the request's other half, whichever comes
// first.
func TestRefusedAndStopped(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, func(c *Config) { c.Patience = time.Hour })
		p, a := dial(t, r, o), dial(t, r, o)
		p.publishes("live")
		first := a.subscribes(track0("live"), wire.Parameters{})
		c, _ := asked[*wire.Subscribe](p)
		c.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
		p.call(&wire.TrackStatus{RequestID: p.id(), Track: track0("none")}).fails(wire.DoesNotExist) // it has come
		c.send(&wire.RequestError{Code: wire.RequestExcessiveLoad})
		if err := c.stream.Close(); err != nil {
			t.Fatal(err)
		}
		first.fails(wire.RequestExcessiveLoad)
	})
}

// TestMandatory refuses tracks with a property that the relay would have to know.
func TestMandatory(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	unknown := properties(t, wire.Property{Type: 0x4000, Value: 1})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	up := publisher(p, 1, track0("live"), wire.SubscribeOK{Properties: unknown})
	c.fails(wire.UnsupportedExtension)
	if m, err := up.next(); !isRemote(err) {
		t.Fatalf("%#v, %v instead of the end of the relay's subscription", m, err)
	}
	p.call(&wire.Publish{RequestID: p.id(), Track: track0("x"), TrackAlias: 9, Properties: unknown}).
		fails(wire.UnsupportedExtension)
}

// TestRendezvous has subscriptions wait for a publisher (§9.20.7).
func TestRendezvous(t *testing.T) {
	r := start(t, func(c *Config) { c.Rendezvous = time.Hour })
	p, a := dial(t, r, options{}), dial(t, r, options{})
	short := a.subscribes(track0("live"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1))})
	short.fails(wire.RequestTimeout)
	byNamespace := a.subscribes(track0("live"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1 << 40))})
	until(t, "it waits", func() bool { return len(r.Stats().Tracks) > 0 && r.Stats().Tracks[0].Waiting == 1 })
	p.publishes("live")
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](byNamespace)

	// A PUBLISH isn't handed on to who waits for the track by SUBSCRIBE (§7.5).
	follower := a.call(&wire.SubscribeTracks{RequestID: a.id(), Prefix: wire.Namespace{"other"}})
	expect[*wire.RequestOK](follower)
	byPublish := a.subscribes(track0("other"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1 << 40))})
	until(t, "it waits", func() bool {
		return slices.ContainsFunc(r.Stats().Tracks, func(t TrackStats) bool { return t.Waiting == 1 })
	})
	c := p.call(&wire.Publish{RequestID: p.id(), Track: track0("other"), TrackAlias: 2})
	expect[*wire.RequestOK](c)
	expect[*wire.SubscribeOK](byPublish)
	a.none()
}

// TestPublish has the relay ask a publisher to forward while a subscriber wants objects (§7.2).
func TestPublish(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		largest := wire.Some(wire.Location{Group: 8, Object: 1})
		pub := p.call(&wire.Publish{
			RequestID: p.id(), Track: track0("live"), TrackAlias: 5,
			Parameters: wire.Parameters{Forward: wire.Some(false), LargestObject: largest},
		})
		same(t, *expect[*wire.RequestOK](pub), wire.RequestOK{})
		paused := a.subscribes(track0("live"), wire.Parameters{Forward: wire.Some(false)})
		same(t, expect[*wire.SubscribeOK](paused).Parameters.LargestObject, largest)
		paused.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(true)}})
		same(t, expect[*wire.RequestOK](paused).Parameters.LargestObject, largest)
		update := expect[*wire.RequestUpdate](pub)
		same(t, update.Parameters, wire.Parameters{Forward: wire.Some(true)})
		pub.send(&wire.RequestOK{})

		f := p.opens(header(5, 9, 0)).send(items(0, 2, 10)...)
		v := a.views()
		v.has(items(0, 2, 10)...)
		// Paused, the stream is reset; resumed, it goes on with what comes then (§11.3.2).
		paused.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(false)}})
		expect[*wire.RequestOK](paused)
		v.isReset(wire.ResetCancelled)
		same(t, expect[*wire.RequestUpdate](pub).Parameters, wire.Parameters{Forward: wire.Some(false)})
		pub.send(&wire.RequestOK{})
		paused.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(true)}})
		expect[*wire.RequestOK](paused)
		same(t, expect[*wire.RequestUpdate](pub).Parameters, wire.Parameters{Forward: wire.Some(true)})
		pub.send(&wire.RequestOK{})
		f.send(items(2, 1, 10)...).close()
		w := a.views()
		same(t, w.header.FirstObject, false)
		w.has(items(2, 1, 10)...)
		w.ends()

		pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
		same(t, expect[*wire.PublishDone](paused).Streams, uint64(2))
		pub.ends()
	})
}

// TestDone waits for streams that are late, and ends a subscription whose streams don't come.
func TestDone(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	for _, tt := range []struct {
		track   string
		count   uint64
		streams int
	}{{"a", 2, 2}, {"b", 0, 0}, {"c", 5, 1}, {"d", wire.StreamCountUnknown, 1}} {
		pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0(tt.track), TrackAlias: p.nextID})
		expect[*wire.RequestOK](pub)
		c := a.subscribes(track0(tt.track), wire.Parameters{})
		ok := expect[*wire.SubscribeOK](c)
		pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: tt.count})
		for i := range tt.streams {
			p.opens(header(p.nextID, uint64(i), 0)).send(items(0, 1, 10)...).close()
			v := a.views()
			same(t, v.header.TrackAlias, ok.TrackAlias)
			v.has(items(0, 1, 10)...)
			v.ends()
		}
		same(t, expect[*wire.PublishDone](c).Streams, uint64(tt.streams))
		c.ends()
	}
}

// TestAlias has a publisher use an alias again, for another track, when the first one is over (§3.1.2).
func TestAlias(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	for _, name := range []string{"a", "b"} {
		pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0(name), TrackAlias: 1})
		expect[*wire.RequestOK](pub)
		c := a.subscribes(track0(name), wire.Parameters{})
		expect[*wire.SubscribeOK](c)
		p.opens(header(1, 0, 0)).send(text(0, name)).close()
		a.views().has(text(0, name))
		pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
		expect[*wire.PublishDone](c)
	}
}

// TestHeaderStays reads a stream that was reset before anything of it was read: its header is there (§11.3.2).
func TestHeaderStays(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p := dial(t, r, o)
		o.lazy = true
		a := dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		ok := expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
		f := p.opens(header(1, 0, 0)).send(items(0, 1, 10)...)
		until(t, "it is forwarded", func() bool { return r.Stats().Tracks[0].Sent.Bytes > 0 })
		f.stream.CancelWrite(0)
		until(t, "it is reset", func() bool { return r.Stats().Tracks[0].Sent.Dropped[droppedReset] == 1 })
		// What is reset is known before what comes after it.
		a.none()
		go a.acceptUni()
		v := a.views()
		same(t, v.header, header(ok.TrackAlias, 0, 0))
		v.isReset(wire.ResetInternalError)
	})
}

// TestGone ends subscriptions when their publisher is gone: streams that aren't whole are reset.
func TestGone(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		c := a.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](c)
		p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
		v := a.views()
		v.has(items(0, 2, 10)...)
		_ = p.conn.CloseWithError(0, "")
		v.isReset(wire.ResetCancelled, wire.ResetInternalError) // the session's end, or WebTransport's reset before it
		done := expect[*wire.PublishDone](c)
		same(t, []uint64{uint64(done.Code), done.Streams}, []uint64{uint64(wire.TrackEnded), 1})
		c.ends()
	})
}

// TestReset hands a publisher's reset down, after what has come.
func TestReset(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
		f := p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
		v := a.views()
		v.has(items(0, 2, 10)...)
		f.stream.CancelWrite(quic.StreamErrorCode(wire.ResetDeliveryTimeout))
		v.isReset(wire.ResetDeliveryTimeout)
		// It goes on with another stream: no object comes twice.
		h := header(1, 0, 0)
		h.FirstObject = false
		p.opens(h).send(items(1, 3, 10)...).close()
		w := a.views()
		w.has(items(2, 2, 10)...)
		w.ends()
		// One that the subscriber stops ends for it alone.
		g := p.opens(header(1, 1, 0)).send(items(0, 1, 10)...)
		x := a.views()
		x.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
		until(t, "the stream is counted as stopped", func() bool {
			return r.Stats().Tracks[0].Sent.Dropped[droppedStopped] == 1
		})
		g.send(items(1, 1, 10)...).close()
		p.opens(header(1, 2, 0)).send(items(0, 1, 10)...).close()
		a.views().has(items(0, 1, 10)...)
	})
}

// TestNamespaces has a subscriber of namespaces learn when one begins and ends (§4.1).
func TestNamespaces(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, q, a := dial(t, r, o), dial(t, r, o), dial(t, r, o)
		first := p.publishes("live")
		c := a.call(&wire.SubscribeNamespace{RequestID: a.id(), Prefix: nil})
		expect[*wire.RequestOK](c)
		same(t, expect[*wire.NamespaceAvailable](c).Suffix, wire.Namespace{"live"})
		a.call(&wire.SubscribeNamespace{RequestID: a.id(), Prefix: wire.Namespace{"live"}}).fails(wire.PrefixOverlap)
		second := q.publishes("live") // which changes nothing
		third := q.call(&wire.PublishNamespace{RequestID: q.id(), Namespace: wire.Namespace{"live", "b"}})
		expect[*wire.RequestOK](third)
		same(t, expect[*wire.NamespaceAvailable](c).Suffix, wire.Namespace{"live", "b"})
		first.cancel()
		third.cancel()
		same(t, expect[*wire.NamespaceDone](c).Suffix, wire.Namespace{"live", "b"})
		// Another prefix: suffixes are what follows it (§9.5.2).
		c.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{
			NamespacePrefix: wire.Some(wire.Namespace{"live"})}})
		expect[*wire.RequestOK](c)
		same(t, len(expect[*wire.NamespaceAvailable](c).Suffix), 0)
		// A FIN isn't the end of a request (§6.4.2.2); the session's end is.
		if err := second.stream.Close(); err != nil {
			t.Fatal(err)
		}
		q.none()
		a.subscribes(track0("live"), wire.Parameters{})
		up, _ := asked[*wire.Subscribe](q)
		up.send(&wire.RequestError{Code: wire.DoesNotExist})
		_ = q.conn.CloseWithError(0, "")
		same(t, len(expect[*wire.NamespaceDone](c).Suffix), 0)
	})
}

// TestFollow has a subscriber of all tracks of a namespace get them by PUBLISH (§9.18).
func TestFollow(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		extra := properties(t, wire.Property{Type: 0x3c00, Value: 7})
		old := p.call(&wire.Publish{
			RequestID: p.id(), Track: track0("live"), TrackAlias: 1, Properties: extra,
			Parameters: wire.Parameters{Forward: wire.Some(false)},
		})
		expect[*wire.RequestOK](old)
		f := a.call(&wire.SubscribeTracks{
			RequestID: a.id(), Prefix: wire.Namespace{"live"},
			Parameters: wire.Parameters{SubscriberPriority: wire.Some(uint8(3))},
		})
		expect[*wire.RequestOK](f)
		c, m := asked[*wire.Publish](a)
		same(t, m.Track, track0("live"))
		same(t, m.Properties, extra)
		same(t, m.Parameters, wire.Parameters{SubscriberPriority: wire.Some(uint8(3))})
		c.send(&wire.RequestOK{})
		same(t, expect[*wire.RequestUpdate](old).Parameters, wire.Parameters{Forward: wire.Some(true)})
		old.send(&wire.RequestOK{})
		p.opens(header(1, 0, 0)).send(items(0, 1, 10)...).close()
		v := a.views()
		same(t, v.header.TrackAlias, m.TrackAlias)
		v.has(items(0, 1, 10)...)

		other := wire.Track{Namespace: wire.Namespace{"live", "b"}, Name: "new"}
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: other, TrackAlias: 2}))
		d, n := asked[*wire.Publish](a)
		same(t, n.Track, other)
		d.send(&wire.RequestError{Code: wire.Uninterested})
		d.ends()
		// Its own tracks it doesn't get.
		expect[*wire.RequestOK](a.call(&wire.Publish{
			RequestID: a.id(), Track: wire.Track{Namespace: wire.Namespace{"live", "a"}}, TrackAlias: 1}))
		a.none()
		f.cancel()
		until(t, "it doesn't follow any more", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.followers) == 0
		})
		expect[*wire.RequestOK](p.call(&wire.Publish{
			RequestID: p.id(), Track: wire.Track{Namespace: wire.Namespace{"live", "c"}}, TrackAlias: 3}))
		a.none()
		old.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
		same(t, expect[*wire.PublishDone](c).Streams, uint64(1))
	})
}

// TestSkipped has a follower know of a track for which it has allowed no request (§9.19).
func TestSkipped(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{quic: quic.Config{MaxIncomingStreams: -1}})
	f := a.call(&wire.SubscribeTracks{RequestID: a.id(), Prefix: wire.Namespace{"live"}})
	expect[*wire.RequestOK](f)
	track := wire.Track{Namespace: wire.Namespace{"live", "b"}, Name: "new"}
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track, TrackAlias: 2}))
	same(t, expect[*wire.PublishSkipped](f).Suffix, wire.Track{Namespace: wire.Namespace{"b"}, Name: "new"})
}

// TestStatus answers TRACK_STATUS: from what the relay knows, or by a publisher (§9.13).
func TestStatus(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	extra := properties(t, wire.Property{Type: 0x3c00, Value: 7})
	at := wire.Some(wire.Location{Group: 8, Object: 1})
	want := wire.RequestOK{Parameters: wire.Parameters{LargestObject: at}, Properties: extra}
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("known"), TrackAlias: 5,
		Properties: extra, Parameters: wire.Parameters{LargestObject: at}}))
	c := a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("known")})
	same(t, *expect[*wire.RequestOK](c), want)
	c.ends()
	p.publishes("live")
	for _, answer := range []wire.Message{&want, &wire.RequestError{Code: wire.DoesNotExist, Reason: "never"}} {
		c := a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("live")})
		up, _ := asked[*wire.TrackStatus](p)
		up.send(answer)
		got, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, answer)
	}
}

// TestDatagrams forwards datagrams, also those that come before the message that names their track.
func TestDatagrams(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p, a := dial(t, r, o), dial(t, r, o)
		rendezvous := wire.Parameters{RendezvousTimeout: wire.Some(uint64(1 << 30))}
		c := a.subscribes(track0("live"), rendezvous)
		until(t, "it waits", func() bool { return len(r.Stats().Tracks) > 0 && r.Stats().Tracks[0].Waiting == 1 })
		d := wire.Datagram{
			TrackAlias: 300, Group: 1, Object: 2, Priority: wire.Some(uint8(9)), Payload: []byte("payload"),
		}
		send := func(d wire.Datagram) {
			b, err := d.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.conn.SendDatagram(b); err != nil {
				t.Fatal(err)
			}
		}
		send(d)
		until(t, "it is kept for its track", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for s := range r.sessions {
				s.mu.Lock()
				n := len(s.early)
				s.mu.Unlock()
				if n == 1 {
					return true
				}
			}
			return false
		})
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 300}))
		ok := expect[*wire.SubscribeOK](c)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		d.Object = 3
		d.Properties = properties(t, wire.Property{Type: 0x3c00, Value: 7})
		send(d)
		d.TrackAlias = ok.TrackAlias
		early := d
		early.Object, early.Properties = 2, nil
		for _, want := range []wire.Datagram{early, d} {
			b, err := a.conn.ReceiveDatagram(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := wire.ParseDatagram(b)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, want)
		}
		same(t, r.Stats().Tracks[0].Received.Datagrams, uint64(2))
	})
}

// TestTwoPublishers has two publishers send one track: subscribers get each object once, and the track goes on with the
// one that remains (§7.3, §7.5.1).
func TestTwoPublishers(t *testing.T) {
	r := start(t, nil)
	p, q, a := dial(t, r, options{}), dial(t, r, options{}), dial(t, r, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	up := publisher(p, 1, track0("live"), wire.SubscribeOK{})
	ok := expect[*wire.SubscribeOK](c)
	q.publishes("live") // there is a subscription in it
	publisher(q, 44, track0("live"), wire.SubscribeOK{})
	until(t, "the track has two publishers", func() bool { return r.Stats().Tracks[0].Publishers == 2 })

	f := p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
	v := a.views()
	v.has(items(0, 2, 10)...)
	g := q.opens(header(44, 0, 0)).send(items(0, 3, 10)...)
	until(t, "duplicates are counted", func() bool { return r.Stats().Tracks[0].Received.Duplicates == 3 })
	f.send(items(2, 1, 10)...)
	v.has(items(2, 1, 10)...)
	up.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
	f.stream.CancelWrite(quic.StreamErrorCode(wire.ResetCancelled))
	v.isReset(wire.ResetCancelled)
	g.send(items(3, 1, 10)...).close()
	w := a.views()
	h := header(ok.TrackAlias, 0, 0)
	h.FirstObject = false
	same(t, w.header, h)
	w.has(items(3, 1, 10)...)
	w.ends()
	a.none()
}

// TestEmpty hands an empty subgroup on, which counts (§9.9).
func TestEmpty(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
	expect[*wire.RequestOK](pub)
	c := a.subscribes(track0("live"), wire.Parameters{})
	expect[*wire.SubscribeOK](c)
	p.opens(header(1, 0, 0)).close()
	a.views().ends()
	pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
	same(t, expect[*wire.PublishDone](c).Streams, uint64(1))
}

// TestScopes keeps tracks of several paths apart (§2.5).
func TestScopes(t *testing.T) {
	r := start(t, nil)
	at := func(path string) options { return options{setup: &wire.Setup{Path: wire.Some(path)}} }
	p, a, b := dial(t, r, at("/one?token=x")), dial(t, r, at("/one")), dial(t, r, at("/two"))
	p.publishes("live")
	b.subscribes(track0("live"), wire.Parameters{}).fails(wire.DoesNotExist)
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
}

// TestMalformedTrack ends a track whose objects contradict the draft (§12.1).
func TestMalformedTrack(t *testing.T) {
	r := start(t, nil)
	p, a := dial(t, r, options{}), dial(t, r, options{})
	pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
	expect[*wire.RequestOK](pub)
	c := a.subscribes(track0("live"), wire.Parameters{})
	expect[*wire.SubscribeOK](c)
	h := header(1, 0, 0)
	h.Properties = true
	f := p.opens(h).send(items(0, 1, 10)...)
	v := a.views()
	v.has(items(0, 1, 10)...)
	f.send(item{id: 1, properties: properties(t, wire.Property{Type: wire.PropertyPriorObjectIDGap, Value: 9})})
	v.isReset(wire.ResetMalformedTrack)
	same(t, expect[*wire.PublishDone](c).Code, wire.DoneMalformedTrack)
	if m, err := pub.next(); errors.Is(err, io.EOF) || err == nil {
		t.Fatalf("%#v, %v instead of a subscription that is cancelled", m, err)
	}
}
