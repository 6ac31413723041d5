package relay

import (
	"context"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// Leave asks all peers to leave (GOAWAY, §9.2), and refuses requests and connections. It returns when no session is
// open; if ctx ends before, its error. The relay goes on: see EndLeave.
func (r *Relay) Leave(ctx context.Context) error {
	r.draining.Store(true)
	r.mu.Lock()
	if r.gone == nil {
		r.gone = make(chan struct{})
	}
	gone := r.gone
	if len(r.sessions) == 0 {
		close(gone)
		r.gone = nil
	}
	sessions := slices.Collect(maps.Keys(r.sessions))
	for _, u := range r.upstreams {
		if u.session != nil {
			sessions = append(sessions, u.session)
		}
	}
	r.mu.Unlock()
	for _, s := range sessions {
		s.goAway()
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// EndLeave has the relay take sessions and requests again after Leave. Peers that were asked to leave may do so.
func (r *Relay) EndLeave() { r.draining.Store(false) }

// Draining reports whether peers were asked to leave.
func (r *Relay) Draining() bool { return r.draining.Load() }

// Expel closes all sessions, as GOAWAY has said, and returns how many there were.
func (r *Relay) Expel() int { return r.expel(false) }

// expel closes sessions; those alone that have requests, if busy is true.
func (r *Relay) expel(busy bool) (n int) {
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	for _, s := range sessions {
		if !busy || s.busy() {
			n++
			_ = s.conn.CloseWithError(quic.ApplicationErrorCode(wire.GoAwayTimeout), "the relay is drained")
		}
	}
	return n
}
