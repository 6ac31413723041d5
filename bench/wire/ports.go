package wire

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// borrow takes a port of this machine, that is of the calling thread's network, onto a host. giveBack takes it home.
func borrow(name string, to *testnet.Host) (dev *testnet.Dev, giveBack func() error, err error) {
	port, err := netlink.LinkByName(name)
	if err != nil {
		return nil, nil, fmt.Errorf("port %s: %w", name, err)
	}
	dev = &testnet.Dev{}
	addrs, err := netlink.AddrList(port, netlink.FAMILY_V4)
	if err == nil && (len(addrs) > 0 || port.Attrs().MasterIndex > 0) {
		err = errors.New("it is in use: it has an address, or is part of another device")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("port %s: %w", name, err)
	}
	home, err := netns.Get()
	if err != nil {
		return nil, nil, err
	}
	giveBack = func() error {
		defer home.Close()
		return to.Do(func() error { return move(name, home) })
	}
	var there netns.NsHandle
	if err := to.Do(func() (err error) { there, err = netns.Get(); return err }); err != nil {
		return nil, giveBack, err
	}
	defer there.Close()
	if err := move(name, there); err != nil {
		return nil, giveBack, err
	}
	return dev, giveBack, to.Do(func() error {
		port, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		*dev = testnet.Dev{Host: to, Name: name, Index: port.Attrs().Index, MAC: port.Attrs().HardwareAddr}
		return dev.SetUp(true)
	})
}

func move(name string, to netns.NsHandle) error {
	port, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetNsFd(port, int(to))
}
