package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A hop comes from a row, where user space has put it, or from a route lookup, which fills in a local one.

// hop is a pointer to a hop: the function that looks a route up has the structures, those that it calls have pointers.
func (f *function) hop(h *ir.HopRef) c.Expr {
	if h.Row == nil {
		return f.prog.lookedUp(h).hop
	}
	x := c.To(f.row(h.Row), member(h.Member))
	if h.Member.Type.Kind == ir.NextHop {
		x = c.In(x, "hop")
	}
	return c.Address(x)
}

// ofHop is a member of a hop.
func (f *function) ofHop(h *ir.HopRef, member string) c.Expr { return c.To(f.hop(h), member) }

// isDirect is the condition that a hop's link-layer addresses are known.
func (f *function) isDirect(h *ir.HopRef) c.Expr {
	return equals(f.ofHop(h, "state"), c.Ident("FR_HOP_DIRECT"))
}

// lookedUp is a route lookup: what is looked up, and the kernel's answer.
type lookedUp struct{ hop, fib *c.Local }

// lookedUp is the lookup of a route. The one that is checked and the one that is sent through are the same.
func (p *program) lookedUp(h *ir.HopRef) *lookedUp {
	f := p.function() // to compare what is looked up, not to write it
	key := fmt.Sprint(h.Family)
	for _, e := range []ir.Expr{h.From, h.To} {
		if e != nil {
			b := f.bytes(e)
			key += fmt.Sprint(" ", c.KeyOf(b.load(0, 8)), c.KeyOf(b.load(8, 8)))
		}
	}
	if h.Proto != 0 {
		key += fmt.Sprint(" ", h.Proto, c.KeyOf(f.expr(h.FromPort)), c.KeyOf(f.expr(h.ToPort)))
	}
	if p.hops[key] == nil {
		p.hops[key] = &lookedUp{own("hop", "struct fr_hop *"), own("fib", "struct bpf_fib_lookup *")}
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
		use(&f.routes, f.prog.lookedUp(s.Hop))
	}
	length := f.expr(s.Length)
	if !f.known.plain {
		// the kernel segments a GSO packet: each segment has to fit
		if head := f.headers(ir.NextRewrite(rest)); head != nil {
			segment := append([]c.Expr{ofSKB("gso_size")}, c.Terms("+", head)...)
			length = c.Choice{If: ofSKB("gso_size"), Then: c.Join("+", segment...), Else: length}
		}
	}
	if s.Hop.Row == nil {
		f.route(s, length)
	}
	hop, reason := f.hop(s.Hop), func(state abi.HopState) c.Expr { return f.prog.reasonName(s.Reasons[state]) }
	stop := func(why c.Expr) {
		f.stopIf(s.Pos, c.Unlikely(c.Not(c.Do("fr_xdp_fits", hop, length))), nil, f.stop(why))
	}
	if f.prog.ir.ToTC {
		stop(reason(ir.HopNeighbour))
		return
	}
	f.prog.inChain(s)
	switch {
	case s.Direct && s.Hop.Row == nil:
		stop(c.Do("fr_xdp_unrouted", hop, reason(ir.HopDirect), reason(ir.HopNone), reason(ir.HopUnreachable)))
	case s.Direct:
		stop(c.Do("fr_xdp_unfit", hop, length, reason(ir.HopDirect), f.prog.reasonName(s.TooBig)))
	case s.Hop.Row == nil: // the lookup has compared the length
		f.stopIf(s.Pos, c.Unlikely(c.Not(c.Do("fr_usable", hop))), nil,
			c.Do("fr_punt", skb, c.Do("fr_unrouted", hop, reason(ir.HopNone), reason(ir.HopUnreachable))))
	case f.turn == nil:
		f.stopIf(s.Pos, c.Unlikely(c.Not(c.Do("fr_fits", hop, length))), nil,
			c.Do("fr_unfit", skb, hop, f.prog.reasonName(s.TooBig)))
	default: // the kernel doesn't resolve neighbours for clones
		direct := c.Binary{Op: "!=", X: f.ofHop(s.Hop, "state"), Y: c.Ident("FR_HOP_DIRECT")}
		f.stopIf(s.Pos, c.Unlikely(direct), nil,
			f.endsFor("decline", c.Do("fr_indirect", hop, reason(ir.HopNone))))
		f.unless(s.Pos, exceeds(length, f.ofHop(s.Hop, "mtu")), s.TooBig)
	}
}

