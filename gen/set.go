package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives fields of headers that leave their values: set and mark.

// set gives fields of the stack values.
func (w *rewriter) set(a *spec.Action) {
	for _, as := range a.Set {
		target, ok := w.s.value(as.Target)
		if !ok {
			continue
		}
		v, ok := w.withEffects(as.Value)
		if !ok {
			continue
		}
		if target.t.Kind == ir.Endpoint && target.field != nil && target.portAt != nil {
			if v.t.Kind != ir.Endpoint {
				w.s.fail(code.Type, as.Value.Pos, "this is %s, where an endpoint is wanted", v.t.What())
				continue
			}
			w.store(target.field, val{t: ir.AddrType, x: v.x, pos: v.pos}, as)
			w.store(target.portAt, val{t: ir.UintType(16), x: v.port, max: 0xFFFF, pos: v.pos}, as)
			continue
		}
		if target.field == nil {
			w.s.fail(code.Target, as.Target.Pos, "only fields of headers can be set")
			continue
		}
		w.store(target.field, v, as)
	}
}

// store gives one field a value.
func (w *rewriter) store(pl *fieldRef, v val, as *spec.Assign) {
	f := pl.f
	no := func(why, hint string) {
		w.s.fail(code.Target, as.Target.Pos, "field %q can't be set: %s", f.Name.Value, why).WithHint("%s", hint)
	}
	o := w.header(pl.parent)
	switch {
	case w.p.congestion() && !decides(pl):
		no("it says what the kernel knows", "what can be set are "+decisions(pl.parent.h.Name.Value))
		return
	case pl.parent.meta || pl.segment < 0 && pl.value == nil && pl.size == nil:
		no("it is in the packet's metadata", "send removes the tag")
		return
	case o == nil:
		no("its header is popped", "")
		return
	case o.blank:
		no("its header is blanked", "")
		return
	case f.Counts != nil:
		no("it is a length, which follows from the packet", "leave it out: lengths are always right")
		return
	case f.Checksum != nil:
		no("it is a checksum, which follows from the packet", "leave it out: checksums are always right")
		return
	case pl.width != nil:
		w.storeVariable(o, pl, v, as)
		return
	case pl.segment < 0:
		w.s.fail(code.Variable, as.Target.Pos, "field %q can't be set: its size or presence varies", f.Name.Value)
		return
	case shapes(pl.parent.h, f):
		no("the size or presence of another field depends on it", "")
		return
	case w.announces(pl):
		no("it says which header follows", "push and pop headers instead")
		return
	}
	if !w.takes(f, v, as) || w.again(o, f, as) {
		return
	}
	v.pos = as.Value.Pos
	if !w.allows(o.h, f, v) {
		no("it has to keep the value that its header declares", "")
		return
	}
	o.vals[f.Name.Value], o.sets[f.Name.Value] = v.x, as.Target.Pos
}

// again reports a field that a rule sets twice: only the last value would count.
func (w *rewriter) again(o *outHeader, f *spec.Field, as *spec.Assign) bool {
	first, set := o.sets[f.Name.Value]
	if set {
		w.s.fail(code.Target, as.Target.Pos, "field %q is set twice", f.Name.Value).
			WithRelated(first, "the other value is here").
			WithHint("leave one of them out")
	}
	return set
}

// allows reports whether the header of a field allows it a value; where only the packet shows that, a guard decides.
func (w *rewriter) allows(h *spec.Header, f *spec.Field, v val) bool {
	if f.Is == nil {
		return true
	}
	if c, fixed := fold.Constant(v.x); fixed {
		return ranges.Of(f.Is, v.max).Has(c)
	}
	if f.Is.Op == spec.IsEq || f.Kind != spec.FieldUint {
		return false
	}
	cond := w.s.constraint(val{t: ir.UintType(f.Bits), x: v.x, max: ranges.Max(f.Bits), pos: v.pos}, f.Is)
	if cond != nil {
		w.guard(cond, w.p.unfit(h, f, impossible), v.pos)
	}
	return true
}

