// Package unpolled has UDP sockets that Go's poller doesn't have. It would wake the process for each datagram, whether
// a reader waits for it or not, which costs more than many servers do with the datagram.
package unpolled

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A UDP is such a socket. It reads without waiting.
type UDP struct {
	*net.UDPConn // is closed: what isn't defined here, isn't there
	File         *Descriptor
}

// Of takes a socket over, and closes c.
func Of(c *net.UDPConn) (*UDP, error) {
	fd := -1
	raw, err := c.SyscallConn()
	if err == nil {
		var problem error
		err = raw.Control(func(own uintptr) { fd, problem = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, os.NewSyscallError("fcntl", problem))
	}
	if err = errors.Join(err, c.Close()); err == nil {
		return &UDP{c, Own(fd)}, nil
	}
	if fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return nil, err
}

// Another takes over the file descriptor of another socket with the same address.
func (u *UDP) Another(fd int) *UDP { return &UDP{u.UDPConn, Own(fd)} }

// SyscallConn returns the socket itself.
func (u *UDP) SyscallConn() (syscall.RawConn, error) { return u.File, nil }

// Polled returns the same socket as Go's poller has it, until that is closed.
func (u *UDP) Polled() (*net.UDPConn, error) {
	var c net.PacketConn
	var problem error
	err := u.File.Control(func(fd uintptr) {
		var own int
		if own, problem = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); problem != nil {
			problem = os.NewSyscallError("fcntl", problem)
			return
		}
		f := os.NewFile(uintptr(own), "datagrams")
		c, problem = net.FilePacketConn(f)
		problem = errors.Join(problem, f.Close())
	})
	if err = errors.Join(err, problem); err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// WriteMsgUDPAddrPort sends a datagram, or several of one size.
func (u *UDP) WriteMsgUDPAddrPort(b, oob []byte, to netip.AddrPort) (n, oobn int, err error) {
	var problem error
	err = u.File.Write(func(fd uintptr) bool {
		n, problem = unix.SendmsgN(int(fd), b, oob, Sockaddr(to), 0)
		return !errors.Is(problem, unix.EAGAIN) && !errors.Is(problem, unix.EINTR)
	})
	return n, len(oob), errors.Join(err, os.NewSyscallError("sendmsg", problem))
}

// WriteToUDPAddrPort sends a datagram.
func (u *UDP) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (n int, err error) {
	n, _, err = u.WriteMsgUDPAddrPort(b, nil, to)
	return n, err
}

// Sockaddr is an address as system calls have it.
func Sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: zone(at.Addr().Zone())}
}

// zone is the index of a device, 0 if there is none of that name.
func zone(name string) uint32 {
	if name == "" {
		return 0
	}
	if device, err := net.InterfaceByName(name); err == nil {
		return uint32(device.Index)
	}
	return 0
}

// Close closes the socket.
func (u *UDP) Close() error { return u.File.Close() }
