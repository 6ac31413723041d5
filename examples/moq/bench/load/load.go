// Package load has the clients of the bench: a publisher of tracks, and subscribers, which read all that comes and note
// how late it is. They are stock QUIC clients: a connection of the fork without hooks does what one of quic-go does.
//
//	load.go        what is published, and connections
//	session.go     MOQT, as far as these clients need it
//	publisher.go   the publisher
//	subscriber.go  subscribers
package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// Config is what is published, and where.
type Config struct {
	Relay netip.AddrPort
	// Draft is that of MOQT; 0: the protocol of examples/quic/server, which knows no tracks. The streams have the same
	// bytes.
	Draft wire.Draft
	// Null has subscribers do without 1-RTT protection, as relays below the relay may.
	Null bool
	// Listen opens a client's socket; nil: one of this host.
	Listen func() (*net.UDPConn, error)

	Tracks int
	Rate   float64 // objects a second of each track
	Size   int     // bytes of an object's payload, at least 8
	Group  int     // objects of a group, which is one subgroup
}

// stampSize is how many bytes at the beginning of an object's payload say when it was written: nanoseconds since the
// process began.
const stampSize = 8

var processStart = time.Now()

// A client is a connection with its socket.
type client struct {
	*quic.Conn
	socket    *net.UDPConn
	transport *quic.Transport
}

// dial connects to the relay. Its limits aren't in the way.
func (c *Config) dial(ctx context.Context) (_ *client, err error) {
	listen := c.Listen
	if listen == nil {
		listen = func() (*net.UDPConn, error) { return net.ListenUDP("udp", nil) }
	}
	d := &client{}
	if d.socket, err = listen(); err != nil {
		return nil, err
	}
	protocol := "fastrelay"
	if c.Draft != 0 {
		protocol = c.Draft.ALPN()
	}
	d.transport = &quic.Transport{Conn: d.socket}
	if c.Null {
		d.transport.ConnectionIDLength = 8
		ctx = quic.WithHooks(ctx, &quic.Hooks{NullProtection: true, SparseMaxStreams: true})
	}
	d.Conn, err = d.transport.Dial(ctx, net.UDPAddrFromAddrPort(c.Relay),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, &quic.Config{
			MaxIncomingStreams: 1 << 14, MaxIncomingUniStreams: 1 << 14,
			EnableDatagrams: true, EnableStreamResetPartialDelivery: true,
			InitialStreamReceiveWindow: 1 << 20, MaxStreamReceiveWindow: 1 << 20,
			InitialConnectionReceiveWindow: 1 << 24, MaxConnectionReceiveWindow: 1 << 24,
		})
	if err != nil {
		return nil, errors.Join(err, d.transport.Close(), d.socket.Close())
	}
	return d, nil
}

func (d *client) close() {
	_ = d.CloseWithError(0, "")
	_ = d.transport.Close()
	_ = d.socket.Close()
}

// ask sends a line of the protocol of examples/quic/server.
func (d *client) ask(ctx context.Context, verb string) error {
	control, err := d.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(control, verb, namespace); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Unix(0, 0)) })
	defer stop()
	answer, err := bufio.NewReader(control).ReadString('\n')
	if err == nil && answer != "ok\n" {
		err = fmt.Errorf("the relay answered %q", answer)
	}
	return errors.Join(err, control.Close())
}

// namespace is that of all tracks, or the name of the feed.
const namespace = "bench"

// track is the name of a track by its number.
func track(number int) wire.Track {
	return wire.Track{Namespace: wire.Namespace{namespace}, Name: fmt.Sprint(number)}
}
