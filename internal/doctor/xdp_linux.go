package doctor

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/xdpdrops"
)

// atXDP says of each device whether packets come to programs there at XDP first, and whether it takes frames that
// programs on other devices send.
func atXDP() []Check {
	devices, err := netdev.Devices()
	if err != nil {
		c := Check{Name: "xdp", Status: Info, Found: "unknown: " + reasonOf(err)}
		if errors.Is(err, netdev.ErrNone) {
			c.Found = "no: " + err.Error()
		}
		return []Check{c}
	}
	all, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return []Check{{Name: "xdp", Status: Info, Found: "unknown: " + reasonOf(err)}}
	}
	var checks []Check
	for _, link := range all {
		if d, known := devices[link.Attrs().Index]; known && link.Attrs().Flags&net.FlagLoopback == 0 {
			checks = append(checks, frames(link, d))
		}
	}
	return append(checks, dropped())
}

// dropped says whether frames are counted that devices drop after XDP.
func dropped() Check {
	c := Check{Name: "xdp drops", Status: OK, Found: "counted by device (frames that were sent from XDP)"}
	if err := xdpdrops.Known(); err != nil {
		c.Status, c.Found = Info, "not counted: "+reasonOf(err)
	}
	return c
}

func frames(link netlink.Link, d netdev.Device) Check {
	c := Check{Name: "xdp " + link.Attrs().Name, Status: OK, Found: "yes"}
	err := d.Refuses(link, true)
	if err == nil {
		if id := netdev.Occupant(link); id != 0 {
			err = fmt.Errorf("program %d is there, and lets no other in (bpftool prog show id %[1]d)", id)
		}
	}
	switch {
	case err != nil:
		c.Status, c.Found = Info, "no: "+err.Error()
	case d.Refuses(link, false) != nil:
		c.Found = "only if asked for: " + d.Refuses(link, false).Error()
	}
	switch {
	case !d.Has(netdev.Transmit):
		c.Status, c.Found = Info, c.Found+"; takes no frames of other devices"
		c.Do = "some drivers take them only while a program runs at XDP there"
		if link.Type() == "veth" {
			c.Do = "it takes them if its far end has GRO on (there: ethtool -K DEVICE gro on) or a program at XDP"
		}
	case !d.Has(netdev.TransmitBuffer):
		c.Found += "; takes frames of other devices, in one buffer only"
	default:
		c.Found += "; takes frames of other devices"
	}
	return c
}
