package sim

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// effects has the points of a statement's effects.
type effects struct {
	ir      *ir.Effects
	full    []*Point // by emit: the ring had no room
	refused []*Point // by admit
	learned []*Point // by learn: the table had no room
}

func (b *builder) effects(e *ir.Effects) *effects {
	out := &effects{ir: e}
	for _, s := range e.Emits {
		if s.Event.ID < 1 || s.Event.ID > len(b.plan.Events) || b.plan.Events[s.Event.ID-1] != s.Event {
			b.fail("event %q: the plan has no such event under its number", s.Event.Name)
		}
		if s.Row != nil && s.Row.Table.Kind != "receivers" {
			b.fail("event %q names row %q, which is no receiver's", s.Event.Name, s.Row.Name)
		}
		what := "lost"
		if s.Event.Required {
			what = b.stop(s.Full)
		}
		out.full = append(out.full, b.outcome(s.Pos, "emit "+s.Event.Name+": "+what))
	}
	for _, s := range e.Admits {
		what := "overdrawn"
		if !s.Overdraft {
			what = b.stopOrDrop(s.Refused)
			b.stopOrDrop(s.Contended)
		}
		out.refused = append(out.refused, b.outcome(s.Pos, "admit "+s.Member.Name+": "+what))
	}
	for _, s := range e.Learns {
		out.learned = append(out.learned, b.outcome(s.Pos, "learn "+s.Table.Name+": "+b.stop(s.Full)))
	}
	return out
}

// spent is what was taken from a credit.
type spent struct {
	credit *Credit
	amount uint64
}

// before runs the effects that come before a packet or a copy is sent: required records are reserved, credits
// spent, numbers allocated. If one says no, the packet or the copy is stopped under its reason, and what was spent
// is given back. Its result goes to giveBack if the packet doesn't leave after all.
func (r *run) before(e *effects) (taken []spent, ok bool) {
	for i, s := range e.ir.Emits {
		if s.Event.Required && !r.reserve(s.Event.Fields.Size) {
			e.full[i].Hits++
			r.stop(s.Full)
			return nil, false
		}
	}
	for i, s := range e.ir.Admits {
		if s.Asked && r.isTaken(s, taken) {
			return taken, r.err == nil
		}
		credit, amount, admitted := r.admit(s)
		if r.err != nil {
			return nil, false
		}
		if !admitted {
			e.refused[i].Hits++
			if !s.Overdraft {
				r.giveBack(taken)
				r.stop(s.Refused)
				return nil, false
			}
		}
		if credit != nil {
			taken = append(taken, spent{credit, amount})
		}
	}
	for i, s := range e.ir.Learns {
		if !r.learn(s) {
			if r.err == nil {
				e.learned[i].Hits++
				r.giveBack(taken)
				r.stop(s.Full)
			}
			return nil, false
		}
	}
	r.alloc(e.ir.Allocs)
	for _, s := range e.ir.Lets {
		r.assign(s.Var, r.any(s.Value))
	}
	return taken, r.err == nil
}

// giveBack returns credits of what doesn't leave. Its records are discarded, but take their room in the ring until user
// space has gone past them; its numbers are lost.
func (r *run) giveBack(taken []spent) {
	for _, s := range taken {
		s.credit.Spent -= s.amount
	}
}

// after runs the effects of what leaves: records, those that were reserved first, then counters.
func (r *run) after(e *effects) {
	for _, s := range e.ir.Emits {
		if s.Event.Required {
			r.emit(s)
		}
	}
	for _, s := range e.ir.Entries {
		r.entry(s)
	}
	for i, s := range e.ir.Emits {
		switch {
		case s.Event.Required:
		case s.Event.Copies != nil: // in the ring after the last copy
			r.emit(s)
			at := len(r.result.Events) - 1
			r.late = append(r.late, late{r.result.Events[at], e.full[i]})
			r.result.Events = r.result.Events[:at]
			r.pending[s.Event] = -len(r.late)
		case r.reserve(s.Event.Fields.Size):
			r.emit(s)
		default:
			e.full[i].Hits++
			r.relay.Lost[s.Event.ID]++
		}
	}
	for _, s := range e.ir.Counts {
		r.count(s)
	}
}

// recordHeader is what the kernel puts in front of each record in a ring (BPF_RINGBUF_HDR_SZ).
const recordHeader = 8

// RecordRoom returns the bytes that a record of n bytes takes in the ring: __bpf_ringbuf_reserve in
// kernel/bpf/ringbuf.c.
func RecordRoom(n int) int { return (n + recordHeader + 7) &^ 7 }

