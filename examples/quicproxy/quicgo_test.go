package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quic-go/quic-go"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// asEndpoint is the first argument of the test's binary if it is an endpoint of quic-go:
//
//	quicgo SIDE ADDR:PORT CERTIFICATES ID-LENGTH PORTIONS
//
// As the other endpoints, it is an echo server that prints a line when it listens, or a client that prints how much has
// come back and in the end whether it is what was sent, and awaits a line of input before each portion but the first.
const asEndpoint = "quicgo"

// quicgo starts endpoints of quic-go as it is, with connection IDs of these lengths. Nothing has to be built for them.
func quicgo(clientID, serverID int) endpoints {
	side := func(b *bed, host *testnet.Host, side string, at netip.Addr, id int, portions ...int) *process {
		self, err := os.Executable()
		check(b.T, err)
		return start(b.T, host, self, asEndpoint, side, netip.AddrPortFrom(at, targetPort).String(), b.folder,
			strconv.Itoa(id), list(portions))
	}
	return endpoints{
		name: fmt.Sprintf("quic-go %d %d", clientID, serverID), clientID: clientID,
		client: func(b *bed, portions ...int) *process {
			return side(b, b.line.Client, "client", netip.AddrFrom4([4]byte{127, 0, 0, 1}), clientID, portions...)
		},
		server: func(b *bed) *process { return side(b, b.line.Peer, "server", b.target(), serverID) },
	}
}

func runEndpoint(args []string) error {
	if len(args) != 5 {
		return errors.New("an endpoint has five arguments")
	}
	at, err := net.ResolveUDPAddr("udp", args[1])
	if err != nil {
		return err
	}
	id, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	local := &net.UDPAddr{}
	if args[0] == "server" {
		local = at
	}
	socket, err := net.ListenUDP("udp", local)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket, ConnectionIDLength: id}
	if args[0] == "server" {
		return serveEcho(transport, args[2])
	}
	return wantEcho(transport, at, args[2], strings.Split(args[4], ","))
}

// Packets that are sent to find out which size fits pass to the proxy if they don't.
var settings = &quic.Config{DisablePathMTUDiscovery: true}

func serveEcho(transport *quic.Transport, folder string) error {
	cert, err := tls.LoadX509KeyPair(filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem"))
	if err != nil {
		return err
	}
	listener, err := transport.Listen(&tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"echo"},
	}, settings)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		conn, err := listener.Accept(context.Background())
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := conn.AcceptStream(context.Background())
				if err != nil {
					return // the connection has ended
				}
				go func() {
					if _, err := io.Copy(stream, stream); err == nil {
						_ = stream.Close() // the client sees what is missing
					}
				}()
			}
		}()
	}
}

func wantEcho(transport *quic.Transport, at net.Addr, folder string, portions []string) error {
	authority, err := os.ReadFile(filepath.Join(folder, "ca.pem"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	ctx := context.Background()
	conn, err := transport.Dial(ctx, at, &tls.Config{
		RootCAs: roots, ServerName: "target", NextProtos: []string{"echo"},
	}, settings)
	if err != nil {
		return err
	}
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	sent, sending := sha256.New(), make(chan error, 1)
	go func() { sending <- sendPortions(io.MultiWriter(sent, stream), stream, portions) }()
	got, size, part := sha256.New(), 0, make([]byte, 1<<16)
	for {
		n, err := stream.Read(part)
		got.Write(part[:n])
		if size += n; n > 0 {
			fmt.Println(size)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := <-sending; err != nil {
		return err
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		fmt.Println("wrong")
		return nil
	}
	fmt.Println("right")
	return conn.CloseWithError(0, "")
}

// sendPortions sends random bytes, and then the stream's end.
func sendPortions(out io.Writer, stream io.Closer, portions []string) error {
	next := bufio.NewReader(os.Stdin)
	for i, portion := range portions {
		if i > 0 {
			if _, err := next.ReadString('\n'); err != nil {
				return err
			}
		}
		size, err := strconv.ParseInt(portion, 10, 64)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(out, rand.Reader, size); err != nil {
			return err
		}
	}
	return stream.Close()
}
