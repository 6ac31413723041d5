package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A packet reaches the receivers from before a change or those from after it, with their values, and none twice: while
// packets flow on all processors, several goroutines change a group, always so that all values in force are equal.
func TestChangesUnderTraffic(t *testing.T) {
	r := loadRing(t, 1<<22)
	g := openGroup(t, r, 7)
	const receivers = 12
	var all []*AnyReceiver
	for n := range receivers {
		all = append(all, add(t, g, n, 0))
	}
	var stop atomic.Bool
	var traffic, changes sync.WaitGroup
	defer traffic.Wait()
	defer stop.Store(true)
	for range goruntime.NumCPU() {
		traffic.Go(func() {
			for !stop.Load() {
				// no event may be lost, and each change shall be seen
				if waiting, size := r.EventsWaiting(); waiting > size/16 {
					goruntime.Gosched()
					continue
				}
				runOn(t, r, "fan", groupPacket(7, 0), 50)
			}
		})
	}
	// One goroutine gives all receivers another value, and puts one in another's place. The others change addresses
	// meanwhile, and leave the values as they are.
	version := 0
	var enough atomic.Bool
	changes.Go(func() {
		for ; !enough.Load(); version++ {
			err := g.Change(bg, func(c *AnyChange) error {
				old := rand.IntN(len(all))
				c.Remove(all[old])
				all = slices.Delete(all, old, old+1)
				for _, v := range all {
					if err := c.Set(v, subscriber(1, version)...); err != nil {
						return err
					}
				}
				v, err := c.Add(subscriber(2, version)...)
				all = append(all, v)
				return err
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		changes.Go(func() {
			for n := 0; !enough.Load(); n++ {
				err := g.Change(bg, func(c *AnyChange) error {
					for i, v := range g.Receivers() {
						if i%3 == n%3 {
							c.Update(v, func(values []any) []any { values[1] = subscriber(n%200, 0)[1]; return values })
						}
					}
					return nil
				})
				if err != nil && !errors.Is(err, ErrClosed) { // one of them was removed
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { changes.Wait(); close(done) }()
	type packet struct {
		value, of uint64
		seen      map[*AnyReceiver]bool
	}
	open := map[uint64]*packet{}
	whole, values := 0, map[uint64]bool{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-done; cancel() }()
	defer changes.Wait()
	defer enough.Store(true)
	limit := time.AfterFunc(30*time.Second, func() { enough.Store(true) })
	defer limit.Stop()
	for ev := range read(r, ctx) {
		p := open[ev.Uint(0)]
		if p == nil {
			p = &packet{ev.Uint(2), ev.Uint(3), map[*AnyReceiver]bool{}}
			open[ev.Uint(0)] = p
		}
		switch {
		case ev.Receiver == nil:
			t.Fatalf("packet %d went to an unknown receiver", ev.Uint(0))
		case p.seen[ev.Receiver]:
			t.Fatalf("packet %d went to %v twice", ev.Uint(0), ev.Receiver)
		case p.value != ev.Uint(2) || p.of != receivers:
			t.Fatalf("packet %d saw version %d and version %d, %d receivers", ev.Uint(0), p.value, ev.Uint(2), p.of)
		}
		p.seen[ev.Receiver] = true
		if len(p.seen) == receivers {
			delete(open, ev.Uint(0))
			whole++
			values[p.value] = true
			if whole > 2000 && len(values) > 40 {
				enough.Store(true)
			}
		}
	}
	if r.Lost(1) > 0 {
		t.Fatalf("%d events were lost: the test shows nothing", r.Lost(1))
	}
	if whole < 2000 || len(values) < 40 {
		t.Errorf("%d packets, %d versions: too few to show anything", whole, len(values))
	}
	t.Logf("%d packets, %d of %d versions, %d swaps", whole, len(values), version, r.lists.swaps)
}

// Changes that come while the kernel waits share the next list.
func TestChangesAreCoalesced(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	before := r.lists.swaps
	const many = 60
	var wg sync.WaitGroup
	for n := range many {
		wg.Go(func() {
			v, err := g.Add(bg, subscriber(n, n)...)
			if err != nil {
				t.Error(err)
				return
			}
			if err := v.Update(bg, func(values []any) []any {
				values[2] = values[2].(uint64) + 1000
				return values
			}); err != nil {
				t.Error(err)
			}
			if got := v.Values()[2]; got != uint64(n+1000) {
				t.Errorf("the value in force is %v", got)
			}
		})
	}
	wg.Wait()
	if n := r.lists.swaps - before; n > many/2 || g.Len() != many {
		t.Errorf("%d swaps for %d changes, %d receivers", n, 2*many, g.Len())
	}
	// The same values again cost nothing.
	before = r.lists.swaps
	v := g.Receivers()[0]
	if err := v.Set(bg, v.Values()...); err != nil || r.lists.swaps != before {
		t.Errorf("%v, %d swaps for the same values", err, r.lists.swaps-before)
	}
}

// No increment of several goroutines is lost.
func TestUpdate(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if err := v.Update(bg, func(values []any) []any {
					values[2] = values[2].(uint64) + 1
					return values
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := v.Values()[2]; got != uint64(40) {
		t.Errorf("%v of 40 increments", got)
	}
	if err := v.Update(bg, func([]any) []any { return []any{1} }); err == nil || !strings.Contains(err.Error(),
		"3 needed") {
		t.Errorf("an update to something else: %v", err)
	}
}

func TestChangeIsAllOrNothing(t *testing.T) {
	r := loadGroups(t, Options{})
	k, g := r.GroupKind("subs"), openGroup(t, r, 7)
	v := add(t, g, 1, 1)
	other := add(t, openGroup(t, r, 8), 1, 1)
	free := func() string {
		return fmt.Sprint(len(k.free), len(k.ids), len(k.live), len(r.counters.free), len(r.spaces.all))
	}
	before := free()
	var kept *AnyChange
	wrong := errors.New("wrong")
	var value *ValueError
	var full *FullError
	for _, tt := range []struct {
		name string
		f    func(c *AnyChange) error
		is   func(error) bool
	}{
		{"an error of its own", func(c *AnyChange) error {
			c.Add(subscriber(2, 2)...)
			c.Remove(v)
			kept = c
			return wrong
		}, func(err error) bool { return err == wrong }},
		{"a family", func(c *AnyChange) error {
			c.Add(subscriber(2, 2)...)
			return c.Set(v, netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("192.0.2.1:1"), 1)
		}, func(err error) bool { return errors.As(err, &value) }},
		{"an unspecified address", func(c *AnyChange) error {
			_, err := c.Add(netip.MustParseAddrPort("0.0.0.0:1"), netip.MustParseAddrPort("192.0.2.1:1"), 1)
			return err
		},
			func(err error) bool { return errors.As(err, &value) && strings.Contains(err.Error(), "unspecified") }},
		{"too many", func(c *AnyChange) error {
			for n := range 64 {
				if _, err := c.Add(subscriber(n, n)...); err != nil {
					return err
				}
			}
			return nil
		}, func(err error) bool {
			return errors.As(err, &full) && strings.Contains(err.Error(), "subs id=0x7") && full.Size == 64
		}},
		{"too many in all", func(c *AnyChange) error {
			for n := range 128 {
				if _, err := c.Add(subscriber(n, n)...); err != nil {
					return err
				}
			}
			return nil
		}, func(err error) bool {
			return errors.As(err, &full) && full.Size == 128 && strings.Contains(err.Error(), "receivers of group")
		}},
		{"another group's", func(c *AnyChange) error { c.Add(subscriber(2, 2)...); c.Remove(other); return nil },
			func(err error) bool { return strings.Contains(err.Error(), "is no receiver of") }},
		{"another group's values", func(c *AnyChange) error {
			return c.Set(other, subscriber(2, 2)...)
		}, func(err error) bool { return strings.Contains(err.Error(), "is no receiver of") }},
	} {
		if err := g.Change(bg, tt.f); err == nil || !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := free(); got != before || !slices.Equal(g.Receivers(), []*AnyReceiver{v}) ||
			v.Values()[2] != uint64(1) {
			t.Errorf("%s: free %s, was %s; receivers %v", tt.name, got, before, g.Receivers())
		}
	}
	if _, err := kept.Add(subscriber(1, 1)...); err == nil {
		t.Error("a change was changed after its function had returned")
	}
	// One that comes and goes in one step leaves nothing; a panic neither.
	if err := g.Change(bg, func(c *AnyChange) error {
		v, err := c.Add(subscriber(3, 3)...)
		c.Remove(v)
		return err
	}); err != nil || free() != before {
		t.Errorf("%v, free %s, was %s", err, free(), before)
	}
	func() {
		defer func() { recover() }()
		g.Change(bg, func(c *AnyChange) error { c.Add(subscriber(3, 3)...); panic("a test") })
	}()
	if free() != before {
		t.Errorf("after a panic free %s, was %s", free(), before)
	}
}

// Whatever step fails, the kernel and the books are as before, and the next change works.
func TestChangeFails(t *testing.T) {
	r := loadGroups(t, Options{})
	k := r.GroupKind("subs")
	g := openGroup(t, r, 7)
	anna, bert := add(t, g, 1, 1), add(t, g, 2, 2)
	free := func() string {
		return fmt.Sprint(len(k.free), len(k.ids), len(k.live), len(r.counters.free), len(r.spaces.all), len(k.open),
			len(r.hops.byKey))
	}
	receivers := func() (out []string) {
		runOn(t, r, "fan", groupPacket(7, 0), 1)
		drain(t, r, func(ev *Event) { out = append(out, fmt.Sprint(ev.Receiver.ID(), ev.Uint(2))) })
		return out
	}
	before, were := free(), receivers()
	injected := errors.New("injected")
	for _, step := range []string{"rows", "list", "swap", "remove"} {
		r.lists.fault = func(at string) error {
			if at == step {
				return injected
			}
			return nil
		}
		if step == "remove" {
			if err := g.Close(bg); !errors.Is(err, injected) {
				t.Errorf("%s: %v", step, err)
			}
		} else {
			err := g.Change(bg, func(c *AnyChange) error {
				if _, err := c.Add(subscriber(3, 3)...); err != nil {
					return err
				}
				c.Remove(anna)
				return c.Set(bert, subscriber(4, 4)...)
			})
			if !errors.Is(err, injected) {
				t.Errorf("%s: %v", step, err)
			}
			if _, err := k.Open(bg, 9); !errors.Is(err, injected) {
				t.Errorf("%s: open: %v", step, err)
			}
		}
		r.lists.fault = nil
		if free() != before || !slices.Equal(receivers(), were) || found(k.Get(7)) != g || found(k.Get(9)) != nil {
			t.Errorf("%s: free %s, was %s; receivers %v, were %v", step, free(), before, receivers(), were)
		}
	}
	if err := anna.Remove(bg); err != nil {
		t.Error(err)
	}
	if got := receivers(); !slices.Equal(got, were[1:]) {
		t.Errorf("receivers %v, were %v", got, were)
	}
	if err := openGroup(t, r, 9).Close(bg); err != nil {
		t.Error(err)
	}
}

func TestGroupLimits(t *testing.T) {
	r := loadGroups(t, Options{})
	k := r.GroupKind("subs")
	for n := range 4 {
		openGroup(t, r, n)
	}
	var full *FullError
	if _, err := k.Open(bg, 4); !errors.As(err, &full) || full.Size != 4 || !errors.Is(err, ErrFull) {
		t.Errorf("a fifth group of four: %v", err)
	}
	// Two full groups, all of whose rows change at once, again and again.
	for n := range 2 {
		g := must(k.Get(n))
		if err := g.Change(bg, func(c *AnyChange) error {
			for n := range 64 {
				if _, err := c.Add(subscriber(n, n)...); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := found(k.Get(2)).Add(bg, subscriber(1, 1)...); !errors.As(err, &full) || full.Size != 128 {
		t.Errorf("the 129th receiver: %v", err)
	}
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Go(func() {
			for round := range 3 {
				err := found(k.Get(n)).Change(bg, func(c *AnyChange) error {
					for i, v := range found(k.Get(n)).Receivers() {
						if err := c.Set(v, subscriber(i, 1000*(round+1)+i)...); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if groups, receivers := k.Count(); groups != 4 || receivers != 128 || len(k.free) != 64 {
		t.Errorf("%d groups, %d receivers, %d free rows", groups, receivers, len(k.free))
	}
	for n := range 4 {
		if err := found(k.Get(n)).Close(bg); err != nil {
			t.Error(err)
		}
	}
	if _, receivers := k.Count(); receivers != 0 || len(k.free) != 192 || len(k.ids) != 128 {
		t.Errorf("%d receivers, %d free rows, %d identities", receivers, len(k.free), len(k.ids))
	}
}

// The relay is closed while groups change: every call returns, and later ones say why they fail.
func TestCloseWhileChanging(t *testing.T) {
	for range 10 {
		r := loadGroups(t, Options{})
		k := r.GroupKind("subs")
		g := openGroup(t, r, 7)
		started := make(chan struct{}, 64)
		var wg sync.WaitGroup
		for n := range 6 {
			wg.Go(func() {
				for i := 0; ; i++ {
					v, err := g.Add(bg, subscriber(n, i)...)
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					if i == 0 {
						started <- struct{}{}
					}
					v.State(1).([]*Credit)[0].SetLimit(5)
					v.Usage()
					k.Count()
					if err := v.Remove(bg); err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			for range read(r, t.Context()) {
			}
		})
		<-started
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if _, err := k.Open(bg, 9); !errors.Is(err, ErrClosed) {
			t.Errorf("opened in a closed relay: %v", err)
		}
		if err := g.Close(bg); err != nil {
			t.Errorf("closed in a closed relay: %v", err)
		}
	}
}

// A swap takes a grace period of RCU. Nothing here depends on how long that is; the numbers are for docs/operate.md.
func BenchmarkChange(b *testing.B) {
	r := loadGroups(b, Options{})
	g := openGroup(b, r, 7)
	v := add(b, g, 1, 0)
	b.Run("one after the other", func(b *testing.B) {
		for b.Loop() {
			if err := v.Update(bg, func(values []any) []any {
				values[2] = values[2].(uint64) + 1
				return values
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64 at once", func(b *testing.B) {
		var vs []*AnyReceiver
		for n := range 60 {
			vs = append(vs, add(b, g, n, 0))
		}
		began := time.Now()
		n := 0
		for b.Loop() {
			var wg sync.WaitGroup
			for _, v := range vs {
				wg.Go(func() {
					if err := v.Update(bg, func(values []any) []any {
						values[2] = values[2].(uint64) + 1
						return values
					}); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			n += len(vs)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/float64(n), "µs/change")
	})
}

// A next hop changes while its group is being closed: that is no error, since there is nothing left to follow it.
func TestHopChangesWhileGroupCloses(t *testing.T) {
	var log logText
	r := loadGroups(t, Options{Logger: log.logger()})
	g := openGroup(t, r, 7)
	v := add(t, g, 1, 1)
	r.lists.fault = func(step string) error {
		if step == "remove" {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.lists.rehop(v)
		}
		return nil
	}
	if err := g.Close(bg); err != nil {
		t.Fatal(err)
	}
	if err := v.Remove(bg); err != nil {
		t.Errorf("a receiver that has gone with its group: %v", err)
	}
	if err := r.Close(); err != nil { // which waits for the committer
		t.Fatal(err)
	}
	if text := log.text.String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("it is logged as an error:\n%s", text)
	}
}

// A group is closed, by several at once, while others change it: nothing remains, and every call returns.
func TestCloseGroupWhileChanging(t *testing.T) {
	r := loadGroups(t, Options{})
	k := r.GroupKind("subs")
	for range 15 {
		g := openGroup(t, r, 7)
		started := make(chan struct{}, 64)
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					v, err := g.Add(bg, subscriber(n, i)...)
					if i == 0 {
						started <- struct{}{}
					}
					if err == nil && i%2 == 0 {
						err = v.Set(bg, subscriber(n, i+1)...)
					}
					if err != nil {
						var full *FullError
						if !errors.Is(err, ErrClosed) && !errors.As(err, &full) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for range 3 {
			wg.Go(func() {
				<-started
				if err := g.Close(bg); err != nil {
					t.Error(err)
				}
				if groups, _ := k.Count(); groups != 0 {
					t.Error("the group is open after Close")
				}
			})
		}
		wg.Wait()
		if len(k.free) != 192 || len(k.ids) != 128 || len(k.live) != 0 || len(r.spaces.all) != 0 ||
			len(r.counters.free) != 132 || len(r.hops.byKey) != 0 {
			t.Fatalf("free: %d rows, %d identities, %d counters; %d receivers, %d namespaces, %d hops", len(k.free),
				len(k.ids), len(r.counters.free), len(k.live), len(r.spaces.all), len(r.hops.byKey))
		}
	}
}
