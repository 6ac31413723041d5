package server

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// A socket is the UDP socket of all connections. Before a datagram that it received is handled, the ring of events is
// read up to where it stood then. The kernel's program has written its records of a datagram when the datagram reaches
// the socket, so whoever handles it knows all its copies; and whoever handles an ACK knows the copies that it is for.
type socket struct {
	*net.UDPConn
	batch *ipv4.PacketConn
	drain func()
	// gather reports whether the kernel sends to all subscribers: then datagrams are handled together, after a wait.
	gather func() bool
	all    bool // the last call read all there was
}

// gathering is how long datagrams wait at most. Being woken for each costs more than all else that is done with it.
const gathering = time.Millisecond

func listen(at *net.UDPAddr, drain func(), gather func() bool) (*socket, error) {
	c, err := net.ListenUDP("udp", at)
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	// A socket that takes several datagrams as one makes the kernel merge them before the program sees them, which then
	// passes them all to user space.
	var option error
	if err := raw.Control(func(fd uintptr) {
		option = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 0)
	}); err != nil || option != nil {
		c.Close()
		return nil, fmt.Errorf("turn UDP_GRO off: %w", errors.Join(err, option))
	}
	return &socket{UDPConn: c, batch: ipv4.NewPacketConn(c), drain: drain, gather: gather}, nil
}

// ReadBatch is what the library reads datagrams with.
func (s *socket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	if s.all && s.gather() {
		time.Sleep(gathering)
	}
	n, err := s.batch.ReadBatch(ms, flags)
	s.all = n < len(ms)
	s.drain()
	return n, err
}
