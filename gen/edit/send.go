package edit

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles send. `from` and `to` originate a datagram, as a user-space relay would: addresses and ports are
// the spec's, the fields with an origin get it (hop limit 64, no fragmentation), DSCP and ECN stay (RFC 8656 §14), and
// if the destination is of the other family the network header is made anew. `via` routes: one hop less, everything
// else stays. What a rule has set counts, but for what send is told: that can't be said twice. VLAN tags belong to the
// link that the packet came from, and go away.

// Send returns how the packet is sent: in one way, or in one for each branch of an If. There is none if it can't be
// sent, which is reported.
func (w *Packet) Send(a *spec.Action) (out []*Departure, branch *ir.If) {
	for _, in := range w.Scope.Path {
		if in.Decl.Metadata == "vlan" && (in.Meta || w.Header(in) != nil) {
			w.remove(in, false, a.Pos)
		}
	}
	net := slices.IndexFunc(w.Headers, func(o *Header) bool { return draft.Role(o.Decl, "destination") != nil })
	if net < 0 {
		w.Scope.Fail(code.Send, a.Pos, "send needs an IP header in the stack")
		return nil, nil
	}
	if a.Via != nil {
		return one(w.via(a, net)), nil
	}
	if a.To == nil {
		w.Scope.Fail(code.Send, a.Pos, "send needs a destination: to, or via")
		return nil, nil
	}
	to, ok1 := w.address(a.To)
	from, ok2 := expr.Value{}, true
	if a.From != nil {
		from, ok2 = w.address(a.From)
	}
	if !ok1 || !ok2 {
		return nil, nil
	}
	if to.Port != nil && a.From == nil {
		w.Scope.Fail(code.Send, a.Pos, "send to an endpoint needs from, too")
		return nil, nil
	}
	o := w.Headers[net]
	have := draft.Role(o.Decl, "destination").Bytes
	other := w.sibling(o)
	if other != nil && other.Varies() ||
		slices.ContainsFunc(w.Headers, func(o *Header) bool { return o.Size < 0 }) {
		other = nil // a header of variable length can't be written again: user space converts
	}
	if o.Old == nil {
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
			return one(w.originate(a, net, other, from, to)), nil
		}
	}
	if other == nil || from.X == nil || fold.IsTrue(same) {
		w.Guard(same, family, a.Pos)
		return one(w.originate(a, net, nil, from, to)), nil
	}
	draft.Emit(w.Blk, w.Guards...)
	w.Guards = nil
	branch = &ir.If{Cond: same, Pos: a.Pos, Note: o.Decl.Name.Value + " stays"}
	stays, changes := w.Fork(&branch.Then), w.Fork(&branch.Else)
	return slices.Concat(one(stays.originate(a, net, nil, from, to)), one(changes.originate(a, net, other, from, to))),
		branch
}

// one is a list of one departure, or of none if it is nil.
func one(d *Departure) []*Departure {
	if d == nil {
		return nil
	}
	return []*Departure{d}
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
	if !IsIP(w.Outermost()) {
		return nil
	}
	for _, e := range w.Program.Src.Stack {
		if e.Var.Value != o.Entry {
			continue
		}
		hs := w.Program.Names.Choices(e)
		for _, h := range hs {
			if h != o.Decl && draft.Role(h, "destination") != nil && !SameFamily(h, o.Decl) {
				return h
			}
		}
	}
	return nil
}

