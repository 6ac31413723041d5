package routes

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
)

// Traffic says of packets what their route depends on, as far as it is known before they come.
type Traffic struct {
	From netip.Addr // invalid: they keep a source of their own
	To   netip.Addr
	Flow Flow
	// To is a router that the packets are sent through: they are for others. Of these, nothing else is known.
	Router bool
}

// Flow is what packets have besides addresses. 0 stands for what isn't known.
type Flow struct {
	Proto            uint8 // IP protocol
	FromPort, ToPort uint16
}

// answer is one of a selector: does it select the packets?
type answer int

const (
	no answer = iota
	maybe
	yes
)

// both is the answer if two conditions have to hold.
func both(a, b answer) answer { return min(a, b) }

func certainly(is bool) answer {
	if is {
		return yes
	}
	return no
}

// selects reports whether a prefix has an address; an invalid prefix has all of its family, an invalid address may be
// any.
func selects(p netip.Prefix, a netip.Addr) answer {
	switch {
	case !p.IsValid() || p.Bits() == 0:
		return yes
	case !a.IsValid():
		return maybe
	}
	return certainly(p.Contains(a))
}

// ends returns the addresses of the packets, invalid if they aren't known.
func (t Traffic) ends() (from, to netip.Addr) {
	if t.Router {
		return netip.Addr{}, netip.Addr{}
	}
	return t.From, t.To
}

// family reports whether packets are of an IP version. What is sent through a router of one may be of the other.
func (t Traffic) family(v4 bool) bool { return t.Router || t.To.Is4() == v4 }

// port matches a port under a mask.
type port struct{ value, mask uint16 }

func (p port) selects(known uint16) answer {
	switch {
	case p.mask == 0:
		return yes
	case known == 0:
		return maybe
	}
	return certainly((known^p.value)&p.mask == 0)
}

// policy is an xfrm policy for packets that leave this host.
type policy struct {
	v4               bool
	from, to         netip.Prefix
	fromPort, toPort port
	proto            uint8 // 0: any
	ifindex          int   // of the device that packets leave by; 0: any
	priority         uint32
	clear            bool // packets leave as they are; else they are transformed, or dropped
}

func (p *policy) selects(t Traffic, ifindex int) answer {
	if !t.family(p.v4) {
		return no
	}
	from, to := t.ends()
	a := both(both(selects(p.from, from), selects(p.to, to)),
		both(p.fromPort.selects(t.Flow.FromPort), p.toPort.selects(t.Flow.ToPort)))
	if p.proto != 0 {
		if t.Flow.Proto == 0 {
			a = both(a, maybe)
		} else {
			a = both(a, certainly(t.Flow.Proto == p.proto))
		}
	}
	// Whether the kernel looks at the device depends on how the packet is sent.
	if p.ifindex != 0 {
		if ifindex == p.ifindex {
			a = both(a, maybe)
		} else {
			a = no
		}
	}
	return a
}

// asks reports whether a policy asks for the protocol or ports of packets, of which the flow isn't given.
func (p *policy) asks(t Traffic) bool {
	return (p.proto != 0 || p.fromPort.mask != 0 || p.toPort.mask != 0) && p.selects(t, p.ifindex) != no
}

// policies are the kernel's xfrm policies for packets that leave, in the order in which they count.
type policies struct {
	sub, main []policy // sub-policies come first, and a packet may be under one of each
	block     bool     // packets under no policy are dropped
}

func (p *policies) sort() {
	for _, list := range [][]policy{p.sub, p.main} {
		slices.SortStableFunc(list, func(a, b policy) int {
			if c := cmp.Compare(a.priority, b.priority); c != 0 || a.clear == b.clear {
				return c
			}
			if a.clear { // of two with one priority, the kernel takes the older one, which isn't known here
				return 1
			}
			return -1
		})
	}
}

// protect reports whether the kernel would transform or drop some of the packets when they leave by a device. If a
// selector asks for what isn't known, a policy that protects counts as one for the packets, and one that lets them pass
// doesn't.
func (p *policies) protect(t Traffic, ifindex int) bool {
	found := false
	for _, list := range [][]policy{p.sub, p.main} {
		for i := range list {
			a := list[i].selects(t, ifindex)
			if a != no && !list[i].clear {
				return true
			}
			if a == yes {
				found = true
				break
			}
		}
	}
	return p.block && !found
}

func (p *policies) asks(t Traffic) bool {
	for _, list := range [][]policy{p.sub, p.main} {
		if slices.ContainsFunc(list, func(p policy) bool { return p.asks(t) }) {
			return true
		}
	}
	return false
}

// some reports whether packets of an IP version may be protected.
func (p *policies) some(v4 bool) bool {
	protects := func(p policy) bool { return p.v4 == v4 && !p.clear }
	return p.block || slices.ContainsFunc(p.sub, protects) || slices.ContainsFunc(p.main, protects)
}

// rule is a routing rule that asks for a protocol or for ports.
type rule struct {
	v4       bool
	from, to netip.Prefix // invalid: any
	// of the device that packets come from: "lo" stands for this host
	device           string
	proto            uint8 // 0: any
	fromPort, toPort bool  // it asks for them
}

// undecided reports whether it depends on what isn't known of the packets whether the rule is for them. If all that
// it asks for is known, the kernel decides.
func (r *rule) undecided(t Traffic) bool {
	from, to := t.ends()
	switch {
	case !t.family(r.v4), selects(r.from, from) == no, selects(r.to, to) == no,
		r.device != "" && r.device != "lo" && !t.Router,
		r.proto != 0 && t.Flow.Proto != 0 && r.proto != t.Flow.Proto:
		return false
	}
	return r.proto != 0 && t.Flow.Proto == 0 || r.fromPort && t.Flow.FromPort == 0 || r.toPort && t.Flow.ToPort == 0
}

// prefix makes a prefix of an address and a length; invalid if it is none.
func prefix(a netip.Addr, bits int) netip.Prefix {
	p := netip.PrefixFrom(a, bits)
	if bits > math.MaxUint8 || !p.IsValid() {
		return netip.Prefix{}
	}
	return p.Masked()
}
