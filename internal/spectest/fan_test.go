package spectest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

const fanSpec = "testdata/fan/spec.cue"

// editedFan is the spec of a fan-out with one edit.
func editedFan(t *testing.T, old, new string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	text := read(t, fanSpec)
	if strings.Count(text, old) != 1 {
		t.Fatalf("the spec has %q %d times", old, strings.Count(text, old))
	}
	return load(t, "spec.cue", strings.Replace(text, old, new, 1))
}

// Differences of copies and events name the receiver's turn or the record, in the model and in the kernel.
func TestFanOutDifferences(t *testing.T) {
	needs.Root(t)
	cases := []struct{ name, old, new, want string }{
		{"field of a copy", `{media: {number: 107, stream: 1}}`, `{media: {number: 108, stream: 1}}`,
			"copy 1: media.number: got 107 (0x006b), want 108 (0x006c) (bytes 44-45)"},
		{"payload of a copy", `stream: 20}}, {payload: "frame"}`, `stream: 20}}, {payload: "frames"}`,
			`copy 0: payload: got "frame", want "frames" (byte 51)`},
		{"link-layer address", `[for l in link {l}, {ipv4: {dst: "203.0.113.2"}}`,
			`[{eth: {dst: "02:00:00:00:00:09"}}, {ipv4: {dst: "203.0.113.2"}}`,
			"copy 1: eth.dst: got 02:00:00:00:00:02, want 02:00:00:00:00:09 (bytes 0-5)"},
		{"a copy too many", `copies: [{declined: "no_rule"}]`, `copies: []`, "copies: got 1 receivers' turns, want 0"},
		{"a copy too few", `copies: [{declined: "no_rule"}]`, `copies: [{declined: true}, true]`,
			"copies: got 1 receivers' turns, want 2"},
		{"not declined", `copies: [true], events`, `copies: [{declined: "layer"}], events`,
			"copy 0: got a copy, want none (layer)"},
		{"declined", `copies: [{declined: "no_rule"}]`, `copies: [true]`, "copy 0: got none (no_rule), want one"},
		{"another reason", `copies: [{declined: "no_rule"}]`, `copies: [{declined: "layer"}]`,
			"copy 0: reason: got no_rule, want layer"},
		{"field of a record", `{sent: {receiver: 1, number: 107}}`, `{sent: {receiver: 1, number: 109}}`,
			"event 3: number: got 107, want 109"},
		{"receiver of a record", `{sent: {receiver: 1, number: 107}}`, `{sent: {receiver: 0, number: 107}}`,
			"event 3: receiver: got 1, want 0"},
		{"another record", `{sent: {receiver: 1, number: 107}}`, `{taken: {}}`, "event 3: got sent, want taken"},
		{"a record too many", `copies: [{declined: "no_rule"}], events: []`,
			`copies: [{declined: "no_rule"}], events: [{sent: {}}]`, "event 0: got nothing, want sent"},
		{"a record too few", `events: [{taken: {}}, {sent: {priority: 2}}]`, `events: [{taken: {}}]`,
			"event 1: got sent, want nothing"},
		{"what remains of a credit", `left: 15`, `left: 16`, "table totals, left: got 15, want 16"},
	}
	// Each case is one test of the spec, edited and added under the case's name: the object is made and loaded once.
	text := read(t, fanSpec)
	_, tests, _ := strings.Cut(text, "\ntests: {\n")
	for _, c := range cases {
		found := false
		for test := range strings.SplitAfterSeq(tests, "\n\t}\n") {
			if _, body, ok := strings.Cut(test, ": {\n"); ok && strings.Count(body, c.old) == 1 {
				text += "\ntests: \"" + c.name + "\": {\n" + strings.Replace(body, c.old, c.new, 1)
				found = true
			}
		}
		if !found {
			t.Fatalf("no test of the spec has %q once", c.old)
		}
	}
	s, plan := load(t, "spec.cue", text)
	if err := spectest.Check(s, plan).Err(); err != nil {
		t.Fatal(err)
	}
	inKernel, err := spectest.Kernel(context.Background(), s, plan, object(t, plan))
	if err != nil {
		t.Fatal(err)
	}
	for where, outcomes := range map[string][]spectest.Outcome{
		"model": spectest.Model(context.Background(), s, plan), "kernel": inKernel,
	} {
		for _, o := range outcomes {
			want := ""
			for _, c := range cases {
				if c.name == o.Name {
					want = c.want
				}
			}
			if got := strings.Join(o.Differences, "; "); got != want {
				t.Errorf("%s: %s: got %q, want %q", where, o.Name, got, want)
			}
		}
	}
}

