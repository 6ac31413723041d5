package gen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// advice is how a person follows what a label, or a line of a hint, says to write. at makes what replaces the text that
// the message underlines; if the advice is about another place, all makes the whole spec.
var advice = []struct {
	words string
	at    func(m []string, at string) string
	all   func(m []string, d *diag.Diagnostic, src string) string
}{
	{words: `^did you mean "(.*)"\?$`, at: func(m []string, at string) string {
		if strings.HasPrefix(at, `"`) {
			return `"` + m[1] + `"`
		}
		return at[:strings.LastIndex(at, ".")+1] + m[1] // the last name of several
	}},
	{words: `^only \w+ has it: (\S+)$`, at: first},
	{words: `^say which one: (\S+)$`, at: first},
	{words: `^an address leaves the port as it is: (\S+)$`, at: first},
	{words: `^write it as "(.*?)"`, at: first},
	{words: `^(&&|\|\|) joins `, at: first},
	{words: `^(==) compares$`, at: first},
	{words: `^a version is written in quotes: (.*)$`, at: first},
	{words: `^it can't be made wider: .*: … >> (\d+)$`, at: func(m []string, at string) string {
		return "(" + at + ") >> " + m[1]
	}},
	{words: `^a number that may wrap around: low\(…, (\d+)\)$`, at: func(m []string, at string) string {
		return "low(" + at + ", " + m[1] + ")"
	}},
	{words: `^low\(…, (\S+)\) is as much of a number`, all: func(m []string, d *diag.Diagnostic, src string) string {
		return replace(src, d.Pos, `": "(.*?)"`, `": "low(${1}, `+m[1]+`)"`)
	}},
	{words: `^compare it with something: … (!= 0)$`, at: func(m []string, at string) string {
		return at + " " + m[1]
	}},
	{words: `^ask for it first: (\w+ &&) …$`, at: func(m []string, at string) string { return m[1] + " " + at }},
	{words: `^it comes after (\w+) or`, at: func(m []string, at string) string { return m[1] + `", "` + at }},
	{words: `^make "(\w+)".* wider: ("u\d+")(?:;.*: (kind: "hash"))?$`, all: func(m []string, d *diag.Diagnostic,
		src string) string {
		src = replace(src, d.Related[0].Pos, m[1]+`: "u\d+"`, m[1]+": "+m[2])
		if m[3] != "" {
			src = replace(src, lineOf(d.Related[0].Pos), `kind: *"array"`, m[3])
		}
		return src
	}},
	{words: `^a hash takes any key: (kind: "hash")$`, all: func(m []string, d *diag.Diagnostic, src string) string {
		return replace(src, lineOf(d.Pos), `kind: "array"`, m[1])
	}},
	{words: `^declare the value with type ("\w+")`, all: func(m []string, d *diag.Diagnostic, src string) string {
		name := regexp.MustCompile(`\w+$`).FindString(text(src, d.Pos))
		return regexp.MustCompile(`\b`+name+`: "\w+"`).ReplaceAllString(src, name+": "+m[1])
	}},
	{words: `more would fill it: (.*)$`, all: func(m []string, d *diag.Diagnostic, src string) string {
		return replace(src, d.Pos, `(?s)\}(,?\s*)\](.*)`, "}, "+m[1]+"]${2}")
	}},
	{words: `^a stack begins with the (?:link layer|outermost header): (\[.*\])$`, all: func(m []string,
		d *diag.Diagnostic, src string) string {
		if list, more := strings.CutSuffix(m[1], " …]"); more {
			return replace(src, diag.Pos{Line: 1}, `stack: *\[`, "stack: "+list+" ")
		}
		return replace(src, lineOf(d.Pos), `stack: *\[.*?\]`, "stack: "+m[1])
	}},
	{words: `^one of a fixed size has bits: (\{name: "(\w+)".*\})$`, all: func(m []string, d *diag.Diagnostic,
		src string) string {
		return replace(src, lineOf(d.Pos), `\{name: *"`+m[2]+`".*?\}`, m[1])
	}},
	{words: `^(?:expressions are|a name that ends in \? is) written in quotes: "(.*)"$`, all: func(m []string,
		d *diag.Diagnostic, src string) string {
		return replace(src, lineOf(d.Pos), regexp.QuoteMeta(m[1]), `"`+m[1]+`"`)
	}},
}

func first(m []string, _ string) string { return m[1] }

// lineOf is the beginning of a position's line.
func lineOf(p diag.Pos) diag.Pos { return diag.Pos{Line: p.Line, Column: 1} }

// index is where a position is in a spec.
func index(src string, p diag.Pos) int {
	at := 0
	for range p.Line - 1 {
		at += strings.Index(src[at:], "\n") + 1
	}
	return at + max(p.Column, 1) - 1
}

func text(src string, p diag.Pos) string { return src[index(src, p):][:max(p.Len, 1)] }

// replace changes the first match of a pattern from a position on.
func replace(src string, p diag.Pos, pattern, by string) string {
	at, re := index(src, p), regexp.MustCompile(pattern)
	m := re.FindStringSubmatchIndex(src[at:])
	if m == nil {
		return src
	}
	return src[:at+m[0]] + string(re.ExpandString(nil, by, src[at:], m)) + src[at+m[1]:]
}

func load(src string) (*spec.Spec, *diag.List) { return spec.Load("spec.cue", []byte(src)) }

func compile(src string) *diag.List {
	s, diags := load(src)
	if diags.Len() == 0 {
		_, diags = gen.Compile(s)
	}
	return diags
}

