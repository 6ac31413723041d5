package segments

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const port = 5004

// bed is a server with a sender, and a host whose sockets are its receivers.
type bed struct {
	testing.TB
	line   *testnet.Line
	conn   *net.UDPConn // the server's
	sender *Sender
}

func newBed(t testing.TB) *bed {
	t.Helper()
	needs.Root(t)
	line, err := testnet.Start(t).Line()
	check(t, err)
	b := &bed{TB: t, line: line}
	b.do(func() (err error) {
		if b.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); err != nil {
			return err
		}
		b.sender, err = New(Config{Conn: b.conn, Logger: slog.New(slog.DiscardHandler)})
		return err
	})
	t.Cleanup(func() {
		check(t, b.sender.Close())
		b.conn.Close()
	})
	return b
}

// do runs f in the server's namespace.
func (b *bed) do(f func() error) {
	b.Helper()
	check(b.TB, b.line.Relay.Do(f))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client is a receiver and its socket.
type client struct {
	*Receiver
	conn *net.UDPConn
	from netip.AddrPort // the server, as the client sees it
}

// client adds a receiver of a family, at the peer's host.
func (b *bed) client(family int) client {
	b.Helper()
	return b.clientAt(b.line.Peer, b.line.RelayOutAddr.Of(family), b.line.PeerAddr.Of(family))
}

func (b *bed) clientAt(host *testnet.Host, local, at netip.Addr) client {
	b.Helper()
	c := client{from: netip.AddrPortFrom(local, port)}
	check(b.TB, host.Do(func() (err error) {
		c.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	}))
	b.Cleanup(func() { c.conn.Close() })
	var err error
	c.Receiver, err = b.sender.Add(c.from, c.conn.LocalAddr().(*net.UDPAddr).AddrPort())
	check(b.TB, err)
	return c
}

// wants reads the next packet, and compares it and where it is from.
func (b *bed) wants(c client, payload []byte) {
	b.Helper()
	check(b.TB, c.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, 1<<16)
	n, from, err := c.conn.ReadFromUDPAddrPort(buf)
	check(b.TB, err)
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != c.from || !bytes.Equal(buf[:n], payload) {
		b.Fatalf("%s got %d bytes %.8x… from %s, want %d bytes %.8x… from %s",
			c.conn.LocalAddr(), n, buf[:n], from, len(payload), payload, c.from)
	}
}

// payload is one of a size that is unlike all others.
func payload(size, n int) []byte {
	b := bytes.Repeat([]byte{byte(n)}, size)
	if size >= 8 {
		binary.BigEndian.PutUint64(b, uint64(n))
	}
	return b
}

// two are packets of one size.
func two(a, b client) []Packet {
	return []Packet{{To: a.Receiver, Payload: payload(100, 1)}, {To: b.Receiver, Payload: payload(100, 2)}}
}

func (b *bed) counts(want Stats) {
	b.Helper()
	got, err := b.sender.Stats()
	check(b.TB, err)
	if got != want {
		b.Errorf("counted\n%+v, want\n%+v", got, want)
	}
}

// Each receiver gets its own packets, in order, from the server's address, whatever their sizes and families.
func TestSend(t *testing.T) {
	b := newBed(t)
	check(t, b.sender.Kernel())
	var clients []client
	for n := range 100 {
		clients = append(clients, b.client(4+2*(n%2)))
	}
	n := 0
	var all Stats
	for _, size := range []int{0, 1, 7, 8, 100, 1000, 1400, 1452} {
		var packets []Packet
		for range 2 {
			for _, c := range clients {
				packets = append(packets, Packet{To: c.Receiver, Payload: payload(size, n)})
				n++
			}
		}
		check(t, b.sender.Send(packets))
		for i, p := range packets {
			b.wants(clients[i%len(clients)], p.Payload)
		}
		all.Segments += 200
		most := min(maxPieces, maxBytes/(numbered+size))
		all.Sends += uint64((200 + most - 1) / most)
	}
	all.Relayed = all.Segments
	b.counts(all)
}

// Packets to one receiver stay in order where their sizes or ECN differ; what has no companion is sent alone.
func TestSizes(t *testing.T) {
	b := newBed(t)
	clients := []client{b.client(4), b.client(6), b.client(4)}
	sizes := []int{500, 600, 500, 500, 700, 600, 10, 500}
	var packets []Packet
	want := map[*Receiver][][]byte{}
	for n, size := range sizes {
		for i, c := range clients {
			if n == 4 && i > 0 {
				continue // 700: alone
			}
			p := Packet{To: c.Receiver, Payload: payload(size, len(packets)), ECN: uint8(n % 3)}
			packets = append(packets, p)
			want[p.To] = append(want[p.To], p.Payload)
		}
	}
	check(t, b.sender.Send(packets))
	for _, c := range clients {
		for _, p := range want[c.Receiver] {
			b.wants(c, p)
		}
	}
	s, err := b.sender.Stats()
	check(t, err)
	if s.Single != 1 || s.Relayed != uint64(len(packets)-1) || s.Segments != s.Relayed {
		t.Errorf("of %d packets, one of which is alone, were sent: %+v", len(packets), s)
	}
}

// A packet is marked as its sender says, alone or not, in either family.
func TestECN(t *testing.T) {
	b := newBed(t)
	capture, err := b.line.PeerDev.Capture()
	check(t, err)
	clients := []client{b.client(4), b.client(6)}
	for ecn := range uint8(4) {
		var both []Packet
		for _, c := range clients {
			both = append(both, Packet{To: c.Receiver, Payload: payload(32, int(ecn)), ECN: ecn})
		}
		check(t, b.sender.Send(both))
		check(t, b.sender.Send(both[:1]))
		check(t, b.sender.Send(both[1:]))
		for _, c := range clients {
			b.wants(c, both[0].Payload)
			b.wants(c, both[0].Payload)
		}
	}
	frames, err := capture.Stop()
	check(t, err)
	got := map[string]int{}
	for _, f := range frames {
		switch ip := f.Data[14:]; {
		case ip[0]>>4 == 4 && ip[9] == unix.IPPROTO_UDP:
			got[fmt.Sprintf("IPv4, %d", ip[1]&3)]++
		case ip[0]>>4 == 6 && ip[6] == unix.IPPROTO_UDP:
			got[fmt.Sprintf("IPv6, %d", ip[1]>>4&3)]++
		}
	}
	for ecn := range 4 {
		for _, family := range []string{"IPv4", "IPv6"} {
			if n := got[fmt.Sprintf("%s, %d", family, ecn)]; n != 2 {
				t.Errorf("%s: %d packets had ECN %d, want 2", family, n, ecn)
			}
		}
	}
}

// What a path has no room for is an error of that packet alone, which a change of the path's MTU is followed by.
func TestTooBig(t *testing.T) {
	b := newBed(t)
	c, other := b.client(4), b.client(6)
	var big *TooBigError
	packets := []Packet{
		{To: c.Receiver, Payload: payload(1473, 1)}, {To: c.Receiver, Payload: payload(1472, 2)},
		{To: other.Receiver, Payload: payload(1453, 3)}, {To: other.Receiver, Payload: payload(1452, 4)},
	}
	err := b.sender.Send(packets)
	if !errors.As(err, &big) || big.Room != 1472 || big.Payload != 1473 || !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet that is too big: %v", err)
	}
	if packets[1].Err != nil || !errors.Is(packets[2].Err, unix.EMSGSIZE) || packets[3].Err != nil {
		t.Errorf("errors of the others: %v, %v, %v", packets[1].Err, packets[2].Err, packets[3].Err)
	}
	b.wants(c, packets[1].Payload)
	b.wants(other, packets[3].Payload)
	b.do(func() error {
		link, err := netlink.LinkByName("eth1")
		return errors.Join(err, netlink.LinkSetMTU(link, 1300))
	})
	check(t, testnet.Until(time.Minute, "the new MTU is known", func() bool { return c.look().mtu == 1300 }))
	if err := b.sender.Send(packets[1:2]); !errors.As(err, &big) || big.Room != 1272 {
		t.Errorf("after the MTU has changed: %v", err)
	}
}

