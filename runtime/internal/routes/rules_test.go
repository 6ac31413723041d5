package routes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// settled waits until the resolver has read what has changed.
func settled(t *testing.T, rt *Resolver, what string, holds func() bool) {
	t.Helper()
	until(t, what, func() bool { rt.Changes(); return holds() })
}

// Rules that ask for a protocol or for ports are followed if these are known. If not, that is the answer.
func TestRules(t *testing.T) {
	n := start(t)
	for _, args := range [][]string{
		{"route", "add", "table", "77", "203.0.113.0/24", "via", "192.0.2.254", "mtu", "1300"},
		{"-6", "route", "add", "table", "77", "2001:db8:9::/64", "via", "2001:db8::fe", "mtu", "1300"},
	} {
		n.ip(t, args...)
	}
	rt := n.open(t)
	go rt.Listen()
	udp, tcp := uint8(unix.IPPROTO_UDP), uint8(unix.IPPROTO_TCP)
	const plain, other, unknown = 1500, 1300, 0
	for _, tt := range []struct {
		rule string
		flow Flow
		want int // the MTU
	}{
		{"dport 5000", Flow{udp, 4000, 5000}, other},
		{"dport 5000", Flow{udp, 5000, 5001}, plain},
		{"dport 5000", Flow{0, 0, 5000}, other},
		{"dport 5000", Flow{udp, 4000, 0}, unknown},
		{"dport 5000", Flow{}, unknown},
		{"dport 5000-5009", Flow{tcp, 4000, 5009}, other},
		{"sport 4000", Flow{tcp, 4000, 5000}, other},
		{"sport 4000", Flow{tcp, 4001, 4000}, plain},
		{"sport 4000", Flow{tcp, 0, 5000}, unknown},
		{"ipproto udp", Flow{udp, 0, 0}, other},
		{"ipproto udp", Flow{tcp, 0, 0}, plain},
		{"ipproto udp", Flow{0, 4000, 5000}, unknown},
		{"ipproto tcp dport 5000", Flow{udp, 0, 0}, plain}, // whatever its ports
		{"ipproto udp dport 5000 sport 4000", Flow{udp, 4000, 5000}, other},
		{"not dport 5000", Flow{udp, 4000, 5000}, plain},
		{"not dport 5000", Flow{udp, 4000, 0}, unknown},
		{"not to FARTHER dport 5000", Flow{udp, 4000, 0}, other},
		{"to FARTHER dport 5000", Flow{udp, 4000, 0}, plain},
		{"from PEER dport 5000", Flow{udp, 4000, 0}, plain},
		{"from OWN dport 5000", Flow{udp, 4000, 0}, unknown},
		{"iif in0 dport 5000", Flow{udp, 4000, 0}, plain}, // what a relay sends is this host's
		{"iif lo dport 5000", Flow{udp, 4000, 5000}, other},
		{"iif lo dport 5000", Flow{udp, 4000, 0}, unknown},
		{"oif in0 dport 5000", Flow{udp, 4000, 0}, plain},
		{"fwmark 1 dport 5000", Flow{udp, 4000, 0}, plain},
		{"fwmark 0/1 dport 5000", Flow{udp, 4000, 0}, unknown},
		{"fwmark 0/1 dport 5000", Flow{udp, 4000, 5000}, other},
	} {
		for _, v6 := range []bool{false, true} {
			about := Traffic{
				From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9"), Flow: tt.flow,
			}
			rule := strings.NewReplacer("FARTHER", "198.51.100.0/24", "PEER", "203.0.113.9", "OWN", "192.0.2.1").
				Replace(tt.rule)
			family := "-4"
			if v6 {
				about.From, about.To = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:9::9")
				rule = strings.NewReplacer("FARTHER", "2001:db8:77::/64", "PEER", "2001:db8:9::9", "OWN",
					"2001:db8::1").Replace(tt.rule)
				family = "-6"
			}
			args := append(strings.Fields(rule), "table", "77", "priority", "100")
			n.ip(t, append([]string{family, "rule", "add"}, args...)...)
			// To a router: packets are for others, so all that depends on them is open, what a rule can't have is not.
			never := strings.Contains(rule, "oif") || strings.Contains(rule, "fwmark 1")
			settled(t, rt, fmt.Sprintf("%s for %+v", rule, about), func() bool {
				got, _ := rt.Resolve(about)
				narrow, _ := rt.Resolve(rt.Narrow(about)) // what it leaves out makes no difference
				router, _ := rt.Resolve(Traffic{To: about.To, Router: true})
				right := got.MTU == tt.want
				if tt.want == unknown {
					right = got.State == abi.HopRule
				}
				return right && narrow == got && (router.State == abi.HopRule) != never
			})
			n.ip(t, append([]string{family, "rule", "del"}, args...)...)
			settled(t, rt, "no rule", func() bool {
				h, _ := rt.Resolve(about)
				return h.MTU == plain && !rt.Asks(about)
			})
		}
	}
	if bits := rt.Policy(); bits != 0 {
		t.Errorf("policy %#x", bits)
	}
	n.ip(t, "-6", "rule", "add", "ipproto", "udp", "table", "77")
	settled(t, rt, "a rule of IPv6", func() bool { return rt.Policy() == abi.PolicyRules<<1 })
}

