package gen_test

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A packet leaves with addresses of hosts and right checksums, whatever it brought of them.
func TestLeaves(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"the source of an inner IP header becomes the packet's": {`name: "x"
tables: by_port: {key: port: "u16", value: to: "endpoint"}
programs: out: {
	hook: "tc/ingress"
	stack: ["eth", "ipv4", "udp", {inner: "eth"}, {inside: "ipv4"}]
	lookup: w: by_port: ["udp.dst_port"]
	do: [{pop: "inner"}, {pop: "udp"}, {pop: "ipv4"}, {send: to: "w.to.addr"}]
}`, "guard unicast(ipv4.src[68 +4]) else to the stack (martian_source)"},
		"bytes that are cut off are in a checksum in front": {`name: "x"
headers: front: fields: [{name: "sum", bits: 16, checksum: {covers: "all"}}]
programs: out: {
	hook: "tc/ingress"
	stack: ["front", "ipv4", {t: "tcp"}]
	do: [{send: {to: "t.src.addr"}}]
}`, "guard frame_len <= ipv4_end else to the stack (padding)"},
		"bytes that are cut off are counted in front, by a length of any size": {`name: "x"
headers: front: fields: [{name: "length", varint: "quic", counts: "payload"}]
programs: out: {
	hook: "tc/ingress"
	stack: ["eth", "front", "ipv4", {t: "tcp"}]
	do: [{send: {to: "t.src.addr"}}]
}`, "guard frame_len <= ipv4_end else to the stack (padding)"},
		"the trailer of a header in front stays, and nothing is taken out in front of it": {`name: "x"
headers: front: {fields: [{name: "kind", bits: 32}], trailer: 6}
programs: out: {
	hook: "tc/ingress"
	stack: ["eth", "front", "ipv4", {t: "tcp"}]
	do: [{send: {to: "t.src.addr"}}]
}`, "guard front_payload_end <= ipv4_end else to the stack (padding)"},
	} {
		s, diags := spec.Load("x.cue", []byte(c.text))
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		plan, diags := gen.Compile(s)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		if text := planfmt.Text(plan); !strings.Contains(text, c.want) {
			t.Errorf("%s: the plan has no %s", what, c.want)
		}
	}
}
