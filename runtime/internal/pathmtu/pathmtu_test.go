package pathmtu

import (
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/icmp"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// An error is about what a row sends if the ports that it quotes are the row's, as far as the row has any.
func TestMatch(t *testing.T) {
	ports := func(from, to int32) icmp.Ports { return icmp.Ports{From: from, To: to} }
	exact, none := ports(5000, 7000), anyPorts
	for _, tt := range []struct {
		name  string
		sent  icmp.Ports
		about []icmp.Ports
		not   []icmp.Ports
	}{
		{"both ports", exact, []icmp.Ports{exact},
			[]icmp.Ports{none, ports(5000, 7001), ports(5001, 7000), ports(7000, 5000)}},
		{"no port", anyPorts, []icmp.Ports{exact, none, ports(1, 2)}, nil},
		{"a destination", ports(icmp.AnyPort, 7000), []icmp.Ports{exact, ports(1, 7000)},
			[]icmp.Ports{none, ports(5000, 7001)}},
		{"a source", ports(5000, icmp.AnyPort), []icmp.Ports{exact, ports(5000, 1)},
			[]icmp.Ports{none, ports(5001, 7000)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for want, list := range map[int][]icmp.Ports{1000: tt.about, 0: tt.not} {
				for _, p := range list {
					n := &notice{mtu: 1000}
					about := quoted{}
					about.add(p, n)
					if got := about.match(slices.Values([]icmp.Ports{tt.sent})); got != want || n.ours != (want > 0) {
						t.Errorf("about ports %v: an MTU of %d, want %d; ours: %v", p, got, want, n.ours)
					}
				}
			}
		})
	}
	// Of several, the smallest counts, and what no row sends is ignored.
	about := quoted{}
	for port, mtu := range map[int32]int{1: 1400, 2: 1300, 3: 600} {
		about.add(ports(port, 7000), &notice{mtu: mtu})
	}
	if got := about.match(slices.Values([]icmp.Ports{ports(1, 7000), ports(2, 7000)})); got != 1300 {
		t.Errorf("an MTU of %d, want the smaller one of two", got)
	}
}

// hops are next hops that a test has made up.
type hops struct {
	sync.Mutex
	all map[Key]*hop
}

type hop struct {
	now routes.Hop
	via routes.Neighbour
}

func (h *hops) Len() int            { return len(h.all) }
func (h *hops) Keys() iter.Seq[Key] { return maps.Keys(h.all) }

func (h *hops) Find(key Key) Hop {
	if e := h.all[key]; e != nil {
		return e
	}
	return nil
}

func (e *hop) Now() (routes.Hop, routes.Neighbour) { return e.now, e.via }
func (e *hop) Ports() iter.Seq[icmp.Ports]         { return slices.Values([]icmp.Ports{anyPorts}) }

// An MTU that is kept lowers that of its hop until it is old, the path is another one, or the kernel knows.
func TestKept(t *testing.T) {
	key := Key{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9")}
	e := &hop{now: routes.Hop{State: abi.HopNeighbour, Ifindex: 3, MTU: 1500}, via: routes.Neighbour{Ifindex: 3}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	resolver, err := routes.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer resolver.Close()
	p, err := Open(&hops{all: map[Key]*hop{key: e}}, resolver, func(f func() error) error { return f() }, log)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	report := func(mtu int) {
		p.note(icmp.Quote{From: key.From, To: key.To, Ports: icmp.Ports{From: 5000, To: 7000}}, mtu)
		p.verify()
	}
	limit := func() int { return p.Limit(key, e.now, e.via).MTU }
	for _, tt := range []struct {
		name   string
		change func()
		want   int
	}{
		{"an error", func() { report(1400) }, 1400},
		{"a smaller one", func() { report(1300) }, 1300},
		{"a larger one", func() { report(1450) }, 1300},
		{"9 minutes later", func() { p.Age(9 * time.Minute); p.expire(time.Now()) }, 1300},
		{"10 minutes later", func() { p.Age(time.Minute); p.expire(time.Now()) }, 1500},
		{"the error again", func() { report(1400) }, 1400},
		{"another neighbour", func() { e.via.Addr = netip.MustParseAddr("192.0.2.254") }, 1500},
		{"an error about that path", func() { report(1400) }, 1400},
		{"the kernel knows", func() { e.now.MTU = 1350 }, 1350},
		{"the kernel has forgotten", func() { e.now.MTU = 1500 }, 1500},
		{"no route", func() { e.now.State = abi.HopUnreachable; report(1400) }, 1500},
	} {
		tt.change()
		if got := limit(); got != tt.want {
			t.Errorf("%s: an MTU of %d, want %d", tt.name, got, tt.want)
		}
	}
	if changed := p.Changes(); !changed[key.To] || len(changed) != 1 || len(p.Changes()) != 0 {
		t.Errorf("hops to resolve again: %v", changed)
	}
	if kept, taken, ignored := p.Counts(); kept != 0 || taken != 6 || ignored != 0 {
		t.Errorf("%d kept, %d errors taken, %d ignored", kept, taken, ignored)
	}
	p.note(icmp.Quote{From: key.To, To: key.From}, 1400)
	p.verify()
	if _, _, ignored := p.Counts(); ignored != 1 {
		t.Errorf("an error about what the relay doesn't send: %d ignored", ignored)
	}
}
