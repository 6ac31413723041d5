package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What constraints on integers allow, as ranges.

func maxOf(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<bits - 1
}

// bounds returns the smallest and largest value that a constraint on an integer allows, up to limit.
func bounds(k *spec.Constraint, limit uint64) (lo, hi uint64, ok bool) {
	rs := ranges(k, limit)
	if len(rs) == 0 {
		return 0, 0, false
	}
	return rs[0].Min, rs[len(rs)-1].Max, true
}

// ranges returns the values that a constraint on an integer allows, as sorted, disjoint ranges up to limit.
func ranges(k *spec.Constraint, limit uint64) []ir.Range {
	clip := func(lo, hi uint64) []ir.Range {
		hi = min(hi, limit)
		if lo > hi {
			return nil
		}
		return []ir.Range{{Min: lo, Max: hi}}
	}
	v := k.Value.Int
	switch k.Op {
	case spec.IsEq:
		return clip(v, v)
	case spec.IsNe:
		var rs []ir.Range
		if v > 0 {
			rs = clip(0, v-1)
		}
		if v < limit {
			rs = append(rs, clip(v+1, limit)...)
		}
		return rs
	case spec.IsLt:
		if v == 0 {
			return nil
		}
		return clip(0, v-1)
	case spec.IsLe:
		return clip(0, v)
	case spec.IsGt:
		if v == ^uint64(0) {
			return nil
		}
		return clip(v+1, limit)
	case spec.IsGe:
		return clip(v, limit)
	case spec.IsOr:
		var rs []ir.Range
		for _, a := range k.Args {
			rs = append(rs, ranges(a, limit)...)
		}
		return normalise(rs)
	case spec.IsAnd:
		rs := clip(0, limit)
		for _, a := range k.Args {
			rs = intersect(rs, ranges(a, limit))
		}
		return rs
	}
	return nil
}

func normalise(rs []ir.Range) []ir.Range {
	slices.SortFunc(rs, func(a, b ir.Range) int {
		switch {
		case a.Min < b.Min:
			return -1
		case a.Min > b.Min:
			return 1
		}
		return 0
	})
	var out []ir.Range
	for _, r := range rs {
		if n := len(out); n > 0 && (r.Min <= out[n-1].Max || r.Min == out[n-1].Max+1) {
			out[n-1].Max = max(out[n-1].Max, r.Max)
			continue
		}
		out = append(out, r)
	}
	return out
}

func intersect(a, b []ir.Range) []ir.Range {
	var out []ir.Range
	for _, x := range a {
		for _, y := range b {
			if lo, hi := max(x.Min, y.Min), min(x.Max, y.Max); lo <= hi {
				out = append(out, ir.Range{Min: lo, Max: hi})
			}
		}
	}
	return normalise(out)
}
