// Package gen is the compiler: it turns a typed spec into the plan. Compile is pure; its passes run in this order, one
// file each:
//
//	state.go    settings, tables and sessions: types, layouts; with rowhops.go, hidden members for next hops
//	groups.go   groups of receivers, events, and what spends credits
//	program.go  one program: its stack becomes a tree of paths, one for each sequence of headers
//	choose.go   headers that only rows can tell apart
//	parse.go    one header on one path: where its fields are, what has to hold
//	expr.go     expressions: names, types, ranges
//	match.go    constraints as conditions; with ranges.go
//	rules.go    lookups, rules, actions
//	congestion.go the hook without a packet
//	fanout.go   one to many; with extent.go
//	effects.go  names for values, numbers that are allocated, lists of elements
//	rewrite.go  the packet that leaves: headers, lengths; with set.go, send.go, resize.go, sums.go and stores.go
//	push.go     headers that are taken out and put in
//	check.go    what the plan needs of a kernel, and the invariants of its shape
//	unused.go   warnings: what is declared and not used
//	dead.go     warnings: what no packet gets to
//
// A pass that finds a mistake in the spec reports it and goes on with the next independent piece, so that a person sees
// all mistakes at once.
package gen

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Compile makes the plan of a spec. Where the list has errors, the plan is nil; else it may have warnings.
func Compile(s *spec.Spec) (*ir.Plan, *diag.List) {
	c := &compiler{
		spec:     s,
		diags:    &diag.List{},
		plan:     &ir.Plan{Name: s.Name.Value, Pos: s.Name.Pos},
		headers:  map[string]*spec.Header{},
		groups:   map[string]*spec.Alternatives{},
		settings: map[string]*ir.Setting{},
		tables:   map[string]*ir.Table{},
		counters: map[string]*ir.Counter{},
		fanOuts:  map[string]*ir.Group{},
		events:   map[string]*ir.Event{},
		protos:   map[*ir.Member]int{},
	}
	for _, h := range s.Headers {
		if _, shadowed := c.headers[h.Name.Value]; !shadowed {
			c.headers[h.Name.Value] = h
		}
	}
	for _, g := range s.Alternatives {
		if _, shadowed := c.groups[g.Name.Value]; !shadowed {
			c.groups[g.Name.Value] = g
		}
	}
	c.checkHeaders()
	c.state()
	for _, p := range s.Programs {
		c.program(p)
	}
	c.kernel()
	if c.diags.Len() == 0 {
		c.checkShape()
	}
	if c.diags.Len() > 0 {
		return nil, c.diags
	}
	c.unused()
	c.dead()
	return c.plan, c.diags
}

type compiler struct {
	spec     *spec.Spec
	diags    *diag.List
	plan     *ir.Plan
	headers  map[string]*spec.Header
	groups   map[string]*spec.Alternatives
	settings map[string]*ir.Setting
	tables   map[string]*ir.Table
	counters map[string]*ir.Counter
	fanOuts  map[string]*ir.Group
	events   map[string]*ir.Event
	programs []*program
	protos   map[*ir.Member]int // of hops of rows: the IP protocol of the packets, see carries
}
