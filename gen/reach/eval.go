package reach

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
)

// This file says which values an expression may have, given what is known of its parts.

// eval returns all values that an expression may have in a state. An empty set means that no packet has got here.
func (a *analysis) eval(st *state, e ir.Expr) ranges.Set {
	v := a.compute(st, e)
	if f, ok := st.facts[a.key(e)]; ok {
		v = v.And(f.is)
	}
	return v
}

func (a *analysis) compute(st *state, e ir.Expr) ranges.Set {
	switch e := e.(type) {
	case *ir.Const:
		return ranges.Point(e.V)
	case *ir.BytesConst:
		return bytesPoint(e.B)
	case *ir.Load:
		return ranges.OfBits(e.Bits)
	case *ir.LoadBytes:
		if e.T.Kind == ir.Addr && e.N == 4 {
			return v4
		}
	case *ir.Meta:
		return ofType(e.Type())
	case *ir.SettingRef:
		if e.Setting.Type.Kind == ir.Uint {
			return ranges.Between(ranges.Small(e.Setting.Min), ranges.Small(e.Setting.Max))
		}
	case *ir.Bin:
		return a.binary(st, e)
	case *ir.Not:
		switch x := a.eval(st, e.X); {
		case x.Always():
			return ranges.Point(0)
		case x.Never():
			return ranges.Point(1)
		}
		return ranges.Either
	case *ir.BytesEq:
		if numeric(e.X) && numeric(e.Y) {
			return equal(a.eval(st, e.X), a.eval(st, e.Y))
		}
		return ranges.Either
	case *ir.Pick:
		switch c := a.eval(st, e.If); {
		case c.Always():
			return a.eval(st, e.Then)
		case c.Never():
			return a.eval(st, e.Else)
		}
		return a.eval(st, e.Then).Or(a.eval(st, e.Else))
	}
	if x, in := membership(e); x != nil {
		v := a.eval(st, x)
		switch {
		case len(v.And(in)) == 0:
			return ranges.Point(0)
		case len(v.And(in.Not())) == 0:
			return ranges.Point(1)
		}
		return ranges.Either
	}
	return ofType(e.Type())
}

// membership is what a condition asks of a byte string, and the set that it has to be in: nil for other conditions.
func membership(e ir.Expr) (ir.Expr, ranges.Set) {
	switch e := e.(type) {
	case *ir.InPrefix:
		return e.X, inPrefix(e.Prefix)
	case *ir.IsV4:
		return e.X, v4
	case *ir.Unicast:
		return e.X, unicast
	case *ir.Multicast:
		return e.X, multicast
	}
	return nil, nil
}

// ofType returns the values of a type. What isn't known of it isn't relied on.
func ofType(t ir.Type) ranges.Set {
	switch {
	case t.Kind == ir.Bool:
		return ranges.Either
	case t.Kind == ir.Uint && t.Bits > 0:
		return ranges.OfBits(t.Bits)
	}
	return ranges.Anything
}

// numeric reports whether a byte string can be looked at as a number.
func numeric(e ir.Expr) bool { return e.Type().Size <= 16 }

func bytesPoint(b []byte) ranges.Set {
	if len(b) > 16 {
		return ranges.Anything
	}
	var full [16]byte
	copy(full[16-len(b):], b)
	n := ofAddr(full)
	return ranges.Between(n, n)
}

func ofAddr(b [16]byte) ranges.Number {
	return ranges.Number{Hi: binary.BigEndian.Uint64(b[:]), Lo: binary.BigEndian.Uint64(b[8:])}
}

func inPrefix(p netip.Prefix) ranges.Set {
	first := ofAddr(p.Masked().Addr().As16())
	last := first
	switch n := p.Bits(); {
	case n < 64:
		last.Hi |= ^uint64(0) >> n
		last.Lo = ^uint64(0)
	case n < 128:
		last.Lo |= ^uint64(0) >> (n - 64)
	}
	return ranges.Between(first, last)
}

