package rewrite

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles send. `from` and `to` originate a datagram, as a user-space relay would: addresses and ports are
// the spec's, the fields with an origin get it (hop limit 64, no fragmentation), DSCP and ECN stay (RFC 8656 §14), and
// where the destination is of the other family the network header is made anew. `via` routes: one hop less, everything
// else stays. What a rule has set counts, but for what send is told: that can't be said twice. VLAN tags belong to the
// link that the packet came from, and go away.

// Send ends a rule with a packet that is sent.
func (w *Packet) Send(a *spec.Action, state []ir.Stmt) {
	for _, in := range w.Scope.Path {
		if in.Decl.Metadata == "vlan" && (in.Meta || w.header(in) != nil) {
			w.remove(in, false, a.Pos)
		}
	}
	net := slices.IndexFunc(w.hdrs, func(o *Header) bool { return Role(o.h, "destination") != nil })
	if net < 0 {
		w.Scope.Fail(code.Send, a.Pos, "send needs an IP header in the stack")
		return
	}
	if a.Via != nil {
		w.via(a, net, state)
		return
	}
	if a.To == nil {
		w.Scope.Fail(code.Send, a.Pos, "send needs a destination: to, or via")
		return
	}
	to, ok1 := w.address(a.To)
	from, ok2 := expr.Value{}, true
	if a.From != nil {
		from, ok2 = w.address(a.From)
	}
	if !ok1 || !ok2 {
		return
	}
	if to.Port != nil && a.From == nil {
		w.Scope.Fail(code.Send, a.Pos, "send to an endpoint needs from, too")
		return
	}
	o := w.hdrs[net]
	have := Role(o.h, "destination").Bytes
	other := w.sibling(o)
	if other != nil && other.Varies() ||
		slices.ContainsFunc(w.hdrs, func(o *Header) bool { return o.size < 0 }) {
		other = nil // a header of variable length can't be written again: user space converts
	}
	if o.old == nil {
		other = nil // it is put in: the spec has said which one
	}
	if w.Scope.Each != nil {
		other = nil // copies are rewritten in place
	}
	family := w.Program.Punted("address_family", "an address of the other IP version", a.Pos)
	toV4 := fold.IsV4(to.X)
	same := toV4
	if have == 16 {
		same = fold.Not(toV4)
	}
	if from.X != nil {
		fromV4 := fold.IsV4(from.X)
		v, known := fold.Constant(fromV4)
		stays := (v != 0) == (have == 4)
		switch {
		case !known || !stays && other == nil:
			w.Guard(fold.Bin(ir.Eq, fromV4, toV4), family, a.Pos)
		case stays:
			other = nil
		default:
			w.Guard(fold.Not(same), family, a.Pos)
			w.originate(a, net, other, from, to, state)
			return
		}
	}
	if other == nil || from.X == nil || fold.IsTrue(same) {
		w.Guard(same, family, a.Pos)
		w.originate(a, net, nil, from, to, state)
		return
	}
	draft.Emit(w.Blk, w.Guards...)
	w.Guards = nil
	branch := &ir.If{Cond: same, Pos: a.Pos, Note: o.h.Name.Value + " stays"}
	w.fork(&branch.Then).originate(a, net, nil, from, to, state)
	w.fork(&branch.Else).originate(a, net, other, from, to, state)
	draft.Emit(w.Blk, common(w.Program, branch)...)
	draft.Emit(w.Blk, branch)
}

// address lowers what send takes: an endpoint or an IP address.
func (w *Packet) address(e *spec.Expr) (expr.Value, bool) {
	v, ok := w.Scope.Value(e)
	if ok && v.Type.Kind != ir.Endpoint && v.Type.Kind != ir.Addr {
		w.Scope.Fail(code.Send, e.Pos, "this is %s, where an endpoint or an IP address is wanted", v.Type.What())
		return v, false
	}
	return v, ok
}

