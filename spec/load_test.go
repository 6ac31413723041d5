package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// A default counts wherever a value is asked for.
func TestDefaults(t *testing.T) {
	const text = `name: «"defaults"»
kernel: «"6.6"»
settings: {port: {type: «"u16"», default: «7»}, more: {type: "u16"}}
headers: h: {after: udp: dst_port: 7, fields: [{name: "a", bits: «8»}], parts: other: «"a"»}
tables: t: {kind: «"lru"», key: a: «"u8"», value: b: «"u32"», size: «9»}
events: e: fields: a: «"u8"»
programs: p: {
	hook: «"tc/ingress"»
	stack: ["eth", "ip", "udp", {x: «"h"»}]
	when: «"x.a > 1"»
	lookup: r: t: ["x.a"]
	do: [{let: n: «"x.a"»}, {set: "x.a": «3»}, {emit: e: a: «"n"»}, {learn: t: {key: [«"n"»], value: [«5»]}},
		{count: «"c"»}, {drop: «"d"»}]
}
tests: "a test": {
	program: «"p"»
	settings: more: «80»
	rows: [{t: {a: «1», b: «2»}}]
	packet: [{eth: {}}, {ip: {src: «"192.0.2.1"»}}, {udp: {}}, {h: a: «4»}, {payload: zeros: «3»}]
	expect: {drop: «"d"», rows: [{t: {a: «1», b: «true»}}], counters: c: «1», events: [{e: a: «4»}]}
}
`
	literal := regexp.MustCompile(`«([^»]*)»`)
	plain, defaults := literal.ReplaceAllString(text, "$1"), literal.ReplaceAllString(text, "*$1 | _")
	anywhere := cmp.Comparer(func(_, _ diag.Pos) bool { return true })
	if diff := cmp.Diff(load(t, plain), load(t, defaults), anywhere); diff != "" {
		t.Errorf("-plain +defaults:\n%s", diff)
	}
}

func TestLoadFileMissing(t *testing.T) {
	s, list := LoadFile(filepath.Join(t.TempDir(), "none.cue"))
	if s != nil || list.Len() != 1 || list.All()[0].Code != codeFile {
		t.Errorf("%v, %v", s, list.Err())
	}
}

// Positions lead to the text that they speak of: also after references, in quotes, in escaped strings.
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
priority: {levels: 4, from: "msg.level"}
groups: all: {key: at: "endpoint", receiver: to: "endpoint"}
programs: q: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	priority: 3
	do: [{fan_out: {
		group: all: ["udp.dst"]
		each: [
			{let: number: "alloc(r.next)"},
			{admit: {credit: "r.credit[priority + 1]", cost: 7, count: "r.lost"}},
			{emit: sent: "at": "r.to"},
			{send: {from: "udp.dst", to: "r.to"}},
		]
		then: drop: "copied"
	}}]
}
tests: one: {
	program: "q"
	groups: [{all: {key: at: "192.0.2.1:80", receivers: [{to: "192.0.2.2:80"}]}}]
	packet: [{eth: {}}]
	expect: {drop: true, copies: [{declined: "late"}, true], events: [{sent: {receiver: 0}}]}
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
	check(s.Priority.Pos, "priority")
	check(s.Priority.From.Path[1].Pos, "level")
	check(s.Groups[0].Name.Pos, "all")
	check(s.Groups[0].Receiver[0].Type.Pos, "endpoint")
	q := s.Programs[1]
	check(q.Priority.From.Pos, "3")
	check(q.Rules[0].Do[0].Pos, "fan_out")
	f := q.Rules[0].Do[0].FanOut
	check(f.Pos, "all")
	check(f.Key[0].Pos, "udp.dst")
	check(f.Rules[0].Pos, "each")
	check(f.Rules[0].Do[0].Set[0].Target.Pos, "number")
	check(f.Rules[0].Do[0].Set[0].Value.Args[0].Pos, "r.next")
	check(f.Rules[0].Do[1].Credit.Pos, "r.credit[priority + 1]")
	check(f.Rules[0].Do[1].Credit.Args[1].Pos, "priority + 1")
	check(f.Rules[0].Do[1].Cost.Pos, "7")
	check(f.Rules[0].Do[1].Count.Pos, "r.lost")
	check(f.Rules[0].Do[2].Event.Pos, "sent")
	check(f.Rules[0].Do[2].Set[0].Target.Pos, "at")
	check(f.Drop.Pos, "copied")
	one := s.Tests[0]
	check(one.Groups[0].Pos, "all")
	check(one.Groups[0].Receivers[0][0].Value.Pos, "192.0.2.2:80")
	check(one.Expect.Copies[0].Pos, "late")
	check(one.Expect.Copies[1].Pos, "true")
	check(one.Expect.Events[0].Pos, "sent")
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
	for name, want := range map[string]int{
		"eth": 14, "vlan": 4, "ipv4": 20, "ipv4_any": 20, "ipv6": 40, "udp": 8, "tcp": 20, "icmp": 8, "icmpv6": 8,
	} {
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
		if len(text) > 4096 || strings.Contains(text, "for") || strings.Count(text, "|") > 8 ||
			strings.Contains(text, "Re") {
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
			if strings.HasPrefix(d.Message, "CUE gave up") || strings.Contains(d.Message, "schema.cue") ||
				strings.Contains(d.Message, "%!") {
				t.Errorf("%s", d)
			}
		}
	})
}
