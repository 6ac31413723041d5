//go:build linux

// Package namespace makes network namespaces, and runs code and opens sockets in them.
package namespace

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotRoot is returned if this process may not make network namespaces.
var ErrNotRoot = errors.New("making network namespaces needs root")

// New makes a network namespace, and runs f on a thread that is in it. The namespace lasts as long as a process
// has it open, or anything that f made is in it.
func New(f func() error) (netns.NsHandle, error) {
	ns := netns.None()
	err := OnThread(netns.None(), func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
			return ErrNotRoot
		} else if err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if ns, err = netns.Get(); err != nil {
			return err
		}
		return f()
	})
	if err != nil && ns.IsOpen() {
		err = errors.Join(err, ns.Close())
	}
	return ns, err
}

// OnThread runs f on a locked thread, in the network namespace ns if that is open, and restores the thread's
// namespace. Sockets made in f belong to ns; goroutines started in f don't, they run on other threads. A thread that
// can't be restored stays locked, and Go ends it with the goroutine. If f ends its goroutine, as t.Fatal does,
// OnThread ends the caller's.
func OnThread(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done) // empty if f doesn't return
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		if ns.IsOpen() {
			if err := netns.Set(ns); err != nil {
				done <- fmt.Errorf("enter the network namespace: %w", err)
				return
			}
		}
		err = f()
		if back := netns.Set(home); back != nil {
			done <- errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	err, returned := <-done
	if !returned {
		runtime.Goexit()
	}
	return err
}

// Within runs f on the calling thread, in the network namespace ns, and restores the thread's. It needs no rights if
// the thread is in ns anyway. A thread that can't be restored stays locked, and Go ends it with the goroutine.
func Within(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if home.Equal(ns) {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = f()
	if back := netns.Set(home); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
