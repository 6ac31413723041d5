package relay

import (
	"slices"
	"sort"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// maxSpans is how many spans are remembered; beyond that, the lowest are forgotten.
const maxSpans = 1024

// A span is a range of locations, both ends inclusive.
type span struct{ first, last wire.Location }

// Spans are ranges of locations that ascend and don't touch.
type spans []span

// after returns the location that follows; ok is false after the last one.
func after(l wire.Location) (next wire.Location, ok bool) {
	switch {
	case l.Object < wire.WholeGroup:
		return wire.Location{Group: l.Group, Object: l.Object + 1}, true
	case l.Group < all.Group:
		return wire.Location{Group: l.Group + 1}, true
	}
	return l, false
}

// before returns the location that precedes one that isn't the first.
func before(l wire.Location) wire.Location {
	if l.Object > 0 {
		return wire.Location{Group: l.Group, Object: l.Object - 1}
	}
	return wire.Location{Group: l.Group - 1, Object: wire.WholeGroup}
}

// apart reports whether there is something between the end of a span and the beginning of another.
func apart(last, first wire.Location) bool {
	next, ok := after(last)
	return ok && next.Less(first)
}

// add adds a range.
func (s *spans) add(first, last wire.Location) {
	if last.Less(first) {
		return
	}
	i := sort.Search(len(*s), func(i int) bool { return !apart((*s)[i].last, first) })
	j := i
	for j < len(*s) && !apart(last, (*s)[j].first) {
		j++
	}
	if i < j {
		first, last = earlier(first, (*s)[i].first), later(last, (*s)[j-1].last)
	}
	*s = slices.Replace(*s, i, j, span{first, last})
	if len(*s) > maxSpans {
		*s = slices.Delete(*s, 0, 1)
	}
}

// has reports whether a location is in one of the spans.
func (s spans) has(at wire.Location) bool {
	i := sort.Search(len(s), func(i int) bool { return !s[i].last.Less(at) })
	return i < len(s) && !at.Less(s[i].first)
}

// minus returns what of a range isn't in the spans.
func (s spans) minus(first, last wire.Location) (left []span) {
	i := sort.Search(len(s), func(i int) bool { return !s[i].last.Less(first) })
	for ; i < len(s) && !last.Less(s[i].first); i++ {
		if first.Less(s[i].first) {
			left = append(left, span{first, before(s[i].first)})
		}
		var ok bool
		if first, ok = after(s[i].last); !ok {
			return left
		}
	}
	if !last.Less(first) {
		left = append(left, span{first, last})
	}
	return left
}

func earlier(a, b wire.Location) wire.Location {
	if a.Less(b) {
		return a
	}
	return b
}

func later(a, b wire.Location) wire.Location {
	if a.Less(b) {
		return b
	}
	return a
}

// A course goes through a range in the order of a fetch: objects ascend within a group, and groups do so or descend.
type course struct {
	span
	descending bool
	at         wire.Location // is next
	over       bool          // nothing is
}

func newCourse(first, last wire.Location, descending bool) course {
	c := course{span: span{first, last}, descending: descending}
	c.at, c.over = c.enter(first.Group), last.Less(first)
	if descending {
		c.at = c.enter(last.Group)
	}
	return c
}

// enter returns the first location in a group, leave the last.
func (c *course) enter(group uint64) wire.Location {
	return later(c.first, wire.Location{Group: group})
}

func (c *course) leave(group uint64) wire.Location {
	return earlier(c.last, wire.Location{Group: group, Object: wire.WholeGroup})
}

// end is the last location in the order.
func (c *course) end() wire.Location {
	if c.descending {
		return c.leave(c.first.Group)
	}
	return c.last
}

// ahead reports whether a location is still to come.
func (c *course) ahead(at wire.Location) bool {
	switch {
	case c.over || at.Less(c.first) || c.last.Less(at):
		return false
	case c.descending && at.Group != c.at.Group:
		return at.Group < c.at.Group
	}
	return !at.Less(c.at)
}

// pass goes on to a location that is ahead, and returns what it goes over.
func (c *course) pass(to wire.Location) (over []span) {
	skip := func(first, last wire.Location) {
		if !last.Less(first) {
			over = append(over, span{first, last})
		}
	}
	switch {
	case to == c.at:
	case !c.descending || to.Group == c.at.Group:
		skip(c.at, before(to))
	default:
		skip(c.at, c.leave(c.at.Group))
		if to.Group+1 < c.at.Group {
			skip(wire.Location{Group: to.Group + 1}, wire.Location{Group: c.at.Group - 1, Object: wire.WholeGroup})
		}
		if enter := c.enter(to.Group); enter.Less(to) {
			skip(enter, before(to))
		}
	}
	c.at = to
	return over
}

// step goes on to what follows.
func (c *course) step() {
	if c.at == c.end() {
		c.over = true
		return
	}
	if c.descending && c.at == c.leave(c.at.Group) {
		c.at = c.enter(c.at.Group - 1)
		return
	}
	c.at, _ = after(c.at)
}

// through goes on past a location that is ahead, and returns what it goes over, with the location.
func (c *course) through(to wire.Location) []span {
	over := append(c.pass(to), span{to, to})
	c.step()
	return over
}

// marker is the location of a marker for all that is left: that of the end, but the lowest if several groups descend.
func (c *course) marker() wire.Location {
	if c.descending && c.at.Group != c.first.Group {
		return c.first
	}
	return c.end()
}
