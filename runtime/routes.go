package runtime

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routes answers how packets leave this host, and tells when the answers may have changed. It asks the kernel's routing
// tables for each question; of neighbours it keeps a copy, since they change often and each change concerns few.
type routes struct {
	log     *slog.Logger
	ask     *netlink.Handle
	asking  sync.RWMutex // held for reading while ask is used, since closing it is not safe meanwhile
	events  *nl.NetlinkSocket
	changed chan struct{} // capacity 1: something is in dirty or all

	mu     sync.Mutex
	over   bool
	neigh  map[neighKey]neighbour // those that can be reached
	links  map[int]*netlink.LinkAttrs
	all    bool              // routes, rules, links or addresses changed
	dirty  map[neighKey]bool // neighbours that changed
	useErr bool              // probing failed before

	asked atomic.Uint64 // requests for routes
}

// neighKey is a neighbour. The zero value is none.
type neighKey struct {
	ifindex int
	addr    netip.Addr
}

// neighbour is what is known of one.
type neighbour struct {
	mac    [6]byte
	static bool // somebody else looks after it
}

// announcements are the groups of netlink messages after which a way may be another.
var announcements = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

// usable are the states of a neighbour whose address can be written into a frame.
const usable = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE

// newRoutes opens its sockets in the network namespace of the calling thread.
func newRoutes(log *slog.Logger) (*routes, error) {
	rt := &routes{log: log, changed: make(chan struct{}, 1), neigh: map[neighKey]neighbour{}, links: map[int]*netlink.LinkAttrs{}, dirty: map[neighKey]bool{}}
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
		rt.close()
		return nil, err
	}
	return rt, nil
}

func (rt *routes) close() {
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

// with lets f ask the kernel, unless the routes are closed.
func (rt *routes) with(f func(*netlink.Handle) error) error {
	rt.asking.RLock()
	defer rt.asking.RUnlock()
	if rt.ask == nil {
		return ErrClosed
	}
	return f(rt.ask)
}

// dump asks the kernel for a list. Where the list changed while it was read, it is read again.
func dump[T any](read func() ([]T, error)) (list []T, err error) {
	for range 5 {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// listen reads announcements until close.
func (rt *routes) listen() {
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
				rt.kick(true)
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
				if n, err := netlink.NeighDeserialize(m.Data); err == nil && rt.note(n, m.Header.Type == unix.RTM_DELNEIGH) {
					rt.kick(false)
				}
			default:
				rt.kick(true)
			}
		}
	}
}

