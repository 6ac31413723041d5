package server

import "slices"

// A span is the integers from one to before another.
type span struct{ from, to uint64 }

// Spans are ascending, and don't touch.
type spans []span

// add adds a span, and returns how much of it is new.
func (s *spans) add(from, to uint64) (added uint64) {
	if from >= to {
		return 0
	}
	i, _ := slices.BinarySearchFunc(*s, from, func(x span, from uint64) int { // the first one that the new one touches
		if x.to < from {
			return -1
		}
		return 1
	})
	j, was := i, uint64(0)
	for ; j < len(*s) && (*s)[j].from <= to; j++ {
		was += (*s)[j].to - (*s)[j].from
	}
	if j > i {
		from, to = min(from, (*s)[i].from), max(to, (*s)[j-1].to)
	}
	*s = slices.Replace(*s, i, j, span{from, to})
	return to - from - was
}

// remove removes a span, and returns how much of it was there.
func (s *spans) remove(from, to uint64) (removed uint64) {
	if from >= to {
		return 0
	}
	var left spans
	for _, x := range *s {
		removed += max(min(x.to, to), x.from, from) - max(x.from, from)
		if x.from < from {
			left = append(left, span{x.from, min(x.to, from)})
		}
		if x.to > to {
			left = append(left, span{max(x.from, to), x.to})
		}
	}
	*s = left
	return removed
}

// contain reports whether n is in one of the spans.
func (s spans) contain(n uint64) bool {
	_, found := slices.BinarySearchFunc(s, n, func(x span, n uint64) int {
		switch {
		case x.to <= n:
			return -1
		case x.from > n:
			return 1
		}
		return 0
	})
	return found
}

// missing returns the parts of a span that aren't there.
func (s spans) missing(from, to uint64) (parts []span) {
	for _, x := range s {
		if x.to <= from {
			continue
		}
		if x.from >= to {
			break
		}
		if x.from > from {
			parts = append(parts, span{from, x.from})
		}
		from = x.to
	}
	if from < to {
		parts = append(parts, span{from, to})
	}
	return parts
}
