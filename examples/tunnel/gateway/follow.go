package gateway

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
)

// follower keeps the table of this host's addresses: what comes out of a tunnel for one of them is for the host's own
// stack.
type follower struct {
	table *tunnelrelay.OwnTable
	links *netlink.Handle
	done  chan struct{}
	wg    sync.WaitGroup
	rows  map[netip.Addr]bool // what the table has
}

func follow(table *tunnelrelay.OwnTable, log *slog.Logger) (*follower, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	f := &follower{table: table, links: links, done: make(chan struct{}), rows: map[netip.Addr]bool{}}
	// What changes while the addresses are read is read again.
	changes := make(chan netlink.AddrUpdate, 64)
	if err = netlink.AddrSubscribe(changes, f.done); err == nil {
		err = f.sync()
	}
	if err != nil {
		close(f.done)
		links.Close()
		return nil, err
	}
	f.wg.Go(func() {
		for range changes { // it is closed with done
			if err := f.sync(); err != nil {
				log.Error("the addresses of this host can't be followed", "error", err)
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
	list, err := f.links.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	now := map[netip.Addr]bool{}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.Unmap().IsGlobalUnicast() {
			now[addr.Unmap()] = true
		}
	}
	var errs []error
	for addr := range now {
		if f.rows[addr] {
			continue
		}
		if err := f.table.Put(addr, tunnelrelay.OwnRow{}); err != nil {
			errs = append(errs, err)
			continue
		}
		f.rows[addr] = true
	}
	for addr := range f.rows {
		if now[addr] {
			continue
		}
		if err := f.table.Delete(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(f.rows, addr)
	}
	return errors.Join(errs...)
}
