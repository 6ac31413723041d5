package routes

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
)

// The kernel follows routing rules when it is asked for a route. What it has to be told for that isn't always known: a
// packet's protocol and ports may be its own. Of rules that ask for these, the resolver keeps a copy.

// undecided reports whether a rule asks for what isn't known of the packets.
func (rt *Resolver) undecided(t Traffic) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.ContainsFunc(rt.rules, func(r rule) bool { return r.undecided(t) })
}

// Narrow leaves out of traffic what makes no difference to how it leaves: the flow, if no rule and no policy for
// these addresses asks for a protocol or for ports. So thousands of flows between two hosts need one lookup.
func (rt *Resolver) Narrow(t Traffic) Traffic {
	if t.Flow != (Flow{}) && !rt.Asks(t) {
		t.Flow = Flow{}
	}
	return t
}

// Asks reports whether a rule or a policy for these addresses asks for a protocol or for ports.
func (rt *Resolver) Asks(t Traffic) bool {
	t.Flow = Flow{}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return slices.ContainsFunc(rt.rules, func(r rule) bool { return r.undecided(t) }) || rt.policies.asks(t)
}

// Policy says what route lookups in the kernel don't see, by the bits of [abi.LeasePolicy].
func (rt *Resolver) Policy() (bits uint64) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for family, v4 := range []bool{true, false} {
		if rt.policies.some(v4) {
			bits |= abi.PolicyXfrm << family
		}
		if slices.ContainsFunc(rt.rules, func(r rule) bool { return r.v4 == v4 }) {
			bits |= abi.PolicyRules << family
		}
	}
	return bits
}

// readRules replaces the copy of the rules.
func (rt *Resolver) readRules() error {
	var rules []rule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		var list []netlink.Rule
		err := rt.with(func(ask *netlink.Handle) (err error) {
			list, err = nldump.List(func() ([]netlink.Rule, error) { return ask.RuleList(family) })
			return err
		})
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) { // the kernel has no rules
			continue
		}
		if err != nil {
			return err
		}
		for i := range list {
			if r, ok := newRule(&list[i]); ok && list[i].Family == family {
				rules = append(rules, r)
			}
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.rules = rules
	return nil
}

// newRule says what matters of a rule; false if it asks for neither protocol nor ports, or if the rest of it
// decides.
func newRule(r *netlink.Rule) (rule, bool) {
	mask := r.Mark // of a rule without a mask, all bits count that are set
	if r.Mask != nil {
		mask = *r.Mask
	}
	switch {
	case r.IPProto == 0 && r.Dport == nil && r.Sport == nil:
		return rule{}, false
	// What a relay sends has no mark, comes out of no tunnel, and is bound to no device.
	case r.Mark&mask != 0, r.TunID != 0, r.OifName != "":
		return rule{}, false
	}
	return rule{
		v4: r.Family == netlink.FAMILY_V4, from: prefixOf(r.Src), to: prefixOf(r.Dst), device: r.IifName,
		proto: uint8(r.IPProto), fromPort: r.Sport != nil, toPort: r.Dport != nil,
	}, true
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return prefix(addr.Unmap(), bits)
}
