package packet_test

import (
	"encoding/hex"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// rtp declares RTP (RFC 3550 §5.1) as a spec would: fields whose presence and length others give.
const rtp = `
name: "rtp"
headers: rtp: fields: [
	{name: "version", bits: 2, is: 2}, {name: "padding", bits: 1}, {name: "extended", bits: 1},
	{name: "csrcs", bits: 4},
	{name: "marker", bits: 1}, {name: "payload_type", bits: 7},
	{name: "sequence", bits: 16}, {name: "timestamp", bits: 32}, {name: "ssrc", bits: 32},
	{name: "csrc_list", bytes: "csrcs * 4", max: 60},
	{name: "profile", bits: 16, when: "extended == 1"},
	{name: "words", bits: 16, when: "extended == 1"},
	{name: "extensions", bytes: "words * 4", max: 128, when: "extended == 1"},
]
programs: p: {hook: "tc/ingress", stack: ["eth", "ipv4", "udp", "rtp"], do: [{pass: true}]}
`

func TestListsAndConditions(t *testing.T) {
	s, diags := spec.Load("rtp.cue", []byte(rtp))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	hs := packet.NewHeaders(s)
	value := func(n string, l spec.Literal) *spec.TestValue { return &spec.TestValue{Name: name(n), Value: l} }
	num := func(n string, v uint64) *spec.TestValue { return value(n, spec.Literal{Int: v}) }
	text := func(n, v string) *spec.TestValue { return value(n, spec.Literal{Kind: spec.LitString, Text: v}) }
	for _, c := range []struct {
		name   string
		fields []*spec.TestValue
		want   string // of the header; "": it can't be built
	}{
		{"plain", []*spec.TestValue{num("sequence", 7)}, "80000007 00000000 00000000"},
		{"extension, its length given", []*spec.TestValue{
			num("extended", 1), num("profile", 0xbede), num("words", 1), text("extensions", "50 ff 00 00"),
		},
			"90000000 00000000 00000000 bede0001 50ff0000"},
		{"extension, its length found", []*spec.TestValue{
			num("extended", 1), num("profile", 0x1000), text("extensions", "0102aabb 00000000"),
		},
			"90000000 00000000 00000000 10000002 0102aabb00000000"},
		{"extension, too long for what is given", []*spec.TestValue{
			num("extended", 1), num("words", 1), text("extensions", "0102aabb 00000000"),
		},
			"90000000 00000000 00000000 00000001 0102aabb00000000"},
		{"extension of zeros", []*spec.TestValue{num("extended", 1), num("words", 1)},
			"90000000 00000000 00000000 00000001 00000000"},
		{"csrc list", []*spec.TestValue{text("csrc_list", "00000001 00000002"), num("ssrc", 3)},
			"82000000 00000000 00000003 0000000100000002"},
		{"csrc list and extension", []*spec.TestValue{
			num("csrcs", 1), text("csrc_list", "00000009"), num("extended", 1), text("extensions", "51020304"),
		},
			"91000000 00000000 00000000 00000009 00000001 51020304"},
		{"extension without its bit", []*spec.TestValue{num("words", 1)}, ""},
		{"no multiple of a word", []*spec.TestValue{num("extended", 1), text("extensions", "5102")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			diags := &diag.List{}
			frame := hs.Make(&spec.Packet{Layers: []*spec.Layer{{Header: name("rtp"), Fields: c.fields}}}, diags).Data
			if c.want == "" {
				if diags.Len() == 0 {
					t.Errorf("it was built: %x", frame)
				}
				return
			}
			if err := diags.Err(); err != nil {
				t.Fatal(err)
			}
			var digits string
			for _, b := range c.want {
				if b != ' ' {
					digits += string(b)
				}
			}
			if got := hex.EncodeToString(frame); got != digits {
				t.Errorf("got  %s\nwant %s", got, digits)
			}
		})
	}
}
