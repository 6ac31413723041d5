//go:build linux

package glue_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// policyLab is a lab with a second link between the relay and the router, which table 77 leads over.
type policyLab struct {
	*pathLab
	family int
	second *testnet.Dev // of the router
	send   func(size int)
}

// policyRelay is a relay that sends datagrams to port 7000 of the peer, with each kind of next hop that there is.
type policyRelay struct {
	name, spec, program string
	open                func(l *policyLab)
	// what is known of the packets before they come
	proto, ports bool
}

const (
	tunnelSpec = `
name: "tunnel"
tables: tunnels: {key: from: "ip", value: {local: "ip", remote: "ip"}, size: 16}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	lookup: t: tunnels: ["ip.src"]
	do: [{send: {from: "t.local", to: "t.remote"}}]
}
`
	viaSpec = `
name: "via"
tables: routes: {key: from: "ip", value: hop: "next_hop", size: 16}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	lookup: r: routes: ["ip.src"]
	do: [{send: via: "r.hop"}]
}
`
	lookupSpec = `
name: "lookup"
tables: routes: {kind: "lru", key: from: "ip", value: {local: "endpoint", remote: "endpoint"}, size: 16}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	lookup: r: routes: ["ip.src"]
	do: [{send: {from: "r.local", to: "r.remote"}}]
}
`
	blindSpec = `
name: "blind"
tables: routes: {kind: "lru", key: from: "ip", value: {local: "ip", remote: "ip"}, size: 16}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip"]
	lookup: r: routes: ["ip.src"]
	do: [{send: {from: "r.local", to: "r.remote"}}]
}
`
	groupSpec = `
name: "spread"
groups: subscribers: {
	key: server: "endpoint"
	receiver: {local: "endpoint", remote: "endpoint"}
	max: 16, receivers: 64, size: 4
}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	do: [{fan_out: {
		group: subscribers: ["udp.dst"]
		each: [{send: {from: "r.local", to: "r.remote"}}]
		then: drop: "done"
	}}]
}
`
)

// plain sends datagrams to the relay's host, from port 40001.
func (l *policyLab) plain(to netip.AddrPort) {
	l.from = l.listen(l.client, netip.AddrPortFrom(pathAddrs[l.family].client, 40001))
	l.send = func(size int) {
		_, err := l.from.WriteToUDPAddrPort(make([]byte, size), to)
		l.must(err)
	}
}

var policyRelays = []policyRelay{
	{
		name: "session", spec: "../../examples/turn/spec.cue", program: "to_peer", proto: true, ports: true,
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			client, server := netip.AddrPortFrom(a.client, 40001), netip.AddrPortFrom(a.in, 3478)
			_, err := l.relay.Open("channel", client, server, 0x4001, netip.AddrPortFrom(a.out, 50000),
				netip.AddrPortFrom(a.peer, 7000))
			l.must(err)
			l.from = l.listen(l.client, client)
			l.send = func(size int) {
				b := make([]byte, 4+size)
				binary.BigEndian.PutUint16(b, 0x4001)
				binary.BigEndian.PutUint16(b[2:], uint16(size))
				_, err := l.from.WriteToUDPAddrPort(b, server)
				l.must(err)
			}
		},
	},
	{
		name: "row of addresses", spec: tunnelSpec, program: "forward", proto: true,
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			l.must(l.relay.Table("tunnels").Put([]any{a.client}, []any{a.out, a.peer}))
			l.plain(netip.AddrPortFrom(a.in, 7000))
		},
	},
	{
		name: "next hop", spec: viaSpec, program: "forward",
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			router := netip.MustParseAddr(map[int]string{4: "198.51.100.254", 6: "2001:db8:2::fe"}[l.family])
			l.must(l.relay.Table("routes").Put([]any{a.client}, []any{router}))
			l.must(l.client.Run("ip", fmt.Sprintf("-%d", l.family), "route", "add", "default", "via", a.in.String()))
			l.plain(netip.AddrPortFrom(a.peer, 7000))
		},
	},
	{
		name: "lookup in the kernel", spec: lookupSpec, program: "forward", proto: true, ports: true,
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			l.must(l.relay.Table("routes").Put([]any{a.client},
				[]any{netip.AddrPortFrom(a.out, 50000), netip.AddrPortFrom(a.peer, 7000)}))
			l.plain(netip.AddrPortFrom(a.in, 9))
		},
	},
	{
		name: "lookup in the kernel without ports", spec: blindSpec, program: "forward",
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			l.must(l.relay.Table("routes").Put([]any{a.client}, []any{a.out, a.peer}))
			l.plain(netip.AddrPortFrom(a.in, 7000))
		},
	},
	{
		name: "receiver", spec: groupSpec, program: "forward", proto: true, ports: true,
		open: func(l *policyLab) {
			a := pathAddrs[l.family]
			server := netip.AddrPortFrom(a.in, 5004)
			group, err := l.relay.GroupKind("subscribers").Open(l.Context(), server)
			l.must(err)
			v, err := group.Add(l.Context(), netip.AddrPortFrom(a.out, 50000), netip.AddrPortFrom(a.peer, 7000))
			l.must(err)
			l.until(5*time.Second, "the next hop is known", func() bool {
				return v.Hops()[0].State == runtime.HopDirect
			})
			l.plain(server)
		},
	},
}

