package relay

import (
	"slices"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// few are the locations of a small world: groups 0 to 3 and the last one, of which each has the objects 0 to 3 and the
// last one.
func few() (all []wire.Location) {
	ends := []uint64{0, 1, 2, 3, 1<<64 - 1}
	for _, group := range ends {
		for _, object := range ends {
			all = append(all, wire.Location{Group: group, Object: object})
		}
	}
	return all
}

// FuzzSpans adds ranges, and compares with a set of all their locations.
func FuzzSpans(f *testing.F) {
	f.Add([]byte{0, 3, 9, 12, 4, 8, 20, 24, 13, 19})
	f.Add([]byte{24, 24, 0, 0, 2, 1, 1, 23})
	f.Fuzz(func(t *testing.T, b []byte) {
		world := few()
		var s spans
		in := map[wire.Location]bool{}
		for ; len(b) >= 2; b = b[2:] {
			first, last := int(b[0])%len(world), int(b[1])%len(world)
			s.add(world[first], world[last])
			for i := first; i <= last; i++ {
				in[world[i]] = true
			}
		}
		for i := range s {
			if s[i].last.Less(s[i].first) || i > 0 && !apart(s[i-1].last, s[i].first) {
				t.Fatalf("%v", s)
			}
		}
		for i, first := range world {
			if s.has(first) != in[first] {
				t.Fatalf("%v: %v", first, s)
			}
			for _, last := range world[i:] {
				left := spans(s.minus(first, last))
				for _, at := range world {
					inside := !at.Less(first) && !last.Less(at)
					if left.has(at) != (inside && !in[at]) {
						t.Fatalf("%v of %v to %v without %v: %v", at, first, last, s, left)
					}
				}
			}
		}
	})
}

// TestSpansLimit forgets the lowest spans.
func TestSpansLimit(t *testing.T) {
	var s spans
	for i := range uint64(maxSpans + 10) {
		s.add(wire.Location{Object: 2 * i}, wire.Location{Object: 2 * i})
	}
	same(t, []int{len(s), int(s[0].first.Object)}, []int{maxSpans, 20})
}

// FuzzCourse goes through a range by any steps: each location is passed once, in order.
func FuzzCourse(f *testing.F) {
	f.Add(uint8(2), uint8(17), true, []byte{13, 12, 4, 9, 3})
	f.Add(uint8(0), uint8(24), false, []byte{1, 7, 7, 20, 24})
	f.Fuzz(func(t *testing.T, a, b uint8, descending bool, steps []byte) {
		world := few()
		first, last := int(a)%len(world), int(b)%len(world)
		if last < first {
			return
		}
		c := newCourse(world[first], world[last], descending)
		want := slices.Clone(world[first : last+1])
		if descending {
			slices.SortStableFunc(want, func(a, b wire.Location) int {
				switch {
				case a.Group > b.Group:
					return -1
				case a.Group < b.Group:
					return 1
				}
				return 0
			})
		}
		next := 0
		passes := func(over []span) {
			for _, s := range over {
				for ; next < len(want) && spans([]span{s}).has(want[next]); next++ {
				}
			}
		}
		for _, b := range steps {
			to := world[int(b)%len(world)]
			i := slices.Index(want, to)
			if c.ahead(to) != (i >= next) {
				t.Fatalf("%v is ahead: %v, at %d of %v", to, c.ahead(to), next, want)
			}
			if i < next {
				continue
			}
			if b >= 128 {
				passes(c.through(to))
				i++
			} else {
				passes(c.pass(to))
			}
			if next != i {
				t.Fatalf("at %d instead of %d of %v", next, i, want)
			}
		}
		if !c.over && c.ahead(c.end()) {
			passes(c.through(c.end()))
		}
		same(t, next, len(want))
		same(t, c.over, true)
	})
}
