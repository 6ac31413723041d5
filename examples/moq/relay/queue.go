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

// waits reports whether something does.
func (s *session) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlog > 0
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

// A standing is what a stream is ranked by (§5.1.2).
type standing struct {
	subscriber uint32
	publisher  uint8
	serial     uint64 // of the subscription or fetch
	behind     bool   // a fill whose groups are in another order than its subscription's
	group      uint64 // descending ones are counted down
	fill       bool
	subgroup   uint64
	set        func(urgency int8)
	steps      int // after the first one of its subscription and priority
}

func (o *outgoing) standing() standing {
	u, sg := o.subscription, o.subgroup
	return standing{
		subscriber: u.urgency(), publisher: sg.priority, serial: u.serial, subgroup: sg.header.Subgroup,
		group: inOrder(sg.group.id, u.order.Or(sg.timeouts.order)), set: o.setUrgency,
	}
}

func (f *fetching) standing() standing {
	one := standing{
		subscriber: uint32(f.priority), publisher: f.publisher, serial: f.serial, group: inOrder(f.group, f.order),
		fill: f.of != nil, set: f.setUrgency,
	}
	if u := f.of; u != nil {
		one.behind = f.order != f.ordered
		if f.inherits {
			one.subscriber = u.urgency()
		}
	}
	return one
}

func inOrder(group uint64, order wire.GroupOrder) uint64 {
	if order == wire.Descending {
		return ^group
	}
	return group
}

// assign maps priorities to the library's urgencies (§5.1.2). There are five for data: the subscribers' priorities
// come first, then the publisher's, then each subscription's order of groups and of subgroups in them. Streams of
// several subscriptions that are equal take turns. What has no urgency of its own shares the last one. A fetch stream
// has the publisher's priority of the object that it is at.
func (s *session) assign() {
	if len(s.outgoing)+len(s.served) < 2 {
		for o := range s.outgoing {
			o.setUrgency(urgencyData)
		}
		for f := range s.served {
			f.setUrgency(urgencyData)
		}
		return
	}
	all := make([]standing, 0, len(s.outgoing)+len(s.served))
	for o := range s.outgoing {
		all = append(all, o.standing())
	}
	for f := range s.served {
		all = append(all, f.standing())
	}
	slices.SortFunc(all, func(a, b standing) int { return cmp.Or(comparePriorities(&a, &b), compareOrder(&a, &b)) })
	for i := range all[1:] {
		before, next := &all[i], &all[i+1]
		if before.serial == next.serial && comparePriorities(before, next) == 0 {
			next.steps = before.steps + 1
		}
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		return cmp.Or(comparePriorities(&a, &b), cmp.Compare(a.steps, b.steps))
	})
	urgency := int8(urgencyData)
	for i := range all {
		if i > 0 && (comparePriorities(&all[i-1], &all[i]) != 0 || all[i-1].steps != all[i].steps) {
			urgency = min(urgency+1, urgencyLeast)
		}
		all[i].set(urgency)
	}
}

func comparePriorities(a, b *standing) int {
	return cmp.Or(cmp.Compare(a.subscriber, b.subscriber), cmp.Compare(a.publisher, b.publisher))
}

// compareOrder compares streams of one priority: by subscription, and within one in its order of groups. In a group,
// what is filled comes first.
func compareOrder(a, b *standing) int {
	return cmp.Or(
		cmp.Compare(a.serial, b.serial), compareBool(a.behind, b.behind), cmp.Compare(a.group, b.group),
		compareBool(b.fill, a.fill), cmp.Compare(a.subgroup, b.subgroup),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (o *outgoing) setUrgency(urgency int8) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stream != nil && o.urgency != urgency {
		o.urgency = urgency
		o.stream.SetPriority(urgency, true)
	}
}

func (f *fetching) setUrgency(urgency int8) {
	if f.urgency != urgency {
		f.urgency = urgency
		f.stream.SetPriority(urgency, true)
	}
}

// enrank adds a fetch stream to those that are ranked.
func (s *session) enrank(f *fetching) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served[f] = struct{}{}
	s.assign()
}

func (s *session) unrank(f *fetching) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.served[f]; is {
		delete(s.served, f)
		s.assign()
	}
}

// place has a fetch stream be ranked by the object that is to be sent.
func (s *session) place(f *fetching, publisher uint8, group uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.publisher != publisher || f.group != group {
		f.publisher, f.group = publisher, group
		s.assign()
	}
}
