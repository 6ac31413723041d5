package ctxlock

import (
	"context"
	"sync"
	"testing"
)

// One goroutine at a time holds the lock, each that waits long enough acquires it, and one that gives up doesn't take a
// wake-up from another.
func TestLock(t *testing.T) {
	l := New()
	over := make(chan struct{})
	const goroutines, rounds = 8, 5000
	inside, total := 0, 0
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				if !l.Lock(t.Context(), over) {
					t.Error("Lock gave up, though nothing ended")
					return
				}
				if inside++; inside != 1 {
					t.Error("two hold the lock")
				}
				total++
				inside--
				l.Unlock()
			}
		})
		wg.Go(func() {
			for range rounds / 10 {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if l.Lock(ctx, over) {
					l.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if total != goroutines*rounds {
		t.Errorf("acquired %d times, want %d", total, goroutines*rounds)
	}
	l.Lock(t.Context(), over)
	close(over)
	if l.Lock(t.Context(), over) {
		t.Error("acquired a lock that is held, after the end")
	}
}
