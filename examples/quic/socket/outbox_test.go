package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// Datagrams wait if there are many, the longer the more there are, and not once there are few again.
func TestPatience(t *testing.T) {
	var sent atomic.Int64
	own := &patience{longest: longestWait, few: few, sent: &sent}
	byDoor := &patience{longest: 3 * time.Millisecond, few: fewByDoor}
	now := time.Unix(1000, 0)
	own.since, byDoor.since = now, now
	for _, c := range []struct {
		p          *patience
		rate, sent int
		want       time.Duration
	}{
		{own, 1000, 0, 0}, {own, 2000, 0, 0}, {own, 2100, 0, 0}, {own, 3000, 0, time.Millisecond},
		{own, 4000, 0, 2 * time.Millisecond}, {own, 90_000, 0, 2 * time.Millisecond}, {own, 500, 0, 0},
		{own, 1000, 4000, 0}, {own, 1000, 4200, 0}, {own, 1000, 6000, time.Millisecond},
		{own, 1000, 8000, 2 * time.Millisecond},
		{own, 4000, 1000, 2 * time.Millisecond}, {own, 500, 500, 0},
		{byDoor, 300, 0, 0}, {byDoor, 500, 0, 0}, {byDoor, 600, 0, 2400 * time.Microsecond},
		{byDoor, 1000, 0, 3 * time.Millisecond},
	} {
		for range 10 {
			now = now.Add(10 * time.Millisecond)
			sent.Add(int64(c.sent / 100))
			c.p.read(c.rate/100, now)
		}
		if c.p.busy() != c.want {
			t.Errorf("with %d datagrams a second, and %d sent, they wait for %s, want %s",
				c.rate, c.sent, c.p.busy(), c.want)
		}
	}
	now = now.Add(time.Hour)
	if own.read(1000, now); own.busy() != 0 {
		t.Errorf("after a pause they wait for %s", own.busy())
	}
}

// What waits leaves in order, each to its own peer and marked as it was, before what is sent when nobody waits any
// more. What can leave as one message does.
func TestOutbox(t *testing.T) {
	for name, c := range map[string]struct {
		size     func(n int) int
		messages int // to each peer; 0: there are too many to wait
	}{
		"of one size":     {func(int) int { return 10 }, 3},
		"a smaller one":   {func(n int) int { return 20 - n%5%2 }, 18}, // 20 19, 20 19, 20 20 19, …
		"ever larger":     {func(n int) int { return 10 + n }, 0},
		"larger than all": {func(n int) int { return 3000 }, 4},
	} {
		t.Run(name, func(t *testing.T) { testOutbox(t, c.size, c.messages) })
	}
}

func testOutbox(t *testing.T, size func(n int) int, messages int) {
	s, err := Listen(Config{Address: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var peers []*net.UDPConn
	var to []*net.UDPAddr
	for range 3 {
		p, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		raw, err := p.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		}); err != nil {
			t.Fatal(err)
		}
		peers, to = append(peers, p), append(to, p.LocalAddr().(*net.UDPAddr))
	}
	text := func(n, i int) string { return fmt.Sprintf("%02d to %d%*s", n, i, size(n)-7, "") }
	const sent, marked = 40, 30 // those from there on
	send := func(n int) {
		t.Helper()
		for i := range peers {
			var oob []byte
			if n >= marked {
				oob = Marked(quic.ECT0, true)
			}
			b := []byte(text(n, i))
			if _, _, err := s.WriteMsgUDP(b, oob, to[i]); err != nil {
				t.Fatal(err)
			}
			clear(b) // it is the caller's again
		}
	}
	s.Begin()
	for n := range sent {
		send(n)
	}
	if n := len(s.outbox.waiting); messages > 0 && n != messages*len(peers) || messages == 0 && n >= sent*len(peers) {
		t.Errorf("%d messages wait", n)
	}
	s.End()
	send(sent)
	b, oob := make([]byte, 5000), make([]byte, 100)
	for i, p := range peers {
		for n := range sent + 1 {
			size, with, _, _, err := p.ReadMsgUDP(b, oob)
			if want := text(n, i); err != nil || string(b[:size]) != want {
				t.Fatalf("%q, %v; want %q", b[:size], err, want)
			}
			if _, ecn := parseControl(oob[:with]); (ecn == uint8(quic.ECT0)) != (n >= marked) {
				t.Fatalf("%q has the codepoint %d", b[:size], ecn)
			}
		}
	}
}

