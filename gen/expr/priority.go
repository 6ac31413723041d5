package expr

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass computes the priority of a packet.

const priorityName = "priority"

// FindPriority computes the level of the packet: a value beyond the last one means the last one.
func (s *Scope) FindPriority(blk *[]ir.Stmt) {
	from := s.Program.Names.Spec.PriorityOf(s.Program.Src)
	if from == nil || !asksPriority(s.Program) {
		return
	}
	levels := uint64(s.Program.Names.Plan.Levels)
	if levels == 0 {
		s.Fail(code.Priority, from.Pos, "the spec doesn't say how many levels of priority there are").
			WithHint("declare them: priority: levels: 8")
		return
	}
	v, ok := s.Integer(from)
	if !ok {
		return
	}
	x, last := v.X, fold.Num(levels-1)
	if v.Max >= levels {
		raw := &ir.VarRef{Var: s.Program.Let(blk, "priority_value", x, v.Max, from.Pos)}
		x = &ir.Pick{If: fold.Bin(ir.Lt, raw, fold.Num(levels)), Then: raw, Else: last}
	}
	if s.Program.Names.Spec.Priority.High {
		x = fold.Bin(ir.Sub, last, x)
	}
	level := s.Program.Let(blk, priorityName, x, levels-1, from.Pos)
	s.Level = &Value{Type: ir.UintType(64), X: &ir.VarRef{Var: level}, Max: levels - 1}
}

// priority is the level of the packet.
func (s *Scope) priority(pos diag.Pos) (Value, bool) {
	if s.Level == nil {
		if s.Program.Names.Spec.PriorityOf(s.Program.Src) == nil {
			s.Fail(code.Priority, pos, "the spec doesn't say where the priority is").
				WithHint("declare it: priority: {levels: 8, from: \"…\"}")
		} else if s.Program.Names.Plan.Levels > 0 && s.Mentions(s.Program.Names.Spec.PriorityOf(s.Program.Src),
			s.Program.Src.Lookups) {
			s.Fail(code.Priority, pos, "the priority is known after the program's lookups only")
		}
		return Value{}, false
	}
	return *s.Level, true
}

// Mentions reports whether an expression reads a row that one of the lookups finds.
func (s *Scope) Mentions(e *spec.Expr, ls []*spec.Lookup) bool {
	if e.Op == spec.OpName {
		for _, l := range ls {
			if l.Var.Value == e.Path[0].Value {
				return true
			}
		}
		if from := s.Program.Names.Spec.PriorityOf(s.Program.Src); from != nil && from != e &&
			e.Path[0].Value == priorityName &&
			len(e.Path) == 1 &&
			s.Rows[priorityName] == nil {
			return s.Mentions(from, ls)
		}
	}
	for _, a := range e.Args {
		if s.Mentions(a, ls) {
			return true
		}
	}
	return false
}
