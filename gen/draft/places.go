package draft

import (
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// maxStart is where such a header may begin at most.
const MaxStart = 2047

// Announcer returns the field of parent that says that h follows, or nil.
func Announcer(parent *Header, h *spec.Header) *Field {
	for _, a := range h.After {
		if a.Parent.Value == parent.Decl.Name.Value {
			for _, m := range a.Match {
				if pl := parent.Fields[m.Field.Path[0].Value]; pl != nil {
					return pl
				}
			}
		}
	}
	return nil
}

// BytesType is the type of a field of bytes.
func BytesType(f *spec.Field) ir.Type {
	switch f.Type {
	case "ip":
		return ir.AddrType
	case "mac":
		return ir.MacType
	}
	return ir.Type{Kind: ir.Bytes, Size: f.Bytes}
}

// SizeOf returns the size of a header in bytes, or -1 if it varies.
func SizeOf(h *spec.Header) int {
	if h.Varies() {
		return -1
	}
	return h.MaxBytes()
}

// PowerOf2 is the smallest power of two that isn't below n.
func PowerOf2(n int) int { return 1 << bits.Len(uint(n-1)) }

// Run names fields that begin at off.
func Run(h *spec.Header, off ir.Off, fields []*Field) *ir.FieldRun {
	out := &ir.FieldRun{Header: h.Name.Value, At: off}
	for _, pl := range fields {
		if pl.Segment >= 0 {
			out.Fields = append(out.Fields, RunField(pl.Decl))
		}
	}
	return out
}

// RunField names a field.
func RunField(f *spec.Field) ir.HeaderField {
	return ir.HeaderField{Name: f.Name.Value, Bits: f.Width(), Bytes: f.Kind == spec.FieldBytes}
}
