package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives values names.

// withEffects lowers an expression that may have effects.
func (w *rewriter) withEffects(e *spec.Expr) (expr.Value, bool) {
	w.s.Fx = w.fx
	defer func() { w.s.Fx = nil }()
	return w.s.Value(e)
}

// let gives values names that the rest of the rule knows.
func (w *rewriter) lets(a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0]
		v, ok := w.withEffects(as.Value)
		if !ok {
			continue
		}
		if _, twice := w.s.Named[name.Value]; twice {
			w.s.Fail(code.Action, name.Pos, "%q has a value already", name.Value).
				WithHint("a name stands for one value: give this one another name")
			continue
		}
		if w.s.InStack(name.Value) {
			w.s.Fail(code.Action, name.Pos, "%q is a header's name in program %q", name.Value, w.p.Src.Name.Value).
				WithHint("give the value another name; that of a field is free, as fields are named with their header")
			continue
		}
		if v.Type.Kind == ir.Uint || v.Type.Kind == ir.Bool {
			out := w.p.NewVar(name.Value, v.X.Type(), v.Max)
			w.emitLet(&ir.Let{Var: out, Value: v.X, Pos: as.Target.Pos})
			v = expr.Value{Type: v.Type, X: &ir.VarRef{Var: out}, Max: v.Max, Wraps: v.Wraps, FitsIn: v.FitsIn}
		} else {
			v.Field, v.PortAt, v.Layer = nil, nil, nil
		}
		w.s.Named[name.Value] = v
	}
}

// emitLet puts a Let where its value is known.
func (w *rewriter) emitLet(l *ir.Let) {
	switch {
	case expr.Reads(l.Value, w.fx.Allocated):
		w.fx.Allocated[l.Var] = true
		w.fx.Lets = append(w.fx.Lets, l)
	case expr.Reads(l.Value, w.fx.LateVars):
		w.fx.LateVars[l.Var] = true
		w.fx.Late = append(w.fx.Late, l)
	default:
		w.guards = append(w.guards, l)
	}
}