// What the kernel has no next hop for is sent by the socket, from the server's address: a receiver on this host, and
// one whose route goes.
func TestNoNextHop(t *testing.T) {
	b := newBed(t)
	here := b.clientAt(b.line.Relay, b.line.RelayOutAddr.V4, b.line.RelayInAddr.V4)
	c := b.client(4)
	packets := two(here, here)
	check(t, b.sender.Send(packets))
	b.wants(here, packets[0].Payload)
	b.wants(here, packets[1].Payload)
	b.counts(Stats{Single: 2})
	b.do(func() error {
		link, err := netlink.LinkByName("eth1")
		return errors.Join(err, netlink.LinkSetDown(link))
	})
	check(t, testnet.Until(time.Minute, "the route is gone", func() bool { return !c.look().segments }))
	packets = two(c, c)
	if err := b.sender.Send(packets); !errors.Is(err, unix.ENETUNREACH) || packets[1].Err == nil {
		t.Errorf("without a route: %v, %v", packets[0].Err, packets[1].Err)
	}
	b.counts(Stats{Single: 2, Failed: 2})
}

// What comes to the relay when it can't send it any more comes back, and is sent by the socket.
func TestReturned(t *testing.T) {
	b := newBed(t)
	here := b.clientAt(b.line.Relay, b.line.RelayOutAddr.V4, b.line.RelayInAddr.V4)
	here.look()
	stale := *here.path.Load()
	stale.segments, stale.mtu = true, 1500 // as it might have been a moment ago
	here.path.Store(&stale)
	packets := []Packet{
		{To: here.Receiver, Payload: payload(100, 1), ECN: 1}, {To: here.Receiver, Payload: payload(100, 2), ECN: 1},
	}
	check(t, b.sender.Send(packets))
	b.wants(here, packets[0].Payload)
	b.wants(here, packets[1].Payload)
	counted := func() bool { return b.sender.counts.returned.Load() == 2 }
	check(t, testnet.Until(time.Minute, "both are counted", counted))
	b.counts(Stats{Sends: 1, Segments: 2, Returned: 2})
}

