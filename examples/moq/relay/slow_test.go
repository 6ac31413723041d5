package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// narrow is a peer that allows few bytes to be on their way.
func narrow(window uint64) options {
	return options{quic: quic.Config{
		InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: window, MaxConnectionReceiveWindow: window,
	}}
}

// TestSlow has a subscriber that reads nothing: it loses what is least urgent, and counts why; another one gets all.
func TestSlow(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		const size, streams = 50_000, 20
		r := start(t, func(c *Config) { c.Backlog = 6 * size })
		slow := narrow(16 << 10)
		slow.http = o.http
		p, a, b := dial(t, r, o), dial(t, r, o), dial(t, r, slow)
		pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1})
		expect[*wire.RequestOK](pub)
		good, bad := a.subscribes(track0("live"), wire.Parameters{}), b.subscribes(track0("live"), wire.Parameters{})
		expect[*wire.SubscribeOK](good)
		expect[*wire.SubscribeOK](bad)
		for i := range uint64(streams) {
			h := header(1, i, 0)
			if i%10 != 0 {
				h.Priority = wire.Some(uint8(200))
			}
			p.opens(h).send(items(0, 1, size)...).close()
			v := a.views()
			v.has(items(0, 1, size)...)
			v.ends()
		}
		// What has room waits, among it all that is urgent.
		until(t, "all but six streams are given up", func() bool {
			return r.Stats().Tracks[0].Sent.Dropped[droppedBacklog] >= streams-6
		})
		pub.send(&wire.PublishDone{Code: wire.TrackEnded, Streams: streams})
		same(t, expect[*wire.PublishDone](good).Streams, streams)
		// It begins to read: what is urgent is there.
		var mu sync.Mutex
		whole := map[uint64]bool{}
		go func() {
			for v := range b.streams {
				go func() {
					if h, ok := v.parse(); ok {
						if i, err := v.next(); err == nil && len(i.payload) == size {
							mu.Lock()
							whole[h.Group] = true
							mu.Unlock()
						}
					}
				}()
			}
		}()
		until(t, "what is urgent has come", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return whole[0] && whole[10]
		})
		done := expect[*wire.PublishDone](bad)
		mu.Lock()
		defer mu.Unlock()
		if n := uint64(len(whole)); done.Streams < n || done.Streams > streams || n > 7 {
			t.Errorf("%d streams are whole, of %d that were opened", n, done.Streams)
		}
	})
}

// TestTimeouts resets streams that are late: by the subscriber's timeouts, by the track's, and by that of a subgroup's
// first object (§5.2).
func TestTimeouts(t *testing.T) {
	const soon, never = uint64(150), uint64(1 << 40)
	object, whole := wire.PropertyObjectDeliveryTimeout, wire.PropertySubgroupDeliveryTimeout
	for _, tt := range []struct {
		name       string
		subscriber wire.Parameters
		track      []wire.Property
		first      []wire.Property
	}{
		{name: "the subscriber's for objects", subscriber: wire.Parameters{ObjectDeliveryTimeout: wire.Some(soon)}},
		{name: "the subscriber's for subgroups", subscriber: wire.Parameters{SubgroupDeliveryTimeout: wire.Some(soon)}},
		{name: "the track's for objects", track: []wire.Property{{Type: uint64(object), Value: soon}}},
		{name: "the track's for subgroups", track: []wire.Property{{Type: uint64(whole), Value: soon}},
			subscriber: wire.Parameters{SubgroupDeliveryTimeout: wire.Some(never)}},
		{name: "the first object's", track: []wire.Property{{Type: uint64(object), Value: never}},
			first: []wire.Property{{Type: uint64(object), Value: soon}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, nil)
			p, a := dial(t, r, options{}), dial(t, r, narrow(10_000))
			expect[*wire.RequestOK](p.call(&wire.Publish{
				RequestID: p.id(), Track: track0("live"), TrackAlias: 1, Properties: properties(t, tt.track...)}))
			expect[*wire.SubscribeOK](a.subscribes(track0("live"), tt.subscriber))
			h := header(1, 0, 0)
			h.Properties = true
			// The first object fills what the peer allows, which it does again after it is too late for the second.
			begin := time.Now()
			first := item{payload: make([]byte, 20_000), properties: properties(t, tt.first...)}
			p.opens(h).send(first).send(items(1, 1, 1000)...).close()
			v := a.views()
			until(t, "it is too late", func() bool { return time.Since(begin) > 4*milliseconds(soon) })
			v.isReset(wire.ResetDeliveryTimeout)
			until(t, "it is counted", func() bool { return r.Stats().Tracks[0].Sent.Dropped[droppedTimeout] == 1 })
		})
	}
}

