package outside

import (
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A Library is what a sender needs of its connection (quic.Outside).
type Library interface {
	Notify()
}

// A Sender is a connection of which packets are sent outside. Its owner has a mutex for it.
type Sender struct {
	Library Library
	// Traffic returns how many bytes the connection's packets have, of all and of those that were lost; packets that
	// were sent outside are among them as soon as the library knows of them.
	Traffic func() (sent, lost uint64)
	Window

	unregistered []quic.OutsidePacket
	acks         []quic.ACK
	reader       ackReader
}

// Sent takes note of a packet that was sent outside.
func (s *Sender) Sent(p quic.OutsidePacket) {
	s.waiting += p.Size
	s.unregistered = append(s.unregistered, p)
}

// Register has the library learn of the packets that were sent, and returns the ACKs that were taken
// (quic.Hooks.Drain).
func (s *Sender) Register(register func(quic.OutsidePacket)) (acks []quic.ACK) {
	for _, p := range s.unregistered {
		register(p)
		s.registered += uint64(p.Size)
	}
	s.waiting = 0
	clear(s.unregistered)
	s.unregistered = s.unregistered[:0]
	acks, s.acks, s.reader.gap = s.acks, nil, false
	return acks
}

// Acked takes an ACK that a program took.
func (s *Sender) Acked(a *Acked) { s.acks = append(s.acks, s.reader.read(a)) }

// own is how many bytes the library has sent itself.
func (s *Sender) own() uint64 {
	sent, _ := s.Traffic()
	return sent - s.registered
}

// Backlog is what the library was given and hasn't sent.
func (s *Sender) Backlog(now time.Time) int {
	if s.ahead == 0 { // nothing yet: this spares a lock of the connection's
		return 0
	}
	return s.backlog(s.own(), now)
}

// Give notes that the library was given so many bytes.
func (s *Sender) Give(n int, now time.Time) { s.give(n, s.own(), now) }

// late is how long the library may not know of copies and of ACKs, unless something waits for them. When its loss
// detection has waited long enough for an ACK, it learns of them before.
const late = 20 * time.Millisecond

// IsUrgent reports whether ACKs are: if something waits that the kernel has no room for, or it may soon have to wait.
// That holds for ACKs that are still to come, too, most of which come through the socket if packets are lost: a program
// takes ACKs of one range only. Size and room are the window's.
func (s *Sender) IsUrgent(waits bool, size, room int) bool { return waits || s.tight(size, room) }

// HandOver has the library take a turn of its run loop, in which it learns of packets and of ACKs ([Sender.Register]).
// It waits for more of them unless it is urgent. It reports whether there is, or will be, something to do.
func (s *Sender) HandOver(now time.Time, urgent bool) bool {
	if len(s.acks) == 0 && len(s.unregistered) == 0 {
		return false
	}
	oldest := now
	if len(s.acks) > 0 {
		oldest = s.acks[0].Time
	}
	if len(s.unregistered) > 0 && s.unregistered[0].Time.Before(oldest) {
		oldest = s.unregistered[0].Time
	}
	if urgent || s.reader.gap || now.Sub(oldest) >= late {
		s.Library.Notify()
	}
	return true
}