// reserve takes the room of a record of so many bytes in the ring, of which one byte always stays free.
func (r *run) reserve(size int) bool {
	room := RecordRoom(size)
	if r.relay.RingUsed+room >= r.relay.plan.Ring {
		return false
	}
	r.relay.RingUsed += room
	return true
}

// emit fills a record in and hands it over.
func (r *run) emit(s *ir.Emit) {
	e := Event{Event: s.Event, Record: bytes.Clone(r.layout(&s.Event.Fields, s.Values))}
	if s.Row != nil {
		e.Receiver = identity(s.Row.Table, r.row(s.Row).value)
	}
	if c := s.Event.Copies; c != nil {
		e.Record = e.Record[:c.Off]
		if r.pending == nil {
			r.pending = map[*ir.Event]int{}
		}
		r.pending[s.Event] = len(r.result.Events)
	}
	if m := s.Event.Data(); m != nil {
		e.Record = append(e.Record[:m.Off], r.excerpt(s.Data, m.Type.Size)...)
	}
	if len(e.Record) < abi.EventHeader || len(e.Record) > s.Event.Fields.Size {
		r.fail("event %q: a record of %d bytes", s.Event.Name, len(e.Record))
		return
	}
	binary.LittleEndian.PutUint32(e.Record[8:], e.Receiver)
	binary.LittleEndian.PutUint16(e.Record[12:], uint16(s.Event.ID))
	binary.LittleEndian.PutUint16(e.Record[14:], uint16(len(e.Record)))
	r.result.Events = append(r.result.Events, e)
}

// entry adds a copy to the record of its packet, if the ring had room for that.
func (r *run) entry(s *ir.Entry) {
	at, ok := r.pending[s.Event]
	if !ok {
		return
	}
	entry := r.layout(&s.Event.Copies.Entry, s.Values)
	binary.LittleEndian.PutUint32(entry, identity(s.Row.Table, r.row(s.Row).value))
	var e *Event
	if at < 0 {
		e = &r.late[-at-1].Event
	} else {
		e = &r.result.Events[at]
	}
	e.Record = append(e.Record, entry...)
	if len(e.Record) > s.Event.Fields.Size {
		r.fail("event %q: a record of %d bytes", s.Event.Name, len(e.Record))
	}
	binary.LittleEndian.PutUint16(e.Record[14:], uint16(len(e.Record)))
}

// handOver hands over the records of a packet's copies, except of a packet without any.
func (r *run) handOver() {
	r.result.Events = slices.DeleteFunc(r.result.Events, func(e Event) bool {
		return e.Event.Copies != nil && len(e.Record) == e.Event.Copies.Off
	})
	for _, e := range r.late {
		switch {
		case len(e.Record) == e.Event.Event.Copies.Off:
		case r.reserve(len(e.Record)):
			r.result.Events = append(r.result.Events, e.Event)
		default:
			e.lost.Hits++
			r.relay.Lost[e.Event.Event.ID]++
		}
	}
	r.late = r.late[:0]
	clear(r.pending)
}

// late is a record that is in the ring after the last copy, if that has room then.
type late struct {
	Event
	lost *Point
}

// excerpt is what a record has of the packet as it came, room bytes at most.
func (r *run) excerpt(s *ir.Excerpt, room int) []byte {
	at, size := r.offset(s.At), r.uint(s.Size)
	if r.err == nil && (at < 0 || size > uint64(len(r.in)) || at+int(size) > len(r.in)) {
		r.fail("a record of %d bytes from %d on, of a packet of %d", size, at, len(r.in))
	}
	if r.err != nil {
		return nil
	}
	return r.in[at : at+min(int(size), room)]
}

// credit returns the credit that is spent, nil if the row has none, and the level that counts what is refused.
func (r *run) credit(s *ir.Admit) (credit *Credit, level uint64) {
	t := s.Member.Type
	index := littleEndian(r.member(s.Row, s.Member, ir.Whole, 0))
	if s.Level != nil {
		level = r.uint(s.Level)
	}
	levels := uint64(max(r.relay.plan.Levels, 1))
	which := index
	if t.Levels > 0 {
		which += level
	}
	switch {
	case r.err != nil:
	case t.Levels > 0 && uint64(t.Levels) != levels:
		r.fail("member %q has %d credits, for %d levels of priority", s.Member.Name, t.Levels, levels)
	case level >= levels:
		r.fail("a credit of level %d, of %d", level, levels)
	case index != 0 && which < uint64(len(r.relay.Credits)):
		credit = &r.relay.Credits[which]
	}
	return credit, level
}

// isTaken reports whether a credit is among those that were taken.
func (r *run) isTaken(s *ir.Admit, taken []spent) bool {
	credit, _ := r.credit(s)
	return slices.ContainsFunc(taken, func(t spent) bool { return t.credit == credit })
}

