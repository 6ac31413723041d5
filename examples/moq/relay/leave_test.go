package relay

import (
	"runtime"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// TestNothingStays has peers with requests of all kinds leave, in both drafts: nothing of them stays, no goroutine
// either.
func TestNothingStays(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		before := runtime.NumGoroutine()
		for _, draft := range []wire.Draft{wire.Draft18, wire.Draft22} {
			o.draft = draft
			p, a := dial(t, r, o), dial(t, r, narrowLike(o))
			p.publishes("live")
			expect[*wire.RequestOK](a.call(&wire.SubscribeNamespace{RequestID: a.id()}))
			expect[*wire.RequestOK](a.call(&wire.SubscribeTracks{RequestID: a.id(), Prefix: wire.Namespace{"pub"}}))
			expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("pub"), TrackAlias: 1}))
			up, _ := asked[*wire.Publish](a)
			up.send(&wire.RequestOK{})
			c := a.subscribes(track0("live"), wire.Parameters{})
			publisher(p, 2, track0("live"), wire.SubscribeOK{})
			expect[*wire.SubscribeOK](c)
			a.subscribes(track0("nowhere"), wire.Parameters{RendezvousTimeout: wire.Some(uint64(1 << 30))})
			a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0("live")})
			for alias := range uint64(2) {
				p.opens(header(alias+1, 0, 0)).send(items(0, 3, 10_000)...)
				p.opens(header(alias+1, 1, 0)).send(items(0, 3, 10_000)...).close()
			}
			a.call(&wire.Fetch{RequestID: a.id(), Track: track0("pub"), Parameters: wire.Parameters{
				LocationFilter: wire.Some(wire.LocationFilter{Kind: wire.FilterRange, End: wire.Location{Group: 9}})}})
			until(t, "a stream has come, of a subgroup or of the fetch", func() bool { return len(a.streams) > 0 })
			_ = p.conn.CloseWithError(0, "")
			_ = a.conn.CloseWithError(0, "")
		}
		until(t, "nothing stays", func() bool {
			s := r.Stats()
			r.mu.Lock()
			defer r.mu.Unlock()
			registered := len(r.tracks) + len(r.namespaces) + len(r.watchers) + len(r.followers)
			return s.Sessions == 0 && s.Cached == 0 && registered == 0
		})
		until(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// narrowLike is a peer that allows few bytes to be on their way.
func narrowLike(o options) options {
	n := narrow(16 << 10)
	n.http, n.draft = o.http, o.draft
	return n
}
