package diagram

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/spec"
)

const relay = `
name: "fan"
headers: media: fields: [
	{name: "level", bits: 8}, {name: "number", bits: 16}, {name: "words", bits: 8},
	{name: "list", bytes: "words * 4", max: 64, elements: [
		{when: "level < 3", id: 4, bias: 1, pad: 0, stop: 15},
		{id: 8, pad: 0},
	]},
]
priority: {levels: 4, from: "low(media.level, 2)"}
groups: subscribers: {
	key: {server: "endpoint"}
	receiver: {local: "endpoint", remote: "endpoint", layer: "u8", skipped: "counter", credit: "credit[priority]"}
	max: 512
}
events: sent: fields: {number: "u16"}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "media"]
	do: [{fan_out: {
		group: subscribers: ["udp.dst"]
		rules: [
			{match: "media.level": >=2, when: "priority > r.layer", do: [{count: "r.skipped"}, {drop: "layer"}]},
			{when: "r.layer > 0", do: [
				{admit: {credit: "r.credit[priority]", cost: "len(udp.payload)", floor: 100, count: "r.skipped"}},
				{let: number: "low(media.number - r.skipped, 16)"},
				{set: {"media.number": "number"}},
				{mark: dscp: 46},
				{emit: sent: {number: "number"}},
				{send: {from: "r.local", to: "r.remote"}},
			]},
		]
		then: "pass"
	}}]
}
`

// What a picture says of the actions for a receiver, and of the elements of a list.
func TestActions(t *testing.T) {
	s, diags := spec.Load("spec.cue", []byte(relay))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range s.Programs[0].Rules[0].Do[0].FanOut.Rules {
		for _, a := range r.Do {
			got = append(got, action(a))
		}
	}
	want := []string{
		"count r.skipped",
		"no copy (layer)",
		"admit len(udp.payload) from r.credit[priority], floor 100; else no copy, and count r.skipped",
		"let number = low(media.number - r.skipped, 16)",
		"set media.number = number",
		"mark dscp = 46",
		"emit sent {number = number}",
		"copy from r.local to r.remote",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the actions differ (-want +got):\n%s", diff)
	}
	_, notes, _ := strings.Cut(Header(s.Headers[0]), "list: ")
	elements := "elements of an identifier of 4 bits, a length of 4 plus 1 and as many bytes, 0 for padding, 15 " +
		"at the end, when level < 3; " +
		"elements of an identifier of 8 bits, a length of 8 and as many bytes, 0 for padding\n"
	if notes != elements {
		t.Errorf("the header's notes: %q, want %q", notes, elements)
	}
}
