package unpolled

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Descriptor is an open file that Go's poller doesn't have. It is a [syscall.RawConn].
type Descriptor struct {
	mu     sync.RWMutex // keeps fd open
	fd     int
	closed bool
}

// Own takes over a file descriptor.
func Own(fd int) *Descriptor { return &Descriptor{fd: fd} }

// FD returns the file descriptor, which may be closed.
func (d *Descriptor) FD() int { return d.fd }

// Control implements [syscall.RawConn].
func (d *Descriptor) Control(f func(fd uintptr)) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return net.ErrClosed
	}
	f(uintptr(d.fd))
	return nil
}

// Read implements [syscall.RawConn]. It doesn't wait.
func (d *Descriptor) Read(f func(fd uintptr) (done bool)) error {
	return d.Control(func(fd uintptr) { f(fd) })
}

// Write implements [syscall.RawConn].
func (d *Descriptor) Write(f func(fd uintptr) (done bool)) error {
	for done := false; !done; {
		if err := d.Control(func(fd uintptr) {
			if done = f(fd); !done { // its buffer is full
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 10)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// Set sets an integer option of a socket.
func (d *Descriptor) Set(level, option, value int) error {
	var problem error
	err := d.Control(func(fd uintptr) { problem = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, os.NewSyscallError("setsockopt", problem))
}

// Get returns an integer option of a socket.
func (d *Descriptor) Get(level, option int) (value int, err error) {
	var problem error
	err = d.Control(func(fd uintptr) { value, problem = unix.GetsockoptInt(int(fd), level, option) })
	return value, errors.Join(err, os.NewSyscallError("getsockopt", problem))
}

// Close closes the file. It may be called once.
func (d *Descriptor) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	d.closed = true
	return os.NewSyscallError("close", unix.Close(d.fd))
}
