package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func load(t *testing.T, text string) *Spec {
	t.Helper()
	s, list := Load("spec.cue", []byte(text))
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*/spec.cue")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		s, list := LoadFile(file)
		if err := list.Err(); err != nil {
			t.Errorf("%s:\n%s", file, err)
			continue
		}
		if len(s.Programs) == 0 || len(s.Tests) == 0 {
			t.Errorf("%s: %d programs, %d tests", file, len(s.Programs), len(s.Tests))
		}
	}
}

func TestLoadFileMissing(t *testing.T) {
	s, list := LoadFile(filepath.Join(t.TempDir(), "none.cue"))
	if s != nil || list.Len() != 1 || list.All()[0].Code != codeFile {
		t.Errorf("%v, %v", s, list.Err())
	}
}

const everything = `
import "strings"
name: "all"
kernel: "5.15"
let service = 3478
headers: {
	msg: {
		fields: [
			{name: "kind", bits: 4, is: 1 | >=8 & <=10 & !=9, reason: "odd_kind"},
			{name: "flags", bits: 12, endian: "big"},
			{name: "size", bits: 16, counts: "all", unit: 4, bias: -1, slack: "any"},
			{name: "stamp", bits: 32, endian: "little", when: "flags & 1 != 0"},
			{name: "who", bytes: 16, type: "ip"},
			{name: "data", bytes: "size*4 - 24", max: 40},
			{name: "offset", varint: "quic"},
		]
		after: {
			udp: dst_port: service
			tcp: {}
		}
		parts: {from: {addr: "who", port: "udp.src_port"}, s: "size"}
		closed:  true
		trailer: 16
	}
}
alternatives: l4: ["udp", "tcp"]
settings: {
	// Where the service listens.
	// On all addresses.
	port: {type: "u16", default: service, is: >0}
	strict: {type: "bool"}
}
tables: {
	seen: {kind: "lru", per_cpu: true, key: {src: "ip", port: "u16"}, value: n: "u64", size: 100}
	plain: {key: k: "bytes4", value: v: "counter"}
}
sessions: call: {
	fields: {a: "endpoint", id: "u8"}
	rows: calls: {key: ["id"], value: ["a"]}
	lifetime: "10m", idle: "1m30s"
}
programs: p: {
	hook: "tc/egress"
	stack: ["eth", "vlan?", "ip", {t: ["udp", "tcp"]}, {"m?": "msg"}]
	match: {"ip.src": "10.0.0.0/8" | "192.0.2.1", "t.dst.port": service}
	when: true
	lookup: {c: calls: ["m.kind"], "s?": seen: ["ip.src", 53]}
	rules: [
		{
			when: "m && s.n > 5"
			lookup: d: calls: [1]
			do: [
				{set: {"ip.ttl": "m.kind + 1", "ip.dscp": 46}},
				{push: {msg: {kind: 1, flags: "low(t.src.port, 12)"}, before: "t"}},
				{pop: "vlan"},
				{learn: seen: {key: ["ip.src", 1], value: [0]}},
				{count: "hits"},
				{count: {counter: "s.n", by: "skb.len"}},
				{mark: {priority: 6, dscp: 10}},
				{send: {from: "c.a", to: "m.from"}},
			]
		},
		{do: [{send: via: "s.hop"}]},
		{match: "ip.ttl": >30, do: [{drop: "late"}]},
		{do: ["pass"]},
	]
}
tests: "one": {
	program: "p"
	settings: {strict: true, port: 99}
	sessions: [{call: {a: "192.0.2.1:80", id: 3}}]
	rows: [{seen: {src: "192.0.2.1", port: 80, n: 7}}]
	route: mtu: 576
	packet: [{eth: {}}, {ipv4: {src: "192.0.2.1", hop_limit: 3}}, {payload: zeros: 3}, {payload: hex: "00 ff"}, {payload: strings.Repeat("ab", 2)}]
	vlan: {tci: 0x2005}
	pending: true
	expect: {sent: [{eth: {}}], via: "192.0.2.9", vlan: {proto: 0x88A8, tci: 1}, counters: hits: 1, rows: [{seen: {src: "192.0.2.1", port: 80}, absent: true}]}
}
tests: "two": {program: "p", packet: hex: "0011 2233", expect: up: "no_calls"}
tests: "three": {program: "p", packet: hex: "0011", expect: {pass: true, untouched: true}}
tests: "four": {program: "p", packet: hex: "0011", expect: drop: true}
`

