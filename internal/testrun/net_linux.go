package testrun

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Net is a network namespace whose routes are known, for programs that look routes up in the kernel, and whose devices'
// packets are taken (see Capture). The thread that made it is in it until Leave.
type Net struct {
	was     netns.NsHandle
	own     netns.NsHandle
	plain   bool
	host    [6]byte  // the link-layer address of the device that packets come to
	zeroth  bool     // the lowest address of an IPv4 network is a broadcast address, as it was before Linux 5.14
	out     uint32   // index of the device that everything leads over
	capture *capture // nil: copies are not taken
}

// Everything leads over one device to one neighbour; in a network that is not plain, some destinations have other ends.
var (
	deviceAddrs = []netip.Prefix{netip.MustParsePrefix("10.254.0.1/24"), netip.MustParsePrefix("fd00:fe::1/64")}
	neighbours  = []netip.Addr{netip.MustParseAddr("10.254.0.2"), netip.MustParseAddr("fd00:fe::2")}
	// no neighbour entry
	unknown = []netip.Addr{netip.MustParseAddr("10.254.0.3"), netip.MustParseAddr("fd00:fe::3")}
	ends    = []struct {
		to    netip.Prefix
		state abi.HopState
		kind  int
	}{
		{netip.MustParsePrefix("203.0.113.0/25"), ir.HopUnreachable, syscall.RTN_UNREACHABLE},
		{netip.MustParsePrefix("198.51.100.64/26"), ir.HopBlackhole, syscall.RTN_BLACKHOLE},
		{netip.MustParsePrefix("192.0.2.128/25"), ir.HopProhibit, syscall.RTN_PROHIBIT},
		{netip.MustParsePrefix("10.255.0.0/16"), ir.HopNeighbour, syscall.RTN_UNICAST},
		{netip.MustParsePrefix("2001:db8:1::/48"), ir.HopUnreachable, syscall.RTN_UNREACHABLE},
		{netip.MustParsePrefix("2001:db8:2::/48"), ir.HopBlackhole, syscall.RTN_BLACKHOLE},
		{netip.MustParsePrefix("2001:db8:3::/48"), ir.HopProhibit, syscall.RTN_PROHIBIT},
		{netip.MustParsePrefix("2001:db8:ffff::/48"), ir.HopNeighbour, syscall.RTN_UNICAST},
	}
)

const deviceMTU = 1500

// Enter makes a network for the programs of a plan and moves the thread into it, which has to be pinned. Plain says
// that all destinations are reachable.
func Enter(plan *ir.Plan, plain bool) (*Net, error) {
	was, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("find the network namespace: %w", err)
	}
	n := &Net{was: was, plain: plain}
	if n.own, err = namespace.New(func() error { return nil }); err != nil {
		return nil, errors.Join(fmt.Errorf("make a network namespace: %w", err), was.Close())
	}
	if err = n.Back(); err == nil {
		err = n.Host(packet.DefaultDestination)
	}
	if err == nil && (UsesRoutes(plan) || UsesCopies(plan)) {
		err = n.Devices()
	}
	if err != nil {
		return nil, errors.Join(err, n.Leave())
	}
	return n, nil
}

// Host gives the device that packets come to (lo) a link-layer address, which makes frames to it PACKET_HOST. The
// kernel takes unicast addresses other than 0.
func (n *Net) Host(addr [6]byte) error {
	if addr == n.host {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	for _, r := range []struct {
		what    string
		request uintptr
		addr    [6]byte
	}{
		{"address", unix.SIOCSIFHWADDR, addr},
		{"broadcast address", unix.SIOCSIFHWBROADCAST, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
	} {
		var req struct { // struct ifreq
			name   [unix.IFNAMSIZ]byte
			family uint16
			addr   [22]byte
		}
		copy(req.name[:], "lo")
		copy(req.addr[:], r.addr[:])
		req.family = unix.ARPHRD_LOOPBACK
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), r.request,
			uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("give the device the %s %x: %w", r.what, r.addr, errno)
		}
	}
	n.host = addr
	return nil
}

// Out is the index of the device that everything leads over.
func (n *Net) Out() uint32 { return n.out }

