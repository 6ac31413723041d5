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
	by_program: {key: a: "endpoint", value: {n: "u8", hits: "counter", next: "counter", left: "credit"}}
	only_there: {key: a: "endpoint", value: n: "u8"}
	by_rule: {key: a: "endpoint", value: n: "u8"}
	by_receiver: {key: a: "endpoint", value: n: "u8"}
	learned: {kind: "lru", key: a: "endpoint", value: {n: "u8", more: "u8"}}
}
sessions: call: {
	fields: {client: "endpoint", peer: "endpoint", server: "endpoint", bytes: "counter"}
	rows: flows: [
		{key: ["client", "server"], value: ["peer", "bytes"]},
		{key: ["peer", "server"], value: ["client", "bytes"]},
	]
}
groups: few: {
	key: server: "endpoint"
	receiver: {local: "endpoint", remote: "endpoint", sent: "counter", left: "credit"}
}
events: report: fields: n: "u8"
programs: {
	p: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "in_stack"]
		lookup: x: by_program: ["udp.src"]
		rules: [
			{lookup: z: only_there: ["udp.dst"], when: "x.n > 3", do: [{count: "x.hits"}, "pass"]},
			{when: "x.n > 2", do: [
				{admit: {credit: "x.left", cost: 1}},
				{let: id: "low(alloc(x.next), 8)"},
				{push: pushed: id: "id"},
				"pass",
			]},
			{lookup: f: flows: ["udp.src", "udp.dst"]
				do: [{count: {counter: "f.bytes", by: "len(udp)"}}, {send: {from: "udp.dst", to: "f.peer"}}]},
			{lookup: y: by_rule: ["udp.src"], when: "setting.least > y.n", do: ["pass"]},
			{do: [{learn: learned: {key: ["udp.src"], value: [1, 2], verified: "udp"}}, "pass"]},
		]
	}
	q: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", {kind: "either"}]
		do: [{fan_out: {group: few: ["udp.dst"], rules: [
			{lookup: z: by_receiver: ["r.remote"]
				do: [
					{admit: {credit: "r.left", cost: 1, count: "r.sent"}},
					{emit: report: n: "setting.next"},
					{send: {from: "r.local", to: "r.remote"}},
				]},
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
