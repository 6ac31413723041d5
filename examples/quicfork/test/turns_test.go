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

// TestTakeNext sends a stream in packets of the library and outside of it by turns. Some of the latter are lost, some
// aren't sent. A stream that is reset leaves what was taken up to its boundary.
func TestTakeNext(t *testing.T) {
	for name, client := range map[string]*quic.Hooks{"null": nullClient, "protected": nil} {
		t.Run(name, func(t *testing.T) {
			s := newSender()
			s.lose = func(n uint64) bool { return n%10 == 0 }
			resets := &quic.Config{EnableStreamResetPartialDelivery: true}
			l := s.start(t, options{client: client, clientConfig: resets, serverConfig: resets})
			out, err := l.server.OpenUniStream()
			if err != nil {
				t.Fatal(err)
			}
			want := object(out.StreamID(), 300_000)
			got := make(chan []byte, 1)
			go func() {
				in, err := l.client.AcceptUniStream(l.ctx)
				if err != nil {
					t.Error(err)
					close(got)
					return
				}
				b, err := io.ReadAll(in)
				if err != nil {
					t.Error(err)
				}
				got <- b
			}()
			for i, rest := 0, want; len(rest) > 0; i++ {
				part := rest[:min(1000, len(rest))]
				rest = rest[len(part):]
				if i%3 == 0 {
					if _, err := out.Write(part); err != nil {
						t.Fatal(err)
					}
					continue
				}
				var f *quic.OutsideFrame
				until(t, "what was written before is sent", func() bool {
					f = out.TakeNext(part)
					return f != nil
				})
				if i%3 == 1 {
					f.Abandon()
					continue
				}
				s.room(t)
				s.taken(f)
			}
			if err := out.Close(); err != nil || out.TakeNext([]byte("x")) != nil {
				t.Fatalf("%v, or a frame was taken after the end", err)
			}
			if b := <-got; !bytes.Equal(b, want) {
				t.Fatalf("%d bytes came of %d, or others", len(b), len(want))
			}
			until(t, "the stream is over", func() bool { return out.Context().Err() != nil })
			l.reset(t, s)
			l.alive(t)
		})
	}
}

// reset takes a frame up to a stream's boundary, and one after it, loses both, and resets the stream.
func (l *link) reset(t *testing.T, s *sender) {
	t.Helper()
	s.locked(func() { s.lose = func(uint64) bool { return true } })
	out, err := l.server.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	head := out.TakeNext([]byte("head"))
	out.SetReliableBoundary()
	rest := out.TakeNext([]byte("rest"))
	if head == nil || rest == nil || out.TakeNext(nil) != nil {
		t.Fatal("no frames, or an empty one")
	}
	s.taken(head)
	s.taken(rest)
	out.CancelWrite(7)
	if out.TakeNext([]byte("x")) != nil {
		t.Error("a frame was taken of a stream that is reset")
	}
	s.locked(func() { s.lose = nil })
	l.server.Outside().Notify()
	in, err := l.client.AcceptUniStream(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(in)
	var why *quic.StreamError
	if !errors.As(err, &why) || why.ErrorCode != 7 || string(b) != "head" {
		t.Errorf("%q came, %v; want the head, and the reset", b, err)
	}
}

// virtual runs a test of a connection whose server has hooks, in a network of 5 ms and in time that isn't real: all has
// been sent and acknowledged when it begins.
func virtual(t *testing.T, hooks *quic.Hooks, test func(t *testing.T, server, client *quic.Conn, r *router)) {
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
		test(t, server, client, r)
		r.deaf.Store(false)
		if err := client.CloseWithError(0, ""); err != nil {
			t.Fatal(err)
		}
		<-server.Context().Done()
	})
}

// A router loses what the client sends, or keeps its next packet.
type router struct {
	simnet.PerfectRouter
	client     string
	deaf, keep atomic.Bool
	kept       simnet.Packet
}

func (r *router) SendPacket(p simnet.Packet) error {
	switch {
	case p.From.String() != r.client:
	case r.deaf.Load():
		return nil
	case r.keep.Swap(false):
		r.kept = p
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

// TestTurnsTimer has an ACK put the time off at which there is something to do: the run loop does nothing when its
// timer fires all the same.
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
	virtual(t, hooks, func(t *testing.T, server, _ *quic.Conn, _ *router) {
		sent := time.Now()
		write(t, server)
		time.Sleep(5 * time.Second)
		if after := last.Load().Sub(sent); after < 10*time.Millisecond || after > 36*time.Millisecond {
			t.Errorf("the last turn was %v after the data was sent; the ACK comes after 10 ms, or 25 ms later", after)
		}
	})
}

// ackAt returns hooks that hand over an ACK when it is so old.
func ackAt(age time.Duration) (*quic.Hooks, *atomic.Pointer[quic.ACK]) {
	ack := &atomic.Pointer[quic.ACK]{}
	return &quic.Hooks{
		Turns: &quic.Turns{},
		Drain: func(func(quic.OutsidePacket)) []quic.ACK {
			if a := ack.Load(); a != nil && time.Since(a.Time) >= age {
				ack.Store(nil)
				return []quic.ACK{*a}
			}
			return nil
		},
	}, ack
}

// TestDrainBeforeTimers has an ACK be handed over when loss detection has waited long enough for it: nothing is sent
// again.
func TestDrainBeforeTimers(t *testing.T) {
	hooks, ack := ackAt(25 * time.Millisecond)
	virtual(t, hooks, func(t *testing.T, server, _ *quic.Conn, r *router) {
		var counter atomic.Uint64
		if err := server.Outside().ShareNumbers(t.Context(), &counter); err != nil {
			t.Fatal(err)
		}
		r.deaf.Store(true)
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

// TestDrainWhileHandling has an ACK be handed over while a packet is handled that comes late: the ACK says that the
// client knows of a later one of its packets that it has arrived, so the library forgets the numbers before.
func TestDrainWhileHandling(t *testing.T) {
	hooks, ack := ackAt(0)
	virtual(t, hooks, func(t *testing.T, server, client *quic.Conn, r *router) {
		var counter atomic.Uint64
		if err := server.Outside().ShareNumbers(t.Context(), &counter); err != nil {
			t.Fatal(err)
		}
		r.keep.Store(true)
		write(t, server)
		time.Sleep(100 * time.Millisecond) // the client's ACK is kept
		hooks.Turns.Begin()
		write(t, client)
		time.Sleep(10 * time.Millisecond)
		r.deaf.Store(true)
		number := counter.Load()
		write(t, server)
		hooks.Turns.End() // one packet, with an ACK for what the client has written
		ack.Store(&quic.ACK{Number: 1000, Frame: ackFrame(number), Time: time.Now(), Size: 30})
		if err := r.PerfectRouter.SendPacket(r.kept); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		if err := context.Cause(server.Context()); err != nil || ack.Load() != nil {
			t.Errorf("the connection: %v; the ACK was handed over: %v", err, ack.Load() == nil)
		}
	})
}
