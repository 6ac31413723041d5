// Package routes asks the kernel by netlink how packets leave this host, and follows what changes that: routes, rules,
// links, addresses and neighbours. Exceptions to routes, which the kernel doesn't announce, can be listed.
package routes

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
)

// Resolver answers how packets leave this host, and reports when the answers may have changed. It asks the kernel's
// routing tables for each question; of neighbours it keeps a copy, since they change often and each change concerns
// few. All methods may be called at any time by any goroutine.
type Resolver struct {
	log     *slog.Logger
	ask     *netlink.Handle
	asking  sync.RWMutex // held for reading while ask is used, since closing it is not safe meanwhile
	events  *nl.NetlinkSocket
	changed chan struct{} // capacity 1: something is in dirty or all

	mu     sync.Mutex
	over   bool
	neigh  map[Neighbour]entry // those that can be reached
	links  map[int]netlink.Link
	all    bool               // routes, rules, links or addresses changed
	dirty  map[Neighbour]bool // neighbours that changed
	useErr bool               // probing failed before

	// Requests for routes that were sent to the kernel.
	Requests atomic.Uint64
}

// Hop says how packets leave towards an address.
type Hop struct {
	State   abi.HopState
	Ifindex int
	MTU     int // in bytes, of the device or the route
	Dst     [6]byte
	Src     [6]byte
}

// Neighbour is the address of a neighbour on a link. The zero value is none.
type Neighbour struct {
	Ifindex int
	Addr    netip.Addr
}

// entry is what is known of a neighbour.
type entry struct {
	mac    [6]byte
	static bool // the kernel keeps it without our help
}

// announcements are the groups of netlink messages after which a next hop may be another.
var announcements = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

// usable are the states of a neighbour whose address can be written into a frame.
const usable = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_STALE |
	netlink.NUD_DELAY | netlink.NUD_PROBE

// errClosed says that the resolver is closed.
var errClosed = errors.New("the resolver of routes is closed")

// Open opens a resolver's sockets in the network namespace of the calling thread. Changes are followed by Listen.
func Open(log *slog.Logger) (*Resolver, error) {
	rt := &Resolver{
		log: log, changed: make(chan struct{}, 1),
		neigh: map[Neighbour]entry{}, links: map[int]netlink.Link{}, dirty: map[Neighbour]bool{},
	}
	var err error
	if rt.ask, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	// First listen, then read: a change in between is seen twice, not missed.
	if rt.events, err = nl.Subscribe(unix.NETLINK_ROUTE, announcements...); err != nil {
		rt.ask.Close()
		return nil, err
	}
	// A burst that doesn't fit costs a resync and is no error, so neither is a small buffer.
	_ = rt.events.SetReceiveBufferSize(1<<20, true)
	if err := rt.readNeighbours(); err != nil {
		rt.Close()
		return nil, err
	}
	return rt, nil
}

// Close ends Listen; what is asked from now on is answered as unreachable.
func (rt *Resolver) Close() {
	rt.mu.Lock()
	over := rt.over
	rt.over = true
	rt.mu.Unlock()
	if !over {
		rt.events.Close()
		rt.asking.Lock()
		defer rt.asking.Unlock()
		rt.ask.Close()
		rt.ask = nil
	}
}

// with lets f ask the kernel, unless the resolver is closed.
func (rt *Resolver) with(f func(*netlink.Handle) error) error {
	rt.asking.RLock()
	defer rt.asking.RUnlock()
	if rt.ask == nil {
		return errClosed
	}
	return f(rt.ask)
}

// Listen reads announcements until Close.
func (rt *Resolver) Listen() {
	for {
		msgs, _, err := rt.events.Receive()
		if err != nil {
			rt.mu.Lock()
			over := rt.over
			rt.mu.Unlock()
			switch {
			case over || errors.Is(err, unix.EBADF):
				return
			case errors.Is(err, unix.ENOBUFS):
				if err := rt.readNeighbours(); err != nil {
					rt.log.Warn("neighbours can't be read", "error", err)
				}
				rt.Kick(true)
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			default:
				rt.log.Error("changes of routes can't be followed any more", "error", err)
				return
			}
			continue
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
				if n, err := netlink.NeighDeserialize(m.Data); err == nil &&
					rt.note(n, m.Header.Type == unix.RTM_DELNEIGH) {
					rt.Kick(false)
				}
			default:
				rt.Kick(true)
			}
		}
	}
}