// eachPolicyRelay runs f for each relay and IP version, with packets that arrive over the first link.
func eachPolicyRelay(t *testing.T, f func(l *policyLab, r *policyRelay)) {
	for i, r := range policyRelays {
		for k, family := range []int{4, 6} {
			if needs.Left(i+k, 2) {
				continue
			}
			t.Run(fmt.Sprintf("%s, IPv%d", r.name, family), func(t *testing.T) {
				l := &policyLab{pathLab: newPathLab(t, r.spec, r.program), family: family}
				ours, theirs, err := l.net.Join(l.host, "eth2", l.router, "eth2")
				l.must(err)
				for addr, dev := range map[string]*testnet.Dev{
					"198.51.101.1/24": ours, "2001:db8:4::1/64": ours,
					"198.51.101.254/24": theirs, "2001:db8:4::fe/64": theirs,
				} {
					l.must(dev.AddAddr(addr))
				}
				l.second = theirs
				l.must(l.host.SetForwarding(true)) // else bpf_fib_lookup has no answer
				for _, h := range []*testnet.Host{l.host, l.router} {
					l.must(h.Sysctl("net/ipv4/conf/all/rp_filter", "0"))
				}
				router := map[int]string{4: "198.51.101.254", 6: "2001:db8:4::fe"}[family]
				l.ip("route add table 77 default via " + router + " dev eth2")
				l.sink = l.listen(l.peer, netip.AddrPortFrom(pathAddrs[family].peer, 7000))
				r.open(l)
				l.leaves(l.first, "at first")
				f(l, &r)
			})
		}
	}
}

func (l *policyLab) ip(args string) {
	l.Helper()
	l.must(l.host.Run("ip", append([]string{fmt.Sprintf("-%d", l.family)}, strings.Fields(args)...)...))
}

// leaves waits until the relay's packets reach the router by a link, and checks that the relay sends them.
func (l *policyLab) leaves(link *testnet.Dev, when string) {
	l.Helper()
	reason := "sent"
	if l.program == "forward" && l.relay.GroupKind("subscribers") != nil {
		reason = "copy"
	}
	const datagrams = 20
	l.until(5*time.Second, when+": packets leave by "+link.Name, func() bool {
		before, sent := must(link.Received()), l.counted(reason)
		for range datagrams {
			if !l.arrives(small, l.send) {
				return false
			}
		}
		return must(link.Received()) >= before+datagrams && l.counted(reason) == sent+datagrams
	})
}

// passes waits until packets have a reason instead of being sent.
func (l *policyLab) passes(reason, when string) {
	l.Helper()
	l.until(5*time.Second, when+": packets have the reason "+reason, func() bool {
		before := l.counted(reason)
		l.send(small)
		return testnet.Until(100*time.Millisecond, "", func() bool { return l.counted(reason) > before }) == nil
	})
}

