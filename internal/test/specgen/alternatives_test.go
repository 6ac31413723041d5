package specgen_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Random specs do in the model what they say: this is TestSpecs without the kernel, and so for more specs.
func TestSpecsInModel(t *testing.T) {
	p := &specgen.Pipeline{Packets: 256}
	first := needs.Seed(t)
	for seed := first; seed < first+uint64(needs.Of(100, 1000)); seed++ {
		src := specgen.Generate(seed)
		if r := p.Run(t.Context(), src, seed); r.Failed() {
			t.Errorf("seed %d: %s %s: %s", seed, r.Stage, r.Code, r.Text)
			report(t, p, src, seed, r)
			return
		}
	}
}
