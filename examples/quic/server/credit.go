package server

import "time"

// A budget is a subscriber's flow control credit of the connection (RFC 9000, section 4.1), which the kernel and user
// space spend without asking each other.
//
// A receiver counts for each stream where its data ends at most. The kernel doesn't: a copy costs what it carries. So the
// two differ by gaps: by data that comes before what the kernel has sent, but was lost on its way to this host, or wasn't
// copied. User space counts as the receiver does, for all that it has seen of the publisher's packets, and corrects the
// kernel's limit. What it hasn't seen yet is bounded by what the publisher may send: the margin is that window.
//
// For each subscriber, the sum over its streams of where the data ends that was sent is then never more than
//
//	processed + (spent - charged) + margin <= leased
//
// where spent is what the kernel has spent at that moment, and the other numbers are from before.
type budget struct {
	leased    uint64 // what the library gave us in all
	margin    uint64
	slack     uint64    // what programs may spend that have seen a higher limit: a packet on each processor
	processed uint64    // by stream, where the data ends that user space has seen, sent or not
	sent      uint64    // by stream, where the data ends that was sent, as far as user space has seen
	charged   uint64    // what the kernel has spent on the copies that user space has seen
	engaged   bool      // the kernel had credit at least once
	blocked   time.Time // since when the kernel has no credit; zero: it has
}

// meter is the kernel's credit.
type meter interface {
	SetLimit(n uint64)
	Spent() uint64
}

// limit returns what the kernel may spend in all.
func (b *budget) limit() uint64 {
	reserved := b.margin + b.slack + b.processed
	if b.charged+b.leased <= reserved {
		return 0
	}
	return b.charged + b.leased - reserved
}

// set sets the kernel's limit.
func (b *budget) set(m meter, now time.Time) {
	n := b.limit()
	b.engaged = b.engaged || n > 0
	m.SetLimit(n)
	switch {
	case n > m.Spent():
		b.blocked = time.Time{}
	case b.blocked.IsZero():
		b.blocked = now
	}
}

// settled is when all programs have ended that had a credit before.
const settled = 5 * time.Millisecond

// room returns how much further data that user space sends may end on its streams. The kernel's limit is set. If the
// kernel can't send any more, and all its copies are known, user space has all that is left.
func (b *budget) room(m meter, now time.Time) uint64 {
	used := b.sent
	if m != nil && b.engaged {
		spent := m.Spent()
		if spent != b.charged || b.blocked.IsZero() || now.Sub(b.blocked) < settled {
			used += spent - b.charged + b.margin + b.slack
		}
	}
	return max(b.leased, used) - used
}

// A reach is where data of a stream ends.
type reach struct{ processed, sent uint64 }

// see notes that user space has seen data up to there.
func (b *budget) see(r *reach, to uint64) {
	if to > r.processed {
		b.processed += to - r.processed
		r.processed = to
	}
}

// send notes that data up to there was sent.
func (b *budget) send(r *reach, to uint64) {
	b.see(r, to)
	if to > r.sent {
		b.sent += to - r.sent
		r.sent = to
	}
}

// A window is what the congestion window has room for. The kernel counts UDP payloads.
type window struct {
	room       int    // as the library said last
	registered uint64 // bytes of the copies that the library knows of
	waiting    int    // bytes of the copies that it doesn't
	ahead      uint64 // what the library will have sent itself when all is sent that it was given
	given      time.Time
}

// backlog is what the library was given and hasn't sent; sent is what it has sent itself.
func (w *window) backlog(sent uint64, now time.Time) int {
	if w.ahead <= sent || now.Sub(w.given) > forgotten {
		return 0
	}
	return int(w.ahead - sent)
}

// forgotten is when what the library was given counts as sent: it may have been dropped by now.
const forgotten = 500 * time.Millisecond

// give notes that the library was given data, which leaves with some headers.
func (w *window) give(n int, sent uint64, now time.Time) {
	w.ahead, w.given = sent+uint64(w.backlog(sent, now)+n+n/32+32), now
}

// limit returns what the kernel may spend in all: the room is what it was after the registered copies.
func (w *window) limit(backlog int) uint64 { return w.registered + uint64(max(0, w.room-backlog)) }
