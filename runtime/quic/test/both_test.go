// Package test tests the fork's hooks through its exported API, with peers of the fork and of upstream in one program.
package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	upstream "github.com/quic-go/quic-go"

	"github.com/fastrelay/fastrelay-gen/runtime/quic/quic-go"
)

// secrets returns a server's TLS configuration; a client may use it as well.
func secrets(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"test"}, InsecureSkipVerify: true,
	}
}

// TestUpstreamClient has a client of upstream's quic-go talk to a server of the fork, linked into one program.
func TestUpstreamClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	listener, err := quic.Listen(socket, secrets(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := upstream.DialAddr(ctx, socket.LocalAddr().String(), secrets(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseWithError(0, "")
	server, err := listener.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := server.OpenUniStreamSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	in, err := client.AcceptUniStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}
