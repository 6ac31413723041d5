//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotRoot is returned where this process may not make network namespaces.
var ErrNotRoot = errors.New("making network namespaces needs root")

// namespace is a network namespace without a name: it lasts as long as this process has it open.
type namespace struct {
	name  string // for messages
	ns    netns.NsHandle
	links *netlink.Handle
}

// newNamespace makes a namespace. The settings, paths below /proc/sys/net with their values, are made before it has
// devices other than lo; those that the kernel doesn't have (IPv6 may be missing) are left out.
func newNamespace(name string, settings ...[2]string) (*namespace, error) {
	n := &namespace{name: name}
	var err error
	n.ns, err = NewNetns(func() error {
		for _, s := range settings {
			path := filepath.Join("/proc/sys/net", s[0])
			if err := os.WriteFile(path, []byte(s[1]), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err == nil {
		n.links, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE)
	}
	if err == nil {
		err = n.up("lo")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the network namespace of %s: %w", name, err), n.close())
	}
	return n, nil
}

func (n *namespace) up(device string) error {
	link, err := n.links.LinkByName(device)
	if err != nil {
		return err
	}
	return n.links.LinkSetUp(link)
}

func (n *namespace) close() error {
	if n.links != nil {
		n.links.Close()
		n.links = nil
	}
	if !n.ns.IsOpen() {
		return nil
	}
	return n.ns.Close()
}

// NewNetns makes a network namespace, and runs f on a thread that is in it. The namespace lasts as long as a process
// has it open, or anything that f made is in it.
func NewNetns(f func() error) (netns.NsHandle, error) {
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
// can't be restored stays locked, and Go ends it with the goroutine. Where f ends its goroutine, as t.Fatal does,
// OnThread ends the caller's.
func OnThread(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done) // empty where f doesn't return
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