// sibling returns the header of the other family that the stack allows in a header's place, if the kernel can change
// the packet's family: it takes the packet for what its first header is.
func (w *Packet) sibling(o *Header) *spec.Header {
	if !isIP(w.outermost()) {
		return nil
	}
	for _, e := range w.Program.Src.Stack {
		if e.Var.Value != o.entry {
			continue
		}
		hs := w.Program.Names.Choices(e)
		for _, h := range hs {
			if d := Role(h, "destination"); h != o.h && d != nil && d.Bytes != Role(o.h, "destination").Bytes {
				return h
			}
		}
	}
	return nil
}

// originate finishes a packet with addresses; other is the network header that replaces the one that came, or nil.
func (w *Packet) originate(a *spec.Action, net int, other *spec.Header, from, to expr.Value, state []ir.Stmt) {
	o := w.hdrs[net]
	w.verify(o, other != nil, a)
	if other != nil {
		o = w.replace(net, other)
	}
	if other == nil {
		for _, f := range o.h.Fields {
			if f.Origin != nil && f.Kind == spec.FieldUint && !o.isSet(f) {
				o.vals[f.Name.Value] = fold.Num(*f.Origin)
			}
		}
	}
	dst, src := Role(o.h, "destination"), Role(o.h, "source")
	w.sends(o, dst, a.To)
	o.vals[dst.Name.Value] = to.X
	if from.X != nil && src != nil {
		w.sends(o, src, a.From)
		o.vals[src.Name.Value] = from.X
	}
	for _, end := range []struct {
		v    expr.Value
		e    *spec.Expr
		role string
	}{{from, a.From, "source"}, {to, a.To, "destination"}} {
		if end.v.Port == nil {
			continue
		}
		t, f := w.port(net, end.role)
		if f == nil {
			w.Scope.Fail(code.Send, a.Pos, "no header after %q has ports", o.entry).
				WithHint("send from and to addresses: ….addr")
			return
		}
		if !w.setPort(t, f, end.v.Port, end.e) {
			return
		}
	}
	hop := &ir.HopRef{From: from.X, To: to.X, Family: 4}
	if dst.Bytes == 16 {
		hop.Family = 6
	}
	if to.Row != nil && !to.Row.Table.PerCPU {
		var fm *ir.Member
		if from.Row == to.Row && from.Level == nil {
			fm = from.Member
		}
		if m := to.Row.Table.Hop(to.Member, fm); m != nil && len(a.To.Path) == 2 {
			hop.Row, hop.Member, hop.From, hop.To = to.Row, m, nil, nil
			w.carries(m, w.transport(net))
		}
	}
	if hop.Row == nil {
		w.flow(hop, net)
	}
	w.canLeave(from.X, to.X, hop, a.Pos)
	w.Finish(hop, state, a.Pos)
}

// transport returns the IP protocol of the header after the network header if it is one with ports, else 0: routing
// rules and xfrm policies may ask for it.
func (w *Packet) transport(net int) int {
	if net+1 == len(w.hdrs) {
		return 0
	}
	ip, next := w.hdrs[net].h, w.hdrs[net+1].h
	for _, a := range next.After {
		for _, m := range a.Match {
			if a.Parent.Value != ip.Name.Value || m.Is.Op != spec.IsEq || m.Is.Value.Kind != spec.LitInt {
				continue
			}
			if p := m.Is.Value.Int; p == protoTCP || p == protoUDP {
				return int(p)
			}
		}
	}
	return 0
}

const protoTCP, protoUDP = 6, 17

