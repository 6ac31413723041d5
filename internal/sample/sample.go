package sample

import (
	"context"
	"errors"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Clock is the time of a model that runs alone.
const Clock = 1000 * second

// How a run is divided.
const (
	RoundPackets  = 256 // packets on one state
	FramePackets  = 16  // packets made of one frame
	FittedPackets = 8   // likewise, of one that the state was made for
	FreshPackets  = 4   // likewise, if the program learns from each packet
	SettingRounds = 8   // rounds with one choice of settings
)

// Few is a plan with less room for state: most slots and counters are never used, and copying them takes time.
func Few(plan *ir.Plan) *ir.Plan {
	few := *plan
	few.Slots, few.Shared, few.Credits = min(plan.Slots, 64), min(plan.Shared, 64), min(plan.Credits, someCredit)
	few.Translations = min(plan.Translations, someRows)
	ring := ringSize
	for _, e := range plan.Events {
		for ring < someRecords*e.Fields.Size {
			ring *= 2
		}
	}
	few.Ring = min(plan.Ring, ring)
	return &few
}

// someRecords is how many of the largest records a ring holds, so that there are records, and it fills up as well.
const someRecords = 4

// FirstBucket is the first credit of State's that refills.
func FirstBucket(plan *ir.Plan) int { return findCredits(plan).split }

// Generators makes a generator for each program of a plan that is loaded with settings, and has the source know what
// the programs compare fields with.
func (s *Source) Generators(sp *spec.Spec, plan *ir.Plan, hs *packet.Headers,
	settings map[string][]byte) (all []*Generator) {
	value := func(s *ir.Setting) []byte {
		if v, ok := settings[s.Name]; ok {
			return v
		}
		return s.Default
	}
	s.known, s.near = nil, nil
	first := s.branches == nil
	if first {
		s.branches = map[ir.Stmt]*branches{}
	}
	for _, p := range plan.Programs {
		if first {
			weigh(p.Body, 0, s.branches)
		}
		i := slices.IndexFunc(sp.Programs, func(sp *spec.Program) bool { return sp.Name.Value == p.Name })
		h := findHints(p, value)
		s.known = append(s.known, h.numbers()...)
		s.near = append(s.near, h.addresses()...)
		all = append(all, &Generator{plan: plan, Program: sp.Programs[i], Headers: hs, hints: h})
	}
	for _, g := range all {
		g.Source = *s
	}
	return all
}

// Fault is what the model finds wrong with a plan.
type Fault struct {
	Err    error  // a *sim.Contradiction
	Packet []byte // the frame that shows it
}

// Rehearse runs a plan in the model alone, on random packets and random state, the same ones each time. It stops after
// so many packets, or when ctx ends. The fault is nil if none is found.
func Rehearse(ctx context.Context, s *spec.Spec, plan *ir.Plan, packets int) (*Fault, error) {
	r := &rehearsal{spec: s, plan: plan, few: Few(plan), src: NewSource(1), headers: packet.NewHeaders(s)}
	for round := 0; r.packets < packets && ctx.Err() == nil; round++ {
		if round%SettingRounds == 0 {
			if err := r.load(round / SettingRounds); err != nil {
				return nil, err
			}
		}
		if fault := r.round(ctx, packets); fault != nil {
			return fault, nil
		}
	}
	return nil, nil
}

type rehearsal struct {
	spec       *spec.Spec
	plan, few  *ir.Plan
	src        Source
	headers    *packet.Headers
	model      *sim.Relay
	probe      *sim.Relay // for trials
	generators []*Generator
	packets    int
}

// load begins with the nth choice of settings; the first ones are the defaults if all have one.
func (r *rehearsal) load(n int) error {
	if n > 0 && len(r.plan.Settings) == 0 {
		return nil
	}
	settings := r.src.Settings(r.plan, n)
	if n == 0 && !slices.ContainsFunc(r.plan.Settings, func(s *ir.Setting) bool { return s.Default == nil }) {
		settings = nil
	}
	for _, to := range []**sim.Relay{&r.model, &r.probe} {
		relay, err := sim.New(r.few, settings)
		if err != nil {
			return err
		}
		relay.World.Refuses, relay.World.Clock = sim.Refuses, Clock
		*to = relay
	}
	r.generators = r.src.Generators(r.spec, r.plan, r.headers, settings)
	return nil
}

// round runs packets on one random state.
func (r *rehearsal) round(ctx context.Context, most int) *Fault {
	fitted := r.src.State(r.few, r.model, r.generators...)
	r.probe.CopyState(r.model)
	var frame *packet.Frame
	var g *Generator
	left := 0 // packets that are still made of the frame
	for n := 0; n < RoundPackets && r.packets < most && (n%64 != 0 || ctx.Err() == nil); n++ {
		if left--; left <= 0 {
			if n := len(fitted); n > 0 && !r.src.One(3) {
				g, frame, fitted = fitted[n-1].Generator, fitted[n-1].Frame, fitted[:n-1]
				left = FittedPackets
			} else {
				g = Pick(r.src, r.generators)
				frame, left = r.frame(g), FramePackets
			}
			if g.Does(spec.ActLearn) {
				left = FreshPackets
			}
		}
		p := g.Packet(frame)
		res, fault := r.try(g, p)
		if fault != nil {
			return fault
		}
		if res.Verdict != sim.VerdictSent || !r.src.One(32) {
			continue
		}
		if data := g.AtBound(frame, &res); data != nil {
			if _, fault := r.try(g, sim.Packet{Data: data}); fault != nil {
				return fault
			}
		}
	}
	return nil
}

// frame makes a frame for a program: most packets should come further than the first lookup.
func (r *rehearsal) frame(g *Generator) *packet.Frame {
	frame := g.Frame(r.model)
	for range 16 {
		res, err := r.probe.Run(g.Program.Name.Value, sim.Packet{
			Data: frame.Data, Link: sim.LinkType(frame.Data, packet.DefaultDestination),
		})
		if err != nil || g.Arrives(res) || r.src.One(12) {
			break
		}
		frame = g.Frame(r.model)
	}
	return frame
}

// try runs one packet.
func (r *rehearsal) try(g *Generator, p sim.Packet) (sim.Result, *Fault) {
	p.Link = sim.LinkType(p.Data, packet.DefaultDestination)
	r.packets++
	r.model.RingUsed = 0
	program, text := g.Program.Name.Value, ""
	res, err := r.model.Run(program, p)
	if err == nil {
		whole := res.Verdict == sim.VerdictPunt || res.Verdict == sim.VerdictDrop
		if whole && !slices.Equal(res.Packet.Data, p.Data) {
			text = "the packet isn't sent, but changed"
		}
		if text == "" && (res.Verdict == sim.VerdictSent || len(res.Copies) > 0) {
			text = Foreign(r.spec, program, p)
		}
		if text == "" && res.Verdict == sim.VerdictSent && res.Modified {
			text = NoHost(r.spec, program, r.model, p.Data, res.Packet.Data)
		}
		if text == "" {
			return res, nil
		}
		err = errors.New(text)
	}
	if c := (*sim.Contradiction)(nil); !errors.As(err, &c) {
		err = &sim.Contradiction{Program: program, Err: err}
	}
	return res, &Fault{Err: err, Packet: slices.Clone(p.Data)}
}
