package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/bpftest"
	"github.com/fastrelay/fastrelay-gen/internal/test/needs"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Three sockets of one source, and a quota of two: two are served, and go on being served; the third is refused in the
// kernel.
func TestQuota(t *testing.T) {
	needs.Root(t)
	network := testnet.Start(t)
	line, err := network.Line()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	at := netip.AddrPortFrom(line.RelayInAddr.V4, 4433)
	done := make(chan error, 1)
	go func() {
		done <- line.Relay.Do(func() error { return run(ctx, "eth0", at.String(), 2, time.Minute) })
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	var sockets [3]*net.UDPConn
	for i := range sockets {
		err := line.Client.Do(func() error {
			from := netip.AddrPortFrom(line.ClientAddr.V4, uint16(40000+i))
			sockets[i], err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(at))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer sockets[i].Close()
	}
	// The service may not listen yet: the first socket asks until it is answered.
	for deadline := time.Now().Add(10 * time.Second); !answered(t, sockets[0], "first"); {
		if time.Now().After(deadline) {
			t.Fatal("the service doesn't answer")
		}
	}
	if !answered(t, sockets[1], "second") {
		t.Error("the second connection, inside the quota, isn't served")
	}
	if answered(t, sockets[2], "third") {
		t.Error("the third connection, over the quota, is served")
	}
	for i, s := range sockets[:2] {
		if !answered(t, s, fmt.Sprint("again ", i)) {
			t.Errorf("connection %d, which exists, isn't served any more", i)
		}
	}
}

// answered sends text and reports whether it comes back within two seconds; late answers to other texts don't count.
func answered(t *testing.T, s *net.UDPConn, text string) bool {
	t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		return false // refused by the host: the server does not listen yet
	}
	if err := s.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	for {
		n, err := s.Read(buf)
		if err != nil {
			return false
		}
		if string(buf[:n]) == text {
			return true
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
