//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// MTU is the MTU of all devices.
const MTU = 1500

// The second device is the relay's default route; hosts at further devices have the names host2, host3, …
const defaultDevice = 1

// Config says what the relay's network has to know.
type Config struct {
	Devices  int                // of the relay, at least 2: eth0, eth1, …
	RelayMAC [6]byte            // of the relay's devices
	FarMAC   [6]byte            // of the devices at the other ends
	Hosts    map[netip.Addr]int // the device that leads to an address; all others are reached through eth1
	Routes   bool               // programs ask the relay's kernel for routes
}

// Network is a relay and the hosts around it.
type Network struct {
	relay *host
	far   []*host // by device
	index []int   // by device: its index in the relay's namespace
	ends  []int   // by device: the index of its other end

	sender    *sender
	receivers []*receiver
}

// New makes a network.
func New(c Config) (*Network, error) {
	n := &Network{}
	if err := n.open(c); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Network) open(c Config) (err error) {
	forward := "0" // the kernel looks up routes for programs only if its stack forwards
	if c.Routes {
		forward = "1"
	}
	// Without link-local addresses, no device of the relay sends anything by itself.
	if n.relay, err = newHost("relay", [2]string{"ipv6/conf/default/addr_gen_mode", "1"},
		[2]string{"ipv4/ip_forward", forward}, [2]string{"ipv6/conf/all/forwarding", forward}); err != nil {
		return err
	}
	for device := range max(c.Devices, defaultDevice+1) {
		host, err := newHost(HostName(device), [2]string{"ipv6/conf/all/disable_ipv6", "1"},
			[2]string{"ipv6/conf/default/disable_ipv6", "1"})
		if err != nil {
			return err
		}
		n.far = append(n.far, host)
		if err := n.cable(device, c); err != nil {
			return fmt.Errorf("connect relay and %s: %w", host.name, err)
		}
		r, err := receive(host, n.ends[device])
		if err != nil {
			return fmt.Errorf("listen at %s: %w", host.name, err)
		}
		n.receivers = append(n.receivers, r)
	}
	if err := n.routes(c); err != nil || !c.Routes {
		return err
	}
	return n.closeStack()
}

// closeStack has the relay's stack forward nothing, although forwarding is on: what arrives at a host was sent by
// programs. The policy is for packets that the stack forwards; programs and their route lookups pass by it.
func (n *Network) closeStack() error {
	return n.Do(func() error {
		for _, gateway := range gateways {
			all := &net.IPNet{IP: make(net.IP, gateway.BitLen()/8), Mask: net.CIDRMask(0, gateway.BitLen())}
			err := netlink.XfrmPolicyAdd(&netlink.XfrmPolicy{
				Src: all, Dst: all, Dir: netlink.XFRM_DIR_FWD, Action: netlink.XFRM_POLICY_BLOCK,
			})
			if err != nil && !noIPv6(gateway, err) {
				return fmt.Errorf("block what the relay's stack would forward (xfrm policy): %w", err)
			}
		}
		return nil
	})
}

// DeviceName is the name of one of the relay's devices, HostName that of the host at its other end.
func DeviceName(device int) string { return fmt.Sprintf("eth%d", device) }

// HostName is the name of the host at the other end of a device.
func HostName(device int) string {
	if names := []string{"client", "peer"}; device < len(names) {
		return names[device]
	}
	return fmt.Sprintf("host%d", device)
}

// cable connects the relay to a host.
func (n *Network) cable(device int, c Config) error {
	host, name := n.far[device], DeviceName(device)
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: MTU, HardwareAddr: c.RelayMAC[:]},
		PeerName:  "eth0", PeerHardwareAddr: c.FarMAC[:], PeerMTU: MTU, PeerNamespace: netlink.NsFd(host.ns),
	}
	if err := n.relay.links.LinkAdd(pair); err != nil {
		return err
	}
	near, err := n.relay.links.LinkByName(name)
	if err != nil {
		return err
	}
	end, err := host.links.LinkByName("eth0")
	if err != nil {
		return err
	}
	n.index, n.ends = append(n.index, near.Attrs().Index), append(n.ends, end.Attrs().Index)
	if err := errors.Join(host.links.LinkSetUp(end), n.relay.links.LinkSetUp(near)); err != nil {
		return err
	}
	// Addresses of its own, for packets that the relay's kernel makes.
	for _, a := range []netip.Addr{
		netip.AddrFrom4([4]byte{169, 254, 254, byte(1 + device)}),
		netip.AddrFrom16([16]byte{0: 0xfd, 3: 0xfe, 15: byte(1 + device)}),
	} {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := n.relay.links.AddrAdd(near, addr); err != nil && !noIPv6(a, err) {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

// gateways are the next hop at the other end of each device, of each IP version. Their link-layer address is known.
var gateways = []netip.Addr{
	netip.AddrFrom4([4]byte{169, 254, 254, 254}),
	netip.AddrFrom16([16]byte{0: 0xfd, 3: 0xfe, 14: 1}),
}

// routes makes every address reachable, through the device that leads to it.
func (n *Network) routes(c Config) error {
	for _, gateway := range gateways {
		for _, index := range n.index {
			neighbour := &netlink.Neigh{LinkIndex: index, IP: gateway.AsSlice(), HardwareAddr: c.FarMAC[:],
				State: netlink.NUD_PERMANENT}
			if err := n.relay.links.NeighSet(neighbour); err != nil && !noIPv6(gateway, err) {
				return fmt.Errorf("neighbour %v: %w", gateway, err)
			}
		}
		if err := n.route(netip.PrefixFrom(gateway, 0).Masked(), gateway, defaultDevice); err != nil {
			return err
		}
		for host, device := range c.Hosts {
			if host.Is4() != gateway.Is4() || device == defaultDevice {
				continue
			}
			if err := n.route(netip.PrefixFrom(host, host.BitLen()), gateway, device); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Network) route(to netip.Prefix, gateway netip.Addr, device int) error {
	route := &netlink.Route{
		LinkIndex: n.index[device], Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
	}
	if err := n.relay.links.RouteAdd(route); err != nil && !noIPv6(gateway, err) {
		return fmt.Errorf("route %v: %w", to, err)
	}
	return nil
}

// noIPv6 reports whether an error says that the kernel has no IPv6.
func noIPv6(a netip.Addr, err error) bool {
	return a.Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EACCES))
}

// Do runs f on a thread that is in the relay's namespace.
func (n *Network) Do(f func() error) error { return namespace.OnThread(n.relay.ns, f) }

// Topology draws the hosts and the relay's devices in a line: "client --- eth0 relay eth1 --- peer".
func (n *Network) Topology() string {
	text := HostName(0) + " --- " + DeviceName(0) + " relay " + DeviceName(1) + " --- " + HostName(1)
	for device := 2; device < len(n.far); device++ {
		text += fmt.Sprintf(", relay %s --- %s", DeviceName(device), HostName(device))
	}
	return text
}

// Close ends the traffic and removes the network.
func (n *Network) Close() error {
	var errs []error
	if n.sender != nil {
		errs = append(errs, n.sender.close())
	}
	for _, r := range n.receivers {
		errs = append(errs, r.close())
	}
	for _, host := range slices.Concat(n.far, []*host{n.relay}) {
		if host != nil {
			errs = append(errs, host.close())
		}
	}
	n.sender, n.receivers, n.far, n.relay = nil, nil, nil, nil
	return errors.Join(errs...)
}
