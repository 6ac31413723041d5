package relay

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A connection is a QUIC connection, of one session or, with WebTransport, of several.
type connection struct {
	relay      *Relay
	hooks      quic.Hooks
	quic       atomic.Pointer[quic.Conn] // nil: the handshake isn't complete
	subscribes atomic.Bool
	requests   acks.Requests // its run loop's
	sealed     *sealed       // nil: the library makes all packets, or the kernel copies some

	// What the kernel has of a connection without protection.
	hop      atomic.Pointer[hop] // of one with a relay below
	prepared atomic.Bool         // or being prepared
	entering sync.Mutex
	source   uint32 // of one with an upstream relay; 0: none

	mu      sync.Mutex
	remote  netip.AddrPort
	door    *socket.Door // of one that publishes; nil: it has none
	over    bool
	ours    map[uint64]quic.ConnectionID // by sequence number
	active  quic.ConnectionID            // of the peer's
	path    quic.PathState
	limits  quic.Limits
	row     *moqrelay.ConnectionsRow // nil: the kernel has none
	entered []moqrelay.ConnectionsKey
}

type connectionKey struct{}

// newConnection gives a client's connection its hooks.
func (r *Relay) newConnection(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	return r.hook(ctx, addressOf(info.RemoteAddr)), nil
}

// hook has the socket's reader take the turns of a connection's run loop. Null protection is asked for if the peer is a
// relay that may have it, and packets then are such as a program in the kernel can forward.
func (r *Relay) hook(ctx context.Context, remote netip.AddrPort) context.Context {
	c := &connection{relay: r, remote: remote, ours: map[uint64]quic.ConnectionID{}}
	null := r.config.isNull(remote)
	c.hooks = quic.Hooks{
		NullProtection: null, LongNumbers: null, LoneStreamFrames: null, SparseMaxStreams: null,
		Turns: &r.socket.Turns, Path: c.setPath, Moved: func(_, remote net.Addr) { c.move(addressOf(remote)) },
		Closing: func(error) { c.close() },
	}
	if null && r.kernel != nil {
		c.hooks.Drain = func(register func(quic.OutsidePacket)) (acks []quic.ACK) {
			c.with(func(h *hop) { acks = h.register(register) })
			return acks
		}
		c.hooks.Acked = func(p quic.OutsidePacket) { c.with(func(h *hop) { h.settled(p) }) }
		c.hooks.Lost = func(p quic.OutsidePacket) (data []quic.StreamData) {
			c.with(func(h *hop) { data = h.lost(p) })
			return data
		}
		c.hooks.Limits = c.setLimits
		c.hooks.StreamLimit = func(id quic.StreamID, limit uint64) { c.with(func(h *hop) { h.raise(id, limit) }) }
		c.hooks.StopSending = func(id quic.StreamID, code quic.StreamErrorCode) {
			c.with(func(h *hop) { h.stopped(id, code) })
		}
		c.hooks.ConnectionID = c.setID
	}
	if !null {
		s := &sealed{relay: r, sealer: outside.Sealer{Socket: r.socket}}
		s.sealer.SetRemote(remote)
		c.sealed, c.hooks.Drain, c.hooks.SendKeys = s, s.register, s.sealer.SetKeys
		c.hooks.ConnectionID = func(i quic.ConnectionIDChange) {
			if !i.Ours && i.Event == quic.ConnectionIDActive {
				s.sealer.SetID(i.ID)
			}
		}
	}
	return quic.WithHooks(context.WithValue(ctx, connectionKey{}, c), &c.hooks)
}

// with calls f with what the kernel has of a relay below, if it has any.
func (c *connection) with(f func(h *hop)) {
	if h := c.hop.Load(); h != nil {
		f(h)
	}
}

// setPath takes what may be sent on the path.
func (c *connection) setPath(p quic.PathState) {
	c.mu.Lock()
	c.path = p
	c.mu.Unlock()
	c.thin(p)
	c.with(func(h *hop) { h.setPath(p) })
	if c.sealed != nil {
		c.sealed.setPath(p)
	}
}

// seal sends the next bytes of a stream in packets of our own, if many datagrams come and go, and nothing waits for the
// session. It returns how many.
func (c *connection) seal(s *session, stream subgroupStream, data []byte) (sent int) {
	switch {
	case c == nil || c.sealed == nil || s.waits() || !c.relay.config.sealAll && !c.relay.socket.Busy():
		return 0
	case !c.sealed.prepared.Load():
		c.sealed.prepare(c.quic.Load())
		return 0
	}
	return c.sealed.send(stream, data)
}

// setLimits takes what the peer allows.
func (c *connection) setLimits(l quic.Limits) {
	c.mu.Lock()
	c.limits = l
	c.mu.Unlock()
	c.with(func(h *hop) { h.setLimits(l) })
}

// isNull reports whether a peer at an address may have null protection.
func (c *Config) isNull(a netip.AddrPort) bool {
	return slices.ContainsFunc(c.Null, func(p netip.Prefix) bool { return p.Contains(a.Addr()) })
}

// isNull reports whether packets aren't protected.
func (c *connection) isNull() bool {
	if c == nil {
		return false
	}
	q := c.quic.Load()
	return q != nil && q.Outside().NullProtection()
}

// connectionOf returns what newConnection made of a connection.
func connectionOf(q interface{ Context() context.Context }) *connection {
	return q.Context().Value(connectionKey{}).(*connection)
}

func addressOf(a net.Addr) netip.AddrPort {
	at := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// subscribe notes that the peer subscribes to something.
func (c *connection) subscribe() {
	if c != nil {
		c.subscribes.Store(true)
	}
}

// thin asks a subscriber for fewer ACKs.
func (c *connection) thin(p quic.PathState) {
	if q := c.quic.Load(); q != nil && c.subscribes.Load() {
		c.requests.Update(q.Outside(), c.relay.config.ACKs, p.CongestionWindow, p.MaxPacketSize)
	}
}

// openDoor has the publisher's datagrams not wait for others: what comes to the relay's own socket is ACKs, mostly. A
// relay that listens at all addresses of its host can't do that, nor one whose port its successor is to share.
func (c *connection) openDoor() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.door != nil || c.over || c.relay.config.Generation != nil || c.relay.Addr().Addr().IsUnspecified() {
		return
	}
	d, err := c.relay.socket.Open(c.remote)
	if err != nil {
		c.relay.log.Warn("a publisher's datagrams wait as others do", "remote", c.remote, "error", err)
		return
	}
	c.door = d
}

// move has the door follow the peer. One without protection has to stay where it may have none.
func (c *connection) move(remote netip.AddrPort) {
	if c.isNull() && !c.relay.config.isNull(remote) {
		c.relay.log.Warn("a session without protection is closed: its peer has moved", "remote", remote)
		q := c.quic.Load()
		go func() { _ = q.CloseWithError(quic.ApplicationErrorCode(wire.SessionUnauthorized), "moved") }()
	}
	if c.sealed != nil {
		c.sealed.sealer.SetRemote(remote)
	}
	c.mu.Lock()
	c.remote = remote
	c.follow()
	if c.door != nil {
		if err := c.door.Connect(remote); err != nil {
			c.relay.log.Warn("a publisher's datagrams wait as others do", "remote", remote, "error", err)
		}
	}
	c.mu.Unlock()
	c.with((*hop).follow)
}

// close has nothing outside of the library send or receive any more.
func (c *connection) close() {
	c.with((*hop).stop)
	if c.sealed != nil {
		c.sealed.sealer.Stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.follow()
	if c.door != nil {
		_ = c.door.Close() // nothing follows from it
		c.door = nil
	}
}
