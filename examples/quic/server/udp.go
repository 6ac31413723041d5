package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A udp is a UDP socket that Go's poller hears of only while a reader waits for datagrams. The poller wakes the process
// for each datagram that comes to a socket that it has, whether a reader waits or not. So it has an epoll instance
// instead, and the socket is in that, or not.
type udp struct {
	*net.UDPConn // is closed: what isn't defined here, isn't there
	epoll        *os.File
	raw          syscall.RawConn // of epoll
	outbox       *outbox

	mu     sync.RWMutex // keeps fd open
	fd     int
	closed bool
}

func listenUDP(at *net.UDPAddr) (_ *udp, err error) {
	c, err := net.ListenUDP("udp", at)
	if err != nil {
		return nil, err
	}
	u := &udp{UDPConn: c, fd: -1}
	raw, err := c.SyscallConn()
	if err == nil {
		var problem error
		err = raw.Control(func(fd uintptr) { u.fd, problem = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, os.NewSyscallError("fcntl", problem))
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(epoll, true) // Go's poller takes no other
		u.epoll = os.NewFile(uintptr(epoll), "datagrams")
	}
	if err == nil {
		u.raw, err = u.epoll.SyscallConn()
	}
	if err == nil {
		err = u.listen(true)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), u.Close())
	}
	return u, nil
}

// listen puts the socket into the epoll instance, or takes it out.
func (u *udp) listen(on bool) error {
	op := unix.EPOLL_CTL_DEL
	if on {
		op = unix.EPOLL_CTL_ADD
	}
	var problems [2]error
	err := (*rawUDP)(u).Control(func(fd uintptr) {
		problems[0] = u.raw.Control(func(epoll uintptr) {
			problems[1] = unix.EpollCtl(int(epoll), op, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN})
		})
	})
	return errors.Join(err, problems[0], os.NewSyscallError("epoll_ctl", problems[1]))
}

// SyscallConn returns the socket itself.
func (u *udp) SyscallConn() (syscall.RawConn, error) { return (*rawUDP)(u), nil }

// rawUDP is the socket itself.
type rawUDP udp

// Control implements [syscall.RawConn].
func (u *rawUDP) Control(f func(fd uintptr)) error {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if u.closed {
		return net.ErrClosed
	}
	f(uintptr(u.fd))
	return nil
}

// Read implements [syscall.RawConn].
func (u *rawUDP) Read(f func(fd uintptr) (done bool)) error {
	return u.raw.Read(func(uintptr) (done bool) {
		return u.Control(func(fd uintptr) { done = f(fd) }) != nil || done
	})
}

// Write implements [syscall.RawConn].
func (u *rawUDP) Write(f func(fd uintptr) (done bool)) error {
	for done := false; !done; {
		if err := u.Control(func(fd uintptr) {
			if done = f(fd); !done { // its buffer is full
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 10)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// WriteMsgUDP sends a datagram, or several of one size. Peers have no zones: the server's own address has none.
func (u *udp) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if u.outbox != nil {
		if taken, err := u.outbox.add(b, oob, addr); taken {
			return len(b), len(oob), err
		}
	}
	var to unix.Sockaddr
	if ip := addr.IP.To4(); ip != nil {
		to = &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(ip)}
	} else {
		to = &unix.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())}
	}
	var problem error
	err = (*rawUDP)(u).Write(func(fd uintptr) bool {
		n, problem = unix.SendmsgN(int(fd), b, oob, to, 0)
		return !errors.Is(problem, unix.EAGAIN) && !errors.Is(problem, unix.EINTR)
	})
	return n, len(oob), errors.Join(err, os.NewSyscallError("sendmsg", problem))
}

// WriteTo implements [net.PacketConn].
func (u *udp) WriteTo(b []byte, addr net.Addr) (n int, err error) {
	n, _, err = u.WriteMsgUDP(b, nil, addr.(*net.UDPAddr))
	return n, err
}

// SetReadDeadline implements [net.PacketConn].
func (u *udp) SetReadDeadline(t time.Time) error { return u.epoll.SetReadDeadline(t) }

// SetReadBuffer sets the size of the kernel's buffer of received datagrams.
func (u *udp) SetReadBuffer(bytes int) error { return u.set(unix.SOL_SOCKET, unix.SO_RCVBUF, bytes) }

// SetWriteBuffer sets the size of the kernel's buffer of datagrams to send.
func (u *udp) SetWriteBuffer(bytes int) error { return u.set(unix.SOL_SOCKET, unix.SO_SNDBUF, bytes) }

func (u *udp) set(level, option, value int) (err error) {
	var problem error
	err = (*rawUDP)(u).Control(func(fd uintptr) { problem = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, os.NewSyscallError("setsockopt", problem))
}

// Close closes the socket.
func (u *udp) Close() (err error) {
	if u.epoll != nil {
		err = u.epoll.Close()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return net.ErrClosed
	}
	u.closed = true
	if u.fd >= 0 {
		err = errors.Join(err, unix.Close(u.fd))
	}
	return err
}
