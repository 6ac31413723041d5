package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Commands, attributes and ways of forwarding of the generic netlink family IPVS (linux/ip_vs.h).
const (
	family = "IPVS"

	newService = 1
	newDest    = 5

	service, dest = 1, 2 // nested: the attributes of a service, and of a destination

	serviceFamily, serviceProtocol, serviceAddr, servicePort = 1, 2, 3, 4
	serviceScheduler, serviceFlags, serviceTimeout           = 6, 7, 8
	serviceNetmask                                           = 9

	destAddr, destPort, destForward, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6

	masquerade, directRoute = 0, 3
)

var errNoIPVS = errors.New("this kernel has no IPVS")

// assign has the IPVS of this thread's network namespace send packets over UDP to a service on to one server.
func assign(to, server netip.AddrPort, forward uint32) error {
	f, err := netlink.GenlFamilyGet(family)
	if errors.Is(err, unix.ENOENT) {
		return errNoIPVS
	}
	if err != nil {
		return err
	}
	s := nl.NewRtAttr(service|unix.NLA_F_NESTED, nil)
	s.AddRtAttr(serviceFamily, nl.Uint16Attr(unix.AF_INET))
	s.AddRtAttr(serviceProtocol, nl.Uint16Attr(unix.IPPROTO_UDP))
	s.AddRtAttr(serviceAddr, to.Addr().AsSlice())
	s.AddRtAttr(servicePort, binary.BigEndian.AppendUint16(nil, to.Port()))
	s.AddRtAttr(serviceScheduler, nl.ZeroTerminated("rr"))
	s.AddRtAttr(serviceFlags, make([]byte, 8)) // flags and a mask
	s.AddRtAttr(serviceTimeout, nl.Uint32Attr(0))
	s.AddRtAttr(serviceNetmask, nl.Uint32Attr(^uint32(0)))
	d := nl.NewRtAttr(dest|unix.NLA_F_NESTED, nil)
	d.AddRtAttr(destAddr, server.Addr().AsSlice())
	d.AddRtAttr(destPort, binary.BigEndian.AppendUint16(nil, server.Port()))
	d.AddRtAttr(destForward, nl.Uint32Attr(forward))
	d.AddRtAttr(destWeight, nl.Uint32Attr(1))
	d.AddRtAttr(destUpper, nl.Uint32Attr(0)) // no limits
	d.AddRtAttr(destLower, nl.Uint32Attr(0))
	for _, c := range []struct {
		command uint8
		data    []nl.NetlinkRequestData
	}{{newService, []nl.NetlinkRequestData{s}}, {newDest, []nl.NetlinkRequestData{s, d}}} {
		r := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
		r.AddData(&nl.Genlmsg{Command: c.command, Version: 1})
		for _, x := range c.data {
			r.AddData(x)
		}
		if _, err := r.Execute(unix.NETLINK_GENERIC, 0); err != nil {
			return fmt.Errorf("IPVS, command %d: %w", c.command, err)
		}
	}
	return nil
}
