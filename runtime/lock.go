package runtime

import (
	"context"
	"sync/atomic"
)

// ctxLock is a mutex whose waiters can give up. Without contention, locking and unlocking are one atomic operation
// each: the reader of events does both for every record.
type ctxLock struct {
	taken   atomic.Bool
	waiting atomic.Int32
	free    chan struct{} // holds a value where one who waits should look again
}

func newCtxLock() *ctxLock { return &ctxLock{free: make(chan struct{}, 1)} }

// tryLock acquires t if it is free.
func (t *ctxLock) tryLock() bool { return t.taken.CompareAndSwap(false, true) }

// lock acquires t; it returns false if ctx or over ends first.
func (t *ctxLock) lock(ctx context.Context, over <-chan struct{}) bool {
	if t.tryLock() {
		return true
	}
	// unlock looks for waiters after it released the lock, so either the lock is free or a waiter is woken.
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for !t.tryLock() {
		select {
		case <-t.free:
		case <-ctx.Done():
			t.wake() // the wake-up may have been meant for another waiter
			return false
		case <-over:
			t.wake()
			return false
		}
	}
	return true
}

// unlock releases t.
func (t *ctxLock) unlock() {
	t.taken.Store(false)
	if t.waiting.Load() > 0 {
		t.wake()
	}
}

func (t *ctxLock) wake() {
	select {
	case t.free <- struct{}{}:
	default:
	}
}
