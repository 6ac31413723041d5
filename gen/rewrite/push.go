package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass takes headers out and puts headers in. What the spec doesn't say of a header that is put in follows from
// its declaration and from what comes after it.

// Pop takes a header out.
func (w *Packet) Pop(a *spec.Action) {
	in, known := w.Scope.Find(a.Header.Value)
	if in == nil {
		if !known {
			w.Scope.Fail(code.Push, a.Header.Pos, "no header %q in the stack", a.Header.Value).WithNames(a.Header.Value,
				w.Scope.Visible())
		}
		return // an optional header that isn't there
	}
	w.remove(in, a.ZeroChecksum, a.Header.Pos)
}

func (w *Packet) remove(in *draft.Header, zero bool, pos diag.Pos) {
	if in.Meta {
		w.popTag = true
		return
	}
	i := slices.IndexFunc(w.hdrs, func(o *Header) bool { return o.old == in })
	if i < 0 {
		w.Scope.Fail(code.Push, pos, "header %q is popped twice", in.Entry)
		return
	}
	for _, pl := range in.Order {
		if k := pl.Decl.Checksum; k != nil && k.Offloaded {
			w.VerifyWhole(in, pl, zero || w.mayLack(in, pl.Decl), pos)
		}
	}
	if w.summedUp(in) {
		w.summed++
	}
	for _, f := range in.Decl.Fields {
		if set, ok := w.hdrs[i].sets[f.Name.Value]; ok {
			w.Scope.Fail(code.Target, set, "field %q can't be set: its header is taken out", f.Name.Value).
				WithRelated(pos, "it is taken out here").
				WithHint("leave one of them out")
		}
	}
	w.hdrs = slices.Delete(slices.Clone(w.hdrs), i, i+1)
	if in.Decl.Metadata == "vlan" && i == 1 && in.Off.Base == nil {
		w.popOuter(in, pos)
		return
	}
	w.resized = true
}

// popOuter has the kernel take the outermost tag out of the frame. It would move a tag after it into the packet's
// metadata, and all that follows with it, so there must not be one.
func (w *Packet) popOuter(in *draft.Header, pos diag.Pos) {
	at := slices.Index(w.Scope.Path, in)
	var next *spec.Header
	if at+1 < len(w.Scope.Path) {
		next = w.Scope.Path[at+1].Decl
	}
	if w.popInner || next != nil && next.Metadata == "vlan" {
		w.Scope.Fail(code.Push, pos, "header %q can't be taken out: another tag is in front of it or after it",
			in.Entry).
			WithHint("of two tags in the frame none can be taken out")
		return
	}
	w.popInner = true
	if next != nil && len(next.After) > 0 {
		return // the tag says that something else follows
	}
	typ := &ir.Load{Off: in.Off.Plus(2), Bits: 16, Field: in.Decl.Name.Value + ".type"}
	other := w.Program.Punted("vlan_tag", "a VLAN tag that the stack doesn't have", pos)
	w.Guard(fold.Bin(ir.Ne, typ, fold.Num(0x8100)), other, pos)
	w.Guard(fold.Bin(ir.Ne, typ, fold.Num(0x88A8)), other, pos)
}

// Push puts a header in.
func (w *Packet) Push(a *spec.Action) {
	h := w.Program.Names.Headers[a.Header.Value]
	if h == nil {
		w.Scope.Fail(code.UnknownName, a.Header.Pos, "no header %q", a.Header.Value).WithNames(a.Header.Value,
			w.Program.Names.HeaderNames())
		return
	}
	if h.Varies() {
		w.Scope.Fail(code.Variable, a.Header.Pos, "header %q can't be pushed: its size varies", h.Name.Value).
			WithRelated(h.Name.Pos, "the header is declared here")
		return
	}
	if h.Trailer > 0 {
		w.Scope.Fail(code.Push, a.Header.Pos, "header %q can't be pushed: it has a trailer, which nothing fills",
			h.Name.Value).WithRelated(h.Name.Pos, "the header is declared here")
		return
	}
	o := &Header{
		h: h, entry: h.Name.Value, index: -1, vals: map[string]ir.Expr{}, sets: map[string]diag.Pos{},
		size: draft.SizeOf(h), pos: a.Header.Pos,
	}
	at := len(w.hdrs)
	if a.Before != nil {
		in, _ := w.Scope.Find(a.Before.Value)
		at = slices.IndexFunc(w.hdrs, func(o *Header) bool { return in != nil && o.old == in })
		if at < 0 || at == 0 && w.Program.Out.L2 {
			w.Scope.Fail(code.Push, a.Before.Pos, "no header %q in the stack to push in front of",
				a.Before.Value).WithNames(a.Before.Value, w.Scope.Visible())
			return
		}
	}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool { return f.Name.Value == name })
		if i < 0 {
			var names []string
			for _, f := range h.Fields {
				if !Sets(a.Set, f.Name.Value) {
					names = append(names, f.Name.Value)
				}
			}
			w.Scope.Fail(code.UnknownName, as.Target.Pos, "no field %q in header %q", name,
				h.Name.Value).WithNames(name,
				names).
				WithRelated(h.Name.Pos, "the header is declared here")
			continue
		}
		w.pushed(o, h.Fields[i], as)
	}
	w.hdrs = slices.Insert(slices.Clone(w.hdrs), at, o)
	w.resized = true
}

