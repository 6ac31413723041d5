package ranges

import (
	"math/rand/v2"
	"testing"
)

// in reports whether a set has a value.
func in(s Set, n Number) bool { return len(s.And(Between(n, n))) == 1 }

// Sets are what their operations say: on numbers about the bounds of 64 bits, which wrap around.
func TestSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	value := func() uint64 { return uint64(rng.IntN(24)) - 8 } // some below 0
	random := func() (s Set) {
		for range 1 + rng.IntN(4) {
			lo, hi := value(), value()
			s = s.Or(Between(Small(min(lo, hi)), Small(max(lo, hi))))
		}
		return s
	}
	for range 20_000 {
		x, y, v, c := random(), random(), value(), value()
		n := Small(v)
		for what, ok := range map[string]bool{
			"or":   in(x.Or(y), n) == (in(x, n) || in(y, n)),
			"and":  in(x.And(y), n) == (in(x, n) && in(y, n)),
			"not":  in(x.Not(), n) != in(x, n),
			"plus": in(x.Plus(c), Small(v+c)) == in(x, n),
		} {
			if !ok {
				t.Fatalf("%s: %v, %v, of %d and %d", what, x, y, v, c)
			}
		}
	}
}
