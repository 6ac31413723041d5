package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Device is the name of tunnel devices.
const Device = "tun0"

// end is one end of a tunnel.
type end struct {
	out   netip.Addr    // outside
	inner testnet.Addrs // inside
	mac   net.HardwareAddr
}

// ethernet reports whether frames are inside, and not IP packets.
func (o Options) ethernet() bool { return o.Kind == gateway.VXLAN || o.Kind == gateway.GENEVE }

// addDevice makes the kernel's own device of one end, in the namespace of the calling thread, with routes to the
// networks of the other one.
func addDevice(o Options, own, other end, networks ...string) error {
	kind, attrs, err := o.device(own, other)
	if err != nil {
		return err
	}
	if o.Kind == gateway.FOU {
		if err := o.ports(netlink.FouAdd); err != nil {
			return fmt.Errorf("FOU: %w", err)
		}
	}
	mac := own.mac
	if !o.ethernet() {
		mac = nil
	}
	if err := addLink(kind, Device, o.mtu(), mac, attrs); err != nil {
		return fmt.Errorf("%s device: %w", kind, err)
	}
	link, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	var errs []error
	add := func(route *netlink.Route) {
		route.LinkIndex = link.Attrs().Index
		if o.Kind == gateway.GENEVE {
			route.Encap = &metadata{dst: other.out, src: own.out, sums: o.Sums}
		}
		errs = append(errs, netlink.RouteAdd(route))
	}
	for _, a := range []struct {
		own, other netip.Addr
		bits       int
	}{{own.inner.V4, other.inner.V4, 24}, {own.inner.V6, other.inner.V6, 64}} {
		network := &net.IPNet{IP: a.own.AsSlice(), Mask: net.CIDRMask(a.bits, a.own.BitLen())}
		flags := unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE // GENEVE's route says more than the address would
		errs = append(errs, netlink.AddrAdd(link, &netlink.Addr{IPNet: network, Flags: flags}))
		if o.ethernet() {
			errs = append(errs, netlink.NeighSet(&netlink.Neigh{
				LinkIndex: link.Attrs().Index, IP: a.other.AsSlice(), HardwareAddr: other.mac,
				State: netlink.NUD_PERMANENT,
			}))
		}
		add(&netlink.Route{
			Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: network.IP.Mask(network.Mask), Mask: network.Mask},
		})
	}
	for _, n := range networks {
		_, dst, err := net.ParseCIDR(n)
		if err != nil {
			return err
		}
		route := &netlink.Route{Dst: dst}
		if gw := other.inner.Of(len(dst.IP)/16*2 + 4); o.ethernet() {
			route.Gw = gw.AsSlice()
		}
		add(route)
	}
	return errors.Join(append(errs, awaitLocal(own.inner.V6))...)
}

// addDummy makes a device that nothing gets through, with the tunnel's MTU and routes to its networks.
func addDummy(o Options, networks []netip.Prefix) error {
	if err := addLink("dummy", Device, o.mtu(), nil, nil); err != nil {
		return fmt.Errorf("dummy device: %w", err)
	}
	link, err := netlink.LinkByName(Device)
	for _, n := range networks {
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: &net.IPNet{IP: n.Addr().AsSlice(), Mask: net.CIDRMask(n.Bits(), n.Addr().BitLen())},
			})
		}
	}
	return err
}

