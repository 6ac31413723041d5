package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// ErrDraining is returned if a session, a group or a receiver would be opened while the relay is being drained.
var ErrDraining = errors.New("the relay is being drained and takes nothing new")

// drainState is whether the relay takes new sessions, groups and receivers. It changes with Relay.mu and
// receiverLists.mu held, and is read with one of them.
type drainState struct {
	on   bool
	done chan struct{} // nil: it was never drained; closed when nothing was open any more
}

// over says whether nothing was open at some moment since the drain began.
func (d *drainState) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Drain has the relay refuse new sessions, groups and receivers with [ErrDraining] from now on, and returns when no
// session is open any more and no group has a receiver. If ctx ends first, the error wraps ctx's and says how many
// are left. The relay goes on refusing new ones until [Relay.EndDrain].
func (r *Relay) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.lists.mu.Lock()
	if !r.draining.on {
		r.draining.on = true
		if r.draining.done == nil || r.draining.over() { // else a caller may still wait, since before EndDrain
			r.draining.done = make(chan struct{})
		}
		r.say(slog.LevelInfo, "a relay is being drained", "sessions", len(r.sessions), "receivers",
			r.lists.receivers())
	}
	done := r.draining.done
	r.noteDrained()
	closed := r.closed
	r.lists.mu.Unlock()
	r.mu.Unlock()
	if !closed {
		select { // first of all, since ctx may be over as well
		case <-done:
			return nil
		default:
		}
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			sessions, receivers := r.left()
			return fmt.Errorf("drain relay %q: %d sessions and %d receivers are left: %w", r.desc.Name, sessions,
				receivers, ctx.Err())
		case <-r.done:
		}
	}
	return fmt.Errorf("drain relay %q: %w", r.desc.Name, ErrClosed)
}

// EndDrain has the relay take new sessions, groups and receivers again. Whoever waits for them to end goes on waiting.
func (r *Relay) EndDrain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists.mu.Lock()
	defer r.lists.mu.Unlock()
	if r.draining.on {
		r.draining.on = false
		r.say(slog.LevelInfo, "a relay takes new sessions again")
	}
}

// Draining reports whether the relay refuses new sessions, groups and receivers.
func (r *Relay) Draining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining.on
}

// left returns what is open.
func (r *Relay) left() (sessions, receivers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists.mu.Lock()
	defer r.lists.mu.Unlock()
	return len(r.sessions), r.lists.receivers()
}

// receivers returns how many receivers all groups have, those that are being added or removed included. mu is held.
func (f *receiverLists) receivers() (n int) {
	for _, k := range f.relay.groups {
		n += len(k.live)
	}
	return n
}

// noteDrained ends the wait of Drain if nothing is open. mu and lists.mu are held.
func (r *Relay) noteDrained() {
	if r.draining.done == nil || r.draining.over() || len(r.sessions) > 0 || r.lists.receivers() > 0 {
		return
	}
	close(r.draining.done)
	r.say(slog.LevelInfo, "a relay is drained")
}
