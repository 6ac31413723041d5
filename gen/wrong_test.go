package gen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

var errorComment = regexp.MustCompile(`// (ERROR|WARNING) "(.*?)"(?: HINT "(.*?)")?(?: LINES "(.*)")?$`)

// TestWrong compiles specs that each have one mistake, which a comment in its line states. HINT is what its label or
// hint has to say; low, which loses data, is only mentioned if the comment says so. LINES are those of the spec that
// the message names beside its own. If there is nothing but a warning, there is a plan.
func TestWrong(t *testing.T) {
	files, err := filepath.Glob("testdata/wrong/*.cue")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d wrong specs, %v", len(files), err)
	}
	triggered := map[diag.Code]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".cue"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			line, severity, want, hint, lines := 0, "", "", "", ""
			for i, l := range strings.Split(string(src), "\n") {
				if m := errorComment.FindStringSubmatch(l); m != nil {
					line, severity, want, hint, lines = i+1, strings.ToLower(m[1]), m[2], m[3], m[4]
				}
			}
			if line == 0 {
				t.Fatal("no ERROR comment")
			}
			s, diags := spec.Load(filepath.Base(file), src)
			if diags.Len() == 0 {
				var plan *ir.Plan
				if plan, diags = gen.Compile(s); (plan != nil) != (severity == "warning") {
					t.Errorf("a mistake of severity %s: there is a plan: %v", severity, plan != nil)
				}
			}
			all := diags.All()
			if len(all) != 1 {
				t.Errorf("%d messages, want 1: %v", len(all), all)
			}
			for _, d := range all {
				triggered[d.Code] = true
				if d.Severity() != severity || d.Pos.Line != line || !regexp.MustCompile(want).MatchString(d.Message) {
					t.Errorf("got %v, want line %d: %s", d, line, want)
				}
				if !regexp.MustCompile(hint).MatchString(d.Label+"\n"+d.Hint) || strings.Contains(d.Hint, "low(…") &&
					!strings.Contains(hint, "low") {
					t.Errorf("got %q and %q, want %s", d.Label, d.Hint, hint)
				}
				var named []string
				for _, r := range d.Related {
					if r.Pos.File == filepath.Base(file) {
						named = append(named, strconv.Itoa(r.Pos.Line))
					}
				}
				if got := strings.Join(named, " "); lines != "" && got != lines {
					t.Errorf("it names lines %s, want %s", got, lines)
				}
			}
		})
	}
	for _, info := range diag.Infos() {
		internal := info.Code == "FR0299" // nothing that a spec says may trigger it
		if strings.HasPrefix(string(info.Code), "FR02") && !triggered[info.Code] && !internal {
			t.Errorf("no wrong spec triggers %s (%s)", info.Code, info.Title)
		}
	}
}
