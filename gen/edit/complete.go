package edit

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass completes a packet: headers that are new to each other are made to fit, and fields of headers that were put
// in get the values that follow from the spec.

// Complete gives headers what follows for them. It returns false if something can't be, which is reported.
func (w *Packet) Complete() bool { return w.announce() && w.complete() }

// announce makes neighbours that are new to each other fit: the field in front says what follows. If nothing in the
// spec says what that is, the header that was taken out between them may have said so: a VLAN tag has the EtherType of
// what it is in front of. (A port may stay: what it stands for is a matter of the endpoints.)
func (w *Packet) announce() bool {
	for i := range w.Headers {
		if !w.inheritNext(i) {
			return false
		}
	}
	for i := 1; i < len(w.Headers); i++ {
		a, b := w.Headers[i-1], w.Headers[i]
		if a.Old != nil && b.Old != nil && b.Index == a.Index+1 || len(b.Decl.After) == 0 {
			continue
		}
		if !w.announceNext(a, b) {
			w.Scope.Fail(code.Push, b.Pos, "header %q can't follow %q", b.Decl.Name.Value, a.Decl.Name.Value).
				WithRelated(b.Decl.Name.Pos, "what it comes after is declared here")
			return false
		}
	}
	return true
}

// inheritNext has the i-th header say what follows, as the header said that was taken out after it, if the spec
// doesn't know what that is; unless it is filled, and says nothing. It returns false if that header had no such field.
func (w *Packet) inheritNext(i int) bool {
	a, gone := w.Headers[i], w.takenOut(i)
	known := i+1 < len(w.Headers) && (len(w.Headers[i+1].Decl.After) > 0 || w.Headers[i+1].Old == nil)
	if gone == nil || known {
		return true
	}
	pl := draft.Announcer(a.Old, w.Scope.Path[a.Index+1].Decl)
	if pl == nil || a.Fill != nil || a.Values[pl.Decl.Name.Value] != nil || isPort(a.Decl, pl.Decl) {
		return true
	}
	same := gone.Fields[pl.Decl.Name.Value]
	if same == nil || same.Decl.Kind != spec.FieldUint || same.Decl.Bits != pl.Decl.Bits {
		w.Scope.Fail(code.Push, w.Pos, "header %q can't be popped: %s.%s would still say that it follows",
			gone.Entry, a.Entry, pl.Decl.Name.Value).
			WithRelated(gone.Decl.Name.Pos, "the header is declared here").
			WithHint("set it after the pop, if it is known what follows then")
		return false
	}
	a.Values[pl.Decl.Name.Value] = same.Load
	return true
}

// announceNext gives the fields of a the values that say that b follows. It returns false if nothing can say so.
func (w *Packet) announceNext(a, b *Header) bool {
	found := !a.Decl.Std || slices.ContainsFunc(b.Decl.After, func(e *spec.After) bool {
		return e.Parent.Value == a.Decl.Name.Value && len(e.Match) == 0 // nothing announces it
	})
	for _, f := range a.Decl.Fields {
		x := Announced(a.Decl, b.Decl, f)
		if x == nil {
			continue
		}
		found = true
		if set, given := a.SetAt[f.Name.Value]; given && a.Old != nil {
			w.Scope.Fail(code.Target, set, "field %q can't be set: it says which header follows, which is %q",
				f.Name.Value, b.Entry).
				WithHint("leave it out: it follows from the headers that are pushed and popped")
		}
		if v, set := a.Values[f.Name.Value]; !set || a.Old != nil {
			a.Values[f.Name.Value] = x
		} else if c, fixed := fold.Constant(v); fixed && !isPort(a.Decl, f) && !mayAnnounce(a.Decl, b.Decl, f, c) {
			w.Scope.Fail(code.Target, a.SetAt[f.Name.Value], "field %q of the pushed header %q can't be %d: it says "+
				"which header follows, which is %q", f.Name.Value, a.Entry, c, b.Entry).
				WithRelated(b.Decl.Name.Pos, "what it comes after is declared here").
				WithHint("leave it out: it follows from the headers that are pushed and popped")
		}
	}
	return found
}

// takenOut returns the last header of the frame that was taken out between the i-th one that leaves and what follows
// it, or nil.
func (w *Packet) takenOut(i int) *draft.Header {
	a := w.Headers[i]
	if a.Old == nil {
		return nil
	}
	end := len(w.Scope.Path)
	if i+1 < len(w.Headers) && w.Headers[i+1].Index >= 0 {
		end = w.Headers[i+1].Index
	}
	for _, in := range slices.Backward(w.Scope.Path[a.Index+1 : max(end, a.Index+1)]) {
		if !in.Meta {
			return in
		}
	}
	return nil
}

// Announced returns the value that field f of parent has if next follows, or nil.
func Announced(parent, next *spec.Header, f *spec.Field) ir.Expr {
	for _, a := range next.After {
		if a.Parent.Value != parent.Name.Value {
			continue
		}
		for _, m := range a.Match {
			if m.Field.Path[0].Value == f.Name.Value && m.Is.Op == spec.IsEq && m.Is.Value.Kind == spec.LitInt {
				return fold.Num(m.Is.Value.Int)
			}
			if m.Field.Path[0].Value == f.Name.Value && m.Is.Op == spec.IsOr && m.Is.Args[0].Op == spec.IsEq {
				return fold.Num(m.Is.Args[0].Value.Int) // the first of several
			}
		}
	}
	return nil
}

// mayAnnounce reports whether next may follow if field f of parent has that value.
func mayAnnounce(parent, next *spec.Header, f *spec.Field, value uint64) bool {
	for _, a := range next.After {
		if a.Parent.Value != parent.Name.Value {
			continue
		}
		i := slices.IndexFunc(a.Match, func(m *spec.FieldMatch) bool { return m.Field.Path[0].Value == f.Name.Value })
		if i < 0 || ranges.Of(a.Match[i].Is, ranges.Max(f.Bits)).Has(value) {
			return true
		}
	}
	return false
}

// complete gives the fields of pushed headers that the spec gives no value the one that their declarations determine:
// fixed values, and what the next header announces. It reports a field that has none.
func (w *Packet) complete() bool {
	ok := true
	for _, o := range w.Headers {
		if o.Index >= 0 {
			continue
		}
		for _, f := range o.Decl.Fields {
			_, given := o.Values[f.Name.Value]
			switch {
			case given || f.Counts != nil || f.Checksum != nil:
			case f.Is != nil && f.Is.Op == spec.IsEq && f.Kind == spec.FieldUint && f.Is.Value.Kind == spec.LitInt:
				o.Values[f.Name.Value] = fold.Num(f.Is.Value.Int)
			case f.Origin != nil && f.Kind == spec.FieldUint:
				o.Values[f.Name.Value] = fold.Num(*f.Origin)
			default:
				w.Scope.Fail(code.Push, o.Pos, "field %q of the pushed header %q needs a value", f.Name.Value,
					o.Decl.Name.Value).
					WithRelated(f.Name.Pos, "the field is declared here")
				ok = false
			}
		}
	}
	return ok
}
