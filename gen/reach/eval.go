package reach

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This file says which values an expression may have, given what is known of its parts.

// eval returns all values that an expression may have in a state. An empty set means that no packet has got here.
func (a *analysis) eval(st *state, e ir.Expr) set {
	v := a.compute(st, e)
	if f, ok := st.facts[a.key(e)]; ok {
		v = v.and(f.is)
	}
	return v
}

func (a *analysis) compute(st *state, e ir.Expr) set {
	switch e := e.(type) {
	case *ir.Const:
		return point(e.V)
	case *ir.BytesConst:
		return bytesPoint(e.B)
	case *ir.Load:
		return ofBits(e.Bits)
	case *ir.LoadBytes:
		if e.T.Kind == ir.Addr && e.N == 4 {
			return v4
		}
	case *ir.Meta:
		return ofType(e.Type())
	case *ir.SettingRef:
		if e.Setting.Type.Kind == ir.Uint {
			return between(small(e.Setting.Min), small(e.Setting.Max))
		}
	case *ir.Bin:
		return a.binary(st, e)
	case *ir.Not:
		switch x := a.eval(st, e.X); {
		case x.always():
			return point(0)
		case x.never():
			return point(1)
		}
		return either
	case *ir.BytesEq:
		if numeric(e.X) && numeric(e.Y) {
			return equal(a.eval(st, e.X), a.eval(st, e.Y))
		}
		return either
	case *ir.Pick:
		switch c := a.eval(st, e.If); {
		case c.always():
			return a.eval(st, e.Then)
		case c.never():
			return a.eval(st, e.Else)
		}
		return a.eval(st, e.Then).or(a.eval(st, e.Else))
	}
	if x, in := membership(e); x != nil {
		v := a.eval(st, x)
		switch {
		case len(v.and(in)) == 0:
			return point(0)
		case len(v.and(in.not())) == 0:
			return point(1)
		}
		return either
	}
	return ofType(e.Type())
}

// membership is what a condition asks of a byte string, and the set that it has to be in: nil for other conditions.
func membership(e ir.Expr) (ir.Expr, set) {
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
func ofType(t ir.Type) set {
	switch {
	case t.Kind == ir.Bool:
		return either
	case t.Kind == ir.Uint && t.Bits > 0:
		return ofBits(t.Bits)
	}
	return anything
}

// numeric reports whether a byte string can be looked at as a number.
func numeric(e ir.Expr) bool { return e.Type().Size <= 16 }

func bytesPoint(b []byte) set {
	if len(b) > 16 {
		return anything
	}
	var full [16]byte
	copy(full[16-len(b):], b)
	n := ofAddr(full)
	return between(n, n)
}

func ofAddr(b [16]byte) number {
	return number{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

func inPrefix(p netip.Prefix) set {
	first := ofAddr(p.Masked().Addr().As16())
	last := first
	switch n := p.Bits(); {
	case n < 64:
		last.hi |= ^uint64(0) >> n
		last.lo = ^uint64(0)
	case n < 128:
		last.lo |= ^uint64(0) >> (n - 64)
	}
	return between(first, last)
}

// Sets of addresses in their 16-byte form, as the model knows them (sim/eval.go).
var (
	v4        = prefixes("::ffff:0:0/96")
	multicast = prefixes("::ffff:224.0.0.0/100", "::ffff:255.255.255.255/128", "ff00::/8")
	unicast   = multicast.or(prefixes("::ffff:0.0.0.0/104", "::ffff:127.0.0.0/104", "::/128", "::1/128")).not()
)

func prefixes(texts ...string) (s set) {
	for _, t := range texts {
		s = s.or(inPrefix(netip.MustParsePrefix(t)))
	}
	return s
}

// equal says whether two values are the same.
func equal(x, y set) set {
	a, one := x.single()
	b, other := y.single()
	switch {
	case len(x.and(y)) == 0:
		return point(0)
	case one && other && a == b:
		return point(1)
	}
	return either
}

func (a *analysis) binary(st *state, e *ir.Bin) set {
	x, y := a.eval(st, e.X), a.eval(st, e.Y)
	if len(x) == 0 || len(y) == 0 {
		return nil
	}
	c, constant := y.single()
	switch e.Op {
	case ir.Land:
		switch {
		case x.never() || y.never():
			return point(0)
		case x.always() && y.always():
			return point(1)
		}
		return either
	case ir.Lor:
		switch {
		case x.always() || y.always():
			return point(1)
		case x.never() && y.never():
			return point(0)
		}
		return either
	}
	if c, ok := comparisonOf(e); ok {
		if c.x != e.X {
			x, y = y, x
		}
		return a.compare(st, c, x, y)
	}
	lowX, lowY, highX, highY := x.min().lo, y.min().lo, x.max().lo, y.max().lo
	switch e.Op {
	case ir.Add:
		if constant {
			return x.plus(c.lo)
		}
		if high, carry := bits.Add64(highX, highY, 0); carry == 0 {
			return between(small(lowX+lowY), small(high))
		}
	case ir.Sub:
		switch {
		case constant:
			return x.plus(-c.lo)
		case lowX >= highY:
			return between(small(lowX-highY), small(highX-lowY))
		}
	case ir.Mul:
		if over, high := bits.Mul64(highX, highY); over == 0 {
			return between(small(lowX*lowY), small(high))
		}
	case ir.Div:
		if constant && c.lo > 0 {
			return x.each(func(v uint64) uint64 { return v / c.lo })
		}
	case ir.Rem:
		switch {
		case !constant || c.lo == 0:
		case highX < c.lo:
			return x
		default:
			return upTo(c.lo - 1)
		}
	case ir.And:
		return upTo(min(highX, highY))
	case ir.Or:
		return between(small(max(lowX, lowY)), small(ones(highX|highY)))
	case ir.Xor:
		return upTo(ones(highX | highY))
	case ir.Shl:
		if constant && c.lo < 64 && bits.Len64(highX)+int(c.lo) <= 64 {
			return x.each(func(v uint64) uint64 { return v << c.lo })
		}
	case ir.Shr:
		if constant && c.lo < 64 {
			return x.each(func(v uint64) uint64 { return v >> c.lo })
		}
	}
	return anyUint
}

// ones is the largest integer of as many bits as v has.
func ones(v uint64) uint64 { return 1<<bits.Len64(v) - 1 }

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
func (a *analysis) compare(st *state, c comparison, x, y set) set {
	var holds set
	switch same := a.key(c.x) == a.key(c.y) && a.key(c.x) != 0; {
	case !c.less && same:
		holds = point(1)
	case !c.less:
		holds = equal(x, y)
	case same || compare(x.min(), y.max()) >= 0:
		holds = point(0)
	case compare(x.max(), y.min()) < 0:
		holds = point(1)
	default:
		holds = either
	}
	if f, ok := st.facts[c.key(a)]; ok {
		holds = holds.and(f.is)
	}
	if c.opposite && len(holds) == 1 && holds[0].min == holds[0].max {
		return truth(holds.never())
	}
	return holds
}
