package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
)

// follower keeps the table of routes as the kernel has it, for the networks of some interfaces: the routes through
// routers, and the neighbours. A host that the kernel doesn't know yet has no row, so its first packet passes to the
// stack, which asks for the host.
type follower struct {
	table  *tunnelrelay.RoutesTable
	inside []string
	log    *slog.Logger
	links  *netlink.Handle
	done   chan struct{}
	wg     sync.WaitGroup

	rows map[netip.Prefix]netip.Addr // what the table has
}

func follow(table *tunnelrelay.RoutesTable, inside []string, log *slog.Logger) (*follower, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	f := &follower{
		table: table, inside: inside, log: log, links: links, done: make(chan struct{}),
		rows: map[netip.Prefix]netip.Addr{},
	}
	// What changes while the tables are read is read again.
	routes, neighbours := make(chan netlink.RouteUpdate, 64), make(chan netlink.NeighUpdate, 64)
	err = errors.Join(netlink.RouteSubscribe(routes, f.done), netlink.NeighSubscribe(neighbours, f.done))
	if err == nil {
		err = f.sync()
	}
	if err != nil {
		close(f.done)
		links.Close()
		return nil, err
	}
	f.wg.Go(func() {
		for {
			ok := true
			select {
			case _, ok = <-routes:
			case _, ok = <-neighbours:
			case <-f.done:
				return
			}
			if !ok { // the kernel has discarded notifications, or the gateway is being closed
				f.log.Warn("routes are not followed any more")
				return
			}
			if err := f.sync(); err != nil {
				f.log.Error("routes can't be followed", "error", err)
			}
		}
	})
	return f, nil
}

func (f *follower) close() {
	close(f.done)
	f.wg.Wait()
	f.links.Close()
}

// sync makes the table what the kernel has now.
func (f *follower) sync() error {
	now, err := f.read()
	if err != nil {
		return err
	}
	var errs []error
	for dst, next := range now {
		if f.rows[dst] == next {
			continue
		}
		if err := f.table.Put(dst, tunnelrelay.RoutesRow{Next: next}); err != nil {
			errs = append(errs, fmt.Errorf("%v by %v: %w", dst, next, err))
			continue
		}
		f.rows[dst] = next
	}
	for dst := range f.rows {
		if _, ok := now[dst]; !ok {
			errs = append(errs, f.table.Delete(dst))
			delete(f.rows, dst)
		}
	}
	return errors.Join(errs...)
}

// known are the states of a neighbour whose link-layer address the kernel has.
const known = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT

func (f *follower) read() (map[netip.Prefix]netip.Addr, error) {
	links, err := f.links.LinkList()
	if err != nil {
		return nil, err
	}
	rows := map[netip.Prefix]netip.Addr{}
	for _, link := range links {
		if !slices.Contains(f.inside, link.Attrs().Name) {
			continue
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			routes, err := f.links.RouteList(link, family)
			if err != nil {
				return nil, err
			}
			for _, r := range routes {
				dst, ok1 := prefix(r.Dst, family)
				next, ok2 := netip.AddrFromSlice(r.Gw)
				if ok1 && ok2 && !next.IsLinkLocalUnicast() {
					rows[dst] = next.Unmap()
				}
			}
			neighbours, err := f.links.NeighList(link.Attrs().Index, family)
			if err != nil {
				return nil, err
			}
			for _, n := range neighbours {
				addr, ok := netip.AddrFromSlice(n.IP)
				addr = addr.Unmap()
				if ok && n.State&known != 0 && addr.IsGlobalUnicast() {
					rows[netip.PrefixFrom(addr, addr.BitLen())] = addr
				}
			}
		}
	}
	return rows, nil
}

// prefix is the destination of a route; nil is the default route of its family.
func prefix(n *net.IPNet, family int) (netip.Prefix, bool) {
	if n == nil {
		if family == unix.AF_INET {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0), true
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), ok
}
