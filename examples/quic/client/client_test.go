package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/quic/quic-go"
)

// Whoever waits for the answer of a relay that gives none can give up.
func TestCancel(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secrets := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"fastrelay"}, InsecureSkipVerify: true,
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
