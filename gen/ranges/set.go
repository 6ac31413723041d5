// Package ranges computes with sets of numbers: the values that a constraint allows, and those that the result of an
// operator may have.
package ranges

import (
	"cmp"
	"math/bits"
	"slices"
)

// Number is an unsigned integer of 128 bits: an integer of a plan, whose upper half is 0, or a byte string of at most
// 16 bytes, as if it were a big endian integer.
type Number struct{ Hi, Lo uint64 }

// Small is a number of 64 bits.
func Small(v uint64) Number { return Number{Lo: v} }

// Compare orders numbers.
func Compare(a, b Number) int {
	return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo))
}

// Most is the largest number.
var (
	Most   = Number{^uint64(0), ^uint64(0)}
	most64 = Small(^uint64(0))
)

// Next returns the number after one that isn't the largest.
func (a Number) Next() Number {
	lo, carry := bits.Add64(a.Lo, 1, 0)
	return Number{a.Hi + carry, lo}
}

// Previous returns the number in front of one that isn't 0.
func (a Number) Previous() Number {
	lo, borrow := bits.Sub64(a.Lo, 1, 0)
	return Number{a.Hi - borrow, lo}
}

// Span is an inclusive range.
type Span struct{ Min, Max Number }

// Set is what a value may be: ranges in ascending order, with gaps between them. The empty set is of a value that no
// packet has.
type Set []Span

// Between returns the numbers from min to max.
func Between(min, max Number) Set {
	if Compare(min, max) > 0 {
		return nil
	}
	return Set{{min, max}}
}

// Sets of one number, of those from 0 on, of integers of n bits, and of what a condition is.
func Point(v uint64) Set { return Between(Small(v), Small(v)) }
func UpTo(v uint64) Set  { return Between(Number{}, Small(v)) }
func OfBits(n int) Set   { return UpTo(^uint64(0) >> (64 - min(max(n, 1), 64))) }
func Truth(b bool) Set   { return Point(map[bool]uint64{true: 1}[b]) }

// Min and Max return the smallest and the largest number of a set that isn't empty.
func (s Set) Min() Number { return s[0].Min }
func (s Set) Max() Number { return s[len(s)-1].Max }

// What a condition, a byte string and an integer may be.
var (
	Either   = UpTo(1)
	Anything = Between(Number{}, Most)
	AnyUint  = Between(Number{}, most64)
)

// Single returns the only value of a set.
func (s Set) Single() (Number, bool) {
	if len(s) == 1 && s[0].Min == s[0].Max {
		return s[0].Min, true
	}
	return Number{}, false
}

// Always and Never report whether a condition has a value for certain.
func (s Set) Always() bool { return len(s) > 0 && s.Min() != Number{} }
func (s Set) Never() bool  { return len(s) == 1 && s.Max() == Number{} }

// Or returns the values of both sets.
func (s Set) Or(t Set) Set {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b Span) int { return Compare(a.Min, b.Min) })
	var out Set
	for _, x := range all {
		if n := len(out) - 1; n >= 0 && (out[n].Max == Most || Compare(x.Min, out[n].Max.Next()) <= 0) {
			if Compare(x.Max, out[n].Max) > 0 {
				out[n].Max = x.Max
			}
			continue
		}
		out = append(out, x)
	}
	return out
}

// And returns the values that both sets have.
func (s Set) And(t Set) Set {
	var out Set
	for i, j := 0, 0; i < len(s) && j < len(t); {
		a, b := s[i], t[j]
		lo, hi := a.Min, a.Max
		if Compare(b.Min, lo) > 0 {
			lo = b.Min
		}
		if Compare(b.Max, hi) < 0 {
			hi = b.Max
		}
		if Compare(lo, hi) <= 0 {
			out = append(out, Span{lo, hi})
		}
		if Compare(a.Max, b.Max) < 0 {
			i++
		} else {
			j++
		}
	}
	return out
}

// Not returns all numbers that aren't in a set.
func (s Set) Not() Set {
	var out Set
	from := Number{}
	for _, x := range s {
		if Compare(x.Min, from) > 0 {
			out = append(out, Span{from, x.Min.Previous()})
		}
		if x.Max == Most {
			return out
		}
		from = x.Max.Next()
	}
	return append(out, Span{from, Most})
}

// Each maps integers by a function that is monotonic in each range.
func (s Set) Each(f func(uint64) uint64) Set {
	var out Set
	for _, x := range s {
		out = append(out, Span{Small(f(x.Min.Lo)), Small(f(x.Max.Lo))})
	}
	return out.Or(nil)
}

// Plus adds a constant to integers, which wrap around.
func (s Set) Plus(c uint64) Set {
	var out Set
	for _, x := range s {
		lo, hi := x.Min.Lo+c, x.Max.Lo+c
		switch {
		case x.Max.Lo-x.Min.Lo == ^uint64(0):
			return AnyUint
		case lo <= hi:
			out = append(out, Span{Small(lo), Small(hi)})
		default:
			out = append(out, Span{Small(lo), most64}, Span{Number{}, Small(hi)})
		}
	}
	return out.Or(nil)
}
