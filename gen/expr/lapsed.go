package expr

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass is about programs that decide themselves what happens when the relay's lease has expired. All others pass
// packets to the stack then. One whose expressions say "lapsed" runs, and may pass packets and drop them; nothing is
// sent for a process that has ended.

// condition reads a condition of the relay that an expression asks for.
func (s *Scope) condition(x ir.Expr, word string, pos diag.Pos) (Value, bool) {
	if word == spec.Lapsed && s.Program.Congestion() {
		s.Fail(code.Lapsed, pos, "a program at %s can't decide what happens without a lease", ir.Congestion).
			WithHint("Reno's rules decide then")
		return Value{}, false
	}
	return Value{Type: ir.BoolType, X: x}, true
}

// asksPriority reports whether the program needs to know it.
func asksPriority(p *draft.Program) bool {
	for a := range spec.Actions(p.Src.Rules) {
		if a.Kind == spec.ActAdmit {
			return true
		}
	}
	return p.Asks(priorityName)
}