// Where something is missing, all is sent by the socket, and Kernel says what.
func TestWithoutRights(t *testing.T) {
	needs.Root(t)
	const all, netRaw = ^uint32(0), uint32(1) << unix.CAP_NET_RAW
	for name, drop := range map[string]uint32{"no capability": all, "without CAP_NET_RAW": netRaw} {
		t.Run(name, func(t *testing.T) {
			line, err := testnet.Start(t).Line()
			check(t, err)
			b := &bed{TB: t, line: line}
			b.do(func() (err error) {
				if b.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); err != nil {
					return err
				}
				head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				var had [2]unix.CapUserData
				if err := unix.Capget(&head, &had[0]); err != nil {
					return err
				}
				less := had // the permitted ones stay, so that the thread can have all again
				less[0].Effective &^= drop
				if drop == all {
					less[1].Effective = 0
				}
				if err := unix.Capset(&head, &less[0]); err != nil {
					return err
				}
				b.sender, err = New(Config{Conn: b.conn, Logger: slog.New(slog.DiscardHandler)})
				return errors.Join(err, unix.Capset(&head, &had[0]))
			})
			defer b.sender.Close()
			var missing *runtime.KernelError
			if err := b.sender.Kernel(); !errors.As(err, &missing) || b.sender.Device() != "" {
				t.Errorf("without rights: device %q, %v", b.sender.Device(), err)
			}
			clients := []client{b.client(4), b.client(6)}
			packets := two(clients[0], clients[1])
			check(t, b.sender.Send(packets))
			b.wants(clients[0], packets[0].Payload)
			b.wants(clients[1], packets[1].Payload)
			b.counts(Stats{Single: 2})
		})
	}
}

// A sender that is to send one by one has no devices, and needs no rights.
func TestOneByOne(t *testing.T) {
	b := newBed(t)
	check(t, b.sender.Close())
	b.do(func() (err error) {
		b.sender, err = New(Config{Conn: b.conn, OneByOne: true})
		return err
	})
	if err := b.sender.Kernel(); err == nil || b.sender.Device() != "" {
		t.Errorf("device %q, %v", b.sender.Device(), err)
	}
	clients := []client{b.client(4), b.client(6)}
	packets := two(clients[0], clients[1])
	check(t, b.sender.Send(packets))
	b.wants(clients[0], packets[0].Payload)
	b.wants(clients[1], packets[1].Payload)
	b.counts(Stats{Single: 2})
}

