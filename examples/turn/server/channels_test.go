package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// kernel stands for the relay: it knows which channels are open.
type kernel struct {
	open map[channel]bool
	full bool
}

type session struct {
	k  *kernel
	ch channel
}

func (s session) Close() error {
	if !s.k.open[s.ch] {
		return errors.New("closed twice")
	}
	delete(s.k.open, s.ch)
	return nil
}

func (k *kernel) start(ch channel) (io.Closer, error) {
	if k.full {
		return nil, errors.New("full")
	}
	k.open[ch] = true
	return session{k, ch}, nil
}

var (
	client   = netip.MustParseAddrPort("198.51.100.7:40001")
	listener = netip.MustParseAddrPort("0.0.0.0:3478")
	used     = netip.MustParseAddrPort("192.0.2.1:3478")
	relayed  = netip.MustParseAddrPort("203.0.113.9:50000")
	later    = netip.MustParseAddrPort("203.0.113.9:50001")
	local    = netip.MustParseAddr("10.0.0.9")
	peer     = netip.MustParseAddrPort("203.0.113.50:7000")
)

func newTest() (*channels, *kernel) {
	k := &kernel{open: map[channel]bool{}}
	return newChannels(slog.New(slog.DiscardHandler), k.start, func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(local, a.Port())
	}), k
}

func TestChannelHasAddressesOfTheWire(t *testing.T) {
	c, k := newTest()
	c.allocationCreated(client, used, listener, relayed)
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	want := channel{
		client: client, server: used, relayed: netip.AddrPortFrom(local, relayed.Port()), peer: peer, number: 0x4001,
	}
	if len(k.open) != 1 || !k.open[want] {
		t.Errorf("open: %v, want %v", k.open, want)
	}
	c.channelDeleted(client, listener, relayed, 0x4001)
	if len(k.open) != 0 {
		t.Errorf("open after the end: %v", k.open)
	}
}

func TestEndOfAllocationClosesChannels(t *testing.T) {
	c, k := newTest()
	c.allocationCreated(client, used, listener, relayed)
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	c.channelCreated(client, listener, relayed, peer, 0x4002)
	if !c.allocationDeleted(client, listener) {
		t.Error("it was the last one")
	}
	if len(k.open) != 0 {
		t.Errorf("open: %v", k.open)
	}
	// pion's timer may still report their end.
	c.channelDeleted(client, listener, relayed, 0x4001)
	if a, n, o := c.counts(); a+n+o != 0 {
		t.Errorf("left: %d allocations, %d channels, %d in the kernel", a, n, o)
	}
}

// A channel that pion makes in the moment in which it ends the allocation opens nothing.
func TestChannelOfEndedAllocation(t *testing.T) {
	c, k := newTest()
	c.allocationCreated(client, used, listener, relayed)
	c.allocationDeleted(client, listener)
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	if len(k.open) != 0 {
		t.Errorf("open: %v", k.open)
	}
}

// The end of an allocation may be reported after the same client's next one has begun; it must not take that along.
func TestEndToldLate(t *testing.T) {
	c, k := newTest()
	c.allocationCreated(client, used, listener, relayed)
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	c.allocationCreated(client, used, listener, later)
	if c.allocationDeleted(client, listener) {
		t.Error("the client has another allocation")
	}
	if len(k.open) != 0 {
		t.Errorf("open: %v", k.open)
	}
	c.channelCreated(client, listener, later, peer, 0x4001)
	if len(k.open) != 1 {
		t.Errorf("open: %v", k.open)
	}
}

// A channel for which there is no room works in user space, and its number can be used again.
func TestNoRoom(t *testing.T) {
	c, k := newTest()
	k.full = true
	c.allocationCreated(client, used, listener, relayed)
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	if _, n, o := c.counts(); n != 1 || o != 0 {
		t.Errorf("%d channels, %d in the kernel; want 1 and 0", n, o)
	}
	c.channelDeleted(client, listener, relayed, 0x4001)
	k.full = false
	c.channelCreated(client, listener, relayed, peer, 0x4001)
	if _, n, o := c.counts(); n != 1 || o != 1 {
		t.Errorf("%d channels, %d in the kernel; want 1 and 1", n, o)
	}
}

func TestAllowPeer(t *testing.T) {
	for _, c := range []struct {
		peer string
		ok   bool
	}{
		{"203.0.113.9", true}, {"2001:db8::9", true}, {"10.0.0.1", true},
		{"127.0.0.1", false}, {"::1", false}, {"::ffff:127.0.0.1", false}, {"0.0.0.0", false}, {"::", false},
		{"224.0.0.1", false}, {"ff02::1", false}, {"255.255.255.255", false}, {"169.254.1.1", false},
		{"fe80::1", false},
	} {
		if got := allowPeer(nil, net.IP(netip.MustParseAddr(c.peer).AsSlice())); got != c.ok {
			t.Errorf("peer %s: %v, want %v", c.peer, got, c.ok)
		}
	}
}

// An event of a listener that the server doesn't know leaves that allocation in user space, and the server running.
func TestUnknownListener(t *testing.T) {
	c, k := newTest()
	var log strings.Builder
	s := &Server{channels: c, log: slog.New(slog.NewTextHandler(&log, nil))}
	on, udp := s.events(), net.UDPAddrFromAddrPort
	on.OnAllocationCreated(udp(client), udp(listener), "udp", "user", "realm", udp(relayed), 0)
	on.OnChannelCreated(udp(client), udp(listener), "udp", "user", "realm", udp(relayed), udp(peer), 0x4000)
	on.OnAllocationDeleted(udp(client), udp(listener), "udp", "user", "realm")
	if !strings.Contains(log.String(), listener.String()) {
		t.Errorf("the log doesn't name the listener: %s", log.String())
	}
	if n, channels, _ := c.counts(); n != 0 || channels != 0 || len(k.open) != 0 {
		t.Errorf("%d allocations, %d channels, %d sessions", n, channels, len(k.open))
	}
}
