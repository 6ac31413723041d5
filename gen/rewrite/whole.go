package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass is about checksums of transport headers that are put in or taken out: from nothing follows what the bytes
// after such a header add up to, so all of them are summed up. Those from the first byte on that a partial checksum
// covers add up, when it is completed, to the complement of what its field holds (local checksum offload).

// wholeSum is what a spec says about the checksum of a header that is put in.
type wholeSum int

const (
	sumByDefault wholeSum = iota
	sumNone
	sumComputed
)

// computedName stands for the checksum of a header that is put in.
const computedName = "computed"

// chooses reads what a push says about a checksum that may be absent: 0, or computed. It returns false for anything
// else.
func (w *Packet) chooses(o *Header, f *spec.Field, as *spec.Assign) bool {
	if !f.Checksum.Optional || f.Checksum.Covers == "header" {
		return false
	}
	switch e := as.Value; {
	case e.Op == spec.OpInt && e.Int == 0:
		o.whole = sumNone
	case e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == computedName:
		o.whole = sumComputed
	default:
		return false
	}
	return true
}

// noSum reports whether a header that is put in goes without its checksum.
func (w *Packet) noSum(i int, o *Header, f *spec.Field) bool {
	return o.whole == sumNone || o.whole == sumByDefault && i > 0 && absentOver(f, w.hdrs[i-1].h)
}

// wholeSum is the checksum of a header that is put in, over all that follows it; nil: it is left out.
func (w *Packet) wholeSum(i int, o *Header, f *spec.Field, rw *ir.Rewrite) (*ir.Sum, bool) {
	k := f.Checksum
	if w.noSum(i, o, f) {
		o.vals[f.Name.Value] = fold.Num(0)
		return nil, true
	}
	if !k.Optional || w.Scope.Each != nil {
		w.Scope.Fail(code.Push, o.pos, "header %q can't be pushed here: its checksum covers the whole payload",
			o.h.Name.Value).
			WithRelated(f.Name.Pos, "the checksum is declared here").WithHint("UDP over IPv4 may go without a checksum")
		return nil, false
	}
	for _, c := range w.hdrs[:i] {
		if g := SumOver(c.h); g != nil && c.old != nil {
			w.Scope.Fail(code.Push, o.pos, "header %q can't be pushed here: its checksum is computed last, and the "+
				"one of "+
				"%q "+
				"covers it", o.h.Name.Value, c.entry).
				WithRelated(g.Name.Pos, "the checksum in front is declared here").
				WithHint("a header without a checksum can be pushed: checksum: 0")
			return nil, false
		}
	}
	if o.content != rw.Payload { // all up to the end of the packet is summed up
		w.Guard(fold.Bin(ir.Eq, o.content, rw.Payload), PaddingHere(w.Scope, o.pos), o.pos)
	}
	size := fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.NewFront, o.off))
	w.Summable(size, o.pos)
	whole := o.off
	s := &ir.Sum{
		Name: o.h.Name.Value + "." + f.Name.Value, New: o.fieldOff(f), Fresh: true, Whole: &whole, Optional: true,
		Pos: f.Name.Pos,
	}
	return s, w.freshPseudo(s, i, o, f, rw)
}

// SumOver is the checksum of a header that covers what follows it, or nil.
func SumOver(h *spec.Header) *spec.Field {
	i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool {
		return f.Checksum != nil && f.Checksum.Covers != "header"
	})
	if i < 0 {
		return nil
	}
	return h.Fields[i]
}

// Summable lets packets pass to the stack that are too large for their bytes to be summed up.
func (w *Packet) Summable(size ir.Expr, pos diag.Pos) {
	large := w.Program.Punted("too_big", "too large to compute a checksum over it", pos)
	w.Guard(fold.Bin(ir.Le, size, fold.Num(ir.MaxWhole)), large, pos)
}

// mayLack reports whether a header may come without its checksum.
func (w *Packet) mayLack(in *draft.Header, f *spec.Field) bool {
	i := slices.Index(w.Scope.Path, in)
	return i > 0 && absentOver(f, w.Scope.Path[i-1].Decl)
}

// present lets packets pass to the stack whose checksum is 0, which means that there is none.
func (w *Packet) present(pl *draft.Field, h *spec.Header, pos diag.Pos) {
	w.Guard(fold.Bin(ir.Ne, pl.Load, fold.Num(0)), w.Program.FieldReason(h, pl.Decl,
		"is 0 (no checksum), which isn't allowed here"), pos)
}

// VerifyWhole makes sure of the checksum of a header over all that follows it. none: where it may lack a checksum, that
// is right, too.
func (w *Packet) VerifyWhole(in *draft.Header, pl *draft.Field, none bool, pos diag.Pos) {
	right := &ir.SumOK{Off: in.Off, Len: ir.MaxWhole, Size: fold.Bin(ir.Sub, in.Inner, fold.Off(in.Off)), Whole: true}
	inside := &expr.Scope{Program: w.Program, Path: w.Scope.UpTo(in), Self: in}
	for _, e := range pl.Decl.Checksum.Pseudo {
		v, ok := inside.Value(e)
		if !ok {
			return
		}
		right.Pseudo = append(right.Pseudo, pseudoTerm(v))
	}
	var cond ir.Expr = right
	switch {
	case pl.Decl.Checksum.Optional && none:
		cond = fold.Or(fold.Bin(ir.Eq, pl.Load, fold.Num(0)), right)
	case pl.Decl.Checksum.Optional:
		w.present(pl, in.Decl, pos)
	}
	w.Guard(cond, draft.WrongSum(w.Program, in.Decl, pl.Decl), pos)
}

// summedUp reports whether a header is one whose checksum a device may have verified. What follows IP may be such a
// transport header that the spec describes in its own way.
func (w *Packet) summedUp(in *draft.Header) bool {
	i := slices.Index(w.Scope.Path, in)
	return !isIP(in.Decl) && (SumOver(in.Decl) != nil || i > 0 && isIP(w.Scope.Path[i-1].Decl))
}