// A message that the device doesn't take leaves as its datagrams, marked as they were.
func TestDivide(t *testing.T) {
	s, err := Listen(Config{Address: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s.outbox.write(divided(&ipv4.Message{
		Buffers: [][]byte{[]byte("abcabcab")}, OOB: appendSize(slices.Clone(Marked(quic.ECT0, true)), 3),
		Addr: p.LocalAddr(),
	}))
	b := make([]byte, 100)
	for _, want := range []string{"abc", "abc", "ab"} {
		if n, err := p.Read(b); err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v; want %q", b[:n], err, want)
		}
	}
	if len(s.outbox.failed) > 0 {
		t.Error(s.outbox.failed)
	}
}

// A datagram that the path doesn't take, as the library tries them, is lost alone.
func TestTooLarge(t *testing.T) {
	needs.Root(t)
	host, err := testnet.Start(t).Host("host")
	if err == nil {
		err = host.Run("ip", "link", "set", "lo", "mtu", "1300")
	}
	if err != nil {
		t.Fatal(err)
	}
	var s *Socket
	var p *net.UDPConn
	if err := host.Do(func() (err error) {
		if s, err = Listen(Config{Address: loopback}); err == nil {
			p, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer p.Close()
	if err := s.own.Set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil { // as the library
		t.Fatal(err)
	}
	s.Begin()
	for _, size := range []int{1300, 1000, 900} {
		if _, err := s.WriteTo(make([]byte, size), p.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.outbox.waiting); n != 2 {
		t.Errorf("%d messages wait", n)
	}
	s.End()
	if err := p.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	for _, want := range []int{1000, 900} {
		if n, err := p.Read(b); n != want || err != nil {
			t.Errorf("%d bytes, %v; want %d", n, err, want)
		}
	}
	if len(s.outbox.failed) > 0 {
		t.Error(s.outbox.failed)
	}
}

// What several have to send leaves when the last of them ends, or when the first one has waited for long.
func TestTogether(t *testing.T) {
	s, err := Listen(Config{Address: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:9"))
	waits := func(want int) {
		t.Helper()
		if n := len(s.outbox.waiting); n != want {
			t.Errorf("%d messages wait, want %d", n, want)
		}
	}
	add := func() {
		t.Helper()
		s.Begin()
		s.since = time.Now().Add(time.Hour)
		if _, err := s.WriteTo(make([]byte, 100), to); err != nil {
			t.Fatal(err)
		}
	}
	add()
	add()
	s.End()
	waits(1)
	s.End()
	waits(0)
	add()
	add()
	s.since = time.Now().Add(-time.Hour)
	s.End()
	waits(0)
	add() // it waits for the one who has begun before, anew
	s.End()
	waits(1)
	s.End()
	waits(0)
}

// An error is returned once, to who next sends there; that a datagram was too large isn't one.
func TestOutboxErrors(t *testing.T) {
	s, err := Listen(Config{Address: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	to := func(addr string) net.Addr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)) }
	nowhere, here := to("240.0.0.1:9"), to("127.0.0.1:9")
	s.Begin()
	for _, addr := range []net.Addr{nowhere, here} {
		if _, err := s.WriteTo(make([]byte, 100), addr); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.WriteTo(make([]byte, 1<<16), here); err != nil {
		t.Error(err)
	}
	s.End()
	s.Begin()
	for _, c := range []struct {
		to    net.Addr
		fails bool
	}{{here, false}, {nowhere, true}, {nowhere, false}} {
		if _, err := s.WriteTo(make([]byte, 100), c.to); (err != nil) != c.fails || errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("to %s: %v", c.to, err)
		}
	}
}