// flow gives a route lookup the protocol and the ports that the packet leaves with.
func (w *Packet) flow(hop *ir.HopRef, net int) {
	port := func(role string) ir.Expr {
		o, f := w.port(net, role)
		switch {
		case f == nil:
			return nil
		case o.vals[f.Name.Value] != nil:
			return o.vals[f.Name.Value]
		case o.old != nil && o.old.Fields[f.Name.Value] != nil:
			return o.old.Fields[f.Name.Value].Load
		}
		return nil
	}
	unknown := func(x ir.Expr) bool { // yet: the number is found after the route
		return x == nil || expr.Reads(x, w.Effects.Allocated) || expr.Reads(x, w.Effects.LateVars)
	}
	proto, from, to := w.transport(net), port("source"), port("destination")
	if proto != 0 && !unknown(from) && !unknown(to) {
		hop.Proto, hop.FromPort, hop.ToPort = proto, from, to
	}
}

// setPort gives a header the port of an endpoint, where set could give the field that value. (It may be a field that
// says which header follows: what a port stands for is a matter of the endpoints.)
func (w *Packet) setPort(o *Header, f *spec.Field, port ir.Expr, e *spec.Expr) bool {
	var pl *draft.Field
	if o.old != nil {
		pl = o.old.Fields[f.Name.Value]
	}
	why := ""
	switch {
	case pl != nil && port == pl.Load: // it stays
	case f.Counts != nil:
		why = "it is a length, which follows from the packet"
	case f.Checksum != nil:
		why = "it is a checksum, which follows from the packet"
	case pl != nil && pl.Segment < 0:
		why = "its size or presence varies"
	case f.Kind != spec.FieldUint || f.Bits < 16:
		why = "it has no room for the 16 bits of a port"
	case shapes(o.h, f):
		why = "the size or presence of another field depends on it"
	case !w.allows(o.h, f, expr.Value{Type: ir.UintType(16), X: port, Max: ranges.Max(16), Pos: e.Pos}):
		why = "it has to keep the value that its header declares"
	}
	if why != "" {
		d := w.Scope.Fail(code.Target, e.Pos, "send can't set port %q of header %q: %s", f.Name.Value, o.entry, why).
			WithRelated(f.Name.Pos, "the field is declared here")
		if w.Scope.Each == nil {
			d.WithHint("an address leaves the port as it is: %s.addr", e)
		} else {
			d.WithHint("via, with a next hop of the row, leaves ports as they are")
		}
		return false
	}
	w.sends(o, f, e)
	o.vals[f.Name.Value] = port
	return true
}

// sends reports a field that a rule has set, and that send gives the value of an expression.
func (w *Packet) sends(o *Header, f *spec.Field, e *spec.Expr) {
	if o.isSet(f) {
		w.Scope.Fail(code.Target, o.sets[f.Name.Value], "field %q can't be set: send gives it the value of %s",
			f.Name.Value,
			e).
			WithRelated(e.Pos, "it is sent so here").
			WithHint("leave one of them out")
	}
}

// port returns the transport header's field for a port: the one that an endpoint of it ties to the address with that
// role.
func (w *Packet) port(net int, roleName string) (*Header, *spec.Field) {
	for _, o := range w.hdrs[net+1:] {
		if w.hdrs[net].old == nil && Role(o.h, "destination") != nil {
			break // what the packet was before is left as it is
		}
		for _, p := range o.h.Parts {
			if p.Addr == nil || p.Port == nil {
				continue
			}
			addr := p.Addr.Path[len(p.Addr.Path)-1].Value
			if f := Role(w.hdrs[net].h, roleName); f == nil || f.Name.Value != addr {
				continue
			}
			port := p.Port.Path[len(p.Port.Path)-1].Value
			i := slices.IndexFunc(o.h.Fields, func(f *spec.Field) bool { return f.Name.Value == port })
			if i >= 0 {
				return o, o.h.Fields[i]
			}
		}
	}
	return nil, nil
}

// verify makes sure of the checksum of the IP header of a packet that is sent, unless it was verified where it came.
// It would go unnoticed that it was wrong when the header is replaced.
func (w *Packet) verify(o *Header, replaced bool, a *spec.Action) {
	if o.old == nil {
		return
	}
	for _, f := range o.h.Fields {
		k := f.Checksum
		if k != nil && k.Covers == "header" && (replaced || k.Verify && innerHeader(w.Scope, o)) &&
			!o.old.Verified {
			w.Guard(o.old.SumOK(), draft.WrongSum(w.Program, o.h, f), a.Pos)
		}
	}
}

