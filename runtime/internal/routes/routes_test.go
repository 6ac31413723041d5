package routes

import (
	"io"
	"log/slog"
	"net/netip"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// network is a host with a router, which leads to everything else.
type network struct {
	host       *testnet.Host
	dev, there *testnet.Dev // of the host, and of the router
}

func start(t *testing.T) *network {
	t.Helper()
	needs.Root(t)
	net := testnet.Start(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n := new(network)
	var err error
	n.host, err = net.Host("host")
	must(err)
	far, err := net.Host("far")
	must(err)
	n.dev, n.there, err = net.Join(n.host, "in0", far, "out0")
	must(err)
	must(n.dev.AddAddr("192.0.2.1/24"))
	must(n.there.AddAddr("192.0.2.254/24"))
	must(n.dev.AddAddr("2001:db8::1/64"))
	must(n.there.AddAddr("2001:db8::fe/64"))
	must(n.dev.AddRoute("203.0.113.0/24", "192.0.2.254"))
	must(n.dev.AddRoute("2001:db8:9::/64", "2001:db8::fe"))
	return n
}

func (n *network) ip(t *testing.T, args ...string) {
	t.Helper()
	if err := n.host.Run("ip", args...); err != nil {
		t.Fatal(err)
	}
}

// open opens a resolver in the host's namespace.
func (n *network) open(t *testing.T) (rt *Resolver) {
	t.Helper()
	if err := n.host.Do(func() (err error) {
		rt, err = Open(slog.New(slog.NewTextHandler(io.Discard, nil)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rt.Close)
	return rt
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if err := testnet.Until(3*time.Second, what, holds); err != nil {
		t.Fatal(err)
	}
}

// What the kernel says of routes of all kinds.
func TestResolve(t *testing.T) {
	n := start(t)
	for _, args := range [][]string{
		{"tuntap", "add", "dev", "tun0", "mode", "tun"}, {"link", "set", "tun0", "up", "mtu", "1280"},
		{"route", "add", "10.1.0.0/16", "dev", "tun0"},
		{"route", "add", "10.2.0.0/16", "via", "inet6", "2001:db8::fe", "dev", "in0"},
		{"-6", "route", "add", "blackhole", "2001:db8:bad::/64"},
		{"-6", "route", "add", "prohibit", "2001:db8:bad:1::/64"},
		{"-6", "route", "add", "unreachable", "2001:db8:bad:2::/64"},
		{"route", "add", "blackhole", "10.4.0.0/24"},
		{"route", "add", "prohibit", "10.4.1.0/24"},
		{"route", "add", "unreachable", "10.4.2.0/24"},
		{"route", "add", "throw", "10.4.3.0/24"},
		{"route", "add", "10.4.4.0/24", "encap", "ip", "dst", "192.0.2.254", "dev", "in0"},
		{"-6", "route", "add", "2001:db8:bad:4::/64", "encap", "ip6", "dst", "2001:db8::fe", "dev", "in0"},
		{"route", "add", "table", "77", "10.3.0.0/16", "via", "192.0.2.254"},
		{"rule", "add", "from", "192.0.2.1", "table", "77"},
	} {
		n.ip(t, args...)
	}
	rt := n.open(t)
	go rt.Listen()
	gateway, own := [6]byte(n.there.MAC), [6]byte(n.dev.MAC)
	for _, tt := range []struct {
		from, to string
		want     Hop
	}{
		{"192.0.2.1", "192.0.2.254", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}}, // on the link
		{"192.0.2.1", "203.0.113.9", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}},
		{"192.0.2.77", "203.0.113.9", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}}, // not this host's address
		{"", "203.0.113.9", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}},
		{"192.0.2.1", "10.3.0.1", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}}, // by a rule for the source
		{"", "10.3.0.1", Hop{}}, // no route
		{"2001:db8::1", "2001:db8:9::9", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}},
		{"", "10.2.0.1", Hop{abi.HopDirect, n.dev.Index, 1500, gateway, own}}, // IPv4 through an IPv6 gateway
		{"192.0.2.1", "192.0.2.200", Hop{abi.HopNeighbour, n.dev.Index, 1500, [6]byte{}, own}},
		{"192.0.2.1", "127.0.0.1", Hop{State: abi.HopLocal}},
		{"", "2001:db8::1", Hop{State: abi.HopLocal}},
		{"2001:db8::1", "2001:db8:bad::1", Hop{State: abi.HopBlackhole}},
		{"2001:db8::1", "2001:db8:bad:1::1", Hop{State: abi.HopProhibit}},
		{"2001:db8::1", "2001:db8:bad:2::1", Hop{State: abi.HopUnreachable}},
		{"192.0.2.1", "10.4.0.1", Hop{State: abi.HopBlackhole}},
		{"192.0.2.1", "10.4.1.1", Hop{State: abi.HopProhibit}},
		{"192.0.2.1", "10.4.2.1", Hop{State: abi.HopUnreachable}},
		{"192.0.2.1", "10.4.3.1", Hop{}},
		{"192.0.2.1", "10.4.4.1", Hop{State: abi.HopEncap}},
		{"2001:db8::1", "2001:db8:bad:4::1", Hop{State: abi.HopEncap}},
		{"2001:db8::1", "2001:db8:1234::1", Hop{}},
		{"192.0.2.1", "192.0.2.255", Hop{State: abi.HopLocal}}, // a broadcast
	} {
		to, from := netip.MustParseAddr(tt.to), netip.Addr{}
		if tt.from != "" {
			from = netip.MustParseAddr(tt.from)
		}
		resolve := func() Hop { h, _ := rt.Resolve(Traffic{From: from, To: to}); return h }
		if tt.want.State == abi.HopDirect {
			_, via := rt.Resolve(Traffic{From: from, To: to})
			rt.Probe(via)
			until(t, tt.from+" to "+tt.to+" is direct", func() bool { return resolve().State == abi.HopDirect })
		}
		if got := resolve(); got != tt.want {
			t.Errorf("from %s to %s: %+v, want %+v", tt.from, tt.to, got, tt.want)
		}
	}
	got, _ := rt.Resolve(Traffic{To: netip.MustParseAddr("10.1.0.1")})
	if got.State != abi.HopDirect || got.MTU != 1280 || got.Dst != [6]byte{} {
		// A tunnel without carrier has no route.
		if got != (Hop{}) {
			t.Errorf("through a tunnel: %+v", got)
		}
	}
}

