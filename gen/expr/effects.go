package expr

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

// Effects are a rule's, while it is compiled.
type Effects struct {
	ir.Effects
	Late      []ir.Stmt // after all checks that don't depend on what they find
	LateVars  map[*ir.Var]bool
	Allocated map[*ir.Var]bool
}

// NewEffects returns those of a rule that has none yet.
func NewEffects() *Effects {
	return &Effects{LateVars: map[*ir.Var]bool{}, Allocated: map[*ir.Var]bool{}}
}

// Clone copies effects for another branch.
func (fx *Effects) Clone() *Effects {
	c := *fx
	c.Late = slices.Clone(fx.Late)
	return &c
}

// Reads reports whether an expression reads one of some variables.
func Reads(x ir.Expr, vars map[*ir.Var]bool) bool {
	for v := range ir.Reads(x) {
		if vars[v] {
			return true
		}
	}
	return false
}

// effectful makes sure that an expression with effects is in a place where it is allowed.
func (s *Scope) effectful(e *spec.Expr) bool {
	if s.Fx != nil {
		return true
	}
	s.Fail(code.Alloc, e.Pos, "%s isn't allowed here", e.Fn.Value).
		WithHint("give its value a name in front: {let: number: \"%s(…)\"}; it may be used in let, set, push, "+
			"mark and emit, and not where it may be left out", e.Fn.Value)
	return false
}

// alloc allocates a number from a counter of a row: alloc(ROW.COUNTER), alloc(ROW.COUNTER, STEP).
func (s *Scope) alloc(e *spec.Expr) (Value, bool) {
	if !s.effectful(e) {
		return Value{}, false
	}
	v, ok := s.Value(e.Args[0])
	if !ok {
		return v, false
	}
	if !v.Counter {
		s.Fail(code.Type, e.Args[0].Pos, "this is %s, where a counter is wanted", v.Type.What()).
			WithHint("declare the value with type \"counter\"")
		return Value{}, false
	}
	d := &ir.Alloc{Var: s.Program.NewVar(v.Member.Name, ir.UintType(64), 0), Row: v.Row, Member: v.Member, Step: 1,
		Pos: e.Pos}
	if len(e.Args) == 2 {
		if e.Args[1].Op != spec.OpInt || e.Args[1].Int == 0 {
			s.Fail(code.Type, e.Args[1].Pos, "the step is a constant above 0")
			return Value{}, false
		}
		d.Step = e.Args[1].Int
	}
	s.Fx.Allocs = append(s.Fx.Allocs, d)
	s.Fx.Allocated[d.Var] = true
	return Value{Type: ir.UintType(64), X: &ir.VarRef{Var: d.Var}, Max: ^uint64(0), Pos: e.Pos, Wraps: true}, true
}

// translate finds or makes the value of a key: translate(ROW.TRANSLATION, KEY, VALUE).
func (s *Scope) translate(e *spec.Expr) (Value, bool) {
	if !s.effectful(e) {
		return Value{}, false
	}
	table, ok1 := s.Value(e.Args[0])
	outer := s.Fx
	own := NewEffects()
	own.LateVars = outer.LateVars
	s.Fx = nil
	key, ok2 := s.Integer(e.Args[1])
	s.Fx = own
	value, ok3 := s.Integer(e.Args[2])
	s.Fx = outer
	if !ok1 || !ok2 || !ok3 {
		return Value{}, false
	}
	if table.Type.Kind != ir.Translation {
		s.Fail(code.Type, e.Args[0].Pos, "this is %s, where a translation is wanted", table.Type.What()).
			WithHint("declare the value with type \"translation\"")
		return Value{}, false
	}
	if len(own.Late) > 0 {
		s.Fail(code.Alloc, e.Args[2].Pos, "a translation can't be made from another one")
		return Value{}, false
	}
	if Reads(key.X, outer.Allocated) || Reads(value.X, outer.Allocated) {
		s.Fail(code.Alloc, e.Pos, "a translation is made before numbers are allocated for the packet").
			WithHint("allocate the number inside: translate(…, …, alloc(…))")
		return Value{}, false
	}
	out := s.Program.NewVar(table.Member.Name, ir.UintType(64), 0)
	outer.Late = append(outer.Late, &ir.Translate{
		Var: out, Row: table.Row, Member: table.Member, Key: key.X, Allocs: own.Allocs, Value: value.X,
		Unfinished: s.Program.Punted("translating", "another processor is making the translation", e.Pos),
		Full:       s.Program.Punted("translations_full", "the table of translations is full", e.Pos), Pos: e.Pos,
	})
	outer.LateVars[out] = true
	return Value{Type: ir.UintType(64), X: &ir.VarRef{Var: out}, Max: ^uint64(0), Pos: e.Pos}, true
}
