package main

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// What a packet is inside doesn't matter to a tunnel: with options, or a fragment, it goes in and comes out as any
// other, with one hop less.
func TestInside(t *testing.T) {
	l, g := start(t, lab.Options{Kind: gateway.VXLAN, Outside: 4})
	if err := l.Ping(4, 10); err != nil { // both know their neighbours
		t.Fatal(err)
	}
	device := &testnet.Dev{Host: l.Peer, Name: lab.Device}
	if err := l.Peer.Do(func() error {
		dev, err := net.InterfaceByName(lab.Device)
		device.Index = dev.Index
		return err
	}); err != nil {
		t.Fatal(err)
	}
	options := []layers.IPv4Option{
		{OptionType: 1, OptionLength: 1}, {OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}},
	}
	for name, p := range map[string]lab.Packet{
		"options": {Options: options}, "a fragment": {Fragment: true, ID: 77},
		"a fragment with options": {Options: options, Fragment: true, ID: 78},
	} {
		p.Hops, p.Payload = 9, []byte("sixteen bytes of "+name)
		p.Payload = append(make([]byte, 7-(len(p.Payload)+7)%8), p.Payload...) // fragments have a multiple of 8 bytes
		for _, into := range []bool{true, false} {
			var frame []byte
			var err error
			from, to := l.ClientDev, device
			if into {
				p.Src, p.Dst = l.ClientAddr.V4, l.Inner.V4
				frame, err = l.Plain(p)
			} else {
				p.Src, p.Dst = l.Inner.V4, l.ClientAddr.V4
				frame, err = l.Encapsulated(0, p)
				from, to = l.PeerDev, l.ClientDev
			}
			if err != nil {
				t.Fatal(err)
			}
			capture, err := to.Capture()
			if err != nil {
				t.Fatal(err)
			}
			if err := from.Inject(frame); err != nil {
				t.Fatal(err)
			}
			f := wait(t, capture, p.Payload)
			if _, err := capture.Stop(); err != nil {
				t.Fatal(err)
			}
			want := frame[len(frame)-len(f.Data)+14:] // the IP packet
			got := bytes.Clone(f.Data[14:])
			if got[8] != want[8]-1 {
				t.Errorf("%s: hop limit %d, was %d", name, got[8], want[8])
			}
			if sum := lab.Sum(got[:4*(got[0]&15)]); sum != 0 {
				t.Errorf("%s: wrong checksum of the header", name)
			}
			copy(got[8:12], want[8:12])
			if !bytes.Equal(got, want) {
				t.Errorf("%s: got %x, want %x", name, got, want)
			}
		}
	}
	for what, count := range map[string]func() (uint64, error){
		"in": func() (uint64, error) {
			n, err := g.Relay().VxlanIn.Count(tunnelrelay.VxlanInSent)
			return n.Packets, err
		},
		"out": func() (uint64, error) {
			n, err := g.Relay().VxlanOut.Count(tunnelrelay.VxlanOutSent)
			return n.Packets, err
		},
	} {
		if n, err := count(); err != nil || n < 3 {
			t.Error(what, n, err)
		}
	}
}

// A packet for the gateway itself reaches its socket, without the outer headers.
func TestOwnStack(t *testing.T) {
	for _, outside := range []int{4, 6} {
		for _, inside := range []int{4, 6} {
			l, g := start(t, lab.Options{Kind: gateway.VXLAN, Outside: outside, Alone: true})
			at := netip.AddrPortFrom(l.RelayInAddr.Of(inside), 7000)
			var socket *net.UDPConn
			if err := l.Relay.Do(func() (err error) {
				socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			frame, err := l.Encapsulated(0, lab.Packet{
				Src: l.Inner.Of(inside), Dst: at.Addr(), Hops: 1, Payload: []byte("for you"),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := l.PeerDev.Inject(frame); err != nil {
				t.Fatal(err)
			}
			if err := socket.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 100)
			n, from, err := socket.ReadFromUDPAddrPort(got)
			if err != nil || string(got[:n]) != "for you" || from.Addr().Unmap() != l.Inner.Of(inside) {
				t.Errorf("IPv%d over IPv%d: %q from %v, %v", inside, outside, got[:n], from, err)
			}
			if n, err := g.Relay().VxlanIn.Count(tunnelrelay.VxlanInPass); err != nil || n.Packets != 1 {
				t.Error(n, err)
			}
		}
	}
}

// A packet that doesn't fit into the network once it is in the tunnel passes to the stack, which answers: the sender
// learns what fits.
func TestTooLarge(t *testing.T) {
	l, g := start(t, lab.Options{Kind: gateway.VXLAN, Outside: 4})
	for _, inside := range []int{4, 6} {
		if err := l.Ping(inside, 10); err != nil {
			t.Fatal(err)
		}
		var socket *net.UDPConn
		if err := l.Client.Do(func() (err error) {
			to := netip.AddrPortFrom(l.Inner.Of(inside), 7000)
			socket, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		headers, mtu := 28, func() int { return option(t, socket, unix.IPPROTO_IP, unix.IP_MTU) }
		if inside == 6 {
			headers, mtu = 48, func() int { return option(t, socket, unix.IPPROTO_IPV6, unix.IPV6_MTU) }
		}
		before, err := g.Relay().VxlanOut.Count(tunnelrelay.VxlanOutTooBig)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := socket.Write(make([]byte, 1500-headers)); err != nil {
			t.Fatal(err)
		}
		err = testnet.Until(2*time.Second, "the sender learns the MTU", func() bool { return mtu() == 1450 })
		if err != nil {
			t.Error(err, mtu())
		}
		after, err := g.Relay().VxlanOut.Count(tunnelrelay.VxlanOutTooBig)
		if err != nil || after.Packets != before.Packets+1 {
			t.Error(before, after, err)
		}
		if err := l.UDP(inside, 1450-headers); err != nil { // fits exactly
			t.Error(err)
		}
	}
}

// option reads a number that a socket has.
func option(t *testing.T, c *net.UDPConn, level, name int) (value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), level, name) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return value
}
