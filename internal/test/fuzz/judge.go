package fuzz

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// judge decodes a frame with gopacket, which shares nothing with this project, and returns what is wrong with its lengths and checksums, or
// "". known says that gopacket could check anything at all.
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
	for _, l := range p.Layers() {
		c, ok := l.(checked)
		if !ok {
			continue
		}
		if t, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if t.SetNetworkLayerForChecksum(p.NetworkLayer()) != nil {
				return "", false
			}
		}
		if udp, ok := l.(*layers.UDP); ok && udp.Checksum == 0 {
			if isV6(frame) {
				return "udp: no checksum over IPv6", true
			}
			continue
		}
		err, sum := c.VerifyChecksum()
		if err != nil {
			return "", false
		}
		// Of the two forms of zero, only UDP's choice matters, and it never writes 0.
		if !sum.Valid && sum.Correct%0xffff != sum.Actual%0xffff {
			return fmt.Sprintf("%v: a checksum of %04x, gopacket says %04x", l.LayerType(), sum.Actual, sum.Correct), true
		}
	}
	return "", true
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

// receives reports whether a program gets packets as this host does, in headers that it knows to be IP.
func (f *fuzzer) receives(program string) bool {
	i := slices.IndexFunc(f.Spec.Programs, func(p *spec.Program) bool { return p.Name.Value == program })
	p := f.Spec.Programs[i]
	return p.Hook == "tc/ingress" && !p.Multicast && len(p.Stack) > 1 && p.Stack[0].Var.Value == "eth" &&
		slices.ContainsFunc(p.Stack[1:], func(e *spec.StackEntry) bool {
			return slices.ContainsFunc(e.Headers, func(n spec.Name) bool { return n.Value == "ip" || n.Value == "ipv4" || n.Value == "ipv6" })
		})
}

// foreign returns why this host wouldn't receive a packet, or have received it for another one, as gopacket and the standard library see
// it, or "". No program may send such a packet, unless it takes multicast.
func foreign(p sim.Packet) string {
	if len(p.Data) < 14 || [6]byte(p.Data) != testrun.Host {
		return fmt.Sprintf("a frame to %x was taken, this host is %x", p.Data[:min(6, len(p.Data))], testrun.Host)
	}
	g := gopacket.NewPacket(p.Data, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	if ip, ok := g.NetworkLayer().(*layers.IPv4); ok {
		if err, sum := ip.VerifyChecksum(); err == nil && !sum.Valid && sum.Correct%0xffff != sum.Actual%0xffff {
			return fmt.Sprintf("an IPv4 header was taken with a checksum of %04x, gopacket says %04x", sum.Actual, sum.Correct)
		}
	}
	for _, a := range ends(g) {
		if !isHost(a) {
			return fmt.Sprintf("a packet from %v to %v was taken", ends(g)[0], ends(g)[1])
		}
	}
	return ""
}

// ends are the source and the destination in the outermost IP header.
func ends(p gopacket.Packet) []netip.Addr {
	if p.NetworkLayer() == nil {
		return nil
	}
	flow := p.NetworkLayer().NetworkFlow()
	src, ok1 := netip.AddrFromSlice(flow.Src().Raw())
	dst, ok2 := netip.AddrFromSlice(flow.Dst().Raw())
	if !ok1 || !ok2 {
		return nil
	}
	return []netip.Addr{src, dst}
}

func isHost(a netip.Addr) bool {
	return (a.IsGlobalUnicast() || a.IsLinkLocalUnicast()) && !netip.MustParsePrefix("0.0.0.0/8").Contains(a)
}

// noHost returns which address of a packet that was sent no host has, or "". Those that random rows have don't count: the runtime
// refuses them. Nor does one that stays in its place: where the packet came in that was looked at, and what goes out is this host's.
func (f *fuzzer) noHost(came, left []byte) string {
	decode := func(b []byte) []netip.Addr {
		return ends(gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true}))
	}
	before := decode(came)
	for i, a := range decode(left) {
		if !isHost(a) && !f.inRow(a.AsSlice()) && (i >= len(before) || before[i] != a) {
			return fmt.Sprintf("a packet was sent with the address %v, which no host has, and no row", a)
		}
	}
	return ""
}

func (f *fuzzer) inRow(addr []byte) bool {
	m := f.bench.model
	return slices.ContainsFunc(f.bench.plan.Tables, func(t *ir.Table) bool {
		return slices.ContainsFunc(m.Table(t.Name).Keys(), func(k string) bool { return bytes.Contains(m.Table(t.Name).Get([]byte(k)), addr) })
	})
}
