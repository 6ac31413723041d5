package clang_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

const file = "../test/fuzz/testdata/specs/quota/spec.cue"

// render makes the C of a small spec.
func render(t *testing.T) *bpf.Source {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, diags := spec.Load(file, text)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	source, err := bpf.Render(plan, bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// A refusal of the verifier is explained at the line of the spec, and everything for a report is kept.
func TestVerifier(t *testing.T) {
	needs.Root(t)
	source := render(t)
	lines := strings.Split(source.C, "\n")
	n := -1
	for i, line := range lines {
		if strings.Contains(line, "->refused, 1)") {
			n = i
			lines[i] = strings.Replace(line, ", 1)", ", be32(pkt->data + 600))", 1)
		}
	}
	if n < 0 {
		t.Fatalf("no line to break in\n%s", source.C)
	}
	unit := &clang.Unit{Source: strings.Join(lines, "\n"), Header: source.Header, Lines: source.Lines, Plan: "a plan"}
	var err error
	if unit.Object, _, err = clang.Compile(t.Context(), unit.Source, unit.Header, clang.Options{}); err != nil {
		t.Fatal(err)
	}
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(unit.Object))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollection(collection)
	if err == nil {
		loaded.Close()
		t.Fatal("the kernel takes a program that reads what it hasn't checked")
	}
	parent := t.TempDir()
	d := unit.Verifier(err, parent)
	if d == nil {
		t.Fatalf("%v is not explained", err)
	}
	if d.Code != "FR0902" || d.Pos.Line != source.Lines[n].Line ||
		filepath.Base(d.Pos.File) != filepath.Base(source.Lines[n].File) {
		t.Errorf("the message is %s at %v, want FR0902 at %v", d.Code, d.Pos, source.Lines[n])
	}
	for _, want := range []string{
		`rejects program "quota": invalid access to packet, off=600 size=4`,
		"4 bytes at offset 600 are read or written, but only 42 bytes were checked",
	} {
		if !strings.Contains(d.Message+"\n"+d.Hint, want) {
			t.Errorf("%q is missing in\n%s\n%s", want, d.Message, d.Hint)
		}
	}
	for name, want := range map[string]string{
		"log.txt": "invalid access to packet", "relay.bpf.c": "be32(pkt->data + 600)", "fastrelay.h": "fr_punt",
		"relay.o": "ELF", "plan.txt": "a plan",
	} {
		text, err := os.ReadFile(filepath.Join(parent, "fastrelay-failure", name))
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s doesn't have %q (%v)", name, want, err)
		}
	}
	if d := unit.Verifier(err, parent); !strings.Contains(d.Hint, "fastrelay-failure-2/") {
		t.Errorf("a second failure is not kept beside the first: %s", d.Hint)
	}
	if d := unit.Verifier(errors.New("no such device"), parent); d != nil {
		t.Errorf("another error is explained as the verifier's: %v", d)
	}
}

