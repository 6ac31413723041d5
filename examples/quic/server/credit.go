package server

// A budget is a subscriber's flow control credit of the connection (RFC 9000, section 4.1), which the kernel and user
// space spend without asking each other.
//
// A receiver counts for each stream how far its data reaches. The kernel doesn't: a copy costs what it carries. The two
// differ by gaps: by data before what the kernel has sent that was lost on its way to this host, or wasn't copied. User
// space counts as the receiver does, for all that it has seen of the publisher's packets, and corrects the kernel's
// limit. What it hasn't seen is no more than the publisher's window; that is the margin. So
//
//	reach <= processed + (spent - charged) + margin <= leased
//
// while the kernel has credit. When it has none, what user space sends was processed, and user space checks it itself.
type budget struct {
	leased    uint64 // what the library gave us in all
	margin    uint64
	processed uint64 // how far data reaches that user space has seen, sent or not: the sum over all streams
	sent      uint64 // how far data reaches that was sent, as far as user space has seen
	charged   uint64 // what the kernel has spent on the copies that user space has seen
}

// limit returns what the kernel may spend in all.
func (b *budget) limit() uint64 {
	reserved := b.margin + b.processed
	return max(b.charged+b.leased, reserved) - reserved
}

// room returns how much further data may reach that user space sends.
func (b *budget) room() uint64 { return max(b.leased, b.sent) - b.sent }

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
