package relay

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A connection is a QUIC connection, of one session or, with WebTransport, of several.
type connection struct {
	relay      *Relay
	hooks      quic.Hooks
	outside    atomic.Pointer[quic.Outside]
	subscribes atomic.Bool
	requests   acks.Requests // its run loop's

	mu     sync.Mutex
	remote netip.AddrPort
	door   *socket.Door // of one that publishes; nil: it has none
	over   bool
}

type connectionKey struct{}

// newConnection has the socket's reader take the turns of a connection's run loop.
func (r *Relay) newConnection(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	c := &connection{relay: r, remote: addressOf(info.RemoteAddr)}
	c.hooks = quic.Hooks{
		Turns: &r.socket.Turns, Path: c.thin, Moved: func(_, remote net.Addr) { c.move(addressOf(remote)) },
		Closing: func(error) { c.closeDoor() },
	}
	return quic.WithHooks(context.WithValue(ctx, connectionKey{}, c), &c.hooks), nil
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
	if outside := c.outside.Load(); outside != nil && c.subscribes.Load() {
		c.requests.Update(outside, c.relay.config.ACKs, p.CongestionWindow, p.MaxPacketSize)
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

// move has the door follow the peer.
func (c *connection) move(remote netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remote = remote
	if c.door == nil {
		return
	}
	if err := c.door.Connect(remote); err != nil {
		c.relay.log.Warn("a publisher's datagrams wait as others do", "remote", remote, "error", err)
	}
}

func (c *connection) closeDoor() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over = true; c.door != nil {
		_ = c.door.Close() // nothing follows from it
		c.door = nil
	}
}
