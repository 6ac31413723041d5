package relay

import (
	"cmp"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// list adds a stream to those of the session. What it is to send counts from now on.
func (s *session) list(o *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outgoing[o] = struct{}{}
	o.listed = true
	s.backlog += o.waits
	s.lighten()
}

func (s *session) unlist(o *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(o)
	s.assign()
}

func (s *session) remove(o *outgoing) {
	if o.listed {
		o.listed = false
		delete(s.outgoing, o)
		s.backlog -= o.waits
	}
}

// wait changes how much a stream has to send. If the session has too much, the least urgent streams are given up.
func (s *session) wait(o *outgoing, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.listed {
		o.waits += n
		s.backlog += n
		s.lighten()
	}
}

// lighten gives streams up until what waits is within the limit.
func (s *session) lighten() {
	for s.backlog > s.relay.config.Backlog {
		var last *outgoing
		for o := range s.outgoing {
			if o.waits > 0 && (last == nil || compareDrops(o, last) > 0) {
				last = o
			}
		}
		if last == nil {
			return // what waits is the sum of what each of them has
		}
		s.remove(last)
		last.drop(droppedBacklog)
	}
}

// compareDrops says which of two streams is given up first: the larger one. It is the less urgent, and then the older.
func compareDrops(a, b *outgoing) int {
	return cmp.Or(
		cmp.Compare(a.subscription.urgency(), b.subscription.urgency()),
		cmp.Compare(a.subgroup.priority, b.subgroup.priority),
		cmp.Compare(b.subgroup.group.id, a.subgroup.group.id),
		cmp.Compare(a.subgroup.header.Subgroup, b.subgroup.header.Subgroup),
	)
}

// rank has the library send the session's streams in the order of their priorities.
func (s *session) rank() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assign()
}

// assign maps priorities to the library's urgencies (§5.1.2). There are five for data: the subscribers' priorities
// come first, then the publisher's, then each subscription's order of groups and of subgroups in them. Streams of
// several subscriptions that are equal take turns. What has no urgency of its own shares the last one.
func (s *session) assign() {
	if len(s.outgoing) < 2 {
		for o := range s.outgoing {
			o.setUrgency(urgencyData)
		}
		return
	}
	all := make([]*outgoing, 0, len(s.outgoing))
	for o := range s.outgoing {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *outgoing) int { return cmp.Or(comparePriorities(a, b), compareOrder(a, b)) })
	// What comes how many steps after the first one of its subscription and priority.
	steps := make(map[*outgoing]int, len(all))
	first := map[*subscription]*outgoing{}
	for _, o := range all {
		u := o.subscription
		if before := first[u]; before != nil && comparePriorities(before, o) == 0 {
			steps[o] = steps[before] + 1
		}
		first[u] = o
	}
	slices.SortStableFunc(all, func(a, b *outgoing) int {
		return cmp.Or(comparePriorities(a, b), cmp.Compare(steps[a], steps[b]))
	})
	urgency := int8(urgencyData)
	for i, o := range all {
		if i > 0 && (comparePriorities(all[i-1], o) != 0 || steps[all[i-1]] != steps[o]) {
			urgency = min(urgency+1, urgencyLeast)
		}
		o.setUrgency(urgency)
	}
}

func comparePriorities(a, b *outgoing) int {
	return cmp.Or(
		cmp.Compare(a.subscription.urgency(), b.subscription.urgency()),
		cmp.Compare(a.subgroup.priority, b.subgroup.priority),
	)
}

// compareOrder compares streams of one priority: by subscription, and within one in its order of groups.
func compareOrder(a, b *outgoing) int {
	u := a.subscription
	if c := cmp.Compare(u.serial, b.subscription.serial); c != 0 {
		return c
	}
	groups := cmp.Compare(a.subgroup.group.id, b.subgroup.group.id)
	if u.order.Or(a.subgroup.timeouts.order) == wire.Descending {
		groups = -groups
	}
	return cmp.Or(groups, cmp.Compare(a.subgroup.header.Subgroup, b.subgroup.header.Subgroup))
}

func (o *outgoing) setUrgency(urgency int8) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stream != nil && o.urgency != urgency {
		o.urgency = urgency
		o.stream.SetPriority(urgency, true)
	}
}
