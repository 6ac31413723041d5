package fuzz_test

import (
	"context"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func TestTry(t *testing.T) {
	for _, n := range []string{"turn", "gate", "paths"} {
		s, d := spec.LoadFile("../../examples/" + n + "/spec.cue")
		if d.Err() != nil {
			t.Fatal(d.Err())
		}
		p, d := gen.Compile(s)
		if d.Err() != nil {
			t.Error(d.Err())
			continue
		}
		src, err := bpf.Render(p, bpf.Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		object, _, err := clang.Compile(context.Background(), src.C, src.Header, clang.Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		out, err := spectest.Kernel(context.Background(), s, p, object)
		t.Log(err)
		for _, o := range out {
			t.Log(n, o.Name, o.Status, o.Why, o.Differences, o.Dump)
		}
		r, err := fuzz.Run(context.Background(), fuzz.Config{Spec: s, Plan: p, Object: object, Seed: 1, Packets: 200000})
		if err != nil {
			t.Error(err)
			continue
		}
		t.Log(n, r.Packets, r.Refused, r.Verdicts, r.Reached(), r.Decoded, r.Rate())
		if r.Difference != nil {
			t.Logf("%s %+v", r.Difference.Text, r.Difference.Case)
		}
		for _, m := range r.Missed() {
			t.Log(m.Program, m.What, m.Pos)
		}
	}
}