func TestFanOutMistakes(t *testing.T) {
	const first = `"each receiver gets its own copy": {
		program: "forward"
		groups: [{subscribers: {key: here, receivers: [anna, bert]}}]`
	with := func(old, new string) string { return strings.Replace(first, old, new, 1) }
	for _, c := range []struct {
		name, old, new string
		code           diag.Code
		want           string
	}{
		{"group", first, with("subscribers", "subscriber"), "FR0308", `no group "subscriber"`},
		{"key", first, with("key: here", `key: {sever: "192.0.2.1:5004"}`), "FR0308",
			`no key of group subscribers "sever"`},
		{
			"no key", first, with("key: here", `key: {}`), "FR0307",
			`the key of group subscribers needs a value for "server"`,
		},
		{"value", first, with("anna", `{remot: "203.0.113.1:6000"}`), "FR0308",
			`no value of a receiver of group subscribers "remot"`},
		{"hidden value", first, with("anna", `{receiver: 1}`), "FR0308",
			`no value of a receiver of group subscribers "receiver"`},
		{"type of a value", first, with("anna", `{remote: "203.0.113.1"}`), "FR0306",
			`subscribers.remote: "203.0.113.1" is not an endpoint`},
		{"too large", first, with("anna", `{layer: 256}`), "FR0306", `subscribers.layer: 256 doesn't fit into 8 bits`},
		{"too many receivers", first, with("anna, bert", "for i in [1, 2, 3, 4, 5, 6, 7, 8, 9] {anna}"), "FR0307",
			`"subscribers" has no room for the group: 4 groups, 8 receivers in each, 32 in all`},
		{"two groups", first, with("groups: [", "groups: [{subscribers: {key: here, receivers: []}}, "), "FR0307",
			`two groups of "subscribers" have the same key`},
		{"reason", `copies: [{declined: "no_rule"}]`, `copies: [{declined: "no_rules"}]`, "FR0304",
			`no reason to decline a copy in program forward "no_rules"`},
		{"reason of the packet", `copies: [{declined: "no_rule"}]`, `copies: [{declined: "no_subscribers"}]`, "FR0304",
			`no reason to decline a copy in program forward "no_subscribers"`},
		{"header of a copy", `{media: {number: 107, stream: 1}}`, `{medium: {number: 107}}`, "FR0310",
			`no header "medium"`},
		{"event", `{sent: {receiver: 1, number: 107}}`, `{send: {receiver: 1, number: 107}}`, "FR0309",
			`no event "send"`},
		{"field of an event", `{sent: {receiver: 1, number: 107}}`, `{sent: {receiver: 1, numbr: 107}}`, "FR0309",
			`no field of event sent "numbr"`},
		{"a credit that can't be expected", `copies: [{declined: "no_rule"}], events: []`,
			`rows: [{budgets: {number: 1, left: 5}}]`, "FR0306", `"left" can't be expected`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, plan := editedFan(t, c.old, c.new)
			diags := spectest.Check(s, plan)
			for _, d := range diags.All() {
				if d.Code == c.code && strings.Contains(d.Message, c.want) && d.Pos.Line > 0 {
					return
				}
			}
			t.Errorf("got %v, want %s: %s", diags.Err(), c.code, c.want)
		})
	}
}
