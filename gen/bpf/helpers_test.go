package bpf_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// unit is a spec with what became of it.
type unit struct {
	spec   *spec.Spec
	plan   *ir.Plan
	source *bpf.Source
	object []byte
}

// compile compiles a spec down to the object; a warning of clang is an error.
func compile(t *testing.T, file string) *unit {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return compileText(t, file, text, nil)
}

// compileText compiles a spec's text. change may change the source.
func compileText(t *testing.T, file string, text []byte, change func(*bpf.Source)) *unit {
	t.Helper()
	s, diags := spec.Load(file, text)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	u := &unit{spec: s, plan: plan}
	var err error
	if u.source, err = build.Source(plan, file, text); err != nil { // as others compile it: an object is kept for all
		t.Fatal(err)
	}
	opt := clang.Options{Warn: true, Lines: u.source.Lines}
	if change != nil {
		change(u.source)
		opt.Lines = nil
	}
	u.object, _, err = clang.Compile(t.Context(), u.source.C, u.source.Header, opt)
	if refused := (*clang.Error)(nil); errors.As(err, &refused) {
		t.Fatal(refused.Log)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// load loads an object into the kernel.
func (u *unit) load(t *testing.T) *ebpf.Collection {
	t.Helper()
	needs.Root(t)
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(u.object))
	if err != nil {
		t.Fatal(err)
	}
	skbfacts.AnyDevice(collection)
	coll, err := ebpf.NewCollection(collection)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(coll.Close)
	return coll
}

// specs returns all specs that are known to be right.
func specs(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"../../examples/*/spec.cue", "../../golden/*/spec.cue", "testdata/*.cue"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 3 {
		t.Fatalf("only %d specs were found", len(files))
	}
	return files
}

// nameOf names a spec after its folder.
func nameOf(file string) string {
	return strings.ReplaceAll(filepath.Base(filepath.Dir(file)), "/", "_")
}
