package test

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"

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
	s.hooks.Drain = func(register func(quic.OutsidePacket)) {
		drained.Add(1)
		drain(register)
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
