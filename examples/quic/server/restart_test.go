package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// serveEnv makes the test's program a server: its value is the folder of its pins.
const serveEnv = "FASTRELAY_QUIC_PINS"

var resetKey = quic.StatelessResetKey{1, 2, 3}

// serve is the server that is killed.
func serve(pins string) {
	_, err := Start(Config{
		Address: address, TLS: secrets(), Interfaces: []string{"in", "out"}, Pins: pins, ResetKey: &resetKey,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// TestKilled kills the server while a publisher sends. Until the server's lease ends the kernel goes on, then nothing
// is relayed. A successor takes over what the kernel has, and tells the clients that their connections are gone; they
// come again. No stream is wrong, and none stays open.
func TestKilled(t *testing.T) {
	needs.Root(t)
	dir := t.TempDir() // a program that runs in a namespace has a /sys of its own
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	pins := filepath.Join(dir, "quic")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, options{change: func(c *Config) { c.Address = netip.AddrPort{} }})
	b.config.Address, b.config.Pins, b.config.ResetKey = address, pins, &resetKey
	first := b.relay.Command(t.Context(), program)
	first.Env = append(os.Environ(), serveEnv+"="+pins)
	out := &lines{ready: make(chan struct{})}
	first.Stdout, first.Stderr = out, out
	b.check(testnet.StartChild(first))
	select {
	case <-out.ready:
	case <-time.After(20 * time.Second):
		t.Fatalf("the server doesn't start: %s", out.text.String())
	}
	v := b.subscribe(true, wide())
	p := b.publish(true, nil)
	b.play(p, plan{streams: 20, objects: 20, rate: 1000})
	b.await(v, 20)
	open, err := p.OpenUniStreamSync(b.ctx)
	b.check(err)
	_, err = open.Write(make([]byte, 500))
	b.check(err)
	b.check(first.Process.Kill())
	_ = first.Wait()
	killed := time.Now()

	b.start()
	for _, c := range []context.Context{v.Context(), p.Context()} {
		// whoever has something to send learns that the connection is gone
		_, _ = open.Write(make([]byte, 500))
		_ = v.SendDatagram(make([]byte, 500))
		select {
		case <-c.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("a connection with a server that is gone stays open")
		}
		var reset *quic.StatelessResetError
		if err := context.Cause(c); !errors.As(err, &reset) {
			t.Errorf("%v, want a stateless reset", err)
		}
	}
	t.Logf("the connections ended %v after the server", time.Since(killed))
	again := b.subscribe(true, wide())
	b.play(b.publish(true, nil), plan{streams: 20, objects: 20, rate: 1000, first: 100})
	b.await(again, 20)
	if v.wrong.Load()+again.wrong.Load()+again.reset.Load() > 0 {
		t.Errorf("%d and %d streams were wrong", v.wrong.Load(), again.wrong.Load())
	}
	if st := b.server.Stats()[0].Sum(); st.KernelBytes < 300_000 {
		t.Errorf("the kernel doesn't relay again: %+v", st)
	}
}

// lines waits for the line "ready".
type lines struct {
	text  strings.Builder
	ready chan struct{}
	found bool
}

func (l *lines) Write(p []byte) (int, error) {
	l.text.Write(p)
	if !l.found && strings.Contains(l.text.String(), "ready") {
		l.found = true
		close(l.ready)
	}
	return len(p), nil
}
