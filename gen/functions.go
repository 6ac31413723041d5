package gen

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
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
	lower    func(*scope, *spec.Expr) (val, bool)
}

// functions are all of them: a row each. What a function means in a plan is what its row makes of it.
func functions() []function {
	return []function{
		{"len", []string{"len(HEADER)", "len(HEADER.payload)", "len(HEADER.FIELD)"}, 1, 1, (*scope).length},
		{"low", []string{"low(x, n)", "low(x, HEADER.FIELD)"}, 2, 2, (*scope).low},
		{"pick", []string{"pick(COND, x, y)"}, 3, 3, (*scope).pick},
		{"alloc", []string{"alloc(ROW.COUNTER)", "alloc(ROW.COUNTER, STEP)"}, 1, 2, (*scope).alloc},
		{"translate", []string{"translate(ROW.TRANSLATION, KEY, VALUE)"}, 3, 3, (*scope).translate},
		{"has", []string{"has(HEADER.LIST, ID)"}, 2, 2, (*scope).has},
		{"element", []string{"element(HEADER.LIST, ID, N)"}, 3, 3, (*scope).element},
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
func (s *scope) call(e *spec.Expr) (val, bool) {
	var forms []string
	for _, f := range functions() {
		forms = append(forms, f.forms...)
		if f.name != e.Fn.Value {
			continue
		}
		if n := len(e.Args); n < f.min || n > f.max {
			s.fail(code.Type, e.Pos, "%s has %s, not %d: %s", f.name, arguments(f.min, f.max), n,
				strings.Join(f.forms, ", "))
			return val{}, false
		}
		return f.lower(s, e)
	}
	s.fail(code.UnknownName, e.Fn.Pos, "no function %q", e.Fn.Value).WithNames(e.Fn.Value, Functions()).
		WithHint("functions are %s", strings.Join(forms, ", "))
	return val{}, false
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
func (s *scope) low(e *spec.Expr) (val, bool) {
	v, ok := s.integer(e.Args[0])
	if !ok {
		return v, false
	}
	n := e.Args[1]
	if n.Op == spec.OpName {
		return s.lowOf(v, n, e.Pos)
	}
	if n.Op != spec.OpInt || n.Int < 1 || n.Int > 64 {
		s.fail(code.Type, n.Pos, "low(x, n) takes a constant number of bits, 1 to 64, or a field")
		return val{}, false
	}
	return lowest(v, int(n.Int), e.Pos), true
}

func lowest(v val, bits int, pos diag.Pos) val {
	m := ranges.Max(bits)
	if v.max <= m {
		return v
	}
	return val{t: ir.UintType(bits), x: fold.Bin(ir.And, v.x, fold.Num(m)), max: m, pos: pos}
}

// lowOf cuts an integer to the size of a field.
func (s *scope) lowOf(v val, field *spec.Expr, pos diag.Pos) (val, bool) {
	of, ok := s.value(field)
	if !ok {
		return of, false
	}
	pl := of.field
	if pl == nil || pl.f.MaxBits() == 0 || of.t.Kind != ir.Uint {
		s.fail(code.Type, field.Pos, "low(x, FIELD) takes a field that is an integer, and this is %s", of.t.What())
		return val{}, false
	}
	if pl.width == nil {
		return lowest(v, pl.f.MaxBits(), pos), true
	}
	return val{
		t: ir.UintType(pl.f.MaxBits()), x: fold.Bin(ir.And, v.x, pl.room()), max: min(v.max, pl.max), pos: pos,
		fitsIn: pl,
	}, true
}

// length is len(x) in bytes: of a header with what follows it, of a header's payload, or of a field.
func (s *scope) length(call *spec.Expr) (val, bool) {
	e := call.Args[0]
	if e.Op == spec.OpName {
		if in, _ := s.find(e.Path[0].Value); in != nil {
			switch {
			case len(e.Path) == 1:
				return val{
					t: ir.UintType(64), x: fold.Bin(ir.Sub, in.inner0(), fold.Off(in.off)), max: in.most(in.inner0(),
						in.off),
					pos: e.Pos,
				}, true
			case len(e.Path) == 2 && e.Path[1].Value == "payload" && in.fields["payload"] == nil:
				return val{
					t: ir.UintType(64), x: fold.Bin(ir.Sub, in.payload, fold.Off(in.end)), max: in.most(in.payload,
						in.end),
					pos: e.Pos,
				}, true
			}
		}
	}
	v, ok := s.value(e)
	if !ok {
		return v, false
	}
	switch {
	case v.field != nil && v.field.size != nil:
		return val{t: ir.UintType(64), x: v.field.size, max: uint64(v.field.f.MaxBytes()), pos: e.Pos}, true
	case v.field != nil && v.field.f.Kind == spec.FieldBytes:
		return val{t: ir.UintType(64), x: fold.Num(uint64(v.field.f.Bytes)), max: uint64(v.field.f.Bytes), pos: e.Pos},
			true
	}
	s.fail(code.Type, e.Pos, "len takes a header, HEADER.payload or a field made of bytes, and this is %s", v.t.What())
	return val{}, false
}

// most bounds the bytes from an offset of the header to an end: a length field bounds the end.
func (in *layer) most(end ir.Expr, from ir.Off) uint64 {
	v := fold.Var(end)
	if v == nil || v.Max == 0 {
		return 0xFFFF_FFFF
	}
	if from.Base != nil {
		from = in.off // in front of it
	}
	if from.Base != nil {
		return v.Max
	}
	return v.Max - min(v.Max, uint64(from.Const))
}

// inner0 is where what the header encloses ends; while the header itself is parsed, where the enclosing one says so.
func (in *layer) inner0() ir.Expr {
	if in.inner != nil {
		return in.inner
	}
	return in.limit
}

// pick is pick(COND, X, Y): X where the condition holds, else Y. What is known of rows where it holds is known in X.
// Bytes are of one size.
func (s *scope) pick(e *spec.Expr) (val, bool) {
	in := *s
	in.fx = nil
	cond, ok := in.cond(e.Args[0])
	if !ok {
		return val{}, false
	}
	side := func(i int) (val, bool) {
		branch := in
		branch.facts = map[*ir.Row]bool{}
		for r := range s.facts {
			branch.facts[r] = true
		}
		known(e.Args[0], s, i == 1, branch.facts)
		v, ok := branch.value(e.Args[i])
		switch {
		case !ok || v.t.Kind == ir.Uint || v.t.Kind == ir.Bool:
		case v.x == nil || v.t.Kind != ir.Bytes && v.t.Kind != ir.Mac:
			s.fail(code.Type, e.Args[i].Pos, "this is %s, where an integer, a condition or bytes of a fixed size are "+
				"wanted", v.t.What())
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
		return val{}, false
	}
	if x.t.Kind != y.t.Kind || x.t.IsBytes() && x.t.Size != y.t.Size {
		s.fail(code.Type, e.Pos, "%s and %s can't be picked from", x.t.What(), y.t.What())
		return val{}, false
	}
	t := x.t
	if t.Kind == ir.Uint {
		t = ir.UintType(64)
	}
	return val{t: t, x: &ir.Pick{If: cond, Then: x.x, Else: y.x}, max: max(x.max, y.max), pos: e.Pos,
		wraps: x.wraps || y.wraps}, true
}
