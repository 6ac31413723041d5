package others

import (
	"fmt"
	"testing"
)

// clients are programs, each in both drafts, on one transport in each.
var clients = []client{
	{"aiomoqt", "18", true}, {"aiomoqt", "22", false}, {"moqtap", "18", false}, {"moqtap", "22", true},
}

// TestAcross has each publisher reach each subscriber through our relay, across drafts, transports and lossy links:
// all objects, byte for byte, and those who come late all from the next object on, or from the largest group's first.
func TestAcross(t *testing.T) {
	build(t, aiomoqt, moqtap)
	for _, percent := range []int{0, 1, 5} {
		t.Run(fmt.Sprintf("loss of %d%%", percent), func(t *testing.T) {
			b := newBed(t, float64(percent)/100)
			b.start(t)
			for i, from := range clients {
				t.Run(from.String(), func(t *testing.T) { b.across(t, from, fmt.Sprint("track", i)) })
			}
		})
	}
}

func (b *bed) across(t *testing.T, from client, track string) {
	const early, late, objects, size = 3, 2, 10, 3000
	p := from.publishes(t, b.publishers.Command, b.at, track, 0)
	var subscribers []*peer
	for _, to := range clients {
		subscribers = append(subscribers, to.subscribes(t, b.users.Command, b.at, track, (early+late)*objects, "next"))
	}
	p.says("subscribed")
	first := p.sends(early, objects, size)
	for _, s := range subscribers {
		s.gets(first)
	}
	next := aiomoqtLate.subscribes(t, b.users.Command, b.at, track, late*objects, "next")
	group := moqtapLate.subscribes(t, b.users.Command, b.at, track, (1+late)*objects)
	group.gets(first[(early-1)*objects:])
	second := p.sends(late, objects, size)
	subscribers = append(subscribers, next, group)
	for _, s := range subscribers {
		s.gets(second)
	}
	p.tell("done")
	for _, s := range subscribers {
		s.says("done 0x2")
	}
}

// Those who come late.
var aiomoqtLate, moqtapLate = client{"aiomoqt", "22", true}, client{"moqtap", "18", false}

// TestPublisherKilled kills a publisher, and has another program go on with its track: players notice nothing.
func TestPublisherKilled(t *testing.T) {
	build(t, aiomoqt, moqtap)
	for i, first := range clients {
		second := clients[(i+2)%len(clients)]
		t.Run(first.program+" "+first.draft, func(t *testing.T) {
			r, _ := inside(t, local)
			p := first.publishes(t, here, r.Addr(), "live", 0)
			var players []*peer
			for _, to := range clients {
				players = append(players, to.subscribes(t, here, r.Addr(), "live", 40, "next"))
			}
			p.says("subscribed")
			for at := range 2 {
				if at > 0 {
					check(t, p.cmd.Process.Kill())
					p = second.publishes(t, here, r.Addr(), "live", 2)
					p.says("subscribed")
				}
				sent := p.sends(2, 10, 3000)
				for _, s := range players {
					s.gets(sent)
				}
			}
		})
	}
}
