package runtime

import (
	"context"
	"sync/atomic"
)

// turn is a lock that a goroutine can stop waiting for. Taking it and giving it back while nobody waits are an atomic operation each:
// the reader of events does both for every record.
type turn struct {
	taken   atomic.Bool
	waiting atomic.Int32
	free    chan struct{} // holds a value where one who waits should look again
}

func newTurn() *turn { return &turn{free: make(chan struct{}, 1)} }

// try takes the turn if it is free.
func (t *turn) try() bool { return t.taken.CompareAndSwap(false, true) }

// take takes the turn, or returns false where ctx or over ends first.
func (t *turn) take(ctx context.Context, over <-chan struct{}) bool {
	if t.try() {
		return true
	}
	// Who gives the turn back looks for those who wait behind that, so it is free or they are told.
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for !t.try() {
		select {
		case <-t.free:
		case <-ctx.Done():
			t.tell() // what was meant for this one is somebody else's
			return false
		case <-over:
			t.tell()
			return false
		}
	}
	return true
}

// give gives the turn back.
func (t *turn) give() {
	t.taken.Store(false)
	if t.waiting.Load() > 0 {
		t.tell()
	}
}

func (t *turn) tell() {
	select {
	case t.free <- struct{}{}:
	default:
	}
}
