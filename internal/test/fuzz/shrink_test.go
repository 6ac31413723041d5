package fuzz_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// A difference becomes one short packet on a state with little in it, and is still one after it was saved and read.
func TestDifferenceIsMadeSmall(t *testing.T) {
	bpftest.Rights(t)
	c := compile(t, "../../../examples/turn/spec.cue")
	src, err := bpf.Render(c.plan, bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	src.Header = plant(t, fault{old: `st16\(dst \+ 10, 0xFFFF\);`, new: `st16(dst + 8, 0xFFFF);`}, src.Header)
	faulty, _, err := clang.Compile(context.Background(), src.C, src.Header, clang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := fuzz.Run(context.Background(), fuzz.Config{
		Spec: c.spec, Plan: c.plan, Object: faulty, Seed: faultSeed, Packets: 100_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Difference == nil {
		t.Fatal("the fault was not found")
	}
	found := r.Difference.Case
	if len(found.Packets) != 1 || len(found.Packets[0].Data) > 2*64 || len(found.Rows) > 1 || len(found.Slots) > 1 {
		t.Errorf("%d packets (the first of %d bytes), %d rows and %d slots are left", len(found.Packets),
			len(found.Packets[0].Data)/2, len(found.Rows), len(found.Slots))
	}
	file := filepath.Join(t.TempDir(), "case.json")
	if err := found.Save(file); err != nil {
		t.Fatal(err)
	}
	again, err := fuzz.ReadCase(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(found, again); diff != "" {
		t.Error(diff)
	}
	for _, o := range []struct {
		name    string
		object  []byte
		differs bool
	}{{"with the fault", faulty, true}, {"without", c.object, false}} {
		text, err := fuzz.Replay(c.plan, o.object, again)
		if err != nil || (text != "") != o.differs {
			t.Errorf("%s: %q, %v", o.name, text, err)
		}
	}
}

// The same seed gives the same packets and the same end.
func TestSameSeed(t *testing.T) {
	c := compile(t, "../../../examples/turn/spec.cue")
	var reports []*fuzz.Report
	for range 2 {
		r, err := fuzz.Run(context.Background(), fuzz.Config{
			Spec: c.spec, Plan: c.plan, Seed: 7, Packets: needs.Of(1000, 5000),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Elapsed = 0
		reports = append(reports, r)
	}
	if diff := cmp.Diff(reports[0], reports[1], cmpopts.IgnoreUnexported(fuzz.Report{})); diff != "" {
		t.Error(diff)
	}
}
