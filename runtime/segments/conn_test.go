package segments

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"
)

// What is written within Together leaves together at its end, anything else at once; receivers come and go by
// themselves.
func TestConn(t *testing.T) {
	b := newBed(t)
	var conn *Conn
	b.do(func() error {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: port + 1})
		if err != nil {
			return err
		}
		conn, err = NewConn(Config{Conn: socket, Logger: slog.New(slog.DiscardHandler)},
			b.line.RelayOutAddr.V4, b.line.RelayOutAddr.V6)
		return err
	})
	defer conn.Close()
	check(t, conn.Sender().Kernel())
	var clients []client
	for n := range 6 {
		c := b.client(4 + 2*(n%2))
		c.from = netip.AddrPortFrom(c.from.Addr(), port+1)
		clients = append(clients, c)
	}
	write := func(n int) error {
		for _, c := range clients {
			p := payload(300, n)
			var err error
			if to := c.conn.LocalAddr().(*net.UDPAddr); n%2 == 0 {
				_, err = conn.WriteToAddrPort(p, to.AddrPort())
			} else {
				_, err = conn.WriteTo(p, to)
			}
			if err != nil {
				return err
			}
			clear(p) // the caller's again
		}
		return nil
	}
	all := func(n int) {
		t.Helper()
		for _, c := range clients {
			b.wants(c, payload(300, n))
		}
	}
	check(t, write(1))
	all(1)
	for n := 2; n < 10; n++ {
		check(t, conn.Together(func() error { return write(n) }))
		all(n)
	}
	b.sender = conn.Sender()
	b.counts(Stats{Sends: 8, Segments: 48, Relayed: 48})
	failed := errors.New("failed")
	if err := conn.Together(func() error { return errors.Join(write(10), failed) }); !errors.Is(err, failed) {
		t.Errorf("Together's error: %v", err)
	}
	all(10)

	for _, left := range []int{6, 0} { // those of the last while stay
		conn.receivers.swept = time.Now().Add(-idle)
		check(t, conn.Together(func() error { return nil }))
		if known, open := len(conn.receivers.known), len(conn.sender.receivers); known != left || open != left {
			t.Errorf("%d receivers are known, %d in the kernel, want %d", known, open, left)
		}
	}
	check(t, conn.Together(func() error { return write(11) }))
	all(11)

	_, err := clients[0].conn.WriteToUDPAddrPort(payload(300, 12), clients[0].from)
	check(t, err)
	check(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 1000)
	n, from, err := conn.ReadFromAddrPort(buf)
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	if to := clients[0].conn.LocalAddr().(*net.UDPAddr).AddrPort(); err != nil || from != to || n != 300 {
		t.Errorf("read %d bytes from %s, want 300 from %s: %v", n, from, to, err)
	}
}
