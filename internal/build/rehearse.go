package build

import (
	"context"
	"encoding/hex"
	"errors"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// rehearsalPackets take a part of the time that clang takes, which runs meanwhile. It is a number of packets, not a
// time: how fast a machine is doesn't change what is found.
const rehearsalPackets = 2048

// Rehearse has the model run a plan on random packets, and reports where it contradicts itself: such a plan is never
// written.
func Rehearse(ctx context.Context, s *spec.Spec, plan *ir.Plan) (*diag.List, error) {
	list := &diag.List{}
	if len(plan.Programs) == 0 {
		return list, nil
	}
	fault, err := sample.Rehearse(ctx, s, plan, rehearsalPackets)
	if err != nil || fault == nil {
		return list, err
	}
	pos := plan.Pos
	var c *sim.Contradiction
	if errors.As(fault.Err, &c) {
		for _, p := range plan.Programs {
			if p.Name == c.Program {
				pos = p.Pos
			}
		}
		if c.Pos.File == pos.File { // not a standard header's
			pos = c.Pos
		}
	}
	report(list, pos, fault.Err, fault.Packet)
	return list, nil
}

// Unwritable reports a plan that a back end can't write.
func Unwritable(plan *ir.Plan, err error) *diag.List {
	list := &diag.List{}
	report(list, plan.Pos, err, nil)
	return list
}

func report(list *diag.List, pos diag.Pos, err error, packet []byte) {
	d := list.Add(codeContradiction, pos, "the plan for this is wrong, and nothing is written: %v", err)
	if packet == nil {
		d.WithHint("this is a fault of fastrelay-gen, not of your spec: please report it with the spec and what " +
			"`fastrelay-gen version` prints")
		return
	}
	d.WithHint("this is a fault of fastrelay-gen, not of your spec: please report it with the spec, what "+
		"`fastrelay-gen version` prints, and the packet %s", hex.EncodeToString(packet))
}
