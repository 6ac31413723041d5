package packet

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeUnknownHeader = diag.Define("FR0310", "unknown header in a packet",
		"A packet of a test is a list of headers by name. This is neither a header of the spec nor a standard\n"+
			"one. A name for alternatives, such as `ip`, can't be built.",
		`packet: [{eth: {}}, {ip: {src: "192.0.2.1"}}]`,
		`packet: [{eth: {}}, {ipv4: {src: "192.0.2.1"}}]`)
	codeUnknownField = diag.Define("FR0311", "unknown field in a packet",
		"A header of a packet gives a value to a name that is neither a field of the header nor a name for\n"+
			"fields (an alias, an endpoint).",
		`packet: [{eth: {}}, {ipv4: {time_to_live: 3}}]`,
		`packet: [{eth: {}}, {ipv4: {hop_limit: 3}}]`)
	codeFieldValue = diag.Define("FR0312", "a value that a field can't hold",
		"Integers must fit the field's bits. Addresses, link-layer addresses and other bytes are strings:\n"+
			"`\"192.0.2.1\"`, `\"02:00:00:00:00:01\"`, `\"0102ff\"` (hexadecimal digits, two for each byte).",
		`packet: [{eth: {}}, {ipv4: {src: "2001:db8::1"}}]`,
		`packet: [{eth: {}}, {ipv6: {src: "2001:db8::1"}}]`)
	codeUnbuildable = diag.Define("FR0313", "a packet that can't be built",
		"The fields of a packet contradict each other: a field is given whose condition is false, or a length\n"+
			"can't be expressed in its unit. To test such a packet, write the frame in hexadecimal digits.",
		`packet: [{eth: {}}, {ipv4: {}}, {tcp: {options: "0101"}}] `+
			`// the length of the header is counted in units of 4 bytes`,
		`packet: [{eth: {}}, {ipv4: {}}, {tcp: {options: "01010101"}}]`)
)
