package expr

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// TestFunctions wants each function in the language reference, under its name and with as many arguments as it takes.
func TestFunctions(t *testing.T) {
	text := spec.Reference()
	for _, f := range functions() {
		if !strings.Contains(text, "`"+f.name+"(") {
			t.Errorf("the language reference (spec/schema.cue) doesn't say what %s is", f.name)
		}
		for _, form := range f.forms {
			if n := strings.Count(form, ",") + 1; n < f.min || n > f.max || !strings.HasPrefix(form, f.name+"(") {
				t.Errorf("%s: it takes %d to %d arguments", form, f.min, f.max)
			}
		}
	}
}
