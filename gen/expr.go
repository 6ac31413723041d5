package gen

import (
	"maps"
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives the names in an expression their meaning, checks types, and lowers the expression. Every integer
// carries an upper bound of its value, so that a store into a narrower field can be proven. A row of an optional lookup
// may only be read where the condition in front of it has made sure that the row is there ("facts").

// scope is where names are looked up: the headers of a path, the rows found so far, and what is known of them.
type scope struct {
	p     *program
	path  []*layer
	self  *layer // whose fields can be named without the header; nil outside of header declarations
	rows  map[string]*ir.Row
	facts map[*ir.Row]bool // rows known to be there
	quiet bool             // don't report: the caller only wants to know
	named map[string]val   // values that the rule has given names
	lists map[string]*list // lists of elements that were searched, by what for
	level *val             // the packet's priority, where it is known
	fx    *effects         // where an expression may have effects; nil: it may not
	each  *fanOut          // the fan-out whose receivers' turn it is; nil: none
}

// val is a typed value.
type val struct {
	t       ir.Type
	x       ir.Expr // endpoint: the address
	port    ir.Expr // endpoint
	max     uint64  // integers
	row     *ir.Row // a row as a condition, or the row of a member
	member  *ir.Member
	level   ir.Expr // of a member with a value for each level of priority: which one
	layer   *layer  // a header
	absent  bool    // a header that is not on this path
	field   *fieldRef
	portAt  *fieldRef // endpoint made of fields
	pos     diag.Pos
	counter bool
	wraps   bool      // a result of arithmetic, which may be meant to wrap around
	fitsIn  *fieldRef // an integer that was cut to the size of this field; nil: of none
}

func (pl *fieldRef) val() val {
	v := val{x: pl.load, max: pl.max, field: pl, pos: pl.f.Name.Pos}
	if pl.load != nil {
		v.t = pl.load.Type()
	}
	if v.t.Kind == ir.Uint {
		v.t = ir.UintType(max(1, bits.Len64(pl.max)))
		if pl.f.Kind == spec.FieldUint {
			v.t = ir.UintType(pl.f.Bits)
		}
	}
	return v
}

func (s *scope) fail(code diag.Code, pos diag.Pos, format string, args ...any) *diag.Diagnostic {
	if s.quiet {
		return &diag.Diagnostic{}
	}
	return s.p.diags.Add(code, pos, format, args...)
}

// cond lowers a condition.
func (s *scope) cond(e *spec.Expr) (ir.Expr, bool) {
	v, ok := s.value(e)
	if !ok {
		return nil, false
	}
	if v.t.Kind != ir.Bool {
		s.fail(code.Type, e.Pos, "this is %s, where a condition is wanted", v.t.What()).
			WithHint("compare it with something: … != 0")
		return nil, false
	}
	return v.x, true
}

// integer lowers an expression that has to be an integer.
func (s *scope) integer(e *spec.Expr) (val, bool) {
	v, ok := s.value(e)
	if !ok {
		return v, false
	}
	if v.t.Kind != ir.Uint {
		d := s.fail(code.Type, e.Pos, "this is %s, where an integer is wanted", v.t.What())
		if v.t.Kind == ir.Endpoint {
			d.WithHint("an endpoint has the parts .addr and .port")
		}
		return v, false
	}
	return v, true
}

// value lowers any expression.
func (s *scope) value(e *spec.Expr) (val, bool) {
	switch e.Op {
	case spec.OpInt:
		return val{t: ir.UintType(64), x: fold.Num(e.Int), max: e.Int, pos: e.Pos}, true
	case spec.OpBool:
		return val{t: ir.BoolType, x: fold.Bool(e.Int != 0), pos: e.Pos}, true
	case spec.OpName:
		v, ok := s.name(e)
		v.pos = e.Pos
		return v, ok
	case spec.OpIndex:
		return s.index(e)
	case spec.OpPart:
		v, ok := s.value(e.Args[0])
		if !ok {
			return v, false
		}
		return s.part(v, append([]spec.Name{{}}, e.Path...))
	case spec.OpCall:
		return s.call(e)
	case spec.OpNot:
		x, ok := s.cond(e.Args[0])
		if !ok {
			return val{}, false
		}
		return val{t: ir.BoolType, x: fold.Not(x), pos: e.Pos}, true
	case spec.OpInv:
		v, ok := s.integer(e.Args[0])
		return val{t: ir.UintType(64), x: orNil(ok, func() ir.Expr {
			return fold.Bin(ir.Xor, v.x,
				fold.Num(^uint64(0)))
		}),
			max: ^uint64(0), pos: e.Pos, wraps: true}, ok
	case spec.OpNeg:
		v, ok := s.integer(e.Args[0])
		return val{t: ir.UintType(64), x: orNil(ok, func() ir.Expr { return fold.Bin(ir.Sub, fold.Num(0), v.x) }),
			max: ^uint64(0), pos: e.Pos, wraps: true}, ok
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
func (s *scope) logical(e *spec.Expr) (val, bool) {
	x, ok := s.cond(e.Args[0])
	if !ok {
		return val{}, false
	}
	isAnd := e.Op == spec.OpLand
	if v, c := fold.Constant(x); c && (v != 0) != isAnd {
		return val{t: ir.BoolType, x: x, pos: e.Pos}, true // the right side doesn't matter on this path
	}
	right := *s
	right.facts, right.fx = maps.Clone(s.facts), nil // it may be left out
	known(e.Args[0], s, isAnd, right.facts)
	y, ok := right.cond(e.Args[1])
	if !ok {
		return val{}, false
	}
	if isAnd {
		return val{t: ir.BoolType, x: fold.And(x, y), pos: e.Pos}, true
	}
	return val{t: ir.BoolType, x: fold.Or(x, y), pos: e.Pos}, true
}

// known adds to facts the rows that are there when e has the given truth.
func known(e *spec.Expr, s *scope, truth bool, facts map[*ir.Row]bool) {
	switch e.Op {
	case spec.OpName:
		if r := s.rows[e.Path[0].Value]; r != nil && len(e.Path) == 1 && truth {
			facts[r] = true
		}
	case spec.OpNot:
		known(e.Args[0], s, !truth, facts)
	case spec.OpLand, spec.OpLor:
		if (e.Op == spec.OpLand) == truth {
			known(e.Args[0], s, truth, facts)
			known(e.Args[1], s, truth, facts)
		}
	}
}

var binOps = map[spec.ExprOp]ir.BinOp{
	spec.OpMul: ir.Mul, spec.OpDiv: ir.Div, spec.OpRem: ir.Rem, spec.OpShl: ir.Shl, spec.OpShr: ir.Shr,
	spec.OpAnd: ir.And,
	spec.OpAdd: ir.Add, spec.OpSub: ir.Sub, spec.OpOr: ir.Or, spec.OpXor: ir.Xor, spec.OpEq: ir.Eq, spec.OpNe: ir.Ne,
	spec.OpLt: ir.Lt, spec.OpLe: ir.Le, spec.OpGt: ir.Gt, spec.OpGe: ir.Ge,
}

func (s *scope) binary(e *spec.Expr) (val, bool) {
	if e.Op == spec.OpEq || e.Op == spec.OpNe {
		return s.equality(e)
	}
	x, ok1 := s.integer(e.Args[0])
	y, ok2 := s.integer(e.Args[1])
	if !ok1 || !ok2 {
		return val{}, false
	}
	if e.Op == spec.OpAndNot {
		return val{t: ir.UintType(64), x: fold.Bin(ir.And, x.x, fold.Bin(ir.Xor, y.x, fold.Num(^uint64(0)))),
				max: x.max, pos: e.Pos},
			true
	}
	op := binOps[e.Op]
	c, fixed := fold.Constant(y.x)
	switch op {
	case ir.Div, ir.Rem:
		if !fixed || c == 0 {
			s.fail(code.Divide, e.Args[1].Pos, "the divisor has to be a constant other than 0")
			return val{}, false
		}
	case ir.Shl, ir.Shr:
		if !fixed || c > 63 {
			s.fail(code.Divide, e.Args[1].Pos, "the number of bits to shift by has to be a constant below 64")
			return val{}, false
		}
	}
	if op >= ir.Eq {
		return val{t: ir.BoolType, x: fold.Bin(op, x.x, y.x), pos: e.Pos}, true
	}
	wraps := op == ir.Add || op == ir.Sub || op == ir.Mul || op == ir.Shl || x.wraps || y.wraps
	return val{t: ir.UintType(64), x: fold.Bin(op, x.x, y.x), max: ranges.Arith(op, x.among(), y.among()).Max().Lo,
			pos:   e.Pos,
			wraps: wraps},
		true
}

// among are the values that an integer may have.
func (v val) among() ranges.Set {
	if c, fixed := fold.Constant(v.x); fixed {
		return ranges.Point(c)
	}
	return ranges.UpTo(v.max)
}

// equality compares two values of one type.
func (s *scope) equality(e *spec.Expr) (val, bool) {
	x, ok1 := s.value(e.Args[0])
	y, ok2 := s.value(e.Args[1])
	if !ok1 || !ok2 {
		return val{}, false
	}
	var eq ir.Expr
	switch {
	case x.t.Kind == ir.Uint && y.t.Kind == ir.Uint, x.t.Kind == ir.Bool && y.t.Kind == ir.Bool:
		eq = fold.Bin(ir.Eq, x.x, y.x)
	case x.t.Kind == ir.Endpoint && y.t.Kind == ir.Endpoint:
		eq = fold.And(&ir.BytesEq{X: x.x, Y: y.x}, fold.Bin(ir.Eq, x.port, y.port))
	case x.t.Kind == y.t.Kind && x.t.Size == y.t.Size && x.x != nil && y.x != nil && x.t.Kind <= ir.Addr:
		eq = &ir.BytesEq{X: x.x, Y: y.x}
	default:
		s.fail(code.Type, e.Pos, "%s can't be compared with %s", x.t.What(), y.t.What())
		return val{}, false
	}
	if e.Op == spec.OpNe {
		eq = fold.Not(eq)
	}
	return val{t: ir.BoolType, x: eq, pos: e.Pos}, true
}

// index is one byte of bytes, or what a row's member has for a level of priority.
func (s *scope) index(e *spec.Expr) (val, bool) {
	if r, m := s.leveled(e.Args[0]); m != nil {
		return s.ofLevel(r, m, e)
	}
	v, ok := s.value(e.Args[0])
	if !ok {
		return v, false
	}
	if k := v.t.Kind; v.member != nil && v.level == nil && (v.x == nil || k < ir.Bytes || k > ir.Addr) {
		s.fail(code.Priority, e.Args[1].Pos, "%q has a single value", v.member.Name).
			WithRelated(v.member.Pos, "with one for each level of priority its type is \"%s%s\"", v.member.Type.Word(),
				ir.LevelsWord)
		return val{}, false
	}
	i, fixed := uint64(0), false
	if e.Args[1].Op == spec.OpInt {
		i, fixed = e.Args[1].Int, true
	}
	size := v.t.Size
	if n := s.onWire(e.Args[0], v); n > 0 {
		size = n
	}
	if v.x == nil || v.t.Kind < ir.Bytes || v.t.Kind > ir.Addr || !fixed || i >= uint64(size) {
		d := s.fail(code.Type, e.Pos, "an index is a constant, inside the %d bytes of what it follows", size)
		if size < v.t.Size {
			d.WithHint("these are the bytes in the packet: [0] to [%d]; what holds addresses of both versions has 16, "+
				"and those of an IPv4 address are the last ones", size-1)
		}
		return val{}, false
	}
	return val{
		t: ir.UintType(8), x: &ir.ByteAt{X: v.x, Index: int(i) + v.t.Size - size}, max: 255, pos: e.Pos,
	}, true
}

// onWire returns the size in a packet of an address that a name stands for, or 0 where it may stand for addresses of
// both versions: the bytes of those are those of their 16-byte form on each path, so that an index has one meaning.
func (s *scope) onWire(e *spec.Expr, v val) int {
	if v.field == nil || v.t.Kind != ir.Addr || e.Op != spec.OpName {
		return 0
	}
	size := v.field.f.Bytes
	switch {
	case s.self != nil && len(e.Path) == 1:
		return size
	case len(e.Path) != 2: // a value that was named, or an endpoint's
		return 0
	}
	for _, entry := range s.p.src.Stack {
		for _, h := range s.p.names.Choices(entry) {
			if entry.Var.Value == e.Path[0].Value || h.Name.Value == e.Path[0].Value || s.p.names.InGroup(h,
				e.Path[0].Value) {
				for _, f := range h.Fields {
					if f.Name.Value == v.field.f.Name.Value && f.Bytes != size {
						return 0
					}
				}
			}
		}
	}
	return size
}

// leveled returns the member with a value for each level of priority that an expression names, or nil.
func (s *scope) leveled(e *spec.Expr) (*ir.Row, *ir.Member) {
	if e.Op != spec.OpName || len(e.Path) != 2 || s.self != nil {
		return nil, nil
	}
	if _, named := s.named[e.Path[0].Value]; named {
		return nil, nil
	}
	r := s.rows[e.Path[0].Value]
	if r == nil {
		return nil, nil
	}
	if m := r.Table.Value.Member(e.Path[1].Value); m != nil && m.Type.Levels > 0 {
		return r, m
	}
	return nil, nil
}

// ofLevel is ROW.MEMBER[LEVEL].
func (s *scope) ofLevel(r *ir.Row, m *ir.Member, e *spec.Expr) (val, bool) {
	if !s.there(r, e.Args[0]) {
		return val{}, false
	}
	level, ok := s.integer(e.Args[1])
	if !ok {
		return val{}, false
	}
	if level.max >= uint64(m.Type.Levels) {
		s.fail(code.Range, e.Args[1].Pos, "the value may be up to %d, but there are %d levels", level.max,
			m.Type.Levels)
		return val{}, false
	}
	v := s.memberOf(r, m, level.x)
	v.pos = e.Pos
	return v, true
}
