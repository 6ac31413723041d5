package segments

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Conn is a server's UDP socket for libraries that send by a net.PacketConn, such as pion's ICE: what is written to it
// within [Conn.Together] leaves together. All else is the socket's.
//
//	conn, err := segments.NewConn(segments.Config{Conn: socket}, netip.MustParseAddr("192.0.2.1"))
//	settings.SetICEUDPMux(webrtc.NewICEUDPMux(nil, conn))
//	…
//	err = conn.Together(func() error { return track.WriteRTP(packet) }) // to all peers of the track
type Conn struct {
	*net.UDPConn
	sender *Sender

	mu        sync.Mutex
	callers   int // of Together
	waiting   []Packet
	spare     []Packet // waiting was that, the last time
	receivers *Receivers
}

// NewConn makes a Conn, and a sender for it, in the network namespace of the calling thread. The local addresses are
// those that packets come from where the socket has none of its own: one, or one of each IP version.
func NewConn(c Config, local ...netip.Addr) (*Conn, error) {
	socket, ok := c.Conn.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("segments: a Conn is made of a *net.UDPConn, not of a %T", c.Conn)
	}
	s, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Conn{UDPConn: socket, sender: s, receivers: NewReceivers(s, local...)}, nil
}

// Sender returns what sends, for its counters.
func (c *Conn) Sender() *Sender { return c.sender }

// Close closes the sender and the socket.
func (c *Conn) Close() error { return errors.Join(c.sender.Close(), c.UDPConn.Close()) }

// Together calls f, and then sends what was written meanwhile, by f or by others. It returns f's error, and the first
// one of a packet that couldn't be sent.
func (c *Conn) Together(f func() error) error {
	c.mu.Lock()
	c.callers++
	c.mu.Unlock()
	err := f()
	c.mu.Lock()
	c.callers--
	packets := c.waiting
	c.waiting, c.spare = c.spare[:0], nil
	c.receivers.Sweep(time.Now())
	c.mu.Unlock()
	err = errors.Join(err, c.sender.Send(packets))
	c.mu.Lock()
	c.spare = packets
	c.mu.Unlock()
	return err
}

// WriteTo sends a packet, or keeps a copy of it for the end of Together. Then no error is returned but one of the
// address.
func (c *Conn) WriteTo(b []byte, to net.Addr) (int, error) {
	if at, ok := to.(*net.UDPAddr); ok && c.keep(b, at.AddrPort()) {
		return len(b), nil
	}
	return c.UDPConn.WriteTo(b, to)
}

// WriteToAddrPort is WriteTo, with an address that takes no memory. With ReadFromAddrPort it is pion's
// ice.AddrPortReaderWriter.
func (c *Conn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if c.keep(b, to) {
		return len(b), nil
	}
	return c.WriteToUDPAddrPort(b, to)
}

// ReadFromAddrPort is the socket's ReadFromUDPAddrPort.
func (c *Conn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return c.ReadFromUDPAddrPort(b)
}

// keep keeps a copy of a packet, if it is to wait.
func (c *Conn) keep(b []byte, to netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.callers == 0 {
		return false
	}
	r := c.receivers.Of(to)
	if r == nil {
		return false
	}
	if n := len(c.waiting); n < cap(c.waiting) {
		c.waiting = c.waiting[:n+1]
	} else {
		c.waiting = append(c.waiting, Packet{})
	}
	p := &c.waiting[len(c.waiting)-1]
	p.To, p.Payload = r, append(p.Payload[:0], b...)
	return true
}
