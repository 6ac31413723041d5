package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what an expression may do besides reading the packet: names for values, numbers allocated from
// counters, translations, the packet's priority, elements of lists.
//
// A value can be known at three times: while the packet is looked at, after every check (a translation may make a row),
// or when the packet leaves for certain (a number that was allocated is gone). What depends on a value comes no earlier
// than the value.

// effects are a rule's, while it is compiled.
type effects struct {
	ir.Effects
	late      []ir.Stmt // after all checks that don't depend on what they find
	lateVars  map[*ir.Var]bool
	allocated map[*ir.Var]bool
}

func newEffects() *effects {
	return &effects{lateVars: map[*ir.Var]bool{}, allocated: map[*ir.Var]bool{}}
}

func (fx *effects) clone() *effects {
	c := *fx
	c.late = slices.Clone(fx.late)
	return &c
}

// withEffects lowers an expression that may have effects.
func (w *rewriter) withEffects(e *spec.Expr) (val, bool) {
	w.s.fx = w.fx
	defer func() { w.s.fx = nil }()
	return w.s.value(e)
}

// let gives values names that the rest of the rule knows.
func (w *rewriter) lets(a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0]
		v, ok := w.withEffects(as.Value)
		if !ok {
			continue
		}
		if _, twice := w.s.named[name.Value]; twice {
			w.s.fail(code.Action, name.Pos, "%q has a value already", name.Value).
				WithHint("a name stands for one value: give this one another name")
			continue
		}
		if w.s.inStack(name.Value) {
			w.s.fail(code.Action, name.Pos, "%q is a header's name in program %q", name.Value, w.p.src.Name.Value).
				WithHint("give the value another name; that of a field is free, as fields are named with their header")
			continue
		}
		if v.t.Kind == ir.Uint || v.t.Kind == ir.Bool {
			out := w.p.newVar(name.Value, v.x.Type(), v.max)
			w.emitLet(&ir.Let{Var: out, Value: v.x, Pos: as.Target.Pos})
			v = val{t: v.t, x: &ir.VarRef{Var: out}, max: v.max, wraps: v.wraps, fitsIn: v.fitsIn}
		} else {
			v.field, v.portAt, v.layer = nil, nil, nil
		}
		w.s.named[name.Value] = v
	}
}

// emitLet puts a Let where its value is known.
func (w *rewriter) emitLet(l *ir.Let) {
	switch {
	case reads(l.Value, w.fx.allocated):
		w.fx.allocated[l.Var] = true
		w.fx.Lets = append(w.fx.Lets, l)
	case reads(l.Value, w.fx.lateVars):
		w.fx.lateVars[l.Var] = true
		w.fx.late = append(w.fx.late, l)
	default:
		w.guards = append(w.guards, l)
	}
}

// reads reports whether an expression reads one of some variables.
func reads(x ir.Expr, vars map[*ir.Var]bool) bool {
	for v := range ir.Reads(x) {
		if vars[v] {
			return true
		}
	}
	return false
}

// effectful makes sure that an expression with effects is in a place where it is allowed.
func (s *scope) effectful(e *spec.Expr) bool {
	if s.fx != nil {
		return true
	}
	s.fail(code.Alloc, e.Pos, "%s isn't allowed here", e.Fn.Value).
		WithHint("give its value a name in front: {let: number: \"%s(…)\"}; it may be used in let, set, push, "+
			"mark and emit, and not where it may be left out", e.Fn.Value)
	return false
}

// alloc allocates a number from a counter of a row: alloc(ROW.COUNTER), alloc(ROW.COUNTER, STEP).
func (s *scope) alloc(e *spec.Expr) (val, bool) {
	if !s.effectful(e) {
		return val{}, false
	}
	v, ok := s.value(e.Args[0])
	if !ok {
		return v, false
	}
	if !v.counter {
		s.fail(code.Type, e.Args[0].Pos, "this is %s, where a counter is wanted", v.t.What()).
			WithHint("declare the value with type \"counter\"")
		return val{}, false
	}
	d := &ir.Alloc{Var: s.p.newVar(v.member.Name, ir.UintType(64), 0), Row: v.row, Member: v.member, Step: 1,
		Pos: e.Pos}
	if len(e.Args) == 2 {
		if e.Args[1].Op != spec.OpInt || e.Args[1].Int == 0 {
			s.fail(code.Type, e.Args[1].Pos, "the step is a constant above 0")
			return val{}, false
		}
		d.Step = e.Args[1].Int
	}
	s.fx.Allocs = append(s.fx.Allocs, d)
	s.fx.allocated[d.Var] = true
	return val{t: ir.UintType(64), x: &ir.VarRef{Var: d.Var}, max: ^uint64(0), pos: e.Pos, wraps: true}, true
}

// translate finds or makes the value of a key: translate(ROW.TRANSLATION, KEY, VALUE).
func (s *scope) translate(e *spec.Expr) (val, bool) {
	if !s.effectful(e) {
		return val{}, false
	}
	table, ok1 := s.value(e.Args[0])
	outer := s.fx
	own := newEffects()
	own.lateVars = outer.lateVars
	s.fx = nil
	key, ok2 := s.integer(e.Args[1])
	s.fx = own
	value, ok3 := s.integer(e.Args[2])
	s.fx = outer
	if !ok1 || !ok2 || !ok3 {
		return val{}, false
	}
	if table.t.Kind != ir.Translation {
		s.fail(code.Type, e.Args[0].Pos, "this is %s, where a translation is wanted", table.t.What()).
			WithHint("declare the value with type \"translation\"")
		return val{}, false
	}
	if len(own.late) > 0 {
		s.fail(code.Alloc, e.Args[2].Pos, "a translation can't be made from another one")
		return val{}, false
	}
	if reads(key.x, outer.allocated) || reads(value.x, outer.allocated) {
		s.fail(code.Alloc, e.Pos, "a translation is made before numbers are allocated for the packet").
			WithHint("allocate the number inside: translate(…, …, alloc(…))")
		return val{}, false
	}
	out := s.p.newVar(table.member.Name, ir.UintType(64), 0)
	outer.late = append(outer.late, &ir.Translate{
		Var: out, Row: table.row, Member: table.member, Key: key.x, Allocs: own.Allocs, Value: value.x,
		Unfinished: s.p.punted("translating", "another processor is making the translation", e.Pos),
		Full:       s.p.punted("translations_full", "the table of translations is full", e.Pos), Pos: e.Pos,
	})
	outer.lateVars[out] = true
	return val{t: ir.UintType(64), x: &ir.VarRef{Var: out}, max: ^uint64(0), pos: e.Pos}, true
}
