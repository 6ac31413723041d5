package spec

import (
	"strings"
	"testing"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

var replacements = []string{
	"7", `"x"`, "true", "[]", "{}", "null", "string", ">3", "nothing", "-1", "2.5", `[{x: 1}]`, `{x: 1}`,
}

// Every value of a spec is replaced by values of other kinds. Each change is at most one mistake, so there is at most
// one message, at the line of the change, and nothing of the program's inside in it.
func TestReplacedValues(t *testing.T) {
	f, err := parser.ParseFile("spec.cue", everything)
	if err != nil {
		t.Fatal(err)
	}
	type span struct{ from, to, line int }
	var spans []span
	add := func(x ast.Expr) {
		if x.Pos().IsValid() && x.End().IsValid() {
			spans = append(spans, span{x.Pos().Offset(), x.End().Offset(), x.Pos().Line()})
		}
	}
	ast.Walk(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.Field:
			add(x.Value)
		case *ast.ListLit:
			for _, e := range x.Elts {
				add(e)
			}
		}
		return true
	}, nil)
	if len(spans) < 100 {
		t.Fatalf("only %d values", len(spans))
	}
	perValue := needs.Of(1, len(replacements)) // are tried for each value
	wrong := 0
	for i, s := range spans {
		for k := range perValue {
			r := replacements[(perValue*i+k)%len(replacements)]
			text := everything[:s.from] + r + everything[s.to:]
			spec, list := Load("spec.cue", []byte(text))
			all := list.All()
			if (spec == nil) != (len(all) > 0) {
				t.Errorf("line %d: %s for %q: %v, %v", s.line, r, everything[s.from:s.to], spec, list.Err())
			}
			if len(all) > 0 {
				wrong++
			}
			if len(all) > 1 {
				t.Errorf("line %d: %s for %q: %d messages\n%s", s.line, r, everything[s.from:s.to], len(all),
					list.Err())
			}
			for _, d := range all {
				if d.Pos.Line != s.line && d.Code != codeEval {
					t.Errorf("line %d: %s for %q: %s", s.line, r, everything[s.from:s.to], d)
				}
				checkWords(t, d.Message+d.Label+d.Hint)
			}
		}
	}
	t.Logf("%d values, %d mistakes", len(spans), wrong)
	if 2*wrong < perValue*len(spans) {
		t.Errorf("only %d mistakes in %d values", wrong, len(spans))
	}
}

// checkWords reports words in a message that only make sense inside of the program.
func checkWords(t *testing.T, message string) {
	t.Helper()
	for _, inside := range []string{
		"schema.cue", "cue.", "#Spec", "_|_", "adt", "<nil>", "%!", "isn't decided", "CUE gave up",
		"is not what the language has here",
	} {
		if strings.Contains(message, inside) {
			t.Errorf("%q talks about the inside of the program", message)
		}
	}
}