// More announcements than the socket holds: what was missed is read again.
func TestOverflow(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	if err := rt.events.SetReceiveBufferSize(1, true); err != nil {
		t.Fatal(err)
	}
	rt.Changes()
	batch := strings.Repeat("route add 10.9.0.0/16 via 192.0.2.254\nroute del 10.9.0.0/16\n", 300) +
		"neigh replace 192.0.2.7 lladdr 02:00:00:00:00:07 dev in0 nud permanent\n"
	cmd := n.host.Command(t.Context(), "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	to := netip.MustParseAddr("192.0.2.7")
	if hop, _ := rt.Resolve(Traffic{To: to}); hop.State != abi.HopNeighbour {
		t.Errorf("a neighbour that nothing has announced yet: %+v", hop)
	}
	go rt.Listen() // which finds a socket that has lost the last announcements
	want := Hop{abi.HopDirect, n.dev.Index, 1500, [6]byte{2, 0, 0, 0, 0, 7}, [6]byte(n.dev.MAC)}
	until(t, "the neighbour is known", func() bool { hop, _ := rt.Resolve(Traffic{To: to}); return hop == want })
	select {
	case <-rt.Changed():
	case <-time.After(15 * time.Second):
		t.Fatal("the changes aren't announced")
	}
	until(t, "everything may have changed", func() bool { all, _ := rt.Changes(); return all })
	until(t, "nothing more changes", rt.AtRest)
}

// What the kernel answers about a device while a change is announced may be older than the change, and isn't kept.
func TestLinkWhileChanging(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	kept := func() bool {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		return rt.links[n.dev.Index] != nil
	}
	rt.asking.Lock() // nothing is answered now
	asked := make(chan int)
	go func() { asked <- rt.LinkMTU(n.dev.Index) }()
	stacks := make([]byte, 1<<16)
	until(t, "the kernel is asked", func() bool {
		all := string(stacks[:goruntime.Stack(stacks, true)])
		return strings.Contains(all, "(*Resolver).link(") && strings.Contains(all, "(*RWMutex).RLock")
	})
	rt.Kick(true)
	rt.asking.Unlock()
	if mtu := <-asked; mtu != 1500 || kept() {
		t.Errorf("the MTU is %d, and is kept: %v", mtu, kept())
	}
	if mtu := rt.LinkMTU(n.dev.Index); mtu != 1500 || !kept() {
		t.Errorf("at rest, the MTU is %d, and is kept: %v", mtu, kept())
	}
}

// A resolver that is closed answers, and nothing waits for it.
func TestClosed(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	done := make(chan struct{})
	go func() { defer close(done); rt.Listen() }()
	rt.Close()
	rt.Close()
	select {
	case <-done:
	case <-time.After(15 * time.Second):
		t.Fatal("Listen goes on")
	}
	to := netip.MustParseAddr("203.0.113.9")
	if hop, via := rt.Resolve(Traffic{To: to}); hop != (Hop{}) || via != (Neighbour{}) {
		t.Errorf("%+v through %+v", hop, via)
	}
	if rt.Local(netip.MustParseAddr("192.0.2.1")) || rt.LinkMTU(n.dev.Index) != 0 {
		t.Error("it still asks the kernel")
	}
	rt.Probe(Neighbour{n.dev.Index, netip.MustParseAddr("192.0.2.254")})
}
