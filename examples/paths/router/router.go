// Package router runs the relay of the paths example: a router with two next hops to each network. It watches the
// neighbouring routers and takes the other path if one doesn't answer, and it moves single flows from one path to
// the other while they run.
package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/paths/pathsrelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config says what a router does.
type Config struct {
	Interfaces []string     // where packets come in
	Hook       runtime.Hook // whether packets come to the relay at XDP first
	Routes     []Route
	Hello      time.Duration // between two hellos to each next hop; 0: routers aren't watched
	Dead       time.Duration // without an answer, after which a next hop is not used any more
	Control    control.Flags // how the relay is watched and operated
	Logger     *slog.Logger  // nil: slog.Default
}

// Route has the two next hops to a network; both may be the same.
type Route struct {
	Dst        netip.Prefix
	Fast, Slow netip.Addr
}

// Path says which path a flow takes.
type Path uint8

// The paths, as the spec has them.
const (
	ByRules Path = iota // ports and DSCP decide
	Fast
	Slow
)

// Router is a running router.
type Router struct {
	config Config
	relay  *pathsrelay.Relay
	watch  *watch // nil: none
	log    *slog.Logger

	mu   sync.Mutex
	down map[netip.Addr]bool
}

// Start starts a router, in the network namespace of the calling thread.
func Start(c Config) (*Router, error) {
	r := &Router{config: c, log: c.Logger, down: map[netip.Addr]bool{}}
	if r.log == nil {
		r.log = slog.Default()
	}
	relay, err := pathsrelay.Load(pathsrelay.Options{Logger: c.Logger, Control: c.Control.Control()})
	if err != nil {
		return nil, err
	}
	r.relay = relay
	err = r.write()
	for _, name := range c.Interfaces {
		if err == nil {
			err = relay.Forward.AttachAt(name, runtime.AttachOptions{Hook: c.Hook})
		}
	}
	if err == nil && c.Hello > 0 {
		r.watch, err = startWatch(r.hops(), c.Hello, c.Dead, r.changed)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close ends the router: it forwards nothing any more.
func (r *Router) Close() error {
	var err error
	if r.watch != nil {
		err = r.watch.close()
	}
	return errors.Join(err, r.relay.Close())
}

// Forwarded returns the number of packets that the relay has sent, and how many of them at XDP.
func (r *Router) Forwarded() (n, atXDP uint64, err error) {
	all, err := r.relay.Forward.Count(pathsrelay.ForwardSent)
	if err != nil {
		return 0, 0, err
	}
	counts, err := r.relay.Forward.XDPCounts()
	if err != nil {
		return 0, 0, err
	}
	return all.Packets, counts[pathsrelay.ForwardSent].Packets, nil
}

// hops returns the next hops that have an alternative.
func (r *Router) hops() (list []netip.Addr) {
	seen := map[netip.Addr]bool{}
	for _, route := range r.config.Routes {
		for _, hop := range []netip.Addr{route.Fast, route.Slow} {
			if route.Fast != route.Slow && !seen[hop] {
				seen[hop] = true
				list = append(list, hop)
			}
		}
	}
	return list
}

// write writes the routes as they are now: with the other next hop in place of one that doesn't answer.
func (r *Router) write() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, route := range r.config.Routes {
		row := pathsrelay.RoutesRow{Fast: route.Fast, Slow: route.Slow}
		switch {
		case r.down[route.Fast] && r.down[route.Slow]:
		case r.down[route.Fast]:
			row.Fast = route.Slow
		case r.down[route.Slow]:
			row.Slow = route.Fast
		}
		errs = append(errs, r.relay.Routes.Put(route.Dst, row))
	}
	return errors.Join(errs...)
}

// changed is called when a next hop stops to answer, or begins again.
func (r *Router) changed(hop netip.Addr, up bool) {
	r.mu.Lock()
	r.down[hop] = !up
	r.mu.Unlock()
	r.log.Info("next hop", "hop", hop, "up", up)
	if err := r.write(); err != nil {
		r.log.Error("routes can't be changed", "error", err)
	}
}

// look is the time between two looks at the counter of a flow that is to be moved.
const look = 2 * time.Millisecond

// Move has a flow, which may be running, take another path. It waits until the flow has paused for as long as a packet
// may wait in the queue that the flow leaves, so that no packet overtakes an earlier one; before, the flow stays where
// it is. A flow that never pauses doesn't move, and Move returns when ctx ends. The other direction is another flow.
func (r *Router) Move(ctx context.Context, src, dst netip.AddrPort, path Path, pause time.Duration) error {
	flow := pathsrelay.FlowsKey{Src: src, Dst: dst}
	row, err := r.relay.Flows.Get(flow)
	if errors.Is(err, runtime.ErrNotFound) {
		if err := r.relay.Flows.Put(flow, pathsrelay.FlowsRow{Path: uint8(ByRules)}); err != nil {
			return err
		}
		row, err = r.relay.Flows.Get(flow)
	}
	if err != nil {
		return err
	}
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	// A packet that came before the row was there isn't counted, so the pause begins now.
	for seen, since := row.Packets.Load(), time.Now(); ; {
		now := time.Now() // before it looks: a packet that comes later doesn't make the pause longer
		if n := row.Packets.Load(); n != seen {
			seen, since = n, time.Now()
		} else if now.Sub(since) >= pause {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v to %v doesn't pause for %v: %w", src, dst, pause, ctx.Err())
		case <-ticker.C:
		}
	}
	return r.relay.Flows.Put(flow, pathsrelay.FlowsRow{Path: uint8(path)})
}

// Forget has a flow that has ended take the path of its rules again.
func (r *Router) Forget(src, dst netip.AddrPort) error {
	return r.relay.Flows.Delete(pathsrelay.FlowsKey{Src: src, Dst: dst})
}