// takes makes sure that a field can hold a value, and that an address is of the field's family.
func (w *rewriter) takes(f *spec.Field, v val, as *spec.Assign) bool {
	switch {
	case f.Kind == spec.FieldUint && v.t.Kind != ir.Uint:
		w.s.fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.t.What())
		return false
	case f.Kind == spec.FieldUint:
		name := as.Target.String()
		if len(as.Target.Path) == 1 {
			name = "field \"" + name + "\""
		}
		return w.s.fits(v, f.Bits, name, "", false) == nil
	case v.t.Kind != bytesType(f).Kind || v.t.Size != bytesType(f).Size || v.x == nil:
		w.s.fail(code.Type, as.Value.Pos, "this is %s, but field %q is %s", v.t.What(), f.Name.Value,
			bytesType(f).What())
		return false
	case f.Type == "ip":
		w.guard(fold.Bin(ir.Eq, fold.IsV4(v.x), fold.Bool(f.Bytes == 4)),
			w.p.punted("address_family", "an address of the other IP version", as.Value.Pos), as.Value.Pos)
	}
	return true
}

// storeVariable gives an integer of variable size a value. It keeps the size that it came with: a packet whose integer
// is missing, or too small for the value, is declined.
func (w *rewriter) storeVariable(o *outHeader, pl *fieldRef, v val, as *spec.Assign) {
	f := pl.f
	if shapes(pl.parent.h, f) || f.Is != nil {
		w.s.fail(code.Target, as.Target.Pos, "field %q can't be set: other fields of its header depend on it, or it "+
			"has "+
			"to keep its value", f.Name.Value)
		return
	}
	if v.t.Kind != ir.Uint {
		w.s.fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.t.What())
		return
	}
	if c, fixed := fold.Constant(v.x); fixed && c > pl.max {
		w.s.fail(code.Range, as.Value.Pos, "%d doesn't fit %s, which has %d bits at most", c, as.Target, f.MaxBits())
		return
	}
	if w.again(o, f, as) {
		return
	}
	reason := w.p.unfit(pl.parent.h, f, "isn't there, or has no room for its new value")
	if pl.present != nil {
		w.guard(pl.present, reason, as.Target.Pos)
	}
	if v.fitsIn != pl && !(f.Kind == spec.FieldVarint && v.max <= ranges.Max(6)) {
		if f.SizedUint() && reads(v.x, w.fx.allocated) {
			w.s.fail(code.Alloc, as.Target.Pos, undecidable).
				WithHint("low(…, %s) is as much of a number as the field has room for", as.Target)
			return
		}
		w.guard(fold.Bin(ir.Le, v.x, pl.room()), reason, as.Target.Pos)
	}
	o.vals[f.Name.Value], o.sets[f.Name.Value] = v.x, as.Target.Pos
}

// room is the largest value that an integer of variable size has room for in this packet.
func (pl *fieldRef) room() ir.Expr { return &ir.Room{Width: pl.width, Plain: pl.f.SizedUint()} }

// word is an integer of variable size as the upper bytes of 8.
func (pl *fieldRef) word(x ir.Expr) ir.Expr {
	return &ir.Word{X: x, Width: pl.width, Plain: pl.f.SizedUint()}
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
func (w *rewriter) announces(pl *fieldRef) bool {
	i := slices.IndexFunc(w.s.path, func(in *layer) bool { return in.entry == pl.parent.entry })
	return i >= 0 && i+1 < len(w.s.path) && announcer(pl.parent, w.s.path[i+1].h) == pl &&
		(w.s.path[i+1].meta || w.header(w.s.path[i+1]) != nil)
}

func (w *rewriter) mark(a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		v, ok := w.withEffects(as.Value)
		if !ok {
			continue
		}
		if v.t.Kind != ir.Uint {
			w.s.fail(code.Type, as.Value.Pos, "this is %s, where an integer is wanted", v.t.What())
			continue
		}
		switch name {
		case "priority", "mark":
			if w.s.fits(v, 32, name, "", false) != nil {
				continue
			}
			if name == "priority" {
				w.priority = v.x
			} else {
				w.skbMark = v.x
			}
		default: // dscp, ecn
			has := func(in *layer) bool { return in.fields[name] != nil && in.fields[name].load != nil }
			i := slices.IndexFunc(w.s.path, func(in *layer) bool { return has(in) && w.header(in) != nil })
			if i < 0 { // popped, all of them
				i = slices.IndexFunc(w.s.path, has)
			}
			if i < 0 {
				w.s.fail(code.Action, as.Target.Pos, "no header of the stack has a field %q", name)
				continue
			}
			w.store(w.s.path[i].fields[name], v, as)
		}
	}
}
