package gen

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what an expression may do besides reading the packet: names for values, numbers drawn from counters,
// translations, the packet's priority, elements of lists.
//
// A value can be known at three times: while the packet is looked at, after every check (a translation may make a row), or when the
// packet leaves for certain (a number that was drawn is gone). What depends on a value comes no earlier than the value.

// effects are a rule's, while it is compiled.
type effects struct {
	ir.Effects
	late      []ir.Stmt // behind all checks that don't depend on what they find
	lateVars  map[*ir.Var]bool
	drawnVars map[*ir.Var]bool
}

func newEffects() *effects {
	return &effects{lateVars: map[*ir.Var]bool{}, drawnVars: map[*ir.Var]bool{}}
}

func (fx *effects) clone() *effects {
	c := *fx
	c.late = slices.Clone(fx.late)
	return &c
}

// drawing lowers an expression that may have effects.
func (w *rewriter) drawing(e *spec.Expr) (val, bool) {
	w.scope.fx = w.fx
	defer func() { w.scope.fx = nil }()
	return w.value(e)
}

// let gives values names that the rest of the rule knows.
func (w *rewriter) lets(a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0]
		v, ok := w.drawing(as.Value)
		if !ok {
			continue
		}
		if _, twice := w.named[name.Value]; twice {
			w.fail(codeAction, name.Pos, "%q has a value already", name.Value)
			continue
		}
		if v.t.Kind == ir.Uint || v.t.Kind == ir.Bool {
			out := w.newVar(name.Value, v.x.Type(), v.max)
			w.emitLet(&ir.Let{Var: out, Value: v.x, Pos: as.Target.Pos})
			v = val{t: v.t, x: &ir.VarRef{Var: out}, max: v.max, wraps: v.wraps}
		} else {
			v.field, v.portAt, v.layer = nil, nil, nil
		}
		w.named[name.Value] = v
	}
}

