package edit

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

// This pass takes headers out and puts headers in.

// Pop takes a header out.
func (w *Packet) Pop(a *spec.Action) {
	if in := w.received(a.Header); in != nil {
		w.remove(in, a.ZeroChecksum, a.Header.Pos)
	}
}

func (w *Packet) remove(in *draft.Header, zero bool, pos diag.Pos) {
	if in.Meta {
		w.PopTag = true
		return
	}
	i := slices.IndexFunc(w.Headers, func(o *Header) bool { return o.Old == in })
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
		w.Summed++
	}
	for _, f := range in.Decl.Fields {
		if set, ok := w.Headers[i].SetAt[f.Name.Value]; ok {
			w.Scope.Fail(code.Target, set, "field %q can't be set: its header is taken out", f.Name.Value).
				WithRelated(pos, "it is taken out here").
				WithHint("leave one of them out")
		}
	}
	w.Headers = slices.Delete(slices.Clone(w.Headers), i, i+1)
	if in.Decl.Metadata == "vlan" && i == 1 && in.Off.Base == nil {
		w.popOuter(in, pos)
		return
	}
	w.Resized = true
}

// popOuter has the kernel take the outermost tag out of the frame. It would move a tag after it into the packet's
// metadata, and all that follows with it, so there must not be one.
func (w *Packet) popOuter(in *draft.Header, pos diag.Pos) {
	at := slices.Index(w.Scope.Path, in)
	var next *spec.Header
	if at+1 < len(w.Scope.Path) {
		next = w.Scope.Path[at+1].Decl
	}
	if w.PopInner || next != nil && next.Metadata == "vlan" {
		w.Scope.Fail(code.Push, pos, "header %q can't be taken out: another tag is in front of it or after it",
			in.Entry).
			WithHint("of two tags in the frame none can be taken out")
		return
	}
	w.PopInner = true
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
		Decl: h, Entry: h.Name.Value, Index: -1, Values: map[string]ir.Expr{}, SetAt: map[string]diag.Pos{},
		Size: draft.SizeOf(h), Pos: a.Header.Pos,
	}
	at := len(w.Headers)
	if a.Before != nil {
		in, _ := w.Scope.Find(a.Before.Value)
		at = slices.IndexFunc(w.Headers, func(o *Header) bool { return in != nil && o.Old == in })
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
	w.Headers = slices.Insert(slices.Clone(w.Headers), at, o)
	w.Resized = true
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
			w.Guard(cond, w.Program.Unfit(o.Decl, f, draft.Impossible), as.Value.Pos)
		}
	}
	o.Values[f.Name.Value], o.SetAt[f.Name.Value] = v.X, as.Target.Pos
}

// isPort reports whether a field is the port of one of its header's endpoints.
func isPort(h *spec.Header, f *spec.Field) bool {
	return slices.ContainsFunc(h.Parts, func(p *spec.Part) bool {
		return p.Port != nil && p.Port.Path[0].Value == f.Name.Value
	})
}

// Sets reports whether a field of this name is given a value: then no other name was meant to be it.
func Sets(set []*spec.Assign, name string) bool {
	return slices.ContainsFunc(set, func(as *spec.Assign) bool { return as.Target.Path[0].Value == name })
}