// Kick makes Changed ready: all says that everything may have changed; otherwise, nothing but what is noted already.
func (rt *Resolver) Kick(all bool) {
	rt.mu.Lock()
	if all {
		rt.all = true
		clear(rt.links)
	}
	rt.mu.Unlock()
	select {
	case rt.changed <- struct{}{}:
	default:
	}
}

// Changed is ready when something has changed since Changes was called.
func (rt *Resolver) Changed() <-chan struct{} { return rt.changed }

// AtRest reports whether nothing has changed since Changes was called.
func (rt *Resolver) AtRest() bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return !rt.all && len(rt.dirty) == 0
}

// Changes returns what has changed since the last call.
func (rt *Resolver) Changes() (all bool, some map[Neighbour]bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	all, some = rt.all, rt.dirty
	rt.all, rt.dirty = false, map[Neighbour]bool{}
	return all, some
}

// note stores what the kernel says about a neighbour, and says whether that is news.
func (rt *Resolver) note(n *netlink.Neigh, gone bool) bool {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Flags&netlink.NTF_PROXY != 0 || n.Family != unix.AF_INET && n.Family != unix.AF_INET6 {
		return false
	}
	key := Neighbour{n.LinkIndex, addr.Unmap()}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	old, had := rt.neigh[key]
	if gone || n.State&usable == 0 || len(n.HardwareAddr) != 6 {
		delete(rt.neigh, key)
		if had {
			rt.dirty[key] = true
		}
		return had
	}
	static := n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || n.Flags&netlink.NTF_EXT_LEARNED != 0
	now := entry{mac: [6]byte(n.HardwareAddr), static: static}
	rt.neigh[key] = now
	if had && old.mac == now.mac {
		return false
	}
	rt.dirty[key] = true
	return true
}

// readNeighbours replaces the copy of the neighbours.
func (rt *Resolver) readNeighbours() error {
	var list []netlink.Neigh
	err := rt.with(func(ask *netlink.Handle) (err error) {
		list, err = nldump.List(func() ([]netlink.Neigh, error) { return ask.NeighList(0, netlink.FAMILY_ALL) })
		return err
	})
	if err != nil {
		return err
	}
	rt.mu.Lock()
	clear(rt.neigh)
	rt.mu.Unlock()
	for i := range list {
		rt.note(&list[i], false)
	}
	return nil
}

// Probe makes the kernel find out about a neighbour, or confirm what it knows, as sending a packet would. Frames that a
// program writes itself don't do that, so neighbours in use would be forgotten. A permanent neighbour must be left
// alone: since Linux 5.16 the request would make it an ordinary one.
func (rt *Resolver) Probe(via Neighbour) {
	rt.mu.Lock()
	skip := !via.Addr.IsValid() || rt.neigh[via].static
	rt.mu.Unlock()
	if skip {
		return
	}
	n := &netlink.Neigh{LinkIndex: via.Ifindex, IP: via.Addr.AsSlice(), Flags: netlink.NTF_USE, State: netlink.NUD_NONE}
	err := rt.with(func(ask *netlink.Handle) error { return ask.NeighSet(n) })
	rt.mu.Lock()
	defer rt.mu.Unlock()
	// The device may be gone or down; the kernel's own announcement of that follows.
	failed := err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETDOWN) &&
		!errors.Is(err, unix.EINVAL)
	if failed && !rt.useErr && !rt.over {
		rt.log.Warn("neighbours can't be kept; the kernel resolves them itself", "neighbour", via.Addr, "error", err)
	}
	rt.useErr = rt.useErr || failed
}

