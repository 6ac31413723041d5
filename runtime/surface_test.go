package runtime

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// An iteration over events says why it ends.
func TestWhyEventsEnd(t *testing.T) {
	r := loadGroups(t, Options{})
	last := func(ctx context.Context) (n int, err error) {
		for ev, e := range r.Events(ctx) {
			if (ev == nil) != (e != nil) {
				t.Errorf("event %v, error %v", ev, e)
			}
			n, err = n+1, e
		}
		return n, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if n, err := last(ctx); n != 1 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the context ends: %d steps, %v", n, err)
	}
	ended := make(chan error)
	go func() {
		_, err := last(bg)
		ended <- err
	}()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("the relay is closed: %v", err)
	}
	if n, err := last(bg); n != 1 || !errors.Is(err, ErrClosed) {
		t.Errorf("the relay is closed already: %d steps, %v", n, err)
	}
	r = load(t, Options{})
	if n, err := last(bg); n != 1 || err == nil {
		t.Errorf("a relay without events: %d steps, %v", n, err)
	}
}

// One over the events that there are does so, too, also if it waits for its turn.
func TestWhyPendingEventsEnd(t *testing.T) {
	r := loadGroups(t, Options{})
	add(t, openGroup(t, r, 7), 1, 1)
	// all returns how many events an iteration has. first runs in the body of its first step.
	all := func(ctx context.Context, first func()) (n int, err error) {
		for ev, e := range r.Pending(ctx) {
			if (ev == nil) != (e != nil) || err != nil {
				t.Errorf("event %v, error %v after %v", ev, e, err)
			}
			if err = e; err != nil {
				continue
			}
			if n++; n == 1 {
				first()
			}
		}
		return n, err
	}
	nothing := func() {}
	ctx, cancel := context.WithCancel(t.Context())
	runOn(t, r, "fan", groupPacket(7, 0), 3)
	if n, err := all(ctx, cancel); n != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends in the first of three steps: %d events, %v", n, err)
	}
	if n, err := all(bg, nothing); n != 2 || err != nil {
		t.Errorf("the next iteration: %d events, %v", n, err)
	}
	if n, err := all(ctx, nothing); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("no event, and the context has ended: %d events, %v", n, err)
	}

	closed, turn := make(chan error), make(chan error)
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	n, err := all(bg, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if n, err := all(ctx, nothing); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another one has its turn: %d events, %v", n, err)
		}
		go func() { _, err := all(bg, nothing); turn <- err }()
		go func() { closed <- r.Close() }()
		if err := receive(t, "the end of an iteration that waits for its turn", turn); !errors.Is(err, ErrClosed) {
			t.Errorf("the relay is closed while an iteration waits for its turn: %v", err)
		}
	})
	if n != 1 || !errors.Is(err, ErrClosed) {
		t.Errorf("the relay is closed in the body of the loop: %d events, %v", n, err)
	}
	if err := receive(t, "the relay is closed", closed); err != nil {
		t.Error(err)
	}
	if n, err := all(bg, nothing); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("the relay is closed already: %d events, %v", n, err)
	}
	r = load(t, Options{})
	if n, err := all(bg, nothing); n != 0 || err == nil {
		t.Errorf("a relay without events: %d events, %v", n, err)
	}
}

// Who waits for programs may stop; the wait in the kernel goes on, and Close waits for it.
func TestQuiesceIsNotWaitedFor(t *testing.T) {
	r := loadGroups(t, Options{})
	entered, leave := make(chan struct{}), make(chan struct{})
	var left atomic.Bool
	r.grace = func() error {
		entered <- struct{}{}
		<-leave
		left.Store(true)
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Quiesce(ctx) }()
	receive(t, "the grace period begins", entered)
	cancel()
	if err := receive(t, "the end of the wait", done); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := r.Quiesce(ctx); !errors.Is(err, context.Canceled) { // it asks the kernel for nothing
		t.Errorf("a context that has ended: %v", err)
	}
	go func() { leave <- struct{}{} }()
	if err := r.Close(); err != nil || !left.Load() {
		t.Errorf("closed with a wait in the kernel: %v; it is over: %v", err, left.Load())
	}
	if err := r.Quiesce(bg); !errors.Is(err, ErrClosed) {
		t.Errorf("the relay is closed: %v", err)
	}

	r = loadGroups(t, Options{})
	refused := errors.New("refused")
	r.grace = func() error { return refused }
	if err := r.Quiesce(bg); !errors.Is(err, refused) {
		t.Errorf("the kernel refuses: %v", err)
	}
}

// What can't be read is an error, and not zero.
func TestReadsOfAClosedRelay(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 1)
	flows := load(t, Options{})
	s := open(t, flows, 1)
	if _, err := r.Program("fan").Count("nothing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a reason that the program doesn't have: %v", err)
	}
	if _, err := r.GroupKind("subs").Get(8); !errors.Is(err, ErrNotFound) {
		t.Errorf("a group that isn't open: %v", err)
	}
	for _, r := range []*Relay{r, flows} {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all := func(t *AnyTable) (err error) {
		for _, e := range t.All() {
			err = e
		}
		return err
	}
	for what, err := range map[string]error{
		"Count": second(r.Program("fan").Count("fanned")), "Counts": second(r.Program("fan").Counts()),
		"Usage":    second(v.Usage()),
		"Counters": second(flows.Counters()), "All": all(flows.Table("routes")),
		"session Counters": second(s.Counters()),
		"LastUsed":         second(s.LastUsed()), "RefreshRoutes": flows.RefreshRoutes(bg),
		"Add": second(v.Group().Add(bg, subscriber(2, 2)...)),
		"Set": v.Set(bg, subscriber(2, 2)...), "Open": second(r.GroupKind("subs").Open(bg, 9)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Who waits for a change may stop; the change goes on.
func TestChangeIsNotWaitedFor(t *testing.T) {
	r := loadGroups(t, Options{})
	k := r.GroupKind("subs")
	g := openGroup(t, r, 7)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"Open": second(k.Open(over, 8)), "Add": second(g.Add(over, subscriber(1, 1)...)), "Close": g.Close(over),
		"RefreshRoutes": r.RefreshRoutes(over),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended: %v", what, err)
		}
	}
	if g.Len() != 0 || found(k.Get(8)) != nil {
		t.Errorf("%d receivers, group 8 is %v", g.Len(), found(k.Get(8)))
	}

	// The committer waits until the caller has given up; then it succeeds, or fails.
	identities, refuse := len(k.ids), false
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	r.lists.fault = func(step string) error {
		if step != "list" {
			return nil
		}
		held <- struct{}{}
		<-hold
		if refuse {
			return errors.New("refused")
		}
		return nil
	}
	giveUp := func(change func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- change(ctx) }()
		<-held
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		hold <- struct{}{}
	}
	addOne := func(ctx context.Context) error { return second(g.Add(ctx, subscriber(1, 1)...)) }
	giveUp(addOne)
	until(t, 10*time.Second, "the change is in force", func() bool { return g.Len() == 1 })
	refuse = true
	giveUp(addOne)
	until(t, 10*time.Second, "the change is undone, and its identity free", func() bool {
		r.lists.mu.Lock()
		defer r.lists.mu.Unlock()
		return len(g.plan) == 1 && len(k.ids) == identities-1
	})
	r.lists.fault = nil
}
