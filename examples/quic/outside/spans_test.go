package outside

import (
	"math/rand/v2"
	"testing"
)

// TestSpans compares with a set of integers.
func TestSpans(t *testing.T) {
	const size = 60
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var s Spans
		var set [size]bool
		for range r.IntN(20) {
			from := r.Uint64N(size)
			to := from + r.Uint64N(size-from+1)
			want := uint64(0)
			adds := r.IntN(4) > 0
			for i := from; i < to; i++ {
				if set[i] != adds {
					want++
				}
				set[i] = adds
			}
			var got uint64
			if adds {
				got = s.Add(from, to)
			} else {
				got = s.Remove(from, to)
			}
			if got != want {
				t.Fatalf("[%d, %d): %d changed, want %d", from, to, got, want)
			}
		}
		from := r.Uint64N(size)
		to := from + r.Uint64N(size-from+1)
		missing := map[uint64]bool{}
		for _, m := range s.Missing(from, to) {
			for i := m.From; i < m.To; i++ {
				missing[i] = true
			}
		}
		for i := range uint64(size) {
			if missing[i] != (i >= from && i < to && !set[i]) {
				t.Fatalf("%v: %d is missing: %v", s, i, missing[i])
			}
		}
		for i := range uint64(size) {
			if s.Contain(i) != set[i] {
				t.Fatalf("%v: %d is in them: %v", s, i, !set[i])
			}
		}
		for i := range s {
			if s[i].From >= s[i].To || i > 0 && s[i-1].To >= s[i].From {
				t.Fatalf("%v touch", s)
			}
		}
	}
}
