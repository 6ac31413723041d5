package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/doctor"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// deviceKind is a kind of device between the relay and the peer:
//
//	client ——— relay [device] ——— cable ——— [device] peer
//
// Each has a cable of its own. What is made at both ends or at the relay's only, make says.
type deviceKind struct {
	kind string
	bare bool // its packets have no link-layer header
	only int  // the one IP version that it carries; 0: both
	make func(end) (netlink.Link, error)
	more func(*deviceRoute) error // tried with this kind only, or nil; ENOSYS: the kernel lacks something for it
}

// end is an end of a cable, at which a device is made.
type end struct {
	cable *testnet.Dev
	name  string
	relay bool
	n     int // of the cable

	here, there   netip.Addr // underlay addresses of both ends
	here6, there6 netip.Addr
}

func (e end) attrs() netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = e.name
	return a
}

// above has a device made above the cable.
func (e end) above() netlink.LinkAttrs {
	a := e.attrs()
	a.ParentIndex = e.cable.Index
	return a
}

func (e end) port() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: e.cable.Name, Index: e.cable.Index}}
}

// master makes a device of which the relay's end of the cable is a part. The peer has none.
func (e end) master(l netlink.Link) (netlink.Link, error) {
	if !e.relay {
		return e.port(), nil
	}
	if err := netlink.LinkAdd(l); err != nil {
		return nil, err
	}
	return l, errors.Join(
		netlink.LinkSetDown(e.port()), // a bond takes none that is up
		netlink.LinkSetMaster(e.port(), l),
		netlink.LinkSetUp(e.port()),
	)
}

func added(l netlink.Link) (netlink.Link, error) { return l, netlink.LinkAdd(l) }

