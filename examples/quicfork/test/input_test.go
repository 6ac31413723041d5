package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlog"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlogwriter"
)

// TestStreamFrames has frames handed over, some of which were lost or arrive twice. Limits are so small that a
// connection that doesn't count what was handed over stops.
func TestStreamFrames(t *testing.T) {
	const streams, size = 60, 12000
	var mutex sync.Mutex
	got, have, ends := map[quic.StreamID][]byte{}, map[quic.StreamID]int{}, 0
	whole := map[quic.StreamID]bool{}
	server := &quic.Hooks{NullProtection: true, Levels: 4, StreamFrame: func(f quic.StreamFrame) {
		mutex.Lock()
		defer mutex.Unlock()
		if got[f.ID] == nil {
			got[f.ID] = make([]byte, size)
		}
		copy(got[f.ID][f.Offset:], f.Data)
		have[f.ID] += len(f.Data)
		if f.Fin {
			ends++
		}
		if have[f.ID] >= size && string(got[f.ID]) == string(object(f.ID, size)) {
			whole[f.ID] = true
		}
		if f.Level < -1 || f.Level > 3 || time.Since(f.Time) > time.Minute || time.Since(f.Time) < 0 {
			t.Errorf("level %d, time %v", f.Level, f.Time)
		}
	}}
	l := connect(t, options{
		server: server, client: nullClient, serverConfig: &quic.Config{
			MaxIncomingUniStreams: 8, InitialStreamReceiveWindow: 3000, MaxStreamReceiveWindow: 3000,
			InitialConnectionReceiveWindow: 10000, MaxConnectionReceiveWindow: 10000,
		},
	})
	n := 0
	l.serverSocket.tap(nil, func(b []byte) bool {
		n++
		return n%11 != 0
	})
	go func() {
		if in, err := l.server.AcceptUniStream(l.ctx); err == nil {
			t.Errorf("stream %d was accepted, though its frames are handed over", in.StreamID())
		}
	}()
	for range streams {
		out, err := l.client.OpenUniStreamSync(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(object(out.StreamID(), size)); err != nil {
			t.Fatal(err)
		}
		out.Close()
	}
	until(t, "all streams are whole, and have ended", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(whole) == streams && ends >= streams
	})
	both, err := l.client.OpenStreamSync(l.ctx) // streams of the other kind are accepted as ever
	if err != nil {
		t.Fatal(err)
	}
	both.Write([]byte("hello"))
	in, err := l.server.AcceptStream(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := make([]byte, 5)
	if _, err := in.Read(hello); err != nil || string(hello) != "hello" {
		t.Errorf("%q, %v", hello, err)
	}
	l.alive(t)
}

// TestStreamFramesTwice sends frames twice: they are handed over once.
func TestStreamFramesTwice(t *testing.T) {
	var mutex sync.Mutex
	var frames []string
	client := &quic.Hooks{NullProtection: true, StreamFrame: func(f quic.StreamFrame) {
		mutex.Lock()
		frames = append(frames, fmt.Sprintf("%d+%d %v", f.Offset, len(f.Data), f.Fin))
		mutex.Unlock()
	}}
	s := newSender()
	l := s.start(t, options{client: client, clientConfig: wide()})
	id, _ := l.server.Outside().LeaseUniStreams(1)
	l.server.Outside().LeaseData(1000)
	d := func(from, to int, fin bool) {
		s.stream(quic.StreamData{ID: id, Offset: uint64(from), Data: object(id, 1000)[from:to], Fin: fin})
	}
	d(500, 700, false)
	d(500, 700, false)
	d(600, 650, false)
	d(0, 500, false)
	d(0, 700, false)
	d(700, 1000, false)
	d(1000, 1000, true)
	d(700, 1000, true)
	s.packet([]byte{0x30, 'x'}, nil)
	l.server.Outside().Notify()
	want := "[500+200 false 0+500 false 700+300 false 1000+0 true]"
	until(t, want, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return fmt.Sprint(frames) == want
	})
	l.alive(t)
}

