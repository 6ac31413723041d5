package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// deviceRoute is the path through a device of a kind, with its addresses.
type deviceRoute struct {
	*deviceLab
	name       string
	cable, out *testnet.Dev // of the relay: the cable, and the device
	far        *testnet.Dev // the cable's end at the peer
	local      testnet.Addrs
	peer       testnet.Addrs
	deaf       bool // the kernel doesn't show programs the packets that come in by the device
}

// tagged is from where on the relay puts a header in front of the payload, which is that.
const tagged = 30000

var tag = append([]byte{0, 0, 0x7a, 0x67}, make([]byte, 20)...)

// flow is a client's socket, a peer's, and rows that relay between the two.
type flow struct {
	client, peer         *net.UDPConn
	clientSide, peerSide netip.AddrPort // the relay's
	clientAddr, peerAddr netip.AddrPort
}

// flow makes one; from is the lowest port of the relay that it may use.
func (w *deviceRoute) flow(from uint16, clientFamily, peerFamily int) (*flow, error) {
	w.ports++
	port := w.ports
	f := &flow{
		clientAddr: netip.AddrPortFrom(w.line.ClientAddr.Of(clientFamily), port),
		clientSide: netip.AddrPortFrom(w.line.RelayInAddr.Of(clientFamily), from+port),
		peerAddr:   netip.AddrPortFrom(w.peer.Of(peerFamily), 5000+port),
		peerSide:   netip.AddrPortFrom(w.local.Of(peerFamily), 10000+port),
	}
	peers := w.relay.Table("peers")
	err := errors.Join(
		peers.Put([]any{f.clientSide.Port()}, []any{f.peerSide, f.peerAddr}),
		peers.Put([]any{f.peerSide.Port()}, []any{f.clientSide, f.clientAddr}),
	)
	if err != nil {
		return nil, err
	}
	if f.client, err = listen(w.line.Client, f.clientAddr); err != nil {
		return nil, err
	}
	if f.peer, err = listen(w.line.Peer, f.peerAddr); err != nil {
		f.client.Close()
		return nil, err
	}
	return f, nil
}

func (f *flow) close() error { return errors.Join(f.client.Close(), f.peer.Close()) }

// talk sends there and back, with a header put in and without. The receivers verify checksums.
func (w *deviceRoute) talk(clientFamily, peerFamily int) error {
	for _, from := range []uint16{20000, tagged} {
		f, err := w.flow(from, clientFamily, peerFamily)
		if err != nil {
			return err
		}
		message := []byte("through a " + w.name)
		want := message
		if from == tagged {
			want = append(bytes.Clone(tag), message...)
		}
		err = pass(f.client, f.clientSide, message, f.peer, f.peerSide, want)
		if err != nil {
			err = fmt.Errorf("to the peer: %w", err)
		} else if w.deaf {
			err = w.passes(f, message)
		} else if err = pass(f.peer, f.peerSide, message, f.client, f.clientSide, message); err != nil {
			err = fmt.Errorf("to the client: %w", err)
		}
		if err := errors.Join(err, f.close()); err != nil {
			return err
		}
	}
	return nil
}

// passes sends to the client when the relay can't relay that, and awaits that it has passed to the stack.
func (w *deviceRoute) passes(f *flow, message []byte) error {
	p := w.relay.Program("bare")
	before, err := punted(p)
	if err != nil {
		return err
	}
	if _, err := f.peer.WriteToUDPAddrPort(message, f.peerSide); err != nil {
		return err
	}
	err = testnet.Until(patience, "the packet passes to the stack", func() bool {
		now, err := punted(p)
		return err == nil && now > before
	})
	sent, failed := p.Count("sent")
	if sent.Packets > 0 {
		failed = fmt.Errorf("%d packets were sent", sent.Packets)
	}
	return errors.Join(err, failed)
}

// punted counts the packets that a program has passed to the stack unmodified.
func punted(p *runtime.AnyProgram) (n uint64, err error) {
	all, err := p.Counts()
	for i, r := range p.Desc().Reasons {
		if err == nil && r.Kind == abi.ReasonPunted {
			n += all[i].Packets
		}
	}
	return n, err
}

// super sends several datagrams as one packet (GSO), which whoever needs it cuts up.
func (w *deviceRoute) super(family int) error {
	f, err := w.flow(20000, family, family)
	if err != nil {
		return err
	}
	const size, n = 400, 3
	raw, err := f.client.SyscallConn()
	if err != nil {
		return errors.Join(err, f.close())
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) })
	if err := errors.Join(err, failed); err != nil {
		return errors.Join(err, f.close())
	}
	var all []byte
	for i := range n {
		all = append(all, bytes.Repeat([]byte{byte('a' + i)}, size)...)
	}
	_, err = f.client.WriteToUDPAddrPort(all, f.clientSide)
	for i := 0; i < n && err == nil; i++ {
		err = receive(f.peer, f.peerSide, all[i*size:][:size])
	}
	if err != nil {
		err = fmt.Errorf("a packet of %d datagrams: %w", n, err)
	}
	return errors.Join(err, f.close())
}

