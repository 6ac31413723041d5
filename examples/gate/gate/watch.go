package gate

import (
	"errors"
	"net/netip"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// A server that announces nothing is watched. The kernel reads the connection ID that it chooses from the handshake, in
// time for the client's answer, and reports it. Later ones are issued under encryption: the kernel takes them from the
// first packet that has one and comes from the connection's address. The end of a connection can't be seen: it is
// over when nothing was heard of it for long.

// flow is what is known of a client's address: one connection, as a rule.
type flow struct {
	peer  netip.AddrPort
	ids   []uint64
	rows  []*runtime.Counter
	heard uint64 // packets
	began time.Time
	last  time.Time
	done  bool
}

// flows are by the client's address. A flow that was adopted has none.
type flows struct {
	byPeer map[netip.AddrPort]*flow
	others []*flow
}

const (
	handshake      = 10 * time.Second // how long one may take
	handshakeHeard = 3                // packets with the server's connection ID, after which it is taken for finished
)

// issued keeps a connection ID that the kernel has seen.
func (g *Gate) issued(id uint64, peer netip.AddrPort) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if err := g.relay.Known.Put(id, gaterelay.KnownRow{}); err != nil {
		return err
	}
	row, err := g.relay.Known.Get(id)
	if err != nil {
		return err
	}
	f := g.flows.byPeer[peer]
	if f == nil {
		f = &flow{peer: peer, began: time.Now(), last: time.Now()}
		g.flows.byPeer[peer] = f
	}
	f.ids, f.rows = append(f.ids, id), append(f.rows, row.Packets)
	if err := g.relay.Seen.Delete(id); !errors.Is(err, runtime.ErrNotFound) {
		return err
	}
	return nil
}

// adoptFlows finds the connection IDs that a predecessor has left. Those of this process stay with their flows.
func (g *Gate) adoptFlows(now time.Time) error {
	if g.flows.byPeer == nil {
		g.flows.byPeer = map[netip.AddrPort]*flow{}
	}
	mine := map[uint64]**runtime.Counter{}
	for _, f := range g.flows.byPeer {
		for i, id := range f.ids {
			mine[id] = &f.rows[i]
		}
	}
	g.flows.others = nil
	for e, err := range g.relay.Known.All() {
		if err != nil {
			return err
		}
		if row := mine[e.Key]; row != nil {
			*row = e.Value.Packets
			continue
		}
		g.flows.others = append(g.flows.others, &flow{
			ids: []uint64{e.Key}, rows: []*runtime.Counter{e.Value.Packets}, began: now, last: now, done: true,
		})
	}
	return nil
}

// silent looks at the flows: handshakes that are finished move quotas, and flows end that nothing was heard of.
func (g *Gate) silent(now time.Time) error {
	var ids []uint64
	var peers []netip.AddrPort
	var errs []error
	ended := func(f *flow) bool {
		var heard uint64
		for _, row := range f.rows {
			heard += row.Load()
		}
		if heard != f.heard {
			f.heard, f.last = heard, now
		}
		limit := g.config.Idle
		if !f.done && heard >= handshakeHeard {
			f.done = true
			errs = append(errs, g.done(f.peer.Addr()))
		} else if !f.done {
			limit = min(limit, handshake)
		}
		if now.Sub(f.last) <= limit {
			return false
		}
		if !f.done {
			g.fail(f.peer.Addr())
		}
		ids = append(ids, f.ids...)
		return true
	}
	for peer, f := range g.flows.byPeer {
		if ended(f) {
			peers = append(peers, peer)
			delete(g.flows.byPeer, peer)
		}
	}
	others := g.flows.others[:0]
	for _, f := range g.flows.others {
		if !ended(f) {
			others = append(others, f)
		}
	}
	g.flows.others = others
	if len(ids) > 0 {
		_, err1 := g.relay.Peers.DeleteMany(peers...)
		_, err2 := g.relay.Known.DeleteMany(ids...)
		errs = append(errs, err1, err2)
	}
	return errors.Join(errs...)
}

// Flows returns the number of connections that are watched.
func (g *Gate) Flows() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.flows.byPeer) + len(g.flows.others)
}
