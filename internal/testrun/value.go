package testrun

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Encode lays a literal out as a table or a setting holds it. A next hop gets hop.
func Encode(l spec.Literal, t ir.Type, hop sim.Hop) ([]byte, error) {
	if t.Levels > 0 && !t.Kind.IsIndex() {
		return encodeLevels(l, t, hop)
	}
	switch {
	case l.Kind == spec.LitList:
		_, err := PerLevel(l, t)
		return nil, err
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
	if err == nil && t.Kind == ir.NextHop && !netip.AddrFrom16([16]byte(b[abi.NextHopAddr:])).Unmap().IsUnspecified() {
		copy(b, hop.Bytes())
	}
	return b, err
}

// encodeLevels lays out a value for each level of priority: those of a list, or one that is the same for all.
func encodeLevels(l spec.Literal, t ir.Type, hop sim.Hop) (all []byte, err error) {
	values, err := PerLevel(l, t)
	if err != nil {
		return nil, err
	}
	for _, one := range values {
		b, err := Encode(one, t.One(), hop)
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// PerLevel returns the values of a literal, one for each level of priority of a type.
func PerLevel(l spec.Literal, t ir.Type) ([]spec.Literal, error) {
	values := l.All()
	switch {
	case l.Kind != spec.LitList:
		return slices.Repeat(values, t.Count()), nil
	case t.Levels == 0:
		return nil, errors.New("it wants a single value: it has none for each level of priority")
	case len(values) != t.Levels:
		return nil, fmt.Errorf("it wants %d values, one for each level of priority", t.Levels)
	}
	return values, nil
}