// innerHeader reports whether an IP header that came is not the outermost one.
func innerHeader(s *expr.Scope, o *Header) bool {
	return slices.ContainsFunc(s.Path[:o.index],
		func(in *draft.Header) bool { return in.Address("destination") != nil })
}

// replace puts a network header of the other family in a header's place. Fields of the same name keep their values.
func (w *Packet) replace(net int, h *spec.Header) *Header {
	o := w.hdrs[net]
	n := &Header{
		h: h, entry: o.entry, index: o.index, vals: map[string]ir.Expr{}, sets: o.sets, size: draft.SizeOf(h),
		pos: o.pos,
	}
	var next *spec.Header
	if net+1 < len(w.hdrs) {
		next = w.hdrs[net+1].h
	}
	for _, f := range h.Fields {
		name := f.Name.Value
		switch {
		case f.Counts != nil || f.Checksum != nil || f.Role.Value == "source" || f.Role.Value == "destination":
		case f.Is != nil && f.Is.Op == spec.IsEq && f.Kind == spec.FieldUint:
			n.vals[name] = fold.Num(f.Is.Value.Int)
		case o.setFor(f) != nil:
			n.vals[name] = o.setFor(f)
		case f.Origin != nil && f.Kind == spec.FieldUint:
			n.vals[name] = fold.Num(*f.Origin)
		case next != nil && announced(h, next, f) != nil:
			n.vals[name] = announced(h, next, f)
		case o.vals[name] != nil:
			n.vals[name] = o.vals[name]
		case o.old.Fields[name] != nil && o.old.Fields[name].Load != nil:
			n.vals[name] = o.old.Fields[name].Load
		case f.Kind == spec.FieldUint:
			n.vals[name] = fold.Num(0)
		}
	}
	w.hdrs = slices.Clone(w.hdrs)
	w.hdrs[net] = n
	if came := w.outermost(); isIP(came) && sameFamily(came, h) {
		return n // to the kernel the packet was of this family all along, by a header that is popped
	}
	w.family = 4
	if Role(h, "destination").Bytes == 16 {
		w.family = 6
	}
	return n
}

// setFor is the value that a rule has set for the field of a header of the other family: in the one of the same name,
// or for the same role.
func (o *Header) setFor(f *spec.Field) ir.Expr {
	for _, was := range o.h.Fields {
		if o.isSet(was) && (was.Name.Value == f.Name.Value || was.Role.Value != "" && was.Role.Value == f.Role.Value) {
			return o.vals[was.Name.Value]
		}
	}
	return nil
}

// via routes the packet to a next hop.
func (w *Packet) via(a *spec.Action, net int, state []ir.Stmt) {
	routed := w.byRoute(a.Via)
	v, ok := expr.Value{Type: ir.Type{Kind: ir.NextHop}}, true
	if !routed {
		v, ok = w.Scope.Value(a.Via)
	}
	if !ok {
		return
	}
	if v.Type.Kind != ir.NextHop {
		w.Scope.Fail(code.Send, a.Via.Pos, "this is %s, where a next hop is wanted", v.Type.What()).
			WithHint("a value of a table that isn't a session's may have type \"next_hop\"; to an endpoint, send has " +
				"from and to")
		return
	}
	if a.From != nil || a.To != nil {
		w.Scope.Fail(code.Send, a.Pos, "via routes a packet as it is: it excludes from and to")
		return
	}
	o := w.hdrs[net]
	family := 4
	if Role(o.h, "destination").Bytes == 16 {
		family = 6
	}
	if f := Role(o.h, "hop_limit"); f != nil && o.old != nil {
		limit := o.old.Fields[f.Name.Value].Load
		w.Guard(fold.Bin(ir.Gt, limit, fold.Num(1)), w.Program.Punted("hop_limit", "the hop limit is used up", a.Pos),
			a.Pos)
		if !o.isSet(f) {
			vals := maps.Clone(o.vals)
			vals[f.Name.Value] = fold.Bin(ir.Sub, limit, fold.Num(1))
			o.vals = vals
		}
	}
	w.verify(o, false, a)
	hop := &ir.HopRef{Row: v.Row, Member: v.Member, Family: family}
	src, dst := o.addressNow("source"), o.addressNow("destination")
	if routed {
		hop.From, hop.To = src, dst
	}
	if src != nil && dst != nil {
		w.canLeave(src, dst, hop, a.Pos)
	}
	w.Finish(hop, state, a.Pos)
}

