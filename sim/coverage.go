package sim

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Point is a place in a plan that a packet may come by: a statement, or one of its outcomes ("guard: udp_length" is the
// guard that failed).
type Point struct {
	Program string
	What    string
	Outcome bool // one of the outcomes of a statement, not the statement itself
	Stmt    ir.Stmt
	Not     bool // of a check or a branch, the outcome that its condition doesn't hold
	Pos     diag.Pos
	Hits    uint64
}

func (b *builder) point(pos diag.Pos, what string) *Point {
	p := &Point{Program: b.prog.ir.Title(), What: what, Stmt: b.stmt, Pos: pos}
	b.prog.points = append(b.prog.points, p)
	return p
}

func (b *builder) outcome(pos diag.Pos, what string) *Point {
	p := b.point(pos, what)
	p.Outcome = true
	return p
}

// fails is the outcome that a condition doesn't hold.
func (b *builder) fails(pos diag.Pos, what string) *Point {
	p := b.outcome(pos, what)
	p.Not = true
	return p
}

// Coverage returns all points of all programs, in the order of the plan. The counts go on with further runs.
func (r *Relay) Coverage() []*Point {
	var all []*Point
	for p := range r.plan.Flow() {
		all = append(all, r.programs[p].points...)
	}
	return all
}
