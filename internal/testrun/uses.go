package testrun

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Copy is a packet that a program sent in addition to the one that it was run on.
type Copy struct {
	Ifindex  uint32
	Mark     uint32
	Priority uint32
	Data     []byte
}

// UsesRoutes reports whether any program of a plan looks routes up in the kernel.
func UsesRoutes(plan *ir.Plan) bool {
	for s := range ir.AllStmts(plan) {
		if hop, ok := s.(*ir.CheckHop); ok && hop.Hop.Row == nil {
			return true
		}
	}
	return false
}

// UsesCopies reports whether any program of a plan sends copies.
func UsesCopies(plan *ir.Plan) bool { return len(plan.Groups) > 0 }
