package socket

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
)

// While datagrams wait, those of a publisher, through its door, don't, and what has come from others is read with them.
// A door follows its publisher. Nobody else may use the server's address.
func TestDoors(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) { testDoors(t, netip.MustParseAddr(host)) })
	}
}

func testDoors(t *testing.T, host netip.Addr) {
	s, err := Listen(Config{Address: netip.AddrPortFrom(host, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	own := s.LocalAddr().(*net.UDPAddr)
	var peers [2]*net.UDPConn
	for i := range peers {
		if peers[i], err = net.DialUDP("udp", nil, own); err != nil {
			t.Fatal(err)
		}
		defer peers[i].Close()
	}
	of := func(i int) netip.AddrPort { return peers[i].LocalAddr().(*net.UDPAddr).AddrPort() }
	send := func(i int, text string) {
		t.Helper()
		if _, err := peers[i].Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want ...string) {
		t.Helper()
		if err := s.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for len(got) < len(want) {
			ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 100)}}, {Buffers: [][]byte{make([]byte, 100)}}}
			n, err := s.ReadBatch(ms, 0)
			if err != nil {
				t.Fatal(got, err)
			}
			for _, m := range ms[:n] {
				got = append(got, string(m.Buffers[0][:m.N]))
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("%q; want %q", got, want)
		}
	}
	d, err := s.Open(of(0))
	if err != nil {
		t.Fatal(err)
	}
	s.patience.wait.Store(int64(time.Hour))
	s.patience.since = time.Now().Add(time.Hour) // so it stays
	send(1, "a: waits")
	send(0, "b: doesn't")
	receive("a: waits", "b: doesn't")
	if err := d.Connect(of(1)); err != nil {
		t.Fatal(err)
	}
	send(0, "a: waits now")
	send(1, "b: doesn't any more")
	receive("a: waits now", "b: doesn't any more")
	if c, err := net.ListenUDP("udp", own); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the server's address is free: %v", errors.Join(err, c.Close()))
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if len(s.Doors()) != 0 {
		t.Error("a door that is closed is kept")
	}
	send(1, "for the server's own socket")
	s.patience.wait.Store(int64(time.Millisecond))
	receive("for the server's own socket")
	s.patience.wait.Store(0)
	send(1, "at once")
	receive("at once")
	s.doors.patience.wait.Store(int64(time.Millisecond)) // then all wait
	s.doors.patience.since = time.Now().Add(time.Hour)
	for i := range 80 { // more than are reported at once
		if d, err = s.Open(of(i % 2)); err != nil {
			t.Fatal(err)
		}
		defer d.Close()
	}
	send(0, "x")
	send(1, "y")
	receive("x", "y")
	s.doors.patience.wait.Store(0)
	send(0, "x")
	receive("x")
}
