package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// uri is a relay's.
func uri(r *Relay, http bool) string {
	if http {
		return fmt.Sprintf("https://%v/", r.Addr())
	}
	return fmt.Sprintf("moqt://%v", r.Addr())
}

// upstreamOf says how to connect to a relay: on a transport, by a draft.
func upstreamOf(r *Relay, o options) Upstream {
	t := &tls.Config{InsecureSkipVerify: true}
	if o.draft != 0 {
		t.NextProtos = []string{o.draft.ALPN()}
	}
	return Upstream{URI: uri(r, o.http), TLS: t}
}

// startBelow starts a relay that is connected to others.
func startBelow(t *testing.T, o options, change func(*Config), above ...*Relay) *Relay {
	t.Helper()
	r := start(t, func(c *Config) {
		for _, a := range above {
			c.Upstreams = append(c.Upstreams, upstreamOf(a, o))
		}
		if change != nil {
			change(c)
		}
	})
	r.isConnected(t)
	return r
}

// isConnected waits until a relay has a session with each of its upstream relays.
func (r *Relay) isConnected(t *testing.T) {
	t.Helper()
	until(t, "the upstream relays are connected", func() bool {
		return !slices.ContainsFunc(r.Stats().Upstreams, func(u UpstreamStats) bool { return !u.Connected })
	})
}

// hops runs a test for both transports and both drafts between relays.
func hops(t *testing.T, f func(t *testing.T, o options)) {
	for _, draft := range drafts {
		both(t, func(t *testing.T, o options) {
			t.Run(draft.ALPN(), func(t *testing.T) {
				o.draft = draft
				f(t, o)
			})
		})
	}
}

// chain starts three relays, the root first.
func chain(t *testing.T, o options) [3]*Relay {
	t.Helper()
	root := start(t, nil)
	middle := startBelow(t, o, nil, root)
	return [3]*Relay{root, middle, startBelow(t, o, nil, middle)}
}

// has waits until a namespace is known, of a client.
func (r *Relay) has(t *testing.T, namespace string) {
	t.Helper()
	until(t, "the namespace is known", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		p := r.namespaces[namespaceKey{"/", wire.Namespace{namespace}.String()}]
		return p != nil && p.below()
	})
}

// isCancelled expects that the relay cancels a request; it may pause it before.
func (c *call) isCancelled() {
	c.p.t.Helper()
	for {
		m, err := c.next()
		if _, ok := m.(*wire.RequestUpdate); !ok && !isRemote(err) {
			c.p.t.Fatalf("%#v, %v instead of the end of the request", m, err)
		}
		if err != nil {
			return
		}
	}
}

// TestTree has a publisher, two players, and a relay between their relays: in either direction.
func TestTree(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		for i, name := range []string{"down", "up"} {
			first, last := relays[2*i], relays[2-2*i] // of the publisher, of the players
			p, a, b := dial(t, first, options{}), dial(t, last, options{}), dial(t, last, older(true))
			p.publishes(name)
			if first == relays[2] {
				last.has(t, name)
			}
			one := a.subscribes(track0(name), wire.Parameters{})
			settings := properties(t, wire.Property{Type: wire.PropertyPublisherPriority, Value: 7})
			largest := wire.Some(wire.Location{Group: 4, Object: 2})
			up := publisher(p, 77, track0(name), wire.SubscribeOK{Properties: settings,
				Parameters: wire.Parameters{LargestObject: largest}})
			ok := expect[*wire.SubscribeOK](one)
			same(t, ok.Properties, settings)
			same(t, ok.Parameters.LargestObject, largest)
			two := b.subscribes(track0(name), wire.Parameters{})
			same(t, expect[*wire.SubscribeOK](two).Properties, settings)
			flow := p.opens(header(77, 5, 0)).send(items(0, 3, 10_000)...)
			flow.close()
			for _, player := range []*peer{a, b} {
				v := player.views()
				v.has(items(0, 3, 10_000)...)
				v.ends()
			}
			for _, r := range []*Relay{first, relays[1]} { // whose one subscription is a relay's
				same(t, len(r.Stats().Tracks[0].Subscriptions), 1)
			}
			same(t, len(last.Stats().Tracks[0].Subscriptions), 2)
			p.none() // it was asked once

			up.send(&wire.PublishDone{Code: wire.DoneTooFarBehind, Streams: 1, Reason: "slow"})
			if err := up.stream.Close(); err != nil {
				t.Fatal(err)
			}
			for _, c := range []*call{one, two} {
				done := expect[*wire.PublishDone](c)
				same(t, *done, wire.PublishDone{Code: wire.DoneTooFarBehind, Streams: 1, Reason: "slow"})
				if err := c.stream.Close(); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range relays {
				until(t, "nothing stays of the track", func() bool { return len(r.Stats().Tracks) == 0 })
			}
		}
		for _, r := range relays {
			same(t, r.Stats().FailedSessions, 0)
		}
	})
}