// Leave moves the thread back; the network ends with that.
func (n *Net) Leave() error {
	if n.capture != nil {
		if err := n.capture.close(); err != nil {
			return fmt.Errorf("end the capture: %w", err)
		}
	}
	if err := n.Away(); err != nil {
		return err
	}
	return errors.Join(n.was.Close(), n.own.Close())
}

// Away moves the thread back for a while; the network stays.
func (n *Net) Away() error {
	if err := netns.Set(n.was); err != nil {
		return fmt.Errorf("go back to the network namespace: %w", err)
	}
	return nil
}

// Back moves the thread, which has to be pinned, into the network again.
func (n *Net) Back() error {
	if err := netns.Set(n.own); err != nil {
		return fmt.Errorf("go into the test's network namespace: %w", err)
	}
	return nil
}

// Devices makes the device that everything leads over, if there is none yet.
func (n *Net) Devices() error {
	if n.out != 0 {
		return nil
	}
	for _, path := range []string{"/proc/sys/net/ipv4/conf/all/forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("switch forwarding on: %w", err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	dev := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "fr0", MTU: deviceMTU, HardwareAddr: packet.DefaultSource[:]},
		PeerName:  "fr1",
	}
	if err := netlink.LinkAdd(dev); err != nil {
		return fmt.Errorf("make a device: %w", err)
	}
	peer, err := netlink.LinkByName("fr1")
	if err != nil {
		return fmt.Errorf("find fr1: %w", err)
	}
	for _, l := range []netlink.Link{lo, dev, peer} {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
		}
	}
	index := dev.Attrs().Index
	n.out = uint32(index)
	for i, p := range deviceAddrs {
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: syscall.IFA_F_NODAD}
		if err := netlink.AddrAdd(dev, addr); err != nil {
			return fmt.Errorf("give the device %v: %w", p, err)
		}
		neigh := &netlink.Neigh{
			LinkIndex: index, State: netlink.NUD_PERMANENT, IP: neighbours[i].AsSlice(),
			HardwareAddr: packet.DefaultDestination[:],
		}
		if err := netlink.NeighSet(neigh); err != nil {
			return fmt.Errorf("know neighbour %v: %w", neighbours[i], err)
		}
		route := &netlink.Route{
			LinkIndex: index, Gw: neighbours[i].AsSlice(), Dst: ipNet(netip.PrefixFrom(p.Addr(), 0).Masked()),
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route everything to %v: %w", neighbours[i], err)
		}
	}
	zeroth, err := netlink.RouteGet(deviceAddrs[0].Masked().Addr().AsSlice())
	if err != nil {
		return fmt.Errorf("ask for the route to %v: %w", deviceAddrs[0].Masked().Addr(), err)
	}
	n.zeroth = zeroth[0].Type == syscall.RTN_BROADCAST
	if n.plain {
		return nil
	}
	for _, e := range ends {
		route := &netlink.Route{Dst: ipNet(e.to), Type: e.kind}
		if e.kind == syscall.RTN_UNICAST {
			route.LinkIndex, route.Gw = index, unknown[0].AsSlice()
			if e.to.Addr().Is6() {
				route.Gw = unknown[1].AsSlice()
			}
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route %v: %w", e.to, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Route is what a lookup in the network finds, as the model's world needs it.
//
// bpf_ipv6_fib_lookup (net/core/filter.c) takes addresses that never leave a link for none to forward, source or
// destination.
func (n *Net) Route(from, to netip.Addr) sim.Hop {
	a := to.Unmap()
	strict := func(a netip.Addr) bool {
		return a.Is6() && (a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback())
	}
	h := sim.Hop{
		Ifindex: 1, MTU: deviceMTU, State: ir.HopDirect, Src: packet.DefaultSource, Dst: packet.DefaultDestination,
		NextHop: to,
	}
	if strict(a) || strict(from.Unmap()) || a.IsLoopback() {
		h.State = ir.HopLocal
		return h
	}
	for i, p := range deviceAddrs {
		switch {
		case !p.Contains(a):
		case a == p.Addr() || a == p.Masked().Addr() && (a.Is6() || n.zeroth) ||
			a == netip.AddrFrom4([4]byte{10, 254, 0, 255}):
			h.State = ir.HopLocal
			return h
		case a != neighbours[i]:
			h.State = ir.HopNeighbour
			return h
		}
	}
	for _, e := range ends {
		if !n.plain && e.to.Contains(a) {
			h.State = e.state
		}
	}
	return h
}