// routeName is the next hop that the kernel's routing finds for a packet's own destination.
const routeName = "route"

// byRoute reports whether an expression says that the kernel's routes decide. A row or a value may have that name, too.
func (w *Packet) byRoute(e *spec.Expr) bool {
	if e.Op != spec.OpName || len(e.Path) != 1 || e.Path[0].Value != routeName {
		return false
	}
	_, header := w.Scope.Find(routeName)
	return !header && w.Scope.Rows[routeName] == nil && w.Scope.Named[routeName].Type == ir.Type{}
}

// addressNow is an address of an IP header that leaves, or nil.
func (o *Header) addressNow(name string) ir.Expr {
	f := Role(o.h, name)
	switch {
	case f == nil || f.Type != "ip":
		return nil
	case o.vals[f.Name.Value] != nil:
		return o.vals[f.Name.Value]
	case o.old == nil:
		return nil
	}
	return o.old.Fields[f.Name.Value].Load
}

// carries notes the protocol of packets that leave through a hop of a row. Of several, none is known when the row is
// written.
func (w *Packet) carries(m *ir.Member, proto int) {
	if was, has := w.Program.Protos[m]; has && was != proto {
		proto = 0
	}
	w.Program.Protos[m], m.Proto = proto, proto
}

// canLeave makes sure of the addresses of a packet that is sent, as far as no one has: user space looks at the
// addresses that it finds the hop of, but what the packet itself says, or another row or setting, may be anything.
func (w *Packet) canLeave(src, dst ir.Expr, hop *ir.HopRef, pos diag.Pos) {
	if x := w.unknown(src, hop, pos); x != nil {
		w.Guard(&ir.Unicast{X: x}, draft.MartianSource(w.Program, pos), pos)
	}
	if x := w.unknown(dst, hop, pos); x != nil {
		w.Guard(fold.Not(&ir.Multicast{X: x}), draft.Multicast(w.Program, pos), pos)
		w.Guard(&ir.Unicast{X: x}, draft.MartianDestination(w.Program, pos), pos)
	}
}

// unknown returns an address that may be no host's, or nil where it is one's.
func (w *Packet) unknown(x ir.Expr, hop *ir.HopRef, pos diag.Pos) ir.Expr {
	switch x := x.(type) {
	case *ir.LoadBytes:
		if knownUnicast(w.Scope, x) {
			return nil
		}
	case *ir.RowMember:
		if hop.Row == x.Row && (hop.Member.From == x.Member || hop.Member.To == x.Member) {
			return nil
		}
	case *ir.BytesConst:
		return nil
	case *ir.SettingRef:
		return &ir.VarRef{Var: w.Program.Let(&w.Guards, x.Setting.Name, x, 0, pos)}
	}
	return x
}

// knownUnicast reports whether an expression is an address of the packet that is known to be a host's.
func knownUnicast(s *expr.Scope, x ir.Expr) bool {
	l, ok := x.(*ir.LoadBytes)
	return ok && slices.ContainsFunc(s.Path, func(in *draft.Header) bool {
		return slices.ContainsFunc(in.Unicast, func(pl *draft.Field) bool { return pl.Off == l.Off })
	})
}
