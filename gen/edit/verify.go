package edit

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass verifies checksums that a rule relies on, or that go away unseen, and reads what a push says of one.

// SumChoice is what a spec says about the checksum of a header that is put in.
type SumChoice int

const (
	SumByDefault SumChoice = iota
	SumNone
	SumComputed
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
		o.Sum = SumNone
	case e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == computedName:
		o.Sum = SumComputed
	default:
		return false
	}
	return true
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
	return i > 0 && AbsentOver(f, w.Scope.Path[i-1].Decl)
}

// Present lets packets pass to the stack whose checksum is 0, which means that there is none.
func (w *Packet) Present(pl *draft.Field, h *spec.Header, pos diag.Pos) {
	w.Guard(fold.Bin(ir.Ne, pl.Load, fold.Num(0)), w.Program.FieldReason(h, pl.Decl,
		"is 0 (no checksum), which isn't allowed here"), pos)
}

// VerifyWhole makes sure of the checksum of a header over all that follows it. none: if it may lack a checksum, that
// is right, too.
func (w *Packet) VerifyWhole(in *draft.Header, pl *draft.Field, none bool, pos diag.Pos) {
	right := &ir.SumOK{Off: in.Off, Len: ir.MaxWhole, Size: fold.Bin(ir.Sub, in.Inner, fold.Off(in.Off)), Whole: true}
	terms, ok := w.pseudoHeader(in, pl)
	if !ok {
		return
	}
	right.Pseudo = terms
	var cond ir.Expr = right
	switch {
	case pl.Decl.Checksum.Optional && none:
		cond = fold.Or(fold.Bin(ir.Eq, pl.Load, fold.Num(0)), right)
	case pl.Decl.Checksum.Optional:
		w.Present(pl, in.Decl, pos)
	}
	w.Guard(cond, draft.WrongSum(w.Program, in.Decl, pl.Decl), pos)
}

// Finished lets packets pass to the stack of which a checksum seems to be left to a device: it holds the sum of the
// pseudo-header. A driver isn't told. A checksum that the stack doesn't name can't be seen: not behind the last IP
// header of the stack, and not in what a datagram without a checksum carries, which may be a tunnel.
func (w *Packet) Finished(reason int, pos diag.Pos) {
	named := true
	for _, in := range w.Scope.Path {
		named = named && !IsIP(in.Decl)
		for _, pl := range in.Order {
			k := pl.Decl.Checksum
			if k == nil || !k.Offloaded {
				continue
			}
			sum, ok := w.pseudoHeader(in, pl)
			if !ok {
				return
			}
			named = true
			w.Guard(fold.And(fold.Bin(ir.Ne, pl.Load, fold.Num(0)),
				fold.Bin(ir.Ne, pl.Load, &ir.PseudoSum{Terms: sum})), reason, pos)
		}
	}
	if !named {
		w.Guard(fold.Bool(false), reason, pos)
	}
}

// pseudoHeader are the terms of the pseudo-header of a checksum, as the packet came.
func (w *Packet) pseudoHeader(in *draft.Header, pl *draft.Field) (terms []ir.Term, ok bool) {
	inside := &expr.Scope{Program: w.Program, Path: w.Scope.UpTo(in), Self: in}
	for _, e := range pl.Decl.Checksum.Pseudo {
		v, ok := inside.Value(e)
		if !ok {
			return nil, false
		}
		terms = append(terms, v.Term())
	}
	return terms, true
}

// summedUp reports whether a header is one whose checksum a device may have verified. What follows IP may be such a
// transport header that the spec describes in its own way.
func (w *Packet) summedUp(in *draft.Header) bool {
	i := slices.Index(w.Scope.Path, in)
	return !IsIP(in.Decl) && (SumOver(in.Decl) != nil || i > 0 && IsIP(w.Scope.Path[i-1].Decl))
}

// AbsentOver reports whether the field of a checksum may be 0 (none) after a parent.
func AbsentOver(f *spec.Field, parent *spec.Header) bool {
	return slices.ContainsFunc(f.Checksum.Absent, func(n spec.Name) bool { return n.Value == parent.Name.Value })
}

// verify makes sure of the checksum of the IP header of a packet that is sent, unless it was verified where it came.
// It would go unnoticed that it was wrong when the header is replaced.
func (w *Packet) verify(o *Header, replaced bool, a *spec.Action) {
	if o.Old == nil {
		return
	}
	for _, f := range o.Decl.Fields {
		k := f.Checksum
		if k != nil && k.Covers == "header" && (replaced || k.Verify && innerHeader(w.Scope, o)) &&
			!o.Old.Verified {
			w.Guard(o.Old.SumOK(), draft.WrongSum(w.Program, o.Decl, f), a.Pos)
		}
	}
}

// innerHeader reports whether an IP header that came is not the outermost one.
func innerHeader(s *expr.Scope, o *Header) bool {
	return slices.ContainsFunc(s.Path[:o.Index],
		func(in *draft.Header) bool { return in.Address("destination") != nil })
}
