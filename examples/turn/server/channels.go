package server

import (
	"io"
	"log/slog"
	"net/netip"
	"sync"
)

// channels keeps the kernel's sessions in step with pion's channels.
//
// pion reports an allocation's end after it took it out of its table, without its relayed address; so the same client
// may already have a new one from the same port, and a channel bound in that moment to the old one is never reported as
// deleted before its lifetime ends. Therefore allocations of one client are kept in the order of their making, an end
// is the oldest one's, it closes whatever sessions that still has, and a channel of an allocation that has ended opens
// none.
type channels struct {
	log  *slog.Logger
	open func(channel) (io.Closer, error)
	wire func(relayed netip.AddrPort) netip.AddrPort

	mu          sync.Mutex
	allocations map[party][]*allocation
	count       int // channels of all allocations
	offloaded   int // of those, with a session in the kernel
}

// channel is a channel with its addresses as they are on the wire.
type channel struct {
	client, server, relayed, peer netip.AddrPort
	number                        uint16
}

// party is a client on one listening socket, both as pion knows them.
type party struct{ client, listener netip.AddrPort }

type allocation struct {
	server   netip.AddrPort       // the address that the client uses, even if the listener's is unspecified
	relayed  netip.AddrPort       // as the client knows it
	channels map[uint16]io.Closer // nil if the channel is in user space
}

func newChannels(log *slog.Logger, open func(channel) (io.Closer, error),
	wire func(netip.AddrPort) netip.AddrPort) *channels {
	return &channels{log: log, open: open, wire: wire, allocations: map[party][]*allocation{}}
}

func (c *channels) allocationCreated(client, server, listener, relayed netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := party{client, listener}
	c.allocations[p] = append(c.allocations[p], &allocation{
		server: server, relayed: relayed, channels: map[uint16]io.Closer{},
	})
}

// allocationDeleted says whether it was the client's last.
func (c *channels) allocationDeleted(client, listener netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := party{client, listener}
	list := c.allocations[p]
	if len(list) == 0 {
		return true
	}
	for number := range list[0].channels {
		c.end(list[0], number)
	}
	if len(list) > 1 {
		c.allocations[p] = list[1:]
		return false
	}
	delete(c.allocations, p)
	return true
}

func (c *channels) channelCreated(client, listener, relayed, peer netip.AddrPort, number uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.find(client, listener, relayed)
	if a == nil {
		return // the allocation ended before its channel was made
	}
	c.end(a, number)
	session, err := c.open(channel{
		client: client, server: a.server, relayed: c.wire(relayed), peer: peer, number: number,
	})
	if err != nil {
		c.log.Warn("channel stays in user space", "client", client, "number", number, "peer", peer, "error", err)
	}
	a.channels[number] = session
	c.count++
	if session != nil {
		c.offloaded++
	}
}

func (c *channels) channelDeleted(client, listener, relayed netip.AddrPort, number uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.find(client, listener, relayed); a != nil {
		c.end(a, number)
	}
}

func (c *channels) find(client, listener, relayed netip.AddrPort) *allocation {
	for _, a := range c.allocations[party{client, listener}] {
		if a.relayed == relayed {
			return a
		}
	}
	return nil
}

// end closes a channel's session, if it has one. The caller holds mu.
func (c *channels) end(a *allocation, number uint16) {
	session, ok := a.channels[number]
	if !ok {
		return
	}
	delete(a.channels, number)
	c.count--
	if session == nil {
		return
	}
	c.offloaded--
	if err := session.Close(); err != nil {
		c.log.Error("closing a channel's session", "relayed", a.relayed, "number", number, "error", err)
	}
}

// counts returns the number of allocations, of channels, and of channels in the kernel.
func (c *channels) counts() (allocations, channels, offloaded int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, list := range c.allocations {
		allocations += len(list)
	}
	return allocations, c.count, c.offloaded
}
