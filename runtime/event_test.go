package runtime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The monotonic clock is the kernel's.
func TestMonotonic(t *testing.T) {
	for range 100 {
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
			t.Fatal(err)
		}
		now := time.Duration(monotonic())
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
			t.Fatal(err)
		}
		const inexact = 100 * time.Microsecond // how long two readings of the clock may take
		if now < time.Duration(before.Nano())-inexact || now > time.Duration(after.Nano())+inexact {
			t.Fatalf("%v isn't from %v to %v", now, time.Duration(before.Nano()), time.Duration(after.Nano()))
		}
	}
}

// Events come in order, and while there are none the reader sleeps.
func TestEvents(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	v := add(t, g, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan uint64)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(got)
		for ev := range read(r, ctx) {
			if ev.ID != 1 || ev.Receiver != v || ev.Desc().Name != "sent" {
				t.Errorf("event %d of %v", ev.ID, ev.Receiver)
			}
			if d := time.Since(ev.Time); d < 0 || d > time.Minute ||
				time.Since(time.Unix(0, ev.Time.UnixNano())).Abs() > time.Minute {
				t.Errorf("the event was %v ago", d)
			}
			if d := time.Duration(monotonic()) - ev.Mono; d < 0 || d > time.Minute {
				t.Errorf("the event was %v ago on the monotonic clock", d)
			}
			got <- ev.Uint(1)
		}
	})
	next := uint64(0)
	for _, n := range []uint32{1, 1, 50, 1} { // one after another, many at once
		sleeps := r.events.ring.Sleeps.Load()
		until(t, 5*time.Second, "the reader sleeps", func() bool {
			return r.events.ring.Sleeps.Load() > sleeps || r.events.lost.Load64(0, 0) == 0
		})
		runOn(t, r, "fan", groupPacket(7, 0), n)
		for range n {
			if at := receive(t, "an event", got); at != next {
				t.Fatalf("event %d came, not %d", at, next)
			}
			next++
		}
	}
	cancel()
	wg.Wait()
	// A context that is over before it begins, or ends while others read.
	for range read(r, ctx) {
		t.Error("an event for a context that is over")
	}
}

