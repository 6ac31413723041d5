package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Device is the name of tunnel devices.
const Device = "tun0"

// end is one end of a tunnel.
type end struct {
	out   netip.Addr    // outside
	inner testnet.Addrs // inside
	mac   net.HardwareAddr
}

// addDevice makes the kernel's own device of one end, in the namespace of the calling thread.
func addDevice(o Options, own, other end) error {
	kind, attrs, err := o.device(own, other)
	if err != nil {
		return err
	}
	if err := addLink(kind, Device, o.mtu(), own.mac, attrs); err != nil {
		return fmt.Errorf("%s device: %w", kind, err)
	}
	link, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range []struct {
		own, other netip.Addr
		bits       int
	}{{own.inner.V4, other.inner.V4, 24}, {own.inner.V6, other.inner.V6, 64}} {
		errs = append(errs, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{
			IP: a.own.AsSlice(), Mask: net.CIDRMask(a.bits, a.own.BitLen()),
		}}))
		errs = append(errs, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: a.other.AsSlice(), HardwareAddr: other.mac, State: netlink.NUD_PERMANENT,
		}))
	}
	return errors.Join(errs...)
}

// mtu is what fits into 1,500 bytes in this tunnel.
func (o Options) mtu() uint32 {
	n := map[gateway.Kind]uint32{gateway.VXLAN: 8 + 8 + 14, gateway.GENEVE: 8 + 8 + 8 + 14}[o.Kind]
	if o.Outside == 6 {
		return 1500 - 40 - n
	}
	return 1500 - 20 - n
}

// device returns the kind of device and its attributes (linux/if_link.h), which netlink's own types don't cover.
func (o Options) device(own, other end) (kind string, attrs []*nl.RtAttr, err error) {
	add := func(kind int, value []byte) { attrs = append(attrs, nl.NewRtAttr(kind, value)) }
	flag := func(on bool) []byte {
		if on {
			return []byte{1}
		}
		return []byte{0}
	}
	v4 := o.Outside == 4
	switch o.Kind {
	case gateway.VXLAN:
		add(nl.IFLA_VXLAN_ID, nl.Uint32Attr(vni))
		if v4 {
			add(nl.IFLA_VXLAN_LOCAL, own.out.AsSlice())
			add(nl.IFLA_VXLAN_GROUP, other.out.AsSlice())
		} else {
			add(nl.IFLA_VXLAN_LOCAL6, own.out.AsSlice())
			add(nl.IFLA_VXLAN_GROUP6, other.out.AsSlice())
		}
		add(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, 4789))
		add(nl.IFLA_VXLAN_LEARNING, flag(false))
		add(nl.IFLA_VXLAN_TOS, []byte{1}) // DSCP as inside
		add(nl.IFLA_VXLAN_UDP_CSUM, flag(o.Sums))
		add(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, flag(!o.Sums))
		add(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, flag(!o.Sums))
		return "vxlan", attrs, nil
	}
	return "", nil, fmt.Errorf("no device for %v", o.Kind)
}

// addLink makes a device, up, with a link-layer address if it has one.
func addLink(kind, name string, mtu uint32, mac net.HardwareAddr, attrs []*nl.RtAttr) error {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Flags, message.Change = unix.IFF_UP, unix.IFF_UP
	r.AddData(message)
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	r.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(mtu)))
	if mac != nil {
		r.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	for _, a := range attrs {
		data.AddChild(a)
	}
	r.AddData(info)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func addRoute(link netlink.Link, dst string, via netip.Addr) error {
	_, network, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network, Gw: via.AsSlice()})
}