// The typed spec as text, without positions.
func dump(s *Spec) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	names := func(all []Name) (out []string) {
		for _, n := range all {
			out = append(out, n.Value)
		}
		return out
	}
	matches := func(all []*FieldMatch) (out []string) {
		for _, m := range all {
			out = append(out, m.Field.String()+": "+m.Is.String())
		}
		return out
	}
	lookups := func(all []*Lookup) (out []string) {
		for _, l := range all {
			out = append(out, fmt.Sprint(l.Var.Value, " ", l.Optional, " ", l.Table.Value, l.Key))
		}
		return out
	}
	value := func(l Literal) string { return (&Constraint{Value: l}).String() }
	values := func(all []*TestValue) (out []string) {
		for _, v := range all {
			out = append(out, v.Name.Value+"="+value(v.Value))
		}
		return out
	}
	packet := func(what string, k *Packet) {
		if k == nil {
			return
		}
		p("  %s %x vlan %v pending %v", what, k.Hex, k.VLAN, k.Pending)
		for _, l := range k.Layers {
			p("    %s%v %q", l.Header.Value, values(l.Fields), l.Bytes)
		}
	}
	p("spec %s kernel %d.%d", s.Name.Value, s.Kernel.Major, s.Kernel.Minor)
	for _, h := range s.Headers {
		if h.Std {
			continue
		}
		p("header %s closed %v trailer %d", h.Name.Value, h.Closed, h.Trailer)
		for _, f := range h.Fields {
			p("  %s kind %d bits %d bytes %d max %d little %v type %q", f.Name.Value, f.Kind, f.Bits, f.Bytes, f.Max, f.Little, f.Type)
			if f.Size != nil {
				p("    size %s", f.Size)
			}
			if f.When != nil {
				p("    when %s", f.When)
			}
			if f.Is != nil {
				p("    is %s reason %s", f.Is, f.Reason.Value)
			}
			if c := f.Counts; c != nil {
				p("    counts %s unit %d bias %d slack %d", c.What, c.Unit, c.Bias, c.Slack)
			}
		}
		for _, a := range h.After {
			p("  after %s %v", a.Parent.Value, matches(a.Match))
		}
		for _, x := range h.Parts {
			if x.Alias != nil {
				p("  part %s = %s", x.Name.Value, x.Alias)
			} else {
				p("  part %s = %s : %s", x.Name.Value, x.Addr, x.Port)
			}
		}
	}
	for _, g := range s.Groups {
		p("group %s %v std %v", g.Name.Value, names(g.Headers), g.Std)
	}
	for _, x := range s.Settings {
		def := "none"
		if x.Default != nil {
			def = value(*x.Default)
		}
		p("setting %s %s default %s is %v doc %q", x.Name.Value, x.Type.Text, def, x.Is, x.Doc)
	}
	for _, x := range s.Tables {
		p("table %s %s %v %d", x.Name.Value, x.Kind, x.PerCPU, x.Size)
		for _, m := range append(x.Key[:len(x.Key):len(x.Key)], x.Value...) {
			p("  %s %s", m.Name.Value, m.Type.Text)
		}
	}
	for _, x := range s.Sessions {
		p("session %s %d fields, lifetime %d idle %d", x.Name.Value, len(x.Fields), x.Lifetime.Value, x.Idle.Value)
		for _, r := range x.Rows {
			p("  %s %v %v", r.Table.Value, names(r.Key), names(r.Value))
		}
	}
	for _, x := range s.Programs {
		p("program %s %s match %v when %v lookups %v", x.Name.Value, x.Hook, matches(x.Match), x.When, lookups(x.Lookups))
		for _, e := range x.Stack {
			p("  %s %v %v", e.Var.Value, names(e.Headers), e.Optional)
		}
		for _, r := range x.Rules {
			p("  rule match %v when %v lookups %v", matches(r.Match), r.When, lookups(r.Lookups))
			for _, a := range r.Do {
				var set []string
				for _, as := range a.Set {
					set = append(set, as.Target.String()+"="+as.Value.String())
				}
				before := ""
				if a.Before != nil {
					before = a.Before.Value
				}
				p("    %s %v header %q before %q send %v %v %v learn %q %v %v count %v %v drop %q", a.Kind, set, a.Header.Value, before,
					a.From, a.To, a.Via, a.Table.Value, a.Key, a.Value, a.Counter, a.By, a.Reason.Value)
			}
		}
	}
	for _, x := range s.Tests {
		p("test %q %s settings %v", x.Name.Value, x.Program.Value, values(x.Settings))
		for _, y := range x.Sessions {
			p("  session %s %v", y.Session.Value, values(y.Fields))
		}
		for _, y := range x.Rows {
			p("  row %s %v", y.Table.Value, values(y.Values))
		}
		if x.Route != nil {
			p("  route %s %d", x.Route.State, x.Route.MTU)
		}
		packet("packet", x.Packet)
		via := ""
		if x.Expect.Via != nil {
			via = value(*x.Expect.Via)
		}
		p("  expect %s %q untouched %v via %q counters %v", x.Expect.Verdict, x.Expect.Reason, x.Expect.Untouched, via, values(x.Expect.Counters))
		packet("expected", x.Expect.Packet)
		for _, y := range x.Expect.Rows {
			p("  row %s %v absent %v", y.Table.Value, values(y.Values), y.Absent)
		}
	}
	return b.String()
}

