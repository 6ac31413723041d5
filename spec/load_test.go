package spec

import (
	"os"
	"path/filepath"
	"testing"
)

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*/spec.cue")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, list := Load(file, text)
		if err := list.Err(); err != nil {
			t.Errorf("%s:\n%s", file, err)
			continue
		}
		if len(s.Programs) == 0 || len(s.Tests) == 0 {
			t.Errorf("%s: %d programs, %d tests", file, len(s.Programs), len(s.Tests))
		}
	}
}