// originate gives a packet addresses; other is the network header that replaces the one that came, or nil.
func (w *Packet) originate(a *spec.Action, net int, other *spec.Header, from, to expr.Value) *Departure {
	o := w.Headers[net]
	w.verify(o, other != nil, a)
	if other != nil {
		o = w.replace(net, other)
	}
	if other == nil {
		for _, f := range o.Decl.Fields {
			if f.Origin != nil && f.Kind == spec.FieldUint && !o.IsSet(f) {
				o.Values[f.Name.Value] = fold.Num(*f.Origin)
			}
		}
	}
	dst, src := draft.Role(o.Decl, "destination"), draft.Role(o.Decl, "source")
	w.sends(o, dst, a.To)
	o.Values[dst.Name.Value] = to.X
	if from.X != nil && src != nil {
		w.sends(o, src, a.From)
		o.Values[src.Name.Value] = from.X
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
			w.Scope.Fail(code.Send, a.Pos, "no header after %q has ports", o.Entry).
				WithHint("send from and to addresses: ….addr")
			return nil
		}
		if !w.setPort(t, f, end.v.Port, end.e) {
			return nil
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
	source := from.X
	if source == nil { // it stays, and may be that of a header which was inside of others
		source = o.addressNow("source")
	}
	w.canLeave(source, to.X, hop, a.Pos)
	return &Departure{Packet: w, Hop: hop, Pos: a.Pos}
}

// transport returns the IP protocol of the header after the network header if it is one with ports, else 0: routing
// rules and xfrm policies may ask for it.
func (w *Packet) transport(net int) int {
	if net+1 == len(w.Headers) {
		return 0
	}
	ip, next := w.Headers[net].Decl, w.Headers[net+1].Decl
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
		case o.Values[f.Name.Value] != nil:
			return o.Values[f.Name.Value]
		case o.Old != nil && o.Old.Fields[f.Name.Value] != nil:
			return o.Old.Fields[f.Name.Value].Load
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

// setPort gives a header the port of an endpoint, if set could give the field that value. (It may be a field that
// says which header follows: what a port stands for is a matter of the endpoints.)
func (w *Packet) setPort(o *Header, f *spec.Field, port ir.Expr, e *spec.Expr) bool {
	var pl *draft.Field
	if o.Old != nil {
		pl = o.Old.Fields[f.Name.Value]
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
	case shapes(o.Decl, f):
		why = "the size or presence of another field depends on it"
	case !w.allows(o.Decl, f, expr.Value{Type: ir.UintType(16), X: port, Max: ranges.Max(16), Pos: e.Pos}):
		why = "it has to keep the value that its header declares"
	}
	if why != "" {
		d := w.Scope.Fail(code.Target, e.Pos, "send can't set port %q of header %q: %s", f.Name.Value, o.Entry, why).
			WithRelated(f.Name.Pos, "the field is declared here")
		if w.Scope.Each == nil {
			d.WithHint("an address leaves the port as it is: %s.addr", e)
		} else {
			d.WithHint("via, with a next hop of the row, leaves ports as they are")
		}
		return false
	}
	w.sends(o, f, e)
	o.Values[f.Name.Value] = port
	return true
}

// sends reports a field that a rule has set, and that send gives the value of an expression.
func (w *Packet) sends(o *Header, f *spec.Field, e *spec.Expr) {
	if o.IsSet(f) {
		w.Scope.Fail(code.Target, o.SetAt[f.Name.Value], "field %q can't be set: send gives it the value of %s",
			f.Name.Value,
			e).
			WithRelated(e.Pos, "it is sent so here").
			WithHint("leave one of them out")
	}
}

// port returns the transport header's field for a port: the one that an endpoint of it ties to the address with that
// role.
func (w *Packet) port(net int, roleName string) (*Header, *spec.Field) {
	for _, o := range w.Headers[net+1:] {
		if w.Headers[net].Old == nil && draft.Role(o.Decl, "destination") != nil {
			break // what the packet was before is left as it is
		}
		for _, p := range o.Decl.Parts {
			if p.Addr == nil || p.Port == nil {
				continue
			}
			addr := p.Addr.Path[len(p.Addr.Path)-1].Value
			if f := draft.Role(w.Headers[net].Decl, roleName); f == nil || f.Name.Value != addr {
				continue
			}
			port := p.Port.Path[len(p.Port.Path)-1].Value
			i := slices.IndexFunc(o.Decl.Fields, func(f *spec.Field) bool { return f.Name.Value == port })
			if i >= 0 {
				return o, o.Decl.Fields[i]
			}
		}
	}
	return nil, nil
}

// replace puts a network header of the other family in a header's place. Fields of the same name keep their values.
func (w *Packet) replace(net int, h *spec.Header) *Header {
	o := w.Headers[net]
	n := &Header{
		Decl: h, Entry: o.Entry, Index: o.Index, Values: map[string]ir.Expr{}, SetAt: o.SetAt, Size: draft.SizeOf(h),
		Pos: o.Pos,
	}
	var next *spec.Header
	if net+1 < len(w.Headers) {
		next = w.Headers[net+1].Decl
	}
	for _, f := range h.Fields {
		name := f.Name.Value
		switch {
		case f.Counts != nil || f.Checksum != nil || f.Role.Value == "source" || f.Role.Value == "destination":
		case f.Is != nil && f.Is.Op == spec.IsEq && f.Kind == spec.FieldUint:
			n.Values[name] = fold.Num(f.Is.Value.Int)
		case o.setFor(f) != nil:
			n.Values[name] = o.setFor(f)
		case f.Origin != nil && f.Kind == spec.FieldUint:
			n.Values[name] = fold.Num(*f.Origin)
		case next != nil && Announced(h, next, f) != nil:
			n.Values[name] = Announced(h, next, f)
		case o.Values[name] != nil:
			n.Values[name] = o.Values[name]
		case o.Old.Fields[name] != nil && o.Old.Fields[name].Load != nil:
			n.Values[name] = o.Old.Fields[name].Load
		case f.Kind == spec.FieldUint:
			n.Values[name] = fold.Num(0)
		}
	}
	w.Headers = slices.Clone(w.Headers)
	w.Headers[net] = n
	if received := w.Outermost(); IsIP(received) && SameFamily(received, h) {
		return n // to the kernel the packet was of this family all along, by a header that is popped
	}
	w.Family = 4
	if draft.Role(h, "destination").Bytes == 16 {
		w.Family = 6
	}
	return n
}

// setFor is the value that a rule has set for the field of a header of the other family: in the one of the same name,
// or for the same role.
func (o *Header) setFor(f *spec.Field) ir.Expr {
	for _, was := range o.Decl.Fields {
		if o.IsSet(was) && (was.Name.Value == f.Name.Value || was.Role.Value != "" && was.Role.Value == f.Role.Value) {
			return o.Values[was.Name.Value]
		}
	}
	return nil
}

// via routes the packet to a next hop.
func (w *Packet) via(a *spec.Action, net int) *Departure {
	routed := w.byRoute(a.Via)
	v, ok := expr.Value{Type: ir.Type{Kind: ir.NextHop}}, true
	if !routed {
		v, ok = w.Scope.Value(a.Via)
	}
	if !ok {
		return nil
	}
	if v.Type.Kind != ir.NextHop {
		w.Scope.Fail(code.Send, a.Via.Pos, "this is %s, where a next hop is wanted", v.Type.What()).
			WithHint("a value of a table that isn't a session's may have type \"next_hop\"; to an endpoint, send has " +
				"from and to")
		return nil
	}
	if a.From != nil || a.To != nil {
		w.Scope.Fail(code.Send, a.Pos, "via routes a packet as it is: it excludes from and to")
		return nil
	}
	o := w.Headers[net]
	family := 4
	if draft.Role(o.Decl, "destination").Bytes == 16 {
		family = 6
	}
	if f := draft.Role(o.Decl, "hop_limit"); f != nil && o.Old != nil {
		limit := o.Old.Fields[f.Name.Value].Load
		w.Guard(fold.Bin(ir.Gt, limit, fold.Num(1)), w.Program.Punted("hop_limit", "the hop limit is used up", a.Pos),
			a.Pos)
		if !o.IsSet(f) {
			vals := maps.Clone(o.Values)
			vals[f.Name.Value] = fold.Bin(ir.Sub, limit, fold.Num(1))
			o.Values = vals
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
	return &Departure{Packet: w, Hop: hop, Pos: a.Pos}
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
	f := draft.Role(o.Decl, name)
	switch {
	case f == nil || f.Type != "ip":
		return nil
	case o.Values[f.Name.Value] != nil:
		return o.Values[f.Name.Value]
	case o.Old == nil:
		return nil
	}
	return o.Old.Fields[f.Name.Value].Load
}
