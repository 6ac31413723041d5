//go:build linux

package glue_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// tcpFlow is a connection inside of a host, whose sender has chosen a congestion control.
type tcpFlow struct{ client, server net.Conn }

func dialWith(t *testing.T, h *testnet.Host, algorithm string) (f tcpFlow, err error) {
	t.Helper()
	err = h.Do(func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, algorithm)
			}); e != nil {
				return e
			}
			return err
		}}
		if f.client, err = d.Dial("tcp", l.Addr().String()); err != nil {
			return err
		}
		f.server, err = l.Accept()
		return err
	})
	if err == nil {
		t.Cleanup(func() { f.client.Close(); f.server.Close() })
		go io.Copy(io.Discard, f.server)
	}
	return f, err
}

// window sends more than windows of these tests, and returns the congestion window that the kernel has after it.
func (f tcpFlow) window(t *testing.T) uint32 {
	t.Helper()
	if _, err := f.client.Write(make([]byte, 1<<22)); err != nil {
		t.Fatal(err)
	}
	raw, err := f.client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if e := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return info.Snd_cwnd
}

// A socket chooses the relay by its name; what happens is reported, a row decides, and without one, or when the relay
// has gone, Reno's rules do.
func TestCongestion(t *testing.T) {
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), "../../golden/congestion/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	host, err := testnet.Start(t).Host("sender")
	if err != nil {
		t.Fatal(err)
	}
	desc := glue.Desc(built.Plan)
	load := func(opt runtime.Options) (*runtime.Relay, error) {
		r, err := runtime.Load(&desc, built.Object(), opt)
		if err == nil {
			t.Cleanup(func() { r.Close() })
		}
		return r, err
	}
	const name = "fr_live_test"
	if _, err := load(runtime.Options{Algorithm: "sixteen_letters_"}); err == nil ||
		!strings.Contains(err.Error(), "too long") {
		t.Errorf("a name that is too long: %v", err)
	}
	relay, err := load(runtime.Options{Algorithm: name})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Program("control").Attach("lo"); err == nil || !strings.Contains(err.Error(), "Register it") {
		t.Errorf("attached to an interface: %v", err)
	}
	if _, err := dialWith(t, host, name); !errors.Is(err, unix.ENOENT) {
		t.Errorf("chosen before it is registered: %v", err)
	}
	for range 2 {
		if err := relay.Register(); err != nil {
			t.Fatal(err)
		}
	}
	other, err := load(runtime.Options{Algorithm: name})
	if err != nil {
		t.Fatal(err)
	}
	var refused *runtime.KernelError
	if err := other.Register(); !errors.As(err, &refused) || !errors.Is(err, unix.EEXIST) {
		t.Errorf("two of one name: %v", err)
	}

	peers, flows := relay.Table("peers"), relay.Table("flows")
	peer := netip.MustParsePrefix("127.0.0.0/8")
	if err := peers.Put([]any{peer}, []any{uint64(17), uint64(512)}); err != nil {
		t.Fatal(err)
	}
	f, err := dialWith(t, host, name)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.window(t); n < 17 {
		t.Errorf("the flow begins with a window of %d, not 17 or more", n)
	}
	var id, round uint64
	await := func(what string, holds func() bool) {
		t.Helper()
		if err := testnet.Until(2*time.Second, what, holds); err != nil {
			t.Fatal(err)
		}
	}
	reported := func(event string) func() bool {
		return func() (found bool) {
			for e, err := range relay.Pending(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Desc().Name == event {
					id, found = e.Uint(0), true
				}
				if e.Desc().Name == "signal" {
					round = e.Uint(1)
				}
			}
			return found
		}
	}
	await("the beginning is reported", reported("created"))
	decide := func(cwnd uint64) {
		t.Helper()
		if err := flows.Put([]any{id}, []any{cwnd, round, uint64(0), nil}); err != nil {
			t.Fatal(err)
		}
	}
	await("a row decides", func() bool {
		f.window(t)
		reported("signal")()
		decide(5)
		return f.window(t) == 5
	})
	await("where user space is silent, Reno's rules decide", func() bool { return f.window(t) > 5 })
	await("a row decides again", func() bool {
		reported("signal")()
		decide(4)
		return f.window(t) == 4
	})
	f.client.Close()
	f.server.Close()
	await("the end is reported", reported("freed"))

	last, err := dialWith(t, host, name)
	if err != nil {
		t.Fatal(err)
	}
	await("a second flow is reported", reported("created"))
	await("a row decides for it", func() bool {
		last.window(t)
		reported("signal")()
		decide(5)
		return last.window(t) == 5
	})
	if err := relay.Close(); err != nil {
		t.Fatal(err)
	}
	await("when the relay has gone, Reno's rules decide", func() bool { return last.window(t) > 5 })
	if _, err := dialWith(t, host, name); !errors.Is(err, unix.ENOENT) {
		t.Errorf("chosen after the relay was closed: %v", err)
	}
	if err := other.Register(); err != nil {
		t.Errorf("the name isn't free: %v", err)
	}
}
