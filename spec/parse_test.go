package spec

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func TestParseExpr(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"1", "1"},
		{"0x4000", "16384"},
		{"0b101_0", "10"},
		{"0o17", "15"},
		{"18446744073709551615", "18446744073709551615"},
		{"true", "true"},
		{"!false", "!false"},
		{"udp.src.port", "udp.src.port"},
		{"type & 4 != 0", "((type & 4) != 0)"},
		{"range.select.func", "range.select.func"},
		{"data_offset*4 - 20", "((data_offset * 4) - 20)"},
		{"a + b * c", "(a + (b * c))"},
		{"a - b - c", "((a - b) - c)"},
		{"a << 2 | b", "((a << 2) | b)"},
		{"a | b & c", "(a | (b & c))"},
		{"a &^ b ^ c", "((a &^ b) ^ c)"},
		{"a == b || c < d && e", "((a == b) || ((c < d) && e))"},
		{"(a || b) && !c", "((a || b) && !c)"},
		{"-a * ^b", "(-a * ^b)"},
		{"a<-b--c", "(a < (-b - -c))"},
		{"a - --1", "(a - --1)"},
		{"!conn && src.connections >= setting.quota", "(!conn && (src.connections >= setting.quota))"},
		{"len(udp.payload) % 2", "(len(udp.payload) % 2)"},
		{"low(a + b, 6)", "low((a + b), 6)"},
		{"alloc(r.next_stream, 4)", "alloc(r.next_stream, 4)"},
		{"now()", "now()"},
		{"short.dcid[0] >> 4", "(short.dcid[0] >> 4)"},
		{"a[1 + 2]", "a[(1 + 2)]"},
		{"a\n+ b\n", "(a + b)"},
		{"a ==\n b", "(a == b)"},
	} {
		e, d := parseExpr(c.text, textPos{diag.Pos{File: "x.cue", Line: 1, Column: 1}, true})
		if d != nil {
			t.Errorf("%q: %s", c.text, d)
			continue
		}
		if got := e.String(); got != c.want {
			t.Errorf("%q is %s, not %s", c.text, got, c.want)
		}
	}
}

// Every node's position covers its own text.
func TestParseExprPositions(t *testing.T) {
	const text = "(udp.length - 8) >= low(ch.n, 3) && !seen.ok || short.dcid[12] == 0x1F"
	e, d := parseExpr(text, textPos{diag.Pos{File: "x.cue", Line: 7, Column: 20}, true})
	if d != nil {
		t.Fatal(d)
	}
	at := func(p diag.Pos) string {
		if p.File != "x.cue" || p.Line != 7 {
			t.Errorf("%s is in another line", p)
		}
		return text[p.Column-20 : p.Column-20+p.Len]
	}
	var all []string
	var walk func(e *Expr)
	walk = func(e *Expr) {
		all = append(all, at(e.Pos))
		for _, n := range e.Path {
			if got := at(n.Pos); got != n.Value {
				t.Errorf("name %q is at %q", n.Value, got)
			}
		}
		if e.Op == OpCall && at(e.Fn.Pos) != e.Fn.Value {
			t.Errorf("function %q is at %q", e.Fn.Value, at(e.Fn.Pos))
		}
		for _, a := range e.Args {
			walk(a)
		}
	}
	walk(e)
	want := []string{
		text, "(udp.length - 8) >= low(ch.n, 3) && !seen.ok", "(udp.length - 8) >= low(ch.n, 3)", "(udp.length - 8)",
		"udp.length", "8",
		"low(ch.n, 3)", "ch.n", "3", "!seen.ok", "seen.ok", "short.dcid[12] == 0x1F", "short.dcid[12]", "short.dcid",
		"12", "0x1F",
	}
	if got := strings.Join(all, " | "); got != strings.Join(want, " | ") {
		t.Errorf("got  %s\nwant %s", got, strings.Join(want, " | "))
	}
}

func TestParseExprMistakes(t *testing.T) {
	for _, c := range []struct {
		text   string
		column int
		want   string
	}{
		{"", 1, "an expression is missing"},
		{"  ", 1, "an expression is missing"},
		{"a +", 4, "the expression ends where a value is wanted"},
		{"a b", 3, `unexpected "b", want the end of the expression`},
		{"a = 3", 3, "= is not an operator"},
		{"(a", 3, `the expression ends where ")" is wanted`},
		{"a[3", 4, `the expression ends where "]" is wanted`},
		{"f(a", 4, `the expression ends where ")" is wanted`},
		{"f(a b)", 5, `unexpected "b", want ")"`},
		{"a.", 3, "the expression ends where a name is wanted"},
		{"a.3", 2, ".3"},
		{"a)", 2, `unexpected ")", want the end of the expression`},
		{"A.b", 1, `"A" is not a name`},
		{"a.bÜ", 3, `is not a name`},
		{"a # b", 3, "illegal character"},
		{"0x", 3, "hexadecimal literal has no digits"},
		{"08", 2, "invalid digit"},
		{"99999999999999999999", 1, "doesn't fit 64 bits"},
		{"1.5", 1, "1.5 is not an integer"},
		{"'x'", 1, "'x' is not an integer"},
		{"'abc'", 1, "'abc' is not an integer"},
		{"a; b", 2, `unexpected ";", want the end of the expression`},
		{"a // b", 3, "a comment can't be"},
		{"a /* b */", 3, "a comment can't be"},
		{"a++", 2, "want the end of the expression"},
		{"a := 3", 3, "want the end of the expression"},
		{strings.Repeat("(", 100), 65, "nested more than 64 levels deep"},
		{strings.Repeat("!", 100) + "a", 65, "nested more than 64 levels deep"},
		{strings.Repeat("a+", 100) + "a", 130, "nested more than 64 levels deep"},
		{strings.Repeat("a+", 600) + "a", 1, "longer than 1024 bytes"},
		{"a\x00b", 2, "illegal character U+0000"},
		{"\xff", 1, "illegal UTF-8"},
	} {
		e, d := parseExpr(c.text, textPos{diag.Pos{File: "x.cue", Line: 1, Column: 1}, true})
		if d == nil {
			t.Errorf("%q is read as %s", c.text, e)
			continue
		}
		if !strings.Contains(d.Message, c.want) || d.Pos.Column != c.column {
			t.Errorf("%q: %d: %s; want %d: %s", c.text, d.Pos.Column, d.Message, c.column, c.want)
		}
	}
}

func FuzzParseExpr(f *testing.F) {
	for _, s := range []string{
		"a.b == 3 && !c", "len(x.payload) - 8", "a[3] << 2 | 0x1F", "((", "a 'b", "1_", "f(,)", "type.range",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, d := parseExpr(text, textPos{diag.Pos{File: "x.cue", Line: 1, Column: 1}, true})
		if (e == nil) == (d == nil) {
			t.Fatalf("%q: %v, %v", text, e, d)
		}
		if d != nil {
			if d.Pos.Column < 1 || d.Pos.Column > len(text)+1 || d.Message == "" {
				t.Fatalf("%q: %s", text, d)
			}
			return
		}
		// What is printed means the same. Parentheses count as a level each, so only what is not
		// very deep can be read again.
		printed := e.String()
		if strings.Count(printed, "(")+strings.Count(printed, "!")+strings.Count(printed, "-")+strings.Count(printed,
			"^") > maxExprDepth/2 {
			return
		}
		again, d := parseExpr(printed, textPos{diag.Pos{File: "x.cue", Line: 1, Column: 1}, true})
		if d != nil || again.String() != printed {
			t.Fatalf("%q is %q, which is %v (%v)", text, printed, again, d)
		}
	})
}