// tail sends an IPv6 packet that other bytes follow to an IPv4 address.
func (w *deviceRoute) tail() error {
	for _, from := range []uint16{20000, tagged} {
		f, err := w.flow(from, 6, 4)
		if err != nil {
			return err
		}
		message := []byte("the packet ends here")
		frame := slices.Concat(w.line.RelayIn.MAC, w.line.ClientDev.MAC, []byte{0x86, 0xdd},
			datagram(f.clientAddr, f.clientSide, message), []byte(" and goes on"))
		want := message
		if from == tagged {
			want = append(bytes.Clone(tag), message...)
		}
		err = w.line.ClientDev.Inject(frame)
		if err == nil {
			err = receive(f.peer, f.peerSide, want)
		}
		if err := errors.Join(err, f.close()); err != nil {
			return fmt.Errorf("IPv6 with bytes after the packet: %w", err)
		}
	}
	return nil
}

// sizes sends packets of the MTU, a byte more, and then larger ones than a router has reported.
func (w *deviceRoute) sizes(kind *deviceKind) error {
	mtu, err := w.mtu()
	if err != nil {
		return err
	}
	for _, family := range []int{4, 6} {
		if kind.only != 0 && family != kind.only {
			continue
		}
		f, err := w.flow(20000, family, family)
		if err != nil {
			return err
		}
		if err := errors.Join(w.limits(f, family, mtu), f.close()); err != nil {
			return fmt.Errorf("IPv%d: %w", family, err)
		}
	}
	return nil
}

// limits says which sizes have to leave.
func (w *deviceRoute) limits(f *flow, family, mtu int) error {
	headers := 28
	if family == 6 {
		headers = 48
	}
	full := make([]byte, mtu-headers)
	if err := pass(f.client, f.clientSide, full, f.peer, f.peerSide, full); err != nil {
		return fmt.Errorf("%d bytes, the device's MTU: %w", mtu, err)
	}
	if big, err := w.tooBig(f, append(full, 0)); err != nil {
		return err
	} else if !big {
		return fmt.Errorf("%d bytes, more than the device's MTU, are not too big", mtu+1)
	}
	const learned = 1300
	if err := w.report(f, family, learned); err != nil {
		return err
	}
	var failed error
	err := testnet.Until(patience, "what is more than the path's MTU is too big", func() (big bool) {
		big, failed = w.tooBig(f, make([]byte, learned+1-headers))
		return failed != nil || big
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	after, err := w.flow(20000, family, family) // where nothing can still be on its way
	if err != nil {
		return err
	}
	small := make([]byte, learned-headers)
	if err := pass(after.client, after.clientSide, small, after.peer, after.peerSide, small); err != nil {
		return errors.Join(fmt.Errorf("%d bytes, the path's MTU: %w", learned, err), after.close())
	}
	return after.close()
}

// tooBig sends a packet and reports whether it passed to the stack for its size. What is sent to a device of this host
// over a veth has passed or left when the call that sends returns, or soon after.
func (w *deviceRoute) tooBig(f *flow, payload []byte) (bool, error) {
	p := w.relay.Program("frames")
	big, err1 := p.Count("too_big")
	sent, err2 := p.Count("sent")
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	if _, err := f.client.WriteToUDPAddrPort(payload, f.clientSide); err != nil {
		return false, err
	}
	found := false
	var failed error
	err := testnet.Until(patience, "the packet is counted", func() bool {
		nowBig, err1 := p.Count("too_big")
		nowSent, err2 := p.Count("sent")
		failed = errors.Join(err1, err2)
		found = nowBig.Packets > big.Packets
		return failed != nil || found || nowSent.Packets > sent.Packets
	})
	return found, errors.Join(err, failed)
}

// mtu is that of the device.
func (w *deviceRoute) mtu() (int, error) {
	var dev *net.Interface
	err := w.out.Host.Do(func() (err error) {
		dev, err = net.InterfaceByIndex(w.out.Index)
		return err
	})
	if err != nil {
		return 0, err
	}
	return dev.MTU, nil
}

// report has the peer say, as a router would, that a packet of the flow was too big for a link.
func (w *deviceRoute) report(f *flow, family, mtu int) error {
	udp := make([]byte, 8)
	binary.BigEndian.PutUint16(udp, f.peerSide.Port())
	binary.BigEndian.PutUint16(udp[2:], f.peerAddr.Port())
	binary.BigEndian.PutUint16(udp[4:], 1408)
	src, dst := f.peerSide.Addr().AsSlice(), f.peerAddr.Addr().AsSlice()
	message, network := make([]byte, 8), "ip4:icmp"
	if family == 4 {
		ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], 1428)
		ip = append(append(ip, src...), dst...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		message[0], message[1] = 3, 4
		binary.BigEndian.PutUint16(message[6:], uint16(mtu))
		message = append(append(message, ip...), udp...)
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	} else {
		network = "ip6:ipv6-icmp" // the kernel computes this checksum
		ip := []byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 64}
		binary.BigEndian.PutUint16(ip[4:], 1408)
		ip = append(append(ip, src...), dst...)
		message[0] = 2
		binary.BigEndian.PutUint32(message[4:], uint32(mtu))
		message = append(append(message, ip...), udp...)
	}
	return w.line.Peer.Do(func() error {
		c, err := net.ListenIP(network, &net.IPAddr{IP: dst})
		if err != nil {
			return err
		}
		_, err = c.WriteToIP(message, &net.IPAddr{IP: src})
		return errors.Join(err, c.Close())
	})
}

// checksum is that of an IPv4 header, or an ICMP message (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
