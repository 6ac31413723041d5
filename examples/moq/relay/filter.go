package relay

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// maxRanges is how many ranges all range filters of a subscription or fetch may have: MAX_FILTER_RANGES (§9.1.6).
const maxRanges = 64

// checkRanges refuses range filters of which the relay takes no more, or that have no range.
func checkRanges(filters []wire.RangeFilter) *wire.Rejection {
	n := 0
	for _, f := range filters {
		if len(f.Ranges) == 0 && !f.Removed {
			return &wire.Rejection{Code: wire.InvalidFilter, Text: "a range filter has no range"}
		}
		n += len(f.Ranges)
	}
	if n > maxRanges {
		return &wire.Rejection{Code: wire.InvalidFilter,
			Text: fmt.Sprintf("the range filters have %d ranges; at most %d are allowed", n, maxRanges)}
	}
	return nil
}

// updateRanges returns range filters as an update leaves them: what it has of a kind replaces all of that kind
// (§3.3.2).
func updateRanges(old, update []wire.RangeFilter) []wire.RangeFilter {
	if len(update) == 0 {
		return old
	}
	all := slices.DeleteFunc(slices.Clone(old), func(f wire.RangeFilter) bool {
		return slices.ContainsFunc(update, func(u wire.RangeFilter) bool { return u.Kind == f.Kind })
	})
	for _, u := range update {
		if !u.Removed {
			all = append(all, u)
		}
	}
	return all
}

// An objectFilter is what the range filters of a request ask for: sets of filters, of which an object has to pass one
// whole (§3.3.2). Nil passes everything, without a set nothing passes.
type objectFilter [][]wire.RangeFilter

// newObjectFilter returns the filter for the objects of a track that has certain properties.
func newObjectFilter(filters []wire.RangeFilter, track wire.Properties) objectFilter {
	if len(filters) == 0 {
		return nil
	}
	sets := map[uint8][]wire.RangeFilter{}
	for _, f := range filters {
		sets[f.Set] = append(sets[f.Set], f)
	}
	all := make(objectFilter, 0, len(sets))
	for _, set := range sets {
		all = append(all, set)
	}
	return all.given(func(f *wire.RangeFilter) (passes, known bool) {
		return hasValue(track, f), f.Kind == wire.FilterTrackProperty
	})
}

// given returns what is left of a filter when it is known of some of its filters whether all objects in question pass.
func (f objectFilter) given(decide func(*wire.RangeFilter) (passes, known bool)) objectFilter {
	if f == nil {
		return nil
	}
	left := make(objectFilter, 0, len(f))
sets:
	for _, set := range f {
		var open []wire.RangeFilter
		for i := range set {
			passes, known := decide(&set[i])
			switch {
			case !known:
				open = append(open, set[i])
			case !passes:
				continue sets
			}
		}
		if open == nil {
			return nil
		}
		left = append(left, open)
	}
	return left
}

// in returns what is left of the filter for objects of one subgroup, or for a datagram, which has none.
func (f objectFilter) in(subgroup wire.Optional[uint64], priority uint8) objectFilter {
	return f.given(func(r *wire.RangeFilter) (passes, known bool) {
		switch r.Kind {
		case wire.FilterSubgroup:
			return subgroup.Present && contains(r.Ranges, subgroup.Value), true
		case wire.FilterPriority:
			return contains(r.Ranges, uint64(priority)), true
		}
		return false, false
	})
}

// none reports whether nothing passes.
func (f objectFilter) none() bool { return f != nil && len(f) == 0 }

// passes reports whether an object passes what [objectFilter.in] has left.
func (f objectFilter) passes(id uint64, properties func() wire.Properties) bool {
	if f == nil {
		return true
	}
	return slices.ContainsFunc(f, func(set []wire.RangeFilter) bool {
		for i := range set {
			if set[i].Kind == wire.FilterObjectID && !contains(set[i].Ranges, id) ||
				set[i].Kind == wire.FilterObjectProperty && !hasValue(properties(), &set[i]) {
				return false
			}
		}
		return true
	})
}

// passesObject reports whether an object that is whole passes.
func (f objectFilter) passesObject(o *wire.FetchObject) bool {
	if f == nil {
		return true
	}
	subgroup := wire.Optional[uint64]{Value: o.Subgroup, Present: !o.Datagram}
	return f.in(subgroup, o.Priority).passes(o.ID, func() wire.Properties { return o.Properties })
}

func contains(ranges []wire.Range, v uint64) bool {
	return slices.ContainsFunc(ranges, func(r wire.Range) bool { return v >= r.Start && v <= r.End })
}

// hasValue reports whether properties, or the immutable ones among them, have a value that a filter asks for (§10.7).
func hasValue(p wire.Properties, f *wire.RangeFilter) bool {
	for q, err := range p.All() {
		switch {
		case err != nil:
			return false
		case q.Type == f.Property && contains(f.Ranges, q.Value),
			q.Type == wire.PropertyImmutable && hasImmutable(q.Bytes, f):
			return true
		}
	}
	return false
}

func hasImmutable(p wire.Properties, f *wire.RangeFilter) bool {
	for q, err := range p.All() {
		if err == nil && q.Type == f.Property && contains(f.Ranges, q.Value) {
			return true
		}
	}
	return false
}

// passesDatagram reports whether a datagram passes, by the track's priority if it has none.
func (f objectFilter) passesDatagram(d *wire.Datagram, priority uint8) bool {
	return f == nil || f.passesObject(&wire.FetchObject{
		ID: d.Object, Datagram: true, Priority: d.Priority.Or(priority), Properties: d.Properties,
	})
}

// checkFilters refuses range filters of a request or update, given those that there are, and those of a fill, which
// inherits them (§9.20.16).
func checkFilters(old []wire.RangeFilter, p *wire.Parameters) *wire.Rejection {
	if rejection := checkRanges(p.RangeFilters); rejection != nil {
		return rejection
	}
	all := updateRanges(old, p.RangeFilters)
	rejection := checkRanges(all)
	if rejection == nil && p.Fill != nil {
		if rejection = checkRanges(p.Fill.RangeFilters); rejection == nil {
			rejection = checkRanges(updateRanges(all, p.Fill.RangeFilters))
		}
	}
	return rejection
}

// filtersTracks reports whether a filter is one of tracks, which only SUBSCRIBE_TRACKS and its updates may have.
func filtersTracks(f wire.RangeFilter) bool { return f.Kind == wire.FilterTrackProperty }
