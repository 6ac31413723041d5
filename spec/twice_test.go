package spec_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// All names that are declared twice are said in one run.
func TestAllTwice(t *testing.T) {
	_, diags := spec.Load("lets.cue", []byte(`name: "lets"
let a = 1
let a = 2
let b = 1
let b = 2
tests: "x": {let c = 1, let c = 2}
`))
	var lines []int
	for _, d := range diags.All() {
		if d.Code != "FR0110" {
			t.Error(d)
		}
		lines = append(lines, d.Pos.Line)
	}
	if len(lines) != 3 || lines[0] != 3 || lines[1] != 5 || lines[2] != 6 {
		t.Errorf("messages at lines %v, not 3, 5 and 6", lines)
	}
}
