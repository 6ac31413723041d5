package spectest_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func load(t *testing.T, file, text string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	s, diags := spec.Load(file, []byte(text))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return s, plan
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func object(t *testing.T, plan *ir.Plan) []byte {
	t.Helper()
	text, _ := os.ReadFile(plan.Pos.File) // some specs aren't in files
	src, err := build.Source(plan, plan.Pos.File, text)
	if err != nil {
		t.Fatal(err)
	}
	opt := clang.Options{Warn: true, Lines: src.Lines} // as others compile it: an object is kept for all
	object, _, err := clang.Compile(context.Background(), src.C, src.Header, opt)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// Every test in every spec holds in the model and in the kernel, or says why the kernel can't show it.
func TestSpecs(t *testing.T) {
	needs.Root(t)
	var files []string
	for _, pattern := range []string{
		"../../examples/*/spec.cue", "../../golden/*/spec.cue", "../test/fuzz/testdata/specs/echo/spec.cue",
		"testdata/*/spec.cue",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: no specs (%v)", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			s, plan := load(t, file, read(t, file))
			if err := spectest.Check(s, plan).Err(); err != nil {
				t.Fatal(err)
			}
			inModel := spectest.Model(context.Background(), s, plan)
			if len(inModel) != len(s.Tests) {
				t.Errorf("%d of %d tests ran in the model", len(inModel), len(s.Tests))
			}
			inKernel, err := spectest.Kernel(context.Background(), s, plan, object(t, plan))
			if err != nil {
				t.Fatal(err)
			}
			if len(inKernel) != len(s.Tests) {
				t.Errorf("%d of %d tests ran in the kernel", len(inKernel), len(s.Tests))
			}
			for _, o := range inModel {
				if o.Status != spectest.Passed {
					t.Errorf("model: %s: %s\n%s", o.Name, strings.Join(o.Differences, "\n"), o.Fields)
				}
			}
			for _, o := range inKernel {
				switch o.Status {
				case spectest.Failed:
					t.Errorf("kernel: %s: %s\n%s", o.Name, strings.Join(o.Differences, "\n"), o.Fields)
				case spectest.NotShown:
					t.Logf("not shown in the kernel: %s: %s", o.Name, o.Why)
				}
			}
		})
	}
}

// edited is the TURN example with one edit.
func edited(t *testing.T, old, new string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	text := read(t, "../../examples/turn/spec.cue")
	if !strings.Contains(text, old) {
		t.Fatalf("the example doesn't have %q any more", old)
	}
	return load(t, "spec.cue", strings.Replace(text, old, new, 1))
}

// What differs is named by header and field.
func TestDifferences(t *testing.T) {
	needs.Root(t)
	for _, c := range []struct{ name, old, new, want string }{
		{"field", "dst: \"203.0.113.9\", hop_limit: 64", "dst: \"203.0.113.9\", hop_limit: 9",
			"ipv4.ttl: got 64, want 9 (byte 22)"},
		{"address", `{ipv4: {src: "192.0.2.1", dst: "203.0.113.9", hop_limit: 64}}`,
			`{ipv4: {src: "192.0.2.2", dst: "203.0.113.9", hop_limit: 64}}`,
			"ipv4.src: got 192.0.2.1, want 192.0.2.2 (bytes 26-29)"},
		{"port", "{udp: {src_port: 50000, dst_port: 7000}}", "{udp: {src_port: 50000, dst_port: 7001}}",
			"udp.dst_port: got 7000 (0x1b58), want 7001 (0x1b59) (bytes 36-37)"},
		{"payload", "{payload: \"hello\"},\n\t\t]", "{payload: \"hullo\"},\n\t\t]",
			`payload: got "hello", want "hullo" (byte 42)`},
		{"reason", `expect: up: "channel_data_length"`, `expect: up: "channel_data_number"`,
			"reason: got channel_data_length, want channel_data_number"},
		{"verdict", `expect: up: "no_by_peer"`, `expect: pass: true`, "verdict: got up (no_by_peer), want pass"},
		{"counter", `expect: up: "no_by_peer"`, `expect: {up: "no_by_peer", counters: no_by_peer: 2}`,
			"counter no_by_peer: got 1, want 2"},
		{
			"row", `expect: up: "no_by_peer"`,
			`expect: {up: "no_by_peer", rows: [{
				by_peer: {peer: "203.0.113.9:7000", relayed: "192.0.2.1:50000", number: 5}
			}]}`,
			"table by_peer, number: got 16385, want 5",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, plan := edited(t, c.old, c.new)
			inKernel, err := spectest.Kernel(context.Background(), s, plan, object(t, plan))
			if err != nil {
				t.Fatal(err)
			}
			for where, outcomes := range map[string][]spectest.Outcome{
				"model": spectest.Model(context.Background(), s, plan), "kernel": inKernel,
			} {
				failed := slices.DeleteFunc(outcomes, func(o spectest.Outcome) bool {
					return o.Status == spectest.Passed
				})
				if len(failed) != 1 || strings.Join(failed[0].Differences, "; ") != c.want {
					t.Fatalf("%s: got %+v, want %q", where, failed, c.want)
				}
				changed := !strings.Contains(failed[0].Fields, "what the program changed:\n  nothing\n")
				if rewritten := strings.HasSuffix(c.want, ")"); rewritten != changed && c.name != "verdict" {
					t.Errorf("%s: it is shown that something was changed: %t\n%s", where, changed, failed[0].Fields)
				}
			}
		})
	}
}

