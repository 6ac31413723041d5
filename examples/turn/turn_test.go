package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

const (
	turnPort = 3478
	channel  = 0x4001
	wait     = 10 * time.Second
)

// Packets come to the relay at XDP first, if they aren't left to tc/ingress.
var atXDP = flag.Bool("xdp", true, "run the relay at XDP, too")

// line makes the line topology for a test.
func line(t *testing.T) *testnet.Line {
	t.Helper()
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	// A veth gets frames that are sent from XDP only so: what a sender leaves to no device takes that path, the rest
	// is sent from tc/ingress.
	check(t, errors.Join(offloads.GRO(l.ClientDev, *atXDP), offloads.GRO(l.PeerDev, *atXDP)))
	return l
}

func serve(t *testing.T, host *testnet.Host, flags ...string) *lab.Process {
	t.Helper()
	p, err := lab.Serve(host, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the server's log:\n%s", p.Log())
		}
	})
	return p
}

// serveLine starts a server that listens and allocates in both families.
func serveLine(t *testing.T, l *testnet.Line, flags ...string) *lab.Process {
	t.Helper()
	hook := runtime.HookTC
	if *atXDP {
		hook = runtime.HookXDP
	}
	return serve(t, l.Relay, append([]string{
		"--listen", at(l.RelayInAddr.V4, turnPort).String(), "--listen", at(l.RelayInAddr.V6, turnPort).String(),
		"--relay", l.RelayOutAddr.V4.String(), "--relay", l.RelayOutAddr.V6.String(),
		"--hook", hook.String(),
	}, flags...)...)
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func udpSocket(t *testing.T, host *testnet.Host, addr netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func addrOf(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

func dial(t *testing.T, host *testnet.Host, local netip.Addr, server netip.AddrPort) *turnlab.Client {
	t.Helper()
	c, err := turnlab.Dial(host, local, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// roundTrip sends a payload from the client to the peer and another back, and wants both to arrive unchanged, from the
// addresses that they have to come from.
func roundTrip(t *testing.T, c *turnlab.Client, number uint16, peer *net.UDPConn, size int) {
	t.Helper()
	if err := exchange(c, number, peer, size); err != nil {
		t.Fatal(err)
	}
}

func exchange(c *turnlab.Client, number uint16, peer *net.UDPConn, size int) error {
	out, back := turnlab.Payload(size), turnlab.Payload(size)
	if err := c.Send(number, out); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	if err := peer.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	n, from, err := peer.ReadFromUDPAddrPort(buf)
	if err != nil {
		return fmt.Errorf("to the peer: %w", err)
	}
	if from = at(from.Addr().Unmap(), from.Port()); from != c.Relayed || !bytes.Equal(buf[:n], out) {
		return fmt.Errorf("to the peer: %d bytes from %v, want the same %d from %v", n, from, size, c.Relayed)
	}
	if _, err := peer.WriteToUDPAddrPort(back, c.Relayed); err != nil {
		return err
	}
	got, payload, err := c.Receive(wait)
	if err != nil {
		return fmt.Errorf("to the client: %w", err)
	}
	if got != number || !bytes.Equal(payload, back) {
		return fmt.Errorf("to the client: channel %#x with %d bytes, want %#x with the same %d", got, len(payload),
			number, size)
	}
	return nil
}

// families are the combinations of the client's and the peer's address family.
var families = []struct{ client, peer int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}}

// Without the kernel the server is an ordinary TURN server.
func TestUserSpace(t *testing.T) {
	needs.Root(t)
	l := line(t)
	p := serveLine(t, l, "--no-offload")
	for _, f := range families {
		peer := udpSocket(t, l.Peer, at(l.PeerAddr.Of(f.peer), 0))
		c := dial(t, l.Client, l.ClientAddr.Of(f.client), at(l.RelayInAddr.Of(f.client), turnPort))
		check(t, c.Open(channel, addrOf(peer)))
		for _, size := range []int{0, 1, 2, 3, 4, 1200} {
			roundTrip(t, c, channel, peer, size)
		}
	}
	stats, err := p.Stats()
	check(t, err)
	if stats.Channels != 4 || stats.InKernel != 0 || stats.UserReceived < 48 {
		t.Errorf("counters: %+v", stats)
	}
}

// Without the rights to load programs the server says so and is an ordinary TURN server.
func TestWithoutRights(t *testing.T) {
	needs.Root(t)
	l := line(t)
	p, err := lab.ServeWithoutRights(l.Relay, "--listen", at(l.RelayInAddr.V4, turnPort).String(), "--relay",
		l.RelayOutAddr.V4.String())
	check(t, err)
	defer p.Kill()
	if !strings.Contains(p.Log(), "channel data stays in user space") {
		t.Errorf("the server doesn't say that it does without the kernel:\n%s", p.Log())
	}
	peer := udpSocket(t, l.Peer, at(l.PeerAddr.V4, 0))
	c := dial(t, l.Client, l.ClientAddr.V4, at(l.RelayInAddr.V4, turnPort))
	check(t, c.Open(channel, addrOf(peer)))
	roundTrip(t, c, channel, peer, 100)
	if stats, err := p.Stats(); err != nil || stats.InKernel != 0 || stats.Channels != 1 {
		t.Errorf("counters: %+v, %v", stats, err)
	}
}

// An interface that was asked for and isn't there, or a wrong flag, is an error at once, not a surprise later.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"--help"}, 0, "turn is a TURN server"},
		{[]string{}, 2, "no user"},
		{[]string{"--user", "alice"}, 2, "want name=password"},
		{[]string{"--user", "a=b", "--listen", "nowhere"}, 2, "nowhere"},
		{[]string{"--user", "a=b", "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"--user", "a=b", "--listen", "203.0.113.77:3478"}, 1, "203.0.113.77:3478"},
	} {
		var out, say bytes.Buffer
		if code := server.Command(c.args, &out, &say); code != c.code || !strings.Contains(say.String(), c.say) {
			t.Errorf("turn %v: status %d, want %d; it said %q, want %q", c.args, code, c.code, say.String(), c.say)
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
