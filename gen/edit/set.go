package edit

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives fields of headers that leave their values: set and mark.

// Set gives fields of the stack values.
func (w *Packet) Set(a *spec.Action) {
	for _, as := range a.Set {
		target, ok := w.Scope.Value(as.Target)
		if !ok {
			continue
		}
		v, ok := w.WithEffects(as.Value)
		if !ok {
			continue
		}
		if target.Type.Kind == ir.Endpoint && target.Field != nil && target.PortAt != nil {
			if v.Type.Kind != ir.Endpoint {
				w.Scope.Fail(code.Type, as.Value.Pos, "this is %s, where an endpoint is wanted", v.Type.What())
				continue
			}
			w.store(target.Field, expr.Value{Type: ir.AddrType, X: v.X, Pos: v.Pos}, as)
			w.store(target.PortAt, expr.Value{Type: ir.UintType(16), X: v.Port, Max: 0xFFFF, Pos: v.Pos}, as)
			continue
		}
		if target.Field == nil {
			w.Scope.Fail(code.Target, as.Target.Pos, "only fields of headers can be set")
			continue
		}
		w.store(target.Field, v, as)
	}
}

// store gives one field a value.
func (w *Packet) store(pl *draft.Field, v expr.Value, as *spec.Assign) {
	f := pl.Decl
	no := func(why, hint string) {
		w.Scope.Fail(code.Target, as.Target.Pos, "field %q can't be set: %s", f.Name.Value, why).WithHint("%s", hint)
	}
	o := w.Header(pl.Parent)
	switch {
	case w.Program.Congestion() && !draft.Decides(pl):
		no("it says what the kernel knows", "what can be set are "+draft.Decisions(pl.Parent.Decl.Name.Value))
		return
	case pl.Parent.Meta || pl.Segment < 0 && pl.Value == nil && pl.Size == nil:
		no("it is in the packet's metadata", "send removes the tag")
		return
	case o == nil:
		no("its header is popped", "")
		return
	case o.Fill != nil:
		no("its header is "+o.Fill.Done, "")
		return
	case f.Counts != nil:
		no("it is a length, which follows from the packet", "leave it out: lengths are always right")
		return
	case f.Checksum != nil:
		no("it is a checksum, which follows from the packet", "leave it out: checksums are always right")
		return
	case pl.Width != nil:
		w.storeVariable(o, pl, v, as)
		return
	case pl.Segment < 0:
		w.Scope.Fail(code.Variable, as.Target.Pos, "field %q can't be set: its size or presence varies", f.Name.Value)
		return
	case shapes(pl.Parent.Decl, f):
		no("the size or presence of another field depends on it", "")
		return
	case w.announces(pl):
		no("it says which header follows", "push and pop headers instead")
		return
	}
	if !w.takes(f, v, as) || w.again(o, f, as) {
		return
	}
	v.Pos = as.Value.Pos
	if !w.allows(o.Decl, f, v) {
		no("it has to keep the value that its header declares", "")
		return
	}
	o.Values[f.Name.Value], o.SetAt[f.Name.Value] = v.X, as.Target.Pos
}

// again reports a field that a rule sets twice: only the last value would count.
func (w *Packet) again(o *Header, f *spec.Field, as *spec.Assign) bool {
	first, set := o.SetAt[f.Name.Value]
	if set {
		w.Scope.Fail(code.Target, as.Target.Pos, "field %q is set twice", f.Name.Value).
			WithRelated(first, "the other value is here").
			WithHint("leave one of them out")
	}
	return set
}

// allows reports whether the header of a field allows it a value; if only the packet shows that, a guard decides.
func (w *Packet) allows(h *spec.Header, f *spec.Field, v expr.Value) bool {
	if f.Is == nil {
		return true
	}
	if c, fixed := fold.Constant(v.X); fixed {
		return ranges.Of(f.Is, v.Max).Has(c)
	}
	if f.Is.Op == spec.IsEq || f.Kind != spec.FieldUint {
		return false
	}
	cond := w.Scope.Constraint(expr.Value{Type: ir.UintType(f.Bits), X: v.X, Max: ranges.Max(f.Bits), Pos: v.Pos}, f.Is)
	if cond != nil {
		w.Guard(cond, w.Program.Unfit(h, f, draft.Impossible), v.Pos)
	}
	return true
}