// TestTreeForward has a paused subscription be paused on every hop, and objects come as soon as it is resumed.
func TestTreeForward(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		p, a := dial(t, relays[0], options{}), dial(t, relays[2], options{})
		p.publishes("live")
		paused := a.subscribes(track0("live"), wire.Parameters{Forward: wire.Some(false)})
		up, m := asked[*wire.Subscribe](p)
		same(t, m.Parameters.Forward, wire.Some(false))
		up.send(&wire.SubscribeOK{TrackAlias: 3})
		expect[*wire.SubscribeOK](paused)
		paused.send(&wire.RequestUpdate{RequestID: a.id(), Parameters: wire.Parameters{Forward: wire.Some(true)}})
		expect[*wire.RequestOK](paused)
		same(t, expect[*wire.RequestUpdate](up).Parameters, wire.Parameters{Forward: wire.Some(true)})
		up.send(&wire.RequestOK{})
		p.opens(header(3, 0, 0)).send(items(0, 1, 10)...)
		a.views().has(items(0, 1, 10)...)
		paused.cancel()
		up.isCancelled()
	})
}

// TestTreePublish has a track that is published below be there above: paused until a subscriber wants it, and then from
// the beginning of the group. Another one goes down, to who follows its namespace.
func TestTreePublish(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		p, a := dial(t, relays[2], options{}), dial(t, relays[0], options{})
		pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 5})
		expect[*wire.RequestOK](pub)
		f := p.opens(header(5, 1, 0)).send(items(0, 2, 10)...)
		until(t, "the track is published above", func() bool {
			s := relays[0].Stats()
			return len(s.Tracks) == 1 && s.Tracks[0].Publishers == 1
		})
		c := a.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](c)
		v := a.views()
		v.has(items(0, 2, 10)...)
		f.send(items(2, 1, 10)...).close()
		v.has(items(2, 1, 10)...)
		v.ends()
		pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
		same(t, expect[*wire.PublishDone](c).Code, wire.TrackEnded)

		q, b := dial(t, relays[0], options{}), dial(t, relays[2], options{})
		follows := b.call(&wire.SubscribeTracks{RequestID: b.id(), Prefix: wire.Namespace{"other"}})
		expect[*wire.RequestOK](follows)
		pub = q.call(&wire.Publish{RequestID: q.id(), Track: track0("other"), TrackAlias: 6})
		expect[*wire.RequestOK](pub)
		down, m := asked[*wire.Publish](b)
		same(t, m.Track, track0("other"))
		down.send(&wire.RequestOK{})
		q.opens(header(6, 1, 0)).send(items(0, 2, 10)...).close()
		v = b.views()
		v.has(items(0, 2, 10)...)
		v.ends()
		follows.cancel()
		down.cancel()
		for _, r := range relays[1:] {
			until(t, "nothing stays of the track", func() bool { return len(r.Stats().Tracks) == 0 })
		}
	})
}

