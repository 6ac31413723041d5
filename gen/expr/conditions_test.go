package expr

import (
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// TestConditions wants a fact for each condition that tests may have, a condition for each fact about the relay, and
// what plans call every fact.
func TestConditions(t *testing.T) {
	for _, word := range spec.Conditions {
		if x := ir.Asked(word); x == nil || x.Type() != ir.BoolType {
			t.Errorf("%s: an expression reads %v", word, x)
		}
	}
	for k, f := range ir.Facts {
		packets := f.Word == "" || strings.HasPrefix(f.Word, "skb.")
		if !packets && !slices.Contains(spec.Conditions, f.Word) {
			t.Errorf("fact %s: tests have no condition %s", f.Text, f.Word)
		}
		if f.Text == "" || f.Type == (ir.Type{}) {
			t.Errorf("fact %d has no text or no type", k)
		}
	}
}
