package relay

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"net"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// listen opens the socket, beside that of the relay that this one succeeds.
func (r *Relay) listen() (*socket.Socket, error) {
	c := &r.config
	own := socket.Config{
		Address: c.Address, Turn: r.endRound, Wait: c.Wait, Segments: c.Segments, Lease: lease, Logger: c.Logger,
	}
	if r.kernel != nil {
		own.Drain = r.kernel.drain
	}
	g := c.Generation
	if g == nil {
		return socket.Listen(own)
	}
	config := net.ListenConfig{Control: g.Control}
	conn, err := config.ListenPacket(context.Background(), "udp", c.Address.String())
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	own.Conn = conn.(*net.UDPConn)
	s, err := socket.Listen(own)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	raw, err := s.SyscallConn()
	if err == nil {
		err = g.Join(raw)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(), g.Close())
	}
	return s, nil
}

// persist has the transport use what the process before, and the next one, have as well.
func (c *Config) persist(t *quic.Transport) {
	t.ConnectionIDLength = 8 // longer than the library's: a packet of another process isn't taken for one's own
	if c.Generation != nil {
		t.ConnectionIDGenerator = c.Generation
	}
	if c.Key == nil {
		return
	}
	t.StatelessResetKey = (*quic.StatelessResetKey)(c.derive("stateless resets"))
	t.TokenGeneratorKey = (*quic.TokenGeneratorKey)(c.derive("tokens"))
}

// derive returns a key for a purpose.
func (c *Config) derive(purpose string) *[32]byte {
	b, err := hkdf.Expand(sha256.New, c.Key[:], purpose, 32)
	if err != nil {
		panic(err) // its only error is a length of more than 8,160 bytes
	}
	return (*[32]byte)(b)
}
