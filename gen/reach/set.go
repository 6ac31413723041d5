package reach

import (
	"cmp"
	"math/bits"
	"slices"
)

// number is an unsigned integer of 128 bits: an integer of a plan, whose upper half is 0, or a byte string of at most
// 16 bytes, as if it were a big endian integer.
type number struct{ hi, lo uint64 }

func small(v uint64) number { return number{lo: v} }

func compare(a, b number) int {
	return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo))
}

var (
	most   = number{^uint64(0), ^uint64(0)}
	most64 = small(^uint64(0))
)

func (a number) next() number { // of one below the largest
	lo, carry := bits.Add64(a.lo, 1, 0)
	return number{a.hi + carry, lo}
}

func (a number) previous() number { // of one above 0
	lo, borrow := bits.Sub64(a.lo, 1, 0)
	return number{a.hi - borrow, lo}
}

// span is an inclusive range.
type span struct{ min, max number }

// set is what a value may be: ranges in ascending order, with gaps between them. The empty set is of a value that no
// packet has.
type set []span

// maxSpans bounds the size of a set. One that would have more is widened to the range that holds it.
const maxSpans = 64

func between(min, max number) set {
	if compare(min, max) > 0 {
		return nil
	}
	return set{{min, max}}
}

func point(v uint64) set  { return between(small(v), small(v)) }
func upTo(v uint64) set   { return between(number{}, small(v)) }
func ofBits(n int) set    { return upTo(^uint64(0) >> (64 - min(max(n, 1), 64))) }
func truth(b bool) set    { return point(map[bool]uint64{true: 1}[b]) }
func (s set) min() number { return s[0].min }
func (s set) max() number { return s[len(s)-1].max }

var (
	either   = upTo(1)
	anything = between(number{}, most)
	anyUint  = between(number{}, most64)
)

// single returns the only value of a set.
func (s set) single() (number, bool) {
	if len(s) == 1 && s[0].min == s[0].max {
		return s[0].min, true
	}
	return number{}, false
}

// always and never report whether a condition has a value for certain.
func (s set) always() bool { return len(s) > 0 && s.min() != number{} }
func (s set) never() bool  { return len(s) == 1 && s.max() == number{} }

// or returns the values of both sets.
func (s set) or(t set) set {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b span) int { return compare(a.min, b.min) })
	var out set
	for _, x := range all {
		if n := len(out) - 1; n >= 0 && (out[n].max == most || compare(x.min, out[n].max.next()) <= 0) {
			if compare(x.max, out[n].max) > 0 {
				out[n].max = x.max
			}
			continue
		}
		out = append(out, x)
	}
	if len(out) > maxSpans {
		return between(out.min(), out.max())
	}
	return out
}

// and returns the values that both sets have.
func (s set) and(t set) set {
	var out set
	for i, j := 0, 0; i < len(s) && j < len(t); {
		a, b := s[i], t[j]
		lo, hi := a.min, a.max
		if compare(b.min, lo) > 0 {
			lo = b.min
		}
		if compare(b.max, hi) < 0 {
			hi = b.max
		}
		if compare(lo, hi) <= 0 {
			out = append(out, span{lo, hi})
		}
		if compare(a.max, b.max) < 0 {
			i++
		} else {
			j++
		}
	}
	if len(out) > maxSpans {
		return between(out.min(), out.max())
	}
	return out
}

// not returns all numbers that aren't in a set.
func (s set) not() set {
	var out set
	from := number{}
	for _, x := range s {
		if compare(x.min, from) > 0 {
			out = append(out, span{from, x.min.previous()})
		}
		if x.max == most {
			return out
		}
		from = x.max.next()
	}
	return append(out, span{from, most})
}

// each maps integers by a function that is monotonic in each range.
func (s set) each(f func(uint64) uint64) set {
	var out set
	for _, x := range s {
		out = append(out, span{small(f(x.min.lo)), small(f(x.max.lo))})
	}
	return out.or(nil)
}

// plus adds a constant to integers, which wrap around.
func (s set) plus(c uint64) set {
	var out set
	for _, x := range s {
		lo, hi := x.min.lo+c, x.max.lo+c
		switch {
		case x.max.lo-x.min.lo == ^uint64(0):
			return anyUint
		case lo <= hi:
			out = append(out, span{small(lo), small(hi)})
		default:
			out = append(out, span{small(lo), most64}, span{number{}, small(hi)})
		}
	}
	return out.or(nil)
}
