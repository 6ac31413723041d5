package edit

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives all bytes of headers other values: blank makes padding of a frame of a protocol. A header of fixed
// size is a matter of its fields, which all get values. One of variable size stays where it is (Rewrite.Filled).

// fills are what actions make of a header's bytes.
var fills = map[spec.ActionKind]*ir.Fill{spec.ActBlank: ir.Zeros}

// Fill gives all bytes of a header other values.
func (w *Packet) Fill(a *spec.Action) {
	with := fills[a.Kind]
	in := w.received(a.Header)
	if in == nil {
		return
	}
	no := func(code diag.Code, format string, args ...any) {
		w.Scope.Fail(code, a.Header.Pos, "header %q can't be %s: "+format,
			append([]any{in.Entry, with.Done}, args...)...)
	}
	o := w.Header(in)
	switch {
	case o == nil:
		no(code.Push, "it is popped")
		return
	case o.Fill != nil:
		no(code.Push, "it is %s already", o.Fill.Done)
		return
	case len(o.Values) > 0:
		no(code.Push, "its fields are set")
		return
	}
	for _, pl := range in.Order {
		why := ""
		switch f := pl.Decl; {
		case f.Counts != nil:
			why = "is a length"
		case f.Checksum != nil:
			why = "is a checksum"
		case f.Role.Value != "":
			why = "says where the packet goes"
		case w.announces(pl):
			why = "says which header follows"
		default:
			continue
		}
		no(code.Target, "its field %q %s", pl.Decl.Name.Value, why)
		return
	}
	o.Fill, o.Pos = with, a.Header.Pos
	if o.Size < 0 {
		return
	}
	for _, f := range in.Decl.Fields {
		o.Values[f.Name.Value] = Filled(f, with)
		o.SetAt[f.Name.Value] = a.Header.Pos
	}
}

// Filled is the value of a field in a header that is filled.
func Filled(f *spec.Field, _ *ir.Fill) ir.Expr {
	if f.Kind == spec.FieldBytes {
		return &ir.BytesConst{B: make([]byte, f.Bytes), T: ir.Type{Kind: ir.Bytes, Size: f.Bytes}}
	}
	return fold.Num(0)
}
