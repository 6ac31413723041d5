package runtime

import (
	"maps"
	"net"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// hopOf reads the hop of a session's row out of the kernel.
func hopIn(t testing.TB, s *AnySession, row int) Hop {
	t.Helper()
	tr := s.rows[row]
	b, err := tr.table.m.LookupBytes(tr.key)
	if err != nil || b == nil {
		t.Fatalf("row %d: %v", row, err)
	}
	off := 0
	for _, m := range tr.table.desc.Value {
		if m.Kind == abi.KindHop {
			off = m.Off
		}
	}
	return Hop{
		State: HopState(b[off+6]), Ifindex: int(abi.Order.Uint32(b[off:])), MTU: int(abi.Order.Uint16(b[off+4:])),
		Dst: [6]byte(b[off+8:]), Src: [6]byte(b[off+14:]),
	}
}

// network is a host with two devices: a client's network on one, a router to everything else on the other.
func network(t testing.TB) *bench {
	t.Helper()
	b := newBench(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(b.dev.AddAddr("192.0.2.1/24"))
	must(b.there.AddAddr("192.0.2.254/24"))
	must(b.dev.AddAddr("2001:db8::1/64"))
	must(b.there.AddAddr("2001:db8::fe/64"))
	must(b.dev.AddRoute("198.51.100.0/24", "192.0.2.254"))
	must(b.dev.AddRoute("203.0.113.0/24", "192.0.2.254"))
	must(b.dev.AddRoute("2001:db8:9::/64", "2001:db8::fe"))
	return b
}

func TestHopsFollowTheNetwork(t *testing.T) {
	b := network(t)
	r := b.load(t, Options{})
	s := open(t, r, 1)
	gateway := [6]byte(b.there.MAC)
	direct := Hop{HopDirect, b.dev.Index, 1500, gateway, [6]byte(b.dev.MAC)}
	is := func(what string, row int, want Hop) {
		t.Helper()
		until(t, 3*time.Second, what+" "+want.State.String(), func() bool { return hopIn(t, s, row) == want })
		if run(t, r, packet(1)) != forwarded {
			t.Errorf("%s: the session doesn't forward", what)
		}
	}
	ip := func(args ...string) {
		t.Helper()
		if err := b.host.Run("ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	// No packet was sent: opening the session made the kernel look for the gateway.
	is("at first", 0, direct)
	is("at first, to the client", 1, direct)

	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	ip("neigh", "replace", "192.0.2.254", "lladdr", other.String(), "dev", "in0", "nud", "permanent")
	moved := direct
	moved.Dst = [6]byte(other)
	is("the gateway has another address", 0, moved)
	// What a person made permanent stays so, though it is in use.
	via := routes.Neighbour{Ifindex: b.dev.Index, Addr: netip.MustParseAddr("192.0.2.254")}
	r.hops.routes.Probe(via)
	is("still", 0, moved)
	if out, err := b.host.Command(t.Context(), "ip", "neigh", "show", "192.0.2.254").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "PERMANENT") {
		t.Errorf("a permanent neighbour became %s, %v", out, err)
	}
	ip("neigh", "del", "192.0.2.254", "dev", "in0")
	// If the next hop is lost, the kernel is asked to find it again.
	until(t, time.Second, "it is gone", func() bool {
		return hopIn(t, s, 0).State == HopNeighbour || hopIn(t, s, 0) == direct
	})
	is("it is found again", 0, direct)

	ip("route", "replace", "203.0.113.0/24", "via", "192.0.2.254", "dev", "in0", "mtu", "1300")
	narrow := direct
	narrow.MTU = 1300
	is("the route has an MTU", 0, narrow)
	is("the other route has none", 1, direct)
	for _, tt := range []struct {
		kind string
		want HopState
	}{{"blackhole", HopBlackhole}, {"unreachable", HopUnreachable}, {"prohibit", HopProhibit}} {
		ip("route", "add", tt.kind, "203.0.113.9/32")
		is(tt.kind, 0, Hop{State: tt.want})
		ip("route", "del", tt.kind, "203.0.113.9/32")
		is("no more "+tt.kind, 0, narrow)
	}
	ip("rule", "add", "to", "203.0.113.9", "unreachable")
	is("a rule", 0, Hop{}) // for the kernel, the same as no route
	ip("rule", "del", "to", "203.0.113.9", "unreachable")
	is("no more rule", 0, narrow)
	ip("addr", "add", "203.0.113.9/32", "dev", "lo")
	is("the peer is this host", 0, Hop{State: HopLocal})
	ip("addr", "del", "203.0.113.9/32", "dev", "lo")
	is("it is not", 0, narrow)
	ip("route", "del", "203.0.113.0/24")
	is("no route", 0, Hop{})
	ip("route", "add", "203.0.113.0/24", "via", "192.0.2.254", "dev", "in0")
	is("a route again", 0, direct)
	if err := b.dev.SetMTU(1400); err != nil {
		t.Fatal(err)
	}
	small := direct
	small.MTU = 1400
	is("the device has a smaller MTU", 0, small)
	ip("link", "set", "in0", "down")
	is("the device is down", 0, Hop{})
	ip("link", "set", "in0", "up")
	ip("route", "add", "203.0.113.0/24", "via", "192.0.2.254", "dev", "in0")
	is("and up", 0, small)
	ip("link", "set", "in0", "down", "address", "02:00:00:00:00:77")
	ip("link", "set", "in0", "up")
	ip("route", "add", "203.0.113.0/24", "via", "192.0.2.254", "dev", "in0")
	small.Src = [6]byte{2, 0, 0, 0, 0, 0x77}
	is("it has another address", 0, small)

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.hops.byKey); n != 0 {
		t.Errorf("%d hops are followed in vain", n)
	}
}

// Rows follow while sessions come and go.
func TestHopsRace(t *testing.T) {
	state := make(chan HopState, 1)
	state <- HopDirect
	r := load(t, Options{routes: func(from, to netip.Addr) Hop {
		s := <-state
		state <- s
		return Hop{State: s, Ifindex: 1, MTU: 1500}
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			<-state
			state <- HopState(1 + i%6)
			r.RefreshRoutes(bg)
		}
	}()
	for n := 0; ; n = (n + 1) % 8 {
		s := open(t, r, n)
		select {
		case <-done:
			r.RefreshRoutes(bg)
			now := <-state
			state <- now
			if got := hopIn(t, s, 0).State; got != now {
				t.Errorf("the row says %v, the network %v", got, now)
			}
			return
		default:
			s.Close()
		}
	}
}

// Of two answers about a next hop, rows keep the one that was asked for later, even if the earlier one takes longer.
func TestOlderAnswers(t *testing.T) {
	var mu sync.Mutex
	last := map[netip.Addr]int{} // the number of the last question about each hop
	asked := 0
	var opened atomic.Bool
	slow, blocked := make(chan struct{}), make(chan struct{})
	r := load(t, Options{routes: func(from, to netip.Addr) Hop {
		mu.Lock()
		asked++
		n := asked
		last[to] = n
		mu.Unlock()
		if opened.CompareAndSwap(true, false) { // the first one after the session is open
			close(blocked)
			<-slow
		}
		return Hop{State: HopDirect, Ifindex: n, MTU: 1500}
	}})
	s := open(t, r, 1)
	opened.Store(true)
	var refreshes sync.WaitGroup
	refresh := func() {
		if err := r.RefreshRoutes(bg); err != nil {
			t.Error(err)
		}
	}
	refreshes.Go(refresh)
	<-blocked
	second := make(chan struct{})
	refreshes.Go(func() {
		defer close(second)
		refresh()
	})
	stacks := make([]byte, 1<<20)
	until(t, 10*time.Second, "the second one is over, or waits", func() bool {
		select {
		case <-second:
			return true
		default:
			return strings.Contains(string(stacks[:goruntime.Stack(stacks, true)]), "ctxlock.(*Lock).Lock")
		}
	})
	close(slow)
	refreshes.Wait()
	got := []int{hopIn(t, s, 0).Ifindex, hopIn(t, s, 1).Ifindex}
	slices.Sort(got)
	if want := slices.Sorted(maps.Values(last)); !slices.Equal(got, want) {
		t.Errorf("the rows have the answers %d, the last ones are %d", got, want)
	}
}

func TestRowsOfTablesFollow(t *testing.T) {
	b := network(t)
	r := b.load(t, Options{})
	routes := r.Table("routes")
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	if err := routes.Put([]any{prefix}, []any{netip.MustParseAddr("192.0.2.254")}); err != nil {
		t.Fatal(err)
	}
	key := mustKey(t, routes, prefix)
	state := func() HopState {
		v, err := routes.Map().LookupBytes(key)
		if err != nil || v == nil {
			t.Fatal(err)
		}
		return HopState(v[6])
	}
	until(t, 3*time.Second, "it is direct", func() bool { return state() == HopDirect })
	if err := b.host.Run("ip", "link", "set", "in0", "down"); err != nil {
		t.Fatal(err)
	}
	until(t, 3*time.Second, "there is no route", func() bool { return state() == HopNone })
	if err := routes.Delete(prefix); err != nil {
		t.Fatal(err)
	}
	if err := b.host.Run("ip", "link", "set", "in0", "up"); err != nil {
		t.Fatal(err)
	}
	r.RefreshRoutes(bg)
	if v, _ := routes.Map().LookupBytes(key); v != nil {
		t.Error("a row that was deleted came back")
	}
	if err := routes.Map().Update(key, make([]byte, 40), ebpf.UpdateNoExist); err != nil {
		t.Error(err)
	}
}