// TestTreeNamespaces has namespaces be known on every relay, however many of its clients ask for them.
func TestTreeNamespaces(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		p, q := dial(t, relays[0], options{}), dial(t, relays[2], options{})
		a, b := dial(t, relays[2], options{}), dial(t, relays[2], options{})
		first, second := p.publishes("one"), q.publishes("two")
		relays[0].has(t, "two")
		narrow := a.call(&wire.SubscribeNamespace{RequestID: a.id(), Prefix: wire.Namespace{"one"}})
		expect[*wire.RequestOK](narrow)
		same(t, len(expect[*wire.NamespaceAvailable](narrow).Suffix), 0)
		all := b.call(&wire.SubscribeNamespace{RequestID: b.id()}) // which takes the place of the narrow one above
		expect[*wire.RequestOK](all)
		var names []string
		for range 2 {
			names = append(names, expect[*wire.NamespaceAvailable](all).Suffix[0])
		}
		slices.Sort(names)
		same(t, names, []string{"one", "two"})
		third := p.publishes("three")
		same(t, expect[*wire.NamespaceAvailable](all).Suffix, wire.Namespace{"three"})
		first.cancel()
		same(t, expect[*wire.NamespaceDone](all).Suffix, wire.Namespace{"one"})
		same(t, len(expect[*wire.NamespaceDone](narrow).Suffix), 0)
		second.cancel()
		same(t, expect[*wire.NamespaceDone](all).Suffix, wire.Namespace{"two"})
		third.cancel()
		same(t, expect[*wire.NamespaceDone](all).Suffix, wire.Namespace{"three"})
		for _, r := range relays[:2] { // a relay has asked for everything once, if at all
			r.mu.Lock()
			watchers := len(r.watchers)
			r.mu.Unlock()
			same(t, watchers, 1)
		}
		for _, c := range []*call{narrow, all} {
			c.cancel()
		}
		for _, r := range relays {
			until(t, "nothing stays", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.watchers) == 0 && len(r.namespaces) == 0
			})
		}
	})
}

// TestTreeFetch has FETCH and TRACK_STATUS go to where the track is.
func TestTreeFetch(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		for i, name := range []string{"down", "up"} {
			first, last := relays[2*i], relays[2-2*i]
			p, a := dial(t, first, options{}), dial(t, last, options{})
			p.publishes(name)
			if first == relays[2] {
				last.has(t, name)
			}
			largest := wire.Some(wire.Location{Group: 4, Object: 2})
			status := a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0(name)})
			up, _ := asked[*wire.TrackStatus](p)
			up.send(&wire.RequestOK{Parameters: wire.Parameters{LargestObject: largest}})
			same(t, expect[*wire.RequestOK](status).Parameters.LargestObject, largest)

			id := a.id()
			c := a.call(&wire.Fetch{RequestID: id, Track: track0(name), Parameters: wire.Parameters{
				LocationFilter: wire.Some(wire.LocationFilter{
					Kind: wire.FilterRange, End: wire.Location{Group: 4, Object: 9}})}})
			up, m := asked[*wire.Fetch](p)
			up.send(&wire.FetchOK{End: largest.Value})
			same(t, expect[*wire.FetchOK](c).End, largest.Value)
			writer := wire.Fetched{Draft: p.draft}
			b, err := writer.Append(wire.AppendFetchHeader(nil, m.RequestID),
				wire.FetchObject{Group: 4, ID: 2, Length: 5, Priority: 9})
			if err != nil {
				t.Fatal(err)
			}
			s := p.writeUni(append(b, "hello"...))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			objects, err := a.fetched(id, false)
			if err != nil || len(objects) != 1 || string(objects[0].payload) != "hello" {
				t.Fatalf("%+v, %v", objects, err)
			}
		}
		a := dial(t, relays[2], options{})
		a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("no")}).fails(wire.DoesNotExist)
		a.call(&wire.Fetch{RequestID: a.id(), Track: track0("no")}).fails(wire.DoesNotExist)
		a.subscribes(track0("no"), wire.Parameters{}).fails(wire.DoesNotExist)
	})
}

