package sample

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// This file looks at what is taken and what is sent as gopacket and the standard library see it, which know no plan: a
// compiler that leaves a check out is found by it.

// Foreign returns why this host wouldn't receive a packet that a program sends, or have received it for another one,
// as gopacket and the standard library see it, or "". No program that gets frames may send such a packet, unless it
// takes multicast.
func Foreign(s *spec.Spec, program string, p sim.Packet) string {
	pr := programOf(s, program)
	if !pr.Receives() || pr.Multicast || !only(pr.Stack[0], "eth") {
		return ""
	}
	if host := packet.DefaultDestination; len(p.Data) < 14 || [6]byte(p.Data) != host {
		return fmt.Sprintf("a frame to %x was taken, this host is %x", p.Data[:min(6, len(p.Data))], host)
	}
	if !announcesIP(pr) {
		return ""
	}
	g := gopacket.NewPacket(p.Data, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	if ip, ok := g.NetworkLayer().(*layers.IPv4); ok {
		if err, sum := ip.VerifyChecksum(); err == nil && !sum.Valid && sum.Correct%0xffff != sum.Actual%0xffff {
			return fmt.Sprintf("an IPv4 header was taken with a checksum of %04x, gopacket says %04x", sum.Actual,
				sum.Correct)
		}
	}
	for _, a := range ends(g) {
		if !isHost(a) {
			return fmt.Sprintf("a packet from %v to %v was taken", ends(g)[0], ends(g)[1])
		}
	}
	return ""
}

func programOf(s *spec.Spec, name string) *spec.Program {
	return s.Programs[slices.IndexFunc(s.Programs, func(p *spec.Program) bool { return p.Name.Value == name })]
}

// announcesIP reports whether a program's frames have an IP header where gopacket looks for one. A header of the spec
// in front of it may come after any EtherType.
func announcesIP(p *spec.Program) bool {
	rest := p.Stack
	if !only(rest[0], "eth") {
		return false
	}
	for rest = rest[1:]; len(rest) > 0 && only(rest[0], "vlan"); {
		rest = rest[1:]
	}
	return len(rest) > 0 && only(rest[0], "ip", "ipv4", "ipv6", "ip_any", "ipv4_any")
}

// only reports whether an entry of a stack is one of some headers, and no other.
func only(e *spec.StackEntry, names ...string) bool {
	return !slices.ContainsFunc(e.Headers, func(n spec.Name) bool { return !slices.Contains(names, n.Value) })
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

// NoHost returns which address of a packet that was sent no host has, or "". Those that random rows have don't count:
// the runtime refuses them. Nor does one that stays in its place: where the packet came in that was looked at, and what
// goes out is this host's.
func NoHost(s *spec.Spec, program string, m *sim.Relay, received, left []byte) string {
	if !announcesIP(programOf(s, program)) {
		return ""
	}
	decode := func(b []byte) []netip.Addr {
		return ends(gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true}))
	}
	before := decode(received)
	for i, a := range decode(left) {
		if !isHost(a) && !inRow(m, a.AsSlice()) && (i >= len(before) || before[i] != a) {
			return fmt.Sprintf("a packet was sent with the address %v, which no host has, and no row", a)
		}
	}
	return ""
}

func inRow(m *sim.Relay, addr []byte) bool {
	return slices.ContainsFunc(m.Plan().Tables, func(t *ir.Table) bool {
		return slices.ContainsFunc(m.Table(t.Name).Keys(), func(k string) bool {
			return bytes.Contains(m.Table(t.Name).Get([]byte(k)), addr)
		})
	})
}