// TestCacheDuration serves nothing from the cache that the publisher's MAX_CACHE_DURATION is over of (§10.3).
func TestCacheDuration(t *testing.T) {
	const duration = 300
	r := start(t, nil)
	p, a, b := dial(t, r, options{}), dial(t, r, options{}), dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1,
		Properties: properties(t, wire.Property{Type: wire.PropertyMaxCacheDuration, Value: duration})}))
	expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
	f := p.opens(header(1, 0, 0)).send(items(0, 2, 10)...)
	v := a.views()
	v.has(items(0, 2, 10)...)
	since := time.Now()
	until(t, "the objects are expired", func() bool { return time.Since(since) > 2*duration*time.Millisecond })
	expect[*wire.SubscribeOK](b.subscribes(track0("live"), wire.Parameters{}))
	f.send(items(2, 1, 10)...)
	b.views().has(items(2, 1, 10)...)
}

// TestCache bounds what is kept: the oldest groups go first, and within one that doesn't end the oldest bytes.
func TestCache(t *testing.T) {
	const size = 1000
	r := start(t, func(c *Config) { c.TrackCache = 10 * size })
	p := dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
	for i := range uint64(30) {
		p.opens(header(1, i, 0)).send(items(0, 1, size)...).close()
		until(t, "the group has come", func() bool { return r.Stats().Tracks[0].Received.Objects == i+1 })
	}
	groups := func() (all []uint64) {
		for _, t := range r.list() {
			t.mu.Lock()
			defer t.mu.Unlock()
			for _, g := range t.groups {
				all = append(all, g.id)
			}
		}
		return all
	}
	same(t, groups(), []uint64{21, 22, 23, 24, 25, 26, 27, 28, 29})
	if n := r.Stats().Cached; n > 10*size || n < 8*size {
		t.Fatalf("%d bytes are kept", n)
	}
	f := p.opens(header(1, 30, 0))
	for i := range uint64(30) {
		f.send(items(i, 1, size)...)
		until(t, "the object has come", func() bool { return r.Stats().Tracks[0].Received.Objects == 31+i })
	}
	same(t, groups(), []uint64{30})
	if n := r.Stats().Cached; n > 10*size || n < 8*size {
		t.Fatalf("%d bytes are kept", n)
	}
	// Who joins now gets the group from the first object on that is kept.
	a := dial(t, r, options{})
	expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
	v := a.views()
	same(t, v.header.FirstObject, false)
	i, err := v.next()
	if err != nil || i.id < 20 || i.id > 22 {
		t.Fatalf("the first object is %d: %v", i.id, err)
	}
	v.has(items(i.id+1, int(29-i.id), size)...)
	_ = p.conn.CloseWithError(0, "")
	_ = a.conn.CloseWithError(0, "")
	until(t, "nothing is kept of what isn't in use", func() bool { return r.Stats().Cached == 0 })
}

// TestExpire forgets groups that are old, but for the largest.
func TestExpire(t *testing.T) {
	r := start(t, func(c *Config) { c.Keep = time.Millisecond })
	p := dial(t, r, options{})
	expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
	for i := range uint64(3) {
		p.opens(header(1, 2-i, 0)).send(items(0, 1, 100)...).close()
	}
	until(t, "the largest group remains", func() bool {
		for _, t := range r.list() {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.received.Objects == 3 && len(t.groups) == 1 && t.groups[0].id == 2
		}
		return false
	})
}

