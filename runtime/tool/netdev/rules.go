package netdev

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
)

// A program runs at XDP on these devices only if that was asked for.
var (
	ErrCard = errors.New("on a card XDP has to be asked for (hook xdp), since its driver may reset the link")
	ErrVeth = errors.New("on a veth XDP has to be asked for (hook xdp): what sockets at its far end send costs less " +
		"at tc/ingress")
)

// Refuses returns why a program isn't to run at XDP on a device, which link is, too; nil if it may. asked: that was
// asked for.
func (d Device) Refuses(link netlink.Link, asked bool) error {
	attrs := link.Attrs()
	switch {
	case !d.Has(Basic | Redirect):
		return fmt.Errorf("its driver (%s) has no XDP", link.Type())
	case !asked && attrs.ParentDevBus != "" && attrs.ParentDevBus != "virtio":
		return ErrCard
	case !asked && link.Type() == "veth":
		return ErrVeth
	case d.Tag: // a program that is bound to it sees the tag
	case link.Type() == "veth":
		return errors.New("a veth takes VLAN tags out of frames, and shows them at XDP since Linux 6.8")
	case takesTags(attrs.Name):
		return fmt.Errorf("it takes VLAN tags out of frames: ethtool -K %s rxvlan off", attrs.Name)
	}
	return nil
}

// takesTags reports whether a device takes VLAN tags out of the frames that it receives, or can't be asked.
func takesTags(name string) bool {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return true
	}
	defer tool.Close()
	has, err := tool.Features(name)
	return err != nil || has["rx-vlan-hw-parse"] || has["rx-vlan-stag-hw-parse"]
}

// Occupant returns the ID of the program that is at XDP on a device, where there is room for one; 0: none is.
func Occupant(link netlink.Link) uint32 {
	if x := link.Attrs().Xdp; x != nil && x.Attached {
		return x.ProgId
	}
	return 0
}
