package rewrite

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass ends a receiver's turn in a fan-out with a copy.

// Copyable lets packets pass to the stack of which no copies can be made: each is as long as what came, and is written
// without a look at what is after the headers. It returns where the packet is cut off before copies are made of it, or
// nil.
func Copyable(p *edit.Packet, pos diag.Pos) (end ir.Expr) {
	r := newRewriter(p)
	if segmentedOnly(p.Scope.Path) {
		draft.Emit(p.Blk, draft.Ordinary(p.Program, pos))
	}
	r.unknownPartial(&p.Guards, &ir.Rewrite{OldFront: p.Scope.Path[len(p.Scope.Path)-1].End}, pos)
	end = r.leavesUntil(pos)
	r.cutsAt(end, pos)
	if _, net := r.datagram(); len(r.slacks(net, false)) > 0 {
		p.Guard(empty(r.slacks(net, false)), paddingHere(p.Scope, pos), pos)
	}
	return end
}

// copy ends a receiver's turn with a copy.
func (r *rewriter) copy(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	if hop.Row == nil {
		r.p.Scope.Fail(code.FanOut, pos, "a copy is sent to an endpoint of a row, such as r.remote, or via a next "+
			"hop of one").
			WithHint("the next hop is found when the row is written, not for every copy")
		return
	}
	if !r.agree() {
		return
	}
	draft.Emit(r.p.Blk, r.p.Guards...)
	check := r.checkHop(hop, length, pos)
	check.Reasons[ir.HopNeighbour] = r.p.Program.Punted("no_neighbour", "the neighbour's link-layer address isn't "+
		"resolved yet",
		pos)
	draft.Emit(r.p.Blk, check)
	draft.Emit(r.p.Blk, r.p.Effects.Late...)
	out := &ir.Copy{
		Effects: r.p.Effects.Effects, Rewrite: rw, Hop: hop, Pos: pos,
		Reason: r.p.Program.Reason("copy", ir.Copied, "a copy was sent", pos),
		Failed: r.p.Program.Punted("refused_by_device", "the device refused the copy", pos),
	}
	for _, s := range state {
		out.Counts = append(out.Counts, s.(*ir.Count))
	}
	draft.Emit(r.p.Blk, out)
}
