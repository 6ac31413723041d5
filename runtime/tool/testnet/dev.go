package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dev is a network device of a host: one end of a cable.
type Dev struct {
	Host  *Host
	Name  string
	Index int
	MAC   net.HardwareAddr
}

// Join connects two hosts by a cable and returns its two ends, up and without addresses.
func (n *Net) Join(a *Host, aName string, b *Host, bName string) (left, right *Dev, err error) {
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: aName},
		PeerName:      bName,
		PeerNamespace: netlink.NsFd(b.ns),
	}
	if err := a.links.LinkAdd(pair); err != nil {
		return nil, nil, fmt.Errorf("joining %s and %s: %w", a.Name, b.Name, err)
	}
	if left, err = a.up(aName); err != nil {
		return nil, nil, err
	}
	if right, err = b.up(bName); err != nil {
		return nil, nil, err
	}
	return left, right, errors.Join(left.Ready(), right.Ready(), n.noises(left, right))
}

// Ready waits until the kernel has noticed that both ends of the device's cable are up: before, it drops what the
// device is to send.
func (d *Dev) Ready() (err error) {
	var link netlink.Link
	waited := Until(2*time.Second, "the device can send", func() bool {
		link, err = d.Host.links.LinkByIndex(d.Index)
		return err != nil || link.Attrs().OperState == netlink.OperUp
	})
	return d.wrap("state", errors.Join(err, waited))
}

func (h *Host) up(name string) (*Dev, error) {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", h.Name, name, err)
	}
	if err := h.links.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", h.Name, name, err)
	}
	attrs := link.Attrs()
	return &Dev{Host: h, Name: name, Index: attrs.Index, MAC: attrs.HardwareAddr}, nil
}

func (d *Dev) link() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: d.Name, Index: d.Index}}
}

func (d *Dev) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s of %s: %w", what, d.Name, d.Host.Name, err)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// AddAddr gives the device an address with the length of its network, such as "192.0.2.1/24". What is sent to it when
// AddAddr returns arrives.
func (d *Dev) AddAddr(prefix string) error {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err = d.Host.links.AddrAdd(d.link(), addr); err != nil || p.Addr().Is4() {
		return d.wrap("address "+prefix, err)
	}
	// The kernel adds the local route of an IPv6 address later, in a worker that needs the lock of all networks.
	waited := Until(2*time.Second, "the address is local", func() bool {
		local := &netlink.Route{Type: unix.RTN_LOCAL, Dst: ipNet(netip.PrefixFrom(p.Addr(), 128))}
		const by = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_TYPE | netlink.RT_FILTER_DST // of a VRF, too
		var routes []netlink.Route
		routes, err = d.Host.links.RouteListFiltered(netlink.FAMILY_V6, local, by)
		return len(routes) > 0
	})
	if waited != nil {
		return d.wrap("address "+prefix, errors.Join(waited, err))
	}
	return nil
}

// AddRoute sends a network, such as "0.0.0.0/0", through the router at via, which is in a network of the device.
func (d *Dev) AddRoute(prefix, via string) error {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return err
	}
	router, err := netip.ParseAddr(via)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: d.Index, Dst: ipNet(p), Gw: router.AsSlice()}
	return d.wrap("route "+prefix, d.Host.links.RouteAdd(route))
}

// AddNeighbour adds a permanent neighbour, whose address needs no resolution.
func (d *Dev) AddNeighbour(addr netip.Addr, mac net.HardwareAddr) error {
	return d.wrap("neighbour", d.Host.links.NeighSet(&netlink.Neigh{
		LinkIndex: d.Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT,
	}))
}

// ForgetNeighbours removes all neighbours of the device, so that the next packet has to resolve its own.
func (d *Dev) ForgetNeighbours() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := d.Host.links.NeighList(d.Index, family)
		if err != nil {
			return d.wrap("neighbours", err)
		}
		for i := range list {
			if err := d.Host.links.NeighDel(&list[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				return d.wrap("neighbours", err)
			}
		}
	}
	return nil
}

// SetMTU sets the largest packet of the device, in bytes from the IP header on.
func (d *Dev) SetMTU(mtu int) error { return d.wrap("MTU", d.Host.links.LinkSetMTU(d.link(), mtu)) }

// SetGSOMaxSize sets how large a GSO packet may be that the device takes whole, in bytes.
func (d *Dev) SetGSOMaxSize(size int) error {
	return d.wrap("GSO size", errors.Join(d.Host.links.LinkSetGSOMaxSize(d.link(), size),
		d.Host.links.LinkSetGSOIPv4MaxSize(d.link(), size)))
}

// SetRate limits what the device sends, in bits per second, link-layer headers included (tbf). So many bytes may wait;
// further ones are refused, and so is a packet of more than 1,550 bytes and 10 ms of the rate. After a pause, or if
// the kernel didn't get the processor for a while, so much is sent at once.
func (d *Dev) SetRate(bits, queue int) error {
	rate := uint64(bits) / 8
	burst := max(uint32(rate/100), 1550)
	return d.wrap("rate", d.Host.links.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: d.Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
		},
		Rate: rate, Buffer: netlink.Xmittime(rate, burst), Limit: uint32(queue),
	}))
}

// SetUp turns the device on or off.
func (d *Dev) SetUp(on bool) error {
	if on {
		return d.wrap("up", d.Host.links.LinkSetUp(d.link()))
	}
	return d.wrap("down", d.Host.links.LinkSetDown(d.link()))
}

// SetReceiveCPU has the packets that the device receives handled on one processor (receive packet steering). Without it
// a veth's packets are handled on the sender's. A negative cpu turns steering off.
func (d *Dev) SetReceiveCPU(cpu int) error {
	mask := 0
	if cpu >= 0 {
		mask = 1 << cpu
	}
	// /sys shows the devices of the namespace it was mounted in, so this is written by a program that has its own.
	return d.Host.Run("sh", "-c", fmt.Sprintf("echo %x > /sys/class/net/%s/queues/rx-0/rps_cpus", mask, d.Name))
}

// SetThreaded has NAPI poll the device, if it does, in threads of the kernel instead of where its packets were sent.
func (d *Dev) SetThreaded() error {
	return d.Host.Run("sh", "-c", fmt.Sprintf("echo 1 > /sys/class/net/%s/threaded", d.Name))
}

// Received returns the number of packets that the device has received since it was made.
func (d *Dev) Received() (uint64, error) {
	link, err := d.Host.links.LinkByIndex(d.Index)
	if err != nil {
		return 0, d.wrap("statistics", err)
	}
	return link.Attrs().Statistics.RxPackets, nil
}
