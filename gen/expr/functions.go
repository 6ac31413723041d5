package expr

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass lowers the functions of expressions. A new one is a row of the table, the function that lowers it, a line
// in the schema, and a place in random specs. Those with effects are in effects.go, those that search lists in
// elements.go.

// function is a function of expressions.
type function struct {
	name     string
	forms    []string // how it is called, for people
	min, max int      // arguments
	lower    func(*Scope, *spec.Expr) (Value, bool)
}

// functions are all of them: a row each. What a function means in a plan is what its row makes of it.
func functions() []function {
	return []function{
		{"len", []string{"len(HEADER)", "len(HEADER.payload)", "len(HEADER.FIELD)"}, 1, 1, (*Scope).length},
		{"low", []string{"low(x, n)", "low(x, HEADER.FIELD)"}, 2, 2, (*Scope).low},
		{"pick", []string{"pick(COND, x, y)"}, 3, 3, (*Scope).pick},
		{"alloc", []string{"alloc(ROW.COUNTER)", "alloc(ROW.COUNTER, STEP)"}, 1, 2, (*Scope).alloc},
		{"translate", []string{"translate(ROW.TRANSLATION, KEY, VALUE)"}, 3, 3, (*Scope).translate},
		{"has", []string{"has(HEADER.LIST, ID)"}, 2, 2, (*Scope).has},
		{"element", []string{"element(HEADER.LIST, ID, N)"}, 3, 3, (*Scope).element},
	}
}

// Functions are the names of all functions.
func Functions() (names []string) {
	for _, f := range functions() {
		names = append(names, f.name)
	}
	return names
}

// call lowers a call.
func (s *Scope) call(e *spec.Expr) (Value, bool) {
	var forms []string
	for _, f := range functions() {
		forms = append(forms, f.forms...)
		if f.name != e.Fn.Value {
			continue
		}
		if n := len(e.Args); n < f.min || n > f.max {
			s.Fail(code.Type, e.Pos, "%s has %s, not %d: %s", f.name, arguments(f.min, f.max), n,
				strings.Join(f.forms, ", "))
			return Value{}, false
		}
		return f.lower(s, e)
	}
	s.Fail(code.UnknownName, e.Fn.Pos, "no function %q", e.Fn.Value).WithNames(e.Fn.Value, Functions()).
		WithHint("functions are %s", strings.Join(forms, ", "))
	return Value{}, false
}

func arguments(least, most int) string {
	switch {
	case least != most:
		return fmt.Sprintf("%d or %d arguments", least, most)
	case least == 1:
		return "1 argument"
	}
	return fmt.Sprintf("%d arguments", least)
}

// low is low(X, N): the N lowest bits of X; or low(X, FIELD): as many as an integer field has, in this packet.
func (s *Scope) low(e *spec.Expr) (Value, bool) {
	v, ok := s.Integer(e.Args[0])
	if !ok {
		return v, false
	}
	n := e.Args[1]
	if n.Op == spec.OpName {
		return s.lowOf(v, n, e.Pos)
	}
	if n.Op != spec.OpInt || n.Int < 1 || n.Int > 64 {
		s.Fail(code.Type, n.Pos, "low(x, n) takes a constant number of bits, 1 to 64, or a field")
		return Value{}, false
	}
	return lowest(v, int(n.Int), e.Pos), true
}

func lowest(v Value, bits int, pos diag.Pos) Value {
	m := ranges.Max(bits)
	if v.Max <= m {
		return v
	}
	return Value{Type: ir.UintType(bits), X: fold.Bin(ir.And, v.X, fold.Num(m)), Max: m, Pos: pos}
}

// lowOf cuts an integer to the size of a field.
func (s *Scope) lowOf(v Value, field *spec.Expr, pos diag.Pos) (Value, bool) {
	of, ok := s.Value(field)
	if !ok {
		return of, false
	}
	pl := of.Field
	if pl == nil || pl.Decl.MaxBits() == 0 || of.Type.Kind != ir.Uint {
		s.Fail(code.Type, field.Pos, "low(x, FIELD) takes a field that is an integer, and this is %s", of.Type.What())
		return Value{}, false
	}
	if pl.Width == nil {
		return lowest(v, pl.Decl.MaxBits(), pos), true
	}
	return Value{
		Type: ir.UintType(pl.Decl.MaxBits()), X: fold.Bin(ir.And, v.X, pl.Room()), Max: min(v.Max, pl.Max), Pos: pos,
		FitsIn: pl,
	}, true
}

