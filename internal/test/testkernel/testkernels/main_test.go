package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

func report(lines ...testkernel.Line) *testkernel.Report {
	return &testkernel.Report{Kernel: "6.1.0-50-cloud-amd64", Lines: lines}
}

func newRun(t *testing.T) (*run, *strings.Builder) {
	t.Helper()
	out := &strings.Builder{}
	r := &run{out: out, root: t.TempDir(), only: []string{everyRelay}, measured: testkernel.Budget{}}
	if err := os.Mkdir(filepath.Join(r.root, "golden"), 0o755); err != nil {
		t.Fatal(err)
	}
	return r, out
}

func TestSummarise(t *testing.T) {
	loaded := testkernel.Line{Spec: "examples/turn", Check: "load"}
	tests := testkernel.Line{Spec: "examples/turn", Check: "tests", Note: "4 tests passed, 1 are for the model only"}
	forward := testkernel.Line{Spec: "examples/turn", Check: "forward", Note: "8 packets forwarded by clsact"}
	failed := testkernel.Line{Spec: "golden/bits", Check: "verify", Failed: "invalid zero-sized read"}
	for _, test := range []struct {
		name     string
		report   *testkernel.Report
		err      error
		failures int
		want     string
	}{
		{"good", report(loaded, tests, forward), nil, 0,
			"ok    Linux 6.1.0-50-cloud-amd64 (bookworm)       1 relays loaded, 4 tests, 0 random packets, " +
				"8 packets forwarded by clsact, 3 s\n"},
		{"a check failed", report(loaded, failed), nil, 1,
			"FAIL  Linux 6.1.0-50-cloud-amd64 (bookworm)       1 relays loaded, 0 tests, 0 random packets, 3 s\n" +
				"      golden/bits: verify: invalid zero-sized read\n"},
		{"it died", nil, errors.New("the kernel panicked"), 1,
			"FAIL  bookworm                                    3 s\n      the kernel panicked\n"},
	} {
		r, out := newRun(t)
		r.summarise("bookworm", test.report, test.err, 3*time.Second)
		if got := out.String(); got != test.want || r.failures != test.failures {
			t.Errorf("%s: %d failures, %q, want %q", test.name, r.failures, got, test.want)
		}
	}
}

// The guest is built for the architectures that are asked for.
func TestArchs(t *testing.T) {
	for _, test := range []struct {
		names []string
		want  []testkernel.Arch
	}{
		{[]string{"bullseye", "sid"}, []testkernel.Arch{"amd64"}},
		{[]string{"arm64"}, []testkernel.Arch{"arm64"}},
		{[]string{"sid", "arm64"}, []testkernel.Arch{"amd64", "arm64"}},
		{[]string{"here"}, []testkernel.Arch{testkernel.Arch(runtime.GOARCH)}},
	} {
		if got := (&run{names: test.names}).archs(); !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, want %v", test.names, got, test.want)
		}
	}
}

// Of kernels of one series the higher costs count, in whatever order they come.
func TestSameSeries(t *testing.T) {
	line := func(instructions, states int) testkernel.Line {
		cost := &testkernel.Cost{Instructions: instructions, States: states}
		return testkernel.Line{Spec: "examples/turn", Program: "to_peer", Cost: cost}
	}
	r, _ := newRun(t)
	r.summarise("bookworm", report(line(7, 2)), nil, 0)
	r.summarise("arm64", report(line(5, 3)), nil, 0)
	want := testkernel.Cost{Instructions: 7, States: 3}
	program := testkernel.Program{Spec: "examples/turn", Name: "to_peer", Kernel: ir.Version{Major: 6, Minor: 1}}
	if got := r.measured[program]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A budget is recorded and kept, and costs above it fail.
func TestBudget(t *testing.T) {
	r, out := newRun(t)
	cost := func(n int) testkernel.Line {
		return testkernel.Line{Spec: "examples/turn", Program: "to_peer",
			Cost: &testkernel.Cost{Instructions: n, States: 9, Stack: 64, Size: 50}}
	}
	measure := func(n int) {
		t.Helper()
		r.failures = 0
		clear(r.measured)
		out.Reset()
		r.summarise("bookworm", report(cost(n)), nil, 0)
		out.Reset()
		if err := r.budget(); err != nil {
			t.Fatal(err)
		}
	}
	measure(100)
	if r.failures != 0 || !strings.Contains(out.String(), "better Linux 6.1: nothing is recorded") {
		t.Errorf("%d failures: %s", r.failures, out)
	}
	t.Setenv("FASTRELAY_UPDATE", "1")
	measure(100)
	t.Setenv("FASTRELAY_UPDATE", "")
	for _, test := range []struct {
		instructions, failures int
		want                   string
	}{
		{100, 0, ""},
		{101, 1, "WORSE examples/turn, program to_peer, Linux 6.1: 101 instructions processed, recorded are 100\n"},
		{99, 0, "better examples/turn, program to_peer, Linux 6.1: 99 instructions processed, recorded are 100\n"},
	} {
		measure(test.instructions)
		right := strings.HasPrefix(out.String(), test.want) && (test.want == "") == (out.Len() == 0)
		if r.failures != test.failures || !right {
			t.Errorf("%d instructions: %d failures, %q", test.instructions, r.failures, out)
		}
	}
	t.Setenv("FASTRELAY_UPDATE", "1")
	r.only = []string{"examples/sfu"}
	clear(r.measured)
	some := cost(7)
	some.Spec = "examples/sfu"
	r.summarise("bookworm", report(some), nil, 0)
	if err := r.budget(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.root, budgetFile))
	both := strings.Contains(string(text), "examples/sfu") && strings.Contains(string(text), "examples/turn")
	if err != nil || !both {
		t.Errorf("of one relay of two, this is recorded: %v\n%s", err, text)
	}
	r.failures = 1
	if err := r.budget(); err == nil {
		t.Error("a run with failures is recorded")
	}
}

func TestShorten(t *testing.T) {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	got := shorten(strings.Join(lines, "\n"))
	ends := strings.HasPrefix(got, "line 0\n") && strings.HasSuffix(got, "\nline 999")
	if !ends || !strings.Contains(got, "\n… 958 lines …\n") {
		t.Errorf("%q", got)
	}
	if short := "one\ntwo"; shorten(short) != short {
		t.Error("a short text is cut")
	}
}
