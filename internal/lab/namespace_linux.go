//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// host is a network namespace without a name: it lasts as long as this process has it open.
type host struct {
	name  string // for messages
	ns    netns.NsHandle
	links *netlink.Handle
}

// newHost makes a namespace. The settings, paths below /proc/sys/net with their values, are made before it has
// devices other than lo; those that the kernel doesn't have (IPv6 may be missing) are left out.
func newHost(name string, settings ...[2]string) (*host, error) {
	n := &host{name: name}
	var err error
	n.ns, err = namespace.New(func() error {
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

func (n *host) up(device string) error {
	link, err := n.links.LinkByName(device)
	if err != nil {
		return err
	}
	return n.links.LinkSetUp(link)
}

func (n *host) close() error {
	if n.links != nil {
		n.links.Close()
		n.links = nil
	}
	if !n.ns.IsOpen() {
		return nil
	}
	return n.ns.Close()
}
