// Package netdev asks the kernel what devices can do at XDP: family netdev of generic netlink, since Linux 6.3
// (include/uapi/linux/netdev.h). It asks about the network namespace of its thread.
package netdev

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Features are what a device does with XDP (enum netdev_xdp_act).
type Features uint64

// What a device does.
const (
	Basic          Features = 1 << 0 // runs programs, which may pass, drop and send back
	Redirect       Features = 1 << 1 // its programs may send by other devices
	Transmit       Features = 1 << 2 // takes frames from programs of other devices
	Buffers        Features = 1 << 5 // its programs get frames of several buffers
	TransmitBuffer Features = 1 << 6 // takes frames of several buffers
)

// Has reports whether all of some features are there.
func (f Features) Has(all Features) bool { return f&all == all }

// Device is what the kernel says of a device.
type Device struct {
	Index int
	Features
	// It shows a program that is bound to it the VLAN tag that it has taken out of a frame (Linux 6.8).
	Tag bool
}

// ErrNone: the kernel doesn't say what its devices can do.
var ErrNone = errors.New("this kernel doesn't say what its devices can do at XDP, as Linux does since 6.3")

const (
	family = "netdev"
	group  = "mgmt"

	commandGet = 1 // NETDEV_CMD_DEV_GET

	attrIndex    = 1 // NETDEV_A_DEV_IFINDEX
	attrFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
	attrMetadata = 5 // NETDEV_A_DEV_XDP_RX_METADATA_FEATURES

	metadataTag = 1 << 2 // NETDEV_XDP_RX_METADATA_VLAN_TAG
)

// find returns the family. The error is ErrNone if there is none.
func find() (*netlink.GenlFamily, error) {
	f, err := netlink.GenlFamilyGet(family)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the family %s of generic netlink: %w", family, err)
	}
	return f, nil
}

// Known returns ErrNone if the kernel doesn't say what its devices can do.
func Known() error {
	_, err := find()
	return err
}

// Devices returns all devices of the namespace, by index. The error wraps ErrNone if the kernel can't be asked.
func Devices() (map[int]Device, error) {
	f, err := find()
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_DUMP)
	req.AddData(header{commandGet, 1, 0, 0})
	all := map[int]Device{}
	err = dump(req, func(msg []byte) error {
		d, err := parse(msg)
		all[d.Index] = d
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list what devices can do at XDP: %w", err)
	}
	return all, nil
}

// dump calls f for each message of an answer. The library's own takes the first for the only one: the family doesn't
// say of its messages that more follow.
func dump(req *nl.NetlinkRequest, f func([]byte) error) error {
	s, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Send(req); err != nil {
		return err
	}
	for {
		msgs, _, err := s.Receive()
		if err != nil {
			return err
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if len(m.Data) >= 4 {
					if errno := -int32(nl.NativeEndian().Uint32(m.Data)); errno != 0 {
						return unix.Errno(errno)
					}
				}
				return nil
			}
			if err := f(m.Data); err != nil {
				return err
			}
		}
	}
}

// header is struct genlmsghdr. The library's leaves its last two bytes to chance, which the family doesn't take.
type header [nl.SizeofGenlmsg]byte

func (h header) Len() int          { return len(h) }
func (h header) Serialize() []byte { return h[:] }

func parse(msg []byte) (d Device, err error) {
	if len(msg) < nl.SizeofGenlmsg {
		return d, fmt.Errorf("an answer of %d bytes about a device", len(msg))
	}
	attrs, err := nl.ParseRouteAttr(msg[nl.SizeofGenlmsg:])
	if err != nil {
		return d, fmt.Errorf("an answer about a device: %w", err)
	}
	for _, a := range attrs {
		switch n := len(a.Value); {
		case a.Attr.Type == attrIndex && n >= 4:
			d.Index = int(nl.NativeEndian().Uint32(a.Value))
		case a.Attr.Type == attrFeatures && n >= 8:
			d.Features = Features(nl.NativeEndian().Uint64(a.Value))
		case a.Attr.Type == attrMetadata && n >= 8:
			d.Tag = nl.NativeEndian().Uint64(a.Value)&metadataTag != 0
		}
	}
	return d, nil
}

// Watch is told of changes in what devices can do. The caller closes it.
func Watch() (*nl.NetlinkSocket, error) {
	f, err := find()
	if err != nil {
		return nil, err
	}
	for _, g := range f.Groups {
		if g.Name != group {
			continue
		}
		s, err := nl.Subscribe(unix.NETLINK_GENERIC)
		if err != nil {
			return nil, err
		}
		// Subscribe knows the first 32 groups alone.
		if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g.ID)); err != nil {
			s.Close()
			return nil, fmt.Errorf("join the group %s of family %s: %w", group, family, err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("the family %s of generic netlink has no group %s", family, group)
}
