package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// What a virtio-net device gives a relay that a veth doesn't: packets in several buffers, TCP GSO packets of another
// machine, and little room in front. Each check sends such packets to the relay, and makes sure that they came as such.

// offered are features that machine and device have to have agreed on, by their bits (linux/virtio_net.h).
var offered = map[string]int{
	"CSUM": 0, "GUEST_CSUM": 1, "GUEST_TSO4": 7, "GUEST_TSO6": 8, "HOST_TSO4": 11, "HOST_TSO6": 12, "MRG_RXBUF": 15,
}

// agreed checks the features of the machine's network devices.
func agreed() error {
	devices, err := filepath.Glob("/sys/bus/virtio/devices/*")
	found := 0
	for _, dir := range devices {
		const network = "0x0001"
		kind, err1 := os.ReadFile(filepath.Join(dir, "device"))
		bits, err2 := os.ReadFile(filepath.Join(dir, "features"))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if strings.TrimSpace(string(kind)) != network {
			continue
		}
		found++
		for name, bit := range offered {
			if len(bits) <= bit || bits[bit] != '1' {
				return fmt.Errorf("virtio-net without %s: %s", name, bits)
			}
		}
	}
	if found < 2 {
		err = errors.Join(err, fmt.Errorf("%d virtio-net devices", found))
	}
	return err
}

// virtio sends to the relay by a virtio-net device.
func (w *deviceRoute) virtio() error {
	if err := agreed(); err != nil {
		return err
	}
	seen, err := newWatch()
	if err != nil {
		return err
	}
	err = w.attachStreams()
	for _, software := range []bool{false, true} { // the relay's host completes checksums and cuts up what leaves
		if err == nil {
			err = offloads.TxChecksum(w.line.RelayIn, !software)
		}
		if err == nil {
			err = w.received(seen)
		}
	}
	if err == nil {
		err = w.odd()
	}
	return errors.Join(err, seen.close())
}

func (w *deviceRoute) attachStreams() error {
	p := w.relay.Program("streams")
	return errors.Join(p.Attach(w.line.RelayIn.Name), p.Attach(w.out.Name))
}

// received has packets of each kind come in.
func (w *deviceRoute) received(seen *watch) error {
	const page = 4096
	for _, family := range []int{4, 6} {
		for _, tso := range []bool{true, false} {
			what := "a GSO packet of the device"
			if !tso {
				what = "a GSO packet made of segments (GRO)"
			}
			if err := errors.Join(offloads.Segmentation(w.far, tso), offloads.GRO(w.out, !tso)); err != nil {
				return err
			}
			err := w.until(seen, what, func() error { return w.stream(family) }, func(p *arrived) bool {
				return p.segment > 0 && p.partial
			})
			if err != nil {
				return fmt.Errorf("TCP over IPv%d: %w", family, err)
			}
		}
	}
	for _, c := range []struct {
		what    string
		size    int
		matches func(p *arrived) bool
	}{
		{"a partial checksum", 20, func(p *arrived) bool { return p.partial && p.size < 100 }},
		{"a packet with no room for another IP header", 600, func(p *arrived) bool {
			return p.size > 600 && (w.roomy || p.headroom < 20)
		}},
		{"a packet in several buffers", 8800, func(p *arrived) bool { return p.paged > 0 && p.size > 2*page }},
	} {
		if err := w.until(seen, c.what, func() error { return w.grow(c.size) }, c.matches); err != nil {
			return fmt.Errorf("%d bytes: %w", c.size, err)
		}
	}
	return nil
}

// until sends until a packet of a kind has come in.
func (w *deviceRoute) until(seen *watch, what string, send func() error, is func(p *arrived) bool) error {
	for deadline := time.Now().Add(patience); ; {
		if err := send(); err != nil {
			return err
		}
		list, err := seen.since(w.out.MAC)
		if err != nil {
			return err
		}
		for i := range list {
			if is(&list[i]) {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not come in; of the last packets %+v", what, list)
		}
	}
}

// stream sends data from the peer to the client over a connection. The relay's programs send all that arrives for it.
func (w *deviceRoute) stream(family int) (err error) {
	w.ports++
	clientAddr := netip.AddrPortFrom(w.line.ClientAddr.Of(family), w.ports)
	clientSide := netip.AddrPortFrom(w.line.RelayInAddr.Of(family), 20000+w.ports)
	peerAddr := netip.AddrPortFrom(w.peer.Of(family), w.ports)
	peerSide := netip.AddrPortFrom(w.local.Of(family), w.ports)
	rows := w.relay.Table("streams")
	if err := errors.Join(
		rows.Put([]any{clientSide.Port()}, []any{peerSide, peerAddr}),
		rows.Put([]any{peerSide.Port()}, []any{clientSide, clientAddr}),
	); err != nil {
		return err
	}
	var l *net.TCPListener
	var to net.Conn
	if err := w.line.Peer.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(peerAddr))
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := w.line.Client.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(clientAddr), Timeout: patience}
		to, err = d.Dial("tcp", clientSide.String())
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	limit := time.Now().Add(patience)
	if err := errors.Join(l.SetDeadline(limit), to.SetDeadline(limit)); err != nil {
		return err
	}
	from, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = byte(i ^ i>>8)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(to, got); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("other bytes arrive than were sent")
	}
	return <-sent
}

