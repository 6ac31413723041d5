package server

import (
	"context"
	"sync/atomic"
	"testing"

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
		b := newBed(t, options{in: delayed(), out: delayed(), change: func(c *Config) { c.ACKs.Packets = packets }})
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
