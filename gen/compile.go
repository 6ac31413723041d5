// Package gen is the compiler: it turns a typed spec into the plan. Compile is pure. Its stages are packages, which run
// in this order; each says what goes in and what comes out.
//
//	declare   what the spec declares: types, layouts of rows, hidden members for next hops. Then for each program:
//	stack     its stack becomes a tree of paths, one for each sequence of headers, with the checks of each header
//	rules     on each path: match, lookups, rules, actions, fan-outs
//	edit      for each rule: the packet that leaves, its headers and their values, and its next hop
//	rewrite   how the packet that came becomes that one: lengths, checksums, stores, room
//	xdp       what runs at XDP: a program, or of one at tc/ingress the one that takes its packets first
//	check     what the plan needs of a kernel, and the invariants of its shape
//	warn      what is declared and not used, what no packet gets to
//
// What they hand on are declare.Names, a draft.Program with the headers of a path, an expr.Scope, an edit.Departure,
// and a trace.Program.
// All lower expressions with expr, and make those of the plan with fold; ranges computes with sets of values. The codes
// of messages are in code. always says what a finished plan passes to the stack.
//
// A pass that finds a mistake in the spec reports it and goes on with the next independent piece, so that a person sees
// all mistakes at once.
package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/check"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/stack"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/gen/warn"
	"github.com/fastrelay/fastrelay-gen/gen/xdp"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Compile makes the plan of a spec. If the list has errors, the plan is nil; else it may have warnings.
func Compile(s *spec.Spec) (*ir.Plan, *diag.List) {
	diags := &diag.List{}
	names := declare.Of(s, diags)
	plan := names.Plan
	protos := map[*ir.Member]int{}
	var traces []*trace.Program
	for _, src := range s.Programs {
		p := stack.Compile(src, names, protos, src.Hook == ir.XDP, diags)
		if p == nil {
			continue
		}
		out := p.Out
		switch {
		case src.Hook == ir.XDP:
			var left []ir.Left
			out, left = xdp.Alone(p.Out)
			check.Driven(src, left, diags)
		case src.XDP:
			if first := stack.Compile(src, names, protos, true, &diag.List{}); first != nil {
				p.Out.XDP, p.Out.Left = xdp.Of(first.Out)
			}
		}
		plan.Programs = append(plan.Programs, out)
		traces = append(traces, p.Trace)
	}
	check.Needs(plan, s.Kernel, diags)
	if diags.Len() == 0 {
		check.Shape(plan, diags)
	}
	if diags.Len() > 0 {
		return nil, diags
	}
	warn.Unused(names, diags)
	for _, t := range traces {
		warn.Unreached(t, diags)
		warn.Untaken(t, diags)
	}
	return plan, diags
}
