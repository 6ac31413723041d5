package testrun

import (
	"errors"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Encode lays a literal out as a table or a setting holds it. A next hop gets hop.
func Encode(l spec.Literal, t ir.Type, hop sim.Hop) ([]byte, error) {
	switch {
	case t.Kind == ir.Bool:
		if l.Kind != spec.LitBool {
			return nil, errors.New("it wants true or false")
		}
		if l.Bool {
			return []byte{1}, nil
		}
		return []byte{0}, nil
	case !t.HasText():
		if l.Kind != spec.LitInt {
			return nil, errors.New("it wants an integer")
		}
		return t.Uint(l.Int)
	case l.Kind != spec.LitString && l.Kind != spec.LitEndpoint:
		return nil, errors.New("it wants a string")
	}
	b, err := t.Parse(l.Text)
	if err == nil && t.Kind == ir.NextHop {
		copy(b, hop.Bytes())
	}
	return b, err
}

// Show is the inverse of Encode: a value as a person would write it.
func Show(b []byte, t ir.Type) string { return t.Show(b) }
