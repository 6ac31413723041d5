package reach

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file says why packets don't reach a statement.

// cause is why a condition can't be as it would have to be.
type cause struct {
	at  []diag.Pos // where something else is said that excludes it
	own bool       // it is excluded wherever it is
}

// Why returns the places in the spec of the conditions that together keep packets from a statement that none can reach:
// they are known to hold, or not to hold, in front of it. Places that aren't known are left out.
func (r *Reached) Why(s ir.Stmt) []diag.Pos { return r.why[s].at }

// Own reports whether nothing in front of a statement that none can reach has to do with that: its condition
// contradicts itself, or what its values can be.
func (r *Reached) Own(s ir.Stmt) bool { return r.why[s].own }

// own reports whether a condition is excluded by types alone.
func (a *analysis) own(cond ir.Expr, holds bool) bool {
	why := a.why
	excluded := a.assume(a.typed.clone(), cond, holds, 0) == nil
	a.why = why
	return excluded
}

// said is what a place in the spec has to do with a fact: that an expression is in a set. It has no line if that
// follows from types, or from several places.
type said struct {
	in ranges.Set
	at diag.Pos
}

// and returns a fact to which something is added.
func (f fact) and(s *said) fact {
	f.is, f.said = f.is.And(s.in), append(slices.Clip(f.said), s)
	return f
}

// or returns what two facts have in common, where two branches meet.
func (f fact) or(g fact) fact {
	n := 0
	for n < min(len(f.said), len(g.said)) && f.said[n] == g.said[n] {
		n++
	}
	f.is = f.is.Or(g.is)
	if differ := slices.Concat(f.said[n:], g.said[n:]); len(differ) > 0 {
		both := &said{all(f.said[n:]).Or(all(g.said[n:])), differ[0].at}
		if slices.ContainsFunc(differ, func(s *said) bool { return s.at != both.at }) {
			both.at = diag.Pos{}
		}
		f.said = append(slices.Clip(f.said[:n]), both)
	}
	return f
}

// all returns what is in all sets.
func all(ss []*said) ranges.Set {
	in := ranges.Anything
	for _, s := range ss {
		in = in.And(s.in)
	}
	return in
}

// blame notes what excludes what an expression may be: the places without any of which it wouldn't be excluded, and
// which aren't always those where something was said of it last.
func (a *analysis) blame(st *state, e ir.Expr, excluded func(ranges.Set) bool) {
	needed, keys := &state{facts: map[key]fact{}}, a.keysIn(e)
	know := func(k key, ss []*said) { needed.facts[k] = fact{is: all(ss), said: ss} }
	for _, k := range keys {
		if f, known := st.facts[k]; known {
			know(k, f.said)
		}
	}
	for _, k := range keys {
		for _, s := range needed.facts[k].said {
			with := needed.facts[k].said
			know(k, slices.DeleteFunc(slices.Clone(with), func(other *said) bool { return other == s }))
			if excluded(a.eval(needed, e)) {
				continue
			}
			know(k, with)
			if s.at.IsValid() && s.at != a.at && !slices.Contains(a.why.at, s.at) {
				a.why.at = append(a.why.at, s.at)
			}
		}
	}
}
