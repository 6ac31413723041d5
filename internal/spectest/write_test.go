package spectest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// The packet of every test of all specs can be written as a test, which passes.
func TestWrite(t *testing.T) {
	files, err := filepath.Glob("../../golden/*/spec.cue")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	for i, file := range append(files, "../../examples/sfu/spec.cue", "../../examples/turn/spec.cue") {
		if needs.Left(i, 3) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, plan := load(t, file, string(text))
		packets, _ := spectest.Packets(s, plan)
		for i, one := range packets {
			if i >= 6 || one.Packet.Partial != (sim.Partial{}) {
				continue // captures have none
			}
			_, f, err := spectest.Write(context.Background(), s, plan, text, one.Test, "again", one.Packet)
			if err != nil {
				t.Errorf("%s: %s: %v", file, one.Test.Name.Value, err)
				continue
			}
			want := one.Test.Expect
			if string(f.Verdict) != want.Verdict || want.Reason != "" && f.Reason != want.Reason {
				t.Errorf("%s: %s: %s %s", file, one.Test.Name.Value, f.Verdict, f.Reason)
			}
		}
	}
}
