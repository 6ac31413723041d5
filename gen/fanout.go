package gen

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles fan_out. Its rules are compiled like a program's, once more for each path, with the receiver's row
// among the names; what would pass a packet to the stack ends the receiver's turn there, so that its reasons are of
// another kind.

// fanOut is the fanOut-out whose rules are compiled.
type fanOut struct {
	row     *ir.Row
	blanked map[*layer]diag.Pos // headers of variable size that a rule makes zeros of
	set     map[*layer]diag.Pos // and those whose fields a rule sets
}

// fanOut ends a rule with copies of the packet.
func (w *rewriter) fanOut(a *spec.Action, r *spec.Rule, state []ir.Stmt) {
	fo := a.FanOut
	bad := func(format string, args ...any) { w.s.fail(code.FanOut, a.Pos, format, args...) }
	switch {
	case w.s.each != nil:
		bad("a fan-out inside a fan-out")
		return
	case w.p.src.Hook != "tc/ingress":
		w.s.fail(code.FanOut, a.Pos, "fan_out runs at tc/ingress only: copies that leave would come by here again").
			WithRelated(w.p.src.HookPos, "the program's hook")
		return
	case !w.p.out.L2:
		w.s.fail(code.FanOut, a.Pos, "fan_out needs a link-layer header: the kernel doesn't send copies without one").
			WithHint("a stack begins with the link layer: [\"eth\", …]")
		return
	}
	for _, b := range r.Do {
		switch b.Kind {
		case spec.ActSet, spec.ActPush, spec.ActPop, spec.ActBlank, spec.ActMark:
			w.s.fail(code.FanOut, b.Pos, "%s has no effect here: the packet that came goes on as it came", b.Kind).
				WithHint("change the copies, in the rules of fan_out")
			return
		}
	}
	for _, in := range w.s.path {
		if in.h.Metadata == "vlan" {
			bad("a fan-out can't take VLAN tags from its copies: the stack has header %q", in.entry)
			return
		}
	}
	g := w.p.names.Groups[fo.Group.Value]
	if g == nil {
		var names []string
		for _, g := range w.p.names.Spec.Groups {
			names = append(names, g.Name.Value)
		}
		if !slices.Contains(names, fo.Group.Value) { // else its declaration is reported
			w.s.fail(code.UnknownName, fo.Group.Pos, "no group %q", fo.Group.Value).WithNames(fo.Group.Value, names)
		}
		return
	}
	if _, taken := w.s.rows[declare.Receiver]; taken {
		bad("a lookup is called %q, which is what the receiver's row is called", declare.Receiver)
		return
	}
	if _, taken := w.s.named[declare.Receiver]; taken {
		bad("a value is called %q (let), which is what the receiver's row is called", declare.Receiver)
		return
	}
	key, ok := w.s.values("group", g.Name, g.Pos, &g.Key, fo.Key, fo.Pos, "key")
	if !ok {
		return
	}
	last := w.s.path[len(w.s.path)-1]
	if segmentedOnly(w.s.path) {
		emit(w.blk, w.s.ordinary(a.Pos))
	}
	w.unknownPartial(&w.guards, &ir.Rewrite{OldFront: last.end}, a.Pos)
	w.cutsAt(w.s.datagramEnd(), a.Pos)
	if _, net := w.datagram(); len(w.slacks(net, false)) > 0 { // a copy is as long as what came
		w.guard(empty(w.slacks(net, false)), w.s.paddingHere(a.Pos), a.Pos)
	}
	emit(w.blk, w.guards...)
	emit(w.blk, w.fx.late...)
	out := &ir.FanOut{
		Effects: w.fx.Effects, Group: g, Key: key, Usage: w.used(), Pos: a.Pos,
		Miss:   w.p.punted("no_"+g.Name, "no group in "+g.Name, fo.Pos),
		NoRoom: w.p.punted("no_memory", "the kernel has no memory to change the packet", w.p.src.Name.Pos),
		Fault:  w.p.reason("fault", ir.Fault, "dropped: the kernel failed after the first change", w.p.src.Name.Pos),
	}
	if fo.Drop != nil {
		out.Drop = true
		out.Reason = w.p.reason(fo.Drop.Value, ir.Dropped, "dropped, as the spec says", fo.Drop.Pos)
	} else {
		out.Reason = w.p.reason("pass", ir.Passed, "", a.Pos)
	}
	out.End = w.s.datagramEnd()
	out.Row = &ir.Row{Name: w.p.unique(declare.Receiver), Table: g.Receivers}
	w.p.out.Rows = append(w.p.out.Rows, out.Row)
	w.p.each = true
	w.receivers(out, fo)
	w.p.each = false
	out.Front = extent(out.Each, last.end)
	emit(w.blk, state...)
	emit(w.blk, out)
}

// receivers compiles the rules of a fan-out.
func (w *rewriter) receivers(out *ir.FanOut, fo *spec.FanOut) {
	s := *w.s
	s.each = &fanOut{row: out.Row, blanked: map[*layer]diag.Pos{}, set: map[*layer]diag.Pos{}}
	s.fx = nil
	s.rows, s.facts, s.named = maps.Clone(w.s.rows), maps.Clone(w.s.facts), maps.Clone(w.s.named)
	s.rows[declare.Receiver] = out.Row
	for i, r := range fo.Rules {
		if s.rule(r, fo.Rules[i+1:], &out.Each) {
			s.p.trace.Took(r, fo.Rules[i+1:])
			return
		}
	}
	emit(&out.Each, &ir.Skip{Reason: s.p.punted("no_rule", "no rule applies", fo.Pos), Pos: fo.Pos})
}

// copy ends a receiver's turn with a copy.
func (w *rewriter) copy(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	if hop.Row == nil {
		w.s.fail(code.FanOut, pos, "a copy is sent to an endpoint of a row, such as r.remote, or via a next hop of "+
			"one").
			WithHint("the next hop is found when the row is written, not for every copy")
		return
	}
	for _, o := range w.hdrs {
		switch {
		case o.size >= 0:
		case o.blank:
			w.s.each.blanked[o.old] = o.pos
		case len(o.sets) > 0:
			w.s.each.set[o.old] = pos
		}
		blanked, is := w.s.each.blanked[o.old]
		if _, too := w.s.each.set[o.old]; is && too {
			w.s.fail(code.FanOut, blanked, "header %q can't be blanked: another rule of the fan-out sets its fields",
				o.entry)
			return
		}
	}
	emit(w.blk, w.guards...)
	check := w.checkHop(hop, length, pos)
	check.Reasons[ir.HopNeighbour] = w.p.punted("no_neighbour", "the neighbour's link-layer address isn't resolved yet",
		pos)
	emit(w.blk, check)
	emit(w.blk, w.fx.late...)
	out := &ir.Copy{
		Effects: w.fx.Effects, Rewrite: rw, Hop: hop, Pos: pos,
		Reason: w.p.reason("copy", ir.Copied, "a copy was sent", pos),
		Failed: w.p.punted("refused_by_device", "the device refused the copy", pos),
	}
	for _, s := range state {
		out.Counts = append(out.Counts, s.(*ir.Count))
	}
	emit(w.blk, out)
}

// used returns the rows of sessions that this packet uses.
func (w *rewriter) used() (rows []*ir.Row) {
	for _, r := range w.p.out.Rows {
		for _, mine := range w.s.rows {
			if mine == r && r.Table.Session != nil && (!r.Optional || w.s.facts[r]) && !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}
