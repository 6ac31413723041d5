package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass finds what stays together. The headers that leave as they came, with all that follows them, are moved like
// a payload where headers in front of them are put in or taken out: only their fields that change are written, and they
// may be of variable length. A tunnel's inner packet is such a one.

// kept returns the index of the first header that leaves with everything that came after it.
func (w *rewriter) kept() int {
	k := len(w.hdrs)
	for i := len(w.s.path) - 1; i >= 0 && k > 0 && !w.s.path[i].meta && w.hdrs[k-1].old == w.s.path[i]; i-- {
		k--
	}
	if k == 0 || !w.resized && !w.popInner {
		return len(w.hdrs)
	}
	return k
}

// moveKept gives a header that is kept its place: all of it is as far from its start as it was.
func (w *rewriter) moveKept(o *outHeader, off ir.Off) bool {
	o.off = off
	switch {
	case off == o.old.off:
		o.end = o.old.end
	case off.Base == o.old.off.Base:
		o.end = o.old.end.Plus(off.Const - o.old.off.Const)
	case o.size >= 0:
		o.end = off.Plus(o.size)
	case slices.ContainsFunc(o.old.order, func(pl *fieldRef) bool { return pl.segment > 0 }):
		w.s.fail(code.Resize, w.pos, "header %q has a variable length and would have to move", o.entry)
		return false // by a distance that varies, too: nothing says where its last fields are
	default:
		end := fold.Bin(ir.Add, fold.Off(off), fold.Distance(o.old.end, o.old.off))
		o.end = ir.Off{Base: w.p.let(&w.guards, o.entry+"_new_end", end, maxStart, w.pos)}
	}
	return true
}

// keep has a rewrite move the headers from the k-th on with the payload.
func (w *rewriter) keep(rw *ir.Rewrite, k int) {
	if k == len(w.hdrs) {
		return
	}
	o := w.hdrs[k]
	rw.Payload = fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.OldFront, o.old.off))
	rw.OldFront, rw.NewFront = o.old.off, o.off
}
