package testnet

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func listen(t *testing.T, h *Host, addr netip.Addr, port uint16) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// exchange sends one datagram from a host to another and says whether it arrived.
func exchange(t *testing.T, a *Host, aAddr netip.Addr, b *Host, bAddr netip.Addr) bool {
	t.Helper()
	return exchangeWithin(t, 5*time.Second, a, aAddr, b, bAddr)
}

func exchangeWithin(t *testing.T, patience time.Duration, a *Host, aAddr netip.Addr, b *Host, bAddr netip.Addr) bool {
	t.Helper()
	from, to := listen(t, a, aAddr, 0), listen(t, b, bAddr, 0)
	if _, err := from.WriteToUDPAddrPort([]byte("hello"), to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, _, err := to.ReadFromUDPAddrPort(buf)
	return err == nil && string(buf[:n]) == "hello"
}

func TestLine(t *testing.T) {
	needs.Root(t)
	l, err := Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	if exchangeWithin(t, 200*time.Millisecond, l.Client, l.ClientAddr.V4, l.Peer, l.PeerAddr.V4) {
		t.Error("the relay forwards before it is enabled")
	}
	if err := l.Relay.SetForwarding(true); err != nil {
		t.Fatal(err)
	}
	for _, family := range []int{4, 6} {
		if !exchange(t, l.Client, l.ClientAddr.Of(family), l.Peer, l.PeerAddr.Of(family)) {
			t.Errorf("IPv%d: the packet was lost", family)
		}
	}
}

func TestBranch(t *testing.T) {
	needs.Root(t)
	b, err := Start(t).Branch()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []int{4, 6} {
		if !exchange(t, b.Client, b.ClientAddr.Of(family), b.Relay, b.RelayAddr.Of(family)) {
			t.Errorf("IPv%d: client to relay: the packet was lost", family)
		}
		if !exchange(t, b.Relay, b.RelayAddr.Of(family), b.Peer, b.PeerAddr.Of(family)) {
			t.Errorf("IPv%d: relay to peer: the packet was lost", family)
		}
	}
}

func TestInjectKeepsTags(t *testing.T) {
	needs.Root(t)
	l, err := Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.RelayIn.Capture()
	if err != nil {
		t.Fatal(err)
	}
	frame := append(append(append([]byte{}, l.RelayIn.MAC...), l.ClientDev.MAC...), 0x81, 0x00, 0x20, 0x07, 0x08, 0x00)
	frame = append(frame, make([]byte, 46)...)
	if err := l.ClientDev.Inject(frame); err != nil {
		t.Fatal(err)
	}
	err = Until(2*time.Second, "the tag in the metadata", func() bool {
		for _, f := range c.Frames() {
			if f.VLAN != nil && f.VLAN.TCI == 0x2007 && f.VLAN.Proto == 0x8100 {
				return true
			}
		}
		return false
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCommandRunsInside(t *testing.T) {
	needs.Root(t)
	n := Start(t)
	h, err := n.Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.Command(context.Background(), "ls", "/sys/class/net").Output()
	if err != nil || strings.TrimSpace(string(out)) != "lo" {
		t.Errorf("devices %q, error %v", out, err)
	}
}

// The namespaces of a killed process are removed when the next network is made; those of a running one stay.
func TestSweep(t *testing.T) {
	needs.Root(t)
	n := Start(t)
	if _, err := n.Host("alive"); err != nil {
		t.Fatal(err)
	}
	h, err := n.Host("left")
	if err != nil {
		t.Fatal(err)
	}
	// Process 1 did not start at tick 1. The tests of another package may remove this name as soon as it is there.
	dead := filepath.Join(runDir, namePrefix+"1.1-1-dead")
	if err := os.WriteFile(dead, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	err = unix.Mount(filepath.Join(runDir, h.nsName), dead, "", unix.MS_BIND, "")
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
	Start(t)
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the stale namespace is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(runDir, n.prefix+"alive")); err != nil {
		t.Error(err)
	}
}

// If no namespace has had a name since the machine started, and another program names one meanwhile, ours can still
// be removed. A mount namespace of its own has a folder that is as on such a machine.
func TestFirstName(t *testing.T) {
	needs.Root(t)
	if os.Getenv("FASTRELAY_TEST_FIRST") == "" {
		cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^TestFirstName$", "-test.v")
		cmd.Env = append(os.Environ(), "FASTRELAY_TEST_FIRST=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	run := func(command string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	run("mount -t tmpfs tmpfs /run && mkdir /run/netns")
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Host("first"); err != nil {
		t.Fatal(err)
	}
	run("ip netns add other && ip netns delete other")
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A function that ends its goroutine inside Do, as t.Fatal does in a test that can't be set up, ends the caller's too.
func TestDoEndsTheCaller(t *testing.T) {
	needs.Root(t)
	h, err := Start(t).Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	go func() {
		back := false
		defer func() { ended <- !back }()
		_ = h.Do(func() error { runtime.Goexit(); return nil })
		back = true
	}()
	select {
	case ok := <-ended:
		if !ok {
			t.Error("the caller goes on, as if all were well")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the caller waits forever")
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }

// Stray packets come on every cable.
func TestNoise(t *testing.T) {
	needs.Root(t)
	t.Setenv(noiseVariable, "100us")
	l, err := Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	stray := noiseFrames()
	seen := map[int]bool{}
	err = Until(5*time.Second, "each kind of stray packet", func() bool {
		for _, f := range c.Frames() {
			for i, frame := range stray {
				if bytes.Equal(f.Data, frame) {
					seen[i] = true
				}
			}
		}
		return len(seen) == len(stray)
	})
	if err != nil {
		t.Fatal(err)
	}
}
