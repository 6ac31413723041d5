package spec

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var wantedError = regexp.MustCompile(`// ERROR(-BELOW)? "(.*?)"( HINT "(.*)")?$`)

// Every spec in testdata/wrong has one mistake, and beside it, in a comment, the message that it has to get: this one,
// at this line, and no other. HINT is what its label or hint has to say.
func TestWrong(t *testing.T) {
	files, err := filepath.Glob("testdata/wrong/*.cue")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".cue"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			line, pattern, hint := 0, "", ""
			for i, l := range bytes.Split(text, []byte("\n")) {
				if m := wantedError.FindSubmatch(l); m != nil {
					line, pattern, hint = i+1, string(m[2]), string(m[4])
					if len(m[1]) > 0 { // if the line itself has no room for a comment
						line++
					}
				}
			}
			s, list := Load(file, text)
			if s != nil {
				t.Error("there is a spec in spite of its mistake")
			}
			all := list.All()
			if len(all) != 1 {
				t.Errorf("%d messages, not 1", len(all))
			}
			for _, d := range all {
				if d.Pos.Line != line || d.Pos.File != file || d.Pos.Column < 1 {
					t.Errorf("%s: not at line %d", d, line)
				}
				if ok, err := regexp.MatchString(pattern, d.Message); err != nil || !ok {
					t.Errorf("%q doesn't match %q (%v)", d.Message, pattern, err)
				}
				if ok, err := regexp.MatchString(hint, d.Label+"\n"+d.Hint); err != nil || !ok {
					t.Errorf("%q and %q don't match %q (%v)", d.Label, d.Hint, hint, err)
				}
				for _, inside := range []string{"schema.cue", "cue.", "#Spec", "_|_", "adt", "<nil>", "%!"} {
					if strings.Contains(d.Message+d.Hint+d.Label, inside) {
						t.Errorf("%q talks about the inside of the program", d.Message)
					}
				}
				for _, r := range d.Related {
					if r.Pos.File != file {
						t.Errorf("the related place %s is in another file", r.Pos)
					}
				}
			}
		})
	}
}
