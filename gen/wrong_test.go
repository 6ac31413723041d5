package gen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

var errorComment = regexp.MustCompile(`// ERROR "(.*)"`)

// TestWrong compiles specs that each have one mistake, which a comment in its line tells.
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
			line, want := 0, ""
			for i, l := range strings.Split(string(src), "\n") {
				if m := errorComment.FindStringSubmatch(l); m != nil {
					line, want = i+1, m[1]
				}
			}
			if line == 0 {
				t.Fatal("no ERROR comment")
			}
			s, diags := spec.Load(filepath.Base(file), src)
			if diags.Len() == 0 {
				_, diags = gen.Compile(s)
			}
			all := diags.All()
			if len(all) != 1 {
				t.Errorf("%d messages, want 1:\n%v", len(all), diags.Err())
			}
			for _, d := range all {
				triggered[d.Code] = true
				if d.Pos.Line != line || !regexp.MustCompile(want).MatchString(d.Message) {
					t.Errorf("got %v, want line %d: %s", d, line, want)
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
