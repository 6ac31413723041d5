package outside

import "slices"

// A Span is the integers from one to before another.
type Span struct{ From, To uint64 }

// Spans are ascending, and don't touch.
type Spans []Span

// Add adds a span, and returns how much of it is new.
func (s *Spans) Add(from, to uint64) (added uint64) {
	if from >= to {
		return 0
	}
	i, _ := slices.BinarySearchFunc(*s, from, func(x Span, from uint64) int { // the first one that the new one touches
		if x.To < from {
			return -1
		}
		return 1
	})
	j, was := i, uint64(0)
	for ; j < len(*s) && (*s)[j].From <= to; j++ {
		was += (*s)[j].To - (*s)[j].From
	}
	if j > i {
		from, to = min(from, (*s)[i].From), max(to, (*s)[j-1].To)
	}
	*s = slices.Replace(*s, i, j, Span{from, to})
	return to - from - was
}

// Remove removes a span, and returns how much of it was there.
func (s *Spans) Remove(from, to uint64) (removed uint64) {
	if from >= to {
		return 0
	}
	var left Spans
	for _, x := range *s {
		removed += max(min(x.To, to), x.From, from) - max(x.From, from)
		if x.From < from {
			left = append(left, Span{x.From, min(x.To, from)})
		}
		if x.To > to {
			left = append(left, Span{max(x.From, to), x.To})
		}
	}
	*s = left
	return removed
}

// Contain reports whether n is in one of the spans.
func (s Spans) Contain(n uint64) bool {
	_, found := slices.BinarySearchFunc(s, n, func(x Span, n uint64) int {
		switch {
		case x.To <= n:
			return -1
		case x.From > n:
			return 1
		}
		return 0
	})
	return found
}

// Missing returns the parts of a span that aren't there.
func (s Spans) Missing(from, to uint64) (parts []Span) {
	for _, x := range s {
		if x.To <= from {
			continue
		}
		if x.From >= to {
			break
		}
		if x.From > from {
			parts = append(parts, Span{from, x.From})
		}
		from = x.To
	}
	if from < to {
		parts = append(parts, Span{from, to})
	}
	return parts
}