// A spec that is too wide for the verifier isn't called a fault of the compiler: the message is at the program, and
// says what makes it smaller.
func TestPaths(t *testing.T) {
	source := render(t)
	unit := &clang.Unit{Source: source.C, Header: source.Header, Lines: source.Lines}
	var err error
	if unit.Object, _, err = clang.Compile(t.Context(), unit.Source, unit.Header, clang.Options{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, why := range []string{
		"BPF program is too large. Processed 1000001 insn", "The sequence of 8193 jumps is too complex.",
	} {
		parent := t.TempDir()
		d := unit.Verifier(fmt.Errorf("program prog_quota: %w", &ebpf.VerifierError{Log: []string{
			"100: (85) call bpf_redirect_neigh#152", why,
			"processed 1000001 insns (limit 1000000) max_states_per_insn 4 total_states 90 peak_states 90 mark_read 5",
		}}), parent)
		line := lines[max(d.Pos.Line-1, 0)]
		if d.Code != "FR0905" || !strings.HasPrefix(strings.TrimSpace(line), "programs: ") ||
			d.Message != `program "quota" has more paths than the kernel's verifier follows: `+why ||
			!strings.Contains(d.Hint, "fewer alternatives") || strings.Contains(d.Hint, "fault") {
			t.Errorf("%s at %v (%s): %s\n%s", d.Code, d.Pos, line, d.Message, d.Hint)
		}
		if kept, _ := os.ReadDir(parent); len(kept) > 0 {
			t.Errorf("a folder for a report is written: %v", kept)
		}
	}
}

// Clang runs in an empty folder with nothing of the environment, and a compilation can be given up.
func TestCompile(t *testing.T) {
	t.Setenv("CPATH", t.TempDir())
	source := render(t)
	object, version, err := clang.Compile(t.Context(), source.C, source.Header, clang.Options{})
	if err != nil || len(object) == 0 || version == "" {
		t.Fatalf("%d bytes from clang %q: %v", len(object), version, err)
	}
	_, _, err = clang.Compile(t.Context(), "#include \"../etc/passwd\"\nint x = y;\n", "", clang.Options{})
	var refused *clang.Error
	if !errors.As(err, &refused) || !strings.Contains(refused.Log, "relay.bpf.c:1:10") {
		t.Errorf("a wrong program gives %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := clang.Compile(ctx, source.C, source.Header, clang.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a compilation that was given up gives %v", err)
	}
}

// What was compiled once is taken from where objects are kept: only the same C by the same clang with the same options.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FASTRELAY_OBJECTS", "")
	object := func(source string, opt clang.Options) string {
		t.Helper()
		object, _, err := clang.Compile(t.Context(), source, "", opt)
		if err != nil {
			t.Fatal(err)
		}
		return string(object)
	}
	const source = "int x = 1;\n"
	first, kept := object(source, clang.Options{}), object("int x = 2;\n", clang.Options{})
	t.Setenv("FASTRELAY_OBJECTS", filepath.Join(dir, "objects"))
	if object(source, clang.Options{}) != first {
		t.Error("it differs from what was compiled first")
	}
	files, err := filepath.Glob(filepath.Join(dir, "objects", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files are kept: %v", len(files), err)
	}
	if err := os.WriteFile(files[0], []byte(kept), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := object(source, clang.Options{}); got != kept {
		t.Error("it is compiled again")
	}
	if object(source, clang.Options{CPU: "v2"}) == kept || object("int x = 3;\n", clang.Options{}) == kept {
		t.Error("another program's object is taken")
	}
	if object(source, clang.Options{Warn: true}) != first {
		t.Error("an object is taken whose compilation may have warned")
	}
	if object(source, clang.Options{}) != first {
		t.Error("an object is made again that was compiled without a warning")
	}
	t.Setenv("FASTRELAY_OBJECTS", "")
	if object(source, clang.Options{}) != first {
		t.Error("it differs from what was compiled first")
	}
}

// Without clang, or with one that won't do, the message says what was found, what is needed, and what to install.
func TestNoClang(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, c := range []struct{ script, want string }{
		{"", "no clang was found, and version 14 or newer is needed"},
		{
			"echo Debian clang version 11.0.1-2", "no clang here will do: DIR/clang is version 11.0.1; version 14 or " +
				"newer is needed",
		},
		{
			"echo clang version 15.0.1", "no clang here will do: DIR/clang has no llvm-strip beside it (it comes " +
				"with llvm-15); version 14 or newer is needed",
		},
		{
			"echo gcc", "no clang here will do: DIR/clang --version says no version of clang; version 14 or newer is " +
				"needed",
		},
	} {
		if c.script != "" {
			if err := os.WriteFile(filepath.Join(dir, "clang"), []byte("#!/bin/sh\n"+c.script+"\n"),
				0o755); err != nil {
				t.Fatal(err)
			}
		}
		_, err := clang.Find(t.Context())
		var missing *clang.NotFoundError
		if !errors.Is(err, clang.ErrNotFound) || !errors.As(err, &missing) {
			t.Fatalf("the error is %v", err)
		}
		d := missing.Diagnostic()
		if want := strings.ReplaceAll(c.want, "DIR", dir); d.Message != want || d.Code != "FR0903" ||
			!strings.Contains(d.Hint, "clang-19 llvm-19") {
			t.Errorf("%s: %s (%s), want %s", d.Code, d.Message, d.Hint, want)
		}
	}
}

// A clang that is too old, or none at all, is passed over.
func TestOldClang(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for name, text := range map[string]string{
		"clang-14": "echo clang version 14.0.6", "clang-19": "echo clang version 13.0.1", "clang": "echo gcc",
		"llvm-strip-14": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tool, err := clang.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if tool.Version != "14.0.6" || filepath.Base(tool.Strip) != "llvm-strip-14" {
		t.Errorf("the choice is %+v", tool)
	}
}
