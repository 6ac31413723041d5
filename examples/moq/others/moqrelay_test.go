package others

import (
	"net/netip"
	"testing"
)

// hops are how relays are connected: on both transports, in another draft each.
var hops = []client{{draft: "18", http: true}, {draft: "22"}}

// TestMoqRelay has moq-relay above our relay, and below it: publishers at each of the two reach players at the other.
func TestMoqRelay(t *testing.T) {
	build(t, aiomoqt, moqtap, moqRelay)
	all, _ := programs(t, "moq-relay")
	for _, on := range hops {
		t.Run("above/"+on.String(), func(t *testing.T) {
			_, theirs := outside(t, all[0], netip.AddrPort{}, on.draft)
			r, _ := inside(t, local, trusting(on.url(theirs)))
			connected(t, r)
			t.Run("down", func(t *testing.T) { passes(t, on.draft, "down", theirs, r.Addr()) })
			t.Run("up", func(t *testing.T) { passes(t, on.draft, "up", r.Addr(), theirs) })
		})
		t.Run("below/"+on.String(), func(t *testing.T) {
			r, _ := inside(t, local)
			_, theirs := outside(t, all[0], netip.AddrPort{}, on.draft, "--cluster-connect", on.url(r.Addr()),
				"--connect-tls-insecure", "--connect-version", "moq-transport-"+on.draft)
			t.Run("down", func(t *testing.T) { passes(t, on.draft, "down", r.Addr(), theirs) })
			t.Run("up", func(t *testing.T) { passes(t, on.draft, "up", theirs, r.Addr()) })
		})
	}
}

// passes has publishers at a relay reach players at another one: all objects, byte for byte.
func passes(t *testing.T, draft, track string, from, to netip.AddrPort) {
	const groups, objects, size = 3, 10, 3000
	p := client{"aiomoqt", draft, false}.publishes(t, here, from, track, 0)
	known := client{"moqtap", draft, false}.start(t, here, to, "namespace", track, track)
	known.says("ok")
	known.says("namespace")
	var players []*peer
	for _, program := range []string{"aiomoqt", "moqtap"} {
		c := client{program, draft, false}
		players = append(players, c.subscribes(t, here, to, track, groups*objects, "next"))
	}
	p.says("subscribed")
	for range groups {
		sent := p.sends(1, objects, size)
		for _, s := range players {
			s.gets(sent)
		}
	}
	p.tell("done")
	for _, s := range players {
		s.says("done")
	}
}
