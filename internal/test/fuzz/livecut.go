//go:build linux

package fuzz

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlive"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// What the kernel knows of GSO packets that leave, and what it makes of them when it cuts them up.

// enters reports whether a GSO packet enters a tunnel.
func (w *expected) enters() bool { return w.res.Packet.Tunnel && !w.received.Packet.Tunnel }

// refused notes a GSO packet that a device dropped, and reports whether it isn't the machine that drops them: the
// kernel drops what it can't cut.
func (l *live) refused(w *expected) bool {
	if !w.enters() {
		return false
	}
	l.lost++
	return l.lost > 4
}

// in compares what the kernel knows of a GSO packet that has entered a tunnel with what is in front of it.
func in(w *expected, got *testlive.Seen) string {
	const in4, in6, udp, all = 1 << 8, 1 << 9, 1 << 10, 0x3f << 6 // SKB_GSO_IPXIP4, IPXIP6, UDP_TUNNEL, …_ENCAP_ALL
	if !w.enters() {
		return ""
	}
	want := uint32(in4)
	switch _, proto := datagram(got.Packet.Data); {
	case proto == 17:
		want = udp
	case got.Packet.Proto == unix.ETH_P_IPV6:
		want = in6
	}
	if is := got.GSOType & all; is != want {
		return fmt.Sprintf("the kernel knows of a tunnel %x, the packet has the headers of %x", is, want)
	}
	// All that came is inside, but for its link-layer header; after UDP it may have another one.
	b := got.Packet.Data
	start := len(b) - len(w.received.Packet.Data) + linkHeader
	after := map[byte]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}
	proto := after[b[start]>>4]
	udpEnd := linkHeader + map[byte]int{4: 20, 6: 40}[b[linkHeader]>>4] + 8
	if at := start - linkHeader; at >= udpEnd && binary.BigEndian.Uint16(b[start-2:]) == proto {
		start, proto = at, unix.ETH_P_TEB
	}
	if got.Inner != start || got.InnerProto != proto {
		return fmt.Sprintf("the kernel knows of protocol %04x inside at %d, the packet has %04x at %d",
			got.InnerProto, got.Inner, proto, start)
	}
	return ""
}

// segmentFront is where the payload of the first segment begins, of a GSO packet that leaves.
func (w *expected) segmentFront() int {
	out := &w.res.Packet
	if w.received.GSOType&gsoUDP != 0 {
		return out.Partial.Start + 8
	}
	return out.Partial.Start + int(out.Data[out.Partial.Start+12]>>4)*4
}

// atMTU has the next packet be a GSO packet that was sent, with segments of exactly the MTU of its next hop, or of
// one byte more.
func (l *live) atMTU(w *expected, s *testlive.Shot) {
	out := &w.res.Packet
	if out.GSO == 0 || out.Partial.Start == 0 || out.Partial.Start+20 > len(out.Data) {
		return
	}
	size := int(w.res.Hop.MTU) + linkHeader - w.segmentFront() + l.rng.IntN(2)
	if size > 0 && size < len(out.Data)-w.segmentFront() {
		next := *s
		next.GSOSize = uint16(size)
		l.next = &next
	}
}

// cutUp compares the segments that the kernel has made of a GSO packet with the model's: all have its headers, but
// for lengths, checksums and numbers, and together they have its payload.
func (l *live) cutUp(w *expected, got []testlive.Seen, from int) string {
	want := w.res.Packet
	start, front := want.Partial.Start, w.segmentFront()
	changing := segmented(want.Data, start)
	rest := want.Data[front:]
	for i, s := range got {
		p := s.Packet
		n := min(int(want.GSO), len(rest))
		if p.Partial != (sim.Partial{}) || p.GSO != 0 {
			return "a device without offload got " + show(&p)
		}
		if len(p.Data) != front+n || n == 0 {
			return fmt.Sprintf("segment %d has %d bytes, and should have %d: %s", i, len(p.Data), front+n, show(&p))
		}
		for at := from; at < front; at++ {
			if p.Data[at] != want.Data[at] && !changing[at] {
				return fmt.Sprintf("segment %d, byte %d: %02x, the model's has %02x: %s",
					i, at, p.Data[at], want.Data[at], show(&p))
			}
		}
		if !bytes.Equal(p.Data[front:], rest[:n]) {
			return fmt.Sprintf("segment %d has another payload: %s", i, firstByte(p.Data[front:], rest[:n]))
		}
		if wrong, known := l.judge(p.Data); wrong != "" && known {
			return fmt.Sprintf("segment %d: %s: %s", i, wrong, show(&p))
		}
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return fmt.Sprintf("%d bytes of a GSO packet don't leave", len(rest))
	}
	l.report.Decoded += len(got)
	return ""
}

// gsoUDP is SKB_GSO_UDP_L4.
const gsoUDP = 1 << 17

// segmented says which bytes in front of a GSO packet's payload differ from segment to segment. start is where the
// transport header begins.
func segmented(b []byte, start int) map[int]bool {
	out := map[int]bool{}
	mark := func(from, n int) {
		for i := range n {
			out[from+i] = true
		}
	}
	ip := func(at int) (end int, proto byte) {
		if b[at]>>4 == 4 {
			mark(at+2, 4)
			mark(at+10, 2)
			return at + int(b[at]&15)*4, b[at+9]
		}
		mark(at+4, 2)
		return at + 40, b[at+6]
	}
	at := 12
	for sample.Tagged(b[at-12:]) {
		at += 4
	}
	end, proto := ip(at + 2)
	switch {
	case end < start && (proto == 4 || proto == 41): // IP in IP
		ip(end)
	case end < start && proto == 17:
		mark(end+4, 2)
		if b[end+6] != 0 || b[end+7] != 0 { // else it has no checksum, and gets none
			mark(end+6, 2)
		}
		for _, size := range []int{20, 40} {
			if b[start-size]>>4 == map[int]byte{20: 4, 40: 6}[size] {
				ip(start - size)
				break
			}
		}
	}
	mark(start+4, 4) // of UDP the length and the checksum, of TCP the number
	mark(start+13, 1)
	mark(start+16, 2)
	return out
}
