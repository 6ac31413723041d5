package server

import "testing"

func TestUnwrapper(t *testing.T) {
	var u unwrapper
	var last int64
	for i, v := range []uint16{65534, 65535, 0, 1, 40000, 10, 65535} {
		n := u.next(v)
		if uint16(n) != v {
			t.Fatalf("%d became %d", v, n)
		}
		if i > 0 && i < 4 && n != last+1 {
			t.Errorf("%d is %d behind the one in front of it", v, n-last)
		}
		last = n
	}
	if u.near(10)-u.near(65530) != 16 {
		t.Error("numbers on both sides of the wrap are not neighbours")
	}
}

// sentAll makes a history of packets that were sent, by original and number.
func sentAll(pairs ...[2]int) (*history, []gap) {
	h := &history{}
	var gaps []gap
	for _, p := range pairs {
		if g, ok := h.add(int64(p[0]), uint16(p[1])); ok {
			gaps = append(gaps, g)
		}
	}
	return h, gaps
}

// What is free between two packets goes to those that were neither sent nor left out.
func TestHoles(t *testing.T) {
	type pairs = map[int64]uint16
	for _, c := range []struct {
		name    string
		sent    [][2]int
		leftOut []int64 // as far as is known
		want    pairs   // nil: not known
		gaps    int
	}{
		{"nothing is missing", [][2]int{{10, 100}, {11, 101}}, nil, nil, 0},
		{"all was left out", [][2]int{{10, 100}, {14, 101}}, []int64{11, 12, 13}, nil, 0},
		{"one was lost", [][2]int{{10, 100}, {12, 102}}, nil, pairs{11: 101}, 1},
		{"one was lost, the others left out", [][2]int{{10, 100}, {14, 102}}, []int64{11, 13}, pairs{12: 101}, 1},
		{"two were lost on both sides of one that was left out", [][2]int{{10, 100}, {14, 103}}, []int64{12},
			pairs{11: 101, 13: 102}, 1},
		{"what was left out isn't known yet", [][2]int{{10, 100}, {14, 102}}, []int64{11}, nil, 1},
		{"more would have been left out than were", [][2]int{{10, 100}, {14, 103}}, []int64{11, 12}, nil, 1},
		{"all is free, whatever would have been left out", [][2]int{{10, 100}, {13, 103}}, []int64{11, 12},
			pairs{11: 101, 12: 102}, 1},
		{"over the wrap", [][2]int{{10, 65535}, {13, 1}}, []int64{11}, pairs{12: 0}, 1},
	} {
		_, gaps := sentAll(c.sent...)
		if len(gaps) != c.gaps {
			t.Errorf("%s: %d gaps", c.name, len(gaps))
			continue
		}
		if c.gaps == 0 {
			continue
		}
		holes, known := gaps[0].holes(func(o int64) bool {
			for _, l := range c.leftOut {
				if l == o {
					return true
				}
			}
			return false
		})
		if known != (c.want != nil) || len(holes) != len(c.want) {
			t.Errorf("%s: %v, %v", c.name, holes, known)
			continue
		}
		for _, hole := range holes {
			if n, ok := c.want[hole.original]; !ok || n != uint16(hole.number) {
				t.Errorf("%s: packet %d gets number %d, want %d", c.name, hole.original, uint16(hole.number), n)
			}
		}
	}
}

// Numbers are found back to the packets they were given to, as far as the window reaches.
func TestHistory(t *testing.T) {
	h, _ := sentAll([2]int{70000, 65530}, [2]int{70001, 65531}, [2]int{70004, 65534})
	if s, ok := h.ofNumber(h.numbers.near(65531)); !ok || s.original != 70001 {
		t.Errorf("65531 is %+v, %v", s, ok)
	}
	if s, ok := h.ofNumber(h.numbers.near(65534)); !ok || s.original != 70004 {
		t.Errorf("65534 is %+v, %v", s, ok)
	}
	g, ok := h.gapAt(h.numbers.near(65533))
	if !ok || g.from.original != 70001 || g.to.original != 70004 || g.free() != 2 {
		t.Errorf("the gap around 65533: %+v, %v", g, ok)
	}
	h.fill(sent{original: 70002, number: h.numbers.near(65532)})
	if g, ok := h.gapAt(h.numbers.near(65533)); !ok || g.from.original != 70002 || g.free() != 1 {
		t.Errorf("the gap that is left: %+v, %v", g, ok)
	}
	for _, n := range []uint16{65529, 65530, 65534, 65535, 100} {
		if g, ok := h.gapAt(h.numbers.near(n)); ok && n != 65533 {
			t.Errorf("%d has neighbours: %+v", n, g)
		}
	}
	for i := range 3 * window {
		h.add(int64(70005+i), uint16(65535+i))
	}
	if _, ok := h.ofNumber(h.numbers.near(65531)); ok {
		t.Error("the window has no end")
	}
	if s, ok := h.ofNumber(h.last.number); !ok || s.original != int64(70004+3*window) {
		t.Error("the last packet isn't known")
	}
}
