package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// The second part of the guide shows a relay as it grows: its first form and its last one are specs whose tests pass, and every
// piece in between is in the last one.
func TestGuideSpecs(t *testing.T) {
	guide, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(guide), "\n# One to many\n")
	if !ok {
		t.Fatal("the guide has no part \"One to many\"")
	}
	var specs, pieces []string
	for _, m := range regexp.MustCompile("(?s)```cue\n(.*?)```").FindAllStringSubmatch(part, -1) {
		if strings.HasPrefix(m[1], "name: ") {
			specs = append(specs, m[1])
		} else {
			pieces = append(pieces, m[1])
		}
	}
	if len(specs) != 2 || len(pieces) < 5 {
		t.Fatalf("%d specs and %d pieces", len(specs), len(pieces))
	}
	for _, text := range specs {
		s, diags := spec.Load("guide.md", []byte(text))
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		plan, diags := gen.Compile(s)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		if err := spectest.Check(s, plan).Err(); err != nil {
			t.Fatal(err)
		}
		outcomes := spectest.Model(t.Context(), s, plan)
		if len(outcomes) == 0 {
			t.Errorf("no test in\n%s", text)
		}
		for _, o := range outcomes {
			if o.Status != spectest.Passed {
				t.Errorf("%s: %s\n%s", o.Name, strings.Join(o.Differences, "\n"), o.Dump)
			}
		}
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	whole := words(specs[1])
	for _, p := range pieces {
		if !strings.Contains(whole, words(p)) {
			t.Errorf("not in the whole spec:\n%s", p)
		}
	}
}
