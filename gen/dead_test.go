package gen_test

import (
	"context"
	"math"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A rule that the compiler warns of never ends a packet's processing, nor a receiver's turn: random packets in random
// specs.
func TestNeverIsNever(t *testing.T) {
	warned, watched := map[string]int{}, 0
	for seed := range uint64(200) {
		s, diags := spec.Load("random.cue", specgen.Generate(seed))
		if diags.Err() != nil {
			t.Fatalf("seed %d: %v", seed, diags.Err())
		}
		plan, diags := gen.Compile(s)
		if plan == nil {
			continue
		}
		ends := map[diag.Pos]string{} // of the rules that are warned of
		for _, d := range diags.All() {
			if d.Code == "FR0242" || d.Code == "FR0243" {
				warned[string(d.Code)]++
				for _, r := range rules(s) {
					if r.Pos == d.Pos {
						ends[r.Pos], ends[r.Do[len(r.Do)-1].Pos] = d.Message, d.Message
					}
				}
			}
		}
		if len(ends) == 0 {
			continue
		}
		watched++
		report, err := fuzz.Run(context.Background(), fuzz.Config{
			Spec: s, Plan: plan, Seed: seed, Packets: 1024, Decode: math.MaxInt,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range report.Coverage {
			switch p.Stmt.(type) {
			case *ir.Drop, *ir.Forward, *ir.FanOut, *ir.Copy, *ir.Skip:
				if text, dead := ends[p.Pos]; dead && p.Hits > 0 {
					t.Errorf("seed %d: %d packets came to %s, where it is said: %s", seed, p.Hits, p.Pos, text)
				}
			}
		}
	}
	t.Logf("warnings by code: %v; in %d specs of rules", warned, watched)
	if warned["FR0242"] < 20 || watched < 10 {
		t.Errorf("only %v warnings, in %d specs of rules: random specs have become too tame for this", warned, watched)
	}
}

// rules returns all rules of a spec, those of fan-outs, too.
func rules(s *spec.Spec) (all []*spec.Rule) {
	var in func(rs []*spec.Rule)
	in = func(rs []*spec.Rule) {
		for _, r := range rs {
			all = append(all, r)
			for _, a := range r.Do {
				if a.FanOut != nil {
					in(a.FanOut.Rules)
				}
			}
		}
	}
	for _, p := range s.Programs {
		in(p.Rules)
	}
	return all
}
