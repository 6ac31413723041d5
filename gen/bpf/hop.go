package bpf

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A hop comes from a row, where user space has put it, or from a route lookup, which fills in a local one.

// hop returns what stands in front of the name of a member of a hop.
func (f *function) hop(h *ir.HopRef) string {
	if h.Row == nil {
		return f.looked(h).accessor(f)
	}
	s := f.row(h.Row) + "->" + member(h.Member) + "."
	if h.Member.Type.Kind == ir.NextHop {
		s += "hop."
	}
	return s
}

// lookedUp is the number of a route lookup.
type lookedUp string

func (f *function) looked(h *ir.HopRef) lookedUp {
	n := lookedUp(f.prog.hopName(h))
	use(&f.hopsUsed, n)
	return n
}

func (n lookedUp) hop() string { return "hop_" + string(n) }
func (n lookedUp) fib() string { return "fib_" + string(n) }

// accessor: the function that looks a route up has the structures, those that it calls have pointers.
func (n lookedUp) accessor(f *function) string {
	if !f.routed[n] {
		return n.hop() + "->"
	}
	return n.hop() + "."
}

// hopName numbers the route lookups of a program. The lookup that is checked and the one that is
// sent through are the same.
func (p *program) hopName(h *ir.HopRef) string {
	f := p.function() // to compare what is looked up, not to write it
	key := fmt.Sprint(h.Family)
	for _, e := range []ir.Expr{h.From, h.To} {
		if e != nil {
			b := f.bytes(e)
			key += " " + b.load(0, 8) + b.load(8, 8)
		}
	}
	if h.Proto != 0 {
		key += fmt.Sprint(" ", h.Proto, f.expr(h.FromPort), f.expr(h.ToPort))
	}
	if p.hops == nil {
		p.hops = map[string]string{}
	}
	if p.hops[key] == "" {
		p.hops[key] = fmt.Sprint(len(p.hops) + 1)
	}
	return p.hops[key]
}

// checkHop renders the check that a packet can leave; rest are the statements after it.
func (f *function) checkHop(s *ir.CheckHop, rest []ir.Stmt) {
	f.quote(s.Pos)
	f.cover(s.Pos, s.Length, s.Hop.From, s.Hop.To, s.Hop.FromPort, s.Hop.ToPort)
	if !f.prog.fitsLater(s, rest) {
		f.hopFits(s, rest)
	}
}

// hopFits renders the check itself.
func (f *function) hopFits(s *ir.CheckHop, rest []ir.Stmt) {
	if s.Hop.Row == nil {
		f.routed[f.looked(s.Hop)] = true
	}
	hop := f.hop(s.Hop)
	length := f.expr(s.Length)
	if !f.known.plain {
		// the kernel segments a GSO packet: each segment has to fit
		if head := f.headers(ir.NextRewrite(rest)); head != "" {
			length = fmt.Sprintf("(skb->gso_size ? skb->gso_size + %s : %s)", head, length)
		}
	}
	if s.Hop.Row == nil {
		f.route(s, length)
	}
	if f.turn == nil && s.Hop.Row != nil && s.TooBig+1 == s.Reasons[ir.HopNone] {
		f.stopIf(s.Pos, fmt.Sprintf("unlikely(!fr_fits(%s, %s))", f.hopPointer(s.Hop), length), nil,
			fmt.Sprintf("return fr_up(skb, %s);", f.prog.unusable("fr_unfit", f.hopPointer(s.Hop), s)))
		return
	}
	if f.turn != nil { // the kernel doesn't resolve neighbours for clones
		f.stopIf(s.Pos, fmt.Sprintf("unlikely(%sstate != FR_HOP_DIRECT)", hop), nil,
			f.endsFor("decline", f.prog.indirect(f.hopPointer(s.Hop), s)))
	} else {
		f.stopIf(s.Pos, fmt.Sprintf("unlikely(!fr_usable(%s))", f.hopPointer(s.Hop)), nil,
			fmt.Sprintf("return fr_up(skb, %s);", f.prog.unusable("fr_unusable", f.hopPointer(s.Hop), s)))
	}
	if s.Hop.Row == nil {
		return // the lookup has compared the length
	}
	f.unless(s.Pos, fmt.Sprintf("%s > %smtu", length, hop), s.TooBig)
}

// unusable is the reason for which a packet can't leave through a hop. The helper adds to the two that it gets.
func (p *program) unusable(helper, hop string, s *ir.CheckHop) string {
	none, unreachable := s.Reasons[ir.HopNone], s.Reasons[ir.HopUnreachable]
	p.inOrder(s, unreachable, ir.HopUnreachable, ir.HopBlackhole, ir.HopProhibit, ir.HopXfrm, ir.HopRule, ir.HopEncap)
	if s.Hop.Row == nil {
		helper = "fr_unrouted"
		p.inOrder(s, none+1, ir.HopForwardingOff)
	} else {
		p.inOrder(s, none+1, ir.HopLocal)
	}
	return fmt.Sprintf("%s(%s, %s, %s)", helper, hop, p.reasonName(none), p.reasonName(unreachable))
}

