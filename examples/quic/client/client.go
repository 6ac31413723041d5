// Package client connects to a relay (package server) as a publisher or as a subscriber.
package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// Config says how to connect.
type Config struct {
	Server netip.AddrPort
	TLS    *tls.Config
	// Socket is a UDP socket of the client's. It isn't closed with the connection.
	Socket net.PacketConn
	// Fast asks for what lets the kernel relay: null protection, which authenticates nothing.
	Fast bool
	QUIC *quic.Config
}

// A Conn is a connection to a relay.
type Conn struct {
	*quic.Conn
	transport *quic.Transport
}

// Publish becomes the publisher of a feed: all unidirectional streams, and datagrams, go to its subscribers.
func Publish(ctx context.Context, feed string, c Config) (*Conn, error) {
	return dial(ctx, "publish", feed, c)
}

// Subscribe becomes a subscriber of a feed: its streams arrive as unidirectional streams.
func Subscribe(ctx context.Context, feed string, c Config) (*Conn, error) {
	return dial(ctx, "subscribe", feed, c)
}

func dial(ctx context.Context, verb, feed string, c Config) (_ *Conn, err error) {
	hooks := &quic.Hooks{} // a connection with hooks acknowledges as the relay asks
	if c.Fast {
		// Packets as the kernel relays them: with numbers of 4 bytes, and a single STREAM frame.
		hooks = &quic.Hooks{NullProtection: true, LongNumbers: true, SparseMaxStreams: true, LoneStreamFrames: true}
	}
	ctx = quic.WithHooks(ctx, hooks)
	out := &Conn{transport: &quic.Transport{Conn: c.Socket, ConnectionIDLength: 8}}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if out.Conn, err = out.transport.Dial(ctx, net.UDPAddrFromAddrPort(c.Server), c.TLS, c.QUIC); err != nil {
		return nil, err
	}
	control, err := out.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(control, "%s %s\n", verb, feed); err != nil {
		return nil, err
	}
	// A relay may be there, and never answer.
	stop := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Unix(0, 0)) })
	answer, err := bufio.NewReader(control).ReadString('\n')
	if !stop() {
		err = ctx.Err()
	} else if err == nil && answer != "ok\n" {
		err = fmt.Errorf("the relay answered %q", answer)
	}
	return out, errors.Join(err, control.Close())
}

// Close closes the connection.
func (c *Conn) Close() error {
	var err error
	if c.Conn != nil {
		err = c.CloseWithError(0, "")
	}
	return errors.Join(err, c.transport.Close())
}