// A rule that asks for ports isn't followed by the kernel when it resolves a neighbour.
func TestRulesUnresolved(t *testing.T) {
	n := start(t)
	for _, args := range [][]string{
		{"route", "add", "table", "77", "203.0.113.0/24", "via", "192.0.2.253"},
		{"rule", "add", "ipproto", "udp", "table", "77"},
	} {
		n.ip(t, args...)
	}
	rt := n.open(t)
	go rt.Listen()
	about := Traffic{
		From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("203.0.113.9"),
		Flow: Flow{unix.IPPROTO_UDP, 4000, 5000},
	}
	is := func(state abi.HopState) {
		t.Helper()
		settled(t, rt, fmt.Sprintf("the state %d", state), func() bool {
			h, via := rt.Resolve(about)
			return h.State == state && via == Neighbour{n.dev.Index, netip.MustParseAddr("192.0.2.253")}
		})
	}
	is(abi.HopNeighbour) // by the protocol, which the kernel knows
	n.ip(t, "rule", "add", "dport", "5000", "table", "77")
	is(abi.HopRule)
	n.ip(t, "neigh", "replace", "192.0.2.253", "lladdr", "02:00:00:00:00:53", "dev", "in0")
	is(abi.HopDirect)
	n.ip(t, "neigh", "del", "192.0.2.253", "dev", "in0")
	is(abi.HopRule)
	n.ip(t, "rule", "del", "dport", "5000", "table", "77")
	is(abi.HopNeighbour)
}

// If the resolver has an answer though it doesn't know all of the packets, the kernel has the same one for all
// packets that these may be.
func TestRulesRandomly(t *testing.T) {
	n := start(t)
	n.ip(t, "neigh", "replace", "192.0.2.254", "lladdr", "02:00:00:00:00:fe", "dev", "in0")
	rt := n.open(t)
	go rt.Listen()
	rnd := rand.New(rand.NewPCG(7, 14))
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	ports := []uint16{0, 1000, 1001, 2000}
	flow := func() Flow {
		return Flow{[]uint8{0, unix.IPPROTO_UDP, unix.IPPROTO_TCP}[rnd.IntN(3)], ports[rnd.IntN(4)], ports[rnd.IntN(4)]}
	}
	decided, open := 0, 0
	for range 30 {
		var rules [][]string
		for i := range 1 + rnd.IntN(4) {
			rule := strings.Fields(strings.Join([]string{
				pick("", "", "not"), pick("", "", "from 192.0.2.1", "from 192.0.2.99"),
				pick("", "", "to 203.0.113.0/25", "to 203.0.113.128/25"), pick("", "ipproto udp", "ipproto tcp"),
				pick("", "sport 1000", "sport 1000-1001"), pick("", "", "dport 2000", "dport 1000-2000"),
				fmt.Sprint("table ", 1000+i, " priority ", 100+i),
			}, " "))
			rules = append(rules, rule)
			n.ip(t, "route", "replace", "table", fmt.Sprint(1000+i), "203.0.113.0/24", "via", "192.0.2.254", "mtu",
				fmt.Sprint(1300+i))
			n.ip(t, append([]string{"rule", "add"}, rule...)...)
		}
		if err := rt.readRules(); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			about := Traffic{
				From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr(pick("203.0.113.9", "203.0.113.200")),
				Flow: flow(),
			}
			said, _ := rt.Resolve(about)
			if said.State == abi.HopRule {
				open++
				continue
			}
			decided++
			for range 4 {
				full := about
				full.Flow = Flow{17, 1000, 2000}
				if f := flow(); f.Proto != 0 {
					full.Flow.Proto = f.Proto
				}
				if about.Flow.Proto != 0 {
					full.Flow.Proto = about.Flow.Proto
				}
				full.Flow.FromPort, full.Flow.ToPort = ports[1+rnd.IntN(3)], ports[1+rnd.IntN(3)]
				if about.Flow.FromPort != 0 {
					full.Flow.FromPort = about.Flow.FromPort
				}
				if about.Flow.ToPort != 0 {
					full.Flow.ToPort = about.Flow.ToPort
				}
				if found, err := rt.lookUp(full, 0); err != nil || found.mtu%1500 != said.MTU%1500 {
					t.Fatalf("rules %v\n%+v: %+v\nthe kernel for %+v: %+v, %v", rules, about, said, full, found, err)
				}
			}
		}
		for i, rule := range rules {
			n.ip(t, append([]string{"rule", "del"}, rule...)...)
			n.ip(t, "route", "flush", "table", fmt.Sprint(1000+i))
		}
	}
	if decided < 200 || open < 200 {
		t.Errorf("%d decided, %d open", decided, open)
	}
}
