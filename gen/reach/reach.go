// Package reach says of each statement of a plan whether a packet can get there. It executes a program once for all
// packets: in place of values it has sets of values that an expression may have, and a condition narrows the sets of
// what it reads, in its branch. So it knows what headers' fields may be, what a match or an earlier rule has left, and
// which conditions contradict each other.
//
// It errs on one side: a statement that it calls out of reach is never executed, whatever the packet, the rows and the
// settings are; one that it calls reachable may still be out of reach. The tests hold it to that, with random packets
// in random programs.
//
// What it relies on: a packet doesn't change before it leaves, and a variable is set once (see ir). A row's members
// are forgotten where a row may be learned. What a type of statement or expression means that isn't named here isn't
// relied on.
package reach

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Reached is what packets can reach in a program.
type Reached struct {
	stmts map[ir.Stmt]bool
	holds map[ir.Stmt]bool // of checks and branches
	fails map[ir.Stmt]bool
	why   map[ir.Stmt]cause
}

// Stmt reports whether a packet may get to a statement.
func (r *Reached) Stmt(s ir.Stmt) bool { return r.stmts[s] }

// Outcome reports whether the condition of a check (NeedBytes, Guard) or a branch may hold, or may not. Of the outcomes
// of other statements nothing is known.
func (r *Reached) Outcome(s ir.Stmt, holds bool) bool {
	switch s.(type) {
	case *ir.NeedBytes, *ir.Guard, *ir.If:
		return holds && r.holds[s] || !holds && r.fails[s]
	}
	return true
}

// Of executes a program for all packets.
func Of(p *ir.Program) *Reached {
	a := newAnalysis()
	a.block(&state{facts: map[key]fact{}}, p.Body)
	return a.out
}

func newAnalysis() *analysis {
	return &analysis{
		keys: map[ir.Expr]key{}, ids: map[string]key{}, parts: map[ir.Expr][]key{}, changed: map[key]bool{},
		pairs: map[pair]key{}, typed: &state{facts: map[key]fact{}},
		out: &Reached{
			stmts: map[ir.Stmt]bool{}, holds: map[ir.Stmt]bool{}, fails: map[ir.Stmt]bool{},
			why: map[ir.Stmt]cause{},
		},
	}
}

type analysis struct {
	out   *Reached
	keys  map[ir.Expr]key
	ids   map[string]key
	pairs map[pair]key
	// the keys of what an expression consists of
	parts   map[ir.Expr][]key
	changed map[key]bool // facts that are news
	at      diag.Pos     // of the statement that is executed
	why     cause        // of the last contradiction
	typed   *state       // what variables may be by types alone, whatever the branch is that sets them
}

// state is what is known of all packets at a place.
type state struct {
	facts map[key]fact // what expressions may be, by their keys
	lets  []binding    // in the order of the program, as known is
	known []condition
}

// binding is a variable and the expression whose value it has.
type binding struct {
	to    *ir.Var
	value ir.Expr
}

// fact is what an expression may be, and what was said of it, in the order of the program.
type fact struct {
	is   ranges.Set
	said []*said
	// of a row's member, which changes when the row is learned again
	row bool
}

// condition has been decided in front of a place.
type condition struct {
	cond  ir.Expr
	holds bool
	at    diag.Pos
}

// maxKnown bounds how many conditions a place remembers, since each is looked at again when another one is decided.
const maxKnown = 96

func (st *state) clone() *state {
	return &state{facts: maps.Clone(st.facts), lets: slices.Clone(st.lets), known: slices.Clone(st.known)}
}

// block executes statements, and returns what is known after them: nil if no packet gets there.
func (a *analysis) block(st *state, stmts []ir.Stmt) *state {
	for i, s := range stmts {
		if st == nil {
			for unreached := range ir.Stmts(stmts[i:]) {
				if _, twice := a.out.why[unreached]; !twice {
					a.out.why[unreached] = a.why
				}
			}
			return nil
		}
		a.out.stmts[s] = true
		a.at = ir.Pos(s)
		st = a.stmt(st, s)
	}
	return st
}

