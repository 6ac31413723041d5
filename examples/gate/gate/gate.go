// Package gate runs the relay of the gate example in front of a QUIC server: packets of known connections pass, new
// connections are limited, and the kernel drops what exceeds the limits. The server announces its connection IDs
// (package quicgo does it for quic-go), or the gate reads them from what the server sends. What happens to connections
// moves the limits, in memory that the kernel maps, too.
package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config says what a gate does.
type Config struct {
	Interfaces []string     // where packets come in
	Hook       runtime.Hook // whether they come to the gate at XDP first
	Port       uint16       // of the server; 0: 443
	Quotas     Quotas

	// Watch reads connection IDs from what the server sends, for servers that don't announce them. The server's have
	// IDLength bytes (0: 8 or more), and its connections end when nothing was heard of them for Idle.
	Watch    bool
	IDLength int
	Idle     time.Duration // 0: six minutes

	// Closed refuses new connections while the gate's process is dead; otherwise everything passes then. It needs a
	// PinPath: what isn't pinned ends with its process.
	Closed  bool
	PinPath string        // where a successor finds the gate; "": nowhere
	Lease   time.Duration // how long the kernel takes a dead process for alive; 0: one second
	First   bool          // attach before the programs that interfaces have, such as Cilium's
	Control control.Flags // how the relay is watched and operated
	Logger  *slog.Logger  // nil: slog.Default
}

// linger is how long the kernel goes on while a gate is replaced.
const linger = 10 * time.Second

// Gate is a running gate.
type Gate struct {
	log  *slog.Logger
	pool chan uint64 // connection IDs that the kernel knows, and no connection has yet
	low  chan struct{}

	mu      sync.Mutex
	config  Config
	relay   *gaterelay.Relay
	total   gaterelay.TotalsRow
	sources map[netip.Addr]*source
	nets    map[netip.Prefix]*runtime.Bucket
	flows   flows
	closed  bool

	// What the server says waits here: its connections never wait for changes of rows, which take milliseconds.
	said    sync.Mutex
	retired []retirement
	ends    []end
	awake   chan struct{}

	swapping sync.RWMutex // the relay is being replaced

	stop   context.CancelFunc
	events context.CancelFunc
	wait   sync.WaitGroup
}

// Start loads the gate and attaches it, in the network namespace of the calling thread. Connection IDs that a
// predecessor left are forgotten, unless they are watched: its server has ended with it.
func Start(c Config) (*Gate, error) {
	g := &Gate{log: c.Logger, pool: make(chan uint64, poolSize), awake: make(chan struct{}, 1),
		low: make(chan struct{}, 1)}
	if g.log == nil {
		g.log = slog.Default()
	}
	if err := g.load(c); err != nil {
		return nil, err
	}
	if !c.Watch {
		if err := g.forgetAll(); err != nil {
			return nil, errors.Join(err, g.relay.Close())
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.follow()
	if !c.Watch {
		for range poolSize {
			if err := g.addID(); err != nil {
				return nil, errors.Join(err, g.Close())
			}
		}
		g.wait.Go(func() { g.fill(ctx) })
	}
	g.wait.Go(func() { g.sweep(ctx) })
	g.wait.Go(func() { g.hear(ctx) })
	return g, nil
}

// load loads the relay, or adopts the one that is pinned, and finds its rows. g.mu is held, or g is new.
func (g *Gate) load(c Config) (err error) {
	if c.Port == 0 {
		c.Port = 443
	}
	if c.Idle == 0 {
		c.Idle = 6 * time.Minute
	}
	c.Quotas = c.Quotas.or(Defaults)
	mask := ^uint64(0)
	if c.IDLength > 0 && c.IDLength < 8 {
		mask <<= 8 * (8 - c.IDLength)
	}
	opt := gaterelay.Options{
		Settings: gaterelay.Settings{Port: &c.Port, IDMask: &mask, Watch: &c.Watch, Closed: &c.Closed},
		PinPath:  c.PinPath, Lease: c.Lease, Logger: c.Logger,
		Control: c.Control.Control(),
	}
	if c.PinPath != "" {
		opt.Linger = linger
	}
	relay, err := gaterelay.Load(opt)
	if err != nil {
		return err // the gate keeps the former relay, which is closed
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, relay.Close())
		}
	}()
	g.relay, g.config = relay, c
	if err := g.rows(); err != nil {
		return err
	}
	for _, name := range c.Interfaces {
		if err := g.attach(name); err != nil {
			return err
		}
	}
	return nil
}