// TestAuthorize asks the hook about sessions and requests (§15.3).
func TestAuthorize(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		type question struct {
			action Action
			name   string
			tokens []Token
		}
		asked := make(chan question, 16)
		r := start(t, func(c *Config) {
			c.Authorize = func(_ context.Context, q *Request) error {
				asked <- question{q.Action, q.Track.String(), q.Tokens}
				switch {
				case q.Scope != "/" || q.Remote == nil:
					return errors.New("the scope or the address isn't the peer's")
				case !slices.Contains(q.SessionTokens, Token{1, "session"}):
					return errors.New("no token")
				case q.Action == OpenSession || slices.Contains(q.Tokens, Token{2, "good"}):
					return nil
				case slices.Contains(q.Tokens, Token{2, "old"}):
					return &wire.Rejection{Code: wire.RequestExpiredToken, Text: "expired"}
				}
				return errors.New("not allowed")
			}
		})
		dial(t, r, o).closes(wire.SessionUnauthorized)
		<-asked
		o.setup = &wire.Setup{Tokens: []wire.Token{{AliasType: wire.UseValue, Type: 1, Value: "session"}}}
		p := dial(t, r, o)
		same(t, <-asked, question{OpenSession, "--", nil})
		good := wire.Parameters{Tokens: []wire.Token{{AliasType: wire.Register, Alias: 5, Type: 2, Value: "good"}}}
		again := wire.Parameters{Tokens: []wire.Token{{AliasType: wire.UseAlias, Alias: 5}}}
		old := wire.Parameters{Tokens: []wire.Token{{AliasType: wire.UseValue, Type: 2, Value: "old"}}}
		name := wire.Namespace{"live"}
		p.call(&wire.PublishNamespace{RequestID: p.id(), Namespace: name}).fails(wire.RequestUnauthorized)
		same(t, <-asked, question{PublishNamespace, "live--", nil})
		expect[*wire.RequestOK](p.call(&wire.PublishNamespace{RequestID: p.id(), Namespace: name, Parameters: good}))
		same(t, <-asked, question{PublishNamespace, "live--", []Token{{2, "good"}}})
		pub := p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), Parameters: again})
		expect[*wire.RequestOK](pub)
		same(t, <-asked, question{Publish, "live--track", []Token{{2, "good"}}})
		p.subscribes(track0("live"), old).fails(wire.RequestExpiredToken)
		same(t, <-asked, question{Subscribe, "live--track", []Token{{2, "old"}}})
		for action, m := range map[Action]wire.Message{
			SubscribeNamespace: &wire.SubscribeNamespace{RequestID: p.id(), Prefix: name, Parameters: old},
			SubscribeTracks:    &wire.SubscribeTracks{RequestID: p.id(), Prefix: name, Parameters: old},
			TrackStatus:        &wire.TrackStatus{RequestID: p.id(), Track: track0("live"), Parameters: old},
		} {
			p.call(m).fails(wire.RequestExpiredToken)
			same(t, (<-asked).action, action)
		}
		// An update is asked about as well; one that is refused ends the subscription (§9.5.1).
		c := p.subscribes(track0("live"), again)
		expect[*wire.SubscribeOK](c)
		<-asked
		c.send(&wire.RequestUpdate{RequestID: p.id(), Parameters: old})
		same(t, expect[*wire.RequestError](c).Code, wire.RequestExpiredToken)
		same(t, expect[*wire.PublishDone](c).Code, wire.UpdateFailed)
		c.ends()
	})
}

// TestDrain asks peers to leave, and goes on until they have (§9.2).
func TestDrain(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, func(c *Config) { c.Grace = time.Hour })
		p, a := dial(t, r, o), dial(t, r, o)
		expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("live"), TrackAlias: 1}))
		expect[*wire.SubscribeOK](a.subscribes(track0("live"), wire.Parameters{}))
		drained := make(chan error, 1)
		go func() { drained <- r.Drain(context.Background()) }()
		for _, q := range []*peer{p, a} {
			if _, ok := (<-q.messages).(*wire.Setup); !ok {
				t.Fatal("no SETUP")
			}
			same(t, (<-q.messages).(*wire.GoAway), &wire.GoAway{Timeout: uint64(time.Hour / time.Millisecond)})
		}
		p.call(&wire.PublishNamespace{RequestID: p.id(), Namespace: wire.Namespace{"new"}}).fails(wire.RequestGoingAway)
		p.opens(header(1, 0, 0)).send(items(0, 1, 10)...).close()
		a.views().has(items(0, 1, 10)...)
		_ = p.conn.CloseWithError(0, "")
		_ = a.conn.CloseWithError(0, "")
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
	})
}

// TestGrace closes the sessions of peers that don't leave.
func TestGrace(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, func(c *Config) { c.Grace = 100 * time.Millisecond })
		busy := dial(t, r, o)
		busy.publishes("live")
		if err := r.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		busy.closes(wire.GoAwayTimeout)
	})
}
