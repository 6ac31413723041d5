package reach

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file narrows what is known by a condition.

// maxSplit bounds how deep a condition that is one of two (x || y) is followed in both ways.
const maxSplit = 5

// assume returns a state in which a condition holds, or doesn't: nil if no packet can be so. It changes the state
// that it is given. split is how many alternatives it is in already.
func (a *analysis) assume(st *state, e ir.Expr, holds bool, split int) *state {
	a.why = cause{}
	clear(a.changed)
	if !a.narrow(&st, e, holds, split) {
		return nil
	}
	if a.key(e) == 0 {
		return st
	}
	if split == 0 {
		if len(st.known) == maxKnown {
			st.known = st.known[1:]
		}
		st.known = append(st.known, condition{e, holds, a.at})
	}
	return a.settle(st)
}

// settle looks again at what has been decided before: what is known now may contradict it, or leave only one of its
// parts.
func (a *analysis) settle(st *state) *state {
	for _, b := range st.lets {
		if a.news(b.value) && !a.restrict(st, &ir.VarRef{Var: b.to}, a.eval(st, b.value)) {
			return nil
		}
	}
	for _, c := range slices.Clone(st.known) {
		if !a.news(c.cond) {
			continue
		}
		v := a.eval(st, c.cond)
		if len(v) == 0 || v.Always() && !c.holds || v.Never() && c.holds {
			a.why.at = []diag.Pos{c.at}
			return nil
		}
		at := a.at
		a.at = c.at
		ok := a.narrow(&st, c.cond, c.holds, maxSplit)
		a.at = at
		if !ok {
			a.why.at = []diag.Pos{c.at}
			return nil
		}
	}
	return st
}

// narrow takes a condition over into the facts, and reports whether it doesn't contradict them.
func (a *analysis) narrow(st **state, e ir.Expr, holds bool, split int) bool {
	switch v := a.eval(*st, e); {
	case len(v) == 0:
		return false
	case v.Always() && !holds || v.Never() && holds:
		a.blame(*st, e, func(v ranges.Set) bool { return len(v) == 0 || v.Always() && !holds || v.Never() && holds })
		return false
	}
	switch e := e.(type) {
	case *ir.Not:
		return a.narrow(st, e.X, !holds, split)
	case *ir.Bin:
		return a.narrowBin(st, e, holds, split)
	case *ir.BytesEq:
		if numeric(e.X) && numeric(e.Y) {
			return a.narrowEqual(*st, e.X, e.Y, holds) && a.remember(*st, e, holds)
		}
	}
	if x, in := membership(e); x != nil {
		if !holds {
			in = in.Not()
		}
		return a.restrict(*st, x, in)
	}
	return a.remember(*st, e, holds)
}

// remember makes a condition itself a fact.
func (a *analysis) remember(st *state, e ir.Expr, holds bool) bool {
	if holds { // what isn't 0 holds
		return a.restrict(st, e, ranges.Point(0).Not())
	}
	return a.restrict(st, e, ranges.Point(0))
}

func (a *analysis) narrowBin(st **state, e *ir.Bin, holds bool, split int) bool {
	switch {
	case e.Op == ir.Land && holds, e.Op == ir.Lor && !holds:
		return a.narrow(st, e.X, holds, split) && a.narrow(st, e.Y, holds, split)
	case e.Op == ir.Land || e.Op == ir.Lor:
		return a.oneOf(st, e, holds, split)
	}
	c, ok := comparisonOf(e)
	if !ok {
		return a.remember(*st, e, holds)
	}
	if c.opposite {
		holds = !holds
	}
	if k := c.key(a); k != 0 {
		f, known := (*st).facts[k]
		a.changed[k] = a.changed[k] || !known
		if is := ranges.Truth(holds); !slices.Equal(f.is, is) {
			(*st).facts[k] = fact{is: is, said: []*said{{is, a.at}}, row: f.row || ofRow(e)}
		}
	}
	if !c.less {
		return a.narrowEqual(*st, c.x, c.y, holds)
	}
	x, y := a.eval(*st, c.x), a.eval(*st, c.y)
	if len(x) == 0 || len(y) == 0 {
		return false
	}
	if holds { // x < y
		if y.Max() == (ranges.Number{}) || x.Min() == ranges.Most {
			return false
		}
		return a.restrict(*st, c.x, ranges.Between(ranges.Number{}, y.Max().Previous())) &&
			a.restrict(*st, c.y, ranges.Between(x.Min().Next(), ranges.Most))
	}
	return a.restrict(*st, c.x, ranges.Between(y.Min(), ranges.Most)) && a.restrict(*st, c.y,
		ranges.Between(ranges.Number{}, x.Max()))
}