// Pending reads what there is, and doesn't wait; AwaitEvents sleeps until there is something, and reads nothing.
func TestEventsPending(t *testing.T) {
	r := loadGroups(t, Options{})
	add(t, openGroup(t, r, 7), 1, 1)
	pending := func(most int) (got []uint64) {
		for ev, err := range r.Pending(t.Context()) {
			if err != nil {
				t.Error(err)
				break
			}
			if got = append(got, ev.Uint(1)); len(got) == most {
				break
			}
		}
		return got
	}
	if got := pending(0); got != nil {
		t.Errorf("events %d that nobody caused", got)
	}
	for range 3 {
		done := make(chan error)
		sleeps := r.events.ring.Sleeps.Load()
		go func() { done <- r.AwaitEvents(t.Context()) }()
		until(t, 5*time.Second, "the server sleeps", func() bool { return r.events.ring.Sleeps.Load() > sleeps })
		if got := pending(0); got != nil {
			t.Errorf("events %d that nobody caused", got)
		}
		runOn(t, r, "fan", groupPacket(7, 0), 10)
		if err := receive(t, "the end of a sleep", done); err != nil {
			t.Error(err)
		}
		if got := pending(4); len(got) != 4 {
			t.Errorf("events %d, of which 4 were asked for", got)
		}
		if err := r.AwaitEvents(t.Context()); err != nil {
			t.Error(err)
		}
		if err := r.Quiesce(t.Context()); err != nil {
			t.Error(err)
		}
		if got := pending(0); len(got) != 6 {
			t.Errorf("events %d, of which 6 were left", got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.AwaitEvents(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
	r.Close()
	if err := r.AwaitEvents(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a relay that is closed: %v", err)
	}
	if err := r.Quiesce(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a relay that is closed: %v", err)
	}
}

// What a reader leaves is there for the next; several share.
func TestEventsAreShared(t *testing.T) {
	r := loadGroups(t, Options{})
	add(t, openGroup(t, r, 7), 1, 1)
	runOn(t, r, "fan", groupPacket(7, 0), 10)
	want := uint64(0)
	for range 5 {
		for ev := range read(r, t.Context()) {
			if ev.Uint(1) != want {
				t.Errorf("event %d came, not %d", ev.Uint(1), want)
			}
			if want++; want%2 == 0 {
				break
			}
		}
	}
	if waiting, _ := r.EventsWaiting(); waiting != 0 {
		t.Errorf("%d bytes are left", waiting)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[uint64]int{}
	for n := range 4 {
		wg.Go(func() {
			mine := ctx
			if n == 0 { // it leaves while others sleep
				var stop context.CancelFunc
				mine, stop = context.WithTimeout(ctx, 10*time.Millisecond)
				defer stop()
			}
			last := uint64(0)
			for ev := range read(r, mine) {
				if ev.Uint(1) < last {
					t.Errorf("event %d after %d", ev.Uint(1), last)
				}
				last = ev.Uint(1)
				mu.Lock()
				seen[last]++
				if len(seen) == 500 {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for range 50 {
		runOn(t, r, "fan", groupPacket(7, 0), 10)
	}
	wg.Wait()
	cancel()
	if len(seen) != 500 {
		t.Errorf("%d of 500 events", len(seen))
	}
	for n, times := range seen {
		if times != 1 {
			t.Errorf("event %d came %d times", n, times)
		}
	}
}

// A ring is no smaller than a page.
func TestRingEntries(t *testing.T) {
	for _, c := range []struct {
		bytes uint32
		page  int
		want  uint32
	}{
		{1 << 20, 4 << 10, 1 << 20}, {4 << 10, 4 << 10, 4 << 10}, {4 << 10, 64 << 10, 64 << 10},
		{1 << 20, 64 << 10, 1 << 20},
	} {
		if got := ringEntries(c.bytes, c.page); got != c.want {
			t.Errorf("%d bytes, pages of %d: %d, want %d", c.bytes, c.page, got, c.want)
		}
	}
}

// A reader that doesn't read costs the kernel nothing; what is lost is counted, and what is there is whole.
func TestEventsLost(t *testing.T) {
	r := loadRing(t, 4096)
	add(t, openGroup(t, r, 7), 1, 1)
	const many = 500 // of 48 bytes
	runOn(t, r, "fan", groupPacket(7, 0), many)
	lost := r.Lost(1)
	waiting, size := r.EventsWaiting()
	if lost == 0 || size != 4096 || waiting > size || waiting < size-48 || r.Lost(2) != 0 || r.Lost(0) != 0 ||
		r.Lost(3) != 0 {
		t.Errorf("%d lost, %d of %d bytes wait", lost, waiting, size)
	}
	n := uint64(0)
	drain(t, r, func(ev *Event) {
		if ev.Uint(1) != n {
			t.Errorf("event %d came, not %d", ev.Uint(1), n)
		}
		n++
	})
	if n+lost != many {
		t.Errorf("%d events, %d lost, of %d", n, lost, many)
	}
	// Many times around the ring, and records across its end.
	for range 50 {
		first := uint64(0)
		runOn(t, r, "fan", groupPacket(7, 0), 40)
		k := 0
		drain(t, r, func(ev *Event) {
			if k > 0 && ev.Uint(1) != first+uint64(k) {
				t.Errorf("event %d came, not %d", ev.Uint(1), first+uint64(k))
			} else if k == 0 {
				first = ev.Uint(1)
			}
			k++
		})
		if k != 40 {
			t.Errorf("%d of 40 events", k)
		}
	}
}

// An event names the receiver that the packet was sent to, even if that is gone, and another one has its identity.
func TestEventsNameThoseWhoAreGone(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	k := g.kind
	k.ids = k.ids[:1] // so that it is used again at once
	var all []*AnyReceiver
	type tagged struct{ n int }
	for n := range 6 {
		var v *AnyReceiver
		if err := g.Change(bg, func(c *AnyChange) (err error) {
			if v, err = c.Add(subscriber(n, n)...); err == nil {
				v.typed.get(func() any { return &tagged{n} }) // who reads an event finds it
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if v.ID() != 1 {
			t.Fatalf("the identity is %d", v.ID())
		}
		all = append(all, v)
		if n != 3 { // one of them gets no packet
			runOn(t, r, "fan", groupPacket(7, 0), 2)
		}
		if err := v.Remove(bg); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	drain(t, r, func(ev *Event) {
		n := int(ev.Uint(2))
		got = append(got, n)
		if ev.Receiver != all[n] || ev.Receiver.typed.get(nil).(*tagged).n != n {
			t.Errorf("event of receiver %d names %v", n, ev.Receiver)
		}
	})
	if len(got) != 10 {
		t.Errorf("events of %v", got)
	}
	r.events.forget()
	if len(r.events.past) != 0 {
		t.Errorf("%d names are kept for nothing", len(r.events.past))
	}
	// The names of those who are gone don't pile up if there is no reader.
	for n := range 50 {
		if err := add(t, g, n, n).Remove(bg); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.events.past) != 0 {
		t.Errorf("%d names without a record", len(r.events.past))
	}
}

// A record that was taken out of the ring names who had its identity, even if somebody else gets that before it is
// looked at.
func TestEventIsNamedInTime(t *testing.T) {
	r := loadRing(t, 4096)
	g := openGroup(t, r, 7)
	g.kind.ids = g.kind.ids[:1] // so that it is used again at once
	v := add(t, g, 1, 1)
	const each = 48
	n := r.events.ring.Size()/4/each + 1 // with the last of them, the room of all is given back
	runOn(t, r, "fan", groupPacket(7, 0), uint32(n))
	var at uint64
	for range n {
		var ok bool
		if _, at, ok = r.events.ring.Next(); !ok {
			t.Fatal("a record is missing")
		}
	}
	if err := v.Remove(bg); err != nil {
		t.Fatal(err)
	}
	if next := add(t, g, 2, 2); next.ID() != v.ID() {
		t.Fatalf("receiver %d after %d", next.ID(), v.ID())
	}
	if got := r.events.receiver(v.ID(), at); got != v {
		t.Errorf("an event of %v names %v", v, got)
	}
}

// The relay ends all iterations.
func TestEventsEndWithTheRelay(t *testing.T) {
	for range 20 {
		r := loadGroups(t, Options{})
		add(t, openGroup(t, r, 7), 1, 1)
		var wg sync.WaitGroup
		started := make(chan struct{}, 2)
		for range 2 {
			wg.Go(func() {
				for range read(r, context.Background()) {
					select {
					case started <- struct{}{}:
					default:
					}
				}
			})
		}
		runOn(t, r, "fan", groupPacket(7, 0), 10)
		receive(t, "an event", started)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if r.Lost(1) != 0 {
			t.Errorf("%d lost", r.Lost(1))
		}
	}
}

// A reader makes a small part of a system call for an event.
func TestEventsSystemCalls(t *testing.T) {
	r := loadRing(t, 1<<22)
	g := openGroup(t, r, 7)
	for n := range 8 {
		add(t, g, n, n)
	}
	calls := countSystemCalls(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int)
	go func() {
		n := 0
		for range read(r, ctx) {
			n++
		}
		done <- n
	}()
	before := calls()
	const packets = 20_000
	runOn(t, r, "fan", groupPacket(7, 0), packets)
	until(t, 10*time.Second, "all is read", func() bool { waiting, _ := r.EventsWaiting(); return waiting == 0 })
	after := calls()
	cancel()
	n := <-done
	t.Logf("%d events, %d lost, %d system calls, slept %d times, paused %d times", n, r.Lost(1), after-before,
		r.events.ring.Sleeps.Load(), r.events.ring.Pauses.Load())
	if n < packets || after == before || float64(after-before)/float64(n) > 0.02 {
		t.Errorf("%d system calls for %d events", after-before, n)
	}
}

// countSystemCalls counts those of this process.
func countSystemCalls(t *testing.T) func() uint64 {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(buildFile(t, "syscalls")))
	if err != nil {
		t.Fatal(err)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		t.Fatal(err)
	}
	device := uint64(unix.Major(ns.Dev))<<20 | uint64(unix.Minor(ns.Dev)) // as the kernel has it
	for name, value := range map[string]any{"process": uint32(os.Getpid()), "device": device, "inode": ns.Ino} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(coll.Close)
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: coll.Programs["count"]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func() (n uint64) {
		if err := coll.Variables["calls"].Get(&n); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		return n
	}
}

func BenchmarkEvents(b *testing.B) {
	r := loadGroups(b, Options{})
	g := openGroup(b, r, 7)
	for n := range 50 {
		add(b, g, n, n)
	}
	b.ReportAllocs()
	n := 0
	b.ResetTimer()
	for n < b.N {
		b.StopTimer()
		runOn(b, r, "fan", groupPacket(7, 0), 20)
		b.StartTimer()
		k := 0
		for range read(r, b.Context()) {
			if k++; k == 1000 {
				break
			}
		}
		n += k
	}
}

// What is done to a receiver before it is listed is done when an event names it, for the race detector as well.
func TestEventsSeeWhatWasPrepared(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	seen := make(chan int, 1)
	type tagged struct{ tag int }
	wg.Go(func() {
		for ev := range read(r, ctx) {
			if tag := ev.Receiver.typed.get(nil).(*tagged).tag; tag != int(ev.Receiver.ID()) {
				t.Errorf("%v is tagged %d", ev.Receiver, tag)
			}
			select {
			case seen <- int(ev.Receiver.ID()):
			default:
			}
		}
	})
	for n := range 10 {
		if err := g.Change(bg, func(c *AnyChange) error {
			v, err := c.Add(subscriber(n, n)...)
			if err != nil {
				return err
			}
			v.typed.get(func() any { return &tagged{} }).(*tagged).tag = int(v.ID())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		runOn(t, r, "fan", groupPacket(7, 0), 1)
		receive(t, "the event", seen)
	}
	cancel()
}

// A reader that isn't woken looks by itself after a while.
func TestEventsLookAgain(t *testing.T) {
	r := loadGroups(t, Options{})
	add(t, openGroup(t, r, 7), 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan bool, 1)
	go func() {
		for range read(r, ctx) {
			got <- true
			return
		}
	}()
	until(t, 5*time.Second, "the reader sleeps", func() bool { return r.events.ring.Sleeps.Load() > 0 })
	r.events.lost.Store64(0, 0, 1) // the reader has declared that it is awake
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	receive(t, "it looks", got)
}
