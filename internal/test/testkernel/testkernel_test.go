package testkernel_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// The kernel's format is that of cpio -H newc, so cpio unpacks an image.
func TestImage(t *testing.T) {
	image := testkernel.Image{
		"init":              {[]byte("#!"), 0o755},
		"modules/00-a.ko":   {[]byte("abc"), 0o644},
		"specs/x/y/relay.o": {bytes.Repeat([]byte{7}, 4097), 0o600},
	}
	var archive bytes.Buffer
	n, err := image.WriteTo(&archive)
	if err != nil || n != int64(archive.Len()) || n%4 != 0 {
		t.Fatalf("%d bytes of %d, %v", n, archive.Len(), err)
	}
	dir := t.TempDir()
	cpio := exec.Command("cpio", "--extract", "--quiet", "--make-directories")
	cpio.Dir, cpio.Stdin = dir, &archive
	if out, err := cpio.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	for name, want := range image {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want.Mode {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

func encode(t *testing.T, lines ...testkernel.Line) string {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, "\r\n"...)) // as a terminal sends it
	}
	return b.String()
}

func TestReadReport(t *testing.T) {
	begin, end := testkernel.Line{Kernel: "6.1.0-50-cloud-amd64"}, testkernel.Line{Done: true}
	good := testkernel.Line{Spec: "examples/turn", Check: "load"}
	cost := testkernel.Line{Spec: "examples/turn", Program: "to_peer",
		Cost: &testkernel.Cost{Instructions: 1, States: 2, Stack: 3, Size: 4}}
	bad := testkernel.Line{Spec: "examples/turn", Check: "tests", Failed: "no"}

	r, err := testkernel.ReadReport(strings.NewReader(encode(t, begin, good, cost, end)))
	if err != nil || r.Kernel != begin.Kernel || len(r.Lines) != 2 || r.Failed() {
		t.Errorf("%+v, %v", r, err)
	}
	costs, err := r.Costs()
	program := testkernel.Program{Spec: "examples/turn", Name: "to_peer", Kernel: ir.Version{Major: 6, Minor: 1}}
	want := testkernel.Budget{program: *cost.Cost}
	if diff := cmp.Diff(want, costs); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if r, err = testkernel.ReadReport(strings.NewReader(encode(t, begin, good, bad, end))); err != nil || !r.Failed() {
		t.Errorf("a failed check is no failure: %+v, %v", r, err)
	}
	if r, err = testkernel.ReadReport(strings.NewReader(encode(t, begin, end))); err != nil || !r.Failed() {
		t.Errorf("an empty report is no failure: %+v, %v", r, err)
	}
	cut := map[string]string{
		"nothing":   "",
		"no end":    encode(t, begin, good),
		"no kernel": encode(t, good, end),
		"torn":      strings.TrimSuffix(encode(t, begin, good), "}\r\n"),
	}
	for name, text := range cut {
		if _, err := testkernel.ReadReport(strings.NewReader(text)); !errors.Is(err, testkernel.ErrCut) {
			t.Errorf("%s: %v", name, err)
		}
	}
	end.Status = 2
	_, err = testkernel.ReadReport(strings.NewReader(encode(t, begin, good, end)))
	if err == nil || errors.Is(err, testkernel.ErrCut) {
		t.Errorf("status 2: %v", err)
	}
}

func TestParseCost(t *testing.T) {
	for _, c := range []struct {
		log  string
		want testkernel.Cost
	}{
		{ // Linux 5.10
			"verification time 5093 usec\nstack depth 216+0+80+4\n" +
				"processed 606 insns (limit 1000000) max_states_per_insn 1 total_states 42 peak_states 41 " +
				"mark_read 16\n",
			testkernel.Cost{Instructions: 606, States: 42},
		},
		{
			"stack depth 96\n" +
				"processed 1904 insns (limit 1000000) max_states_per_insn 4 total_states 90 peak_states 90 " +
				"mark_read 5\n",
			testkernel.Cost{Instructions: 1904, States: 90},
		},
	} {
		if got, err := testkernel.ParseCost(c.log); err != nil || got != c.want {
			t.Errorf("%+v, %v, want %+v", got, err, c.want)
		}
	}
	if _, err := testkernel.ParseCost("processed some insns"); err == nil {
		t.Error("a log without statistics is no error")
	}
}

