package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// Datagrams wait if there are many, the longer the more there are, and not once there are few again.
func TestPatience(t *testing.T) {
	p := &patience{since: time.Unix(1000, 0)}
	now := p.since
	var sent atomic.Int64
	for _, c := range []struct {
		rate, sent int
		want       time.Duration
	}{
		{1000, 0, 0}, {2000, 0, 0}, {2100, 0, 0}, {3000, 0, time.Millisecond}, {4000, 0, 2 * time.Millisecond},
		{90_000, 0, 2 * time.Millisecond}, {500, 0, 0},
		{1000, 4000, 0}, {1000, 4200, 0}, {1000, 6000, time.Millisecond}, {1000, 8000, 2 * time.Millisecond},
		{4000, 1000, 2 * time.Millisecond}, {500, 500, 0},
	} {
		for range 10 {
			now = now.Add(10 * time.Millisecond)
			sent.Add(int64(c.sent / 100))
			p.read(c.rate/100, &sent, now)
		}
		if p.busy() != c.want {
			t.Errorf("with %d datagrams a second, and %d sent, they wait for %s, want %s",
				c.rate, c.sent, p.busy(), c.want)
		}
	}
	now = now.Add(time.Hour)
	if p.read(1000, &sent, now); p.busy() != 0 {
		t.Errorf("after a pause they wait for %s", p.busy())
	}
}

// What waits leaves in order, each to its own peer, before what is sent when nobody waits any more.
func TestOutbox(t *testing.T) {
	s, err := Listen(Config{Address: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var peers []*net.UDPConn
	for range 3 {
		p, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		peers = append(peers, p)
	}
	send := func(n int) {
		t.Helper()
		for i, p := range peers {
			b := fmt.Appendf(nil, "%d to %d", n, i)
			if _, err := s.WriteTo(b, p.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			clear(b) // it is the caller's again
		}
	}
	const sent = 50 // more than there is room for
	s.Begin()
	for n := range sent - 1 {
		send(n)
	}
	if n := len(s.outbox.waiting); n != (sent-1)*len(peers)%outboxSize {
		t.Errorf("%d datagrams wait", n)
	}
	s.End()
	send(sent - 1)
	b := make([]byte, 100)
	for i, p := range peers {
		for n := range sent {
			size, err := p.Read(b)
			if want := fmt.Sprintf("%d to %d", n, i); err != nil || string(b[:size]) != want {
				t.Fatalf("%q, %v; want %q", b[:size], err, want)
			}
		}
	}
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