// Extent is what a header's name stands for, all that follows it included, or HEADER.payload: size bytes from an offset
// on. ok is false if the expression is something else.
func (s *Scope) Extent(e *spec.Expr) (from ir.Off, size ir.Expr, ok bool) {
	v, from, ok := s.extent(e)
	return from, v.X, ok
}

func (s *Scope) extent(e *spec.Expr) (size Value, from ir.Off, ok bool) {
	if e.Op != spec.OpName {
		return size, from, false
	}
	in, _ := s.Find(e.Path[0].Value)
	if in == nil {
		return size, from, false
	}
	var end ir.Expr
	switch {
	case len(e.Path) == 1:
		from, end = in.Off, innerOf(in)
	case len(e.Path) == 2 && e.Path[1].Value == "payload" && in.Fields["payload"] == nil:
		from, end = in.End, in.Payload
	default:
		return size, from, false
	}
	x := fold.Bin(ir.Sub, end, fold.Off(from))
	return Value{Type: ir.UintType(64), X: x, Max: longest(in, end, from), Pos: e.Pos}, from, true
}

// length is len(x) in bytes: of a header with what follows it, of a header's payload, or of a field.
func (s *Scope) length(call *spec.Expr) (Value, bool) {
	e := call.Args[0]
	if v, _, ok := s.extent(e); ok {
		return v, true
	}
	v, ok := s.Value(e)
	if !ok {
		return v, false
	}
	switch {
	case v.Field != nil && v.Field.Size != nil:
		return Value{Type: ir.UintType(64), X: v.Field.Size, Max: uint64(v.Field.Decl.MaxBytes()), Pos: e.Pos}, true
	case v.Field != nil && v.Field.Decl.Kind == spec.FieldBytes:
		return Value{Type: ir.UintType(64), X: fold.Num(uint64(v.Field.Decl.Bytes)), Max: uint64(v.Field.Decl.Bytes),
				Pos: e.Pos},
			true
	}
	s.Fail(code.Type, e.Pos, "len takes a header, HEADER.payload or a field made of bytes, and this is %s",
		v.Type.What())
	return Value{}, false
}

// longest bounds the bytes from an offset of the header to an end: a length field bounds the end.
func longest(in *draft.Header, end ir.Expr, from ir.Off) uint64 {
	v := fold.Var(end)
	if v == nil || v.Max == 0 {
		return 0xFFFF_FFFF
	}
	if from.Base != nil {
		from = in.Off // in front of it
	}
	if from.Base != nil {
		return v.Max
	}
	return v.Max - min(v.Max, uint64(from.Const))
}

// innerOf is where what the header encloses ends; while the header itself is parsed, where the enclosing one says so.
func innerOf(in *draft.Header) ir.Expr {
	if in.Inner != nil {
		return in.Inner
	}
	return in.Limit
}

// pick is pick(COND, X, Y): X if the condition holds, else Y. What is known of rows if it holds is known in X.
// Bytes are of one size.
func (s *Scope) pick(e *spec.Expr) (Value, bool) {
	in := *s
	in.Fx = nil
	cond, ok := in.Cond(e.Args[0])
	if !ok {
		return Value{}, false
	}
	side := func(i int) (Value, bool) {
		branch := in
		branch.Facts = map[*ir.Row]bool{}
		for r := range s.Facts {
			branch.Facts[r] = true
		}
		Known(e.Args[0], s, i == 1, branch.Facts)
		v, ok := branch.Value(e.Args[i])
		switch {
		case !ok || v.Type.Kind == ir.Uint || v.Type.Kind == ir.Bool:
		case v.X == nil || v.Type.Kind != ir.Bytes && v.Type.Kind != ir.Mac:
			s.Fail(code.Type, e.Args[i].Pos, "this is %s, where an integer, a condition or bytes of a fixed size are "+
				"wanted", v.Type.What())
			ok = false
		}
		return v, ok
	}
	if c, fixed := fold.Constant(cond); fixed { // the other side may speak of headers that are not here
		if c != 0 {
			return side(1)
		}
		return side(2)
	}
	x, ok1 := side(1)
	y, ok2 := side(2)
	if !ok1 || !ok2 {
		return Value{}, false
	}
	if x.Type.Kind != y.Type.Kind || x.Type.IsBytes() && x.Type.Size != y.Type.Size {
		s.Fail(code.Type, e.Pos, "%s and %s can't be picked from", x.Type.What(), y.Type.What())
		return Value{}, false
	}
	t := x.Type
	if t.Kind == ir.Uint {
		t = ir.UintType(64)
	}
	return Value{Type: t, X: &ir.Pick{If: cond, Then: x.X, Else: y.X}, Max: max(x.Max, y.Max), Pos: e.Pos,
		Wraps: x.Wraps || y.Wraps}, true
}
