package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass finds what stays together. The headers that leave as they came, with all that follows them, are moved like
// a payload where headers in front of them are put in or taken out: only their fields that change are written, and they
// may be of variable length. A tunnel's inner packet is such a one.

// kept returns the index of the first header that leaves with everything that came after it.
func (r *rewriter) kept() int {
	k := len(r.headers)
	for i := len(r.p.Scope.Path) - 1; i >= 0 && k > 0 && !r.p.Scope.Path[i].Meta &&
		r.headers[k-1].Old == r.p.Scope.Path[i]; i-- {
		k--
	}
	if k == 0 || !r.p.Resized && !r.p.PopInner {
		return len(r.headers)
	}
	return k
}

// moveKept gives a header that is kept its place: all of it is as far from its start as it was.
func (r *rewriter) moveKept(o *header, off ir.Off) bool {
	o.off = off
	switch {
	case off == o.Old.Off:
		o.end = o.Old.End
	case off.Base == o.Old.Off.Base:
		o.end = o.Old.End.Plus(off.Const - o.Old.Off.Const)
	case o.Size >= 0:
		o.end = off.Plus(o.Size)
	case slices.ContainsFunc(o.Old.Order, func(pl *draft.Field) bool { return pl.Segment > 0 }):
		r.p.Scope.Fail(code.Resize, r.p.Pos, "header %q has a variable length and would have to move", o.Entry)
		return false // by a distance that varies, too: nothing says where its last fields are
	default:
		end := fold.Bin(ir.Add, fold.Off(off), fold.Distance(o.Old.End, o.Old.Off))
		o.end = ir.Off{Base: r.p.Program.Let(&r.p.Guards, o.Entry+"_new_end", end, draft.MaxStart, r.p.Pos)}
	}
	return true
}

// keep has a rewrite move the headers from the k-th on with the payload.
func (r *rewriter) keep(rw *ir.Rewrite, k int) {
	if k == len(r.headers) {
		return
	}
	o := r.headers[k]
	rw.Payload = fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.OldFront, o.Old.Off))
	rw.OldFront, rw.NewFront = o.Old.Off, o.off
}
