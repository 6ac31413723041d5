package server

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A ticker ticks more often than once a millisecond, which is the least that Go's timers do while nothing else runs:
// then Go waits by epoll_wait(2). One goroutine may wait for it.
type ticker struct {
	file   *os.File // of a timerfd
	raw    syscall.RawConn
	period time.Duration
	ticks  [8]byte
}

func newTicker() (*ticker, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	t := &ticker{file: os.NewFile(uintptr(fd), "ticker")}
	if t.raw, err = t.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("timerfd: %w", err), t.file.Close())
	}
	return t, nil
}

// every has it tick once in a period; 0: not at all.
func (t *ticker) every(period time.Duration) (err error) {
	if period == t.period {
		return nil
	}
	t.period = period
	d := unix.NsecToTimespec(int64(period))
	var problem error
	err = t.raw.Control(func(fd uintptr) {
		problem = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Interval: d, Value: d}, nil)
	})
	return errors.Join(err, os.NewSyscallError("timerfd_settime", problem))
}

// wait waits for the next tick, or until the ticker is closed.
func (t *ticker) wait() error {
	_, err := t.file.Read(t.ticks[:])
	return err
}

func (t *ticker) Close() error { return t.file.Close() }
