package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Constants that have a name in the kernel's headers are written by it if a field is compared with them that has
// such values: in templates/fastrelay.h are all that these maps name.

var (
	etherTypes  = map[uint64]c.Ident{0x0800: "ETH_P_IP", 0x86DD: "ETH_P_IPV6"} // linux/if_ether.h
	ipProtocols = map[uint64]c.Ident{                                          // linux/in.h
		1: "IPPROTO_ICMP", 4: "IPPROTO_IPIP", 6: "IPPROTO_TCP", 17: "IPPROTO_UDP", 41: "IPPROTO_IPV6",
		47: "IPPROTO_GRE", 58: "IPPROTO_ICMPV6",
	}
	packetTypes = map[uint64]c.Ident{ // linux/if_packet.h
		ir.ToHost: "PACKET_HOST", ir.ToBroadcast: "PACKET_BROADCAST", ir.ToMulticast: "PACKET_MULTICAST",
		ir.ToOther: "PACKET_OTHERHOST",
	}
)

// valuesOf are the names of an expression's values, or nil.
func valuesOf(e ir.Expr) map[uint64]c.Ident {
	switch e := e.(type) {
	case *ir.Meta:
		switch e.Kind {
		case ir.LinkType:
			return packetTypes
		case ir.LinkProto:
			return etherTypes
		}
	case *ir.Load:
		switch e.Field {
		case "eth.type":
			return etherTypes
		case "ipv4.protocol", "ipv6.next_header":
			return ipProtocols
		}
	}
	return nil
}

// nameOfValue is the name of what a field is compared with, or "".
func nameOfValue(e *ir.Bin) c.Ident {
	if v, ok := e.Y.(*ir.Const); ok && (e.Op == ir.Eq || e.Op == ir.Ne) {
		return valuesOf(e.X)[v.V]
	}
	return ""
}
