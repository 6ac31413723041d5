package gen

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles fan_out. Its rules are compiled like a program's, once more for each path, with the receiver's row
// among the names; what would pass a packet to the stack ends the receiver's turn there, so that its reasons are of
// another kind.

// fanOut ends a rule with copies of the packet.
func (w *rewriter) fanOut(a *spec.Action, r *spec.Rule, state []ir.Stmt) {
	fo := a.FanOut
	bad := func(format string, args ...any) { w.s.Fail(code.FanOut, a.Pos, format, args...) }
	switch {
	case w.s.Each != nil:
		bad("a fan-out inside a fan-out")
		return
	case w.p.Src.Hook != "tc/ingress":
		w.s.Fail(code.FanOut, a.Pos, "fan_out runs at tc/ingress only: copies that leave would come by here again").
			WithRelated(w.p.Src.HookPos, "the program's hook")
		return
	case !w.p.Out.L2:
		w.s.Fail(code.FanOut, a.Pos, "fan_out needs a link-layer header: the kernel doesn't send copies without one").
			WithHint("a stack begins with the link layer: [\"eth\", …]")
		return
	}
	for _, b := range r.Do {
		switch b.Kind {
		case spec.ActSet, spec.ActPush, spec.ActPop, spec.ActBlank, spec.ActMark:
			w.s.Fail(code.FanOut, b.Pos, "%s has no effect here: the packet that came goes on as it came", b.Kind).
				WithHint("change the copies, in the rules of fan_out")
			return
		}
	}
	for _, in := range w.s.Path {
		if in.Decl.Metadata == "vlan" {
			bad("a fan-out can't take VLAN tags from its copies: the stack has header %q", in.Entry)
			return
		}
	}
	g := w.p.Names.Groups[fo.Group.Value]
	if g == nil {
		var names []string
		for _, g := range w.p.Names.Spec.Groups {
			names = append(names, g.Name.Value)
		}
		if !slices.Contains(names, fo.Group.Value) { // else its declaration is reported
			w.s.Fail(code.UnknownName, fo.Group.Pos, "no group %q", fo.Group.Value).WithNames(fo.Group.Value, names)
		}
		return
	}
	if _, taken := w.s.Rows[declare.Receiver]; taken {
		bad("a lookup is called %q, which is what the receiver's row is called", declare.Receiver)
		return
	}
	if _, taken := w.s.Named[declare.Receiver]; taken {
		bad("a value is called %q (let), which is what the receiver's row is called", declare.Receiver)
		return
	}
	key, ok := w.s.Values("group", g.Name, g.Pos, &g.Key, fo.Key, fo.Pos, "key")
	if !ok {
		return
	}
	last := w.s.Path[len(w.s.Path)-1]
	if segmentedOnly(w.s.Path) {
		draft.Emit(w.blk, ordinary(w.s, a.Pos))
	}
	w.unknownPartial(&w.guards, &ir.Rewrite{OldFront: last.End}, a.Pos)
	w.cutsAt(datagramEnd(w.s), a.Pos)
	if _, net := w.datagram(); len(w.slacks(net, false)) > 0 { // a copy is as long as what came
		w.guard(empty(w.slacks(net, false)), paddingHere(w.s, a.Pos), a.Pos)
	}
	draft.Emit(w.blk, w.guards...)
	draft.Emit(w.blk, w.fx.Late...)
	out := &ir.FanOut{
		Effects: w.fx.Effects, Group: g, Key: key, Usage: w.used(), Pos: a.Pos,
		Miss:   w.p.Punted("no_"+g.Name, "no group in "+g.Name, fo.Pos),
		NoRoom: w.p.Punted("no_memory", "the kernel has no memory to change the packet", w.p.Src.Name.Pos),
		Fault:  w.p.Reason("fault", ir.Fault, "dropped: the kernel failed after the first change", w.p.Src.Name.Pos),
	}
	if fo.Drop != nil {
		out.Drop = true
		out.Reason = w.p.Reason(fo.Drop.Value, ir.Dropped, "dropped, as the spec says", fo.Drop.Pos)
	} else {
		out.Reason = w.p.Reason("pass", ir.Passed, "", a.Pos)
	}
	out.End = datagramEnd(w.s)
	out.Row = &ir.Row{Name: w.p.Unique(declare.Receiver), Table: g.Receivers}
	w.p.Out.Rows = append(w.p.Out.Rows, out.Row)
	w.p.Each = true
	w.receivers(out, fo)
	w.p.Each = false
	out.Front = extent(out.Each, last.End)
	draft.Emit(w.blk, state...)
	draft.Emit(w.blk, out)
}

// receivers compiles the rules of a fan-out.
func (w *rewriter) receivers(out *ir.FanOut, fo *spec.FanOut) {
	s := *w.s
	s.Each = &expr.FanOut{Row: out.Row, Blanked: map[*draft.Header]diag.Pos{}, Set: map[*draft.Header]diag.Pos{}}
	s.Fx = nil
	s.Rows, s.Facts, s.Named = maps.Clone(w.s.Rows), maps.Clone(w.s.Facts), maps.Clone(w.s.Named)
	s.Rows[declare.Receiver] = out.Row
	for i, r := range fo.Rules {
		if compileRule(&s, r, fo.Rules[i+1:], &out.Each) {
			s.Program.Trace.Took(r, fo.Rules[i+1:])
			return
		}
	}
	draft.Emit(&out.Each, &ir.Skip{Reason: s.Program.Punted("no_rule", "no rule applies", fo.Pos), Pos: fo.Pos})
}

// copy ends a receiver's turn with a copy.
func (w *rewriter) copy(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	if hop.Row == nil {
		w.s.Fail(code.FanOut, pos, "a copy is sent to an endpoint of a row, such as r.remote, or via a next hop of "+
			"one").
			WithHint("the next hop is found when the row is written, not for every copy")
		return
	}
	for _, o := range w.hdrs {
		switch {
		case o.size >= 0:
		case o.blank:
			w.s.Each.Blanked[o.old] = o.pos
		case len(o.sets) > 0:
			w.s.Each.Set[o.old] = pos
		}
		blanked, is := w.s.Each.Blanked[o.old]
		if _, too := w.s.Each.Set[o.old]; is && too {
			w.s.Fail(code.FanOut, blanked, "header %q can't be blanked: another rule of the fan-out sets its fields",
				o.entry)
			return
		}
	}
	draft.Emit(w.blk, w.guards...)
	check := w.checkHop(hop, length, pos)
	check.Reasons[ir.HopNeighbour] = w.p.Punted("no_neighbour", "the neighbour's link-layer address isn't resolved yet",
		pos)
	draft.Emit(w.blk, check)
	draft.Emit(w.blk, w.fx.Late...)
	out := &ir.Copy{
		Effects: w.fx.Effects, Rewrite: rw, Hop: hop, Pos: pos,
		Reason: w.p.Reason("copy", ir.Copied, "a copy was sent", pos),
		Failed: w.p.Punted("refused_by_device", "the device refused the copy", pos),
	}
	for _, s := range state {
		out.Counts = append(out.Counts, s.(*ir.Count))
	}
	draft.Emit(w.blk, out)
}

// used returns the rows of sessions that this packet uses.
func (w *rewriter) used() (rows []*ir.Row) {
	for _, r := range w.p.Out.Rows {
		for _, mine := range w.s.Rows {
			if mine == r && r.Table.Session != nil && (!r.Optional || w.s.Facts[r]) && !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}