// grow sends from the peer to the client, in all pairs of IP versions, packets that get a header on their way.
func (w *deviceRoute) grow(size int) error {
	message := bytes.Repeat([]byte("grows"), size/5)
	for _, c := range []struct{ peer, client int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		f, err := w.flow(tagged, c.client, c.peer)
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(f.peerSide.Addr(), f.clientSide.Port()) // where the rule puts a header in
		err = w.relay.Table("peers").Put([]any{at.Port()}, []any{f.clientSide, f.clientAddr})
		if err == nil {
			err = pass(f.peer, at, message, f.client, f.clientSide, append(bytes.Clone(tag), message...))
		}
		if err := errors.Join(err, f.close()); err != nil {
			return fmt.Errorf("peer IPv%d, client IPv%d: %w", c.peer, c.client, err)
		}
	}
	return nil
}

// odd sends frames that no socket sends, but that another machine may.
func (w *deviceRoute) odd() error {
	for _, from := range []uint16{20000, tagged} {
		for _, family := range []int{4, 6} {
			if err := w.inner(from, family); err != nil {
				return fmt.Errorf("IPv%d, a checksum in the payload that is left to a device: %w", family, err)
			}
		}
	}
	return w.wrongSum()
}

// wrongSum sends a datagram of which a device is to write a checksum into the UDP header, but not UDP's.
func (w *deviceRoute) wrongSum() error {
	f, err := w.flow(20000, 4, 4)
	if err != nil {
		return err
	}
	p := w.relay.Program("frames")
	before, err := p.Count("partial_checksum")
	if err == nil {
		const udp = 34
		err = w.far.InjectOffloaded(w.frame(datagram(f.peerAddr, f.peerSide, []byte("wrong"))),
			testnet.Offload{SumStart: udp + 2, SumField: udp + 2 + 6})
	}
	if err == nil {
		err = testnet.Until(patience, "it passes to the stack", func() bool {
			now, err := p.Count("partial_checksum")
			return err == nil && now.Packets == before.Packets+1
		})
	}
	return errors.Join(err, f.close())
}

// frame puts a link-layer header of the peer in front of a packet.
func (w *deviceRoute) frame(packet []byte) []byte {
	kind := []byte{8, 0}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat(w.out.MAC, w.far.MAC, kind, packet)
}

// inner sends a datagram whose payload has a checksum that is left to a device; the one of UDP is complete.
func (w *deviceRoute) inner(from uint16, family int) error {
	f, err := w.flow(from, family, family)
	if err != nil {
		return err
	}
	const start, field = 4, 8
	message := []byte("from \x00\x00\x00\x00\x00\x00 here on")
	binary.BigEndian.PutUint16(message[field:], checksum(message[start:]))
	to, want := f.peerSide, message
	if from == tagged {
		to = netip.AddrPortFrom(to.Addr(), f.clientSide.Port())
		err = w.relay.Table("peers").Put([]any{to.Port()}, []any{f.clientSide, f.clientAddr})
		want = append(bytes.Clone(tag), message...)
	}
	frame := w.frame(datagram(f.peerAddr, to, message))
	at := len(frame) - len(message)
	frame[at+field], frame[at+field+1] = 0, 0
	if err == nil {
		err = w.far.InjectOffloaded(frame, testnet.Offload{SumStart: at + start, SumField: at + field})
	}
	if err == nil {
		err = receive(f.client, f.clientSide, want)
	}
	return errors.Join(err, f.close())
}

// datagram is a UDP packet.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	udp := make([]byte, 8, 8+len(payload))
	order := binary.BigEndian
	order.PutUint16(udp, from.Port())
	order.PutUint16(udp[2:], to.Port())
	order.PutUint16(udp[4:], uint16(8+len(payload)))
	udp = append(udp, payload...)
	order.PutUint16(udp[6:], checksum(append(pseudo(from, to, unix.IPPROTO_UDP, len(udp)), udp...)))
	return ip(from, to, unix.IPPROTO_UDP, udp)
}

// pseudo is the pseudo-header of a transport checksum.
func pseudo(from, to netip.AddrPort, protocol byte, length int) []byte {
	rest := []byte{0, protocol, byte(length >> 8), byte(length)}
	return slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice(), rest)
}

// ip puts an IP header in front of a packet.
func ip(from, to netip.AddrPort, protocol byte, rest []byte) []byte {
	src, dst, size := from.Addr().AsSlice(), to.Addr().AsSlice(), len(rest)
	if from.Addr().Is6() {
		return slices.Concat([]byte{0x60, 0, 0, 0, byte(size >> 8), byte(size), protocol, 64}, src, dst, rest)
	}
	size += 20
	head := slices.Concat([]byte{0x45, 0, byte(size >> 8), byte(size), 0, 0, 0x40, 0, 64, protocol, 0, 0}, src, dst)
	binary.BigEndian.PutUint16(head[10:], checksum(head))
	return append(head, rest...)
}