// takes makes sure that a field can hold a value, and that an address is of the field's family.
func (w *Packet) takes(f *spec.Field, v expr.Value, as *spec.Assign) bool {
	switch {
	case f.Kind == spec.FieldUint && v.Type.Kind != ir.Uint:
		w.Scope.Fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.Type.What())
		return false
	case f.Kind == spec.FieldUint:
		name := as.Target.String()
		if len(as.Target.Path) == 1 {
			name = "field \"" + name + "\""
		}
		return w.Scope.Fits(v, f.Bits, name, "", false) == nil
	case v.Type.Kind != draft.BytesType(f).Kind || v.Type.Size != draft.BytesType(f).Size || v.X == nil:
		w.Scope.Fail(code.Type, as.Value.Pos, "this is %s, but field %q is %s", v.Type.What(), f.Name.Value,
			draft.BytesType(f).What())
		return false
	case f.Type == "ip":
		w.Guard(fold.Bin(ir.Eq, fold.IsV4(v.X), fold.Bool(f.Bytes == 4)),
			w.Program.Punted("address_family", "an address of the other IP version", as.Value.Pos), as.Value.Pos)
	}
	return true
}

// storeVariable gives an integer of variable size a value. It keeps the size that it came with: a packet whose integer
// is missing, or too small for the value, is declined.
func (w *Packet) storeVariable(o *Header, pl *draft.Field, v expr.Value, as *spec.Assign) {
	f := pl.Decl
	if shapes(pl.Parent.Decl, f) || f.Is != nil {
		w.Scope.Fail(code.Target, as.Target.Pos, "field %q can't be set: other fields of its header depend on it, or "+
			"it has to keep its value", f.Name.Value)
		return
	}
	if v.Type.Kind != ir.Uint {
		w.Scope.Fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.Type.What())
		return
	}
	if c, fixed := fold.Constant(v.X); fixed && c > pl.Max {
		w.Scope.Fail(code.Range, as.Value.Pos, "%d doesn't fit %s, which has %d bits at most", c, as.Target,
			f.MaxBits())
		return
	}
	if w.again(o, f, as) {
		return
	}
	reason := w.Program.Unfit(pl.Parent.Decl, f, "isn't there, or has no room for its new value")
	if pl.Present != nil {
		w.Guard(pl.Present, reason, as.Target.Pos)
	}
	if v.FitsIn != pl && !(f.Kind == spec.FieldVarint && v.Max <= ranges.Max(6)) {
		if f.SizedUint() && expr.Reads(v.X, w.Effects.Allocated) {
			w.Scope.Fail(code.Alloc, as.Target.Pos, undecidable).
				WithHint("low(…, %s) is as much of a number as the field has room for", as.Target)
			return
		}
		w.Guard(fold.Bin(ir.Le, v.X, pl.Room()), reason, as.Target.Pos)
	}
	o.Values[f.Name.Value], o.SetAt[f.Name.Value] = v.X, as.Target.Pos
}

// shapes reports whether a field says how long another field of its header is, or whether it is there.
func shapes(h *spec.Header, f *spec.Field) bool {
	return slices.ContainsFunc(h.Fields, func(g *spec.Field) bool { return names(g.When, f) || names(g.Size, f) })
}

// names reports whether an expression of a header names a field of it.
func names(e *spec.Expr, f *spec.Field) bool {
	if e == nil {
		return false
	}
	return e.Op == spec.OpName && e.Path[0].Value == f.Name.Value || slices.ContainsFunc(e.Args,
		func(a *spec.Expr) bool { return names(a, f) })
}

// announces reports whether the field says which header of the path follows its own.
func (w *Packet) announces(pl *draft.Field) bool {
	i := slices.IndexFunc(w.Scope.Path, func(in *draft.Header) bool { return in.Entry == pl.Parent.Entry })
	return i >= 0 && i+1 < len(w.Scope.Path) && draft.Announcer(pl.Parent, w.Scope.Path[i+1].Decl) == pl &&
		(w.Scope.Path[i+1].Meta || w.Header(w.Scope.Path[i+1]) != nil)
}

// Mark gives a packet its DSCP, ECN and the marks that the kernel keeps beside it.
func (w *Packet) Mark(a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		v, ok := w.WithEffects(as.Value)
		if !ok {
			continue
		}
		if v.Type.Kind != ir.Uint {
			w.Scope.Fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.Type.What())
			continue
		}
		switch name {
		case "priority", "mark":
			if w.Scope.Fits(v, 32, name, "", false) != nil {
				continue
			}
			if name == "priority" {
				w.Priority = v.X
			} else {
				w.SkbMark = v.X
			}
		default: // dscp, ecn
			has := func(in *draft.Header) bool { return in.Fields[name] != nil && in.Fields[name].Load != nil }
			i := slices.IndexFunc(w.Scope.Path, func(in *draft.Header) bool { return has(in) && w.Header(in) != nil })
			if i < 0 { // popped, all of them
				i = slices.IndexFunc(w.Scope.Path, has)
			}
			if i < 0 {
				w.Scope.Fail(code.Action, as.Target.Pos, "no header of the stack has a field %q", name)
				continue
			}
			w.store(w.Scope.Path[i].Fields[name], v, as)
		}
	}
}
