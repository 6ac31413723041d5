package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/pion/turn/v5"
	"golang.org/x/sys/unix"
)

// traffic counts what passes through user space. A datagram counts as sent before it is, so that who has received it
// finds it counted.
type traffic struct{ received, sent atomic.Uint64 }

// counted is a socket whose datagrams are counted.
type counted struct {
	*net.UDPConn
	traffic *traffic
}

func (c counted) ReadFrom(p []byte) (int, net.Addr, error) {
	n, addr, err := c.UDPConn.ReadFrom(p)
	if err == nil {
		c.traffic.received.Add(1)
	}
	return n, addr, err
}

func (c counted) WriteTo(p []byte, addr net.Addr) (int, error) {
	c.traffic.sent.Add(1)
	return c.UDPConn.WriteTo(p, addr)
}

// socket is a listening socket. Bound to an unspecified address it remembers which address each client used, because
// that is the one that channel data carries, and the one to answer from on a host with several.
type socket struct {
	counted
	addr     netip.AddrPort // as pion reports it in events
	wildcard bool

	last atomic.Pointer[arrival] // of the datagram that pion is handling

	mu     sync.RWMutex
	pinned map[netip.AddrPort]netip.Addr // client to the local address it used; clients with an allocation
}

// readBuffer is the size of a socket's queue in bytes, for bursts that come while pion is busy.
const readBuffer = 2 << 20

// arrival is where a datagram came from and the local address that it came to.
type arrival struct {
	client netip.AddrPort
	local  netip.Addr
}

func network(addr netip.Addr) string {
	if addr.Is4() {
		return "udp4"
	}
	return "udp6"
}

func (s *Server) listen(addr netip.AddrPort) (*socket, error) {
	conn, err := net.ListenUDP(network(addr.Addr()), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadBuffer(readBuffer) // as much of it as the kernel allows
	sock := &socket{
		counted:  counted{conn, &s.user},
		addr:     addrPort(conn.LocalAddr()),
		wildcard: addr.Addr().IsUnspecified(),
		pinned:   map[netip.AddrPort]netip.Addr{},
	}
	if !sock.wildcard {
		return sock, nil
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var option error
		err = raw.Control(func(fd uintptr) {
			if addr.Addr().Is4() {
				option = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			} else {
				option = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
			}
		})
		err = errors.Join(err, option)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%v: the address that a packet came to can't be had: %w", addr, err)
	}
	return sock, nil
}

// ReadFrom reads the next datagram for pion.
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	if !s.wildcard {
		return s.counted.ReadFrom(p)
	}
	var oob [64]byte
	n, oobn, _, from, err := s.ReadMsgUDPAddrPort(p, oob[:])
	if err != nil {
		return n, nil, err
	}
	s.traffic.received.Add(1)
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	s.last.Store(&arrival{client: from, local: localAddr(oob[:oobn])})
	return n, net.UDPAddrFromAddrPort(from), nil
}

// WriteTo sends a datagram from the address that its client uses.
func (s *socket) WriteTo(p []byte, addr net.Addr) (int, error) {
	if !s.wildcard {
		return s.counted.WriteTo(p, addr)
	}
	client := addrPort(addr)
	s.traffic.sent.Add(1)
	n, _, err := s.WriteMsgUDPAddrPort(p, packetInfo(s.localFor(client)), client)
	return n, err
}

// localFor returns the address that a client used, or an invalid one for the kernel to choose.
func (s *socket) localFor(client netip.AddrPort) netip.Addr {
	s.mu.RLock()
	local, ok := s.pinned[client]
	s.mu.RUnlock()
	if ok {
		return local
	}
	if last := s.last.Load(); last != nil && last.client == client {
		return last.local
	}
	return netip.Addr{}
}

// pin remembers the address to which the datagram that is being handled came, until unpin, and returns it with the
// port.
func (s *socket) pin(client netip.AddrPort) netip.AddrPort {
	if !s.wildcard {
		return s.addr
	}
	local := s.localFor(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned[client] = local
	return netip.AddrPortFrom(local, s.addr.Port())
}

func (s *socket) unpin(client netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pinned, client)
}

// localAddr finds the destination of a datagram in its control messages (ip(7), ipv6(7)).
func localAddr(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[4:8])) // the local address, behind the interface
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		}
	}
	return netip.Addr{}
}

// packetInfo is the control message that sends a datagram from an address; nil for an invalid one.
func packetInfo(from netip.Addr) []byte {
	switch {
	case from.Is4():
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	case from.Is6():
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	}
	return nil
}

// generator makes the sockets of allocations, bound to the relay address of their family.
type generator struct{ *Server }

func (g generator) Validate() error { return nil }

func (g generator) AllocatePacketConn(want turn.AllocateListenerConfig) (net.PacketConn, net.Addr, error) {
	for _, a := range g.relay {
		if network(a.Local) != want.Network {
			continue
		}
		conn, err := net.ListenUDP(want.Network,
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Local, uint16(want.RequestedPort))))
		if err != nil {
			return nil, nil, err
		}
		_ = conn.SetReadBuffer(readBuffer) // as much of it as the kernel allows
		port := conn.LocalAddr().(*net.UDPAddr).Port
		return counted{conn, &g.user}, &net.UDPAddr{IP: a.public().AsSlice(), Port: port}, nil
	}
	return nil, nil, fmt.Errorf("no relay address for %s", want.Network)
}

var errOnlyUDP = errors.New("only UDP allocations are supported")

func (g generator) AllocateListener(turn.AllocateListenerConfig) (net.Listener, net.Addr, error) {
	return nil, nil, errOnlyUDP
}

func (g generator) AllocateConn(turn.AllocateConnConfig) (net.Conn, error) { return nil, errOnlyUDP }

// outwardAddresses finds an address for allocations in each family that is listened to: the one listened on, or if
// that is unspecified, the one that packets to the internet would carry.
func outwardAddresses(listen []netip.AddrPort) ([]RelayAddr, error) {
	var found []RelayAddr
	have := map[string]bool{}
	for _, l := range listen {
		addr := l.Addr()
		if have[network(addr)] {
			continue
		}
		if addr.IsUnspecified() {
			// Connecting a UDP socket sends nothing: it only asks the routing table. Both addresses are for
			// documentation.
			target := "192.0.2.1"
			if addr.Is6() {
				target = "2001:db8::1"
			}
			conn, err := net.Dial(network(addr), net.JoinHostPort(target, strconv.Itoa(9)))
			if err != nil {
				return nil, fmt.Errorf("turn server: no address of this host faces the internet over %s; name one "+
					"for allocations: %w", network(addr), err)
			}
			addr = addrPort(conn.LocalAddr()).Addr()
			conn.Close()
		}
		have[network(addr)] = true
		found = append(found, RelayAddr{Local: addr})
	}
	return found, nil
}