// Resolve finds how packets from an address (if it is valid) to another leave, and through which neighbour.
func (rt *Resolver) Resolve(from, to netip.Addr) (Hop, Neighbour) {
	route, state := rt.route(from, to, 0)
	var a *netlink.LinkAttrs
	for vrfs := 0; ; vrfs++ {
		if state != abi.HopNone {
			return Hop{State: state}, Neighbour{}
		}
		link, err := rt.link(route.LinkIndex)
		if err != nil {
			return Hop{State: abi.HopUnreachable}, Neighbour{}
		}
		a = link.Attrs()
		if link.Type() != "vrf" || vrfs > 0 {
			break
		}
		// A route into a VRF leads to the device that stands for it, whose MTU is that of nothing. The VRF's own
		// table says where packets leave.
		route, state = rt.route(from, to, route.LinkIndex)
	}
	h := Hop{State: abi.HopNeighbour, Ifindex: route.LinkIndex, MTU: a.MTU}
	if route.MTU > 0 {
		h.MTU = route.MTU
	}
	if !HasEthernet(a) {
		// A tunnel to one end: the kernel takes the link-layer header off. One to many ends has neighbours, too, which
		// are the kernel's business.
		if len(a.HardwareAddr) == 0 || a.RawFlags&unix.IFF_POINTOPOINT != 0 {
			h.State = abi.HopDirect
		}
		return h, Neighbour{}
	}
	via := Neighbour{route.LinkIndex, to}
	switch gw := route.Via.(type) {
	case nil:
		if addr, ok := netip.AddrFromSlice(route.Gw); ok && !addr.IsUnspecified() {
			via.Addr = addr.Unmap()
		}
	case *netlink.Via:
		if addr, ok := netip.AddrFromSlice(gw.Addr); ok {
			via.Addr = addr.Unmap()
		}
	}
	copy(h.Src[:], a.HardwareAddr)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if n, ok := rt.neigh[via]; ok {
		h.State, h.Dst = abi.HopDirect, n.mac
	}
	return h, via
}

// LinkMTU returns the MTU of a device, 0 where it is gone.
func (rt *Resolver) LinkMTU(index int) int {
	link, err := rt.link(index)
	if err != nil {
		return 0
	}
	return link.Attrs().MTU
}

// link returns what is known of a device; the copy is dropped whenever anything about devices is announced.
func (rt *Resolver) link(index int) (netlink.Link, error) {
	rt.mu.Lock()
	link := rt.links[index]
	rt.mu.Unlock()
	if link != nil {
		return link, nil
	}
	err := rt.with(func(ask *netlink.Handle) (err error) {
		link, err = ask.LinkByIndex(index)
		return err
	})
	if err != nil {
		return nil, err
	}
	rt.mu.Lock()
	rt.links[index] = link
	rt.mu.Unlock()
	return link, nil
}

// route asks the kernel for a route, in a VRF where one is given by the index of its device. Where there is none to
// use, it returns the state that says so.
func (rt *Resolver) route(from, to netip.Addr, vrf int) (netlink.Route, abi.HopState) {
	list, err := rt.routeGet(to, from, vrf)
	if from.IsValid() && err != nil && !rt.Local(from) {
		// The kernel refuses a source that isn't one of this host's (a floating address, say). The route is the same
		// without it.
		list, err = rt.routeGet(to, netip.Addr{}, vrf)
	}
	switch {
	case errors.Is(err, unix.EINVAL): // so IPv4 and IPv6 say blackhole
		return netlink.Route{}, abi.HopBlackhole
	case errors.Is(err, unix.EACCES):
		return netlink.Route{}, abi.HopProhibit
	case err != nil || len(list) == 0:
		return netlink.Route{}, abi.HopUnreachable
	}
	route := list[0]
	switch route.Type {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		return route, abi.HopLocal
	case unix.RTN_BLACKHOLE:
		return route, abi.HopBlackhole
	case unix.RTN_PROHIBIT:
		return route, abi.HopProhibit
	case unix.RTN_UNICAST, unix.RTN_MULTICAST:
		return route, abi.HopNone
	}
	return route, abi.HopUnreachable
}

func (rt *Resolver) routeGet(to, from netip.Addr, vrf int) (list []netlink.Route, err error) {
	opt := &netlink.RouteGetOptions{OifIndex: vrf}
	if from.IsValid() {
		opt.SrcAddr = from.AsSlice()
	}
	rt.Requests.Add(1)
	err = rt.with(func(ask *netlink.Handle) error {
		list, err = ask.RouteGetWithOptions(to.AsSlice(), opt)
		return err
	})
	return list, err
}

// Local reports whether an address is one of this host's.
func (rt *Resolver) Local(addr netip.Addr) bool {
	list, err := rt.routeGet(addr, netip.Addr{}, 0)
	return err == nil && len(list) > 0 && list[0].Type == unix.RTN_LOCAL
}

// HasEthernet reports whether frames of the device begin with an Ethernet header.
func HasEthernet(a *netlink.LinkAttrs) bool {
	return a.EncapType == "ether" || a.EncapType == "loopback"
}
