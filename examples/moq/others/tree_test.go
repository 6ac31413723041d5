package others

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// TestLeafKilled kills the relay that players have, which comes back at its address. Players who come back as well get
// what follows, and one who asks for it the largest group, which was published meanwhile.
func TestLeafKilled(t *testing.T) {
	build(t, aiomoqt, moqtap)
	ours, _ := programs(t, "ours")
	for _, on := range hops {
		t.Run(on.String(), func(t *testing.T) {
			root, hash := inside(t, local)
			args := []string{
				"-reset-key", filepath.Join(t.TempDir(), "key"),
				"-upstream", on.url(root.Addr()), "-upstream-hash", hash,
			}
			leaf, at := outside(t, ours[0], netip.AddrPort{}, on.draft, args...)
			const objects, size = 10, 3000
			var publishers, players []*peer
			for i, c := range clients {
				track := fmt.Sprint("track", i)
				publishers = append(publishers, c.publishes(t, here, root.Addr(), track, 0))
				players = append(players, c.subscribes(t, here, at, track, 3*objects, "next"))
			}
			for i, p := range publishers {
				p.says("subscribed")
				players[i].gets(p.sends(2, objects, size))
			}
			check(t, leaf.Process.Kill())
			_ = leaf.Wait() // it was killed
			var missed [][]string
			for _, p := range publishers {
				missed = append(missed, p.sends(1, objects, size))
			}
			outside(t, ours[0], at, on.draft, args...)
			for i, p := range publishers {
				track := fmt.Sprint("track", i)
				next := aiomoqtLate.subscribes(t, here, at, track, objects, "next")
				group := moqtapLate.subscribes(t, here, at, track, 2*objects)
				group.gets(missed[i])
				sent := p.sends(1, objects, size)
				for _, s := range []*peer{next, group} {
					s.gets(sent)
				}
				p.tell("done")
				for _, s := range []*peer{next, group} {
					s.says("done 0x2")
				}
			}
		})
	}
}

// A tree is three relays of ours, with publishers at the root and players at the leaf. The middle one is killed and
// comes back at its address.
type tree struct {
	root, leaf *relay.Relay
	middle     *exec.Cmd
	at         netip.AddrPort // of the middle one
	start      func() (*exec.Cmd, netip.AddrPort)
}

func newTree(t *testing.T, on client) *tree {
	t.Helper()
	ours, _ := programs(t, "ours")
	r := &tree{}
	var hash string
	r.root, hash = inside(t, local)
	args := []string{
		"-reset-key", filepath.Join(t.TempDir(), "key"), "-upstream", on.url(r.root.Addr()), "-upstream-hash", hash,
	}
	r.start = func() (*exec.Cmd, netip.AddrPort) { return outside(t, ours[0], r.at, on.draft, args...) }
	r.middle, r.at = r.start()
	r.leaf, _ = inside(t, local, trusting(on.url(r.at)))
	connected(t, r.leaf)
	return r
}

// connected waits until a relay has a session with the one above it.
func connected(t *testing.T, r *relay.Relay) {
	t.Helper()
	check(t, testnet.Until(patience, "the upstream relay is connected", func() bool {
		return r.Stats().Upstreams[0].Connected
	}))
}

// kill kills the relay in the middle.
func (r *tree) kill(t *testing.T) {
	t.Helper()
	check(t, r.middle.Process.Kill())
	_ = r.middle.Wait() // it was killed
}

// back starts it again. The leaf learns that when it asks for something: small packets aren't answered by a reset.
func (r *tree) back(t *testing.T) {
	t.Helper()
	r.middle, _ = r.start()
	long := strings.Repeat("long", 20)
	client{"moqtap", "22", false}.start(t, here, r.leaf.Addr(), "status", long, long).says("error")
}

// TestRelayKilled kills a relay between two others: publishers and players notice nothing but a pause.
func TestRelayKilled(t *testing.T) {
	build(t, aiomoqt, moqtap)
	for _, on := range hops {
		t.Run(on.String(), func(t *testing.T) {
			r := newTree(t, on)
			const objects, size = 10, 3000
			var publishers, players []*peer
			for i, c := range clients {
				track := fmt.Sprint("track", i)
				publishers = append(publishers, c.publishes(t, here, r.root.Addr(), track, 0))
				other := clients[(i+2)%len(clients)] // of the other program, in the same draft
				players = append(players, other.subscribes(t, here, r.leaf.Addr(), track, 4*objects, "next"))
			}
			play := func(groups int) (all [][]string) {
				for _, p := range publishers {
					all = append(all, p.sends(groups, objects, size))
				}
				return all
			}
			watch := func(all [][]string) {
				for i, p := range players {
					p.gets(all[i])
				}
			}
			for _, p := range publishers {
				p.says("subscribed")
			}
			watch(play(2))
			r.kill(t)
			missed := play(1)
			r.back(t)
			watch(missed)
			watch(play(1))
			for i, p := range publishers {
				p.tell("done")
				players[i].says("done 0x2")
			}
		})
	}
}
