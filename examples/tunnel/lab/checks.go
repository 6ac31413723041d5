package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Checks of a tunnel, each for an IP version inside. The gateway has to run, and both ends have to know their
// neighbours: Stream comes first.

// sends runs f, in which both programs have to send so many packets.
func (l *Lab) sends(least uint64, f func() error) error {
	programs := []*runtime.AnyProgram{l.Gateway.In(l.Kind), l.Gateway.Out(l.Kind)}
	var before [2]uint64
	for i, p := range programs {
		n, err := p.Count("sent")
		if err != nil {
			return err
		}
		before[i] = n.Packets
	}
	if err := f(); err != nil {
		return errors.Join(err, l.counted())
	}
	for i, p := range programs {
		n, err := p.Count("sent")
		if sent := n.Packets - before[i]; err != nil || sent < least {
			return errors.Join(fmt.Errorf("%s has sent %d packets, want %d", p.Name(), sent, least), err, l.counted())
		}
	}
	return nil
}

// counts runs f, in which a program has to count one packet of a reason.
func counts(p *runtime.AnyProgram, reason string, f func() error) error {
	before, err := p.Count(reason)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := p.Count(reason)
	if n := after.Packets - before.Packets; err != nil || n != 1 {
		return errors.Join(fmt.Errorf("%s has counted %d packets %s, want 1", p.Name(), n, reason), err)
	}
	return nil
}

// counted is an error that says what became of packets.
func (l *Lab) counted() error {
	text := ""
	for _, p := range []*runtime.AnyProgram{l.Gateway.In(l.Kind), l.Gateway.Out(l.Kind)} {
		counts, err := p.Counts()
		if err != nil {
			return err
		}
		for i, c := range counts {
			if c.Packets > 0 {
				text += fmt.Sprintf(" %s %s %d", p.Name(), p.Desc().Reason(i).Name, c.Packets)
			}
		}
	}
	return errors.New("counted:" + text)
}

