package routes

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// route is what the kernel says of a route.
type route struct {
	kind    uint8 // unix.RTN_UNICAST, …
	ifindex int
	mtu     int // 0: the device's
	gateway netip.Addr
	encap   bool // it encapsulates packets
}

// Resolve finds how packets leave, and through which neighbour.
func (rt *Resolver) Resolve(t Traffic) (Hop, Neighbour) {
	if rt.undecided(t) {
		return Hop{State: abi.HopRule}, Neighbour{}
	}
	found, state := rt.route(t, 0)
	var a *netlink.LinkAttrs
	for vrfs := 0; ; vrfs++ {
		if state != abi.HopNeighbour {
			return Hop{State: state}, Neighbour{}
		}
		if rt.protects(t, found.ifindex) {
			return Hop{State: abi.HopXfrm}, Neighbour{}
		}
		link, err := rt.link(found.ifindex)
		if err != nil {
			return Hop{}, Neighbour{}
		}
		a = link.Attrs()
		if link.Type() != "vrf" || vrfs > 0 {
			break
		}
		// A route into a VRF leads to the device that stands for it, whose MTU is that of nothing. The VRF's own
		// table says where packets leave.
		found, state = rt.route(t, found.ifindex)
	}
	h := Hop{State: abi.HopNeighbour, Ifindex: found.ifindex, MTU: a.MTU}
	// To resolve a neighbour, the kernel looks up the route again, without ports: it may find another gateway.
	t.Flow.FromPort, t.Flow.ToPort = 0, 0
	if rt.undecided(t) {
		h.State = abi.HopRule
	}
	if found.mtu > 0 {
		h.MTU = found.mtu
	}
	if !HasEthernet(a) {
		// A tunnel to one end: the kernel takes the link-layer header off. One to many ends has neighbours, too, which
		// are the kernel's business.
		if len(a.HardwareAddr) == 0 || a.RawFlags&unix.IFF_POINTOPOINT != 0 {
			h.State = abi.HopDirect
		}
		return h, Neighbour{}
	}
	via := Neighbour{found.ifindex, t.To}
	if found.gateway.IsValid() {
		via.Addr = found.gateway
	}
	copy(h.Src[:], a.HardwareAddr)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if n, ok := rt.neigh[via]; ok {
		h.State, h.Dst = abi.HopDirect, n.mac
	}
	return h, via
}

// route asks the kernel for a route, in a VRF if one is given by the index of its device. The
// state is HopNeighbour, or says why there is none to use.
func (rt *Resolver) route(t Traffic, vrf int) (route, abi.HopState) {
	found, err := rt.lookUp(t, vrf)
	if t.From.IsValid() && err != nil && !rt.Local(t.From) {
		// The kernel refuses a source that isn't one of this host's (a floating address, say). The route is the same
		// without it.
		t.From = netip.Addr{}
		found, err = rt.lookUp(t, vrf)
	}
	switch {
	case errors.Is(err, unix.EINVAL): // so IPv4 and IPv6 say blackhole
		return route{}, abi.HopBlackhole
	case errors.Is(err, unix.EACCES):
		return route{}, abi.HopProhibit
	case errors.Is(err, unix.EHOSTUNREACH):
		return route{}, abi.HopUnreachable
	case err != nil:
		return route{}, abi.HopNone
	case found.encap:
		return found, abi.HopEncap
	}
	switch found.kind {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST, unix.RTN_BROADCAST:
		return found, abi.HopLocal
	case unix.RTN_BLACKHOLE:
		return found, abi.HopBlackhole
	case unix.RTN_PROHIBIT:
		return found, abi.HopProhibit
	case unix.RTN_UNICAST, unix.RTN_MULTICAST:
		return found, abi.HopNeighbour
	case unix.RTN_UNREACHABLE:
		return found, abi.HopUnreachable
	}
	return found, abi.HopNone
}

// Local reports whether an address is one of this host's.
func (rt *Resolver) Local(addr netip.Addr) bool {
	found, err := rt.lookUp(Traffic{To: addr}, 0)
	return err == nil && found.kind == unix.RTN_LOCAL
}

// lookUp asks the kernel for the route of packets that this host sends. (The library's request has no place for a
// protocol and ports.)
func (rt *Resolver) lookUp(t Traffic, vrf int) (found route, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	msg := &nl.RtMsg{}
	msg.Family, msg.Dst_len, msg.Flags = unix.AF_INET6, uint8(t.To.BitLen()), unix.RTM_F_LOOKUP_TABLE
	if t.To.Is4() {
		msg.Family = unix.AF_INET
	}
	if t.From.IsValid() {
		msg.Src_len = uint8(t.From.BitLen())
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, t.To.AsSlice()))
	if t.From.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_SRC, t.From.AsSlice()))
	}
	if vrf != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(vrf))))
	}
	if t.Flow.Proto != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_IP_PROTO, []byte{t.Flow.Proto}))
	}
	if t.Flow.FromPort != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, t.Flow.FromPort)))
	}
	if t.Flow.ToPort != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, t.Flow.ToPort)))
	}
	rt.Requests.Add(1)
	err = rt.with(func(*netlink.Handle) error {
		list, err := rt.execute(req, unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		if err != nil {
			return err
		}
		if len(list) == 0 || len(list[0]) < unix.SizeofRtMsg {
			return errors.New("the kernel's answer has no route")
		}
		found = parseRoute(list[0])
		return nil
	})
	return found, err
}

// parseRoute reads a route's message.
func parseRoute(b []byte) (r route) {
	r.kind = b[7]
	for kind, v := range attributes(b[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_OIF:
			r.ifindex = int(uint32At(v))
		case unix.RTA_GATEWAY:
			r.gateway = address(v)
		case unix.RTA_VIA: // a gateway of the other family, which the message names
			if len(v) > 2 {
				r.gateway = address(v[2:])
			}
		case unix.RTA_ENCAP_TYPE:
			r.encap = true
		case unix.RTA_METRICS:
			for kind, v := range attributes(v) {
				if kind == unix.RTAX_MTU {
					r.mtu = int(uint32At(v))
				}
			}
		}
	}
	return r
}

// address reads an address; the unspecified one is none.
func address(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}

// execute sends a request by the resolver's own socket of a netlink protocol, and returns the answers of a kind. It is
// called through with.
func (rt *Resolver) execute(req *nl.NetlinkRequest, protocol int, kind uint16) ([][]byte, error) {
	req.Sockets = rt.sockets
	return req.Execute(protocol, kind)
}
