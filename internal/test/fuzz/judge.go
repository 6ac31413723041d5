package fuzz

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

const noSum = "udp: no checksum over IPv6"

// judge decodes a frame with gopacket, which shares nothing with this project, and returns what is wrong with its
// lengths and checksums, or "". known says that gopacket could check anything at all.
func judge(frame []byte) (wrong string, known bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	rest, proto := 0, layers.IPProtocol(0)
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		if ip.FragOffset != 0 || ip.Flags&layers.IPv4MoreFragments != 0 {
			return "", false
		}
		rest, proto = int(ip.Length)-4*int(ip.IHL), ip.Protocol
		if have := len(ip.Contents) + len(ip.Payload); int(ip.Length) != have {
			return fmt.Sprintf("ipv4: a length of %d, there are %d bytes", ip.Length, have), true
		}
	case *layers.IPv6:
		rest, proto = int(ip.Length), ip.NextHeader
		if have := len(ip.Payload); int(ip.Length) != have {
			return fmt.Sprintf("ipv6: a length of %d, there are %d bytes", ip.Length, have), true
		}
	default:
		return "", false
	}
	if udp, ok := p.TransportLayer().(*layers.UDP); ok && proto == layers.IPProtocolUDP && int(udp.Length) != rest {
		return fmt.Sprintf("udp: a length of %d in an IP payload of %d", udp.Length, rest), true
	}
	network := p.NetworkLayer() // the one in front of the layer at hand
	for _, l := range p.Layers() {
		if n, ok := l.(gopacket.NetworkLayer); ok {
			network = n
		}
		c, ok := l.(checked)
		if !ok {
			continue
		}
		if t, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if t.SetNetworkLayerForChecksum(network) != nil {
				return "", false
			}
		}
		if udp, ok := l.(*layers.UDP); ok && udp.Checksum == 0 {
			if network.LayerType() == layers.LayerTypeIPv6 {
				wrong = noSum
			}
			continue
		}
		err, sum := c.VerifyChecksum()
		if err != nil {
			return "", false
		}
		// Of the two forms of zero, only UDP's choice matters, and it never writes 0.
		if !sum.Valid && sum.Correct%0xffff != sum.Actual%0xffff {
			return fmt.Sprintf("%v: a checksum of %04x, gopacket says %04x", l.LayerType(), sum.Actual, sum.Correct),
				true
		}
	}
	return wrong, true
}

// wrongInside reports whether the payload of the IP packet that came holds the one that left, and that was wrong there
// already: what a tunnel carries is its sender's business. A router changes only a hop limit, ECN and the checksum
// over them.
func wrongInside(received, left []byte) bool {
	const link = 14
	if len(left) <= link {
		return false
	}
	datagram := left[link:]
	for at := ipEnd(received); at+len(datagram) <= len(received); at++ {
		if bytes.Equal(carried(received[at:at+len(datagram)]), carried(datagram)) {
			wrong, _ := judge(slices.Concat(left[:link], received[at:at+len(datagram)]))
			return wrong != ""
		}
	}
	return false
}

// ipEnd finds the end of the outermost IP header in a frame; without one, the frame's.
func ipEnd(frame []byte) int {
	end := 0 // the payload says nothing: it ends where padding begins
	for _, l := range gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy).Layers() {
		end += len(l.LayerContents())
		if _, ok := l.(gopacket.NetworkLayer); ok {
			return end
		}
	}
	return len(frame)
}

// carried is an IP packet without what routers on its way may change.
func carried(datagram []byte) []byte {
	b := slices.Clone(datagram)
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		b[1] &^= 3                   // ECN
		b[8], b[10], b[11] = 0, 0, 0 // hop limit, checksum
	case len(b) >= 40 && b[0]>>4 == 6:
		b[1] &^= 0x30
		b[7] = 0
	}
	return b
}

// trailing says how many bytes follow the IP datagram of a frame, if any do.
func trailing(frame []byte) string {
	end := len(frame)
	switch {
	case len(frame) >= 34 && binary.BigEndian.Uint16(frame[12:]) == 0x0800:
		end = 14 + int(binary.BigEndian.Uint16(frame[16:]))
	case len(frame) >= 54 && isV6(frame):
		end = 54 + int(binary.BigEndian.Uint16(frame[18:]))
	}
	if end < len(frame) {
		return fmt.Sprintf("%d bytes follow the IP datagram", len(frame)-end)
	}
	return ""
}

// checked is a layer of gopacket that has a checksum.
type checked interface {
	VerifyChecksum() (error, gopacket.ChecksumVerificationResult)
}

func isV6(frame []byte) bool { return len(frame) > 14 && binary.BigEndian.Uint16(frame[12:]) == 0x86dd }
