package spectest

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Packet is the packet of a test, as it comes to the program.
type Packet struct {
	Test    *spec.Test
	Program *ir.Program
	Packet  sim.Packet
}

// Packets returns the packet of each test of a spec, in order, and the mistakes in the tests.
func Packets(s *spec.Spec, plan *ir.Plan) ([]Packet, *diag.List) {
	tests, diags := prepare(s, plan)
	var out []Packet
	for _, t := range tests {
		out = append(out, Packet{t.src, t.program, t.packet})
	}
	return out, diags
}
