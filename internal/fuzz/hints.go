package fuzz

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// hints are values that a plan compares a field with: the edges at which its behaviour changes.
type hints map[string][]uint64

// findHints collects hints from all conditions of a program, with the settings that it is loaded with.
func findHints(p *ir.Program, settings func(*ir.Setting) []byte) hints {
	h := hints{}
	lets := map[*ir.Var]ir.Expr{}
	var expr func(ir.Expr)
	field := func(e ir.Expr) string {
		if v, ok := e.(*ir.VarRef); ok && lets[v.Var] != nil {
			e = lets[v.Var]
		}
		if l, ok := e.(*ir.Load); ok {
			return l.Field
		}
		return ""
	}
	number := func(e ir.Expr) (uint64, bool) {
		switch e := e.(type) {
		case *ir.Const:
			return e.V, true
		case *ir.SettingRef:
			if e.Setting.Type.Kind == ir.Uint {
				var v uint64
				for i, b := range settings(e.Setting) {
					v |= uint64(b) << (8 * i)
				}
				return v, true
			}
		}
		return 0, false
	}
	expr = func(e ir.Expr) {
		switch e := e.(type) {
		case *ir.Bin:
			if e.Op >= ir.Eq && e.Op <= ir.Ge {
				for _, side := range [][2]ir.Expr{{e.X, e.Y}, {e.Y, e.X}} {
					if v, ok := number(side[1]); ok && field(side[0]) != "" {
						f := field(side[0])
						h[f] = append(h[f], v, v)
						if e.Op != ir.Eq {
							h[f] = append(h[f], v-1, v+1)
						}
					}
				}
			}
			expr(e.X)
			expr(e.Y)
		case *ir.Not:
			expr(e.X)
		}
	}
	var block func([]ir.Stmt)
	block = func(stmts []ir.Stmt) {
		for _, s := range stmts {
			switch s := s.(type) {
			case *ir.Let:
				lets[s.Var] = s.Value
				expr(s.Value)
			case *ir.Guard:
				expr(s.Cond)
			case *ir.If:
				expr(s.Cond)
				block(s.Then)
				block(s.Else)
			}
		}
	}
	block(p.Body)
	return h
}

// numbers are all values of the hints.
func (h hints) numbers() []uint64 {
	var all []uint64
	for _, f := range slices.Sorted(maps.Keys(h)) {
		all = append(all, h[f]...)
	}
	return all
}