// Senders of one namespace have devices of their own. What a dead one left is replaced, what isn't a sender's is left
// alone, and nothing stays after Close.
func TestDevices(t *testing.T) {
	b := newBed(t)
	if name := b.sender.Device(); name != "frseg0" {
		t.Errorf("the first sender's device is %q", name)
	}
	b.do(func() error {
		stale := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "frseg1"}, PeerName: "frsegpeer1"}
		foreign := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "frseg2"}}
		if err := errors.Join(netlink.LinkAdd(stale), netlink.LinkAdd(foreign)); err != nil {
			return err
		}
		for _, want := range []string{"frseg1", "frseg3"} {
			s, err := New(Config{Conn: b.conn, Logger: slog.New(slog.DiscardHandler)})
			if err != nil || s.Device() != want {
				return fmt.Errorf("device %s, want %s: %v, %v", s.Device(), want, err, s.Kernel())
			}
			defer s.Close()
		}
		return nil
	})
	check(t, b.sender.Close())
	b.do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if n := l.Attrs().Name; n != "lo" && n != "eth0" && n != "eth1" && n != "frseg2" {
				t.Errorf("%s has stayed", n)
			}
		}
		return err
	})
	if err := b.sender.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	if _, err := b.sender.Add(netip.AddrPort{}, netip.AddrPort{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Add after Close: %v", err)
	}
}

// A device that somebody deletes doesn't stop a server.
func TestDeviceGone(t *testing.T) {
	b := newBed(t)
	check(t, b.sender.Kernel())
	clients := []client{b.client(4), b.client(6)}
	b.do(func() error { return netlink.LinkDel(b.sender.pair.in) })
	packets := two(clients[0], clients[1])
	check(t, b.sender.Send(packets))
	b.wants(clients[0], packets[0].Payload)
	b.wants(clients[1], packets[1].Payload)
	b.counts(Stats{Single: 2, Refused: 2})
}

// Goroutines may send, add and remove at once.
func TestConcurrent(t *testing.T) {
	b := newBed(t)
	var all sync.WaitGroup
	for range 4 {
		clients := []client{b.client(4), b.client(6), b.client(4)}
		all.Go(func() {
			for n := range 200 {
				var packets []Packet
				for _, c := range clients {
					packets = append(packets, Packet{To: c.Receiver, Payload: payload(200, n)})
				}
				if err := b.sender.Send(packets); err != nil {
					t.Error(err)
				}
				for i, c := range clients {
					b.wants(c, packets[i].Payload)
				}
				r, err := b.sender.Add(clients[0].from, clients[0].remote)
				if err = errors.Join(err, r.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	b.counts(Stats{Sends: 800, Segments: 2400, Relayed: 2400})
}

// What can't be a receiver is refused.
func TestAdd(t *testing.T) {
	b := newBed(t)
	at := netip.MustParseAddrPort
	var wrong *runtime.ValueError
	for _, c := range []struct{ local, remote netip.AddrPort }{
		{at("192.0.2.1:5004"), at("[2001:db8::1]:6000")}, {at("192.0.2.1:5004"), at("224.0.0.1:6000")},
		{at("0.0.0.0:5004"), at("192.0.2.1:5004")}, {netip.AddrPort{}, at("192.0.2.1:5004")},
		{at("192.0.2.1:5004"), at("192.0.2.2:0")}, {at("192.0.2.1:5005"), at("192.0.2.2:5004")},
	} {
		if r, err := b.sender.Add(c.local, c.remote); !errors.As(err, &wrong) {
			t.Errorf("from %s to %s: %v, %v", c.local, c.remote, r, err)
		}
	}
	c := b.client(4)
	check(t, c.Close())
	check(t, c.Close())
	if err := b.sender.Send([]Packet{{To: c.Receiver}}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("to a receiver that was removed: %v", err)
	}
	other := b.client(4).Receiver
	for what, p := range map[string]Packet{"without a receiver": {}, "with an ECN": {To: other, ECN: 4}} {
		if err := b.sender.Send([]Packet{p}); err == nil {
			t.Errorf("a packet %s is sent", what)
		}
	}
	r, err := b.sender.Add(netip.MustParseAddrPort("[::ffff:192.0.2.1]:5004"), at("[::ffff:192.0.2.2]:6000"))
	if err != nil || r.remote != at("192.0.2.2:6000") {
		t.Errorf("IPv4-mapped addresses: %v, %v", r, err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a sender without a socket")
	}
	check(t, b.sender.Close())
	late := []Packet{{To: r}}
	if err := b.sender.Send(late); !errors.Is(err, net.ErrClosed) || !errors.Is(late[0].Err, net.ErrClosed) {
		t.Errorf("after Close: %v, %v", err, late[0].Err)
	}
}
