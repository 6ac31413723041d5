// Package golden_test builds every spec in this folder and compares what comes out of each stage with what is stored
// here. FASTRELAY_UPDATE=1 stores it anew (make golden).
package golden_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// cases returns the folders that hold a spec.
func cases(t *testing.T) []string {
	t.Helper()
	specs, err := filepath.Glob("*/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) < 12 {
		t.Fatalf("only %d cases", len(specs))
	}
	var out []string
	for _, s := range specs {
		out = append(out, filepath.Dir(s))
	}
	return out
}

// compare compares a stored file with what came out, or stores it.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make golden stores it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-stored +new); make golden stores it anew:\n%s", file, diff)
	}
}

func compile(t *testing.T, name string) *build.Result {
	t.Helper()
	r, list, err := build.Spec(context.Background(), filepath.Join(name, "spec.cue"), build.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCases(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			r := compile(t, name)
			compare(t, filepath.Join(name, "plan.txt"), planfmt.Text(r.Plan))
			compare(t, filepath.Join(name, build.SourceName), string(r.Files[build.SourceName]))
			compare(t, filepath.Join(name, build.PackageName+".txt"), string(r.Files[build.PackageName]))
			compare(t, filepath.Join(name, "messages.txt"), command(t, 0, "vet", filepath.Join(name, "spec.cue"))+
				command(t, 0, "test", filepath.Join(name, "spec.cue")))
		})
	}
}

// Dissectors of specs whose headers have all that a header may have.
func TestDissectors(t *testing.T) {
	for _, name := range []string{"bits", "elements", "frames", "varint"} {
		compare(t, filepath.Join(name, "dissector.lua"), command(t, 0, "dissector", filepath.Join(name, "spec.cue")))
	}
}

// Pictures: fields of all kinds, rules and their rows, receivers.
func TestPictures(t *testing.T) {
	for _, name := range []string{"bits", "elements", "fan-out", "rule-lookups", "varint"} {
		file := filepath.Join(name, "spec.cue")
		compare(t, filepath.Join(name, "diagram.svg"), command(t, 0, "diagram", file))
		compare(t, filepath.Join(name, "diagram.dot"), command(t, 0, "diagram", file, "--format", "dot"))
	}
}

// A relay of QUIC stays cheap for the verifier: where numbers have four bytes, and where the packet says how many.
func TestQUICBudget(t *testing.T) {
	needs.Root(t)
	verified, err := build.Verify(compile(t, "quic"))
	if err != nil {
		t.Fatal(err)
	}
	for program, most := range map[string]uint64{"streams": 40_000, "streams_4": 20_000, "datagrams": 20_000} {
		v := verified[program]
		if v == nil || uint64(v.Processed) == 0 || uint64(v.Processed) > most {
			t.Errorf("%s: %+v, want at most %d instructions", program, v, most)
			continue
		}
		t.Logf("%s: %d instructions of at most %d", program, v.Processed, most)
	}
}

// command runs the command line and returns what it prints.
func command(t *testing.T, status int, args ...string) string {
	t.Helper()
	t.Setenv("NO_COLOR", "1")
	var out bytes.Buffer
	if got := cli.Do(args, strings.NewReader(""), &out, &out); got != status {
		t.Fatalf("fastrelay-gen %s: exit status %d, not %d:\n%s", strings.Join(args, " "), got, status, &out)
	}
	return seconds.ReplaceAllString(out.String(), "")
}

// seconds are what differs from run to run.
var seconds = regexp.MustCompile(` +\d+\.\d+ s\b`)

// Wrong specs: every one has another cause, and a message that shows its place.
func TestWrong(t *testing.T) {
	specs, err := filepath.Glob("wrong/*.cue")
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) < 40 {
		t.Errorf("only %d wrong specs", len(specs))
	}
	seen := map[string]string{}
	for _, file := range specs {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".cue"), func(t *testing.T) {
			out := command(t, 1, "vet", file)
			compare(t, strings.TrimSuffix(file, ".cue")+".txt", out)
			first, _, _ := strings.Cut(out, "\n")
			if !regexp.MustCompile(`^error\[FR\d{4}\]: `).MatchString(first) {
				t.Errorf("the message begins with %q, not with error[FR…]", first)
			}
			if !strings.Contains(out, "--> "+file+":") {
				t.Errorf("the message names no line of the spec:\n%s", out)
			}
			if other, dup := seen[first]; dup {
				t.Errorf("%s has the same message as %s: %s", file, other, first)
			}
			seen[first] = file
		})
	}
}