// TestTreeRefused hands refusals down: a redirect with its URI, which the relay doesn't follow.
func TestTreeRefused(t *testing.T) {
	relays := chain(t, options{})
	p, a := dial(t, relays[0], options{}), dial(t, relays[2], options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	up, _ := asked[*wire.Subscribe](p)
	other := wire.RequestError{
		Code: wire.RedirectRequest, Reason: "there", Redirect: &wire.Redirect{Track: track0("else")},
	}
	up.send(&other)
	same(t, *c.fails(wire.RedirectRequest), other)
	a.subscribes(track0("later"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(20_000))})
	until(t, "the root knows that it waits", func() bool {
		s := relays[0].Stats()
		return len(s.Tracks) == 1 && s.Tracks[0].Waiting == 1
	})
	c = a.subscribes(track0("later"), wire.Parameters{})
	until(t, "two wait", func() bool { return relays[2].Stats().Tracks[0].Waiting == 2 })
	elsewhere := wire.RequestError{Code: wire.RedirectRequest, Redirect: &wire.Redirect{
		URI: "moqt://elsewhere:1/path", Track: track0("later")}}
	for _, one := range relays[0].list() {
		one.mu.Lock()
		one.settle(&elsewhere, false, wire.DoneInternalError, "")
		one.mu.Unlock()
	}
	same(t, *c.fails(wire.RedirectRequest), elsewhere)
	// A client can't redirect the relay to a URI (§9.4.1).
	a.subscribes(track0("live"), wire.Parameters{})
	up, _ = asked[*wire.Subscribe](p)
	other.Redirect.URI = "moqt://other"
	up.send(&other)
	p.closes(wire.ProtocolViolation)
}

// TestTreeRendezvous has a subscription wait for a publisher that comes late, wherever that is.
func TestTreeRendezvous(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		a := dial(t, relays[2], options{})
		short := a.subscribes(track0("none"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1))})
		short.fails(wire.RequestTimeout)
		if err := short.stream.Close(); err != nil {
			t.Fatal(err)
		}
		for i, r := range relays {
			name := fmt.Sprint("live", i)
			c := a.subscribes(track0(name), wire.Parameters{RendezvousTimeout: wire.Some(uint64(20_000))})
			until(t, "the root knows that it waits", func() bool {
				s := relays[0].Stats()
				return len(s.Tracks) == 1 && s.Tracks[0].Waiting == 1
			})
			p := dial(t, r, options{})
			p.publishes(name)
			publisher(p, 1, track0(name), wire.SubscribeOK{})
			expect[*wire.SubscribeOK](c)
			c.cancel()
			for _, r := range relays {
				until(t, "nothing stays of the track", func() bool { return len(r.Stats().Tracks) == 0 })
			}
		}
	})
}

// TestTreeNearer has a publisher that comes to the player's relay take the place of one above: no object is lost or
// comes twice, and nothing stays when it leaves.
func TestTreeNearer(t *testing.T) {
	relays := chain(t, options{})
	p, q, a := dial(t, relays[0], options{}), dial(t, relays[2], options{}), dial(t, relays[2], options{})
	withdrawn := p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	up := publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
	v := a.views()
	v.has(items(0, 2, 10)...)
	withdrawn.cancel()
	q.publishes("live")
	near := publisher(q, 9, track0("live"), wire.SubscribeOK{})
	until(t, "the track has two publishers", func() bool { return relays[2].Stats().Tracks[0].Publishers == 2 })
	h := header(9, 0, 0)
	h.FirstObject = false
	g := q.opens(h).send(items(2, 1, 10)...) // whose ID is absolute in this stream, and isn't in the player's
	v.has(items(2, 1, 10)...)
	up.isCancelled()
	g.send(items(3, 1, 10)...).close()
	v.has(items(3, 1, 10)...)
	v.ends()
	near.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: 1})
	same(t, expect[*wire.PublishDone](c).Code, wire.TrackEnded)
	for _, r := range relays {
		until(t, "nothing stays of the track", func() bool { return len(r.Stats().Tracks) == 0 })
	}
}

