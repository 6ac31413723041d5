package runtime

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/ctxlock"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/ring"
)

// calibrateEvery is how many records pass before the clocks are read again; they are in any case after a pause.
const calibrateEvery = 1024

// Event is a record that a program emitted. It is valid until the next step of the iteration that it comes from.
type Event struct {
	ID       int           // from 1 on, in the order of the spec
	Receiver *AnyReceiver  // that the packet was sent to; nil: none, or one of a former process that is gone
	Time     time.Time     // when the packet was sent; it has a monotonic reading, so time.Since is exact
	Mono     time.Duration // the same on the kernel's monotonic clock (CLOCK_MONOTONIC)

	desc   *abi.Event
	fields []abi.Member // of the event; of a copy, its values
	data   []byte
	copies []*AnyReceiver // whom each copy went to
}

// Desc returns the description of the event.
func (e *Event) Desc() *abi.Event { return e.desc }

// Copies iterates over the copies of the packet that the event is about: events with the receiver and the values of a
// copy, each of which is valid until the next step.
func (e *Event) Copies() iter.Seq2[int, *Event] {
	return func(yield func(int, *Event) bool) {
		if e.desc.Copies == nil {
			return
		}
		one := Event{ID: e.ID, Time: e.Time, Mono: e.Mono, desc: e.desc, fields: e.desc.Copies.Values}
		for i, v := range e.copies {
			one.Receiver, one.data = v, e.desc.Copies.Entry(e.data, i)
			if !yield(i, &one) {
				return
			}
		}
	}
}

// NumCopies returns how many copies the event is about, if it says something of each.
func (e *Event) NumCopies() int { return len(e.copies) }

func (e *Event) field(i int) []byte {
	return e.fields[i].In(e.data)
}

// Uint returns the i-th field, an integer.
func (e *Event) Uint(i int) uint64 { return getUint(e.field(i)) }

// Bool returns the i-th field, a bool.
func (e *Event) Bool(i int) bool { return e.field(i)[0] != 0 }

// Bytes returns the i-th field, bytes, of the packet as well; they are valid as long as the event.
func (e *Event) Bytes(i int) []byte { return e.field(i) }

// MAC returns the i-th field, a link-layer address.
func (e *Event) MAC(i int) net.HardwareAddr { return append(net.HardwareAddr(nil), e.field(i)...) }

// Addr returns the i-th field, an address.
func (e *Event) Addr(i int) netip.Addr { return getAddr(e.field(i)) }

// AddrPort returns the i-th field, an endpoint.
func (e *Event) AddrPort(i int) netip.AddrPort {
	b := e.field(i)
	return netip.AddrPortFrom(getAddr(b), abi.Order.Uint16(b[16:]))
}

// Values returns the fields, in the order of the spec.
func (e *Event) Values() []any { return layout{members: e.fields}.decodeAny(e.data, nil) }

// events is the relay's ring of events, and what its records are read with.
type events struct {
	relay *Relay
	ring  *ring.Reader
	lost  *mapmem.Array // how many records were lost, by the ID of their event; entry 0 is the ring's flag
	ended atomic.Bool
	over  chan struct{} // closed when ended

	// reading guards the ring, apart from what may be called at any time, and:
	reading  *ctxlock.Lock
	base     time.Time // and
	baseMono uint64    // were the same moment
	trusted  int       // for how many more records that is used: the wall clock may be set
	pending  Event     // of Pending

	named []atomic.Pointer[AnyReceiver] // by identity, those that are gone included until their identity is used again
	mu    sync.Mutex
	past  map[uint32][]pastName // by identity
	has   atomic.Bool           // past has names; set before an identity gets its next receiver

	// Who looks on; see [EventCopies].
	copies  atomic.Pointer[[]*EventCopies] // never changed; replaced with mu held. nil: none
	copying bool                           // copyUnread runs; guarded by mu
	copied  uint64                         // records before this position were copied; guarded by reading
	begun   atomic.Bool                    // the server has begun to read
}

// pastName says that records before a position name a receiver whose identity another one has now.
type pastName struct {
	until    uint64
	receiver *AnyReceiver
}

func newEvents(r *Relay, m, lost *ebpf.Map) (*events, error) {
	e := &events{
		relay: r, reading: ctxlock.New(), over: make(chan struct{}),
		named: make([]atomic.Pointer[AnyReceiver], r.desc.Receivers), past: map[uint32][]pastName{},
	}
	var err error
	if e.lost, err = mapmem.Map(lost); err != nil {
		return nil, err
	}
	if e.ring, err = ring.Open(m, e.lost); err != nil {
		return nil, err
	}
	return e, nil
}