// TestStreamResets has streams reset whose frames are handed over. There are more of them than may be open at once.
func TestStreamResets(t *testing.T) {
	resets := make(chan string, 100)
	server := &quic.Hooks{
		NullProtection: true,
		StreamFrame:    func(quic.StreamFrame) {},
		StreamReset: func(id quic.StreamID, code quic.StreamErrorCode, finalSize uint64) {
			resets <- fmt.Sprint(id, " ", code, " ", finalSize)
		},
	}
	l := connect(t, options{server: server, client: nullClient, serverConfig: &quic.Config{MaxIncomingUniStreams: 4}})
	for i := range 20 {
		out, err := l.client.OpenUniStreamSync(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		size := uint64(0)
		if i%2 == 0 {
			if err := out.TryWriteAll(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			size = 100
		}
		out.CancelWrite(quic.StreamErrorCode(i))
		select {
		case got := <-resets:
			if want := fmt.Sprint(out.StreamID(), " ", i, " ", size); got != want {
				t.Errorf("reset %s, want %s", got, want)
			}
		case <-time.After(*patience):
			t.Fatalf("stream %d: the hook wasn't called", out.StreamID())
		}
	}
	l.alive(t)
}

// TestDatagrams has DATAGRAM frames handed over.
func TestDatagrams(t *testing.T) {
	got := make(chan string, 10)
	var number atomic.Uint64
	server := &quic.Hooks{NullProtection: true, Levels: 4, Datagram: func(d quic.ReceivedDatagram) {
		got <- fmt.Sprintf("%s %v %v", d.Data, d.Level <= 0, d.Number == number.Load())
	}}
	l := connect(t, options{
		server: server, client: &quic.Hooks{NullProtection: true, LongNumbers: true},
		serverConfig: wide(), clientConfig: wide(),
	})
	l.serverSocket.tap(nil, func(b []byte) bool {
		if bytes.Contains(b, []byte("datagram")) {
			number.Store(uint64(binary.BigEndian.Uint32(b[9:])))
		}
		return true
	})
	if err := l.client.SendDatagram([]byte("datagram")); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-got:
		if d != "datagram true true" {
			t.Errorf("%q", d)
		}
	case <-time.After(*patience):
		t.Error("no datagram was handed over")
	}
	l.alive(t)
}

// frames counts frames that are sent.
type frames struct {
	mutex sync.Mutex
	count map[string]int
}

func (f *frames) trace(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return f }

func (f *frames) AddProducer() qlogwriter.Recorder { return f }
func (f *frames) SupportsSchemas(string) bool      { return true }
func (f *frames) Close() error                     { return nil }

func (f *frames) RecordEvent(e qlogwriter.Event) {
	if p, ok := e.(qlog.PacketSent); ok {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		for _, frame := range p.Frames {
			f.count[fmt.Sprintf("%T", frame.Frame)]++
		}
	}
}

func (f *frames) sent(frame any) int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.count[fmt.Sprintf("%T", frame)]
}

// TestSparseMaxStreams counts MAX_STREAMS frames, with the hook and without. No stream waits for one in vain.
func TestSparseMaxStreams(t *testing.T) {
	for _, sparse := range []bool{true, false} {
		for _, open := range []int{0, 39} { // streams that stay open
			sent := &frames{count: map[string]int{}}
			l := connect(t, options{
				server: &quic.Hooks{SparseMaxStreams: sparse}, client: nullClient,
				serverConfig: &quic.Config{
					MaxIncomingUniStreams: 40, Tracer: sent.trace,
				},
			})
			for range open {
				out, err := l.client.OpenUniStreamSync(l.ctx)
				if err != nil {
					t.Fatal(err)
				}
				out.Write([]byte("x"))
				if _, err := l.server.AcceptUniStream(l.ctx); err != nil {
					t.Fatal(err)
				}
			}
			const streams = 200
			for range streams {
				out, err := l.client.OpenUniStreamSync(l.ctx)
				if err != nil {
					t.Fatal(err)
				}
				out.Write(object(out.StreamID(), 100))
				out.Close()
				if err := receive(l.ctx, l.server, 1, 100); err != nil {
					t.Fatal(err)
				}
			}
			n := sent.sent(&qlog.MaxStreamsFrame{})
			if sparse && open == 0 && n > streams/10+2 || !sparse && n < streams/2 {
				t.Errorf("sparse %v: %d MAX_STREAMS frames for %d streams", sparse, n, streams)
			}
			l.alive(t)
		}
	}
}

// TestLoneStreamFrames counts packets with several STREAM frames, with the hook and without, where packets are lost as
// well.
func TestLoneStreamFrames(t *testing.T) {
	for _, lone := range []bool{true, false} {
		sent := &several{}
		l := connect(t, options{
			client:       &quic.Hooks{LoneStreamFrames: lone},
			serverConfig: wide(), clientConfig: &quic.Config{Tracer: sent.trace},
		})
		n := 0
		l.serverSocket.tap(nil, func([]byte) bool {
			n++
			return n%11 != 0
		})
		const streams, size = 200, 300
		done := make(chan error, 1)
		go func() { done <- receive(l.ctx, l.server, streams, size) }()
		for range streams {
			out, err := l.client.OpenUniStreamSync(l.ctx)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(object(out.StreamID(), size))
			out.Close()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if several := sent.packets.Load(); lone != (several == 0) {
			t.Errorf("lone STREAM frames %v: %d packets have several", lone, several)
		}
		l.alive(t)
	}
}

// several counts packets with several STREAM frames.
type several struct {
	frames
	packets atomic.Int64
}

func (s *several) trace(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return s }
func (s *several) AddProducer() qlogwriter.Recorder                                { return s }

func (s *several) RecordEvent(e qlogwriter.Event) {
	if p, ok := e.(qlog.PacketSent); ok {
		n := 0
		for _, frame := range p.Frames {
			if _, ok := frame.Frame.(*qlog.StreamFrame); ok {
				n++
			}
		}
		if n > 1 {
			s.packets.Add(1)
		}
	}
}
