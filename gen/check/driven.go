package check

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Driven reports what a program at XDP alone does that a driver can't do.
func Driven(p *spec.Program, left []ir.Left, diags *diag.List) {
	for _, l := range left {
		diags.Add(code.Undriven, l.Pos, "program %q runs at XDP, which doesn't do this: %s", p.Name.Value, l.What).
			WithHint("hook: [\"xdp\", \"tc/ingress\"] has it done at tc/ingress, and all else at XDP")
	}
}
