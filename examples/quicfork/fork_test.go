package quicfork

import (
	"errors"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFork makes the fork twice: the second time nothing is written. FASTRELAY_UPDATE=1 records the sums.
func TestFork(t *testing.T) {
	sums := ""
	record := func(which string, tree Tree, err error) {
		t.Helper()
		var other *SumError
		if err != nil && !(errors.As(err, &other) && os.Getenv("FASTRELAY_UPDATE") != "") {
			t.Fatal(err)
		}
		sums += which + " " + tree.Sum() + "\n"
	}
	upstream, err := Upstream()
	record("upstream", upstream, err)
	fork, err := Fork(upstream)
	record("fork", fork, err)
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(sumsFile, []byte(sums), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	library, err := fork.Library("example.com/mine/quic")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range library {
		if name == "LICENSE" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if strings.HasPrefix(spec.Path.Value, `"`+UpstreamPath) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
	}
	folder := filepath.Join(t.TempDir(), "quic")
	if err := library.Write(folder); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(folder, "connection.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "stray.go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := library.Write(folder); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(folder, "connection.go"))
	if err != nil || after.ModTime() != before.ModTime() {
		t.Errorf("an unchanged file was written again: %v", err)
	}
	there, err := read(os.DirFS(folder))
	if err != nil {
		t.Fatal(err)
	}
	delete(there, stamp)
	if there.Sum() != library.Sum() {
		t.Error("the folder holds another tree")
	}
}

// TestPatch applies patches that fit and that don't.
func TestPatch(t *testing.T) {
	tree := Tree{"a.go": []byte("one\ntwo\nthree\ntwo\n\nfive\n")}
	for _, c := range []struct{ patch, want string }{
		{"Why.\n--- a/a.go\n+++ b/a.go\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n", "one\n2\nthree\ntwo\n\nfive\n"},
		{"--- a/a.go\n+++ b/a.go\n@@\n two\n\n+4\n five\n@@\n-one\n", "two\nthree\ntwo\n\n4\nfive\n"},
		{"--- a/a.go\n+++ b/a.go\n@@\n-two\n", "a.go, hunk 1: its lines occur 2 times"},
		{"--- a/a.go\n+++ b/a.go\n@@\n-wo\n", "a.go, hunk 1: its lines occur 0 times"},
		{"--- a/a.go\n+++ b/a.go\n@@\n+wo\n", "a.go, hunk 1: it has no line of context"},
		{"--- a/a.go\n+++ b/a.go\n@@\n*wo\n", "a.go, hunk 1: a line begins with '*'"},
		{"--- a/b.go\n+++ b/b.go\n@@\n-two\n", "there is no file b.go"},
		{"nothing", "it has no line that begins with --- a/"},
	} {
		tree := maps.Clone(tree)
		got := ""
		if err := tree.Patch(c.patch); err != nil {
			got = err.Error()
		} else {
			got = string(tree["a.go"])
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: %q, want %q", c.patch, got, c.want)
		}
	}
}

// TestRefused tries what Write and Fork refuse.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "mine.go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (Tree{"a.go": nil}).Write(folder); err == nil || !strings.Contains(err.Error(), "isn't empty") {
		t.Errorf("a folder with other files: %v", err)
	}
	var other *SumError
	if err := check("upstream", Tree{"a.go": nil}, ""); !errors.As(err, &other) {
		t.Errorf("another tree: %v", err)
	}
}

// TestFaults makes each fork that lacks a hook; cmd/hookcheck runs their tests.
func TestFaults(t *testing.T) {
	upstream, err := Upstream()
	if err != nil {
		t.Fatal(err)
	}
	faults, err := Faults()
	if err != nil || len(faults) < 40 {
		t.Fatalf("%d faults, %v", len(faults), err)
	}
	tests := ""
	files, err := filepath.Glob("test/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests += string(text)
	}
	for _, f := range faults {
		if _, err := f.Fork(upstream); err != nil {
			t.Error(err)
		}
		if !strings.Contains(tests, "func "+f.Test+"(t *testing.T) {") {
			t.Errorf("%s names a test %s, which there isn't", f.Name, f.Test)
		}
	}
}
