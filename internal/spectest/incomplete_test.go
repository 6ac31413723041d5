package spectest_test

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// All values that a session and a row of a test lack are said in one run.
func TestAllIncomplete(t *testing.T) {
	s, diags := spec.Load("lacks.cue", []byte(`name: "lacks"
sessions: flow: {fields: {a: "endpoint", b: "endpoint", n: "u16"}, rows: flows: {key: ["a"], value: ["b", "n"]}}
tables: pairs: {key: {x: "u16", y: "u16", z: "u16"}, value: n: "u8"}
programs: p: {
	hook: "tc/ingress", stack: ["eth", "ip", "udp"]
	lookup: {f: flows: ["udp.src"], "k?": pairs: ["udp.src_port", "udp.dst_port", "f.n"]}
	when: "k"
	do: [{send: {from: "udp.dst", to: "f.b"}}]
}
tests: "t": {
	program: "p", sessions: [{flow: {a: "192.0.2.1:1"}}], rows: [{pairs: {x: 1, n: 1}}]
	packet: [{eth: {}}], expect: up: true
}
`))
	plan, more := gen.Compile(s)
	diags.Append(more)
	if plan == nil {
		t.Fatal(diags.All())
	}
	var all []string
	for _, d := range spectest.Check(s, plan).All() {
		all = append(all, d.Message)
	}
	want := `session "flow" needs a value for "b"
session "flow" needs a value for "n"
a row of table pairs needs a value for "y"
a row of table pairs needs a value for "z"`
	if got := strings.Join(all, "\n"); got != want {
		t.Errorf("got\n%s\nnot\n%s", got, want)
	}
}
