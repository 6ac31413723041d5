// Package trace notes which statements of a plan come of which rule and header of a spec, so that it can be said which
// of these no packet gets to.
package trace

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Program says where in the plan the rules and headers of a program are: once for each path that has them.
type Program struct {
	Src     *spec.Program
	Out     *ir.Program
	Rules   map[*spec.Rule][][]ir.Stmt  // what came of a rule's actions
	After   map[*spec.Rule][]*spec.Rule // the rules in front that take all packets of a path
	Headers map[Place][]ir.Stmt         // what comes of packets that have a header
	Places  []Place                     // the keys of Headers, in the order of the stack
}

// Place is a header in a place of the stack.
type Place struct {
	Entry  *spec.StackEntry
	Header *spec.Header
}

// New returns the trace of a program that is compiled.
func New(src *spec.Program, out *ir.Program) *Program {
	return &Program{
		Src: src, Out: out, Rules: map[*spec.Rule][][]ir.Stmt{}, After: map[*spec.Rule][]*spec.Rule{},
		Headers: map[Place][]ir.Stmt{},
	}
}

// Applied notes what came of a rule's actions on a path.
func (t *Program) Applied(r *spec.Rule, stmts []ir.Stmt) {
	if len(stmts) > 0 {
		t.Rules[r] = append(t.Rules[r], slices.Clone(stmts))
	}
}

// Took notes that a rule takes all packets of a path, so that the rules after it aren't compiled there.
func (t *Program) Took(r *spec.Rule, after []*spec.Rule) {
	for _, later := range after {
		if !slices.Contains(t.After[later], r) {
			t.After[later] = append(t.After[later], r)
		}
	}
}

// Found notes what comes of a packet that has a header in a place of the stack.
func (t *Program) Found(e *spec.StackEntry, h *spec.Header, stmts []ir.Stmt) {
	at := Place{e, h}
	if _, known := t.Headers[at]; !known {
		t.Places = append(t.Places, at)
	}
	t.Headers[at] = append(t.Headers[at], stmts...)
}
