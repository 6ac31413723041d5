package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A udp is a UDP socket that Go's poller doesn't have.
type udp struct {
	*net.UDPConn // is closed: what isn't defined here, isn't there
	file         descriptor
	outbox       *outbox
}

func listenUDP(at *net.UDPAddr) (_ *udp, err error) {
	c, err := net.ListenUDP("udp", at)
	if err != nil {
		return nil, err
	}
	u := &udp{UDPConn: c}
	u.file.fd = -1
	raw, err := c.SyscallConn()
	if err == nil {
		var problem error
		err = raw.Control(func(fd uintptr) { u.file.fd, problem = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, os.NewSyscallError("fcntl", problem))
	}
	if err = errors.Join(err, c.Close()); err == nil {
		return u, nil
	}
	if u.file.fd >= 0 {
		err = errors.Join(err, u.Close())
	}
	return nil, err
}

// SyscallConn returns the socket itself.
func (u *udp) SyscallConn() (syscall.RawConn, error) { return &u.file, nil }

// WriteMsgUDP sends a datagram, or several of one size. Peers have no zones: the server's own address has none.
func (u *udp) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if u.outbox != nil {
		if taken, err := u.outbox.add(b, oob, addr); taken {
			return len(b), len(oob), err
		}
	}
	var problem error
	err = u.file.Write(func(fd uintptr) bool {
		n, problem = unix.SendmsgN(int(fd), b, oob, sockaddr(peer(addr)), 0)
		return !errors.Is(problem, unix.EAGAIN) && !errors.Is(problem, unix.EINTR)
	})
	return n, len(oob), errors.Join(err, os.NewSyscallError("sendmsg", problem))
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// WriteTo implements [net.PacketConn].
func (u *udp) WriteTo(b []byte, addr net.Addr) (n int, err error) {
	n, _, err = u.WriteMsgUDP(b, nil, addr.(*net.UDPAddr))
	return n, err
}

// SetReadBuffer sets the size of the kernel's buffer of received datagrams.
func (u *udp) SetReadBuffer(bytes int) error {
	return u.file.set(unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
}

// SetWriteBuffer sets the size of the kernel's buffer of datagrams to send.
func (u *udp) SetWriteBuffer(bytes int) error {
	return u.file.set(unix.SOL_SOCKET, unix.SO_SNDBUF, bytes)
}

// Close closes the socket.
func (u *udp) Close() error { return u.file.Close() }
