package packet

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeUnknownHeader = diag.Define("FR0310", "unknown header in a packet",
		"A packet of a test is a list of headers, each by its name. The name is that of no header of the spec and of no standard one; a group such as `ip` can't be built, because it stands for several.",
		`packet: [{eth: {}}, {ip: {src: "192.0.2.1"}}]`,
		`packet: [{eth: {}}, {ipv4: {src: "192.0.2.1"}}]`)
	codeUnknownField = diag.Define("FR0311", "unknown field in a packet",
		"A header of a packet gives a value to something that the header has neither as a field nor as a name for fields (an alias, an endpoint).",
		`packet: [{eth: {}}, {ipv4: {time_to_live: 3}}]`,
		`packet: [{eth: {}}, {ipv4: {hop_limit: 3}}]`)
	codeFieldValue = diag.Define("FR0312", "a value that a field can't hold",
		"Integers have to fit into the field's bits. Addresses, link-layer addresses and other bytes are strings: `\"192.0.2.1\"`, `\"02:00:00:00:00:01\"`, `\"0102ff\"` (hexadecimal digits, two a byte).",
		`packet: [{eth: {}}, {ipv4: {src: "2001:db8::1"}}]`,
		`packet: [{eth: {}}, {ipv6: {src: "2001:db8::1"}}]`)
	codeUnbuildable = diag.Define("FR0313", "a packet that can't be built",
		"The fields of a packet contradict each other: a field is given whose condition doesn't hold, or a length can't be expressed in its unit. To test such a packet, write the frame in hexadecimal digits.",
		`packet: [{eth: {}}, {ipv4: {}}, {tcp: {options: "0101"}}] // the length of the header is counted in units of 4 bytes`,
		`packet: [{eth: {}}, {ipv4: {}}, {tcp: {options: "01010101"}}]`)
)