// emitLet puts a Let where its value is known.
func (w *rewriter) emitLet(l *ir.Let) {
	switch {
	case reads(l.Value, w.fx.drawnVars):
		w.fx.drawnVars[l.Var] = true
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

// effectful makes sure that an expression with effects stands where it may.
func (s *scope) effectful(e *spec.Expr) bool {
	if s.fx != nil {
		return true
	}
	s.fail(codeDraw, e.Pos, "%s can't stand here", e.Fn.Value).
		WithHint("give its value a name in front: {let: number: \"%s(…)\"}; it stands in values of let, set, push, mark and emit, and not where it may be left out", e.Fn.Value)
	return false
}

// alloc draws a number from a counter of a row: alloc(ROW.COUNTER), alloc(ROW.COUNTER, STEP).
func (s *scope) alloc(e *spec.Expr) (val, bool) {
	if len(e.Args) < 1 || len(e.Args) > 2 {
		s.fail(codeType, e.Pos, "alloc takes a counter and a step, or a counter")
		return val{}, false
	}
	if !s.effectful(e) {
		return val{}, false
	}
	v, ok := s.value(e.Args[0])
	if !ok {
		return v, false
	}
	if !v.counter {
		s.fail(codeType, e.Args[0].Pos, "this is %s, where a counter is wanted", typeName(v.t)).WithHint("declare the value with type \"counter\"")
		return val{}, false
	}
	d := &ir.Draw{Var: s.newVar(v.member.Name, ir.UintType(64), 0), Row: v.row, Member: v.member, Step: 1, Pos: e.Pos}
	if len(e.Args) == 2 {
		if e.Args[1].Op != spec.OpInt || e.Args[1].Int == 0 {
			s.fail(codeType, e.Args[1].Pos, "the step is a constant above 0")
			return val{}, false
		}
		d.Step = e.Args[1].Int
	}
	s.fx.Draws = append(s.fx.Draws, d)
	s.fx.drawnVars[d.Var] = true
	return val{t: ir.UintType(64), x: &ir.VarRef{Var: d.Var}, max: ^uint64(0), pos: e.Pos, wraps: true}, true
}

// translate finds or makes the value of a key: translate(ROW.TRANSLATION, KEY, VALUE).
func (s *scope) translate(e *spec.Expr) (val, bool) {
	if len(e.Args) != 3 {
		s.fail(codeType, e.Pos, "translate takes a translation, a key and the value of a key that is new")
		return val{}, false
	}
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
		s.fail(codeType, e.Args[0].Pos, "this is %s, where a translation is wanted", typeName(table.t)).WithHint("declare the value with type \"translation\"")
		return val{}, false
	}
	if len(own.late) > 0 {
		s.fail(codeDraw, e.Args[2].Pos, "a translation can't be made from another one")
		return val{}, false
	}
	if reads(key.x, outer.drawnVars) || reads(value.x, outer.drawnVars) {
		s.fail(codeDraw, e.Pos, "a translation is made before numbers are drawn for the packet").WithHint("draw the number inside: translate(…, …, alloc(…))")
		return val{}, false
	}
	out := s.newVar(table.member.Name, ir.UintType(64), 0)
	outer.late = append(outer.late, &ir.Translate{
		Var: out, Row: table.row, Member: table.member, Key: key.x, Draws: own.Draws, Value: value.x,
		Pending: s.went("translating", "another processor is making the translation", e.Pos),
		Full:    s.went("translations_full", "the table of translations is full", e.Pos), Pos: e.Pos,
	})
	outer.lateVars[out] = true
	return val{t: ir.UintType(64), x: &ir.VarRef{Var: out}, max: ^uint64(0), pos: e.Pos}, true
}

// pick is pick(COND, X, Y): X where the condition holds, else Y. What is known of rows where it holds is known in X.
func (s *scope) pick(e *spec.Expr) (val, bool) {
	if len(e.Args) != 3 {
		s.fail(codeType, e.Pos, "pick takes a condition, the value where it holds, and the value where it doesn't")
		return val{}, false
	}
	in := *s
	in.fx = nil
	cond, ok := in.cond(e.Args[0])
	if !ok {
		return val{}, false
	}
	side := func(i int) (val, bool) {
		branch := in
		branch.facts = map[*ir.Row]bool{}
		for r := range s.facts {
			branch.facts[r] = true
		}
		known(e.Args[0], s, i == 1, branch.facts)
		v, ok := branch.value(e.Args[i])
		if ok && v.t.Kind != ir.Uint && v.t.Kind != ir.Bool {
			s.fail(codeType, e.Args[i].Pos, "this is %s, where an integer or a condition is wanted", typeName(v.t))
			ok = false
		}
		return v, ok
	}
	if c, fixed := constant(cond); fixed { // the other side may speak of headers that are not here
		if c != 0 {
			return side(1)
		}
		return side(2)
	}
	x, ok1 := side(1)
	y, ok2 := side(2)
	if !ok1 || !ok2 {
		return val{}, false
	}
	if x.t.Kind != y.t.Kind {
		s.fail(codeType, e.Pos, "%s and %s can't be picked from", typeName(x.t), typeName(y.t))
		return val{}, false
	}
	t := x.t
	if t.Kind == ir.Uint {
		t = ir.UintType(64)
	}
	return val{t: t, x: &ir.Pick{If: cond, Then: x.x, Else: y.x}, max: max(x.max, y.max), pos: e.Pos, wraps: x.wraps || y.wraps}, true
}

// list is a list of elements that was searched for an identifier.
type list struct {
	found, value *ir.Var
}

// searches emits the search of every list for every identifier that the program asks for.
func (s *scope) searches(blk *[]ir.Stmt) {
	s.eachExpr(func(e *spec.Expr) {
		if e.Op != spec.OpCall || e.Fn.Value != "has" && e.Fn.Value != "element" || len(e.Args) < 2 {
			return
		}
		pl := s.elements(e.Args[0])
		key := searchKey(e)
		if _, done := s.lists[key]; done || pl == nil {
			return
		}
		quiet := *s
		quiet.quiet = true // what is wrong with it is reported where it is used
		id, ok := quiet.integer(e.Args[1])
		if !ok {
			return
		}
		name := pl.parent.entry + "_" + pl.f.Name.Value
		l := &list{found: s.newVar(name+"_found", ir.BoolType, 1), value: s.newVar(name+"_element", ir.UintType(64), 0)}
		find := &ir.FindElement{
			Found: l.found, Value: l.value, Len: s.newVar(name+"_len", ir.UintType(64), uint64(pl.f.Max)),
			At: pl.off, Size: pl.size, SizeMax: pl.f.Max, ID: id.x, Pos: e.Pos,
		}
		inside := &scope{program: s.program, path: s.upTo(pl.parent), self: pl.parent}
		for _, el := range pl.f.Elements {
			form := ir.ElementForm{IDBits: el.ID, LenBits: el.Len, Bias: el.Bias, Pad: el.Pad, Stop: el.Stop}
			if el.When != nil {
				if form.When, ok = inside.cond(el.When); !ok {
					return
				}
			}
			find.Forms = append(find.Forms, form)
		}
		s.lists[key] = l
		emit(blk, find)
	})
}

func searchKey(e *spec.Expr) string { return exprKey(e.Args[0]) + " " + exprKey(e.Args[1]) }

// exprKey is the same for expressions that say the same.
func exprKey(e *spec.Expr) string {
	key := fmt.Sprint(e.Op, e.Int, e.Fn.Value)
	for _, n := range e.Path {
		key += "." + n.Value
	}
	for _, a := range e.Args {
		key += "(" + exprKey(a) + ")"
	}
	return key
}

// elements returns the field with a list of elements that an expression names, where this path has it.
func (s *scope) elements(e *spec.Expr) *fieldRef {
	if e.Op != spec.OpName || len(e.Path) != 2 {
		return nil
	}
	in, _ := s.find(e.Path[0].Value)
	if in == nil {
		return nil
	}
	pl := in.fields[e.Path[1].Value]
	if pl == nil || len(pl.f.Elements) == 0 {
		return nil
	}
	return pl
}

// element is has(HEADER.LIST, ID) or element(HEADER.LIST, ID, N).
func (s *scope) element(e *spec.Expr) (val, bool) {
	want := 2
	if e.Fn.Value == "element" {
		want = 3
	}
	if len(e.Args) != want {
		s.fail(codeType, e.Pos, "%s takes %d arguments, not %d", e.Fn.Value, want, len(e.Args))
		return val{}, false
	}
	n := uint64(0)
	if want == 3 {
		if n = e.Args[2].Int; e.Args[2].Op != spec.OpInt || n > 7 {
			s.fail(codeElements, e.Args[2].Pos, "which byte of an element is a constant from 0 to 7")
			return val{}, false
		}
	}
	l := s.lists[searchKey(e)]
	if l == nil {
		if e.Args[0].Op == spec.OpName && len(e.Args[0].Path) == 2 {
			if in, known := s.find(e.Args[0].Path[0].Value); in == nil && known { // not on this path
				if want == 2 {
					return val{t: ir.BoolType, x: boolean(false), pos: e.Pos}, true
				}
				return val{t: ir.UintType(8), x: num(0), max: 255, pos: e.Pos}, true
			}
		}
		if s.elements(e.Args[0]) == nil {
			s.fail(codeElements, e.Args[0].Pos, "this is no field with elements")
		} else if _, ok := s.integer(e.Args[1]); ok {
			s.fail(codeElements, e.Args[1].Pos, "the identifier can't come from a table or a name: lists are searched before tables")
		}
		return val{}, false
	}
	if want == 2 {
		return val{t: ir.BoolType, x: &ir.VarRef{Var: l.found}, pos: e.Pos}, true
	}
	x := bin(ir.And, bin(ir.Shr, &ir.VarRef{Var: l.value}, num(56-8*n)), num(0xFF))
	return val{t: ir.UintType(8), x: x, max: 255, pos: e.Pos}, true
}

// priorityFrom returns the expression that says a packet's priority in this program, or nil.
func (p *program) priorityFrom() *spec.Expr {
	switch {
	case p.src.Priority != nil:
		return p.src.Priority.From
	case p.spec.Priority != nil:
		return p.spec.Priority.From
	}
	return nil
}

// asksPriority reports whether the program needs to know it.
func (p *program) asksPriority() bool {
	asks := false
	p.eachExpr(func(e *spec.Expr) {
		asks = asks || e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == priorityName
	})
	eachAction(p.src.Rules, func(a *spec.Action) { asks = asks || a.Kind == spec.ActAdmit })
	return asks
}

const priorityName = "priority"

// findPriority computes the level of the packet: a value beyond the last one means the last one.
func (s *scope) findPriority(blk *[]ir.Stmt) {
	from := s.priorityFrom()
	if from == nil || !s.asksPriority() {
		return
	}
	levels := uint64(s.plan.Levels)
	if levels == 0 {
		s.fail(codePriority, from.Pos, "the spec doesn't say how many levels of priority there are").WithHint("declare them: priority: levels: 8")
		return
	}
	v, ok := s.integer(from)
	if !ok {
		return
	}
	x, last := v.x, num(levels-1)
	if v.max >= levels {
		raw := &ir.VarRef{Var: s.let(blk, "priority_value", x, v.max, from.Pos)}
		x = &ir.Pick{If: bin(ir.Lt, raw, num(levels)), Then: raw, Else: last}
	}
	if s.spec.Priority.High {
		x = bin(ir.Sub, last, x)
	}
	level := s.let(blk, priorityName, x, levels-1, from.Pos)
	s.level = &val{t: ir.UintType(64), x: &ir.VarRef{Var: level}, max: levels - 1}
}

// priority is the level of the packet.
func (s *scope) priority(pos diag.Pos) (val, bool) {
	if s.level == nil {
		if s.priorityFrom() == nil {
			s.fail(codePriority, pos, "the spec doesn't say where the priority stands").WithHint("declare it: priority: {levels: 8, from: \"…\"}")
		} else if s.plan.Levels > 0 && s.mentions(s.priorityFrom(), s.src.Lookups) {
			s.fail(codePriority, pos, "the priority is known behind the program's lookups only")
		}
		return val{}, false
	}
	return *s.level, true
}

// eachAction calls f for every action, those of fan-outs included.
func eachAction(rules []*spec.Rule, f func(*spec.Action)) {
	for _, r := range rules {
		for _, a := range r.Do {
			f(a)
			if a.FanOut != nil {
				eachAction(a.FanOut.Rules, f)
			}
		}
	}
}

// eachIn calls f for expressions, and all in them.
func eachIn(f func(*spec.Expr), es ...*spec.Expr) {
	for _, e := range es {
		if e != nil {
			f(e)
			eachIn(f, e.Args...)
		}
	}
}

// eachExpr calls f for every expression of a program, and all in them.
func (p *program) eachExpr(f func(*spec.Expr)) {
	all := func(es ...*spec.Expr) { eachIn(f, es...) }
	lookups := func(ls []*spec.Lookup) {
		for _, l := range ls {
			all(l.Key...)
		}
	}
	var rules func(rs []*spec.Rule)
	rules = func(rs []*spec.Rule) {
		for _, r := range rs {
			all(r.When)
			lookups(r.Lookups)
		}
	}
	all(p.priorityFrom(), p.src.When)
	lookups(p.src.Lookups)
	rules(p.src.Rules)
	eachAction(p.src.Rules, func(a *spec.Action) {
		for _, as := range a.Set {
			all(as.Value)
		}
		all(a.From, a.To, a.Via, a.By, a.Credit, a.Cost, a.Floor)
		all(a.Key...)
		all(a.Value...)
		if a.FanOut != nil {
			all(a.FanOut.Key...)
			rules(a.FanOut.Rules)
		}
	})
}