// close ends all iterations. When it returns, nothing reads the ring any more: a successor may be reading it.
func (e *events) close() {
	if e == nil {
		return
	}
	e.mu.Lock() // CopyEvents starts nothing any more
	e.ended.Store(true)
	e.mu.Unlock()
	close(e.over)
	e.ring.Close()
	e.reading.Lock(context.Background(), nil)
	e.ring.Release()
}

// name gives a receiver its identity, which no list has yet. Records that are in the ring already name the one that had
// it before.
func (e *events) name(v *AnyReceiver) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.named[v.id].Store(v)
	if e.ring.Waiting() == 0 {
		return
	}
	old := e.named[v.id].Load() // nil: one of a former process, or none
	past, end := e.past[v.id], e.ring.End()
	// If no record came in between, none can name it: so there are never more names than records.
	if len(past) == 0 || past[len(past)-1].until != end {
		e.past[v.id] = append(past, pastName{end, old})
		e.has.Store(true)
	}
}

// adopt gives a receiver of a former process its identity, also in the records that this one left.
func (e *events) adopt(v *AnyReceiver) {
	if e != nil {
		e.named[v.id].Store(v)
	}
}

// receiver returns who had an identity when the record at a position was made. Positions only grow.
func (e *events) receiver(id uint32, at uint64) *AnyReceiver {
	if id == 0 || int(id) >= len(e.named) {
		return nil
	}
	now := e.named[id].Load()
	if !e.has.Load() {
		return now
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	past := e.past[id]
	for len(past) > 0 && past[0].until <= at {
		past = past[1:]
	}
	if len(past) == 0 {
		delete(e.past, id)
		return now
	}
	e.past[id] = past
	return past[0].receiver
}

// forget drops past names when all records were read.
func (e *events) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, past := range e.past {
		if past[len(past)-1].until <= e.ring.Pos() {
			delete(e.past, id)
		}
	}
	e.has.Store(len(e.past) > 0)
}

