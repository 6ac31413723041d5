package client

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
)

// Whoever waits for the answer of a relay that gives none can give up.
func TestCancel(t *testing.T) {
	secrets, err := selfsigned.Config("fastrelay")
	if err != nil {
		t.Fatal(err)
	}
	var sockets [2]*net.UDPConn
	for i := range sockets {
		if sockets[i], err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
		defer sockets[i].Close()
	}
	relay := &quic.Transport{Conn: sockets[0]}
	defer relay.Close()
	listener, err := relay.Listen(secrets, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialled := make(chan error, 1)
	go func() {
		_, err := Subscribe(ctx, "feed", Config{
			Server: sockets[0].LocalAddr().(*net.UDPAddr).AddrPort(), TLS: secrets, Socket: sockets[1],
		})
		dialled <- err
	}()
	q, err := listener.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := q.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("it waited on: %v", err)
	}
}