// pushed gives a field of a pushed header the value that the spec gives.
func (w *Packet) pushed(o *Header, f *spec.Field, as *spec.Assign) {
	if f.Checksum != nil && w.chooses(o, f, as) {
		return
	}
	v, ok := w.WithEffects(as.Value)
	if !ok {
		return
	}
	if f.Counts != nil || f.Checksum != nil {
		w.Scope.Fail(code.Target, as.Target.Pos, "field %q follows from the packet", f.Name.Value).
			WithHint("leave it out: lengths and checksums are always right")
		return
	}
	if !w.takes(f, v, as) {
		return
	}
	if f.Is != nil && f.Kind == spec.FieldUint {
		if c, fixed := fold.Constant(v.X); fixed {
			if !ranges.Of(f.Is, ranges.Max(f.Bits)).Has(c) {
				w.Scope.Fail(code.Constraint, as.Value.Pos, "field %q can't be %d", f.Name.Value, c).
					WithRelated(f.Is.Pos, "its values are declared here")
			}
		} else if cond := w.Scope.Constraint(expr.Value{Type: ir.UintType(f.Bits), X: v.X, Max: ranges.Max(f.Bits),
			Pos: v.Pos},
			f.Is); cond != nil {
			w.Guard(cond, w.Program.Unfit(o.h, f, draft.Impossible), as.Value.Pos)
		}
	}
	o.vals[f.Name.Value], o.sets[f.Name.Value] = v.X, as.Target.Pos
}

// complete gives the fields of pushed headers that the spec gives no value the one that their declarations determine:
// fixed values, and what the next header announces. It reports a field that has none.
func (w *Packet) complete() bool {
	ok := true
	for _, o := range w.hdrs {
		if o.index >= 0 {
			continue
		}
		for _, f := range o.h.Fields {
			_, given := o.vals[f.Name.Value]
			switch {
			case given || f.Counts != nil || f.Checksum != nil:
			case f.Is != nil && f.Is.Op == spec.IsEq && f.Kind == spec.FieldUint && f.Is.Value.Kind == spec.LitInt:
				o.vals[f.Name.Value] = fold.Num(f.Is.Value.Int)
			case f.Origin != nil && f.Kind == spec.FieldUint:
				o.vals[f.Name.Value] = fold.Num(*f.Origin)
			default:
				w.Scope.Fail(code.Push, o.pos, "field %q of the pushed header %q needs a value", f.Name.Value,
					o.h.Name.Value).
					WithRelated(f.Name.Pos, "the field is declared here")
				ok = false
			}
		}
	}
	return ok
}

