package runtime

import (
	"context"
	"sync"
	"testing"
)

// One at a time has the turn, everybody gets it who waits long enough, and who stops waiting takes it from nobody.
func TestTurn(t *testing.T) {
	tr := newCtxLock()
	over := make(chan struct{})
	const goroutines, turns = 8, 5000
	inside, total := 0, 0
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range turns {
				if !tr.lock(t.Context(), over) {
					t.Error("a turn that nobody ended")
					return
				}
				if inside++; inside != 1 {
					t.Error("two have the turn")
				}
				total++
				inside--
				tr.unlock()
			}
		})
		wg.Go(func() {
			for range turns / 10 {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if tr.lock(ctx, over) {
					tr.unlock()
				}
			}
		})
	}
	wg.Wait()
	if total != goroutines*turns {
		t.Errorf("%d turns, want %d", total, goroutines*turns)
	}
	tr.lock(t.Context(), over)
	close(over)
	if tr.lock(t.Context(), over) {
		t.Error("a turn that somebody has, when all is over")
	}
}