// oneOf narrows by a condition of which one part is enough.
func (a *analysis) oneOf(st **state, e *ir.Bin, holds bool, split int) bool {
	decided := func(v ranges.Set) bool { return holds && v.Never() || !holds && v.Always() }
	x, y := a.eval(*st, e.X), a.eval(*st, e.Y)
	switch {
	case decided(x):
		return a.narrow(st, e.Y, holds, split)
	case decided(y):
		return a.narrow(st, e.X, holds, split)
	case split >= maxSplit:
		return a.remember(*st, e, holds)
	}
	one, other := (*st).clone(), (*st).clone()
	if !a.narrow(&one, e.X, holds, split+1) {
		one = nil
	}
	if !a.narrow(&other, e.X, !holds, split+1) || !a.narrow(&other, e.Y, holds, split+1) {
		other = nil
	}
	both := join(one, other)
	if both == nil {
		return false
	}
	*st = both
	return a.remember(*st, e, holds)
}

func (a *analysis) narrowEqual(st *state, x, y ir.Expr, holds bool) bool {
	vx, vy := a.eval(st, x), a.eval(st, y)
	if holds {
		both := vx.And(vy)
		return a.restrict(st, x, both) && a.restrict(st, y, both)
	}
	if _, one := vy.Single(); one && !a.restrict(st, x, vy.Not()) {
		return false
	}
	if _, one := vx.Single(); one && !a.restrict(st, y, vx.Not()) {
		return false
	}
	return true
}

// restrict notes that an expression's value is in a set, and reports whether it can be.
func (a *analysis) restrict(st *state, e ir.Expr, in ranges.Set) bool {
	was := a.eval(st, e)
	now := was.And(in)
	if len(now) == 0 {
		a.blame(st, e, func(v ranges.Set) bool { return len(v.And(in)) == 0 })
		return false
	}
	if k := a.key(e); k != 0 && !slices.Equal(was, now) {
		f := st.facts[k].and(&said{in, a.at})
		f.is = now
		if _, ok := e.(*ir.VarRef); !ok {
			f.row = ofRow(e)
		}
		st.facts[k], a.changed[k] = f, true
	}
	switch e := e.(type) {
	case *ir.VarRef:
		for _, b := range st.lets {
			if b.to == e.Var {
				return a.restrict(st, b.value, now)
			}
		}
	case *ir.Bin:
		c, ok := e.Y.(*ir.Const)
		switch {
		case !ok:
		case e.Op == ir.Add:
			return a.restrict(st, e.X, now.Plus(-c.V))
		case e.Op == ir.Sub:
			return a.restrict(st, e.X, now.Plus(c.V))
		case e.Op == ir.Shr && c.V < 64 && now.Max().Lo <= ^uint64(0)>>c.V:
			var wide ranges.Set
			for _, s := range now {
				wide = append(wide, ranges.Span{
					Min: ranges.Small(s.Min.Lo << c.V), Max: ranges.Small(s.Max.Lo<<c.V | (1<<c.V - 1)),
				})
			}
			return a.restrict(st, e.X, wide.Or(nil))
		}
	}
	return true
}