// kick announces a change: of anything, or of what is in dirty already.
func (rt *routes) kick(all bool) {
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

// changes returns what has changed since the last call.
func (rt *routes) changes() (all bool, some map[neighKey]bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	all, some = rt.all, rt.dirty
	rt.all, rt.dirty = false, map[neighKey]bool{}
	return all, some
}

// note stores what the kernel says about a neighbour, and says whether that is news.
func (rt *routes) note(n *netlink.Neigh, gone bool) bool {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Flags&netlink.NTF_PROXY != 0 || n.Family != unix.AF_INET && n.Family != unix.AF_INET6 {
		return false
	}
	key := neighKey{n.LinkIndex, addr.Unmap()}
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
	now := neighbour{mac: [6]byte(n.HardwareAddr), static: n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || n.Flags&netlink.NTF_EXT_LEARNED != 0}
	rt.neigh[key] = now
	if had && old.mac == now.mac {
		return false
	}
	rt.dirty[key] = true
	return true
}

// readNeighbours replaces the copy of the neighbours.
func (rt *routes) readNeighbours() error {
	var list []netlink.Neigh
	err := rt.with(func(ask *netlink.Handle) (err error) {
		list, err = dump(func() ([]netlink.Neigh, error) { return ask.NeighList(0, netlink.FAMILY_ALL) })
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

// probe makes the kernel find out about a neighbour, or confirm what it knows, as sending a packet would. Frames that a
// program writes itself don't do that, so neighbours in use would be forgotten. A permanent neighbour must be left
// alone: since Linux 5.16 the request would make it an ordinary one.
func (rt *routes) probe(via neighKey) {
	rt.mu.Lock()
	skip := !via.addr.IsValid() || rt.neigh[via].static
	rt.mu.Unlock()
	if skip {
		return
	}
	n := &netlink.Neigh{LinkIndex: via.ifindex, IP: via.addr.AsSlice(), Flags: netlink.NTF_USE, State: netlink.NUD_NONE}
	err := rt.with(func(ask *netlink.Handle) error { return ask.NeighSet(n) })
	rt.mu.Lock()
	defer rt.mu.Unlock()
	// The device may be gone or down; the kernel's own announcement of that is on its way.
	failed := err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.EINVAL)
	if failed && !rt.useErr && !rt.over {
		rt.log.Warn("neighbours can't be kept; the kernel resolves them itself", "neighbour", via.addr, "error", err)
	}
	rt.useErr = rt.useErr || failed
}

// resolve finds how packets from key.from (if valid) to key.to leave, and through which neighbour.
func (rt *routes) resolve(key hopKey) (Hop, neighKey) {
	route, state := rt.route(key)
	if state != HopNone {
		return Hop{State: state}, neighKey{}
	}
	a, err := rt.link(route.LinkIndex)
	if err != nil {
		return Hop{State: HopUnreachable}, neighKey{}
	}
	h := Hop{State: HopNeighbour, Ifindex: route.LinkIndex, MTU: a.MTU}
	if route.MTU > 0 {
		h.MTU = route.MTU
	}
	if !hasEthernet(a) {
		if len(a.HardwareAddr) == 0 {
			h.State = HopDirect // a tunnel: the kernel takes the link-layer header off
		}
		return h, neighKey{}
	}
	via := neighKey{route.LinkIndex, key.to}
	switch gw := route.Via.(type) {
	case nil:
		if addr, ok := netip.AddrFromSlice(route.Gw); ok && !addr.IsUnspecified() {
			via.addr = addr.Unmap()
		}
	case *netlink.Via:
		if addr, ok := netip.AddrFromSlice(gw.Addr); ok {
			via.addr = addr.Unmap()
		}
	}
	copy(h.Src[:], a.HardwareAddr)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if n, ok := rt.neigh[via]; ok {
		h.State, h.Dst = HopDirect, n.mac
	}
	return h, via
}

// link returns what is known of a device; the copy is dropped whenever anything about devices is announced.
func (rt *routes) link(index int) (*netlink.LinkAttrs, error) {
	rt.mu.Lock()
	a := rt.links[index]
	rt.mu.Unlock()
	if a != nil {
		return a, nil
	}
	err := rt.with(func(ask *netlink.Handle) error {
		link, err := ask.LinkByIndex(index)
		if err == nil {
			a = link.Attrs()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	rt.mu.Lock()
	rt.links[index] = a
	rt.mu.Unlock()
	return a, nil
}

// route asks the kernel for a route. Where there is none to use, it returns the state that says so.
func (rt *routes) route(key hopKey) (netlink.Route, HopState) {
	list, err := rt.routeGet(key.to, key.from)
	if key.from.IsValid() && err != nil && !rt.local(key.from) {
		// The kernel refuses a source that isn't one of this host's (a floating address, say): the way is the same without.
		list, err = rt.routeGet(key.to, netip.Addr{})
	}
	switch {
	case errors.Is(err, unix.EINVAL): // so IPv4 and IPv6 say blackhole
		return netlink.Route{}, HopBlackhole
	case errors.Is(err, unix.EACCES):
		return netlink.Route{}, HopProhibit
	case err != nil || len(list) == 0:
		return netlink.Route{}, HopUnreachable
	}
	route := list[0]
	switch route.Type {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		return route, HopLocal
	case unix.RTN_BLACKHOLE:
		return route, HopBlackhole
	case unix.RTN_PROHIBIT:
		return route, HopProhibit
	case unix.RTN_UNICAST, unix.RTN_MULTICAST:
		return route, HopNone
	}
	return route, HopUnreachable
}

func (rt *routes) routeGet(to, from netip.Addr) (list []netlink.Route, err error) {
	var opt *netlink.RouteGetOptions
	if from.IsValid() {
		opt = &netlink.RouteGetOptions{SrcAddr: from.AsSlice()}
	}
	rt.asked.Add(1)
	err = rt.with(func(ask *netlink.Handle) error {
		list, err = ask.RouteGetWithOptions(to.AsSlice(), opt)
		return err
	})
	return list, err
}

// local says whether an address is one of this host's.
func (rt *routes) local(addr netip.Addr) bool {
	list, err := rt.routeGet(addr, netip.Addr{})
	return err == nil && len(list) > 0 && list[0].Type == unix.RTN_LOCAL
}

// hasEthernet says whether frames of the device begin with an Ethernet header.
func hasEthernet(a *netlink.LinkAttrs) bool {
	return a.EncapType == "ether" || a.EncapType == "loopback"
}
