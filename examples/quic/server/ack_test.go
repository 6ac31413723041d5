package server

import (
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// turns counts the turns of a run loop.
type turns struct {
	library
	acks, others int
}

func (l *turns) ReceiveACKs(acks []quic.ACK) { l.acks += len(acks) }
func (l *turns) Notify()                     { l.others++ }

// ACKs and copies are handed over when they are old, at once if the kernel may have to wait, and if an ACK leaves
// a packet out.
func TestHandOver(t *testing.T) {
	now := time.Now()
	fresh, old := now.Add(-late/2), now.Add(-late)
	ack := func(first, largest uint64, at time.Time) *quicrelay.AckedEvent {
		e := &quicrelay.AckedEvent{Type: 2, PN: uint32(largest), PNSize: 4, Largest: largest, First: largest - first}
		e.Time = at
		return e
	}
	for _, c := range []struct {
		name           string
		acks           []*quicrelay.AckedEvent
		copied         time.Time
		waiting, queue int
		turns          turns
		any, urgent    bool
	}{
		{name: "nothing"},
		{name: "a new copy", copied: fresh, waiting: 1000, any: true},
		{name: "an old copy", copied: old, waiting: 1000, turns: turns{others: 1}, any: true},
		{
			name: "new ACKs", acks: []*quicrelay.AckedEvent{ack(0, 1, fresh), ack(0, 3, fresh), ack(4, 5, fresh)},
			any: true,
		},
		{
			name: "an old ACK", acks: []*quicrelay.AckedEvent{ack(0, 1, old), ack(0, 3, now)},
			turns: turns{acks: 2}, any: true,
		},
		{
			name: "a gap", acks: []*quicrelay.AckedEvent{ack(0, 1, fresh), ack(3, 4, fresh)},
			turns: turns{acks: 2}, any: true,
		},
		{
			name: "half the window is used", copied: fresh, waiting: 5001,
			turns: turns{others: 1}, any: true, urgent: true,
		},
		{
			name: "data waits", acks: []*quicrelay.AckedEvent{ack(0, 1, fresh)}, queue: 1,
			turns: turns{acks: 1}, any: true, urgent: true,
		},
	} {
		l := &turns{}
		u := &subscriber{library: l, window: window{room: 10000, waiting: c.waiting}, queued: c.queue}
		for _, e := range c.acks {
			u.acks = append(u.acks, u.ackReader.read(e))
		}
		if !c.copied.IsZero() {
			u.unregistered = append(u.unregistered, quic.OutsidePacket{Time: c.copied})
		}
		if any, urgent := u.handOver(now); any != c.any || urgent != c.urgent || *l != c.turns {
			t.Errorf("%s: %v, %v, %+v", c.name, any, urgent, *l)
		}
		if u.ackReader.gap {
			t.Errorf("%s: the gap is still there", c.name)
		}
	}
}