// announced returns the value that field f of parent has where next follows, or nil.
func announced(parent, next *spec.Header, f *spec.Field) ir.Expr {
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

// mayAnnounce reports whether next may follow where field f of parent has that value.
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

// announce makes neighbours that are new to each other fit: the field in front says what follows. Where nothing in the
// spec says what that is, the header that was taken out between them may have said so: a VLAN tag has the EtherType of
// what it is in front of. (A port may stay: what it stands for is a matter of the endpoints.)
func (w *Packet) announce() bool {
	for i := range w.hdrs {
		if !w.inheritNext(i) {
			return false
		}
	}
	for i := 1; i < len(w.hdrs); i++ {
		a, b := w.hdrs[i-1], w.hdrs[i]
		if a.old != nil && b.old != nil && b.index == a.index+1 || len(b.h.After) == 0 {
			continue
		}
		if !w.announceNext(a, b) {
			w.Scope.Fail(code.Push, b.pos, "header %q can't follow %q", b.h.Name.Value, a.h.Name.Value).
				WithRelated(b.h.Name.Pos, "what it comes after is declared here")
			return false
		}
	}
	return true
}

// inheritNext has the i-th header say what follows as the header said that was taken out after it, where the spec
// doesn't know what that is. It returns false where that header had no such field.
func (w *Packet) inheritNext(i int) bool {
	a, gone := w.hdrs[i], w.takenOut(i)
	known := i+1 < len(w.hdrs) && (len(w.hdrs[i+1].h.After) > 0 || w.hdrs[i+1].old == nil)
	if gone == nil || known {
		return true
	}
	pl := draft.Announcer(a.old, w.Scope.Path[a.index+1].Decl)
	if pl == nil || a.vals[pl.Decl.Name.Value] != nil || isPort(a.h, pl.Decl) {
		return true
	}
	same := gone.Fields[pl.Decl.Name.Value]
	if same == nil || same.Decl.Kind != spec.FieldUint || same.Decl.Bits != pl.Decl.Bits {
		w.Scope.Fail(code.Push, w.pos, "header %q can't be popped: %s.%s would still say that it follows",
			gone.Entry, a.entry, pl.Decl.Name.Value).
			WithRelated(gone.Decl.Name.Pos, "the header is declared here").
			WithHint("set it after the pop, if it is known what follows then")
		return false
	}
	a.vals[pl.Decl.Name.Value] = same.Load
	return true
}

// announceNext gives the fields of a the values that say that b follows. It returns false where nothing can say so.
func (w *Packet) announceNext(a, b *Header) bool {
	found := !a.h.Std || slices.ContainsFunc(b.h.After, func(e *spec.After) bool {
		return e.Parent.Value == a.h.Name.Value && len(e.Match) == 0 // nothing announces it
	})
	for _, f := range a.h.Fields {
		x := announced(a.h, b.h, f)
		if x == nil {
			continue
		}
		found = true
		if set, given := a.sets[f.Name.Value]; given && a.old != nil {
			w.Scope.Fail(code.Target, set, "field %q can't be set: it says which header follows, which is %q",
				f.Name.Value, b.entry).
				WithHint("leave it out: it follows from the headers that are pushed and popped")
		}
		if v, set := a.vals[f.Name.Value]; !set || a.old != nil {
			a.vals[f.Name.Value] = x
		} else if c, fixed := fold.Constant(v); fixed && !isPort(a.h, f) && !mayAnnounce(a.h, b.h, f, c) {
			w.Scope.Fail(code.Target, a.sets[f.Name.Value], "field %q of the pushed header %q can't be %d: it says "+
				"which header follows, which is %q", f.Name.Value, a.entry, c, b.entry).
				WithRelated(b.h.Name.Pos, "what it comes after is declared here").
				WithHint("leave it out: it follows from the headers that are pushed and popped")
		}
	}
	return found
}

// isPort reports whether a field is the port of one of its header's endpoints.
func isPort(h *spec.Header, f *spec.Field) bool {
	return slices.ContainsFunc(h.Parts, func(p *spec.Part) bool {
		return p.Port != nil && p.Port.Path[0].Value == f.Name.Value
	})
}

// takenOut returns the last header of the frame that was taken out between the i-th one that leaves and what follows
// it, or nil.
func (w *Packet) takenOut(i int) *draft.Header {
	a := w.hdrs[i]
	if a.old == nil {
		return nil
	}
	end := len(w.Scope.Path)
	if i+1 < len(w.hdrs) && w.hdrs[i+1].index >= 0 {
		end = w.hdrs[i+1].index
	}
	for _, in := range slices.Backward(w.Scope.Path[a.index+1 : max(end, a.index+1)]) {
		if !in.Meta {
			return in
		}
	}
	return nil
}

// Sets reports whether a field of this name is given a value: then no other name was meant to be it.
func Sets(set []*spec.Assign, name string) bool {
	return slices.ContainsFunc(set, func(as *spec.Assign) bool { return as.Target.Path[0].Value == name })
}
