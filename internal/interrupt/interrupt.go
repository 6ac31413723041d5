// Package interrupt lets a process that is told to end do so at once, whatever it computes, and never in the middle of
// something that would be left half done.
package interrupt

import (
	"context"
	"sync"
	"sync/atomic"
)

// Gate keeps what must not be interrupted apart from the end of the process.
type Gate struct {
	mu      sync.RWMutex
	handled atomic.Bool
}

type key struct{}

// With returns a context that knows a gate.
func With(ctx context.Context, g *Gate) context.Context { return context.WithValue(ctx, key{}, g) }

func of(ctx context.Context) *Gate {
	if g, ok := ctx.Value(key{}).(*Gate); ok {
		return g
	}
	return &Gate{} // that no command has
}

// Hold puts off the end of the process until release is called. It is for what is short or ends soon with ctx: to write
// a file, to remove a temporary folder. If the process is ending already, Hold doesn't return. Between Hold and release
// there must not be another Hold.
func Hold(ctx context.Context) (release func()) {
	g := of(ctx)
	g.mu.RLock()
	return g.mu.RUnlock
}

// Handle says that from now on the command ends by itself, in its own way, when ctx ends.
func Handle(ctx context.Context) {
	g := of(ctx)
	g.mu.RLock()
	defer g.mu.RUnlock()
	g.handled.Store(true)
}

// Close waits until nothing holds the gate, and lets nothing through any more: the process can end. It returns false,
// and the gate stays open, if the command ends by itself.
func (g *Gate) Close() bool {
	g.mu.Lock()
	if g.handled.Load() {
		g.mu.Unlock()
		return false
	}
	return true
}