// Mistakes in tests are reported at their place, each with its code.
func TestMistakes(t *testing.T) {
	const channel = `{channel: {client: "198.51.100.7:40001", server: "192.0.2.1:3478", number: 0x4001, ` +
		`relayed: "192.0.2.1:50000", peer: "203.0.113.9:7000"}}`
	for _, c := range []struct {
		name, old, new string
		code           diag.Code
		want           string
	}{
		{"program", `program:  "to_peer"`, `program:  "to_per"`, "FR0301", `no program "to_per"`},
		{"session", `let open = [{channel: {`, `let open = [{chanel: {`, "FR0302", `no session "chanel"`},
		{"session field", `let open = [{channel: {client:`, `let open = [{channel: {cleint:`, "FR0302",
			`no field of session channel "cleint"`},
		{"session incomplete", `, number: 0x4001, relayed: "192.0.2.1:50000"`, `, relayed: "192.0.2.1:50000"`, "FR0307",
			`session "channel" needs a value for "number"`},
		{"session value", `let open = [{channel: {client: "198.51.100.7:40001"`,
			`let open = [{channel: {client: "198.51.100.7"`, "FR0306", `"198.51.100.7" is not an endpoint`},
		{"table", `expect: up: "no_by_peer"`, `expect: {up: "no_by_peer", rows: [{by_pear: {number: 5}}]}`, "FR0303",
			`no table "by_pear"`},
		{
			"row of a session", `program:  "to_peer"`,
			`program:  "to_peer", rows: [{by_peer: {peer: "203.0.113.9:7000", relayed: "192.0.2.1:50001"}}]`, "FR0303",
			`the rows of table "by_peer" belong to session "channel"`,
		},
		{"reason", `expect: up: "channel_data_length"`, `expect: up: "chanel_data_length"`, "FR0304",
			`no reason to pass to the stack in program to_peer "chanel_data_length"`},
		{"setting", `program:  "to_peer"`, `program:  "to_peer", settings: port: 5`, "FR0305", `no setting "port"`},
		{"counter", `expect: up: "no_by_peer"`, `expect: {up: "no_by_peer", counters: hits: 2}`, "FR0305",
			`no counter "hits"`},
		{"packet", "ports, {channel_data: number: 0x4001}", "ports, {channel_date: number: 0x4001}", "FR0310",
			`no header "channel_date"`},
		{"packet field", "ports, {channel_data: number: 0x4001}", "ports, {channel_data: numbr: 0x4001}", "FR0311",
			`no field "numbr" in header "channel_data"`},
		{"packet value", "ports, {channel_data: number: 0x4001}", "ports, {channel_data: number: 0x14001}", "FR0312",
			`channel_data.number: 81921 doesn't fit into its 16 bits`},
		{"two of a key",
			"let open = [" + channel + "]", "let one = " + channel + "\nlet open = [one, one]", "FR0307",
			`two rows of table "by_channel" have the same key`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, plan := edited(t, c.old, c.new)
			for _, d := range spectest.Check(s, plan).All() {
				if d.Code == c.code && strings.Contains(d.Message, c.want) && d.Pos.Line > 0 {
					return
				}
			}
			t.Errorf("got %v, want %s: %s", spectest.Check(s, plan).Err(), c.code, c.want)
		})
	}
}

// A spec's alternatives may have the name of a standard header, which is then theirs in its stacks.
func TestNameOfStandardHeader(t *testing.T) {
	s, plan := load(t, "spec.cue", `
name: "n"
headers: {x: fields: [{name: "a", bits: 8, is: 1}, {name: "b", bits: 8}], y: fields: [{name: "a", bits: 8, is: 2}]}
alternatives: tcp: ["x", "y"]
programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "tcp"], when: "x", do: [{set: "x.b": 7}, "pass"]}
tests: t: {
	program: "p"
	packet: [{eth: {}}, {ipv4: {src: "198.51.100.7", dst: "203.0.113.9"}}, {udp: {dst_port: 7}}, {x: b: 1}]
	expect: {pass: [{eth: {}}, {ipv4: {}}, {udp: {}}, {x: b: 7}]}
}
`)
	if err := spectest.Check(s, plan).Err(); err != nil {
		t.Fatal(err)
	}
	for _, o := range spectest.Model(t.Context(), s, plan) {
		if o.Status != spectest.Passed {
			t.Error(o.Status, o.Differences)
		}
	}
}