// TestMove has a relay follow a GOAWAY of its upstream relay to another one: the player gets each object once, on the
// stream that it has.
func TestMove(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		root := start(t, nil)
		old, next := startBelow(t, o, nil, root), startBelow(t, o, nil, root)
		last := startBelow(t, o, nil, old)
		p, q, a := dial(t, root, options{}), dial(t, last, options{}), dial(t, last, options{})
		b := dial(t, root, options{})
		p.publishes("live")
		c := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		w := a.call(&wire.SubscribeNamespace{RequestID: a.id()})
		expect[*wire.RequestOK](w)
		same(t, expect[*wire.NamespaceAvailable](w).Suffix, wire.Namespace{"live"})
		q.publishes("below")
		same(t, expect[*wire.NamespaceAvailable](w).Suffix, wire.Namespace{"below"})
		root.has(t, "below")
		f := p.opens(header(1, 0, 0)).send(items(0, 2, 1000)...)
		whole := f.object(items(2, 1, 1000)[0])
		f.write(whole[:500]) // the move is within an object
		v := a.views()
		v.has(items(0, 2, 1000)...)

		old.mu.Lock()
		for s := range old.sessions {
			s.mu.Lock()
			_ = s.control.send(&wire.GoAway{URI: uri(next, o.http), Timeout: 20_000, RequestID: goAwayID(o)})
			s.mu.Unlock()
		}
		old.mu.Unlock()
		until(t, "the next relay has the subscription", func() bool {
			s := next.Stats()
			return len(s.Tracks) == 1 && len(s.Tracks[0].Subscriptions) == 1
		})
		f.write(whole[500:])
		v.has(items(2, 1, 1000)...)
		f.send(items(3, 1, 1000)...)
		v.has(items(3, 1, 1000)...)
		until(t, "the old relay has no session left", func() bool { return old.Stats().Sessions == 0 })
		f.send(items(4, 1, 1000)...).close()
		v.has(items(4, 1, 1000)...)
		v.ends()
		p.opens(header(1, 1, 0)).send(items(0, 1, 10)...).close()
		v = a.views()
		v.has(items(0, 1, 10)...)
		v.ends()
		until(t, "nothing stays of the track", func() bool { return len(old.Stats().Tracks) == 0 })

		// What is published below is still known above, and namespaces are told of once.
		up := b.subscribes(track0("below"), wire.Parameters{})
		publisher(q, 1, track0("below"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](up)
		p.publishes("new")
		same(t, expect[*wire.NamespaceAvailable](w).Suffix, wire.Namespace{"new"})
		s := last.Stats()
		same(t, s.Upstreams[0].Sessions, 2)
		same(t, s.Upstreams[0].Failures, 0)
		same(t, s.FailedSessions+old.Stats().FailedSessions, 0)
	})
}

// TestMoveRequest has a relay subscribe again if its upstream relay asks for that by GOAWAY on the request.
func TestMoveRequest(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		root := start(t, nil)
		last := startBelow(t, o, nil, root)
		p, a := dial(t, root, options{}), dial(t, last, options{})
		p.publishes("live")
		c := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		expect[*wire.SubscribeOK](dial(t, root, options{}).subscribes(track0("live"), wire.Parameters{})) // which stays
		one := root.list()[0]
		one.mu.Lock()
		u := one.subs[0]
		_ = u.request.send(&wire.GoAway{})
		one.remove(u)
		u.end(wire.DoneGoingAway, "again, please")
		one.mu.Unlock()
		until(t, "the relay has subscribed again", func() bool {
			return len(root.Stats().Tracks[0].Subscriptions) == 2
		})
		p.opens(header(1, 0, 0)).send(items(0, 1, 10)...)
		a.views().has(items(0, 1, 10)...)
	})
}

// TestUpstreamTrusted doesn't ask for permission what an upstream relay wants.
func TestUpstreamTrusted(t *testing.T) {
	root := start(t, nil)
	last := startBelow(t, options{}, func(c *Config) {
		c.Authorize = func(_ context.Context, q *Request) error {
			if q.Action == Subscribe {
				return errors.New("no")
			}
			return nil
		}
	}, root)
	p, a, b := dial(t, last, options{}), dial(t, root, options{}), dial(t, last, options{})
	p.publishes("live")
	root.has(t, "live")
	b.subscribes(track0("live"), wire.Parameters{}).fails(wire.RequestUnauthorized)
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
}

// goAwayID is what draft 18 has in a GOAWAY.
func goAwayID(o options) wire.Optional[uint64] {
	if o.draft == wire.Draft18 {
		return wire.Some(uint64(100))
	}
	return wire.Optional[uint64]{}
}