func TestEverything(t *testing.T) {
	got := dump(load(t, everything))
	file := "testdata/everything.txt"
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Positions lead to the text that they speak of: also behind references, in quotes, in escaped strings.
func TestPositions(t *testing.T) {
	const text = `name: "pos"
let both = ["udp.src", "ip.dst"]
let hops = >=5 & <=9
tables: t: {key: {a: "endpoint", b: "ip"}, value: {"n": "u8"}}
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", "vlan?", {"x?": ["ip"]}, "udp"]
	match: "ip.ttl": hops
	when: "udp.length\u0020> 8"
	lookup: "r?": t: both
	do: [{set: {"ip.ttl": 3}}, {set: ttl: """
		4 +
		ip.ttl
		"""}, "pass"]
}
`
	s := load(t, text)
	lines := strings.Split(text, "\n")
	check := func(p diag.Pos, want string) {
		t.Helper()
		if p.File != "spec.cue" || p.Line < 1 || p.Line > len(lines) {
			t.Fatalf("%s for %q", p, want)
		}
		line := lines[p.Line-1]
		if got := line[p.Column-1 : min(p.Column-1+max(p.Len, 1), len(line))]; got != want {
			t.Errorf("%s is %q, not %q", p, got, want)
		}
	}
	p := s.Programs[0]
	check(s.Name.Pos, "pos")
	check(s.Tables[0].Value[0].Name.Pos, "n")
	check(s.Tables[0].Value[0].Type.Pos, "u8")
	check(p.HookPos, `"tc/ingress"`)
	check(p.Stack[1].Var.Pos, "vlan")
	check(p.Stack[2].Var.Pos, "x")
	check(p.Stack[2].Headers[0].Pos, "ip")
	check(p.Match[0].Field.Pos, "ip.ttl")
	check(p.Match[0].Is.Pos, "hops")
	check(p.Match[0].Is.Args[1].Pos, "<=9")
	check(p.When.Pos, `"udp.length\u0020> 8"`)
	check(p.When.Args[0].Pos, `"udp.length\u0020> 8"`)
	check(p.Lookups[0].Var.Pos, "r")
	check(p.Lookups[0].Table.Pos, "t")
	check(p.Lookups[0].Key[1].Path[1].Pos, "dst")
	check(p.Rules[0].Do[0].Set[0].Target.Path[1].Pos, "ttl")
	check(p.Rules[0].Do[0].Set[0].Value.Pos, "3")
	check(p.Rules[0].Do[1].Set[0].Value.Pos, `"`)
	check(p.Rules[0].Do[2].Pos, "pass")
}

// All mistakes come at once, by position, each once; those that follow from CUE's own errors don't hide the others.
func TestAllMistakes(t *testing.T) {
	const text = `name: "Many"
headers: msg: fields: [{name: "kind", bits: 65}, {name: "len", bits: 8, slack: 3}]
tables: t: {key: a: "ip", value: n: "u8", sice: 5}
programs: p: {
	hook: "tc/ingres"
	stack: ["eth"]
	when: "a ="
	do: nothing
}
`
	_, list := Load("spec.cue", []byte(text))
	var got []string
	for _, d := range list.All() {
		got = append(got, fmt.Sprint(d.Pos.Line, " ", d.Code))
	}
	want := []string{"1 FR0109", "2 FR0112", "2 FR0116", "3 FR0102", "5 FR0112", "7 FR0113", "8 FR0106"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s\n%s", diff, list.Err())
	}
}

func TestStandardHeaders(t *testing.T) {
	entries, err := stdFiles.ReadDir("std")
	if err != nil || len(entries) != len(stdNames) {
		t.Errorf("%d files, %d names, %v", len(entries), len(stdNames), err)
	}
	headers := map[string]*Header{}
	for _, h := range standard().Headers {
		headers[h.Name.Value] = h
		bits := 0
		for _, f := range h.Fields {
			if f.Name.Pos.File == "" || Source(f.Name.Pos.File) == nil {
				t.Errorf("%s.%s: position %v", h.Name.Value, f.Name.Value, f.Name.Pos)
			}
			bits += f.Bits + 8*f.Bytes
		}
		if !h.Std || bits%8 != 0 {
			t.Errorf("%s: std %v, %d bits", h.Name.Value, h.Std, bits)
		}
	}
	// Sizes without what varies, in bytes: IEEE 802.3, RFC 791, 8200, 768, 9293, 792, 4443.
	for name, want := range map[string]int{"eth": 14, "vlan": 4, "ipv4": 20, "ipv6": 40, "udp": 8, "tcp": 20, "icmp": 8, "icmpv6": 8} {
		size := 0
		if headers[name] == nil {
			t.Errorf("no header %s", name)
			continue
		}
		for _, f := range headers[name].Fields {
			size += f.Bits + 8*f.Bytes
		}
		if size != 8*want {
			t.Errorf("%s has %d bits", name, size)
		}
	}
	if Source("other.cue") != nil || Source(schemaName) == nil || Source("fastrelay/std/../schema.cue") != nil {
		t.Error("Source knows the wrong files")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(everything)
	files, err := filepath.Glob("testdata/wrong/*.cue")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 || strings.Contains(text, "for") || strings.Count(text, "|") > 8 || strings.Contains(text, "Re") {
			return // what can take for ever is evaluated in a process of its own
		}
		s, list := Load("spec.cue", []byte(text))
		if (s == nil) != (list.Len() > 0) {
			t.Fatalf("%v, %v", s, list.Err())
		}
		for _, d := range list.All() {
			if d.Pos.Line < 1 || d.Pos.Column < 1 || d.Message == "" {
				t.Errorf("%s", d)
			}
			if strings.HasPrefix(d.Message, "CUE gave up") || strings.Contains(d.Message, "schema.cue") || strings.Contains(d.Message, "%!") {
				t.Errorf("%s", d)
			}
		}
	})
}
