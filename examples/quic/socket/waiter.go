package socket

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket/internal/unpolled"
)

// A waiter waits for datagrams of sockets. Go's poller would wake the process for each datagram that comes to a socket
// that it has, whether a reader waits or not. So it has an epoll instance instead, and sockets are in that, or not.
type waiter struct {
	epoll    *os.File
	raw      syscall.RawConn      // of epoll
	deadline atomic.Int64         // Unix time in ns; 0: none
	bell     *unpolled.Descriptor // an eventfd, which ends a wait
	events   [64]unix.EpollEvent
}

func newWaiter() (*waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	err = unix.SetNonblock(epoll, true) // Go's poller takes no other
	w := &waiter{epoll: os.NewFile(uintptr(epoll), "datagrams")}
	if err == nil {
		w.raw, err = w.epoll.SyscallConn()
	}
	if err == nil {
		var bell int
		if bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
			w.bell = unpolled.Own(bell)
			err = w.listen(w.bell, true)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), w.Close())
	}
	return w, nil
}

// wake ends a wait, or the next one.
func (w *waiter) wake() error {
	var problem error
	err := w.bell.Control(func(fd uintptr) { _, problem = unix.Write(int(fd), []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	return errors.Join(err, os.NewSyscallError("write", problem))
}

// listen has wait return when a socket has datagrams, or not.
func (w *waiter) listen(d *unpolled.Descriptor, on bool) error {
	op := unix.EPOLL_CTL_DEL
	if on {
		op = unix.EPOLL_CTL_ADD
	}
	var problems [2]error
	err := d.Control(func(fd uintptr) {
		problems[0] = w.raw.Control(func(epoll uintptr) {
			event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
			problems[1] = unix.EpollCtl(int(epoll), op, int(fd), &event)
		})
	})
	return errors.Join(err, problems[0], os.NewSyscallError("epoll_ctl", problems[1]))
}

// setDeadline has a wait return an error from then on.
func (w *waiter) setDeadline(t time.Time) error {
	var at int64
	if !t.IsZero() {
		at = t.UnixNano()
	}
	w.deadline.Store(at)
	return w.epoll.SetReadDeadline(t)
}

// wait waits for datagrams, and returns the file descriptors of their sockets. One goroutine may wait.
func (w *waiter) wait() (ready []unix.EpollEvent, err error) {
	var n int
	var problem error
	err = w.raw.Read(func(epoll uintptr) bool {
		n, problem = unix.EpollWait(int(epoll), w.events[:], 0)
		return n > 0 || problem != nil && !errors.Is(problem, unix.EINTR)
	})
	if err = errors.Join(err, os.NewSyscallError("epoll_wait", problem)); err != nil {
		return nil, err
	}
	return w.events[:n], w.hearBell(n)
}

// rest waits for no longer than for some milliseconds, and keeps its processor meanwhile: Go isn't told of the system
// call. If it were, it would wake its monitor (runtime.sysmon) with each datagram, which sleeps for 20 µs a few times
// then. That costs as much as a datagram does.
func (w *waiter) rest(longest time.Duration) (ready []unix.EpollEvent, err error) {
	if at := w.deadline.Load(); at != 0 && time.Now().UnixNano() >= at {
		return nil, os.ErrDeadlineExceeded
	}
	ms := (longest + time.Millisecond - 1) / time.Millisecond
	var n uintptr
	var problem unix.Errno
	err = w.raw.Control(func(epoll uintptr) {
		n, _, problem = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&w.events)),
			uintptr(len(w.events)), uintptr(ms), 0, 0)
	})
	if problem != 0 {
		if n = 0; problem != unix.EINTR {
			err = errors.Join(err, os.NewSyscallError("epoll_pwait", problem))
		}
	}
	return w.events[:n], errors.Join(err, w.hearBell(int(n)))
}

// pause sleeps, as rest does, whatever comes meanwhile.
func (w *waiter) pause(d time.Duration) (ready []unix.EpollEvent, err error) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0) // shorter, if there is a signal
	return w.rest(0)
}

// hearBell stops the bell if it is among the events.
func (w *waiter) hearBell(events int) error {
	for i := range events {
		if int(w.events[i].Fd) == w.bell.FD() {
			var count [8]byte
			return w.bell.Control(func(fd uintptr) { _, _ = unix.Read(int(fd), count[:]) })
		}
	}
	return nil
}

// Close ends a wait.
func (w *waiter) Close() error {
	err := w.epoll.Close()
	if w.bell != nil {
		err = errors.Join(err, w.bell.Close())
	}
	return err
}