// Stream sends an echo request, datagrams, and bytes by TCP through the tunnel, in both directions; the relay takes
// that many packets at least.
func (l *Lab) Stream(family, size int, least uint64) error {
	return l.sends(least, func() error {
		for what, err := range map[string]error{
			"ping": l.Ping(family, 100), "UDP": l.UDP(family, 1001), "TCP": l.TCP(family, size),
		} {
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

// SuperPackets sends streams and datagrams into the tunnel as packets that the kernel cuts into segments: at the other
// end, and as they leave the gateway. If it can cut them in this tunnel, none passes to the stack.
func (l *Lab) SuperPackets() (err error) {
	defer func() {
		err = errors.Join(err, offloads.Segmentation(l.ClientDev, false), offloads.TxChecksum(l.RelayOut, true))
	}()
	if err := offloads.Segmentation(l.ClientDev, true); err != nil {
		return err
	}
	before, err := l.Gateway.Out(l.Kind).Count("gso_packet")
	if err != nil {
		return err
	}
	for _, whole := range []bool{true, false} {
		if err := offloads.TxChecksum(l.RelayOut, whole); err != nil {
			return err
		}
		for _, family := range l.Families() {
			if err := errors.Join(l.TCP(family, 400_000), l.Datagrams(family, 1000, 9)); err != nil {
				return fmt.Errorf("GSO packets of IPv%d, whole %v: %w", family, whole,
					errors.Join(err, l.counted()))
			}
		}
	}
	after, err := l.Gateway.Out(l.Kind).Count("gso_packet")
	if passed := after.Packets - before.Packets; err != nil || (passed > 0) != l.Sums {
		return errors.Join(fmt.Errorf("%d GSO packets have passed to the stack", passed), err, l.counted())
	}
	return nil
}

// injected sends a frame from one device, and waits for that which ends with the same bytes at another one.
func injected(from, to *testnet.Dev, frame, end []byte) (f testnet.Frame, err error) {
	capture, err := to.Capture()
	if err != nil {
		return f, err
	}
	if err = from.Inject(frame); err == nil {
		err = testnet.Until(2*time.Second, fmt.Sprintf("%q arrives", end), func() (ok bool) {
			f, ok = find(capture.Frames(), end)
			return ok
		})
	}
	_, failed := capture.Stop()
	return f, errors.Join(err, failed)
}

// Unusual sends packets with options, and first and last fragments, through the tunnel in both directions: they go in
// and come out as any other, with one hop less.
func (l *Lab) Unusual(family int) error {
	device, err := l.Device()
	if err != nil {
		return err
	}
	return l.sends(4, func() error {
		for name, p := range map[string]Packet{
			"options": {Options: true}, "a fragment": {Fragment: true},
			"a fragment with options": {Options: true, Fragment: true},
			"the last fragment":       {Fragment: true, Offset: 185},
		} {
			client, peer := l.ClientAddr.Of(family), l.Inner.Of(family)
			in, out := p, p
			in.Src, in.Dst, in.Hops, in.Payload = client, peer, 9, words(name+", into the tunnel")
			out.Src, out.Dst, out.Hops, out.Payload = peer, client, 9, words(name+", out of it")
			frame, err := l.Plain(in)
			if err == nil {
				err = same(in, l.ClientDev, device, frame)
			}
			if err != nil {
				return fmt.Errorf("%s, into the tunnel: %w", name, err)
			}
			if frame, err = l.Encapsulated(0, out); err == nil {
				err = same(out, l.PeerDev, l.ClientDev, frame)
			}
			if err != nil {
				return fmt.Errorf("%s, out of the tunnel: %w", name, err)
			}
		}
		return nil
	})
}

// words is a text of a length that a fragment has: a multiple of 8 bytes.
func words(text string) []byte { return append(make([]byte, -len(text)&7), text...) }

// same sends a packet from one device, and compares what arrives at another one, but for the link-layer header and the
// hop.
func same(p Packet, from, to *testnet.Dev, frame []byte) error {
	f, err := injected(from, to, frame, p.Payload)
	if err != nil {
		return err
	}
	p.Hops--
	want, err := p.bytes()
	if err == nil && !bytes.HasSuffix(f.Data, want) {
		err = fmt.Errorf("got %x, want %x", f.Data, want)
	}
	return err
}

// OwnStack sends a packet for the gateway itself, whose socket gets it without the outer headers.
func (l *Lab) OwnStack(family int) error {
	at := netip.AddrPortFrom(l.RelayInAddr.Of(family), 7000)
	socket, err := listen(l.Relay, at)
	if err != nil {
		return err
	}
	defer socket.Close()
	frame, err := l.Encapsulated(0, Packet{
		Src: l.Inner.Of(family), Dst: at.Addr(), Hops: 1, Payload: []byte("for you"),
	})
	if err != nil {
		return err
	}
	return counts(l.Gateway.In(l.Kind), "pass", func() error {
		if err := l.PeerDev.Inject(frame); err != nil {
			return err
		}
		got := make([]byte, 100)
		n, from, err := socket.ReadFromUDPAddrPort(got)
		if err != nil || string(got[:n]) != "for you" || from.Addr().Unmap() != l.Inner.Of(family) {
			return errors.Join(fmt.Errorf("%q from %v", got[:n], from), err, l.counted())
		}
		return nil
	})
}

// TooLarge sends a packet that doesn't fit into the network once it is in the tunnel: it passes to the stack, which
// answers, and the sender learns what fits. What fits exactly is sent.
func (l *Lab) TooLarge(family int) error {
	if l.Alone {
		return errors.New("there is no device at the gateway, whose MTU the stack would know")
	}
	to := netip.AddrPortFrom(l.Inner.Of(family), 7000)
	var socket *net.UDPConn
	if err := l.Client.Do(func() (err error) {
		socket, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		return err
	}
	defer socket.Close()
	headers, level, name := 28, unix.IPPROTO_IP, unix.IP_MTU
	if family == 6 {
		headers, level, name = 48, unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	fits := int(l.mtu())
	err := counts(l.Gateway.Out(l.Kind), "too_big", func() error {
		if _, err := socket.Write(make([]byte, 1500-headers)); err != nil {
			return err
		}
		mtu, err := 0, error(nil)
		waited := testnet.Until(2*time.Second, "the sender learns the MTU", func() bool {
			mtu, err = option(socket, level, name)
			return err != nil || mtu == fits
		})
		if waited != nil {
			waited = fmt.Errorf("%w: it is %d, want %d", waited, mtu, fits)
		}
		return errors.Join(waited, err)
	})
	if err != nil {
		return errors.Join(err, l.counted())
	}
	return l.sends(1, func() error { return l.UDP(family, fits-headers) })
}

// option reads a number that a socket has.
func option(c *net.UDPConn, level, name int) (value int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), level, name) })
	return value, errors.Join(err, failed)
}

// class is the traffic class of the outermost IP header.
func class(f testnet.Frame) (uint8, error) {
	switch ip := dissect.Packet(f).NetworkLayer().(type) {
	case *layers.IPv4:
		return ip.TOS, nil
	case *layers.IPv6:
		return ip.TrafficClass, nil
	}
	return 0, fmt.Errorf("no IP packet: %x", f.Data)
}
