// Package expr is the compiler's pass over expressions and constraints: it gives names their meaning, checks types, and
// lowers what a spec says to expressions of the plan. A Scope goes in: the headers of a path, the rows found so far,
// and what is known of them. Values come out. Every integer carries an upper bound, so that a store into a narrower
// field can be proven. A row of an optional lookup may only be read if a condition in front has made sure of it.
package expr

import (
	"cmp"
	"maps"
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Scope is where names are looked up: the headers of a path, the rows found so far, and what is known of them.
type Scope struct {
	Program *draft.Program
	Path    []*draft.Header
	Self    *draft.Header // whose fields can be named without the header; nil outside of header declarations
	Rows    map[string]*ir.Row
	Facts   map[*ir.Row]bool // rows known to be there
	Diags   *diag.List       // where mistakes are reported; nil: in the program's list
	Named   map[string]Value // values that the rule has given names
	Lists   map[string]*List // lists of elements that were searched, by what for
	Level   *Value           // the packet's priority, if it is known
	Fx      *Effects         // where an expression may have effects; nil: it may not
	Each    *FanOut          // the fan-out whose receivers' turn it is; nil: none
}

// Value is a typed value.
type Value struct {
	Type    ir.Type
	X       ir.Expr // endpoint: the address
	Port    ir.Expr // endpoint
	Max     uint64  // integers
	Row     *ir.Row // a row as a condition, or the row of a member
	Member  *ir.Member
	Level   ir.Expr       // of a member with a value for each level of priority: which one
	Layer   *draft.Header // a header
	absent  bool          // a header that is not on this path
	Field   *draft.Field
	PortAt  *draft.Field // endpoint made of fields
	Pos     diag.Pos
	Counter bool
	Wraps   bool         // a result of arithmetic, which may be meant to wrap around
	FitsIn  *draft.Field // an integer that was cut to the size of this field; nil: of none
}

// Term is a value as a summand of a checksum: as many bytes as the pseudo-header has of it.
func (v Value) Term() ir.Term {
	size := v.Type.Size
	switch {
	case v.Type.Kind == ir.Uint && v.Max <= 0xFFFF:
		size = 2
	case v.Type.Kind == ir.Uint && v.Max <= 0xFFFF_FFFF:
		size = 4
	case v.Type.Kind == ir.Uint:
		size = 8
	case v.Field != nil && v.Field.Decl.Kind == spec.FieldBytes:
		size = v.Field.Decl.Bytes
	}
	return ir.Term{Value: v.X, Size: size}
}

// ValueOf is the value of a field.
func ValueOf(pl *draft.Field) Value {
	v := Value{X: pl.Load, Max: pl.Max, Field: pl, Pos: pl.Decl.Name.Pos}
	if pl.Load != nil {
		v.Type = pl.Load.Type()
	}
	if v.Type.Kind == ir.Uint {
		v.Type = ir.UintType(max(1, bits.Len64(pl.Max)))
		if pl.Decl.Kind == spec.FieldUint {
			v.Type = ir.UintType(pl.Decl.Bits)
		}
	}
	return v
}

// Fail reports a mistake.
func (s *Scope) Fail(code diag.Code, pos diag.Pos, format string, args ...any) *diag.Diagnostic {
	return cmp.Or(s.Diags, s.Program.Diags).Add(code, pos, format, args...)
}

// Cond lowers a condition.
func (s *Scope) Cond(e *spec.Expr) (ir.Expr, bool) {
	v, ok := s.Value(e)
	if !ok {
		return nil, false
	}
	if v.Type.Kind != ir.Bool {
		s.Fail(code.Type, e.Pos, "this is %s, where a condition is wanted", v.Type.What()).
			WithHint("compare it with something: … != 0")
		return nil, false
	}
	return v.X, true
}

// Integer lowers an expression that has to be an integer.
func (s *Scope) Integer(e *spec.Expr) (Value, bool) {
	v, ok := s.Value(e)
	if !ok {
		return v, false
	}
	if v.Type.Kind != ir.Uint {
		d := s.Fail(code.Type, e.Pos, "this is %s, where an integer is wanted", v.Type.What())
		if v.Type.Kind == ir.Endpoint {
			d.WithHint("an endpoint has the parts .addr and .port")
		}
		return v, false
	}
	return v, true
}

// Value lowers any expression.
func (s *Scope) Value(e *spec.Expr) (Value, bool) {
	switch e.Op {
	case spec.OpInt:
		return Value{Type: ir.UintType(64), X: fold.Num(e.Int), Max: e.Int, Pos: e.Pos}, true
	case spec.OpBool:
		return Value{Type: ir.BoolType, X: fold.Bool(e.Int != 0), Pos: e.Pos}, true
	case spec.OpName:
		v, ok := s.name(e)
		v.Pos = e.Pos
		return v, ok
	case spec.OpIndex:
		return s.index(e)
	case spec.OpMember:
		v, ok := s.Value(e.Args[0])
		if !ok {
			return v, false
		}
		return s.part(v, append([]spec.Name{{}}, e.Path...))
	case spec.OpCall:
		return s.call(e)
	case spec.OpNot:
		x, ok := s.Cond(e.Args[0])
		if !ok {
			return Value{}, false
		}
		return Value{Type: ir.BoolType, X: fold.Not(x), Pos: e.Pos}, true
	case spec.OpInv:
		v, ok := s.Integer(e.Args[0])
		return Value{Type: ir.UintType(64), X: orNil(ok, func() ir.Expr {
			return fold.Bin(ir.Xor, v.X,
				fold.Num(^uint64(0)))
		}),
			Max: ^uint64(0), Pos: e.Pos, Wraps: true}, ok
	case spec.OpNeg:
		v, ok := s.Integer(e.Args[0])
		return Value{Type: ir.UintType(64), X: orNil(ok, func() ir.Expr { return fold.Bin(ir.Sub, fold.Num(0), v.X) }),
			Max: ^uint64(0), Pos: e.Pos, Wraps: true}, ok
	case spec.OpLand, spec.OpLor:
		return s.logical(e)
	}
	return s.binary(e)
}

func orNil(ok bool, f func() ir.Expr) ir.Expr {
	if !ok {
		return nil
	}
	return f()
}

// logical lowers && and ||; the right side is read with what the left side has made sure of.
func (s *Scope) logical(e *spec.Expr) (Value, bool) {
	x, ok := s.Cond(e.Args[0])
	if !ok {
		return Value{}, false
	}
	isAnd := e.Op == spec.OpLand
	if v, c := fold.Constant(x); c && (v != 0) != isAnd {
		return Value{Type: ir.BoolType, X: x, Pos: e.Pos}, true // the right side doesn't matter on this path
	}
	right := *s
	right.Facts, right.Fx = maps.Clone(s.Facts), nil // it may be left out
	Known(e.Args[0], s, isAnd, right.Facts)
	y, ok := right.Cond(e.Args[1])
	if !ok {
		return Value{}, false
	}
	if isAnd {
		return Value{Type: ir.BoolType, X: fold.And(x, y), Pos: e.Pos}, true
	}
	return Value{Type: ir.BoolType, X: fold.Or(x, y), Pos: e.Pos}, true
}

// Known adds to facts the rows that are there when e has the given truth.
func Known(e *spec.Expr, s *Scope, truth bool, facts map[*ir.Row]bool) {
	switch e.Op {
	case spec.OpName:
		if r := s.Rows[e.Path[0].Value]; r != nil && len(e.Path) == 1 && truth {
			facts[r] = true
		}
	case spec.OpNot:
		Known(e.Args[0], s, !truth, facts)
	case spec.OpLand, spec.OpLor:
		if (e.Op == spec.OpLand) == truth {
			Known(e.Args[0], s, truth, facts)
			Known(e.Args[1], s, truth, facts)
		}
	}
}

var binOps = map[spec.ExprOp]ir.BinOp{
	spec.OpMul: ir.Mul, spec.OpDiv: ir.Div, spec.OpRem: ir.Rem, spec.OpShl: ir.Shl, spec.OpShr: ir.Shr,
	spec.OpAnd: ir.And,
	spec.OpAdd: ir.Add, spec.OpSub: ir.Sub, spec.OpOr: ir.Or, spec.OpXor: ir.Xor, spec.OpEq: ir.Eq, spec.OpNe: ir.Ne,
	spec.OpLt: ir.Lt, spec.OpLe: ir.Le, spec.OpGt: ir.Gt, spec.OpGe: ir.Ge,
}

func (s *Scope) binary(e *spec.Expr) (Value, bool) {
	if e.Op == spec.OpEq || e.Op == spec.OpNe {
		return s.equality(e)
	}
	x, ok1 := s.Integer(e.Args[0])
	y, ok2 := s.Integer(e.Args[1])
	if !ok1 || !ok2 {
		return Value{}, false
	}
	if e.Op == spec.OpAndNot {
		return Value{Type: ir.UintType(64), X: fold.Bin(ir.And, x.X, fold.Bin(ir.Xor, y.X, fold.Num(^uint64(0)))),
				Max: x.Max, Pos: e.Pos},
			true
	}
	op := binOps[e.Op]
	c, fixed := fold.Constant(y.X)
	switch op {
	case ir.Div, ir.Rem:
		if !fixed || c == 0 {
			s.Fail(code.Divide, e.Args[1].Pos, "the divisor has to be a constant other than 0")
			return Value{}, false
		}
	case ir.Shl, ir.Shr:
		if !fixed || c > 63 {
			s.Fail(code.Divide, e.Args[1].Pos, "the number of bits to shift by has to be a constant below 64")
			return Value{}, false
		}
	}
	if op >= ir.Eq {
		return Value{Type: ir.BoolType, X: fold.Bin(op, x.X, y.X), Pos: e.Pos}, true
	}
	wraps := op == ir.Add || op == ir.Sub || op == ir.Mul || op == ir.Shl || x.Wraps || y.Wraps
	return Value{Type: ir.UintType(64), X: fold.Bin(op, x.X, y.X), Max: ranges.Arith(op, x.among(), y.among()).Max().Lo,
			Pos:   e.Pos,
			Wraps: wraps},
		true
}

// among are the values that an integer may have.
func (v Value) among() ranges.Set {
	if c, fixed := fold.Constant(v.X); fixed {
		return ranges.Point(c)
	}
	return ranges.UpTo(v.Max)
}

// equality compares two values of one type.
func (s *Scope) equality(e *spec.Expr) (Value, bool) {
	x, ok1 := s.Value(e.Args[0])
	y, ok2 := s.Value(e.Args[1])
	if !ok1 || !ok2 {
		return Value{}, false
	}
	var eq ir.Expr
	switch {
	case x.Type.Kind == ir.Uint && y.Type.Kind == ir.Uint, x.Type.Kind == ir.Bool && y.Type.Kind == ir.Bool:
		eq = fold.Bin(ir.Eq, x.X, y.X)
	case x.Type.Kind == ir.Endpoint && y.Type.Kind == ir.Endpoint:
		eq = fold.And(&ir.BytesEq{X: x.X, Y: y.X}, fold.Bin(ir.Eq, x.Port, y.Port))
	case x.Type.Kind == y.Type.Kind && x.Type.Size == y.Type.Size && x.X != nil && y.X != nil && x.Type.Kind <= ir.Addr:
		eq = &ir.BytesEq{X: x.X, Y: y.X}
	default:
		s.Fail(code.Type, e.Pos, "%s can't be compared with %s", x.Type.What(), y.Type.What())
		return Value{}, false
	}
	if e.Op == spec.OpNe {
		eq = fold.Not(eq)
	}
	return Value{Type: ir.BoolType, X: eq, Pos: e.Pos}, true
}

// index is one byte of bytes, or what a row's member has for a level of priority.
func (s *Scope) index(e *spec.Expr) (Value, bool) {
	if r, m := s.leveled(e.Args[0]); m != nil {
		return s.ofLevel(r, m, e)
	}
	v, ok := s.Value(e.Args[0])
	if !ok {
		return v, false
	}
	if k := v.Type.Kind; v.Member != nil && v.Level == nil && (v.X == nil || k < ir.Bytes || k > ir.Addr) {
		s.Fail(code.Priority, e.Args[1].Pos, "%q has a single value", v.Member.Name).
			WithRelated(v.Member.Pos, "with one for each level of priority its type is \"%s%s\"", v.Member.Type.Word(),
				ir.LevelsWord)
		return Value{}, false
	}
	i, fixed := uint64(0), false
	if e.Args[1].Op == spec.OpInt {
		i, fixed = e.Args[1].Int, true
	}
	size := v.Type.Size
	if n := s.onWire(e.Args[0], v); n > 0 {
		size = n
	}
	if v.X == nil || v.Type.Kind < ir.Bytes || v.Type.Kind > ir.Addr || !fixed || i >= uint64(size) {
		d := s.Fail(code.Type, e.Pos, "an index is a constant, inside the %d bytes of what it follows", size)
		if size < v.Type.Size {
			d.WithHint("these are the bytes in the packet: [0] to [%d]; what holds addresses of both versions has 16, "+
				"and those of an IPv4 address are the last ones", size-1)
		}
		return Value{}, false
	}
	return Value{
		Type: ir.UintType(8), X: &ir.ByteAt{X: v.X, Index: int(i) + v.Type.Size - size}, Max: 255, Pos: e.Pos,
	}, true
}

// onWire returns the size in a packet of an address that a name stands for, or 0 if it may stand for addresses of
// both versions: the bytes of those are those of their 16-byte form on each path, so that an index has one meaning.
func (s *Scope) onWire(e *spec.Expr, v Value) int {
	if v.Field == nil || v.Type.Kind != ir.Addr || e.Op != spec.OpName {
		return 0
	}
	size := v.Field.Decl.Bytes
	switch {
	case s.Self != nil && len(e.Path) == 1:
		return size
	case len(e.Path) != 2: // a value that was named, or an endpoint's
		return 0
	}
	for _, entry := range s.Program.Src.Stack {
		for _, h := range s.Program.Names.Choices(entry) {
			if entry.Var.Value == e.Path[0].Value || h.Name.Value == e.Path[0].Value || s.Program.Names.InGroup(h,
				e.Path[0].Value) {
				for _, f := range h.Fields {
					if f.Name.Value == v.Field.Decl.Name.Value && f.Bytes != size {
						return 0
					}
				}
			}
		}
	}
	return size
}

// leveled returns the member with a value for each level of priority that an expression names, or nil.
func (s *Scope) leveled(e *spec.Expr) (*ir.Row, *ir.Member) {
	if e.Op != spec.OpName || len(e.Path) != 2 || s.Self != nil {
		return nil, nil
	}
	if _, named := s.Named[e.Path[0].Value]; named {
		return nil, nil
	}
	r := s.Rows[e.Path[0].Value]
	if r == nil {
		return nil, nil
	}
	if m := r.Table.Value.Member(e.Path[1].Value); m != nil && m.Type.Levels > 0 {
		return r, m
	}
	return nil, nil
}

// ofLevel is ROW.MEMBER[LEVEL].
func (s *Scope) ofLevel(r *ir.Row, m *ir.Member, e *spec.Expr) (Value, bool) {
	if !s.there(r, e.Args[0]) {
		return Value{}, false
	}
	level, ok := s.Integer(e.Args[1])
	if !ok {
		return Value{}, false
	}
	if level.Max >= uint64(m.Type.Levels) {
		s.Fail(code.Range, e.Args[1].Pos, "the value may be up to %d, but there are %d levels", level.Max,
			m.Type.Levels)
		return Value{}, false
	}
	v := s.memberOf(r, m, level.X)
	v.Pos = e.Pos
	return v, true
}

// FanOut is the fan-out whose rules are compiled.
type FanOut struct {
	Row    *ir.Row
	Emits  map[*ir.Event]bool          // of the rule with the fan-out
	Filled map[*draft.Header]ir.Filled // headers of variable size that a rule fills
	Set    map[*draft.Header]bool      // and those whose fields a rule sets
}
