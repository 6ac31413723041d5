package reach_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// No packet comes by a place that is said to be out of reach: random packets in the model, in the specs of golden,
// which use each construct, and the examples, and in random ones.
func TestOutOfReach(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../golden/*/spec.cue", "../../examples/*/spec.cue"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, diags := spec.Load(file, src)
		if diags.Err() != nil {
			t.Fatal(diags.Err())
		}
		plan, diags := gen.Compile(s)
		if diags.Err() != nil {
			t.Fatal(diags.Err())
		}
		never(t, file, s, plan, needs.Of(512, 4096))
	}
	dead := 0
	for seed := range uint64(needs.Of(30, 120)) {
		if s, plan, _ := specgen.Plan(specgen.Generate(seed)); plan != nil {
			dead += never(t, "random", s, plan, 1024)
		}
	}
	t.Logf("%d statements of random programs are out of reach", dead)
	if dead < needs.Of(100, 500) {
		t.Errorf("only %d statements of random programs are out of reach", dead)
	}
}

// never returns how many statements are out of reach.
func never(t *testing.T, name string, s *spec.Spec, plan *ir.Plan, packets int) (dead int) {
	t.Helper()
	r, err := fuzz.Run(context.Background(), fuzz.Config{
		Spec: s, Plan: plan, Seed: 7, Packets: packets, Decode: math.MaxInt,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Impossible() {
		t.Errorf("%s (%s): a packet came by %s: %s, at %s, which is said to be out of reach", name, s.Name.Value,
			p.Program, p.What, p.Pos)
	}
	for _, p := range plan.Programs {
		at := reach.Of(p)
		for s := range ir.Stmts(p.Body) {
			if !at.Stmt(s) {
				dead++
			}
		}
	}
	return dead
}