// inChain checks that the reasons of a hop's states follow each other as helpers expect (fr_unusable).
func (p *program) inChain(s *ir.CheckHop) {
	states := []abi.HopState{
		ir.HopUnreachable, ir.HopBlackhole, ir.HopProhibit, ir.HopXfrm, ir.HopRule, ir.HopEncap, ir.HopNeighbour,
	}
	none := p.number(s.Reasons[ir.HopNone])
	first, ok := none+2, p.number(s.TooBig) == none-1 && p.number(s.Reasons[ir.HopLocal]) == none+1
	if s.Hop.Row == nil {
		first, ok = p.number(s.Reasons[ir.HopUnreachable]), p.number(s.Reasons[ir.HopForwardingOff]) == none+1
	}
	for i, state := range states {
		ok = ok && (s.Reasons[state] < 0 || p.number(s.Reasons[state]) == first+i)
	}
	if !ok {
		p.fail("the reasons at %s aren't in the order of states: %v", s.Pos, s.Reasons)
	}
}

// headers returns the size of the network-layer packet's headers in the packet that a rewrite makes, of a GSO packet
// those of a segment.
func (f *function) headers(w *ir.Rewrite) c.Expr {
	switch {
	case w == nil:
		return nil
	case w.Encap != nil:
		return f.expr(w.Encap.Front)
	}
	return f.offset(w.NewFront.Plus(-w.L2))
}

// offset renders an offset as a number.
func (f *function) offset(o ir.Off) c.Expr {
	if o.Base == nil {
		return c.Dec(o.Const)
	}
	return c.Plus(f.variable(o.Base), o.Const)
}

// route renders a route lookup for a packet of a length.
func (f *function) route(s *ir.CheckHop, length c.Expr) {
	n := f.prog.lookedUp(s.Hop)
	fib, family := n.fib, c.Ident("AF_INET6")
	if s.Hop.Family == 4 {
		family = "AF_INET"
	}
	f.do(s.Pos, "__builtin_memset", fib, c.Num(0), c.Do("sizeof", c.Unary{Op: "*", X: fib}))
	f.assign(s.Pos, c.To(fib, "family"), family)
	for _, end := range []struct {
		name string
		x    ir.Expr
	}{{"src", s.Hop.From}, {"dst", s.Hop.To}} {
		if end.x == nil {
			continue
		}
		b := f.bytes(end.x)
		if s.Hop.Family == 4 {
			f.assign(s.Pos, c.Index{X: c.To(fib, end.name), At: c.Dec(0)}, b.ipv4())
			continue
		}
		for i := range 4 {
			f.assign(s.Pos, c.Index{X: c.To(fib, end.name), At: c.Dec(i)}, b.load(4*i, 4))
		}
	}
	if s.Hop.Proto != 0 {
		f.do(s.Pos, "fr_flow", fib, protocol(uint64(s.Hop.Proto)), f.expr(s.Hop.FromPort),
			f.expr(s.Hop.ToPort))
	}
	f.unless(s.Pos, c.Do("fr_route", f.prog.given(), f.prog.device(), fib, length, n.hop), s.TooBig)
}

// redirect renders the end of a packet that is sent; direct is the condition for a hop whose link-layer addresses are
// known, or "" if the link-layer header is always the kernel's business.
func (f *function) redirect(h *ir.HopRef, direct c.Ident) {
	index := f.ofHop(h, "ifindex")
	end := func(name string, args ...c.Expr) { f.end(noPos, c.Do(name, args...)) }
	switch {
	case direct != "" && h.Row != nil && h.Member.Type.Kind != ir.NextHop:
		end("fr_send", f.hop(h), direct)
		return
	case direct != "":
		f.when(noPos, direct, func() { end("bpf_redirect", index, c.Num(0)) })
	}
	switch {
	case h.Row == nil:
		fib := f.prog.lookedUp(h).fib
		end("fr_redirect_neigh", index, c.To(fib, "family"), c.To(fib, "dst"))
	case h.Member.Type.Kind == ir.NextHop && h.Family == 4:
		end("fr_redirect_neigh", index, c.Ident("AF_INET"), c.Do("fr_v4_in", f.gateway(h)))
	case h.Member.Type.Kind == ir.NextHop:
		end("fr_redirect_neigh", index, c.Ident("AF_INET6"), f.gateway(h))
	default:
		end("bpf_redirect_neigh", index, c.Ident("NULL"), c.Num(0), c.Num(0))
	}
}

// gateway is the address of a next hop.
func (f *function) gateway(h *ir.HopRef) c.Expr {
	return c.In(c.To(f.row(h.Row), member(h.Member)), "addr")
}
