package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass computes the priority of a packet.

// asksPriority reports whether the program needs to know it.
func (p *program) asksPriority() bool {
	for a := range spec.Actions(p.src.Rules) {
		if a.Kind == spec.ActAdmit {
			return true
		}
	}
	return p.asks(priorityName)
}

const priorityName = "priority"

// findPriority computes the level of the packet: a value beyond the last one means the last one.
func (s *scope) findPriority(blk *[]ir.Stmt) {
	from := s.p.names.Spec.PriorityOf(s.p.src)
	if from == nil || !s.p.asksPriority() {
		return
	}
	levels := uint64(s.p.names.Plan.Levels)
	if levels == 0 {
		s.fail(code.Priority, from.Pos, "the spec doesn't say how many levels of priority there are").
			WithHint("declare them: priority: levels: 8")
		return
	}
	v, ok := s.integer(from)
	if !ok {
		return
	}
	x, last := v.x, fold.Num(levels-1)
	if v.max >= levels {
		raw := &ir.VarRef{Var: s.p.let(blk, "priority_value", x, v.max, from.Pos)}
		x = &ir.Pick{If: fold.Bin(ir.Lt, raw, fold.Num(levels)), Then: raw, Else: last}
	}
	if s.p.names.Spec.Priority.High {
		x = fold.Bin(ir.Sub, last, x)
	}
	level := s.p.let(blk, priorityName, x, levels-1, from.Pos)
	s.level = &val{t: ir.UintType(64), x: &ir.VarRef{Var: level}, max: levels - 1}
}

// priority is the level of the packet.
func (s *scope) priority(pos diag.Pos) (val, bool) {
	if s.level == nil {
		if s.p.names.Spec.PriorityOf(s.p.src) == nil {
			s.fail(code.Priority, pos, "the spec doesn't say where the priority is").
				WithHint("declare it: priority: {levels: 8, from: \"…\"}")
		} else if s.p.names.Plan.Levels > 0 && s.mentions(s.p.names.Spec.PriorityOf(s.p.src), s.p.src.Lookups) {
			s.fail(code.Priority, pos, "the priority is known after the program's lookups only")
		}
		return val{}, false
	}
	return *s.level, true
}
