// Package ctxlock has a mutex whose waiters can give up.
package ctxlock

import (
	"context"
	"sync/atomic"
)

// Lock is a mutex whose waiters can give up. Without contention, locking and unlocking are one atomic operation
// each: the reader of events does both for every record.
type Lock struct {
	taken   atomic.Bool
	waiting atomic.Int32
	free    chan struct{} // holds a value if one who waits should look again
}

// New returns a lock that is free.
func New() *Lock { return &Lock{free: make(chan struct{}, 1)} }

// TryLock acquires l if it is free.
func (l *Lock) TryLock() bool { return l.taken.CompareAndSwap(false, true) }

// Lock acquires l; it returns false if ctx or over ends first.
func (l *Lock) Lock(ctx context.Context, over <-chan struct{}) bool {
	if l.TryLock() {
		return true
	}
	// Unlock looks for waiters after it released the lock, so either the lock is free or a waiter is woken.
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	for !l.TryLock() {
		select {
		case <-l.free:
		case <-ctx.Done():
			l.wake() // the wake-up may have been meant for another waiter
			return false
		case <-over:
			l.wake()
			return false
		}
	}
	return true
}

// Unlock releases l.
func (l *Lock) Unlock() {
	l.taken.Store(false)
	if l.waiting.Load() > 0 {
		l.wake()
	}
}

func (l *Lock) wake() {
	select {
	case l.free <- struct{}{}:
	default:
	}
}
