package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const template = " tmpl src 192.0.2.1 dst 192.0.2.254 proto esp mode tunnel"

// Policies that protect packets are found by their selectors, and followed.
func TestXfrm(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	if rt.xfrm == nil {
		t.Fatal("the kernel has no xfrm")
	}
	go rt.Listen()
	xfrm := func(what, policy string) {
		t.Helper()
		n.ip(t, append([]string{"xfrm", "policy", what}, strings.Fields(policy)...)...)
	}
	udp := Flow{unix.IPPROTO_UDP, 4000, 5000}
	for _, tt := range []struct {
		selector, rest string
		flow           Flow
		protects       bool
	}{
		{"src 0.0.0.0/0 dst 203.0.113.0/24", template, Flow{}, true},
		{"src 0.0.0.0/0 dst 203.0.113.0/24", " action block", Flow{}, true},
		{"src 0.0.0.0/0 dst 203.0.113.0/24", "", Flow{}, false}, // without a template they leave as they are
		{"src 192.0.2.0/24 dst 203.0.113.9/32", template, Flow{}, true},
		{"src 192.0.2.1/32 dst 203.0.113.8/32", template, Flow{}, false},
		{"src 192.0.2.2/32 dst 203.0.113.9/32", template, Flow{}, false},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto udp sport 4000 dport 5000", template, udp, true},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 5001", template, udp, false},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 5001", template, Flow{Proto: unix.IPPROTO_UDP}, true},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 5001", template, Flow{Proto: unix.IPPROTO_TCP}, false},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto tcp", template, udp, false},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 proto tcp", template, Flow{}, true},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 dev in0", template, udp, true},
		{"src 0.0.0.0/0 dst 0.0.0.0/0 dev lo", template, udp, false},
		{"src ::/0 dst ::/0", template, udp, false}, // of the other family
	} {
		about := Traffic{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9"), Flow: tt.flow}
		state := func() abi.HopState { h, _ := rt.Resolve(about); return h.State }
		xfrm("add", tt.selector+" dir out"+tt.rest)
		// A policy that protects comes and goes after it, so that both have been read.
		marker := "src 2001:db8:ffff::/64 dst 2001:db8:fffe::/64 dir out"
		seen := Traffic{From: netip.MustParseAddr("2001:db8:ffff::1"), To: netip.MustParseAddr("2001:db8:fffe::1")}
		xfrm("add", marker+" action block")
		settled(t, rt, "the policy is read", func() bool { return rt.protects(seen, 0) })
		if got := state() == abi.HopXfrm; got != tt.protects {
			t.Errorf("%s%s: %v for %+v", tt.selector, tt.rest, state(), tt.flow)
		}
		if narrow, _ := rt.Resolve(rt.Narrow(about)); narrow.State != state() {
			t.Errorf("%s%s: %v, narrowed %v", tt.selector, tt.rest, state(), narrow.State)
		}
		xfrm("delete", marker)
		xfrm("delete", tt.selector+" dir out")
		settled(t, rt, "it is gone", func() bool { return rt.Policy() == 0 && state() != abi.HopXfrm })
	}
	about := Traffic{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9"), Flow: udp}
	protected := func() bool { h, _ := rt.Resolve(about); return h.State == abi.HopXfrm }
	all := "src 0.0.0.0/0 dst 0.0.0.0/0"
	for _, args := range []string{
		all + " dir in action block", all + " dir fwd action block", all + " dir out mark 1 action block",
		all + " dir out if_id 7 action block",
	} {
		xfrm("add", args)
	}
	if err := rt.readPolicies(); err != nil || protected() || rt.Policy() != 0 {
		t.Errorf("policies for other packets count: %v, %#x", err, rt.Policy())
	}

	// The smaller number comes first. If it depends on ports that aren't known, the stricter one counts.
	xfrm("add", all+" dir out priority 100 action block")
	settled(t, rt, "blocked", protected)
	xfrm("add", all+" proto udp dport 5000 dir out priority 50")
	settled(t, rt, "let through", func() bool { return !protected() })
	open := about
	open.Flow.ToPort = 0
	if h, _ := rt.Resolve(open); h.State != abi.HopXfrm {
		t.Errorf("an open port is %v", h.State)
	}
	if !rt.Asks(about) || rt.Policy() != abi.PolicyXfrm {
		t.Errorf("it asks: %v; policy %#x", rt.Asks(about), rt.Policy())
	}
	// Sub-policies come before, and both count.
	xfrm("add", all+" dir out ptype sub")
	xfrm("delete", all+" proto udp dport 5000 dir out")
	settled(t, rt, "the main policy counts", protected)
	xfrm("update", all+" dir out priority 10")
	settled(t, rt, "both let through", func() bool { return !protected() })
	xfrm("flush", "")
	xfrm("flush", "ptype sub")
	settled(t, rt, "no policies", func() bool { return rt.Policy() == 0 && !protected() })
	gateway := Traffic{To: netip.MustParseAddr("192.0.2.254"), Router: true}
	if router, _ := rt.Resolve(gateway); router.State == abi.HopXfrm {
		t.Error("a router without policies")
	}
	xfrm("add", "src 10.9.0.0/16 dst 10.8.0.0/16 dir out"+template)
	settled(t, rt, "packets for others may be under it", func() bool {
		h, _ := rt.Resolve(gateway)
		return h.State == abi.HopXfrm && !protected()
	})
	xfrm("flush", "")
	xfrm("setdefault", "out block")
	settled(t, rt, "all is blocked without a policy", protected)
	xfrm("add", all+" dir out")
	settled(t, rt, "a policy lets through", func() bool { return !protected() })
	xfrm("setdefault", "out accept")
	xfrm("flush", "")
	settled(t, rt, "accepted", func() bool { return rt.Policy() == 0 })
	// A policy may expire, which is another message.
	xfrm("add", all+" dir out action block limit time-hard 3")
	settled(t, rt, "it is there", protected)
	settled(t, rt, "it has expired", func() bool { return !protected() })
}

// For random policies and flows, the resolver says what the kernel does with a socket's packets.
func TestXfrmRandomly(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	rnd := rand.New(rand.NewPCG(14, 1))
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	counts := map[bool]int{}
	for round := range 40 {
		v6 := round%2 == 1
		own, peers, nets := "192.0.2.1", []string{"203.0.113.9", "203.0.113.200"}, []string{
			"0.0.0.0/0", "203.0.113.0/24", "203.0.113.128/25", "203.0.113.9/32", "192.0.2.0/30", "192.0.2.128/25",
		}
		if v6 {
			own, peers, nets = "2001:db8::1", []string{"2001:db8:9::9", "2001:db8:9::aaaa"}, []string{
				"::/0", "2001:db8:9::/64", "2001:db8:9::8000/113", "2001:db8:9::9/128", "2001:db8::/65",
				"2001:db8:1::/64",
			}
		}
		var policies []string
		for i := range 1 + rnd.IntN(6) {
			policies = append(policies, fmt.Sprintf("src %s dst %s %s dir out priority %d %s",
				pick(nets[0], nets[0], nets[4], nets[5]), pick(nets[:4]...),
				pick("", "proto udp", "proto tcp", "proto udp dport 2000", "proto udp sport 1000",
					"proto tcp sport 1000 dport 2000", "proto udp sport 1001 dport 2000"),
				i*10+rnd.IntN(10), pick("", "action block", "action block")))
		}
		rnd.Shuffle(len(policies), func(i, j int) { policies[i], policies[j] = policies[j], policies[i] })
		var added []string
		for _, p := range policies {
			// two may have the same selector
			if n.host.Run("ip", append([]string{"xfrm", "policy", "add"}, strings.Fields(p)...)...) == nil {
				added = append(added, p)
			}
		}
		if err := rt.readPolicies(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			about := Traffic{
				From: netip.MustParseAddr(own), To: netip.MustParseAddr(pick(peers...)),
				Flow: Flow{
					[]uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP}[rnd.IntN(2)], uint16(1000 + rnd.IntN(2)),
					uint16(2000 + rnd.IntN(2)),
				},
			}
			blocked := blocks(t, n.host, about)
			counts[blocked]++
			if said := rt.protects(about, n.dev.Index); said != blocked {
				t.Fatalf("policies:\n%s\n%+v: protected %v, the kernel %v", strings.Join(added, "\n"), about, said,
					blocked)
			}
			// What isn't known makes the answer stricter, never laxer.
			open := about
			open.Flow = Flow{}
			if blocked && !rt.protects(open, n.dev.Index) {
				t.Fatalf("policies:\n%s\n%+v leaves if its flow isn't known", strings.Join(added, "\n"), about)
			}
		}
		n.ip(t, "xfrm", "policy", "flush")
	}
	if counts[true] < 100 || counts[false] < 100 {
		t.Errorf("blocked, or not: %v", counts)
	}
}

