package fuzz

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Fault is what the model finds wrong with a plan.
type Fault struct {
	Err    error  // a *sim.Contradiction, mostly
	Packet []byte // the frame that shows it
}

// Rehearse runs a plan in the model alone, on random packets and random state, the same ones each time. It stops after so many
// packets, or so much time. The fault is nil where none is found.
func Rehearse(ctx context.Context, s *spec.Spec, plan *ir.Plan, packets int, most time.Duration) (*Fault, error) {
	r, err := Run(ctx, Config{Spec: s, Plan: plan, Seed: 1, Packets: packets, Duration: most, Quick: true, Decode: math.MaxInt})
	if err != nil || r.Difference == nil {
		return nil, err
	}
	d := r.Difference
	fault := &Fault{Err: d.Err}
	if fault.Err == nil {
		fault.Err = errors.New(d.Text)
	}
	if n := len(d.last.packet.Data); n > 0 {
		fault.Packet = d.last.packet.Data[:n:n]
	}
	if c := (*sim.Contradiction)(nil); !errors.As(fault.Err, &c) {
		fault.Err = &sim.Contradiction{Program: d.last.program, Err: fault.Err}
	}
	return fault, nil
}
