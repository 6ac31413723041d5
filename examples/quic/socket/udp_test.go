package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket/internal/unpolled"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A datagram is read when it comes, or in the next round while there are rounds. Before it is handed over, events are
// read. Deadlines and Close end a wait.
func TestSocket(t *testing.T) {
	var drained atomic.Int64
	var inRounds atomic.Bool
	s, err := Listen(Config{
		Address: loopback, Drain: func() { drained.Add(1) },
		Turn: func(time.Time) (length time.Duration, wait bool) {
			if inRounds.Load() {
				return time.Millisecond, true
			}
			return 0, false
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	peer, err := net.DialUDP("udp", nil, s.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	send := func(text string) {
		t.Helper()
		if _, err := peer.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	type result struct {
		text string
		err  error
	}
	got := make(chan result, 8)
	go func() {
		for {
			ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 100)}}, {Buffers: [][]byte{make([]byte, 100)}}}
			before := drained.Load()
			n, err := s.ReadBatch(ms, 0)
			if err != nil {
				n = 0
				got <- result{"", err}
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					close(got)
					return
				}
				if err := s.SetReadDeadline(time.Time{}); err != nil {
					t.Error(err)
				}
			}
			for _, m := range ms[:n] {
				if drained.Load() == before {
					t.Error("a datagram is handed over before events are read")
				}
				got <- result{string(m.Buffers[0][:m.N]), nil}
				if _, err := s.WriteTo(m.Buffers[0][:m.N], m.Addr); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	receive := func(texts ...string) {
		t.Helper()
		for _, want := range texts {
			select {
			case r := <-got:
				if r.text != want || r.err != nil {
					t.Fatalf("%q, %v; want %q", r.text, r.err, want)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%q doesn't come", want)
			}
		}
		for _, want := range texts { // which leave together, when the next datagrams are read
			answer := make([]byte, 100)
			if err := peer.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if n, err := peer.Read(answer); err != nil || string(answer[:n]) != want {
				t.Fatalf("the answer is %q, %v", answer[:n], err)
			}
		}
	}
	for range 50 {
		send("at once")
		receive("at once")
		inRounds.Store(true)
		if err := s.StartRounds(); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"a", "b", "c"} { // more than there is room for
			send(text)
		}
		receive("a", "b", "c")
		inRounds.Store(false)
		<-s.RoundsOver()
		send("after the rounds")
		receive("after the rounds")
	}
	if err := s.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := <-got; !errors.Is(r.err, os.ErrDeadlineExceeded) {
		t.Errorf("at its deadline: %v", r.err)
	}
	send("goes on")
	receive("goes on")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if r := <-got; r.err == nil {
		t.Error("a socket that is closed is read")
	}
	if _, err := s.WriteTo([]byte("x"), peer.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a socket that is closed sends: %v", err)
	}
	if err := s.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// While nobody waits for datagrams, they don't make the poller's file readable.
func TestSocketUnheard(t *testing.T) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	u, err := unpolled.Of(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	w, err := newWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	was := false
	for _, heard := range []bool{false, true, false, true} {
		if heard != was {
			if err := w.listen(u.File, heard); err != nil {
				t.Fatal(err)
			}
		}
		was = heard
		if _, err := u.WriteToUDPAddrPort([]byte("to myself"), u.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
		var ready int
		if err := w.raw.Control(func(epoll uintptr) {
			ready, err = unix.Poll([]unix.PollFd{{Fd: int32(epoll), Events: unix.POLLIN}}, 0)
		}); err != nil {
			t.Fatal(err)
		}
		if ready != map[bool]int{true: 1}[heard] || err != nil {
			t.Errorf("heard: %v; %d files are readable, %v", heard, ready, err)
		}
	}
}

// A socket at all addresses of its host has peers in zones, and of both families.
func TestAllAddresses(t *testing.T) {
	host := testnet.Stub(t).Host
	if err := host.Do(func() error {
		s, err := Listen(Config{Address: netip.MustParseAddrPort("[::]:0")})
		if err != nil {
			return err
		}
		defer s.Close()
		port := s.LocalAddr().(*net.UDPAddr).Port
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addresses, err := device.Addrs()
		if err != nil {
			return err
		}
		var of [3]int // IPv4, IPv6, in a zone
		for _, a := range addresses {
			at := &net.UDPAddr{IP: a.(*net.IPNet).IP, Port: port}
			switch {
			case at.IP.To4() != nil:
				of[0]++
			case at.IP.IsLinkLocalUnicast():
				at.Zone = device.Name
				of[2]++
			default:
				of[1]++
			}
			if err := answers(s, at); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		}
		if slices.Contains(of[:], 0) {
			return fmt.Errorf("eth0 has %d addresses of IPv4, %d of IPv6 and %d in a zone", of[0], of[1], of[2])
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// answers has a peer send a datagram to a socket, which sends it back: at once, and with others.
func answers(s *Socket, at *net.UDPAddr) error {
	peer, err := net.DialUDP("udp", nil, at)
	if err != nil {
		return err
	}
	defer peer.Close()
	for _, begun := range []bool{false, true} {
		if _, err := peer.Write([]byte("x")); err != nil {
			return err
		}
		ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 100)}}}
		if err := s.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := s.ReadBatch(ms, 0); err != nil {
			return err
		}
		if begun {
			s.Begin()
		}
		if _, err := s.WriteTo([]byte("y"), ms[0].Addr); err != nil {
			return err
		}
		if begun {
			s.End()
		}
		s.finish()
		if err := peer.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := peer.Read(make([]byte, 10)); err != nil {
			return err
		}
	}
	return nil
}

// TestRoundsBegunMeanwhile has rounds begin while the last one ends: there is another one.
func TestRoundsBegunMeanwhile(t *testing.T) {
	var s *Socket
	turns, again := 0, make(chan struct{})
	s, err := Listen(Config{Address: loopback, Turn: func(time.Time) (length time.Duration, wait bool) {
		switch turns++; turns {
		case 1:
			if err := s.StartRounds(); err != nil {
				t.Error(err)
			}
		case 2:
			close(again)
		}
		return 0, false
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StartRounds(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = s.ReadBatch([]ipv4.Message{{Buffers: [][]byte{make([]byte, 100)}}}, 0)
	}()
	select {
	case <-again:
	case <-time.After(10 * time.Second):
		t.Error("no round has followed")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-over
}