func TestBudget(t *testing.T) {
	old, recent := ir.Version{Major: 5, Minor: 10}, ir.Version{Major: 6, Minor: 12}
	a := testkernel.Program{Spec: "examples/turn", Name: "to_peer", Kernel: old}
	b := testkernel.Program{Spec: "examples/turn", Name: "to_peer", Kernel: recent}
	c := testkernel.Program{Spec: "golden/bits", Name: "filter", Kernel: old}
	budget := testkernel.Budget{a: {100, 10, 64, 50}, b: {90, 9, 64, 51}, c: {5, 1, 8, 7}}
	again, err := testkernel.ParseBudget(budget.String())
	if diff := cmp.Diff(budget, again); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if _, err := testkernel.ParseBudget(budget.String() + budget.String()); err == nil {
		t.Error("a program that is there twice is no error")
	}
	for _, test := range []struct {
		name          string
		measured      testkernel.Budget
		faults, gains []string
	}{
		{"same", testkernel.Budget{a: {100, 10, 64, 50}, c: {5, 1, 8, 7}}, nil, nil},
		{"worse and better", testkernel.Budget{b: {91, 9, 56, 51}},
			[]string{"examples/turn, program to_peer, Linux 6.12: 91 instructions processed, recorded are 90"},
			[]string{"examples/turn, program to_peer, Linux 6.12: 56 bytes of stack, recorded are 64"}},
		{"one is missing", testkernel.Budget{a: {100, 10, 64, 50}},
			[]string{"golden/bits, program filter, Linux 5.10: recorded, but not measured"}, nil},
		{"a new program",
			testkernel.Budget{b: {90, 9, 64, 51}, {Spec: "golden/bits", Name: "filter", Kernel: recent}: {}},
			[]string{"golden/bits, program filter, Linux 6.12: not recorded"}, nil},
		{"a new kernel",
			testkernel.Budget{{Spec: "golden/bits", Name: "filter", Kernel: ir.Version{Major: 7, Minor: 2}}: {}},
			nil, []string{"Linux 7.2: nothing is recorded"}},
	} {
		faults, gains := budget.Compare(test.measured)
		if diff := cmp.Diff([][]string{test.faults, test.gains}, [][]string{faults, gains}); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
	budget.Record(testkernel.Budget{a: {80, 8, 64, 50}})
	if diff := cmp.Diff(testkernel.Budget{a: {80, 8, 64, 50}, b: {90, 9, 64, 51}}, budget); diff != "" {
		t.Errorf("recorded:\n%s", diff)
	}
}

func TestParseSeries(t *testing.T) {
	for release, want := range map[string]ir.Version{
		"5.10.0-32-cloud-amd64": {Major: 5, Minor: 10}, "7.2.13+deb14-cloud-amd64": {Major: 7, Minor: 2},
		"6.18": {Major: 6, Minor: 18},
	} {
		if got, err := testkernel.ParseSeries(release); err != nil || got != want {
			t.Errorf("%s: %v, %v", release, got, err)
		}
	}
	for _, release := range []string{"", "linux", "6", "6.x"} {
		if got, err := testkernel.ParseSeries(release); err == nil {
			t.Errorf("%q is %v", release, got)
		}
	}
}

func TestSummary(t *testing.T) {
	r := &testkernel.Report{Lines: []testkernel.Line{
		{Spec: "a", Check: "load"}, {Spec: "a", Check: "tests", Note: "12 tests"},
		{Spec: "b", Check: "load", Failed: "no"},
		{Spec: "c", Check: "refuse", Note: "refused: old"}, {Spec: "d", Check: "refuse", Note: "refused: old"},
		{Spec: "a", Check: "packets", Note: "30 packets"},
		{Spec: "a", Check: "forward", Note: "8 packets forwarded by tcx"},
	}}
	want := "1 relays loaded, 12 tests, 30 random packets, 8 packets forwarded by tcx, 2 relays refused: old"
	if got := r.Summary(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
