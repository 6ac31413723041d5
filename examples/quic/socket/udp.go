package socket

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket/internal/unpolled"
)

// A udp is a socket that the library sends by.
type udp struct {
	*unpolled.UDP
	outbox *outbox
}

// WriteMsgUDP sends a datagram, or several of one size.
func (u *udp) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if u.outbox != nil {
		if taken, err := u.outbox.add(b, oob, addr); taken {
			return len(b), len(oob), err
		}
	}
	return u.WriteMsgUDPAddrPort(b, oob, peer(addr))
}

// WriteTo implements [net.PacketConn].
func (u *udp) WriteTo(b []byte, addr net.Addr) (n int, err error) {
	n, _, err = u.WriteMsgUDP(b, nil, addr.(*net.UDPAddr))
	return n, err
}

// SetReadBuffer sets the size of the kernel's buffer of received datagrams.
func (u *udp) SetReadBuffer(bytes int) error {
	return u.File.Set(unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
}

// SetWriteBuffer sets the size of the kernel's buffer of datagrams to send.
func (u *udp) SetWriteBuffer(bytes int) error {
	return u.File.Set(unix.SOL_SOCKET, unix.SO_SNDBUF, bytes)
}
