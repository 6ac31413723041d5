package glue

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// TestKinds wants a field for every kind of type that may be in an event.
func TestKinds(t *testing.T) {
	for k := range ir.Kinds {
		if ir.KindType(k).In(ir.InEvent) && fromEvent(0, ir.KindType(k)) == "" {
			t.Errorf("kind %d has no field", k)
		}
	}
}
