package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// A fault is planted in the C of a spec: what is old in it becomes new.
type fault struct {
	spec     string
	old, new string
	line     int    // of the spec, that the message has to name
	message  string // a part of it
	words    string // the hint, in plain language
}

const (
	paths    = "testdata/paths.cue"
	checksum = "../../golden/checksum/spec.cue"
	tables   = "../../golden/tables/spec.cue"
	spread   = "testdata/spread.cue"
)

func (f fault) plant(t *testing.T) *Result {
	t.Helper()
	r, list, err := Spec(context.Background(), f.spec, Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list.Err())
	}
	text := string(r.Files[SourceName])
	if !strings.Contains(text, f.old) {
		t.Fatalf("%s: the C has no %q any more", f.spec, f.old)
	}
	r.Files[SourceName] = []byte(strings.Replace(text, f.old, f.new, 1))
	return r
}

// check wants a refusal with this code, whose folder has these files, and this log, all of it.
func (f fault) check(t *testing.T, err error, code string, log func(*Refusal) string, files ...string) {
	t.Helper()
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("not a refusal: %v", err)
	}
	dir := t.TempDir()
	d := refusal.Diagnose(dir)
	if string(d.Code) != code {
		t.Errorf("code %s, not %s: %s", d.Code, code, d.Message)
	}
	if d.Pos.File != f.spec || d.Pos.Line != f.line {
		t.Errorf("the message is at %v, not at %s:%d: %s", d.Pos, f.spec, f.line, d.Message)
	}
	if !strings.Contains(d.Message, f.message) {
		t.Errorf("the message doesn't say %q: %s", f.message, d.Message)
	}
	for _, want := range []string{f.words, "this is a fault of fastrelay-gen"} {
		if !strings.Contains(d.Hint, want) {
			t.Errorf("the hint doesn't say %q: %s", want, d.Hint)
		}
	}
	folder := filepath.Join(dir, "fastrelay-failure")
	for _, name := range files {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	kept, err := os.ReadFile(filepath.Join(folder, "log.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if want := log(refusal); string(kept) != want {
		t.Errorf("log.txt has %d bytes, the log %d", len(kept), len(want))
	}
}

// clang refuses the C, and the message is at the spec's line.
func TestClangRefuses(t *testing.T) {
	for _, f := range []fault{
		{spec: paths, old: "be8(&ipv4->ttl) <= 1", new: "be8(&dato->ttl) <= 1", line: 10, message: "dato"},
		{spec: tables, old: "be16(&udp->dst_port) >= 0x4000", new: "be16(&dato->dst_port) >= 0x4000", line: 13,
			message: "dato"},
		{spec: tables, old: "find_ports(&key, pkt->lease, 0, &p);",
			new: "find_ports(&key, pkt->lease, 0, &nobody);", line: 14,
			message: "nobody"},
		{spec: spread, old: "return spread_copy(", new: "return spread_copy0(", line: 28,
			message: "spread_copy0"},
	} {
		t.Run(f.new, func(t *testing.T) {
			f.check(t, f.plant(t).compile(context.Background()), "FR0901", func(r *Refusal) string {
				var e *clang.Error
				if !errors.As(r.Err, &e) || e.Log == "" {
					t.Fatalf("no log: %v", r.Err)
				}
				return e.Log
			}, "relay.bpf.c", "fastrelay.h", "plan.txt")
		})
	}
}

// The verifier refuses the program, and the message says in plain language what it is about. This loads programs: it
// needs root.
func TestVerifierRefuses(t *testing.T) {
	needs.Root(t)
	for _, f := range []fault{
		{spec: paths, old: "be8(&ipv4->ttl) <= 1", new: "be8(pkt->data + 2200) <= 1", line: 10,
			message: "invalid access to packet", words: "1 bytes at offset 2200 are read or written, but only"},
		{spec: checksum, old: "((be8(&unit->hops) - 1) & 255)", new: "((be8(pkt->data + 4300) - 1) & 255)", line: 16,
			message: "invalid access to packet",
			words:   "1 bytes at offset 4300 are read or written, but only 50 bytes were checked on this path"},
		{spec: paths, old: "if (!pkt->r)", new: "if (0)", line: 10, message: "map_value_or_null",
			words: "a row is used that may not be there"},
		// In a receiver's turn, which the kernel calls.
		{spec: spread, old: "= be8(&saved_feed->urgency);", new: "= be8(front + 44000);", line: 27,
			message: "invalid access to map value", words: ""},
	} {
		t.Run(f.new, func(t *testing.T) {
			r := f.plant(t)
			if err := r.compile(context.Background()); err != nil {
				t.Fatal(err)
			}
			_, err := Verify(r)
			f.check(t, err, "FR0902", func(r *Refusal) string {
				var e *ebpf.VerifierError
				if !errors.As(r.Err, &e) || len(e.Log) < 50 {
					t.Fatalf("not the whole log: %v", r.Err)
				}
				return fmt.Sprintf("%v\n\n%s\n", r.Err, strings.Join(e.Log, "\n"))
			}, "relay.bpf.c", "relay.o", "plan.txt")
		})
	}
}

// A spec that is too wide for the verifier isn't called a fault of the compiler: the message is at the program, and
// says what makes it smaller.
func TestTooManyPaths(t *testing.T) {
	needs.All(t) // the verifier takes seconds
	needs.Root(t)
	r := fault{spec: paths, old: "be8(&ipv4->ttl) <= 1", new: "({ __u32 n = be8(&ipv4->ttl);\n" +
		"for (int i = 0; i < 1000000; i++)\n\tasm volatile(\"%0 *= 3\" : \"+r\"(n));\nn <= 1; })"}.plant(t)
	if err := r.compile(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err := Verify(r)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("not a refusal: %v", err)
	}
	dir := t.TempDir()
	d := refusal.Diagnose(dir)
	if d.Code != "FR0905" || d.Pos.File != paths || d.Pos.Line != 5 ||
		!strings.Contains(d.Message, `program "forward" has more paths than`) || strings.Contains(d.Hint, "fault") ||
		!strings.Contains(d.Hint, "fewer alternatives") {
		t.Errorf("%s at %v: %s\n%s", d.Code, d.Pos, d.Message, d.Hint)
	}
	if kept, _ := os.ReadDir(dir); len(kept) > 0 {
		t.Errorf("a folder for a report is written: %v", kept)
	}
}