// follow does what the messages of a spec say, each thing alone, and reports what is refused then at a line that was
// mended. It returns which advice was followed.
func follow(t *testing.T, src string, check func(src string) *diag.List) (followed []int) {
	t.Helper()
	for _, d := range check(src).All() {
		for _, line := range append(strings.Split(d.Hint, "\n"), d.Label) {
			for i, a := range advice {
				m := regexp.MustCompile(a.words).FindStringSubmatch(line)
				if m == nil || d.Warning {
					continue
				}
				followed = append(followed, i)
				var mended string
				if a.at != nil {
					at := index(src, d.Pos)
					mended = src[:at] + a.at(m, text(src, d.Pos)) + src[at+max(d.Pos.Len, 1):]
				} else {
					mended = a.all(m, d, src)
				}
				if mended == src {
					t.Errorf("%v: %q can't be followed", d, line)
				}
				was := strings.Split(src, "\n")
				for _, e := range check(mended).All() {
					changed := e.Pos.Line > len(was) || was[e.Pos.Line-1] != strings.Split(mended, "\n")[e.Pos.Line-1]
					if !e.Warning && (changed || e.Pos.Line == d.Pos.Line) {
						t.Errorf("%v: %q, and then:\n%v\n%s", d, line, e, mended)
					}
				}
			}
		}
	}
	return followed
}

// TestAdvice does what messages about wrong specs say: nothing is refused then where they said so.
func TestAdvice(t *testing.T) {
	var followed []int
	for dir, check := range map[string]func(string) *diag.List{
		"testdata/wrong": compile, "../golden/wrong": compile,
		"../spec/testdata/wrong": func(src string) *diag.List { // whole in no other way
			_, diags := load(src)
			return diags
		},
	} {
		files, err := filepath.Glob(filepath.Join(dir, "*.cue"))
		if err != nil || len(files) < 40 {
			t.Fatalf("%d wrong specs in %s, %v", len(files), dir, err)
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(filepath.Base(file), func(t *testing.T) {
				followed = append(followed, follow(t, string(src), check)...)
			})
		}
	}
	for i, a := range advice {
		if !slices.Contains(followed, i) {
			t.Errorf("no wrong spec has the advice %s", a.words)
		}
	}
}

// TestAdviceWidths stores numbers of many widths in all that holds numbers. If one doesn't fit, there is advice, and
// then it does.
func TestAdviceWidths(t *testing.T) {
	const found = `lookup: r: t: ["VALUE"], rules: [{when: "r.n != 0", do: [{count: "some"}, "pass"]}, {do: ["pass"]}]`
	places := []struct{ declared, program string }{
		{`tables: t: {key: id: "TYPE", value: n: "u8"}`, found},
		{`tables: t: {kind: "lru", key: id: "TYPE", value: n: "u8"}`, found},
		{`tables: t: {kind: "array", key: id: "TYPE", value: n: "u8"}`, found},
		{`tables: t: {kind: "array", per_cpu: true, key: id: "TYPE", value: n: "u8"}`, found},
		{`tables: t: {kind: "lru", key: id: "ip", value: n: "TYPE"}`, `lookup: "r?": t: ["ip.src"], rules: [` +
			`{when: "!r || r.n != 1", do: [{learn: t: {key: ["ip.src"], value: ["VALUE"]}}, "pass"]}, {do: ["pass"]}]`},
		{`sessions: s: {fields: {id: "TYPE", to: "endpoint"}, rows: t: {key: ["id"], value: ["to"]}}`,
			`lookup: r: t: ["VALUE"], do: [{send: {from: "udp.dst", to: "r.to"}}]`},
		{`events: e: fields: n: "TYPE"`, `do: [{emit: e: n: "VALUE"}, "pass"]`},
		{`groups: all: {max: 8, receivers: 8, key: id: "TYPE", receiver: {local: "endpoint", remote: "endpoint"}}`,
			`do: [{fan_out: {group: all: ["VALUE"], each: [{send: {from: "r.local", to: "r.remote"}}]}}]`},
		{`headers: out: fields: [{name: "x", bits: 8}]`, `do: [{push: out: x: "VALUE"}, "pass"]`},
		{``, `do: [{set: "tag.x": "VALUE"}, "pass"]`},
		{``, `do: [{set: "ip.dscp": "VALUE"}, "pass"]`},
		{``, `do: [{mark: priority: "VALUE"}, "pass"]`},
	}
	for _, place := range places {
		followed := 0
		for _, typ := range []string{"u8", "u32"} {
			for _, value := range []string{"tag.x", "tag.a", "tag.b", "tag.b + 1", "tag.c"} {
				src := `name: "widths"
headers: tag: fields: [{name: "x", bits: 8}, {name: "a", bits: 17}, {name: "b", bits: 33}, {name: "c", bits: 62}]
` + strings.ReplaceAll(place.declared, "TYPE", typ) + `
programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "tag"], ` +
					strings.ReplaceAll(place.program, "VALUE", value) + "}\n"
				advised := len(follow(t, src, compile))
				if err := compile(src).Err(); err != nil && advised == 0 {
					t.Errorf("no advice: %v\n%s", err, src)
				}
				followed += advised
			}
		}
		if followed == 0 {
			t.Errorf("nothing is refused: %s %s", place.declared, place.program)
		}
	}
}

// What constants come to is what has to fit, not what each of them may be: 5 - 3 does, 3 - 5 doesn't.
func TestConstantOperands(t *testing.T) {
	const src = `name: "x"
headers: tag: fields: [{name: "id", bits: 8}]
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "tag"]
	do: [{set: "tag.id": "%s"}, {send: {from: "udp.dst", to: "udp.src"}}]
}
`
	for value, fits := range map[string]bool{"5 - 3": true, "200 + 55": true, "200 + 56": false, "3 - 5": false} {
		diags := compile(strings.Replace(src, "%s", value, 1))
		if diags.Err() == nil != fits {
			t.Errorf("%s: %v", value, diags.Err())
		}
	}
}
