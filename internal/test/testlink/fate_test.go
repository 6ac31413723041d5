package testlink

import (
	"math"
	"strings"
	"testing"
)

// The shares are those asked for, bursts have the length asked for.
func TestShares(t *testing.T) {
	const packets = 1_000_000
	_, fates := Config{Seed: 7, FromB: Direction{
		Loss: 0.03, Bursts: Bursts{Loss: 0.02, Length: 5}, Duplicates: 0.01, Reordering: Reordering{Share: 0.04, By: 3},
	}}.Fates()
	var lost, inBursts, bursts, twice, behind int
	before := Fate{}
	for range packets {
		f := fates.Next()
		count := func(n *int, holds bool) {
			if holds {
				*n++
			}
		}
		count(&lost, f.Lost)
		count(&inBursts, f.InBurst)
		count(&bursts, f.InBurst && !before.InBurst)
		count(&twice, f.Twice)
		count(&behind, f.Overtaken == 3)
		before = f
	}
	for _, s := range []struct {
		name       string
		count      int
		want, near float64
	}{
		{"lost", lost, 0.03, 0.001}, {"lost in bursts", inBursts, 0.02, 0.001}, {"duplicated", twice, 0.01, 0.001},
		{"reordered", behind, 0.04, 0.001},
	} {
		if got := float64(s.count) / packets; math.Abs(got-s.want) > s.near {
			t.Errorf("%s: a share of %.4f, not %.4f", s.name, got, s.want)
		}
	}
	if got := float64(inBursts) / float64(bursts); math.Abs(got-5) > 0.15 {
		t.Errorf("bursts of %.2f packets on average, not 5", got)
	}
}

// Exact bursts are of one length, and lose the share asked for.
func TestExactBursts(t *testing.T) {
	const packets = 1_000_000
	_, fates := Config{Seed: 7, FromB: Direction{Bursts: Bursts{Loss: 0.02, Length: 20, Exact: true}}}.Fates()
	lost, burst := 0, 0
	for range packets {
		if fates.Next().InBurst {
			lost++
			burst++
		} else {
			if burst > 0 && burst != 20 {
				t.Fatalf("a burst of %d packets", burst)
			}
			burst = 0
		}
	}
	if got := float64(lost) / packets; math.Abs(got-0.02) > 0.001 {
		t.Errorf("a share of %.4f is lost, not 0.02", got)
	}
}

// A packet's fate depends on the seed, the direction, its number and its own setting, and on nothing else.
func TestFatesAreFixed(t *testing.T) {
	lost := func(seed uint64, fromB bool, d Direction) string {
		a, b := Config{Seed: seed, FromA: d, FromB: d}.Fates()
		if fromB {
			a = b
		}
		var s strings.Builder
		for range 2000 {
			f := a.Next()
			if f.Lost {
				s.WriteByte('x')
			} else {
				s.WriteByte('.')
			}
		}
		return s.String()
	}
	d := Direction{Loss: 0.1}
	all := d
	all.Bursts, all.Duplicates, all.Reordering = Bursts{Loss: 0.1, Length: 2}, 0.5, Reordering{Share: 0.2, By: 4}
	if lost(1, false, d) != lost(1, false, all) {
		t.Error("with one seed, other packets are lost")
	}
	if lost(1, false, d) == lost(2, false, d) || lost(1, false, d) == lost(1, true, d) {
		t.Error("with another seed or in the other direction, the same packets are lost")
	}
	if n := strings.Count(lost(1, false, Direction{Loss: 1}), "x"); n != 2000 {
		t.Errorf("%d of 2,000 packets are lost, not all", n)
	}
}

func TestWrongConfig(t *testing.T) {
	for want, d := range map[string]Direction{
		"":                                    {},
		"Loss is a share":                     {Loss: 1.5},
		"Duplicates is a share":               {Duplicates: math.NaN()},
		"can't lose 0.9 of all":               {Bursts: Bursts{Loss: 0.9, Length: 2}},
		"can't lose 1 of all":                 {Bursts: Bursts{Loss: 1, Length: 2}},
		"bursts of 0 packets":                 {Bursts: Bursts{Loss: 0.1}},
		"bursts of exactly 2.5 packets":       {Bursts: Bursts{Loss: 0.1, Length: 2.5, Exact: true}},
		"Reordering.By is the number":         {Reordering: Reordering{Share: 0.1}},
		"a delay, a rate or a queue is negat": {Delay: -1},
	} {
		err := Config{FromB: d}.check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "FromB: ") ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