// Sets of addresses in their 16-byte form, as the model knows them (sim/eval.go).
var (
	v4        = prefixes("::ffff:0:0/96")
	multicast = prefixes("::ffff:224.0.0.0/100", "::ffff:255.255.255.255/128", "ff00::/8")
	unicast   = multicast.Or(prefixes("::ffff:0.0.0.0/104", "::ffff:127.0.0.0/104", "::/128", "::1/128")).Not()
)

func prefixes(texts ...string) (s ranges.Set) {
	for _, t := range texts {
		s = s.Or(inPrefix(netip.MustParsePrefix(t)))
	}
	return s
}

// equal says whether two values are the same.
func equal(x, y ranges.Set) ranges.Set {
	a, one := x.Single()
	b, other := y.Single()
	switch {
	case len(x.And(y)) == 0:
		return ranges.Point(0)
	case one && other && a == b:
		return ranges.Point(1)
	}
	return ranges.Either
}

func (a *analysis) binary(st *state, e *ir.Bin) ranges.Set {
	x, y := a.eval(st, e.X), a.eval(st, e.Y)
	if len(x) == 0 || len(y) == 0 {
		return nil
	}
	switch e.Op {
	case ir.Land:
		switch {
		case x.Never() || y.Never():
			return ranges.Point(0)
		case x.Always() && y.Always():
			return ranges.Point(1)
		}
		return ranges.Either
	case ir.Lor:
		switch {
		case x.Always() || y.Always():
			return ranges.Point(1)
		case x.Never() && y.Never():
			return ranges.Point(0)
		}
		return ranges.Either
	}
	if c, ok := comparisonOf(e); ok {
		if c.x != e.X {
			x, y = y, x
		}
		return a.compare(st, c, x, y)
	}
	return ranges.Arith(e.Op, x, y)
}

// comparison is a comparison as one of two, x == y and x < y, or the opposite of it.
type comparison struct {
	x, y     ir.Expr
	less     bool
	opposite bool
}

func comparisonOf(e *ir.Bin) (c comparison, ok bool) {
	switch e.Op {
	case ir.Eq, ir.Ne:
		return comparison{e.X, e.Y, false, e.Op == ir.Ne}, true
	case ir.Lt, ir.Ge:
		return comparison{e.X, e.Y, true, e.Op == ir.Ge}, true
	case ir.Gt, ir.Le:
		return comparison{e.Y, e.X, true, e.Op == ir.Le}, true
	}
	return c, false
}

// pair is what is compared.
type pair struct {
	x, y key
	less bool
}

func (a *analysis) pair(p pair) key {
	k, ok := a.pairs[p]
	if !ok {
		k = a.id(fmt.Sprint("comparison ", p))
		a.pairs[p] = k
	}
	return k
}

// key identifies a comparison, and not its opposite, if both sides have a key.
func (c comparison) key(a *analysis) key {
	x, y := a.key(c.x), a.key(c.y)
	switch {
	case x == 0 || y == 0:
		return 0
	case c.less:
		return a.pair(pair{x, y, true})
	}
	return a.pair(pair{min(x, y), max(x, y), false})
}

// compare says whether a comparison holds, by what its sides may be, or since it has been decided before.
func (a *analysis) compare(st *state, c comparison, x, y ranges.Set) ranges.Set {
	var holds ranges.Set
	switch same := a.key(c.x) == a.key(c.y) && a.key(c.x) != 0; {
	case !c.less && same:
		holds = ranges.Point(1)
	case !c.less:
		holds = equal(x, y)
	case same || ranges.Compare(x.Min(), y.Max()) >= 0:
		holds = ranges.Point(0)
	case ranges.Compare(x.Max(), y.Min()) < 0:
		holds = ranges.Point(1)
	default:
		holds = ranges.Either
	}
	if f, ok := st.facts[c.key(a)]; ok {
		holds = holds.And(f.is)
	}
	if c.opposite && len(holds) == 1 && holds[0].Min == holds[0].Max {
		return ranges.Truth(holds.Never())
	}
	return holds
}
