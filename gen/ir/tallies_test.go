package ir_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A reason has the same number in all programs, those that helpers count on follow each other, and no two reasons of a
// relay have one entry.
func TestTallies(t *testing.T) {
	program := func(reasons ...*ir.Reason) *ir.Program { return &ir.Program{Reasons: reasons} }
	reason := func(name string, kind ir.ReasonKind) *ir.Reason { return &ir.Reason{Name: name, Kind: kind} }
	first := program(reason("truncated", ir.Punted), reason("no_route", ir.Punted), reason("fault", ir.Fault))
	second := program(reason("no_route", ir.Declined), reason("too_big", ir.Punted), reason("truncated", ir.Punted),
		reason("no_memory", ir.Punted))
	plan := &ir.Plan{Programs: []*ir.Program{first, second}}
	tallies := plan.Tallies()
	if n, m := tallies.Number(first, 0), tallies.Number(second, 2); n != m || n == 0 {
		t.Errorf("a reason has the numbers %d and %d", n, m)
	}
	if tallies.Number(first, 1) != tallies.Number(second, 1)+1 {
		t.Error("no_route doesn't follow too_big")
	}
	if tallies.Number(second, 3) != tallies.Number(first, 2)+1 {
		t.Error("no_memory doesn't follow fault")
	}
	seen := map[int]bool{}
	for _, p := range plan.Programs {
		for i := range p.Reasons {
			at := tallies.Of(p, i)
			if seen[at] || at >= tallies.Len() {
				t.Errorf("reason %d is counted in entry %d of %d, as another one is", i, at, tallies.Len())
			}
			seen[at] = true
		}
	}
}
