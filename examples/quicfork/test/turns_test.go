package test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestTurns takes turns for a server's connection: between Begin and End nothing is done, and End does all, on the
// goroutine that calls it. Its packets are written then.
func TestTurns(t *testing.T) {
	var turns quic.Turns
	var drained, sent atomic.Int64
	s := newSender()
	drain := s.hooks.Drain
	s.hooks.Turns = &turns
	s.hooks.Drain = func(register func(quic.OutsidePacket)) []quic.ACK {
		drained.Add(1)
		return drain(register)
	}
	l := s.start(t, options{client: nullClient})
	out, err := l.server.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte("first")); err != nil { // without a Begin
		t.Fatal(err)
	}
	in, err := l.client.AcceptUniStream(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, []byte(want)) {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	read("first")
	until(t, "turns can be taken", func() bool { // the handshake is confirmed
		turns.Begin()
		l.server.Outside().Notify()
		before := drained.Load()
		turns.End()
		return drained.Load() > before
	})
	l.serverSocket.tap(func([]byte) bool { sent.Add(1); return true }, nil)
	for range 100 {
		turns.Begin()
		turns.Begin()
		was := sent.Load()
		if _, err := out.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		l.server.Outside().Notify()
		before := drained.Load() // or later, by its timer
		turns.End()
		if drained.Load() == before || sent.Load() == was {
			t.Fatal("End has returned, and nothing was done")
		}
		turns.End()
		read("x")
	}
	l.alive(t)
	if err := l.server.CloseWithError(7, "over"); err != nil {
		t.Fatal(err)
	}
	turns.Begin()
	l.server.Outside().Notify()
	turns.End()
}

// TestWriteNext writes what doesn't wait for what was written before.
func TestWriteNext(t *testing.T) {
	var turns quic.Turns
	s := newSender()
	s.hooks.Turns = &turns
	l := s.start(t, options{client: nullClient})
	out, err := l.server.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	until(t, "turns are taken", func() bool { // the handshake is confirmed
		turns.Begin()
		defer turns.End()
		first := out.TryWriteNext([]byte{byte(len(want))})
		if first == nil {
			want = append(want, byte(len(want)))
		}
		return first == nil && errors.Is(out.TryWriteNext([]byte("x")), quic.ErrWouldBlock)
	})
	for range 100 {
		turns.Begin()
		if err := out.TryWriteNext([]byte{byte(len(want))}); err != nil {
			t.Fatal(err)
		}
		want = append(want, byte(len(want)))
		if err := out.TryWriteNext([]byte("x")); !errors.Is(err, quic.ErrWouldBlock) {
			t.Fatalf("before the first was sent: %v", err)
		}
		turns.End()
	}
	in, err := l.client.AcceptUniStream(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.TryWriteNext([]byte("x")); err == nil {
		t.Error("a stream that is closed is written to")
	}
}

// virtual runs a test of a connection whose server has hooks, in a network of 5 ms and in time that isn't real: all has
// been sent and acknowledged when it begins. The network loses what the client sends if deaf is set then.
func virtual(t *testing.T, hooks *quic.Hooks, test func(t *testing.T, server *quic.Conn, deaf *atomic.Bool)) {
	synctest.Test(t, func(t *testing.T) {
		r := &router{}
		network := &simnet.Simnet{Router: r}
		link := simnet.NodeBiDiLinkSettings{Latency: 5 * time.Millisecond}
		near := network.NewEndpoint(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, link)
		other := network.NewEndpoint(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 2}, link)
		if err := network.Start(); err != nil {
			t.Fatal(err)
		}
		defer network.Close()
		r.client = near.LocalAddr().String()
		st, ct := &quic.Transport{Conn: other}, &quic.Transport{Conn: near}
		defer ct.Close()
		defer st.Close()
		st.ConnContext = func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
			return quic.WithHooks(ctx, hooks), nil
		}
		listener, err := st.Listen(secrets(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := ct.Dial(t.Context(), other.LocalAddr(), secrets(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		test(t, server, &r.deaf)
		r.deaf.Store(false)
		if err := client.CloseWithError(0, ""); err != nil {
			t.Fatal(err)
		}
		<-server.Context().Done()
	})
}

type router struct {
	simnet.PerfectRouter
	client string
	deaf   atomic.Bool
}

func (r *router) SendPacket(p simnet.Packet) error {
	if r.deaf.Load() && p.From.String() == r.client {
		return nil
	}
	return r.PerfectRouter.SendPacket(p)
}

// write writes a byte to a new stream, which is one packet.
func write(t *testing.T, c *quic.Conn) {
	t.Helper()
	out, err := c.OpenUniStream()
	if err == nil {
		_, err = out.Write([]byte("x"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTurnsTimer has an ACK put the time off at which there is something to do: the run loop does nothing when its timer
// fires all the same.
func TestTurnsTimer(t *testing.T) {
	var last atomic.Pointer[time.Time] // turn
	hooks := &quic.Hooks{
		Turns: &quic.Turns{},
		Drain: func(func(quic.OutsidePacket)) []quic.ACK {
			now := time.Now()
			last.Store(&now)
			return nil
		},
	}
	virtual(t, hooks, func(t *testing.T, server *quic.Conn, _ *atomic.Bool) {
		sent := time.Now()
		write(t, server)
		time.Sleep(5 * time.Second)
		if after := last.Load().Sub(sent); after < 10*time.Millisecond || after > 36*time.Millisecond {
			t.Errorf("the last turn was %v after the data was sent; the ACK comes after 10 ms, or 25 ms later", after)
		}
	})
}

// TestDrainBeforeTimers has an ACK be handed over when loss detection has waited long enough for it: nothing is sent
// again.
func TestDrainBeforeTimers(t *testing.T) {
	var ack atomic.Pointer[quic.ACK]
	hooks := &quic.Hooks{
		Turns: &quic.Turns{},
		Drain: func(func(quic.OutsidePacket)) []quic.ACK {
			if a := ack.Load(); a != nil && time.Since(a.Time) >= 25*time.Millisecond {
				ack.Store(nil)
				return []quic.ACK{*a}
			}
			return nil
		},
	}
	virtual(t, hooks, func(t *testing.T, server *quic.Conn, deaf *atomic.Bool) {
		var counter atomic.Uint64
		if err := server.Outside().ShareNumbers(t.Context(), &counter); err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		before := counter.Load()
		write(t, server)
		synctest.Wait()
		ack.Store(&quic.ACK{Number: 1000, Frame: ackFrame(before), Time: time.Now(), Size: 30})
		time.Sleep(time.Second)
		if sent := counter.Load() - before; sent != 1 || ack.Load() != nil {
			t.Errorf("%d packets were sent, and the ACK was handed over: %v", sent, ack.Load() == nil)
		}
	})
}
