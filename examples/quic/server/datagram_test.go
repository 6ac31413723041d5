package server

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlog"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlogwriter"
)

// A lone counts the packets that a client sent with a DATAGRAM frame and nothing else: those that the kernel relays. A
// client that is late puts several in a packet.
type lone struct{ atomic.Uint64 }

// in returns a client's configuration with which it counts.
func (l *lone) in(config *quic.Config) *quic.Config {
	config.Tracer = func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return l }
	return config
}

func (l *lone) AddProducer() qlogwriter.Recorder { return l }

func (l *lone) RecordEvent(e qlogwriter.Event) {
	if sent, ok := e.(qlog.PacketSent); ok && len(sent.Frames) == 1 {
		if _, ok := sent.Frames[0].Frame.(*qlog.DatagramFrame); ok {
			l.Add(1)
		}
	}
}

func (l *lone) Close() error { return nil }

// TestDatagrams sends datagrams to two subscribers with the kernel's help, to a stock one, and to one that takes none.
func TestDatagrams(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	none := wide()
	none.EnableDatagrams = false
	viewers := []*viewer{
		b.subscribe(true, wide()), b.subscribe(true, wide()), b.subscribe(false, wide()), b.subscribe(true, none),
	}
	const n = 500
	var alone lone
	c := cell{objects: n, subscribers: len(viewers), weather: fair}
	c.datagrams(b, b.publish(true, alone.in(wide())), viewers[:3], 16)
	kernel := alone.Load()
	want := []SubscriberStats{
		{KernelDatagrams: kernel, UserDatagrams: n - kernel}, {KernelDatagrams: kernel, UserDatagrams: n - kernel},
		{UserDatagrams: n}, {DroppedDatagrams: n},
	}
	for i, u := range b.server.Stats()[0].Subscribers {
		got := SubscriberStats{
			KernelDatagrams: u.KernelDatagrams, UserDatagrams: u.UserDatagrams, DroppedDatagrams: u.DroppedDatagrams,
		}
		t.Logf("subscriber %d: %d by the kernel, %d by user space, %d dropped",
			i, u.KernelDatagrams, u.UserDatagrams, u.DroppedDatagrams)
		if got != want[i] || kernel == 0 {
			t.Errorf("subscriber %d: %+v, want %+v", i, got, want[i])
		}
		if err := viewers[i].Context().Err(); err != nil {
			t.Errorf("subscriber %d: %v", i, err)
		}
	}
}
