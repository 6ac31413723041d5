package sample

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// This file looks at what is taken and what is sent as gopacket and the standard library see it, which know no plan: a
// compiler that leaves a check out is found by it.

// Receives reports whether a program gets packets as this host does, in headers that it knows to be IP.
func Receives(s *spec.Spec, program string) bool {
	i := slices.IndexFunc(s.Programs, func(p *spec.Program) bool { return p.Name.Value == program })
	p := s.Programs[i]
	return p.Hook == "tc/ingress" && !p.Multicast && len(p.Stack) > 1 && p.Stack[0].Var.Value == "eth" &&
		slices.ContainsFunc(p.Stack[1:], func(e *spec.StackEntry) bool {
			return slices.ContainsFunc(e.Headers, func(n spec.Name) bool {
				return n.Value == "ip" || n.Value == "ipv4" || n.Value == "ipv6"
			})
		})
}

// Foreign returns why this host wouldn't receive a packet, or have received it for another one, as gopacket and the
// standard library see it, or "". No program may send such a packet, unless it takes multicast.
func Foreign(p sim.Packet) string {
	if len(p.Data) < 14 || [6]byte(p.Data) != testrun.Host {
		return fmt.Sprintf("a frame to %x was taken, this host is %x", p.Data[:min(6, len(p.Data))], testrun.Host)
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
func NoHost(m *sim.Relay, came, left []byte) string {
	decode := func(b []byte) []netip.Addr {
		return ends(gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true}))
	}
	before := decode(came)
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