// blocks reports whether the kernel refuses packets of a socket because of a policy.
func blocks(t *testing.T, host *testnet.Host, about Traffic) (refused bool) {
	t.Helper()
	err := host.Do(func() error {
		family, kind := unix.AF_INET, unix.SOCK_DGRAM
		if about.To.Is6() {
			family = unix.AF_INET6
		}
		if about.Flow.Proto == unix.IPPROTO_TCP {
			kind = unix.SOCK_STREAM
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		addr := func(a netip.Addr, port uint16) unix.Sockaddr {
			if a.Is4() {
				return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
			}
			return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
		}
		if err := unix.Bind(fd, addr(about.From, about.Flow.FromPort)); err != nil {
			return err
		}
		err = unix.Connect(fd, addr(about.To, about.Flow.ToPort))
		if refused = errors.Is(err, unix.EPERM); refused || errors.Is(err, unix.EINPROGRESS) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatalf("%+v: %v", about, err)
	}
	return refused
}

// A change that comes while another one is read isn't lost: after the policies are new, everything is resolved again.
func TestChangeWhileReading(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	about := Traffic{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9")}
	for _, change := range []struct {
		what   string
		change func()
	}{
		{"policies", func() { rt.stale(false, true) }},
		{"rules", func() { rt.stale(true, false) }},
		{"routes", func() { rt.Kick(true) }},
	} {
		rt.Changes()
		rt.stale(false, true)
		rt.asking.Lock() // nothing can be read now
		first := make(chan bool)
		go func() {
			all, _ := rt.Changes()
			first <- all
		}()
		until(t, "policies are being read", func() bool {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			return !rt.stalePolicies
		})
		change.change()
		rt.asking.Unlock()
		if !<-first {
			t.Errorf("%s: the first change is lost", change.what)
		}
		if all, _ := rt.Changes(); !all {
			t.Errorf("%s: the second change is lost", change.what)
		}
	}
	if rt.protects(about, n.dev.Index) {
		t.Error("there are no policies")
	}
}

// Policies that couldn't be read are read later, without another change.
func TestPoliciesReadLater(t *testing.T) {
	n := start(t)
	rt := n.open(t)
	about := Traffic{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9")}
	n.ip(t, "xfrm", "policy", "add", "src", "0.0.0.0/0", "dst", "0.0.0.0/0", "dir", "out", "action", "block")
	closed, err := ownSocket(unix.NETLINK_XFRM)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	rt.asking.Lock()
	works := rt.sockets[unix.NETLINK_XFRM]
	rt.sockets[unix.NETLINK_XFRM] = closed
	rt.asking.Unlock()
	rt.stale(false, true)
	rt.Changes()
	if rt.protects(about, n.dev.Index) {
		t.Fatal("the policy was read: this test shows nothing")
	}
	rt.asking.Lock()
	rt.sockets[unix.NETLINK_XFRM] = works
	rt.asking.Unlock()
	until(t, "a change is announced", func() bool {
		all, _ := rt.Changes()
		return all
	})
	if !rt.protects(about, n.dev.Index) {
		t.Error("the policy isn't read")
	}
}

// Without the right to read policies, the resolver says so, and works.
func TestXfrmWithoutRights(t *testing.T) {
	n := start(t)
	var log strings.Builder
	var rt *Resolver
	err := n.host.Do(func() (err error) {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var had [2]unix.CapUserData
		if err := unix.Capget(&head, &had[0]); err != nil {
			return err
		}
		less := had
		less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&head, &less[0]); err != nil {
			return err
		}
		rt, err = Open(slog.New(slog.NewTextHandler(&log, nil)))
		return errors.Join(err, unix.Capset(&head, &had[0]))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	// What it couldn't open is closed once: no descriptor that was opened since then.
	files := make([]*os.File, 100)
	for i := range files {
		if files[i], err = os.Open(os.DevNull); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	for range 2 { // what is out of reach is found, and cleaned up
		cleaned := make(chan bool)
		goruntime.AddCleanup(new([64]byte), func(c chan bool) { close(c) }, cleaned)
		goruntime.GC()
		<-cleaned
	}
	for _, f := range files {
		if _, err := f.Stat(); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(log.String(), "CAP_NET_ADMIN") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log:\n%s", &log)
	}
	n.ip(t, "xfrm", "policy", "add", "src", "0.0.0.0/0", "dst", "0.0.0.0/0", "dir", "out", "action", "block")
	if h, _ := rt.Resolve(Traffic{To: netip.MustParseAddr("203.0.113.9")}); h.Ifindex != n.dev.Index {
		t.Errorf("%+v", h)
	}
}
