package glue

import (
	"go/token"
	"strconv"
	"strings"
)

// initialisms are written in capitals, as Go does.
var initialisms = map[string]string{
	"acl": "ACL", "api": "API", "cid": "CID", "cpu": "CPU", "crc": "CRC", "csrc": "CSRC", "dcid": "DCID", "dns": "DNS",
	"dscp": "DSCP",
	"http": "HTTP", "icmp": "ICMP", "icmpv6": "ICMPv6", "id": "ID", "ids": "IDs", "ip": "IP", "ipv4": "IPv4",
	"ipv6": "IPv6",
	"mac":  "MAC", "mtu": "MTU", "nat": "NAT", "pn": "PN", "qos": "QoS", "quic": "QUIC", "rtcp": "RTCP", "rtp": "RTP",
	"scid": "SCID",
	"sfu":  "SFU", "ssrc": "SSRC", "stun": "STUN", "tcp": "TCP", "tls": "TLS", "ttl": "TTL", "turn": "TURN",
	"udp": "UDP", "gso": "GSO",
	"url": "URL", "vlan": "VLAN", "vni": "VNI", "vpn": "VPN",
}

// exported turns a name of a spec, [a-z][a-z0-9_]*, into an exported Go identifier: to_peer becomes ToPeer.
func exported(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		switch {
		case word == "":
		case initialisms[word] != "":
			b.WriteString(initialisms[word])
		default:
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// scope hands out identifiers, none twice. Names are asked for in the order of the spec, so the result is always the
// same.
type scope map[string]bool

func newScope(reserved ...string) scope {
	s := scope{}
	for _, name := range reserved {
		s[name] = true
	}
	return s
}

// pick returns name, or name with the first number that makes it unique. An identifier can't end up as a keyword: all
// are exported.
func (s scope) pick(name string) string {
	out := name
	for i := 2; s[out]; i++ {
		out = name + "_" + strconv.Itoa(i)
	}
	s[out] = true
	return out
}

// isPackageName says whether a package may be called so.
func isPackageName(name string) bool {
	return token.IsIdentifier(name) && name != "_" && name == strings.ToLower(name)
}
