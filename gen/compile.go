// Package gen is the compiler: it turns a typed spec into the plan. Compile is pure; its stages run in this order, a
// package or a file each:
//
//	declare     what the spec declares: types, layouts of rows, hidden members for next hops. Then for each program:
//	program.go  its stack becomes a tree of paths, one for each sequence of headers
//	choose.go   headers that only rows can tell apart
//	parse.go    one header on one path: where its fields are, what has to hold
//	rules.go    lookups, rules, actions
//	congestion.go the hook without a packet
//	fanout.go   one to many; with extent.go
//	report.go   events and credits
//	lets.go     names for values
//	rewrite.go  the packet that leaves: headers, lengths; with set.go, send.go, resize.go, sums.go and stores.go
//	push.go     headers that are taken out and put in
//
// What these work on is package draft: the program as far as it is compiled, and the headers of a path. Expressions and
// constraints are lowered by package expr. At last come
//
//	check       what the plan needs of a kernel, and the invariants of its shape
//	warn        warnings: what is declared and not used, what no packet gets to
//
// A pass that finds a mistake in the spec reports it and goes on with the next independent piece, so that a person sees
// all mistakes at once.
package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/check"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/gen/warn"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Compile makes the plan of a spec. Where the list has errors, the plan is nil; else it may have warnings.
func Compile(s *spec.Spec) (*ir.Plan, *diag.List) {
	diags := &diag.List{}
	names := declare.Of(s, diags)
	plan := names.Plan
	protos := map[*ir.Member]int{}
	var traces []*trace.Program
	for _, src := range s.Programs {
		if p := compileProgram(src, names, protos, diags); p != nil {
			plan.Programs = append(plan.Programs, p.Out)
			traces = append(traces, p.Trace)
		}
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
	}
	return plan, diags
}
