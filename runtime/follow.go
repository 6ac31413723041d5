package runtime

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// EventCopies are copies of a relay's events, for one who looks on. They take nothing away: the server's own reader
// gets every event as if no one looked on. They never wait, either: who doesn't read them in time misses some, and is
// told how many.
//
// What the server reads is copied as it reads it. What it leaves in the ring is copied there, and stays in the ring. As
// long as the server has never read an event, records are taken out when the ring is more than half full, since there
// would be no room for new ones.
type EventCopies struct {
	events *events
	from   uint64 // the position in the ring from which on it gets records
	max    int

	mu     sync.Mutex
	queue  []Event
	missed uint64
	queued chan struct{} // capacity 1: there is something in queue
}

// copyEvery is how often records that the server doesn't read are looked for while a client gets copies.
const copyEvery = 20 * time.Millisecond

// CopyEvents begins to copy the relay's events, of which at most so many wait for Next. Close ends it.
func (r *Relay) CopyEvents(waiting int) (*EventCopies, error) {
	e := r.events
	if e == nil {
		return nil, r.noEvents()
	}
	c := &EventCopies{events: e, from: e.ring.End(), max: max(waiting, 1), queued: make(chan struct{}, 1)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended.Load() {
		return nil, fmt.Errorf("relay %q: %w", r.desc.Name, ErrClosed)
	}
	var all []*EventCopies
	if old := e.copies.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = append(all, c)
	e.copies.Store(&all)
	if !e.copying {
		e.copying = true
		r.wg.Add(1)
		go e.copyUnread()
	}
	return c, nil
}

// Next returns the events that came since the last call, in their order, and how many were missed after them. It sleeps
// while there are none. The error is that of [Relay.Events].
func (c *EventCopies) Next(ctx context.Context) (events []Event, missed uint64, err error) {
	for {
		c.mu.Lock()
		events, missed = c.queue, c.missed
		c.queue, c.missed = nil, 0
		c.mu.Unlock()
		if len(events) > 0 || missed > 0 {
			return events, missed, nil
		}
		select {
		case <-c.queued:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-c.events.over:
			return nil, 0, c.events.why(ctx, nil)
		}
	}
}

// Close ends the copies. It may be called more than once.
func (c *EventCopies) Close() {
	e := c.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.copies.Load() == nil {
		return
	}
	all := slices.DeleteFunc(slices.Clone(*e.copies.Load()), func(o *EventCopies) bool { return o == c })
	e.copies.Store(&all)
}

func (c *EventCopies) put(ev *Event, at uint64) {
	if at < c.from {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) >= c.max || c.missed > 0 { // what was missed comes after what is waiting
		c.missed++
	} else {
		one := *ev
		one.data, one.copies = slices.Clone(ev.data), slices.Clone(ev.copies)
		c.queue = append(c.queue, one)
	}
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// copyTo gives copies of a record to the streams that follow events, unless they have it. reading is held.
func (e *events) copyTo(ev *Event, at uint64) {
	all := e.copies.Load()
	if all == nil || at < e.copied {
		return
	}
	for _, c := range *all {
		c.put(ev, at)
	}
}

// copyUnread copies what the server doesn't read, until no one looks on.
func (e *events) copyUnread() {
	defer e.relay.wg.Done()
	tick := time.NewTicker(copyEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.over:
			return
		case <-tick.C:
		}
		e.mu.Lock()
		if len(*e.copies.Load()) == 0 {
			e.copies.Store(nil)
			e.copying = false
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		if e.reading.TryLock() { // else the server is reading, and copies what it reads
			e.copyRing()
			e.reading.Unlock()
		}
	}
}

// copyRing copies the records in the ring. If the server never reads, it makes room for others. reading is held.
func (e *events) copyRing() {
	ev := new(Event)
	at := max(e.copied, e.ring.Pos())
	for !e.ended.Load() {
		data, next, ok := e.ring.Peek(at)
		if !ok {
			break
		}
		if data != nil && e.understand(ev, data, at, e.receiverAt) {
			e.copyTo(ev, at)
		}
		at = next
	}
	e.copied = at
	e.trusted = 0
	for !e.begun.Load() && e.ring.Waiting() > e.ring.Size()/2 {
		if _, _, ok := e.ring.Next(); !ok {
			break
		}
		e.ring.Release()
	}
}

// receiverAt is receiver for a record that will be read again: it forgets nothing.
func (e *events) receiverAt(id uint32, at uint64) *AnyReceiver {
	if id == 0 || int(id) >= len(e.named) {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.past[id] {
		if at < name.until {
			return name.receiver
		}
	}
	return e.named[id].Load()
}
