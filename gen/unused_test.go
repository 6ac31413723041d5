package gen_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What only a fan-out, a rule, an action, another header or a test uses is used.
func TestUsed(t *testing.T) {
	s, diags := spec.Load("used.cue", []byte(`name: "used"
headers: {
	in_stack: fields: [{name: "size", bits: 8}, {name: "data", bytes: "size + setting.more", max: 64}]
	choice: fields: [{name: "kind", bits: 8, is: 1}]
	other: fields: [{name: "kind", bits: 8, is: 2}]
	pushed: fields: [{name: "id", bits: 8}]
	only_sent: fields: [{name: "id", bits: 8}]
}
alternatives: either: ["choice", "other"]
settings: {
	more: {type: "u8", default: 1}
	least: {type: "u8", default: 1}
	next: {type: "u8", default: 1}
}
tables: {
	by_program: {key: a: "endpoint", value: n: "u8"}
	by_rule: {key: a: "endpoint", value: n: "u8"}
	by_receiver: {key: a: "endpoint", value: n: "u8"}
	learned: {kind: "lru", key: a: "endpoint", value: n: "u8"}
}
groups: few: {key: server: "endpoint", receiver: {local: "endpoint", remote: "endpoint"}}
events: report: fields: n: "u8"
programs: {
	p: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "in_stack"]
		lookup: x: by_program: ["udp.src"]
		rules: [
			{lookup: y: by_rule: ["udp.src"], when: "setting.least > y.n", do: ["pass"]},
			{do: [{learn: learned: {key: ["udp.src"], value: [1]}}, "pass"]},
		]
	}
	q: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", {kind: "either"}]
		do: [{fan_out: {group: few: ["udp.dst"], rules: [
			{lookup: z: by_receiver: ["r.remote"]
				do: [{emit: report: n: "setting.next"}, {send: {from: "r.local", to: "r.remote"}}]},
		]}}]
	}
	s: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp"]
		do: [{push: pushed: id: 1}, "pass"]
	}
}
tests: "unknown": {
	program: "s"
	packet: [{eth: {}}, {ipv4: {}}, {udp: {}}, {only_sent: id: 3}]
	expect: up: true
}
`))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	_, diags = gen.Compile(s)
	if all := diags.All(); len(all) > 0 {
		t.Errorf("%v", all)
	}
}
