package rules

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives values names.

// lets gives values names that the rest of the rule knows.
func lets(w *edit.Packet, a *spec.Action) {
	for _, as := range a.Set {
		name := as.Target.Path[0]
		v, ok := w.WithEffects(as.Value)
		if !ok {
			continue
		}
		if _, twice := w.Scope.Named[name.Value]; twice {
			w.Scope.Fail(code.Action, name.Pos, "%q has a value already", name.Value).
				WithHint("a name stands for one value: give this one another name")
			continue
		}
		if w.Scope.InStack(name.Value) {
			w.Scope.Fail(code.Action, name.Pos, "%q is a header's name in program %q", name.Value,
				w.Program.Src.Name.Value).
				WithHint("give the value another name; that of a field is free, as fields are named with their header")
			continue
		}
		if v.Type.Kind == ir.Uint || v.Type.Kind == ir.Bool {
			out := w.Program.NewVar(name.Value, v.X.Type(), v.Max)
			w.EmitLet(&ir.Let{Var: out, Value: v.X, Pos: as.Target.Pos})
			v = expr.Value{Type: v.Type, X: &ir.VarRef{Var: out}, Max: v.Max, Wraps: v.Wraps, FitsIn: v.FitsIn}
		} else {
			v.Field, v.PortAt, v.Layer = nil, nil, nil
		}
		w.Scope.Named[name.Value] = v
	}
}
