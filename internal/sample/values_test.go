package sample

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// TestTyped wants random values of every kind of type, as large as tables have them.
func TestTyped(t *testing.T) {
	s := NewSource(1)
	for k := range ir.Kinds {
		typ := ir.KindType(k)
		switch k {
		case ir.Uint:
			typ = ir.UintType(19)
		case ir.Bytes, ir.Data:
			typ.Size = 5
		}
		for range 50 {
			if b := s.typed(typ, nil); len(b) != typ.Size || typ.Show(b) == "" {
				t.Fatalf("a %s is %x", typ.Word(), b)
			}
		}
	}
}
