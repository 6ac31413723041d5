package test

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlog"
)

// TestLimits has the peer raise all its limits, and ask for a stream to end.
func TestLimits(t *testing.T) {
	s := newSender()
	var mutex sync.Mutex
	streamLimits, stopped := map[quic.StreamID]uint64{}, map[quic.StreamID]quic.StreamErrorCode{}
	s.hooks.StreamLimit = func(id quic.StreamID, limit uint64) {
		mutex.Lock()
		streamLimits[id] = max(limit, streamLimits[id])
		mutex.Unlock()
	}
	s.hooks.StopSending = func(id quic.StreamID, code quic.StreamErrorCode) {
		mutex.Lock()
		stopped[id] = code
		mutex.Unlock()
	}
	l := s.start(t, options{client: nullClient, clientConfig: &quic.Config{
		MaxIncomingUniStreams: 10, EnableDatagrams: true,
		InitialStreamReceiveWindow: 3000, MaxStreamReceiveWindow: 3000,
		InitialConnectionReceiveWindow: 5000, MaxConnectionReceiveWindow: 5000,
	}})
	out := l.server.Outside()
	var first quic.Limits
	s.locked(func() { first = s.limits })
	want := quic.Limits{MaxData: 5000, MaxUniStreams: 10, MaxStreamData: 3000}
	want.MaxDatagramFrameSize = first.MaxDatagramFrameSize
	if first != want || first.MaxDatagramFrameSize < 1200 {
		t.Errorf("at first: %+v, want %+v", first, want)
	}
	id, n := out.LeaseUniStreams(100)
	if n != 10 {
		t.Fatalf("%d streams were leased, the peer allows 10", n)
	}
	if got := out.LeaseData(1 << 20); got != 5000 {
		t.Fatalf("%d bytes were leased, the peer allows 5000", got)
	}
	if out.LeaseData(1) != 0 {
		t.Error("more was leased than the peer allows")
	}

	s.stream(quic.StreamData{ID: id, Data: object(id, 1200)})
	s.stream(quic.StreamData{ID: id, Offset: 1200, Data: object(id, 2400)[1200:]})
	s.stream(quic.StreamData{ID: id + 4, Data: object(id+4, 1000)})
	s.stream(quic.StreamData{ID: id + 8, Data: object(id+8, 1000), Fin: true})
	out.Notify()
	var in [3]*quic.ReceiveStream
	for i := range in {
		var err error
		if in[i], err = l.client.AcceptUniStream(l.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadFull(in[0], make([]byte, 2400)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(in[2]); err != nil {
		t.Fatal(err)
	}
	in[1].CancelRead(77)
	until(t, "all limits are higher", func() (higher bool) {
		mutex.Lock()
		defer mutex.Unlock()
		s.locked(func() { higher = s.limits.MaxData > 5000 && s.limits.MaxUniStreams > 10 })
		return higher && streamLimits[id] >= 5000 && stopped[id+4] == 77
	})
	if n := len(streamLimits); n != 1 {
		t.Errorf("limits of %d streams were raised", n)
	}
	out.Reset(id+4, 77, 1000)
	if out.LeaseData(1<<20) == 0 {
		t.Error("nothing more was leased")
	}
	if _, n := out.LeaseUniStreams(1); n != 1 {
		t.Error("no more streams were leased")
	}
	l.alive(t)
}

// TestLeasedData takes all credit, so that the library has none until some is given back.
func TestLeasedData(t *testing.T) {
	s := newSender()
	c := wide()
	c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow = 5000, 5000
	l := s.start(t, options{client: nullClient, clientConfig: c})
	out := l.server.Outside()
	id, _ := out.LeaseUniStreams(1)
	if got := out.LeaseData(10000); got != 5000 {
		t.Fatalf("%d bytes were leased, not 5000", got)
	}
	stream, err := l.server.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	if stream.StreamID() == id {
		t.Fatal("the library opens a leased stream")
	}
	if err := stream.TryWriteAll(make([]byte, 1)); err == nil {
		t.Error("the library sends what was leased")
	}
	out.ReturnData(4000)
	if err := stream.TryWriteAll(object(stream.StreamID(), 4000)); err != nil {
		t.Error(err)
	}
	stream.Close()
	s.stream(quic.StreamData{ID: id, Data: object(id, 1000), Fin: true})
	out.Notify()
	for range 2 {
		in, err := l.client.AcceptUniStream(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(in); err != nil || string(b) != string(object(in.StreamID(), len(b))) {
			t.Error(err)
		}
	}
	l.alive(t)
}

// TestLeaseTurns has the library wait for a stream: it comes before those who lease whatever there is.
func TestLeaseTurns(t *testing.T) {
	s := newSender()
	c := wide()
	c.MaxIncomingUniStreams = 4
	var server atomic.Pointer[quic.Conn]
	s.hooks.Limits = func(quic.Limits) {
		if c := server.Load(); c != nil {
			c.Outside().LeaseUniStreams(100)
		}
	}
	l := s.start(t, options{client: nullClient, clientConfig: c})
	first, n := l.server.Outside().LeaseUniStreams(4)
	if n != 4 {
		t.Fatalf("%d streams were leased, not 4", n)
	}
	server.Store(l.server)
	opened := make(chan *quic.SendStream, 1)
	go func() {
		out, err := l.server.OpenUniStreamSync(l.ctx)
		if err != nil {
			t.Error(err)
		}
		opened <- out
	}()
	until(t, "the library waits for a stream", func() bool { // it is in the queue then
		stacks := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, " [select") && strings.Contains(g, "OpenUniStreamSync") {
				return true
			}
		}
		return false
	})
	l.server.Outside().LeaseData(100)
	s.stream(quic.StreamData{ID: first, Data: object(first, 100), Fin: true})
	l.server.Outside().Notify()
	if err := receive(l.ctx, l.client, 1, 100); err != nil {
		t.Fatal(err)
	}
	select {
	case out := <-opened:
		if out.StreamID() != first+16 {
			t.Errorf("the library opened stream %d, not %d", out.StreamID(), first+16)
		}
	case <-time.After(*patience):
		t.Error("the library waits for a stream in vain")
	}
	l.alive(t)
}

// TestBlocked leases more than there is: frames say so to the peer.
func TestBlocked(t *testing.T) {
	s := newSender()
	sent := &frames{count: map[string]int{}}
	l := s.start(t, options{client: nullClient, serverConfig: &quic.Config{Tracer: sent.trace}})
	l.server.Outside().LeaseData(1 << 30)
	until(t, "DATA_BLOCKED", func() bool { return sent.sent(&qlog.DataBlockedFrame{}) == 1 })
	l.server.Outside().LeaseUniStreams(1000)
	until(t, "STREAMS_BLOCKED", func() bool { return sent.sent(&qlog.StreamsBlockedFrame{}) == 1 })
	l.alive(t)
}

// TestShareNumbersOnce shares numbers a second time, and those of a closed connection.
func TestShareNumbersOnce(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient})
	var other atomic.Uint64
	if err := l.server.Outside().ShareNumbers(l.ctx, &other); err == nil {
		t.Error("numbers are shared twice")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.server.CloseWithError(0, "")
	if err := l.server.Outside().ShareNumbers(ctx, &other); err == nil {
		t.Error("numbers of a closed connection are shared")
	}
}
