package lua

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// rangeSet is a set of integers: ranges in order, which don't touch.
type rangeSet [][2]uint64

// String is the set as Wireshark's preferences have it: "7,53-60".
func (s rangeSet) String() string {
	var out []string
	for _, r := range s {
		if r[0] == r[1] {
			out = append(out, fmt.Sprint(r[0]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", r[0], r[1]))
		}
	}
	return strings.Join(out, ",")
}

// lua is the set as a table of Lua.
func (s rangeSet) lua() string {
	var out []string
	for _, r := range s {
		out = append(out, fmt.Sprintf("{%d, %d}", r[0], r[1]))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func (s rangeSet) union(t rangeSet) (out rangeSet) {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b [2]uint64) int { return cmp(a[0], b[0]) })
	for _, r := range all {
		if n := len(out); n > 0 && (out[n-1][1] == math.MaxUint64 || r[0] <= out[n-1][1]+1) {
			out[n-1][1] = max(out[n-1][1], r[1])
		} else {
			out = append(out, r)
		}
	}
	return out
}

func cmp(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (s rangeSet) intersect(t rangeSet) (out rangeSet) {
	for _, a := range s {
		for _, b := range t {
			if from, to := max(a[0], b[0]), min(a[1], b[1]); from <= to {
				out = append(out, [2]uint64{from, to})
			}
		}
	}
	return rangeSet(nil).union(out)
}

// rangesOf is what a constraint allows, of the integers up to most.
func rangesOf(c *spec.Constraint, most uint64) rangeSet {
	all := rangeSet{{0, most}}
	switch c.Op {
	case spec.IsAnd:
		for _, a := range c.Args {
			all = all.intersect(rangesOf(a, most))
		}
		return all
	case spec.IsOr:
		var out rangeSet
		for _, a := range c.Args {
			out = out.union(rangesOf(a, most))
		}
		return out
	}
	if c.Value.Kind != spec.LitInt {
		return all
	}
	v := c.Value.Int
	below, above := rangeSet{}, rangeSet{}
	if v > 0 {
		below = rangeSet{{0, v - 1}}
	}
	if v < most {
		above = rangeSet{{v + 1, most}}
	}
	same := rangeSet{{v, v}}
	var out rangeSet
	switch c.Op {
	case spec.IsEq:
		out = same
	case spec.IsNe:
		out = below.union(above)
	case spec.IsLt:
		out = below
	case spec.IsLe:
		out = below.union(same)
	case spec.IsGt:
		out = above
	case spec.IsGe:
		out = above.union(same)
	}
	return out.intersect(all)
}
