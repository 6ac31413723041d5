package acks

import (
	"slices"
	"testing"
	"time"
)

// TestEvery compares with a quarter of the window.
func TestEvery(t *testing.T) {
	for _, c := range [][4]int{
		{10, 32 * 1280, 1280, 8}, {10, 100000, 1200, 10}, {10, 2400, 1200, 2}, {10, 0, 0, 2}, {1, 100000, 1200, 1},
		{20, 100000, 1400, 17},
	} {
		if got := every(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("of %d, with a window of %d, packets of %d: %d, want %d", c[0], c[1], c[2], got, c[3])
		}
	}
}

// askable is a peer that offers ACK_FREQUENCY, or doesn't.
type askable struct {
	offers bool
	asked  []int
}

func (a *askable) RequestACKs(packets int, _ time.Duration) bool {
	a.asked = append(a.asked, packets)
	return a.offers
}

// TestRequests has the window grow and shrink.
func TestRequests(t *testing.T) {
	for _, offers := range []bool{true, false} {
		p := &askable{offers: offers}
		var r Requests
		for _, packets := range []int{0, 12, 16, 20, 24, 40, 48, 60, 64, 100, 40, 12, 4, 100} {
			r.Update(p, Policy{Packets: 16}, packets*1200, 1200)
			r.Update(p, Policy{Packets: -1}, packets*1200, 1200)
		}
		want := []int{3, 6, 12, 16, 10, 3, 2, 16}
		if !offers {
			want = want[:1]
		}
		if !slices.Equal(p.asked, want) {
			t.Errorf("offers %v: asked for %v, want %v", offers, p.asked, want)
		}
	}
}

// TestParse reads what -acks takes.
func TestParse(t *testing.T) {
	if p, err := Parse("10,20"); p != (Policy{10, 20 * time.Millisecond}) || err != nil {
		t.Error(p, err)
	}
	if p, err := Parse("0"); p.Packets >= 0 || err != nil {
		t.Error(p, err)
	}
	for _, wrong := range []string{"", "10", "10,", ",20", "0,20", "10,0", "10,20,30", "ten,20", "-1,20"} {
		if _, err := Parse(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}
