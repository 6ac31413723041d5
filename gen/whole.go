package gen

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
func (w *rewriter) chooses(o *outHeader, f *spec.Field, as *spec.Assign) bool {
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
func (w *rewriter) noSum(i int, o *outHeader, f *spec.Field) bool {
	return o.whole == sumNone || o.whole == sumByDefault && i > 0 && absentOver(f, w.hdrs[i-1].h)
}

// wholeSum is the checksum of a header that is put in, over all that follows it; nil: it is left out.
func (w *rewriter) wholeSum(i int, o *outHeader, f *spec.Field, rw *ir.Rewrite) (*ir.Sum, bool) {
	k := f.Checksum
	if w.noSum(i, o, f) {
		o.vals[f.Name.Value] = fold.Num(0)
		return nil, true
	}
	if !k.Optional || w.s.Each != nil {
		w.s.Fail(code.Push, o.pos, "header %q can't be pushed here: its checksum covers the whole payload",
			o.h.Name.Value).
			WithRelated(f.Name.Pos, "the checksum is declared here").WithHint("UDP over IPv4 may go without a checksum")
		return nil, false
	}
	for _, c := range w.hdrs[:i] {
		if g := sumOver(c.h); g != nil && c.old != nil {
			w.s.Fail(code.Push, o.pos, "header %q can't be pushed here: its checksum is computed last, and the one of "+
				"%q "+
				"covers it", o.h.Name.Value, c.entry).
				WithRelated(g.Name.Pos, "the checksum in front is declared here").
				WithHint("a header without a checksum can be pushed: checksum: 0")
			return nil, false
		}
	}
	if o.content != rw.Payload { // all up to the end of the packet is summed up
		w.guard(fold.Bin(ir.Eq, o.content, rw.Payload), paddingHere(w.s, o.pos), o.pos)
	}
	size := fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.NewFront, o.off))
	w.summable(size, o.pos)
	whole := o.off
	s := &ir.Sum{
		Name: o.h.Name.Value + "." + f.Name.Value, New: o.fieldOff(f), Fresh: true, Whole: &whole, Optional: true,
		Pos: f.Name.Pos,
	}
	return s, w.freshPseudo(s, i, o, f, rw)
}

// sumOver is the checksum of a header that covers what follows it, or nil.
func sumOver(h *spec.Header) *spec.Field {
	i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool {
		return f.Checksum != nil && f.Checksum.Covers != "header"
	})
	if i < 0 {
		return nil
	}
	return h.Fields[i]
}

// summable lets packets pass to the stack that are too large for their bytes to be summed up.
func (w *rewriter) summable(size ir.Expr, pos diag.Pos) {
	large := w.p.Punted("too_big", "too large to compute a checksum over it", pos)
	w.guard(fold.Bin(ir.Le, size, fold.Num(ir.MaxWhole)), large, pos)
}

// mayLack reports whether a header may come without its checksum.
func (w *rewriter) mayLack(in *draft.Header, f *spec.Field) bool {
	i := slices.Index(w.s.Path, in)
	return i > 0 && absentOver(f, w.s.Path[i-1].Decl)
}

// believe makes sure of the checksum that a rule asks for before it learns. Where it asks for none, although there is
// one, that is pointed out.
func (w *rewriter) believe(a *spec.Action) bool {
	if a.Verified == nil {
		i := slices.IndexFunc(w.s.Path, func(in *draft.Header) bool { return sumOver(in.Decl) != nil })
		if i >= 0 && !a.Unverified && w.p.Ingress() {
			w.p.Diags.Warn(code.Unverified, a.Pos, "what is learned isn't verified: a packet with a wrong checksum "+
				"changes table %q, too", a.Table.Value).
				WithHint("verify it: verified: %q; or say that it does no harm: verified: false", w.s.Path[i].Entry)
		}
		return true
	}
	name := a.Verified.Value
	in, known := w.s.Find(name)
	switch {
	case in == nil && !known:
		w.s.Fail(code.Learn, a.Verified.Pos, "no header %q in the stack", name).WithNames(name, w.s.Visible())
		return false
	case in == nil:
		w.s.Fail(code.Learn, a.Verified.Pos, "header %q can't be verified: not every packet of this rule has it", name).
			WithHint("ask for it in the rule: match, when")
		return false
	case sumOver(in.Decl) == nil:
		w.s.Fail(code.Learn, a.Verified.Pos, "header %q can't be verified: it has no checksum over what follows it",
			name).
			WithRelated(in.Decl.Name.Pos, "the header is declared here")
		return false
	}
	w.summable(fold.Bin(ir.Sub, in.Inner, fold.Off(in.Off)), a.Verified.Pos)
	w.verifyWhole(in, in.Fields[sumOver(in.Decl).Name.Value], false, a.Verified.Pos)
	return true
}

// present lets packets pass to the stack whose checksum is 0, which means that there is none.
func (w *rewriter) present(pl *draft.Field, h *spec.Header, pos diag.Pos) {
	w.guard(fold.Bin(ir.Ne, pl.Load, fold.Num(0)), w.p.FieldReason(h, pl.Decl,
		"is 0 (no checksum), which isn't allowed here"), pos)
}

// verifyWhole makes sure of the checksum of a header over all that follows it. none: where it may lack a checksum, that
// is right, too.
func (w *rewriter) verifyWhole(in *draft.Header, pl *draft.Field, none bool, pos diag.Pos) {
	right := &ir.SumOK{Off: in.Off, Len: ir.MaxWhole, Size: fold.Bin(ir.Sub, in.Inner, fold.Off(in.Off)), Whole: true}
	inside := &expr.Scope{Program: w.p, Path: w.s.UpTo(in), Self: in}
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
	w.guard(cond, wrongSum(w.p, in.Decl, pl.Decl), pos)
}

// summedUp reports whether a header is one whose checksum a device may have verified. What follows IP may be such a
// transport header that the spec describes in its own way.
func (w *rewriter) summedUp(in *draft.Header) bool {
	i := slices.Index(w.s.Path, in)
	return !isIP(in.Decl) && (sumOver(in.Decl) != nil || i > 0 && isIP(w.s.Path[i-1].Decl))
}
