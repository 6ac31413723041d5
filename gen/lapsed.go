package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass is about programs that decide themselves what happens when the relay's lease has expired. All others pass
// packets to the stack then. One whose expressions say "lapsed" runs, and may pass packets and drop them; nothing is
// sent for a process that has ended.

const lapsedName = "lapsed"

// asks reports whether an expression of the program consists of a name, or has it as an operand.
func (p *program) asks(name string) bool {
	for e := range p.names.Spec.Exprs(p.src) {
		if e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == name {
			return true
		}
	}
	return false
}

// lapsed is true where the lease has expired.
func (s *scope) lapsed(pos diag.Pos) (val, bool) {
	if s.p.congestion() {
		s.fail(code.Lapsed, pos, "a program at %s can't decide what happens without a lease", ir.Congestion).
			WithHint("Reno's rules decide then")
		return val{}, false
	}
	return val{t: ir.BoolType, x: fold.Not(&ir.Meta{Kind: ir.LeaseValid})}, true
}

// checkLapsed reports a program that would send packets without a lease.
func (p *program) checkLapsed() {
	if !p.asks(lapsedName) {
		return
	}
	for a := range spec.Actions(p.src.Rules) {
		if a.Kind == spec.ActSend || a.Kind == spec.ActFanOut {
			p.diags.Add(code.Lapsed, a.Pos, "a program that runs without a lease can't %s packets", a.Kind).
				WithHint("its expressions say %s; rules that send belong into another program", lapsedName)
		}
	}
}