// indirect is the same for a copy.
func (p *program) indirect(hop string, s *ir.CheckHop) string {
	unreachable := s.Reasons[ir.HopUnreachable]
	p.inOrder(s, unreachable+6, ir.HopNeighbour)
	return fmt.Sprintf("fr_indirect(%s, %s, %s)", hop, p.reasonName(unreachable), p.unusable("fr_unusable", hop, s))
}

// inOrder checks that the reasons of states follow each other, as helpers expect.
func (p *program) inOrder(s *ir.CheckHop, first int, states ...abi.HopState) {
	for i, state := range states {
		if s.Reasons[state] != first+i {
			p.fail("the reasons at %s aren't in the order of states: %v", s.Pos, s.Reasons)
		}
	}
}

// hopPointer is a pointer to a hop.
func (f *function) hopPointer(h *ir.HopRef) string {
	hop := f.hop(h)
	if base, ok := strings.CutSuffix(hop, "->"); ok {
		return base
	}
	return "&" + strings.TrimSuffix(hop, ".")
}

// headers returns the size of the network-layer packet's headers in the packet that a rewrite makes, of a GSO packet
// those of a segment.
func (f *function) headers(w *ir.Rewrite) string {
	switch {
	case w == nil:
		return ""
	case w.Encap != nil:
		return f.expr(w.Encap.Front)
	}
	return f.offset(plus(w.NewFront, -w.L2))
}

// offset renders an offset as a number.
func (f *function) offset(o ir.Off) string {
	switch {
	case o.Base == nil:
		return fmt.Sprint(o.Const)
	case o.Const == 0:
		return f.variable(o.Base)
	case o.Const < 0:
		return fmt.Sprintf("(%s - %d)", f.variable(o.Base), -o.Const)
	}
	return fmt.Sprintf("(%s + %d)", f.variable(o.Base), o.Const)
}

// route renders a route lookup for a packet of a length.
func (f *function) route(s *ir.CheckHop, length string) {
	n := f.looked(s.Hop)
	fib, family := n.fib(), "AF_INET6"
	if s.Hop.Family == 4 {
		family = "AF_INET"
	}
	f.stmt(s.Pos, "__builtin_memset(&%s, 0, sizeof(%s));", fib, fib)
	f.stmt(s.Pos, "%s.family = %s;", fib, family)
	for _, end := range []struct {
		name string
		x    ir.Expr
	}{{"src", s.Hop.From}, {"dst", s.Hop.To}} {
		if end.x == nil {
			continue
		}
		b := f.bytes(end.x)
		if s.Hop.Family == 4 {
			f.stmt(s.Pos, "%s.%s[0] = %s;", fib, end.name, b.ipv4())
			continue
		}
		for i := range 4 {
			f.stmt(s.Pos, "%s.%s[%d] = %s;", fib, end.name, i, b.load(4*i, 4))
		}
	}
	if s.Hop.Proto != 0 {
		f.stmt(s.Pos, "fr_flow(&%s, %s, %s, %s);", fib, protocol(uint64(s.Hop.Proto)),
			f.expr(s.Hop.FromPort), f.expr(s.Hop.ToPort))
	}
	f.unless(s.Pos, fmt.Sprintf("fr_route(skb, &%s, %s, &%s)", fib, length, n.hop()), s.TooBig)
}

// redirect renders the end of a packet that is sent; direct is the condition for a hop whose link-layer addresses are
// known, or "" where the link-layer header is always the kernel's business.
func (f *function) redirect(h *ir.HopRef, direct string) {
	hop := f.hop(h)
	switch {
	case direct != "" && h.Row != nil && h.Member.Type.Kind != ir.NextHop:
		f.line("return fr_send(%s, %s);", f.hopPointer(h), direct)
		return
	case direct != "":
		f.line("if (%s)", direct)
		f.line("\treturn bpf_redirect(%sifindex, 0);", hop)
	}
	switch {
	case h.Row == nil:
		fib := f.looked(h).fib()
		f.line("return fr_redirect_neigh(%sifindex, %s->family, %s->dst);", hop, fib, fib)
	case h.Member.Type.Kind == ir.NextHop && h.Family == 4:
		f.line("return fr_redirect_neigh(%sifindex, AF_INET, fr_v4_in(%s->%s.addr));", hop, f.row(h.Row),
			member(h.Member))
	case h.Member.Type.Kind == ir.NextHop:
		f.line("return fr_redirect_neigh(%sifindex, AF_INET6, %s->%s.addr);", hop, f.row(h.Row), member(h.Member))
	default:
		f.line("return bpf_redirect_neigh(%sifindex, NULL, 0, 0);", hop)
	}
}
