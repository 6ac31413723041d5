package gen_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A reason says what happened to the packet, by the name of the field; if it is counted for several things, it says
// them all.
func TestReasonsSayWhatHappened(t *testing.T) {
	s, diags := spec.Load("reasons.cue", []byte(`name: "reasons"
headers: tag: fields: [
	{name: "version", bits: 4, is: 1},
	{name: "kind", bits: 4, is: 1 | 2 | >=8 & <=11},
	{name: "level", bits: 8, is: !=0, reason: "control"},
	{name: "port", bits: 16, is: >=0x4000},
	{name: "many", bits: 8, is: 1 | 3 | 5 | 7 | 9, reason: "control"},
	{name: "id", bytes: 2, is: "0102"},
	{name: "length", bits: 16, counts: "payload", slack: 3},
	{name: "n", varint: "quic"},
]
programs: {
	same: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "tag"]
		do: [{set: {"tag.kind": "tag.level & 3", "tag.n": "udp.src_port"}}, "pass"]
	}
	shorter: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag", {inner: "ipv4"}]
		do: [{pop: "udp"}, {pop: "tag"}, {pop: "ipv4"}, "pass"]
	}
}
`))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{
		{
			"tag_version":    "tag.version is not 1",
			"tag_kind":       "tag.kind is not 1 or 2 or 8 to 11",
			"unfit_tag_kind": "tag.kind would get a value that it can't have",
			"control":        "tag.level is not 1 or more; or: tag.many has a value that the spec doesn't allow",
			"tag_port":       "tag.port is not 0x4000 or more",
			"tag_id":         "tag.id has a value that the spec doesn't allow",
			"tag_length":     "tag.length disagrees with the packet",
			"unfit_tag_n":    "tag.n isn't there, or has no room for its new value",
			"udp_checksum":   "udp.checksum is 0 (no checksum), which isn't allowed here",
			"ip_options":     "ipv4.ihl is not 5",
			"fragment":       "ipv4.mf is not 0; or: ipv4.fragment_offset is not 0",
		},
		{"udp_checksum": "udp: checksum is wrong"},
	} {
		got := map[string]string{}
		for _, r := range plan.Programs[i].Reasons {
			if r.Kind == ir.Punted {
				got[r.Name] = r.Doc
			}
		}
		for name, doc := range want {
			if got[name] != doc {
				t.Errorf("program %s: %s says %q, want %q", plan.Programs[i].Name, name, got[name], doc)
			}
		}
	}
}