// Events iterates over the events of the relay, in the order in which programs began them, from the oldest that has not
// been read. It sleeps while there are none. The last step yields the error that ends the iteration: ctx's, or one that
// wraps [ErrClosed] if the relay is closed. The kernel never waits for the reader: what finds no room in the ring is
// counted by [Relay.Lost], or not sent at all, as the spec says.
//
// Several iterations share the events, as goroutines that receive from one channel do. An event is valid until the next
// step.
func (r *Relay) Events(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		e := r.events
		if e == nil {
			yield(nil, r.noEvents())
			return
		}
		e.begun.Store(true)
		var ended atomic.Bool // what ctx.Err says, for less
		ended.Store(ctx.Err() != nil)
		defer context.AfterFunc(ctx, func() {
			ended.Store(true)
			e.ring.Wake()
		})()
		ev := new(Event)
		defer e.release()
		for {
			if err := e.read(ctx, &ended, ev); err != nil {
				yield(nil, err)
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// Pending iterates over the events that programs had begun when it was called. It doesn't sleep until there are any: it
// waits for a program that is writing a record at this moment, and for the bodies of other such loops, since these take
// turns. So a server that reads a datagram from a socket, and then Pending, knows all events of that datagram. If ctx
// ends meanwhile, the last step yields its error, and what the iteration hasn't come to is there for the next; if the
// relay is closed, one that wraps [ErrClosed].
//
// The body of the loop must neither read events itself nor close the relay: [Relay.Close] waits for it.
func (r *Relay) Pending(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		e := r.events
		if e == nil {
			yield(nil, r.noEvents())
			return
		}
		if err := e.readPending(ctx, yield); err != nil {
			yield(nil, err)
		}
	}
}

// readPending is Pending; it returns the error that is to be the last step.
func (e *events) readPending(ctx context.Context, yield func(*Event, error) bool) error {
	if !e.reading.Lock(ctx, e.over) {
		return e.why(ctx, nil)
	}
	e.begun.Store(true)
	defer e.reading.Unlock()
	defer e.ring.Release()
	ev := &e.pending
	for end := e.ring.End(); ctx.Err() == nil && !e.ended.Load(); {
		if e.ring.Pos() >= end {
			e.forget()
			e.trusted = 0
			return nil
		}
		data, at, ok := e.ring.Next()
		switch {
		case !ok:
			goruntime.Gosched()
		case e.decode(ev, data, at) && !yield(ev, nil):
			return nil
		}
	}
	return e.why(ctx, nil)
}

func (r *Relay) noEvents() error { return fmt.Errorf("relay %q has no events", r.desc.Name) }

// AwaitEvents sleeps until there is an event to read, for a server that reads them by Pending. The error is that of
// [Relay.Events].
func (r *Relay) AwaitEvents(ctx context.Context) error {
	e := r.events
	if e == nil {
		return r.noEvents()
	}
	e.begun.Store(true)
	defer context.AfterFunc(ctx, e.ring.Wake)()
	if err := e.ring.Await(ctx); err != nil {
		return e.why(ctx, err)
	}
	return nil
}

// Quiesce returns when all packets that programs were processing when it was called have been processed: some
// milliseconds. So packets of which a row is to be kept away are gone when it returns, and their events are in the
// ring.
//
// It waits for a grace period of RCU, which the kernel doesn't let anybody cancel. If ctx ends first, Quiesce returns
// ctx's error: then packets from before may still be processed. One goroutine stays in that system call, with its
// thread, until the grace period is over; nothing else is left, and [Relay.Close] waits for it.
func (r *Relay) Quiesce(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- r.using(r.grace) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release publishes what was read to the kernel, and to who may adopt the relay, unless another iteration is reading.
func (e *events) release() {
	if e.reading.TryLock() {
		e.ring.Release()
		e.reading.Unlock()
	}
}

// read reads one event.
func (e *events) read(ctx context.Context, ended *atomic.Bool, ev *Event) error {
	if !e.reading.Lock(ctx, e.over) {
		return e.why(ctx, nil)
	}
	defer e.reading.Unlock()
	for !ended.Load() && !e.ended.Load() {
		data, at, ok := e.ring.Next()
		switch {
		case ok && e.decode(ev, data, at):
			return nil
		case !ok:
			e.forget()
			e.trusted = 0
			if err := e.ring.Wait(ctx); err != nil {
				return e.why(ctx, err)
			}
		}
	}
	return e.why(ctx, nil)
}

// why says why an iteration ends; err is what the ring said.
func (e *events) why(ctx context.Context, err error) error {
	switch {
	case e.ended.Load():
		return fmt.Errorf("relay %q: %w", e.relay.desc.Name, ErrClosed)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("relay %q: read the ring of events: %w", e.relay.desc.Name, err)
}

// decode understands a record that the server has just read, and gives copies of it to the streams of the control
// socket; false if it is none that the relay knows.
func (e *events) decode(ev *Event, data []byte, at uint64) bool {
	ok := e.understand(ev, data, at, e.receiver)
	if e.copies.Load() == nil {
		return ok
	}
	if ok {
		e.copyTo(ev, at)
	}
	e.copied = max(e.copied, e.ring.Pos())
	return ok
}

// understand is decode without copies; named says who had an identity when the record at a position was made. The event
// has as much of the data as is the record's: the rest of its room in the ring is never looked at.
func (e *events) understand(ev *Event, data []byte, at uint64, named func(id uint32, at uint64) *AnyReceiver) bool {
	if len(data) < abi.EventHeader {
		return false
	}
	id := int(abi.Order.Uint16(data[abi.EventID:]))
	if id < 1 || id > len(e.relay.desc.Events) {
		return false
	}
	desc := &e.relay.desc.Events[id-1]
	record, ok := desc.Record(data)
	if !ok {
		return false
	}
	ev.data = append(ev.data[:0], record...)
	mono := abi.Order.Uint64(ev.data[abi.EventTime:])
	if e.trusted == 0 {
		e.base, e.baseMono, e.trusted = time.Now(), monotonic(), calibrateEvery
	}
	e.trusted--
	ev.ID, ev.desc, ev.fields = id, desc, desc.Fields
	ev.Mono, ev.Time = time.Duration(mono), e.base.Add(time.Duration(mono-e.baseMono))
	ev.Receiver = named(abi.Order.Uint32(ev.data[abi.EventReceiver:]), at)
	ev.copies = ev.copies[:0]
	if c := desc.Copies; c != nil {
		for i := range c.Entries(record) {
			ev.copies = append(ev.copies, named(abi.Order.Uint32(c.Entry(record, i)), at))
		}
	}
	return true
}

// Lost returns how many records of an event were lost because the ring was full, by its ID.
func (r *Relay) Lost(id int) uint64 {
	if r.events == nil || id < 1 || id > len(r.desc.Events) {
		return 0
	}
	return r.events.lost.Load64(uint32(id), 0)
}

// EventsWaiting returns how many bytes of records wait to be read, and how many the ring holds.
func (r *Relay) EventsWaiting() (bytes, size uint64) {
	if r.events == nil {
		return 0, 0
	}
	return r.events.ring.Waiting(), r.events.ring.Size()
}
