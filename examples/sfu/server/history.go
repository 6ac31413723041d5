package server

// sent is a packet that a receiver was sent: the number that it came with, and the one it went with. Neither wraps.
type sent struct {
	original, number int64
	padding          bool // padding was sent in its place
}

// history knows which of a stream's packets a receiver was sent under which numbers, as far back as its window reaches.
// What was never sent is known from the neighbours: between two packets that were sent, as many numbers are free as
// packets were neither sent nor left out.
type history struct {
	byNumber [window]sent
	numbers  unwrapper
	first    sent
	last     sent // the one with the highest original
	count    uint64
}

// gap is a pair of neighbours with free numbers in between.
type gap struct{ from, to sent }

// free is how many numbers between the two were not used.
func (g gap) free() int64 { return g.to.number - g.from.number - 1 }

// add notes a packet that was sent. It returns the gap in front of it, if there is one.
func (h *history) add(original int64, number uint16) (gap, bool) {
	s := sent{original: original, number: h.numbers.next(number)}
	before, begun := h.last, h.count > 0
	h.put(s)
	if !begun {
		h.first, h.last = s, s
		return gap{}, false
	}
	if s.original < before.original {
		return gap{}, false
	}
	h.last = s
	g := gap{before, s}
	return g, g.free() > 0
}

func (h *history) put(s sent) {
	h.byNumber[s.number&(window-1)] = s
	h.count++
}

// fill notes a packet that was sent into a gap.
func (h *history) fill(s sent) { h.put(s) }

func (h *history) ofNumber(number int64) (sent, bool) {
	s := h.byNumber[number&(window-1)]
	return s, h.count > 0 && s.number == number
}

// gapAt finds the neighbours of a number that was not sent.
func (h *history) gapAt(number int64) (gap, bool) {
	if h.count == 0 || number <= h.first.number || number >= h.last.number || h.last.number-number >= window {
		return gap{}, false
	}
	var g gap
	for n, found := number-1, false; !found; n-- {
		if n < h.first.number || n <= h.last.number-window {
			return gap{}, false
		}
		g.from, found = h.ofNumber(n)
	}
	for n, found := number+1, false; !found; n++ {
		g.to, found = h.ofNumber(n)
	}
	return g, true
}

// holes returns the packets of a gap that were neither sent nor left out, with the numbers that are free for them. The
// function says whether a packet was left out, as far as that is known. It returns false if the
// two sides don't add up: then no packet's number is known.
func (g gap) holes(leftOut func(original int64) bool) ([]sent, bool) {
	between := g.to.original - g.from.original - 1
	if g.free() <= 0 || g.free() > between || between > window {
		return nil, false
	}
	var list []sent
	number := g.from.number
	for o := g.from.original + 1; o < g.to.original; o++ {
		if g.free() < between && leftOut(o) {
			continue
		}
		number++
		list = append(list, sent{original: o, number: number})
	}
	if int64(len(list)) != g.free() {
		return nil, false
	}
	return list, true
}