func (a *analysis) stmt(st *state, s ir.Stmt) *state {
	switch s := s.(type) {
	case *ir.NeedBytes:
		enough := &ir.Bin{Op: ir.Ge, X: &ir.Meta{Kind: ir.FrameLen}, Y: fold.Off(s.End)}
		return a.check(st, s, enough)
	case *ir.Guard:
		return a.check(st, s, s.Cond)
	case *ir.Let:
		a.let(st, s.Var, s.Value)
	case *ir.If:
		return a.branch(st, s)
	case *ir.Lookup:
		has := &ir.RowHas{Row: s.Row}
		if !s.Row.Optional {
			return a.assume(st, has, true, 0)
		}
	case *ir.Punt, *ir.Skip, *ir.Drop, *ir.Forward, *ir.Copy:
		a.why = cause{}
		return nil
	case *ir.FanOut:
		inner := st.clone()
		inner.forgetRows()
		a.block(inner, s.Each)
		a.why = cause{}
		return nil
	case *ir.ReadVarint:
		a.forget(st, s.Value)
		a.forget(st, s.Size)
		a.set(st, s.Value, ranges.OfBits(62))
		a.set(st, s.Size, ranges.Point(1).Or(ranges.Point(2)).Or(ranges.Point(4)).Or(ranges.Point(8)))
	case *ir.ReadUint:
		a.forget(st, s.Value)
		a.set(st, s.Value, ranges.OfBits(8*s.Max))
	case *ir.CheckHop, *ir.Count:
	default: // nothing is known of it but what it consists of
		for inner := range ir.Blocks(s) {
			for in := range ir.Stmts(*inner) {
				for v := range ir.Sets(in) {
					a.setAnyhow(st, v)
				}
			}
			a.block(st.clone(), *inner)
		}
		for v := range ir.Sets(s) {
			a.setAnyhow(st, v)
		}
		st.forgetRows()
	}
	return st
}

// check executes a statement that stops the packet unless a condition holds.
func (a *analysis) check(st *state, s ir.Stmt, cond ir.Expr) *state {
	if !a.eval(st, cond).Always() {
		a.out.fails[s] = true
	}
	return a.decided(s, cond, true, st)
}

// decided notes whether packets may have an outcome of a condition, and returns what is known of them.
func (a *analysis) decided(s ir.Stmt, cond ir.Expr, holds bool, st *state) *state {
	st = a.assume(st, cond, holds, 0)
	switch {
	case st == nil:
		a.why.own = a.own(cond, holds)
	case holds:
		a.out.holds[s] = true
	default:
		a.out.fails[s] = true
	}
	return st
}

func (a *analysis) branch(st *state, s *ir.If) *state {
	at := a.at
	then := a.block(a.decided(s, s.Cond, true, st.clone()), s.Then)
	a.at = at
	els := a.decided(s, s.Cond, false, st)
	if els == nil && !slices.Contains(a.why.at, at) {
		a.why.at = append(a.why.at, at) // all packets are taken there
	}
	return join(then, a.block(els, s.Else))
}

func (a *analysis) let(st *state, v *ir.Var, value ir.Expr) {
	is := a.eval(st, value)
	a.forget(st, v)
	types := a.eval(a.typed, value)
	a.set(st, v, types)
	if !slices.Equal(is, types) {
		st.facts[a.variable(v)] = fact{is: is, said: []*said{{in: types.Or(is)}, {in: is}}}
	}
	if a.key(value) != 0 {
		st.lets = append(st.lets, binding{v, value})
	}
}

// set notes what a variable may be by the type of what it is set to.
func (a *analysis) set(st *state, v *ir.Var, is ranges.Set) {
	k := a.variable(v)
	st.facts[k] = fact{is: is, said: []*said{{in: is}}}
	a.typed.facts[k] = fact{is: a.typed.facts[k].is.Or(is)}
}

// setAnyhow notes that nothing is known of what a variable is set to.
func (a *analysis) setAnyhow(st *state, v *ir.Var) {
	a.forget(st, v)
	a.typed.facts[a.variable(v)] = fact{is: ranges.Anything}
}

// forget removes what is known of a variable that is set anew, as in the other branch of a condition.
func (a *analysis) forget(st *state, v *ir.Var) {
	delete(st.facts, a.variable(v))
	st.lets = slices.DeleteFunc(st.lets, func(b binding) bool { return b.to == v })
}

// forgetRows removes what is known of the members of rows.
func (st *state) forgetRows() {
	maps.DeleteFunc(st.facts, func(_ key, f fact) bool { return f.row })
	st.lets = slices.DeleteFunc(st.lets, func(b binding) bool { return ofRow(b.value) })
	st.known = slices.DeleteFunc(st.known, func(c condition) bool { return ofRow(c.cond) })
}

func ofRow(e ir.Expr) bool {
	for in := range ir.Exprs(e) {
		if _, ok := in.(*ir.RowMember); ok {
			return true
		}
	}
	return false
}

// join is what is known where two branches meet.
func join(x, y *state) *state {
	switch {
	case x == nil:
		return y
	case y == nil:
		return x
	}
	out := &state{facts: map[key]fact{}}
	for k, f := range x.facts {
		if g, ok := y.facts[k]; ok {
			out.facts[k] = f.or(g)
		}
	}
	for _, b := range x.lets {
		if slices.Contains(y.lets, b) {
			out.lets = append(out.lets, b)
		}
	}
	for _, c := range x.known {
		if slices.Contains(y.known, c) {
			out.known = append(out.known, c)
		}
	}
	return out
}
