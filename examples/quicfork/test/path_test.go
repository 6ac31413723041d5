package test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestPathState looks at what is said of the path while a sender's packets are on their way, and after.
func TestPathState(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	until(t, "a state of the path", func() (known bool) {
		s.locked(func() {
			known = s.state.CongestionWindow > 10000 && s.state.MaxPacketSize >= 1200 && s.state.SmoothedRTT > 0 &&
				s.state.MinRTT > 0 && s.state.LargestAcked >= 0 && s.state.BytesInFlight == 0
		})
		return known
	})
	l.clientSocket.tap(nil, func([]byte) bool { return false }) // no ACK for a while
	before := l.server.ConnectionStats()
	var size int
	for range 5 {
		s.packet([]byte{0x01, 0, 0, 0}, nil)
	}
	s.locked(func() {
		for _, p := range s.ring {
			size += p.Size
		}
	})
	l.server.Outside().Notify()
	until(t, "the packets are in flight", func() (inFlight bool) {
		s.locked(func() {
			inFlight = s.state.BytesInFlight >= size && s.state.Window <= s.state.CongestionWindow-s.state.BytesInFlight
		})
		return inFlight
	})
	if after := l.server.ConnectionStats(); after.PacketsSent < before.PacketsSent+5 ||
		after.BytesSent < before.BytesSent+uint64(size) {
		t.Errorf("before %+v, after %+v, %d bytes in 5 packets", before, after, size)
	}
	l.clientSocket.tap(nil, nil)
	until(t, "nothing is in flight", func() (none bool) {
		s.locked(func() { none = s.state.BytesInFlight == 0 && s.state.LargestAcked >= int64(s.counter.Load()-1) })
		return none
	})
	l.alive(t)
}

// TestMoved gives the client another address, as a NAT does.
func TestMoved(t *testing.T) {
	s := newSender()
	moved := make(chan net.Addr, 10)
	s.hooks.Moved = func(_, remote net.Addr) { moved <- remote }
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, 20, 5000) }()
	s.send(t, 10, 5000)
	old := l.clientSocket.current.Swap(listen(t))
	old.Close()
	out, err := l.client.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte("from elsewhere")); err != nil {
		t.Fatal(err)
	}
	select {
	case to := <-moved:
		if to.String() != l.clientSocket.LocalAddr().String() {
			t.Errorf("moved to %v, the client is at %v", to, l.clientSocket.LocalAddr())
		}
	case <-time.After(*patience):
		t.Fatal("the hook wasn't called")
	}
	s.send(t, 10, 5000)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	active := 0
	s.locked(func() {
		for _, c := range s.changes {
			if !c.Ours && c.Event == quic.ConnectionIDActive {
				active++
			}
		}
	})
	if active < 3 {
		t.Errorf("%d connection IDs were active: that of the handshake, one after it, and one for the new path", active)
	}
	l.alive(t)
}

// TestMigration has the client move itself to another socket.
func TestMigration(t *testing.T) {
	var moved atomic.Value
	hooks := &quic.Hooks{Moved: func(local, _ net.Addr) { moved.Store(local.String()) }}
	l := connect(t, options{client: hooks})
	other := newSocket(t)
	tr := &quic.Transport{Conn: other, ConnectionIDLength: 8}
	defer tr.Close()
	path, err := l.client.AddPath(tr)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.Probe(l.ctx); err != nil {
		t.Fatal(err)
	}
	if err := path.Switch(); err != nil {
		t.Fatal(err)
	}
	until(t, "the client has moved", func() bool {
		l.client.Outside().Notify()
		return moved.Load() == other.LocalAddr().String()
	})
	l.alive(t)
}

// TestClosing closes connections at either end. The hook is called before CONNECTION_CLOSE is sent.
func TestClosing(t *testing.T) {
	for _, byServer := range []bool{true, false} {
		s := newSender()
		var calls, closed atomic.Int64
		var cause atomic.Value
		s.hooks.Closing = func(err error) {
			calls.Add(1)
			cause.Store(err)
		}
		l := s.start(t, options{client: nullClient})
		l.serverSocket.tap(func(b []byte) bool {
			if bytes.Contains(b, []byte("good bye")) {
				closed.Store(calls.Load())
			}
			return true
		}, nil)
		if byServer {
			l.server.CloseWithError(5, "good bye")
		} else {
			l.client.CloseWithError(5, "good bye")
		}
		until(t, "the connection is closed", func() bool { return l.server.Context().Err() != nil })
		if calls.Load() != 1 {
			t.Errorf("the hook was called %d times", calls.Load())
		}
		if byServer && closed.Load() != 1 {
			t.Error("CONNECTION_CLOSE was sent before the hook was called")
		}
		if cause.Load().(error).Error() != context.Cause(l.server.Context()).Error() {
			t.Errorf("the hook got %v, the connection ended with %v", cause.Load(), context.Cause(l.server.Context()))
		}
	}
}

// TestECN has a sender leave its packets unmarked on a path where the library marks its own.
func TestECN(t *testing.T) {
	for _, marked := range []quic.ECN{quic.NotECT} {
		s := newSender()
		s.marked = marked
		l := s.start(t, options{client: nullClient, clientConfig: wide(), plain: true})
		l.serverSocket.tap(nil, nil)
		capable := func() (capable bool) {
			s.locked(func() { capable = s.state.ECN == quic.ECT0 })
			return capable
		}
		ping := func() {
			out, err := l.server.OpenUniStreamSync(l.ctx)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(object(out.StreamID(), 3000))
			out.Close()
			if err := receive(l.ctx, l.client, 1, 3000); err != nil {
				t.Fatal(err)
			}
		}
		for end := time.Now().Add(*patience); !capable() && time.Now().Before(end); {
			ping()
		}
		if !capable() {
			t.Fatal("the path doesn't carry ECN marks")
		}
		done := make(chan error, 1)
		go func() { done <- receive(l.ctx, l.client, 20, 5000) }()
		s.send(t, 20, 5000)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		ping()
		until(t, "all is acknowledged", func() (all bool) {
			s.locked(func() { all = len(s.acked)+len(s.lost) == 100 && s.state.BytesInFlight == 0 })
			return all
		})
		if !capable() {
			t.Error("unmarked packets of a sender's turned ECN off")
		}
		l.alive(t)
	}
}
