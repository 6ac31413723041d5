// Package routes asks the kernel by netlink how packets leave this host, and follows what changes that: routes, rules,
// links, addresses and neighbours. Exceptions to routes, which the kernel doesn't announce, can be listed.
package routes

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

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
	sockets map[int]*nl.SocketHandle // by netlink protocol, for requests that ask has no function for
	asking  sync.RWMutex             // held for reading while ask and sockets are used: closing isn't safe meanwhile
	events  *nl.NetlinkSocket
	xfrm    *nl.NetlinkSocket // nil: the kernel has no xfrm, or doesn't let this process know
	changed chan struct{}     // capacity 1: something is in dirty or all

	mu     sync.Mutex
	over   bool
	neigh  map[Neighbour]entry // those that can be reached
	links  map[int]netlink.Link
	epoch  uint64             // of links: how often they were forgotten
	all    bool               // routes, rules, links or addresses changed
	dirty  map[Neighbour]bool // neighbours that changed
	useErr bool               // probing failed before

	rules         []rule // those that ask for a protocol or for ports
	policies      policies
	staleRules    bool // the copy has to be read again
	stalePolicies bool

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
		sockets: map[int]*nl.SocketHandle{},
	}
	var err error
	if rt.ask, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if rt.sockets[unix.NETLINK_ROUTE], err = ownSocket(unix.NETLINK_ROUTE); err != nil {
		rt.ask.Close()
		return nil, err
	}
	// First listen, then read: a change in between is seen twice, not missed.
	if rt.events, err = nl.Subscribe(unix.NETLINK_ROUTE, announcements...); err != nil {
		rt.ask.Close()
		rt.sockets[unix.NETLINK_ROUTE].Close()
		return nil, err
	}
	// A burst that doesn't fit costs a resync and is no error, so neither is a small buffer.
	_ = rt.events.SetReceiveBufferSize(1<<20, true)
	for _, read := range []func() error{rt.readNeighbours, rt.readRules} {
		if err := read(); err != nil {
			rt.Close()
			return nil, err
		}
	}
	err = rt.openXfrm()
	if err == nil {
		err = rt.readPolicies()
	}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE): // for want of a file no policy is taken as none
		rt.Close()
		return nil, err
	case err != nil:
		log.Warn("xfrm (IPsec) policies can't be read, so packets are sent as if there were none: "+
			"reading them takes CAP_NET_ADMIN", "error", err)
	}
	return rt, nil
}

// ownSocket opens a socket for requests, in the network namespace of the calling thread.
func ownSocket(protocol int) (*nl.SocketHandle, error) {
	s, err := nl.Subscribe(protocol) // to nothing
	if err != nil {
		return nil, err
	}
	// The kernel answers at once. Should it ever not, the relay must still be able to close.
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 5}); err != nil {
		s.Close()
		return nil, err
	}
	return &nl.SocketHandle{Socket: s}, nil
}

// Close ends Listen; what is asked from now on is answered as unreachable.
func (rt *Resolver) Close() {
	rt.mu.Lock()
	over := rt.over
	rt.over = true
	rt.mu.Unlock()
	if !over {
		rt.events.Close()
		if rt.xfrm != nil {
			rt.xfrm.Close()
		}
		rt.asking.Lock()
		defer rt.asking.Unlock()
		rt.ask.Close()
		rt.ask = nil
		for _, s := range rt.sockets {
			s.Close()
		}
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
	var both sync.WaitGroup
	defer both.Wait()
	if rt.xfrm != nil {
		both.Go(rt.listenXfrm)
	}
	for {
		msgs, _, err := rt.events.Receive()
		if err != nil {
			switch {
			case rt.closed() || errors.Is(err, unix.EBADF):
				return
			case errors.Is(err, unix.ENOBUFS):
				if err := rt.readNeighbours(); err != nil {
					rt.log.Warn("neighbours can't be read", "error", err)
				}
				rt.stale(true, false)
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
			case unix.RTM_NEWRULE, unix.RTM_DELRULE:
				rt.stale(true, false)
			default:
				rt.Kick(true)
			}
		}
	}
}

func (rt *Resolver) closed() bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.over
}

// stale says that rules, or policies, have changed, with which everything may have changed.
func (rt *Resolver) stale(rules, policies bool) {
	rt.mu.Lock()
	rt.staleRules, rt.stalePolicies = rt.staleRules || rules, rt.stalePolicies || policies
	rt.mu.Unlock()
	rt.Kick(true) // later: whoever takes this has taken the above, or has taken it before and read it
}

// retry is after what time rules and policies are read again that couldn't be read.
const retry = time.Second

// reread reads rules or policies, or has them read later. Until then they stay as they were.
func (rt *Resolver) reread(what string, read func() error, later func()) {
	if err := read(); err != nil && !errors.Is(err, errClosed) {
		rt.log.Error(what+" can't be read", "error", err)
		time.AfterFunc(retry, later)
	}
}

// Kick makes Changed ready: all says that everything may have changed; otherwise, nothing but what is noted already.
func (rt *Resolver) Kick(all bool) {
	rt.mu.Lock()
	if all {
		rt.all = true
		rt.epoch++
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

// Changes returns what has changed since the last call. From then on, the resolver answers by the rules and policies as
// they are now. It is called by one goroutine at a time.
func (rt *Resolver) Changes() (all bool, some map[Neighbour]bool) {
	// What changes while rules and policies are read is for the next call: what is resolved after this one may know
	// nothing of it.
	rt.mu.Lock()
	all, some = rt.all, rt.dirty
	rules, policies := rt.staleRules, rt.stalePolicies
	rt.all, rt.dirty, rt.staleRules, rt.stalePolicies = false, map[Neighbour]bool{}, false, false
	rt.mu.Unlock()
	if rules {
		rt.reread("routing rules", rt.readRules, func() { rt.stale(true, false) })
	}
	if policies {
		rt.reread("xfrm policies", rt.readPolicies, func() { rt.stale(false, true) })
	}
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

// LinkMTU returns the MTU of a device, 0 if it is gone.
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
	link, epoch := rt.links[index], rt.epoch
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
	if epoch == rt.epoch { // else the answer may be older than what was announced
		rt.links[index] = link
	}
	rt.mu.Unlock()
	return link, nil
}

// HasEthernet reports whether frames of the device begin with an Ethernet header.
func HasEthernet(a *netlink.LinkAttrs) bool {
	return a.EncapType == "ether" || a.EncapType == "loopback"
}