// attach attaches the programs to an interface. What they let pass ends at the first at XDP; what they have no rule for
// comes to the next one.
func (g *Gate) attach(name string) error {
	o := runtime.AttachOptions{First: g.config.First, Hook: g.config.Hook}
	err := errors.Join(g.relay.Tiny.AttachAt(name, o), g.relay.Long.AttachAt(name, o), g.relay.Short.AttachAt(name, o))
	if g.config.Watch {
		o.Hook = runtime.HookTC // what the server sends
		err = errors.Join(err, g.relay.Answer.AttachAt(name, o), g.relay.Reply.AttachAt(name, o))
	}
	return err
}

// Replace replaces the relay in the kernel by one with other settings, while connections run. The new one adopts all
// rows. It needs a PinPath. After an error Replace can be called again: the kernel goes on for ten seconds.
func (g *Gate) Replace(c Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("gate: replace: %w", runtime.ErrClosed)
	}
	if g.config.PinPath == "" || c.PinPath != g.config.PinPath {
		return errors.New("gate: only a gate with a PinPath can be replaced, by one with the same")
	}
	g.events()
	g.swapping.Lock()
	defer g.swapping.Unlock()
	if err := g.relay.Close(); err != nil {
		return err
	}
	if err := g.load(c); err != nil {
		return fmt.Errorf("gate: replace: %w", err)
	}
	g.follow()
	return nil
}

// follow reads the events of the present relay. g.mu is held, or g is new.
func (g *Gate) follow() {
	ctx, stop := context.WithCancel(context.Background())
	g.events = stop
	relay := g.relay
	g.wait.Go(func() {
		for event, err := range relay.Events(ctx) {
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, runtime.ErrClosed) {
					g.log.Error("the gate's events can't be read", "error", err)
				}
				return
			}
			switch e := event.(type) {
			case gaterelay.NewcomerEvent:
				err = g.newcomer(e.Addr)
			case gaterelay.IssuedEvent:
				err = g.issued(e.ID, e.Peer)
			}
			if err != nil && !errors.Is(err, runtime.ErrClosed) {
				g.log.Error("the gate's rows can't be changed", "error", err)
			}
		}
	})
}

// Close ends the gate: everything passes. One with a PinPath stays for a successor for ten seconds.
func (g *Gate) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	g.stop()
	g.events()
	err := g.relay.Close()
	g.mu.Unlock()
	g.wait.Wait()
	return err
}

// sweep removes what has ended, a few times a second.
func (g *Gate) sweep(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g.mu.Lock()
		if !g.closed {
			now := time.Now()
			if err := errors.Join(g.silent(now), g.removeRetired(now), g.forget(now)); err != nil {
				g.log.Error("the gate's rows can't be removed", "error", err)
			}
		}
		g.mu.Unlock()
	}
}

// Count is what happened to packets, by reason: "over_source", "stray", "pass", …, all programs together.
func (g *Gate) Count() (map[string]uint64, error) { return g.count((*runtime.AnyProgram).Counts) }

// CountAtXDP is what of that happened at XDP.
func (g *Gate) CountAtXDP() (map[string]uint64, error) {
	return g.count((*runtime.AnyProgram).XDPCounts)
}

func (g *Gate) count(of func(*runtime.AnyProgram) ([]runtime.Count, error)) (map[string]uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := map[string]uint64{}
	for _, p := range g.relay.Runtime().Programs() {
		all, err := of(p)
		if err != nil {
			return nil, err
		}
		for i, n := range all {
			if reason := p.Desc().Reason(i); p.Desc().Hook == abi.HookIngress && n.Packets > 0 {
				counts[reason.Name] += n.Packets
			}
		}
	}
	return counts, nil
}

// Dropped returns the number of packets that the gate has dropped.
func (g *Gate) Dropped() (n uint64, err error) {
	counts, err := g.Count()
	for _, reason := range []string{
		"over_source", "over_network", "over_total", "over_newcomers", "over_moves", "too_short", "stray", "closed",
	} {
		n += counts[reason]
	}
	return n, err
}
