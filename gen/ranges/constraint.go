package ranges

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Max is the largest integer of so many bits.
func Max(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<bits - 1
}

// Of returns the integers up to a limit that a constraint allows.
func Of(k *spec.Constraint, limit uint64) Set {
	all, v := UpTo(limit), Point(k.Value.Int)
	switch k.Op {
	case spec.IsEq:
		return all.And(v)
	case spec.IsNe:
		return all.And(v.Not())
	case spec.IsLt:
		return all.And(below(k.Value.Int))
	case spec.IsLe:
		return all.And(UpTo(k.Value.Int))
	case spec.IsGt:
		return all.And(UpTo(k.Value.Int).Not())
	case spec.IsGe:
		return all.And(below(k.Value.Int).Not())
	case spec.IsOr:
		var some Set
		for _, a := range k.Args {
			some = some.Or(Of(a, limit))
		}
		return some
	case spec.IsAnd:
		for _, a := range k.Args {
			all = all.And(Of(a, limit))
		}
		return all
	}
	return nil
}

func below(v uint64) Set { return UpTo(v).And(Point(v).Not()) }

// Has reports whether a set has an integer.
func (s Set) Has(v uint64) bool { return len(s.And(Point(v))) > 0 }

// Ranges returns a set of integers as a plan has it.
func (s Set) Ranges() (rs []ir.Range) {
	for _, x := range s {
		rs = append(rs, ir.Range{Min: x.Min.Lo, Max: x.Max.Lo})
	}
	return rs
}
