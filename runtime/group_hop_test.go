package runtime

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// A receiver's next hop is found when it is added, and followed: its row is replaced in the list when the network
// changes. While a neighbour isn't known its copies are declined, and the kernel is made to look for it.
func TestReceiversFollowTheNetwork(t *testing.T) {
	b := network(t)
	var r *Relay
	if err := b.host.Do(func() (err error) {
		r, err = Load(groupsDesc(), buildFile(t, "fan"), quiet(Options{}))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	ip := func(args ...string) {
		t.Helper()
		if err := b.host.Run("ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	g := openGroup(t, r, 7)
	anna, bert := add(t, g, 1, 1), add(t, g, 2, 2)
	direct := Hop{HopDirect, b.dev.Index, 1500, [6]byte(b.there.MAC), [6]byte(b.dev.MAC)}
	is := func(what string, v *AnyReceiver, want Hop) {
		t.Helper()
		until(t, 5*time.Second, what, func() bool { return v.Hops()[0] == want })
		r.lists.mu.Lock()
		at := v.at
		r.lists.mu.Unlock()
		row, err := g.kind.rows.LookupBytes(at)
		if err != nil || getHop(row[36:]) != want {
			t.Errorf("%s: the kernel has %+v, %v", what, getHop(row[36:]), err)
		}
	}
	copies := func() (anna, bert int) {
		runOn(t, r, "fan", groupPacket(7, 0), 1)
		drain(t, r, func(ev *Event) {
			if ev.Uint(2) == 1 {
				anna++
			} else {
				bert++
			}
		})
		return anna, bert
	}
	is("no packet was sent yet", anna, direct)
	is("no packet was sent yet", bert, direct)
	if a, b := copies(); a != 1 || b != 1 {
		t.Errorf("%d and %d copies", a, b)
	}

	moved := direct
	moved.Dst = [6]byte{2, 0, 0, 0, 0, 9}
	ip("neigh", "replace", "192.0.2.254", "lladdr", net.HardwareAddr(moved.Dst[:]).String(), "dev", "in0", "nud",
		"permanent")
	is("the gateway has another address", anna, moved)
	is("the gateway has another address", bert, moved)
	ip("neigh", "del", "192.0.2.254", "dev", "in0")
	is("it is found again", anna, direct)

	ip("route", "replace", "203.0.113.1/32", "via", "192.0.2.254", "dev", "in0", "mtu", "1300")
	small := direct
	small.MTU = 1300
	is("a route with an MTU", anna, small)
	is("the other's has none", bert, direct)
	ip("route", "replace", "blackhole", "203.0.113.1/32")
	is("no route", anna, Hop{State: HopBlackhole})
	if a, b := copies(); a != 0 || b != 1 {
		t.Errorf("%d and %d copies", a, b)
	}
	if u := must(anna.Usage()); u.Declined != 1 || u.Packets != 1 {
		t.Errorf("usage %+v", u)
	}

	// A neighbour that doesn't answer: declined until it does.
	carl, err := g.Add(bg, netip.MustParseAddrPort("192.0.2.1:5004"), netip.MustParseAddrPort("192.0.2.77:6000"), 3)
	if err != nil {
		t.Fatal(err)
	}
	if s := carl.Hops()[0].State; s != HopNeighbour {
		t.Errorf("the neighbour is %v", s)
	}
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	if u := must(carl.Usage()); u.Declined != 1 || u.Packets != 0 {
		t.Errorf("usage %+v", u)
	}
	if err := b.there.AddAddr("192.0.2.77/32"); err != nil {
		t.Fatal(err)
	}
	until(t, 15*time.Second, "the neighbour answers", func() bool { return carl.Hops()[0] == direct })
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	if u := must(carl.Usage()); u.Declined != 1 || u.Packets != 1 {
		t.Errorf("usage %+v", u)
	}

	// If the kernel refuses once, it is tried again.
	var refused atomic.Int32
	r.lists.mu.Lock()
	r.lists.fault = func(step string) error {
		if step == "swap" && refused.Add(1) == 1 {
			return errors.New("injected")
		}
		return nil
	}
	r.lists.mu.Unlock()
	ip("route", "replace", "203.0.113.2/32", "via", "192.0.2.254", "dev", "in0", "mtu", "1200")
	until(t, 5*time.Second, "the kernel refuses", func() bool { return refused.Load() > 0 })
	small.MTU = 1200
	is("a route with another MTU", bert, small)

	// Another remote has another next hop; the old one isn't followed any more.
	if err := anna.Set(bg, netip.MustParseAddrPort("192.0.2.1:5004"), netip.MustParseAddrPort("192.0.2.77:7000"),
		1); err != nil {
		t.Fatal(err)
	}
	is("another remote", anna, direct)
	if err := g.Close(bg); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.hops.byKey) != 0 {
		t.Errorf("%d hops are followed in vain", len(r.hops.byKey))
	}
}
