package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const protocol = "fastrelay-twohops"

func listen(host *testnet.Host, port int) (socket *net.UDPConn, err error) {
	err = host.Do(func() error {
		socket, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		return err
	})
	return socket, err
}

// peer is a publisher or a subscriber.
type peer struct {
	socket    *net.UDPConn
	transport *quic.Transport
	conn      *quic.Conn
}

// connect connects a peer to the relay.
func connect(ctx context.Context, host *testnet.Host, relay net.Addr, d demo) (p *peer, err error) {
	p = &peer{}
	if p.socket, err = listen(host, 0); err != nil {
		return nil, err
	}
	p.transport = &quic.Transport{Conn: p.socket, ConnectionIDLength: 8}
	ctx = quic.WithHooks(ctx, &quic.Hooks{NullProtection: !d.protected, SparseMaxStreams: true})
	p.conn, err = p.transport.Dial(ctx, relay,
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, &quic.Config{
			// Packets get longer on their way: smaller ones leave room for that.
			InitialPacketSize: 1200, DisablePathMTUDiscovery: !d.large, MaxIncomingUniStreams: 40,
		})
	if err == nil && p.conn.Outside().NullProtection() == d.protected {
		err = fmt.Errorf("asked for null protection: %v, has it: %v", !d.protected, d.protected)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *peer) close() {
	if p.conn != nil {
		_ = p.conn.CloseWithError(0, "")
	}
	_ = p.transport.Close()
	_ = p.socket.Close()
}

// send sends an object on a stream of its own.
func send(ctx context.Context, conn *quic.Conn, data []byte) error {
	stream, err := conn.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	_, err = stream.Write(data)
	return errors.Join(err, stream.Close())
}

// received is what a subscriber got.
type received struct {
	hashes map[[sha256.Size]byte]int
	notes  int
	err    error
}

const note = "a note of the relay's own, number "

// receive reads so many streams to their ends.
func receive(ctx context.Context, conn *quic.Conn, streams int) received {
	type stream struct {
		data []byte
		err  error
	}
	ended := make(chan stream)
	go func() {
		for range streams {
			in, err := conn.AcceptUniStream(ctx)
			if err != nil {
				ended <- stream{nil, errors.Join(err, context.Cause(conn.Context()))}
				return
			}
			go func() {
				data, err := io.ReadAll(in)
				ended <- stream{data, err}
			}()
		}
	}()
	r := received{hashes: map[[sha256.Size]byte]int{}}
	for range streams {
		s := <-ended
		if s.err != nil {
			r.err = s.err
			return r
		}
		if strings.HasPrefix(string(s.data), note) {
			r.notes++
		} else {
			r.hashes[sha256.Sum256(s.data)]++
		}
	}
	return r
}
