package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A waiter waits for datagrams of sockets, and for its timer. Go's poller would wake the process for each datagram that
// comes to a socket that it has, whether a reader waits or not. So it has an epoll instance instead, and sockets are in
// that, or not. The timer ticks more often than once a millisecond, if it is told to, which is the least that Go's
// timers do while nothing else runs: then Go waits by epoll_wait(2).
type waiter struct {
	epoll  *os.File
	raw    syscall.RawConn // of epoll
	timer  descriptor      // a timerfd
	period time.Duration
	ticks  [8]byte
	events [16]unix.EpollEvent
}

func newWaiter() (*waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	err = unix.SetNonblock(epoll, true) // Go's poller takes no other
	w := &waiter{epoll: os.NewFile(uintptr(epoll), "datagrams"), timer: descriptor{closed: true}}
	if err == nil {
		w.raw, err = w.epoll.SyscallConn()
	}
	if err == nil {
		w.timer.fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		w.timer.closed = err != nil
	}
	if err == nil {
		err = w.listen(&w.timer, true)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), w.Close())
	}
	return w, nil
}

// listen has wait return when a socket has datagrams, or not.
func (w *waiter) listen(d *descriptor, on bool) error {
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

// every has the timer tick once in a period; 0: not at all.
func (w *waiter) every(period time.Duration) error {
	if period == w.period {
		return nil
	}
	w.period = period
	d := unix.NsecToTimespec(int64(period))
	var problem error
	err := w.timer.Control(func(fd uintptr) {
		problem = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Interval: d, Value: d}, nil)
	})
	return errors.Join(err, os.NewSyscallError("timerfd_settime", problem))
}

// wait waits for datagrams, or for a tick, and returns the file descriptors. One goroutine may wait.
func (w *waiter) wait() (ready []unix.EpollEvent, err error) {
	var problem error
	err = w.raw.Read(func(epoll uintptr) bool {
		var n int
		n, problem = unix.EpollWait(int(epoll), w.events[:], 0)
		ready = w.events[:max(n, 0)]
		return n > 0 || problem != nil && !errors.Is(problem, unix.EINTR)
	})
	for i := range ready {
		if int(ready[i].Fd) == w.timer.fd {
			err = errors.Join(err, w.timer.Control(func(fd uintptr) {
				_, _ = unix.Read(int(fd), w.ticks[:]) // else it wouldn't tick again
			}))
		}
	}
	return ready, errors.Join(err, os.NewSyscallError("epoll_wait", problem))
}

// Close ends a wait.
func (w *waiter) Close() error {
	err := w.epoll.Close()
	if bad := w.timer.Close(); !errors.Is(bad, net.ErrClosed) {
		err = errors.Join(err, bad)
	}
	return err
}
