package outside

import "time"

// A Window is what the congestion window has room for. The kernel counts UDP payloads.
type Window struct {
	Size, Room int    // as the library said last
	registered uint64 // bytes of the packets sent outside that the library knows of
	waiting    int    // bytes of those that it doesn't
	ahead      uint64 // what the library will have sent itself when all is sent that it was given
	given      time.Time
}

// Waiting is how many bytes were sent outside that the library doesn't know of.
func (w *Window) Waiting() int { return w.waiting }

// backlog is what the library was given and hasn't sent; sent is what it has sent itself.
func (w *Window) backlog(sent uint64, now time.Time) int {
	if w.ahead <= sent || now.Sub(w.given) > forgotten {
		return 0
	}
	return int(w.ahead - sent)
}

// forgotten is when what the library was given counts as sent: it may have been dropped by now.
const forgotten = 500 * time.Millisecond

// give notes that the library was given data. Its headers don't count: an estimate that is too high would never be
// corrected while more is given, and would take the window from the kernel.
func (w *Window) give(n int, sent uint64, now time.Time) {
	w.ahead, w.given = sent+uint64(w.backlog(sent, now)+n), now
}

// Limit returns what the kernel may spend in all: the room is what it was after the registered copies.
func (w *Window) Limit(room, backlog int) uint64 { return w.registered + uint64(max(0, room-backlog)) }

// tight reports whether the kernel may soon have to wait for an ACK: there is room for less than a quarter of the
// window, which is about what an ACK makes room for (package acks), or for less than has been sent since the library
// said how much there is.
func (w *Window) tight(size, room int) bool { return room-w.waiting < max(size/4, w.waiting) }
