package clang

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// clang's copy has each statement on one line, attributed to the spec or to the file of the package.
func TestAnnotate(t *testing.T) {
	pos := func(n int) diag.Pos { return diag.Pos{File: "dir/spec.cue", Line: n} }
	source := []string{
		"/* head */", "int f(int x)", "{", "\t/* note */", "\tif (x ==", "\t    1)", "\t\treturn 2;", "\tx++;",
		"\treturn x;", "}",
	}
	lines := make([]diag.Pos, len(source))
	lines[3], lines[4], lines[5], lines[6], lines[8] = pos(7), pos(7), pos(7), pos(7), pos(8)
	got := annotate(strings.Join(source, "\n")+"\n", lines)
	want := strings.Join([]string{
		`#line 2 "relay.bpf.c"`, "int f(int x)", "{", "\t/* note */",
		`#line 7 "spec.cue"`, "\tif (x == 1) return 2;",
		`#line 8 "relay.bpf.c"`, "\tx++;",
		`#line 8 "spec.cue"`, "\treturn x;",
		`#line 10 "relay.bpf.c"`, "}",
	}, "\n") + "\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	unit := Unit{Source: strings.Join(source, "\n"), Lines: lines}
	for line, want := range map[int]int{1: 0, 3: 0, 4: 7, 8: 7, 10: 8, 11: 0, 99: 0} {
		if got := unit.near(line); got.Line != want {
			t.Errorf("line %d is near %d, not %d", line, got.Line, want)
		}
	}
}
