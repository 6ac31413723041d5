package specgen

// Standard headers, as far as a generated spec uses them: see spec/std.
func std(name string, fields []*field, parts []*part, afters ...*after) *header {
	h := &header{name: name, fields: fields, parts: parts, after: afters, std: true, fixed: true}
	for _, f := range fields {
		if f.variable {
			h.fixed = false
		}
	}
	return h
}

func bits(name string, n int) *field { return &field{name: name, bits: n} }
func derived(name string) *field     { return &field{name: name, bits: 16, derived: true} }
func addr(name string, n int) *field {
	return &field{name: name, kind: bytesField, bytes: n, typ: "ip"}
}
func fixedBits(name string, n int, v uint64) *field {
	return &field{name: name, bits: n, is: "…", allowed: []uint64{v}}
}

// beforeIP are the headers that IP may follow. UDP doesn't say what follows it.
func beforeIP() []*after {
	return []*after{
		{"eth", []string{"type"}, nil}, {"vlan", []string{"type"}, nil}, {"ipv4", []string{"protocol"}, nil},
		{"ipv6", []string{"next_header"}, nil}, {"udp", nil, nil},
	}
}

func ports() []*part {
	return []*part{{name: "src", addr: "ip.src", port: "src_port"}, {name: "dst", addr: "ip.dst", port: "dst_port"}}
}

var (
	stdEth = std("eth", []*field{
		{name: "dst", kind: bytesField, bytes: 6, typ: "mac"}, {name: "src", kind: bytesField, bytes: 6, typ: "mac"},
		bits("type", 16),
	}, nil)
	stdVLAN = std("vlan", []*field{bits("pcp", 3), bits("dei", 1), bits("vid", 12), bits("type", 16)}, nil,
		&after{"eth", []string{"type"}, nil}, &after{"vlan", []string{"type"}, nil})
	stdIPv4 = std("ipv4", []*field{
		fixedBits("version", 4, 4), bits("dscp", 6), bits("ecn", 2), derived("total_length"), bits("id", 16),
		bits("df", 1),
		bits("ttl", 8), bits("protocol", 8), derived("checksum"), addr("src", 4), addr("dst", 4),
	}, []*part{{name: "hop_limit", alias: "ttl"}}, beforeIP()...)
	stdIPv4Any = std("ipv4_any", []*field{
		fixedBits("version", 4, 4), {name: "ihl", bits: 4, is: "…", derived: true}, bits("dscp", 6), bits("ecn", 2),
		derived("total_length"), bits("id", 16), bits("reserved", 1), bits("df", 1), bits("mf", 1),
		bits("fragment_offset", 13), bits("ttl", 8), bits("protocol", 8), derived("checksum"), addr("src", 4),
		addr("dst", 4), {name: "options", kind: sizedField, size: "ihl * 4 - 20", max: 40, variable: true},
	}, []*part{{name: "hop_limit", alias: "ttl"}}, beforeIP()...)
	stdIPv6 = std("ipv6", []*field{
		fixedBits("version", 4, 6), bits("dscp", 6), bits("ecn", 2), bits("flow_label", 20), derived("payload_length"),
		bits("next_header", 8),
		bits("hop_limit", 8), addr("src", 16), addr("dst", 16),
	}, nil, beforeIP()...)
	stdUDP = std("udp", []*field{bits("src_port", 16), bits("dst_port", 16), derived("length"), derived("checksum")},
		ports(),
		&after{"ipv4", []string{"protocol"}, nil}, &after{"ipv6", []string{"next_header"}, nil})
	stdTCP = std("tcp", []*field{
		bits("src_port", 16), bits("dst_port", 16), bits("seq", 32), bits("ack", 32),
		{name: "data_offset", bits: 4, derived: true}, bits("reserved", 4), bits("syn", 1), bits("fin", 1),
		bits("window", 16), derived("checksum"), bits("urgent", 16),
		{name: "options", kind: sizedField, max: 40, variable: true},
	}, ports(), &after{"ipv4", []string{"protocol"}, nil}, &after{"ipv6", []string{"next_header"}, nil})
	stdICMP = std("icmp", []*field{bits("type", 8), bits("code", 8), derived("checksum"), bits("rest", 32)}, nil,
		&after{"ipv4", []string{"protocol"}, nil})
	stdICMPv6 = std("icmpv6", []*field{bits("type", 8), bits("code", 8), derived("checksum"), bits("rest", 32)}, nil,
		&after{"ipv6", []string{"next_header"}, nil})
)

var groupIP, groupIPAny = []*header{stdIPv4, stdIPv6}, []*header{stdIPv4Any, stdIPv6}

func init() {
	stdUDP.sums, stdTCP.sums, stdICMP.sums, stdICMPv6.sums = true, true, true, true
}
