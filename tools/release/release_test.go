package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/tools/binary"
)

// Two releases of the same tree, in different folders, are the same bytes. One target stands for all,
// since nothing depends on it.
func TestReproducible(t *testing.T) {
	needs.All(t)
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	tree, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "go.work", "LICENSE"} {
		content, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bench", "cmd", "deploy", "examples", "experiment", "gen", "internal", "runtime",
		"sim", "spec", "templates", "tools", "LICENSES"} {
		if err := os.CopyFS(filepath.Join(other, dir), os.DirFS(filepath.Join(tree, dir))); err != nil {
			t.Fatal(err)
		}
	}
	this := []binary.Target{{System: "linux", Processor: runtime.GOARCH}}
	var sums []string
	for _, root := range []string{tree, other, tree} {
		out := t.TempDir()
		if err := release(t.Context(), root, "v0.9.0", out, this); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(out, sumsName))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(text))
		if len(sums) > 1 {
			continue
		}
		if n := strings.Count(string(text), "\n"); n != 10 {
			t.Errorf("%d files have checksums:\n%s", n, text)
		}
		for _, name := range []string{"LICENSE", "LICENSES/BSD-2-Clause.txt", "LICENSES/GPL-2.0-only.txt"} {
			want, err := os.ReadFile(filepath.Join(tree, name))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s isn't in the release as it is in the tree: %v", name, err)
			}
		}
		if err := release(t.Context(), root, "v0.9.0", out, this); err != nil {
			t.Errorf("a release instead of an earlier one: %v", err)
		}
		built := filepath.Join(out, "fastrelay-gen_v0.9.0_"+runtime.GOOS+"_"+runtime.GOARCH)
		version, err := exec.CommandContext(t.Context(), built, "version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(version), "fastrelay-gen  v0.9.0 (") {
			t.Errorf("%v: %s", err, version)
		}
	}
	if sums[0] != sums[1] || sums[0] != sums[2] {
		t.Errorf("checksums differ:\n%s", strings.Join(sums, "\n"))
	}
}

func TestRefusals(t *testing.T) {
	for _, version := range []string{"", "0.1.0", "v0.1", "v0.1.0+dirty"} {
		if err := release(t.Context(), ".", version, t.TempDir(), nil); err == nil || !strings.Contains(err.Error(),
			"is not a version") {
			t.Errorf("%q: %v", version, err)
		}
	}
	for _, name := range []string{"precious", "LICENSES/precious"} {
		dir := t.TempDir()
		precious := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(precious, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		err := release(t.Context(), "../..", "v0.1.0", dir, nil)
		if err == nil || !strings.Contains(err.Error(), "holds "+name) {
			t.Errorf("a folder with something else: %v", err)
		}
		if _, err := os.Stat(precious); err != nil {
			t.Error(err)
		}
	}
}

// The compiler's module names the version of the runtime that is released with it.
func TestRequired(t *testing.T) {
	root := t.TempDir()
	const text = "module m\n\nrequire github.com/fastrelay/fastrelay-gen/runtime v1.2.3\n"
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := required(root, "v1.2.3"); err != nil {
		t.Error(err)
	}
	if err := required(root, "v1.2.4"); err == nil || !strings.Contains(err.Error(), "go.mod:3: requires") {
		t.Errorf("another version: %v", err)
	}
}
