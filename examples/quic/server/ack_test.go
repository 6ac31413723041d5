package server

import (
	"cmp"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// turns counts the turns of a run loop.
type turns struct {
	library
	taken int
}

func (l *turns) Notify() { l.taken++ }

// ACKs and copies are handed over when they are old, at once if the kernel may have to wait, and if an ACK leaves
// a packet out.
func TestHandOver(t *testing.T) {
	now := time.Now()
	fresh, old := now.Add(-time.Millisecond), now.Add(-time.Second)
	ack := func(first, largest uint64, at time.Time) *outside.Acked {
		return &outside.Acked{
			Type: 2, PN: uint32(largest), PNSize: 4, Largest: largest, First: largest - first, Time: at,
		}
	}
	for _, c := range []struct {
		name           string
		acks           []*outside.Acked
		copied         time.Time
		room           int // in a window of 20,000 bytes; 0: 10,000; -1: none
		steering       *steering
		waiting, queue int
		stock          bool
		turns          int
		any, urgent    bool
	}{
		{name: "nothing"},
		{name: "a new copy", copied: fresh, waiting: 1000, any: true},
		{name: "an old copy", copied: old, waiting: 1000, turns: 1, any: true},
		{
			name: "new ACKs", acks: []*outside.Acked{ack(0, 1, fresh), ack(0, 3, fresh), ack(4, 5, fresh)},
			any: true,
		},
		{
			name: "an old ACK", acks: []*outside.Acked{ack(0, 1, old), ack(0, 3, now)},
			turns: 1, any: true,
		},
		{
			name: "a gap", acks: []*outside.Acked{ack(0, 1, fresh), ack(3, 4, fresh)},
			turns: 1, any: true,
		},
		{
			name: "half the window is used", copied: fresh, waiting: 5001,
			turns: 1, any: true, urgent: true,
		},
		{
			name: "the window is nearly full", acks: []*outside.Acked{ack(0, 1, fresh)}, room: 4999,
			turns: 1, any: true, urgent: true,
		},
		{
			name: "a quarter of the window is left", acks: []*outside.Acked{ack(0, 1, fresh)}, room: 5000,
			any: true,
		},
		{
			name: "with copies it is nearly full", acks: []*outside.Acked{ack(0, 1, fresh)}, room: 6000,
			waiting: 1001, turns: 1, any: true, urgent: true,
		},
		{name: "it is full, and nothing has come", room: -1, urgent: true},
		{name: "data waits, and nothing has come", queue: 1, urgent: true},
		{name: "a protected subscriber, and the same", queue: 1, stock: true},
		{name: "a protected subscriber, half the window", copied: fresh, waiting: 5001, stock: true, any: true},
		{
			name: "the algorithm's window is full", room: 10000,
			steering: &steering{window: 5000, path: quic.PathState{BytesInFlight: 5000}}, urgent: true,
		},
		{
			name: "only the library's window is full", room: -1,
			steering: &steering{window: 20000, path: quic.PathState{BytesInFlight: 5000}},
		},
		{
			name: "data waits", acks: []*outside.Acked{ack(0, 1, fresh)}, queue: 1,
			turns: 1, any: true, urgent: true,
		},
	} {
		l := &turns{}
		u := &subscriber{
			library: l, Sender: outside.Sender{Library: l},
			feed: &feed{server: &Server{config: Config{ACKs: acks.Policy{Packets: -1}}}},
		}
		u.setPath(quic.PathState{CongestionWindow: 20000, Window: max(0, cmp.Or(c.room, 10000))})
		u.queued, u.steering = c.queue, c.steering
		if !c.stock {
			u.kernel = &world{}
		}
		for _, a := range c.acks {
			u.Acked(a)
		}
		if c.waiting > 0 {
			u.Sent(quic.OutsidePacket{Time: cmp.Or(c.copied, fresh), Size: c.waiting})
		}
		if any, urgent := u.handOver(now); any != c.any || urgent != c.urgent || l.taken != c.turns {
			t.Errorf("%s: %v, %v, %d turns", c.name, any, urgent, l.taken)
		}
		registered := 0
		acks := u.Register(func(quic.OutsidePacket) { registered++ })
		if sent := min(c.waiting, 1); len(acks) != len(c.acks) || registered != sent {
			t.Errorf("%s: %d ACKs, %d packets; want %d, %d", c.name, len(acks), registered, len(c.acks), sent)
		}
		if len(u.Register(nil)) > 0 {
			t.Errorf("%s: ACKs are handed over twice", c.name)
		}
		u.Sent(quic.OutsidePacket{Time: fresh})
		if u.HandOver(now, false); l.taken != c.turns {
			t.Errorf("%s: the gap is still there", c.name)
		}
	}
}

// TestRounds has a round be short while the kernel may have to wait for ACKs, also if nothing has come that is handed
// over: most ACKs come through the socket if packets are lost. Without anything, rounds end all the same.
func TestRounds(t *testing.T) {
	now := time.Now()
	u := &subscriber{Sender: outside.Sender{Library: &turns{}}, feed: &feed{}, kernel: &world{}}
	s := &Server{subscribers: map[uint32]*subscriber{1: u}}
	for _, c := range []struct {
		room   int // in a window of 20,000 bytes
		after  time.Duration
		length time.Duration
	}{
		{10000, 0, round}, {0, quiet / 2, shortRound}, {10000, quiet, round}, {0, quiet, shortRound}, {0, quiet + 1, 0},
	} {
		u.Window = outside.Window{Size: 20000, Room: c.room}
		if length, _ := s.endRound(now.Add(c.after)); length != c.length {
			t.Errorf("after %v, with room for %d: %v, want %v", c.after, c.room, length, c.length)
		}
	}
}