// awaitLocal waits until what comes for an address of IPv6 is delivered: the kernel makes that route later, in a work
// queue (addrconf_dad_work).
func awaitLocal(addr netip.Addr) error {
	return testnet.Until(2*time.Second, addr.String()+" is a local address", func() bool {
		routes, err := netlink.RouteGet(addr.AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
	})
}

// removeDevice removes what addDevice or addDummy has made.
func removeDevice(o Options) error {
	link, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	err = netlink.LinkDel(link)
	if o.Kind == gateway.FOU && link.Type() != "dummy" {
		err = errors.Join(err, o.ports(netlink.FouDel))
	}
	return err
}

// mtu is what fits into 1,500 bytes in this tunnel.
func (o Options) mtu() uint32 {
	n := map[gateway.Kind]uint32{
		gateway.VXLAN: 8 + 8 + 14, gateway.GENEVE: 8 + 8 + 8 + 14, gateway.IPIP: 0, gateway.FOU: 8,
	}[o.Kind]
	if o.Outside == 6 {
		return 1500 - 40 - n
	}
	return 1500 - 20 - n
}

// Protocols inside, and UDP ports of FOU.
const (
	ipip, ipv6   = unix.IPPROTO_IPIP, unix.IPPROTO_IPV6
	fou4, fou6   = 5555, 5556
	encapFOU     = 1 // TUNNEL_ENCAP_FOU
	sums4, sums6 = 1, 2
	noLimit      = 1 // IP6_TNL_F_IGN_ENCAP_LIMIT: no extension header
)

// device returns the kind of device and its attributes (linux/if_link.h), which netlink's own types don't cover.
func (o Options) device(own, other end) (kind string, attrs []*nl.RtAttr, err error) {
	add := func(kind int, value []byte) { attrs = append(attrs, nl.NewRtAttr(kind, value)) }
	flag := func(on bool) []byte {
		if on {
			return []byte{1}
		}
		return []byte{0}
	}
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
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
		add(nl.IFLA_VXLAN_PORT, port(4789))
		add(nl.IFLA_VXLAN_LEARNING, flag(false))
		add(nl.IFLA_VXLAN_TOS, []byte{1}) // DSCP as inside
		add(nl.IFLA_VXLAN_UDP_CSUM, flag(o.Sums))
		add(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_TX, flag(!o.Sums))
		add(nl.IFLA_VXLAN_UDP_ZERO_CSUM6_RX, flag(!o.Sums))
		return "vxlan", attrs, nil
	case gateway.GENEVE: // routes say where packets go, and with which option
		add(nl.IFLA_GENEVE_COLLECT_METADATA, nil)
		add(nl.IFLA_GENEVE_PORT, port(6081))
		add(nl.IFLA_GENEVE_UDP_ZERO_CSUM6_RX, flag(true))
		return "geneve", attrs, nil
	}
	add(nl.IFLA_IPTUN_LOCAL, own.out.AsSlice())
	add(nl.IFLA_IPTUN_REMOTE, other.out.AsSlice())
	add(nl.IFLA_IPTUN_TTL, []byte{64})
	protocol, to := byte(0), uint16(fou4) // any
	if o.Kind == gateway.FOU {
		if protocol = ipip; o.Inside == 6 {
			protocol, to = ipv6, fou6
		}
		flags := uint16(0)
		if o.Sums {
			flags = sums4 | sums6
		}
		add(nl.IFLA_IPTUN_ENCAP_TYPE, nl.Uint16Attr(encapFOU))
		add(nl.IFLA_IPTUN_ENCAP_FLAGS, nl.Uint16Attr(flags))
		add(nl.IFLA_IPTUN_ENCAP_SPORT, port(0))
		add(nl.IFLA_IPTUN_ENCAP_DPORT, port(to))
	}
	add(nl.IFLA_IPTUN_PROTO, []byte{protocol})
	if v4 {
		add(nl.IFLA_IPTUN_PMTUDISC, flag(true))
		if protocol == ipip {
			return "ipip", attrs, nil
		}
		return "sit", attrs, nil // IPv6 inside, or both
	}
	add(nl.IFLA_IPTUN_FLAGS, nl.Uint32Attr(noLimit))
	return "ip6tnl", attrs, nil
}

// ports opens or closes the ports of FOU.
func (o Options) ports(do func(netlink.Fou) error) error {
	family := unix.AF_INET
	if o.Outside == 6 {
		family = unix.AF_INET6
	}
	// "type" of a port is 1: the payload is of the protocol
	return errors.Join(
		do(netlink.Fou{Family: family, Port: fou4, Protocol: ipip, EncapType: netlink.FOU_ENCAP_DIRECT}),
		do(netlink.Fou{Family: family, Port: fou6, Protocol: ipv6, EncapType: netlink.FOU_ENCAP_DIRECT}))
}

// Option is what the option of GENEVE has.
const Option = 0xC0FFEE07

// metadata is what a route says about the tunnel that its packets take (linux/lwtunnel.h).
type metadata struct {
	src, dst netip.Addr
	sums     bool
}

func (m *metadata) Type() int {
	if m.dst.Is4() {
		return 2 // LWTUNNEL_ENCAP_IP
	}
	return 4 // LWTUNNEL_ENCAP_IP6
}

// Encode writes its attributes: LWTUNNEL_IP_ID 1, DST 2, SRC 3, TTL 4, FLAGS 6, OPTS 8; those for IPv6 have the same
// numbers.
func (m *metadata) Encode() ([]byte, error) {
	var out []byte
	add := func(a *nl.RtAttr) { out = append(out, a.Serialize()...) }
	add(nl.NewRtAttr(1, binary.BigEndian.AppendUint64(nil, vni)))
	add(nl.NewRtAttr(2, m.dst.AsSlice()))
	add(nl.NewRtAttr(3, m.src.AsSlice()))
	add(nl.NewRtAttr(4, []byte{64}))
	flags := uint16(1 << 2) // TUNNEL_KEY
	if m.sums {
		flags |= 1 << 0 // TUNNEL_CSUM
	}
	add(nl.NewRtAttr(6, binary.BigEndian.AppendUint16(nil, flags)))
	opts := nl.NewRtAttr(8|unix.NLA_F_NESTED, nil)
	geneve := opts.AddRtAttr(1|unix.NLA_F_NESTED, nil) // LWTUNNEL_IP_OPTS_GENEVE
	geneve.AddRtAttr(1, binary.BigEndian.AppendUint16(nil, 0xFF00))
	geneve.AddRtAttr(2, []byte{1})
	geneve.AddRtAttr(3, binary.BigEndian.AppendUint32(nil, Option))
	add(opts)
	return out, nil
}

func (*metadata) Decode([]byte) error        { return nil }
func (*metadata) String() string             { return "tunnel" }
func (*metadata) Equal(e netlink.Encap) bool { return false }

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