// TestUpstreamBack has the relay between two others end and start again: subscriptions of players go on, and so does
// what is published below.
func TestUpstreamBack(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		relays := chain(t, o)
		root, last := relays[0], relays[2]
		p, b := dial(t, root, options{}), dial(t, root, options{})
		a, q := dial(t, last, options{}), dial(t, last, options{})
		p.publishes("live")
		p.publishes("late")
		q.publishes("below")
		root.has(t, "below")
		c := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		f := p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
		v := a.views()
		v.has(items(0, 2, 10)...)
		whole := f.object(items(2, 1, 1000)[0])
		f.write(whole[:500])
		address := relays[1].Addr()
		if err := relays[1].Close(); err != nil {
			t.Fatal(err)
		}
		v.isReset(wire.ResetCancelled, wire.ResetInternalError, wire.ResetSessionClosed)
		until(t, "the relay has lost it", func() bool { return !last.Stats().Upstreams[0].Connected })
		late := a.subscribes(track0("late"), wire.Parameters{}) // which waits for the relay
		startBelow(t, o, func(c *Config) { c.Address = address }, root)
		publishers := map[string]uint64{"live": 2, "late": 3}
		for range publishers {
			call, m := asked[*wire.Subscribe](p)
			call.send(&wire.SubscribeOK{TrackAlias: publishers[m.Track.Namespace[0]]})
		}
		expect[*wire.SubscribeOK](late)
		h := header(2, 0, 0)
		p.opens(h).send(append(items(0, 2, 10), items(2, 2, 1000)...)...).close()
		v = a.views()
		v.has(items(2, 2, 1000)...) // with the object that was cut off
		v.ends()
		root.has(t, "below")
		b.subscribes(track0("below"), wire.Parameters{})
		publisher(q, 1, track0("below"), wire.SubscribeOK{})
	})
}

// TestRestart has the relay between two others be drained, and start again when it has ended, after as long as
// subscriptions wait for one: the player's goes on.
func TestRestart(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		const patience = 3 * time.Second
		root := start(t, nil)
		middle := startBelow(t, o, func(c *Config) { c.Grace = patience }, root)
		last := startBelow(t, o, func(c *Config) { c.Patience = patience }, middle)
		p, players := dial(t, root, options{}), []*peer{dial(t, last, options{}), dial(t, last, options{})}
		sends := func(alias, group uint64, to ...*peer) {
			p.opens(header(alias, group, 0)).send(items(0, 2, 10)...).close()
			for _, a := range to {
				v := a.views()
				v.has(items(0, 2, 10)...)
				v.ends()
			}
		}
		p.publishes("live")
		c := players[0].subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		sends(1, 0, players[0])
		address := middle.Addr()
		drained := make(chan error, 1)
		go func() { drained <- middle.Drain(t.Context()) }()
		until(t, "it is asked to leave", func() bool {
			last.mu.Lock()
			defer last.mu.Unlock()
			return last.upstreams[0].usable() == nil
		})
		expect[*wire.SubscribeOK](players[1].subscribes(track0("live"), wire.Parameters{}))
		sends(1, 1, players...) // what it has is still forwarded
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		startBelow(t, o, func(c *Config) { c.Address = address }, root)
		publisher(p, 2, track0("live"), wire.SubscribeOK{})
		sends(2, 2, players...)
		same(t, last.Stats().Upstreams[0].Sessions, 2)
	})
}

// TestDrainAbove has a relay be drained that has none but a relay below, which needs nothing of it: that one leaves at
// once, and gets no session to be asked to leave again.
func TestDrainAbove(t *testing.T) {
	hops(t, func(t *testing.T, o options) {
		root := start(t, func(c *Config) { c.Grace = time.Hour })
		last := startBelow(t, o, nil, root)
		if err := root.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, last.Stats().Upstreams[0].Sessions, 1)
	})
}

