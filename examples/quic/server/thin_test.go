package server

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlog"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlogwriter"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// ackCount counts the ACK frames that a client sends in 1-RTT packets, and the requests for ACKs that it gets.
type ackCount struct{ acks, asked atomic.Int64 }

func (a *ackCount) trace(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return a }

func (a *ackCount) AddProducer() qlogwriter.Recorder { return a }
func (a *ackCount) SupportsSchemas(string) bool      { return true }
func (a *ackCount) Close() error                     { return nil }

func (a *ackCount) RecordEvent(e qlogwriter.Event) {
	switch p := e.(type) {
	case qlog.PacketSent:
		for _, f := range p.Frames {
			if _, ok := f.Frame.(*qlog.AckFrame); ok && p.Header.PacketType == qlog.PacketType1RTT {
				a.acks.Add(1)
			}
		}
	case qlog.PacketReceived:
		for _, f := range p.Frames {
			if _, ok := f.Frame.(*qlog.AckFrequencyFrame); ok {
				a.asked.Add(1)
			}
		}
	}
}

// TestFewerACKs counts ACKs of subscribers, ours and quinn's, with null protection and encrypted, that are asked for
// fewer ACKs, and that aren't.
func TestFewerACKs(t *testing.T) {
	needs.Root(t)
	buildOthers(t)
	p := plan{streams: 60, objects: 10, rate: 500}
	type count struct{ acks, asked int }
	run := func(packets int) map[string]count {
		b := newBed(t, options{in: delayed(), out: delayed(), change: func(c *Config) { c.ACKPackets = packets }})
		counts := map[string]count{}
		theirs := []*other{others()[1], others()[3]}
		for _, o := range theirs {
			o.start(b, p.streams)
		}
		names := map[bool]string{true: "ours, null", false: "ours, stock"}
		ours, viewers := map[bool]*ackCount{}, map[bool]*viewer{}
		for fast := range names {
			ours[fast] = &ackCount{}
			config := wide()
			config.Tracer = ours[fast].trace
			viewers[fast] = b.subscribe(fast, config)
		}
		b.play(b.publish(true, nil), p)
		for fast, name := range names {
			b.await(viewers[fast], p.streams)
			counts[name] = count{int(ours[fast].acks.Load()), int(ours[fast].asked.Load())}
		}
		for _, o := range theirs {
			o.check(b, p.wanted())
			counts[o.String()] = count{o.acks, o.asked}
		}
		b.server.Close()
		return counts
	}
	all, fewer := run(-1), run(0)
	for name, few := range fewer {
		many := all[name]
		t.Logf("%s: %d ACKs, or %d with %d requests", name, many.acks, few.acks, few.asked)
		if many.asked != 0 || few.asked == 0 || few.asked > 10 || few.acks > many.acks/2 {
			t.Errorf("%s: without requests %+v, with requests %+v", name, many, few)
		}
	}
}

// TestAckEvery compares with a quarter of the window.
func TestAckEvery(t *testing.T) {
	for _, c := range [][4]int{
		{10, 32 * 1280, 1280, 8}, {10, 100000, 1200, 10}, {10, 2400, 1200, 2}, {10, 0, 0, 2}, {1, 100000, 1200, 1},
		{20, 100000, 1400, 17},
	} {
		if got := ackEvery(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("of %d, with a window of %d, packets of %d: %d, want %d", c[0], c[1], c[2], got, c[3])
		}
	}
}

// askable is a library whose peer offers ACK_FREQUENCY, or doesn't.
type askable struct {
	library
	offers bool
	asked  []int
}

func (a *askable) RequestACKs(packets int, _ time.Duration) bool {
	a.asked = append(a.asked, packets)
	return a.offers
}

// TestThin has the window grow and shrink.
func TestThin(t *testing.T) {
	path := func(packets int) quic.PathState {
		return quic.PathState{CongestionWindow: packets * 1200, MaxPacketSize: 1200}
	}
	for _, offers := range []bool{true, false} {
		l := &askable{offers: offers}
		u := &subscriber{library: l, feed: &feed{server: &Server{config: Config{ACKPackets: 16}}}}
		for _, packets := range []int{0, 12, 16, 20, 24, 40, 48, 60, 64, 100, 40, 12, 4, 100} {
			u.thin(path(packets))
		}
		want := []int{3, 6, 12, 16, 10, 3, 2, 16}
		if !offers {
			want = want[:1]
		}
		if len(l.asked) != len(want) {
			t.Fatalf("offers %v: asked for %v, want %v", offers, l.asked, want)
		}
		for i, n := range want {
			if l.asked[i] != n {
				t.Errorf("offers %v: asked for %v, want %v", offers, l.asked, want)
			}
		}
	}
}

// TestParseACKs reads what -acks takes.
func TestParseACKs(t *testing.T) {
	if packets, delay, err := ParseACKs("10,20"); packets != 10 || delay != 20*time.Millisecond || err != nil {
		t.Error(packets, delay, err)
	}
	if packets, _, err := ParseACKs("0"); packets >= 0 || err != nil {
		t.Error(packets, err)
	}
	for _, wrong := range []string{"", "10", "10,", ",20", "0,20", "10,0", "10,20,30", "ten,20", "-1,20"} {
		if _, _, err := ParseACKs(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}