var deviceKinds = []deviceKind{
	{kind: "cable", make: func(e end) (netlink.Link, error) { return e.port(), nil }, more: (*deviceRoute).policies},
	{kind: "virtio", make: func(e end) (netlink.Link, error) { return e.port(), nil }, more: (*deviceRoute).virtio},
	{kind: "vlan", make: func(e end) (netlink.Link, error) {
		return added(&netlink.Vlan{LinkAttrs: e.above(), VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	}},
	{kind: "macvlan", make: func(e end) (netlink.Link, error) {
		return added(&netlink.Macvlan{LinkAttrs: e.above(), Mode: netlink.MACVLAN_MODE_BRIDGE})
	}},
	{kind: "bond", make: func(e end) (netlink.Link, error) {
		bond := netlink.NewLinkBond(e.attrs())
		bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
		return e.master(bond)
	}},
	{kind: "bridge", make: func(e end) (netlink.Link, error) {
		return e.master(&netlink.Bridge{LinkAttrs: e.attrs()})
	}},
	// The addresses are the cable's; a route of the main table leads into the VRF.
	{kind: "vrf", make: func(e end) (netlink.Link, error) {
		if _, err := e.master(&netlink.Vrf{LinkAttrs: e.attrs(), Table: uint32(1000 + e.n)}); err != nil {
			return nil, err
		}
		return e.port(), nil
	}},
	{kind: "vxlan", make: func(e end) (netlink.Link, error) {
		return added(&netlink.Vxlan{
			LinkAttrs: e.attrs(), VxlanId: 7, VtepDevIndex: e.cable.Index, Port: 4789,
			SrcAddr: e.here.AsSlice(), Group: e.there.AsSlice(), Learning: true,
		})
	}},
	{kind: "geneve", make: func(e end) (netlink.Link, error) {
		return added(&netlink.Geneve{LinkAttrs: e.attrs(), ID: 7, Remote: e.there.AsSlice(), Dport: 6081})
	}},
	{kind: "gretap", make: func(e end) (netlink.Link, error) {
		return added(&netlink.Gretap{LinkAttrs: e.attrs(), Local: e.here.AsSlice(), Remote: e.there.AsSlice()})
	}},
	{kind: "gre", bare: true, make: func(e end) (netlink.Link, error) {
		return added(&netlink.Gretun{LinkAttrs: e.attrs(), Local: e.here.AsSlice(), Remote: e.there.AsSlice()})
	}},
	{kind: "ipip", bare: true, only: 4, make: func(e end) (netlink.Link, error) {
		return added(&netlink.Iptun{LinkAttrs: e.attrs(), Local: e.here.AsSlice(), Remote: e.there.AsSlice()})
	}},
	{kind: "sit", bare: true, only: 6, make: func(e end) (netlink.Link, error) {
		return added(&netlink.Sittun{LinkAttrs: e.attrs(), Local: e.here.AsSlice(), Remote: e.there.AsSlice()})
	}},
	{kind: "ip6tnl", bare: true, make: func(e end) (netlink.Link, error) {
		return added(&netlink.Ip6tnl{LinkAttrs: e.attrs(), Local: e.here6.AsSlice(), Remote: e.there6.AsSlice()})
	}},
}

// jumbo is the MTU of virtio-net devices here: packets of several pages.
const jumbo = 9000

// deviceLab is the relay between the client and all devices of the kinds above.
type deviceLab struct {
	network *testnet.Net
	line    *testnet.Line
	relay   *runtime.Relay
	whole   bool // the kernel has every kind of device
	outer   bool // what comes in by a tunnel without a link layer begins with the outer header (up to Linux 5.13)
	roomy   bool // a virtio-net device leaves room in front of all packets (up to Linux 5.12)
	ports   uint16
}

// checkDevices sends packets through devices of each kind, and back.
func checkDevices(rep *reporter, dir string, whole bool) {
	var r *relay
	var lab *deviceLab
	ok := rep.check(dir, "devices", func() (_ string, err error) {
		if r, err = read(dir); err != nil {
			return "", err
		}
		lab, err = r.deviceLab(whole)
		return "", err
	})
	if lab != nil {
		defer func() { rep.check(dir, "devices", func() (string, error) { return "", lab.close() }) }()
	}
	if !ok {
		return
	}
	for i := range deviceKinds {
		rep.check(dir, "devices", func() (string, error) {
			note, err := lab.try(&deviceKinds[i], i+1)
			if err != nil {
				err = fmt.Errorf("%s: %w; %s", deviceKinds[i].kind, err, lab.counts())
			}
			return note, err
		})
	}
}

func (r *relay) deviceLab(whole bool) (lab *deviceLab, err error) {
	_, major, minor := doctor.Release()
	before := func(n int) bool { return major < 5 || major == 5 && minor < n }
	lab = &deviceLab{whole: whole, outer: before(14), roomy: before(13), ports: 100}
	if lab.network, err = testnet.New(); err != nil {
		return nil, err
	}
	if lab.line, err = lab.network.Line(); err != nil {
		return lab, err
	}
	// So that the client can send more than a device takes.
	if err := errors.Join(
		lab.line.ClientDev.SetMTU(jumbo+100), lab.line.RelayIn.SetMTU(jumbo+100),
		lab.line.Relay.Sysctl("net/ipv4/conf/all/arp_ignore", "1"), // a macvlan's address is not its cable's
	); err != nil {
		return lab, err
	}
	desc := glue.Desc(r.plan)
	return lab, lab.line.Relay.Do(func() (err error) {
		opt := runtime.Options{Lease: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		if lab.relay, err = runtime.Load(&desc, r.object, opt); err != nil {
			return err
		}
		return lab.relay.Program("frames").Attach(lab.line.RelayIn.Name)
	})
}

func (lab *deviceLab) close() error {
	var errs []error
	if lab.relay != nil {
		errs = append(errs, lab.relay.Close())
	}
	return errors.Join(append(errs, lab.network.Close())...)
}

// counts says what the programs have counted.
func (lab *deviceLab) counts() string {
	var text []string
	for _, name := range []string{"frames", "bare", "streams"} {
		p := lab.relay.Program(name)
		all, err := p.Counts()
		if err != nil {
			return err.Error()
		}
		for i, c := range all {
			if c.Packets > 0 {
				text = append(text, fmt.Sprintf("%s: %d %s", name, c.Packets, p.Desc().Reasons[i].Name))
			}
		}
	}
	return strings.Join(text, ", ")
}

// try makes a device of a kind at each end of a cable, and sends through it.
func (lab *deviceLab) try(k *deviceKind, n int) (string, error) {
	route, err := lab.build(k, n)
	if errors.Is(err, unix.EOPNOTSUPP) && !lab.whole {
		return "this kernel has no device " + k.kind, nil
	}
	if err != nil {
		return "", err
	}
	program := "frames"
	if k.bare {
		program = "bare"
	}
	if err := lab.relay.Program(program).Attach(route.out.Name); err != nil {
		return "", err
	}
	// Who completes the checksum: the client, or the relay's host at last.
	for _, software := range []bool{false, true} {
		if err := errors.Join(
			offloads.TxChecksum(lab.line.ClientDev, software), offloads.TxChecksum(route.cable, !software),
			offloads.TxChecksum(lab.line.RelayIn, !software),
		); err != nil {
			return "", err
		}
		for _, c := range []struct{ client, peer int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
			if k.only != 0 && c.peer != k.only {
				continue
			}
			err := route.talk(c.client, c.peer)
			if err == nil && c.client == c.peer && software {
				err = route.super(c.client)
			}
			if err == nil && c.client == 6 && c.peer == 4 {
				err = route.tail()
			}
			if err != nil {
				return "", fmt.Errorf("client IPv%d, peer IPv%d, checksums by the client %v: %w",
					c.client, c.peer, !software, err)
			}
		}
	}
	note := k.kind
	if k.more != nil {
		err := k.more(route)
		if errors.Is(err, unix.ENOSYS) && !lab.whole {
			note, err = fmt.Sprintf("%s (%v)", note, err), nil
		}
		if err != nil {
			return "", err
		}
	}
	return note, route.sizes(k)
}

// build makes the cable and the devices of a kind, with addresses.
func (lab *deviceLab) build(k *deviceKind, n int) (*deviceRoute, error) {
	here, there, err := lab.cable(k, n)
	if err != nil {
		return nil, err
	}
	at := func(format string, host int) string { return fmt.Sprintf(format, n, host) }
	route := &deviceRoute{deviceLab: lab, cable: here, far: there, name: k.kind, deaf: k.bare && lab.outer}
	for host, dev := range []*testnet.Dev{here, there} {
		e := end{cable: dev, name: fmt.Sprintf("w%d", n), relay: host == 0, n: n}
		e.here = netip.MustParseAddr(at("198.18.%d.%d", host+1))
		e.there = netip.MustParseAddr(at("198.18.%d.%d", 2-host))
		e.here6 = netip.MustParseAddr(at("2001:db8:f%d::%d", host+1))
		e.there6 = netip.MustParseAddr(at("2001:db8:f%d::%d", 2-host))
		var made *testnet.Dev
		if err := errors.Join(dev.AddAddr(e.here.String()+"/24"), dev.AddAddr(e.here6.String()+"/64")); err != nil {
			return nil, err
		}
		if err := dev.Host.Do(func() (err error) { made, err = e.build(k); return err }); err != nil {
			return nil, fmt.Errorf("make a device: %w", err)
		}
		v4, v6 := at("10.0.%d.%d", host+1), at("2001:db8:a%d::%d", host+1)
		if err := errors.Join(made.AddAddr(v4+"/24"), made.AddAddr(v6+"/64")); err != nil {
			return nil, err
		}
		addrs := testnet.Addrs{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
		if host == 0 {
			route.out, route.local = made, addrs
		} else {
			route.peer = addrs
		}
	}
	if k.kind == "vrf" {
		return route, lab.leak(fmt.Sprintf("w%d", n), route.local)
	}
	return route, nil
}

// cable joins the relay and the peer.
func (lab *deviceLab) cable(k *deviceKind, n int) (here, there *testnet.Dev, err error) {
	name := fmt.Sprintf("c%d", n)
	if k.kind != "virtio" {
		return lab.network.Join(lab.line.Relay, name, lab.line.Peer, name)
	}
	if here, err = take(testkernel.WireMACs[0], lab.line.Relay, name); err != nil {
		return nil, nil, err
	}
	if there, err = take(testkernel.WireMACs[1], lab.line.Peer, name); err != nil {
		return nil, nil, err
	}
	return here, there, errors.Join(here.SetMTU(jumbo), there.SetMTU(jumbo))
}

// take moves a device of the machine to a host. The error is EOPNOTSUPP if the machine has none.
func take(mac string, host *testnet.Host, name string) (*testnet.Dev, error) {
	machine, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer machine.Close()
	all, err := machine.LinkList()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(l netlink.Link) bool { return l.Attrs().HardwareAddr.String() == mac })
	if i < 0 {
		return nil, fmt.Errorf("no device %s: %w", mac, unix.EOPNOTSUPP)
	}
	if err := errors.Join(machine.LinkSetDown(all[i]), machine.LinkSetName(all[i], name)); err != nil {
		return nil, err
	}
	var dev *testnet.Dev
	err = host.Do(func() error {
		if err := machine.LinkSetNsPid(all[i], unix.Gettid()); err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a := l.Attrs()
		dev = &testnet.Dev{Host: host, Name: name, Index: a.Index, MAC: a.HardwareAddr}
		return netlink.LinkSetUp(l)
	})
	return dev, err
}

// build makes the device of one end, in its namespace.
func (e end) build(k *deviceKind) (*testnet.Dev, error) {
	l, err := k.make(e)
	if err != nil {
		return nil, err
	}
	if l, err = netlink.LinkByName(l.Attrs().Name); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, err
	}
	a := l.Attrs()
	return &testnet.Dev{Host: e.cable.Host, Name: a.Name, Index: a.Index, MAC: a.HardwareAddr}, nil
}

// leak has the main table lead to networks in a VRF.
func (lab *deviceLab) leak(vrf string, local testnet.Addrs) error {
	return lab.line.Relay.Do(func() error {
		l, err := netlink.LinkByName(vrf)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for prefix, bits := range map[netip.Addr]int{local.V4: 24, local.V6: 64} {
			addr := netip.PrefixFrom(prefix, bits).Masked().Addr()
			network := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: network}); err != nil {
				return err
			}
		}
		return nil
	})
}