// TestUpstreamGone ends subscriptions whose upstream relay doesn't come back in time, and refuses new ones.
func TestUpstreamGone(t *testing.T) {
	root := start(t, nil)
	last := startBelow(t, options{}, func(c *Config) { c.Patience = time.Second }, root)
	p, a := dial(t, root, options{}), dial(t, last, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	root.closing.Store(true) // the publisher's session is the first one that is closed
	source := root.list()[0]
	source.mu.Lock()
	_ = source.sources[0].session.conn.CloseWithError(0, "")
	source.mu.Unlock()
	until(t, "the publisher is gone", func() bool { return root.Stats().Tracks[0].Publishers == 0 })
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, expect[*wire.PublishDone](c).Code, wire.DoneInternalError)
	a.subscribes(track0("live"), wire.Parameters{}).fails(wire.RequestTimeout)
	a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("live")}).fails(wire.RequestTimeout)
	a.call(&wire.Fetch{RequestID: a.id(), Track: track0("live")}).fails(wire.RequestTimeout)
	s := last.Stats().Upstreams[0]
	if s.Connected || s.Failures == 0 || s.Error == "" {
		t.Errorf("%+v", s)
	}
}

// TestTreeLeft ends a subscription at once if its publisher leaves a relay, and no upstream relay has another one; else
// it goes on.
func TestTreeLeft(t *testing.T) {
	root := start(t, nil)
	last := startBelow(t, options{}, func(c *Config) { c.Patience = time.Hour }, root)
	p, q, a := dial(t, last, options{}), dial(t, last, options{}), dial(t, last, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	_ = p.conn.CloseWithError(0, "")
	same(t, expect[*wire.PublishDone](c).Code, wire.TrackEnded)

	moved := dial(t, root, options{})
	q.publishes("moves")
	c = a.subscribes(track0("moves"), wire.Parameters{})
	publisher(q, 1, track0("moves"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	moved.publishes("moves")
	_ = q.conn.CloseWithError(0, "")
	publisher(moved, 2, track0("moves"), wire.SubscribeOK{})
	moved.opens(header(2, 0, 0)).send(items(0, 1, 10)...)
	a.views().has(items(0, 1, 10)...)
}

// TestSecondUpstream has the second upstream relay be asked for what the first one doesn't have, or if it is gone.
func TestSecondUpstream(t *testing.T) {
	first, second := start(t, nil), start(t, nil)
	last := startBelow(t, options{}, nil, first, second)
	p, q, a := dial(t, second, options{}), dial(t, first, options{}), dial(t, last, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	p.publishes("both")
	q.publishes("both")
	d := a.subscribes(track0("both"), wire.Parameters{})
	publisher(q, 1, track0("both"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](d)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	publisher(p, 2, track0("both"), wire.SubscribeOK{})
	p.opens(header(2, 0, 0)).send(items(0, 1, 10)...)
	a.views().has(items(0, 1, 10)...)
	// What is learnt of one upstream relay isn't for another one.
	second.mu.Lock()
	defer second.mu.Unlock()
	for _, n := range second.namespaces {
		same(t, len(n.by), 1)
	}
}

// TestCycle has relays connect in a cycle: one of them notices it, and ends its session.
func TestCycle(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			addresses := make([]netip.AddrPort, n)
			for i := range addresses { // which are free
				r := start(t, nil)
				addresses[i] = r.Addr()
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			relays := make([]*Relay, n)
			for i := range relays {
				above := fmt.Sprintf("moqt://%v", addresses[(i+1)%n])
				relays[i] = start(t, func(c *Config) {
					c.Address, c.Patience = addresses[i], 2*time.Second
					c.Upstreams = []Upstream{{URI: above, TLS: &tls.Config{InsecureSkipVerify: true}}}
				})
			}
			until(t, "a relay has noticed the cycle", func() bool {
				return slices.ContainsFunc(relays, func(r *Relay) bool {
					return strings.Contains(r.Stats().Upstreams[0].Error, "form a cycle")
				})
			})
			a := dial(t, relays[0], options{})
			for _, c := range []*call{
				a.subscribes(track0("no"), wire.Parameters{}),
				a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("no")}),
				a.call(&wire.Fetch{RequestID: a.id(), Track: track0("no")}),
			} {
				e := expect[*wire.RequestError](c)
				if e.Code != wire.DoesNotExist && e.Code != wire.RequestTimeout {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// TestUpstreamErrors says what is wrong with an upstream relay.
func TestUpstreamErrors(t *testing.T) {
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Address: netip.MustParseAddrPort("127.0.0.1:0"), TLS: &tls.Config{Certificates: []tls.Certificate{pair}},
		Logger: slog.New(slog.DiscardHandler),
	}
	for given, want := range map[string]string{
		"127.0.0.1:1":         "isn't a URI",
		"http://host:1":       "write moqt://host:port/path",
		"moqt:///path":        "has no host",
		"moqt://user@host":    "a user or a fragment",
		"moqt://host/#a:b":    "a user or a fragment",
		"moqt://host:1 twice": "isn't a URI",
	} {
		config.Upstreams = []Upstream{{URI: given}}
		if _, err := Start(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, without %q", given, err, want)
		}
	}
	config.Upstreams = []Upstream{{URI: "moqt://host"}, {URI: "moqt://host"}}
	if _, err := Start(config); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}

	root := start(t, func(c *Config) { c.TLS.Certificates = []tls.Certificate{pair} })
	for name, tt := range map[string]struct {
		uri  string
		tls  *tls.Config
		want string
	}{
		"unknown authority": {uri(root, false), nil, "can't be verified, give its CA or hash"},
		"over HTTP":         {uri(root, true), nil, "can't be verified, give its CA or hash"},
		"another hash": {uri(root, false), certificate.Pinned(strings.Repeat("00", 32)),
			"is " + certificate.Hash(pair)},
		"no draft": {uri(root, false), &tls.Config{NextProtos: []string{"moqt-99"}},
			"speaks no draft that this relay does"},
		"no host": {"moqt://host.invalid", nil, "host.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.Upstreams = []Upstream{{URI: tt.uri, TLS: tt.tls}} })
			until(t, "it says what is wrong", func() bool {
				return strings.Contains(r.Stats().Upstreams[0].Error, tt.want)
			})
		})
	}
	r := start(t, func(c *Config) {
		c.Upstreams = []Upstream{{URI: uri(root, false), TLS: certificate.Pinned(certificate.Hash(pair))}}
	})
	r.isConnected(t)
}

// TestTreeStays has nothing of a tree stay when its relays have ended, no goroutine either.
func TestTreeStays(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		before := runtime.NumGoroutine()
		relays := chain(t, o)
		p, a := dial(t, relays[2], options{}), dial(t, relays[0], options{})
		p.publishes("live")
		relays[0].has(t, "live")
		c := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		b := dial(t, relays[2], options{})
		expect[*wire.RequestOK](b.call(&wire.SubscribeNamespace{RequestID: b.id()}))
		expect[*wire.RequestOK](b.call(&wire.SubscribeTracks{RequestID: b.id()}))
		b.subscribes(track0("no"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(20_000))})
		for _, p := range []*peer{p, a, b} {
			_ = p.conn.CloseWithError(0, "")
		}
		for _, r := range relays {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// TestRetry has the relay wait for a share of the time that it has been without a session, within limits, and not
// always as long.
func TestRetry(t *testing.T) {
	for gone := time.Duration(0); gone < time.Hour; gone += gone/8 + time.Millisecond {
		most := min(max(gone/4, firstRetry), lastRetry)
		if d := retryAfter(gone); d < most/2 || d >= most {
			t.Errorf("after %v, it waits %v", gone, d)
		}
	}
}

// TestUpstreamSetup has SETUP say which relay is meant, and with which tokens.
func TestUpstreamSetup(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		sessions := make(chan Request, 1)
		root := start(t, func(c *Config) {
			c.Authorize = func(_ context.Context, q *Request) error {
				if q.Action == OpenSession {
					sessions <- *q
				}
				return nil
			}
		})
		last := start(t, func(c *Config) {
			up := upstreamOf(root, o)
			up.URI = strings.TrimSuffix(up.URI, "/") + "/live?key=1"
			up.Tokens = []Token{{Type: 5, Value: "secret"}}
			c.Upstreams = []Upstream{up}
		})
		q := <-sessions
		same(t, q.Scope, "/live")
		same(t, q.SessionTokens, []Token{{5, "secret"}})
		until(t, "it is connected", func() bool { return last.Stats().Upstreams[0].Connected })
		same(t, strings.Contains(last.Stats().Upstreams[0].URI, "key"), false)
	})
}
