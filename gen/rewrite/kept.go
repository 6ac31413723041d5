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
func (w *Packet) kept() int {
	k := len(w.hdrs)
	for i := len(w.Scope.Path) - 1; i >= 0 && k > 0 && !w.Scope.Path[i].Meta &&
		w.hdrs[k-1].old == w.Scope.Path[i]; i-- {
		k--
	}
	if k == 0 || !w.resized && !w.popInner {
		return len(w.hdrs)
	}
	return k
}

// moveKept gives a header that is kept its place: all of it is as far from its start as it was.
func (w *Packet) moveKept(o *Header, off ir.Off) bool {
	o.off = off
	switch {
	case off == o.old.Off:
		o.end = o.old.End
	case off.Base == o.old.Off.Base:
		o.end = o.old.End.Plus(off.Const - o.old.Off.Const)
	case o.size >= 0:
		o.end = off.Plus(o.size)
	case slices.ContainsFunc(o.old.Order, func(pl *draft.Field) bool { return pl.Segment > 0 }):
		w.Scope.Fail(code.Resize, w.pos, "header %q has a variable length and would have to move", o.entry)
		return false // by a distance that varies, too: nothing says where its last fields are
	default:
		end := fold.Bin(ir.Add, fold.Off(off), fold.Distance(o.old.End, o.old.Off))
		o.end = ir.Off{Base: w.Program.Let(&w.Guards, o.entry+"_new_end", end, draft.MaxStart, w.pos)}
	}
	return true
}

// keep has a rewrite move the headers from the k-th on with the payload.
func (w *Packet) keep(rw *ir.Rewrite, k int) {
	if k == len(w.hdrs) {
		return
	}
	o := w.hdrs[k]
	rw.Payload = fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.OldFront, o.old.Off))
	rw.OldFront, rw.NewFront = o.old.Off, o.off
}
