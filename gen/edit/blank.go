package edit

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass makes zeros of headers: a frame of a protocol becomes padding. A header of fixed size is a matter of its
// fields, which all get the value 0. One of variable size stays where it is (Rewrite.Blanks).

// Blank makes zeros of a header.
func (w *Packet) Blank(a *spec.Action) {
	in, known := w.Scope.Find(a.Header.Value)
	if in == nil {
		if !known {
			w.Scope.Fail(code.Push, a.Header.Pos, "no header %q in the stack", a.Header.Value).WithNames(a.Header.Value,
				w.Scope.Visible())
		}
		return // an optional header that isn't there
	}
	no := func(code diag.Code, format string, args ...any) {
		w.Scope.Fail(code, a.Header.Pos, "header %q can't be blanked: "+format, append([]any{in.Entry}, args...)...)
	}
	o := w.Header(in)
	switch {
	case o == nil:
		no(code.Push, "it is popped")
		return
	case o.Blank:
		no(code.Push, "it is blank already")
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
	o.Blank, o.Pos = true, a.Header.Pos
	if o.Size < 0 {
		return
	}
	for _, f := range in.Decl.Fields {
		o.Values[f.Name.Value] = Zero(f)
		o.SetAt[f.Name.Value] = a.Header.Pos
	}
}

// Zero is the value of a field in a header that is blank.
func Zero(f *spec.Field) ir.Expr {
	if f.Kind == spec.FieldBytes {
		return &ir.BytesConst{B: make([]byte, f.Bytes), T: ir.Type{Kind: ir.Bytes, Size: f.Bytes}}
	}
	return fold.Num(0)
}
