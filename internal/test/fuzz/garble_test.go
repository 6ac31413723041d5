package fuzz_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// A rule that asks for a checksum to be right learns nothing from a datagram of which a bit has flipped, or a word is
// zero: what another decoder finds wrong changes no row, neither in the model nor in the kernel.
func TestGarbled(t *testing.T) {
	bpftest.Rights(t)
	seed, n := needs.Seed(t), needs.Of(4, 40)
	tried := map[string]int{}
	for _, file := range corpus() {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("verified: \"")) {
			continue
		}
		c := compile(t, file)
		if !fuzz.Verifies(c.spec) { // none of its programs verifies all that it learns
			continue
		}
		r, err := fuzz.Garble(fuzz.Config{Spec: c.spec, Plan: c.plan, Object: c.object, Seed: seed}, n)
		if err != nil || r.Wrong != "" {
			t.Errorf("%s: %v %s", c.name, err, r.Wrong)
		} else if r.Datagrams < n {
			t.Errorf("%s: of %d datagrams only %d were learned from", c.name, n, r.Datagrams)
		}
		tried[c.name] = r.Tried
		t.Logf("%s: %d datagrams in %d forms, %d of which were learned from", c.name, r.Datagrams, r.Tried, r.Learned)
	}
	for _, name := range []string{"verified", "sfu"} {
		if tried[name] == 0 {
			t.Errorf("no datagram for the spec %s is tried: %v", name, tried)
		}
	}
}