// admit spends a credit, or counts the packet as refused. A row without a credit refuses. What is overdrawn is not
// admitted, but spent.
func (r *run) admit(s *ir.Admit) (credit *Credit, amount uint64, admitted bool) {
	t := s.Member.Type
	var floor uint64
	if s.Floor != nil {
		floor = r.uint(s.Floor)
	}
	cost := r.uint(s.Cost)
	credit, level := r.credit(s)
	if r.err != nil {
		return nil, 0, false
	}
	if credit != nil {
		was := credit.Spent
		if t.Kind == ir.Bucket {
			admitted, amount = credit.refill(cost, floor, r.relay.World.Clock)
		} else {
			admitted, amount = credit.spend(cost, floor)
		}
		switch {
		case admitted && s.Asked:
			credit.Spent, amount = was, 0
			return credit, amount, true
		case admitted:
			return credit, amount, true
		case s.Again:
		case !s.Overdraft:
			credit.Refused[level]++
		case t.Kind == ir.Bucket:
			amount = credit.overdrawTimed(cost, r.relay.World.Clock)
		default:
			credit.Spent, amount = credit.Spent+cost, cost
		}
	}
	if s.Count != nil {
		r.count(s.Count)
	}
	return credit, amount, false
}

// spend spends cost if floor remains below the limit.
func (c *Credit) spend(cost, floor uint64) (admitted bool, amount uint64) {
	// spent + cost + floor > limit, without wrapping
	if cost > c.Limit || floor > c.Limit-cost || c.Spent > c.Limit-cost-floor {
		return false, 0
	}
	c.Spent += cost
	return true, cost
}

// Bounds of what a bucket can count, so that its times in nanoseconds fit into 64 bits.
const (
	maxCost  = math.MaxUint32
	maxBurst = 1<<33 - 1
	second   = 1e9
)

// refill spends cost from a credit that refills: time is what is spent, at rate units a second. A bucket that is full
// is spent up to now, an empty one up to the time that refilling a burst takes from now.
func (c *Credit) refill(cost, floor, now uint64) (admitted bool, amount uint64) {
	rate := c.Limit
	if rate == 0 {
		return false, 0
	}
	takes := min(cost, maxCost) * second / rate
	room := uint64(0)
	if burst := min(c.Burst, maxBurst); burst > floor {
		room = (burst - floor) * second / rate
	}
	from := max(c.Spent, now)
	if takes > room || from-now > room-takes { // from + takes - now > room, without wrapping
		return false, 0
	}
	c.Spent = from + takes
	return true, takes
}

// overdrawTimed spends cost from a credit that refills, whatever is left. At a rate of 0 there is no time that it
// takes.
func (c *Credit) overdrawTimed(cost, now uint64) (amount uint64) {
	if c.Limit == 0 {
		return 0
	}
	takes, from := min(cost, maxCost)*second/c.Limit, max(c.Spent, now)
	if from+takes < from {
		return 0
	}
	c.Spent = from + takes
	return takes
}

// alloc takes numbers from shared counters.
func (r *run) alloc(allocs []*ir.Alloc) {
	for _, s := range allocs {
		var v value
		if c := r.shared(s.Row, s.Member); c != nil {
			v.u = *c
			*c += s.Step
		}
		r.assign(s.Var, v)
	}
}

// Outcomes of a translation, in the order of its node's points.
const (
	translationKnown = iota
	translationNew
	translationUnfinished
	translationFull
)

// translate finds or makes the value of a key; it reports whether that stopped the packet or the receiver's turn. What
// is found unfinished is being made on another processor.
func (r *run) translate(n *node, s *ir.Translate) bool {
	namespace := uint32(littleEndian(r.member(s.Row, s.Member, ir.Whole, 0)))
	key := TranslationKey{Key: r.uint(s.Key), Namespace: namespace}
	if r.err != nil {
		return true
	}
	t, known := r.relay.Translations[key]
	switch {
	case known && !t.Done:
		n.outcomes[translationUnfinished].Hits++
		return r.stop(s.Unfinished)
	case known:
		n.outcomes[translationKnown].Hits++
	case namespace == 0 || len(r.relay.Translations) >= r.relay.plan.Translations:
		n.outcomes[translationFull].Hits++
		return r.stop(s.Full)
	default:
		n.outcomes[translationNew].Hits++
		r.alloc(s.Allocs)
		t = Translation{Value: r.uint(s.Value), Done: true}
		if r.err != nil {
			return true
		}
		r.relay.Translations[key] = t
	}
	r.assign(s.Var, value{u: t.Value})
	return false
}