// Rules that choose by protocol and ports are followed, for what the packet has when it leaves.
func TestRoutingRules(t *testing.T) {
	eachPolicyRelay(t, func(l *policyLab, r *policyRelay) {
		for _, rule := range []struct {
			text         string
			proto, ports bool // it asks for them
			other        bool // it is for other packets
		}{
			{text: "ipproto udp", proto: true},
			{text: "dport 7000", ports: true},
			{text: "ipproto udp sport 50000 dport 7000", proto: true, ports: true},
			{text: "dport 7001", ports: true, other: true},
			{text: "ipproto tcp dport 7000", proto: true, other: true},
			{text: "fwmark 1 dport 7000", other: true},
		} {
			l.ip("rule add " + rule.text + " table 77 priority 100")
			switch {
			case r.name == "lookup in the kernel without ports" && (rule.proto || rule.ports),
				rule.proto && !r.proto, rule.ports && !r.ports:
				l.passes("rule", rule.text)
			case rule.other:
				l.leaves(l.first, rule.text)
			default:
				l.leaves(l.second, rule.text)
			}
			l.ip("rule del " + rule.text + " table 77 priority 100")
			l.leaves(l.first, "without "+rule.text)
		}
	})
}

// If a rule for ports leads to a router whose link-layer address isn't known, the stack sends the packets: the
// kernel would resolve a neighbour without the rule.
func TestRoutingRulesUnresolved(t *testing.T) {
	eachPolicyRelay(t, func(l *policyLab, r *policyRelay) {
		router := map[int]string{4: "198.51.101.77", 6: "2001:db8:4::77"}[l.family]
		l.ip("route replace table 77 default via " + router + " dev eth2")
		l.ip("rule add dport 7000 table 77 priority 100")
		if r.name != "lookup in the kernel" { // which finds the router, and has it resolved
			l.passes("rule", "unresolved")
		}
		l.ip("neigh replace " + router + " lladdr " + l.second.MAC.String() + " dev eth2")
		if r.ports {
			l.leaves(l.second, "resolved")
		} else {
			l.passes("rule", "resolved")
		}
	})
}

// Packets under a policy pass to the stack, as long as the policy is there.
func TestIPsecPolicies(t *testing.T) {
	eachPolicyRelay(t, func(l *policyLab, r *policyRelay) {
		all := map[int]string{4: "src 0.0.0.0/0 dst 0.0.0.0/0", 6: "src ::/0 dst ::/0"}[l.family]
		other := map[int]string{4: "src ::/0 dst ::/0", 6: "src 0.0.0.0/0 dst 0.0.0.0/0"}[l.family]
		a := pathAddrs[l.family]
		to := fmt.Sprintf("src %v dst %v", a.out, a.peer)
		if r.name == "next hop" {
			to = fmt.Sprintf("src %v dst %v", a.client, a.peer)
		}
		template := fmt.Sprintf(" tmpl src %v dst %v proto esp mode tunnel", a.out, a.peer)
		// It isn't known before packets come where they go.
		blind := strings.HasPrefix(r.name, "lookup") || r.name == "next hop"
		for _, policy := range []struct {
			selector, rest string
			applies, may   bool // for what is known, for what isn't
		}{
			{all, template, true, true},
			{to, " action block", true, true},
			{to + " proto udp dport 7000", template, true, true},
			{to + " proto udp dport 7001", template, !r.ports, true},
			{to + " proto tcp", template, !r.proto, true},
			{to, "", false, false}, // in the clear
		} {
			l.ip("xfrm policy add " + policy.selector + " dir out" + policy.rest)
			if policy.applies || policy.may && blind {
				l.passes("xfrm", policy.selector)
			} else {
				l.leaves(l.first, policy.selector)
			}
			l.ip("xfrm policy delete " + policy.selector + " dir out")
			l.leaves(l.first, "without "+policy.selector)
		}
		if r.name != "next hop" { // a router's packets may be of the other family
			block := "xfrm policy add " + other + " dir out action block"
			l.must(l.host.Run("ip", strings.Fields(block)...))
			l.leaves(l.first, "a policy for the other family")
		}
	})
}
