package gen

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives the names in an expression their meaning, checks types, and lowers the expression. Every integer carries an
// upper bound of its value, so that a store into a narrower field can be proven. A row of an optional lookup may only be read
// where the condition in front of it has made sure that the row is there ("facts").

// scope is where names are looked up: the headers of a path, the rows found so far, and what is known of them.
type scope struct {
	*program
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
	layer   *layer // a header
	absent  bool   // a header that is not on this path
	field   *fieldRef
	portAt  *fieldRef // endpoint made of fields
	pos     diag.Pos
	counter bool
	wraps   bool // a result of arithmetic, which may be meant to wrap around
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

func typeName(t ir.Type) string {
	switch t.Kind {
	case ir.Uint:
		return "an integer"
	case ir.Bool:
		return "a condition"
	case ir.Mac:
		return "a link-layer address"
	case ir.Addr:
		return "an IP address"
	case ir.Endpoint:
		return "an endpoint (address and port)"
	case ir.Prefix:
		return "a prefix"
	case ir.NextHop:
		return "a next hop"
	case ir.Ctr:
		return "a counter"
	case ir.Credit, ir.Bucket:
		return "a credit"
	case ir.Translation:
		return "a translation"
	}
	if t.Size == 0 {
		return "bytes of variable length"
	}
	return fmt.Sprintf("%d bytes", t.Size)
}

func (s *scope) fail(code diag.Code, pos diag.Pos, format string, args ...any) *diag.Diagnostic {
	if s.quiet {
		return &diag.Diagnostic{}
	}
	return s.diags.Add(code, pos, format, args...)
}

// cond lowers a condition.
func (s *scope) cond(e *spec.Expr) (ir.Expr, bool) {
	v, ok := s.value(e)
	if !ok {
		return nil, false
	}
	if v.t.Kind != ir.Bool {
		s.fail(codeType, e.Pos, "this is %s, where a condition is wanted", typeName(v.t)).WithHint("compare it with something: … != 0")
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
		d := s.fail(codeType, e.Pos, "this is %s, where an integer is wanted", typeName(v.t))
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
		return val{t: ir.UintType(64), x: num(e.Int), max: e.Int, pos: e.Pos}, true
	case spec.OpBool:
		return val{t: ir.BoolType, x: boolean(e.Int != 0), pos: e.Pos}, true
	case spec.OpName:
		v, ok := s.name(e)
		v.pos = e.Pos
		return v, ok
	case spec.OpIndex:
		return s.index(e)
	case spec.OpCall:
		return s.call(e)
	case spec.OpNot:
		x, ok := s.cond(e.Args[0])
		if !ok {
			return val{}, false
		}
		return val{t: ir.BoolType, x: not(x), pos: e.Pos}, true
	case spec.OpInv:
		v, ok := s.integer(e.Args[0])
		return val{t: ir.UintType(64), x: orNil(ok, func() ir.Expr { return bin(ir.Xor, v.x, num(^uint64(0))) }), max: ^uint64(0), pos: e.Pos, wraps: true}, ok
	case spec.OpNeg:
		v, ok := s.integer(e.Args[0])
		return val{t: ir.UintType(64), x: orNil(ok, func() ir.Expr { return bin(ir.Sub, num(0), v.x) }), max: ^uint64(0), pos: e.Pos, wraps: true}, ok
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
	if v, c := constant(x); c && (v != 0) != isAnd {
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
		return val{t: ir.BoolType, x: and(x, y), pos: e.Pos}, true
	}
	return val{t: ir.BoolType, x: or(x, y), pos: e.Pos}, true
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
	spec.OpMul: ir.Mul, spec.OpDiv: ir.Div, spec.OpRem: ir.Rem, spec.OpShl: ir.Shl, spec.OpShr: ir.Shr, spec.OpAnd: ir.And,
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
		return val{t: ir.UintType(64), x: bin(ir.And, x.x, bin(ir.Xor, y.x, num(^uint64(0)))), max: x.max, pos: e.Pos}, true
	}
	op := binOps[e.Op]
	c, fixed := constant(y.x)
	switch op {
	case ir.Div, ir.Rem:
		if !fixed || c == 0 {
			s.fail(codeDivide, e.Args[1].Pos, "the divisor has to be a constant other than 0")
			return val{}, false
		}
	case ir.Shl, ir.Shr:
		if !fixed || c > 63 {
			s.fail(codeDivide, e.Args[1].Pos, "the number of bits to shift by has to be a constant below 64")
			return val{}, false
		}
	}
	if op >= ir.Eq {
		return val{t: ir.BoolType, x: bin(op, x.x, y.x), pos: e.Pos}, true
	}
	wraps := op == ir.Add || op == ir.Sub || op == ir.Mul || op == ir.Shl || x.wraps || y.wraps
	return val{t: ir.UintType(64), x: bin(op, x.x, y.x), max: upper(op, x.max, y.max, c), pos: e.Pos, wraps: wraps}, true
}

// upper returns an upper bound of an operation on values up to a and b; c is the right side where it is constant.
func upper(op ir.BinOp, a, b, c uint64) uint64 {
	const all = ^uint64(0)
	switch op {
	case ir.Add:
		if sum, carry := bits.Add64(a, b, 0); carry == 0 {
			return sum
		}
	case ir.Mul:
		if hi, lo := bits.Mul64(a, b); hi == 0 {
			return lo
		}
	case ir.Div:
		return a / c
	case ir.Rem:
		return min(a, c-1)
	case ir.And:
		return min(a, b)
	case ir.Or, ir.Xor:
		return maxOf(max(bits.Len64(a), bits.Len64(b)))
	case ir.Shr:
		return a >> c
	case ir.Shl:
		if bits.Len64(a)+int(c) <= 64 {
			return a << c
		}
	}
	return all
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
		eq = bin(ir.Eq, x.x, y.x)
	case x.t.Kind == ir.Endpoint && y.t.Kind == ir.Endpoint:
		eq = and(&ir.BytesEq{X: x.x, Y: y.x}, bin(ir.Eq, x.port, y.port))
	case x.t.Kind == y.t.Kind && x.t.Size == y.t.Size && x.x != nil && y.x != nil && x.t.Kind <= ir.Addr:
		eq = &ir.BytesEq{X: x.x, Y: y.x}
	default:
		s.fail(codeType, e.Pos, "%s can't be compared with %s", typeName(x.t), typeName(y.t))
		return val{}, false
	}
	if e.Op == spec.OpNe {
		eq = not(eq)
	}
	return val{t: ir.BoolType, x: eq, pos: e.Pos}, true
}

// index is one byte of bytes.
func (s *scope) index(e *spec.Expr) (val, bool) {
	v, ok := s.value(e.Args[0])
	if !ok {
		return v, false
	}
	i, fixed := uint64(0), false
	if e.Args[1].Op == spec.OpInt {
		i, fixed = e.Args[1].Int, true
	}
	if v.x == nil || v.t.Kind < ir.Bytes || v.t.Kind > ir.Addr || !fixed || i >= uint64(v.t.Size) {
		s.fail(codeType, e.Pos, "an index is a constant, inside the %d bytes of what it follows", v.t.Size)
		return val{}, false
	}
	return val{t: ir.UintType(8), x: &ir.ByteAt{X: v.x, Index: int(i)}, max: 255, pos: e.Pos}, true
}

var functions = []string{"len", "low", "pick", "alloc", "translate", "has", "element"}

func (s *scope) call(e *spec.Expr) (val, bool) {
	args := func(n int) bool {
		if len(e.Args) != n {
			s.fail(codeType, e.Pos, "%s takes %d arguments, not %d", e.Fn.Value, n, len(e.Args))
			return false
		}
		return true
	}
	switch e.Fn.Value {
	case "low":
		if !args(2) {
			return val{}, false
		}
		v, ok := s.integer(e.Args[0])
		if !ok {
			return v, false
		}
		n := e.Args[1]
		if n.Op != spec.OpInt || n.Int < 1 || n.Int > 64 {
			s.fail(codeType, n.Pos, "low(x, n) takes a constant number of bits, 1 to 64")
			return val{}, false
		}
		m := maxOf(int(n.Int))
		if v.max <= m {
			return v, true
		}
		return val{t: ir.UintType(int(n.Int)), x: bin(ir.And, v.x, num(m)), max: m, pos: e.Pos}, true
	case "len":
		if !args(1) {
			return val{}, false
		}
		return s.length(e.Args[0])
	case "pick":
		return s.pick(e)
	case "alloc":
		return s.alloc(e)
	case "translate":
		return s.translate(e)
	case "has", "element":
		return s.element(e)
	}
	suggest(s.fail(codeUnknownName, e.Fn.Pos, "no function %q", e.Fn.Value), e.Fn.Value, functions).
		WithHint("functions are len(HEADER), len(HEADER.payload), len(HEADER.FIELD), low(x, n), pick(COND, x, y), alloc(ROW.COUNTER), translate(ROW.TRANSLATION, KEY, VALUE), has(HEADER.LIST, ID), element(HEADER.LIST, ID, N)")
	return val{}, false
}

// length is len(x) in bytes: of a header with what follows it, of a header's payload, or of a field.
func (s *scope) length(e *spec.Expr) (val, bool) {
	if e.Op == spec.OpName {
		if in, _ := s.find(e.Path[0].Value); in != nil {
			switch {
			case len(e.Path) == 1:
				return val{t: ir.UintType(64), x: bin(ir.Sub, in.inner0(), offExpr(in.off)), max: in.most(in.inner0(), in.off), pos: e.Pos}, true
			case len(e.Path) == 2 && e.Path[1].Value == "payload" && in.fields["payload"] == nil:
				return val{t: ir.UintType(64), x: bin(ir.Sub, in.payload, offExpr(in.end)), max: in.most(in.payload, in.end), pos: e.Pos}, true
			}
		}
	}
	v, ok := s.value(e)
	if !ok {
		return v, false
	}
	switch {
	case v.field != nil && v.field.size != nil:
		return val{t: ir.UintType(64), x: v.field.size, max: maxVariable, pos: e.Pos}, true
	case v.field != nil && v.field.f.Kind == spec.FieldBytes:
		return val{t: ir.UintType(64), x: num(uint64(v.field.f.Bytes)), max: uint64(v.field.f.Bytes), pos: e.Pos}, true
	}
	s.fail(codeType, e.Pos, "len takes a header, HEADER.payload or a field made of bytes, and this is %s", typeName(v.t))
	return val{}, false
}

// most bounds the bytes from an offset of the header to an end: a length field bounds the end.
func (in *layer) most(end ir.Expr, from ir.Off) uint64 {
	v := varOf(end)
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

// find returns the header that a name stands for: what the stack calls it, its own name, or its group's. In a header's
// declaration, which knows nothing of stacks, it is the nearest one in front that is called so, or whose group is. known is
// false where no path of the program has it.
func (s *scope) find(name string) (in *layer, known bool) {
	if s.self != nil {
		for _, in := range slices.Backward(s.path) {
			if in.h.Name.Value == name || s.inGroup(in.h, name) {
				return in, true
			}
		}
		return nil, s.inStack(name)
	}
	for _, is := range []func(*layer) bool{
		func(in *layer) bool { return in.entry == name },
		func(in *layer) bool { return in.h.Name.Value == name },
		func(in *layer) bool { return s.inGroup(in.h, name) },
	} {
		if i := slices.IndexFunc(s.path, is); i >= 0 {
			return s.path[i], true
		}
	}
	return nil, s.inStack(name)
}

// inStack reports whether the program's stack has a header that a name stands for, on any path.
func (s *scope) inStack(name string) bool {
	return slices.ContainsFunc(s.src.Stack, func(e *spec.StackEntry) bool {
		return slices.ContainsFunc(s.choices(e), func(h *spec.Header) bool {
			return e.Var.Value == name || h.Name.Value == name || s.inGroup(h, name)
		})
	})
}

// name resolves a dotted name.
func (s *scope) name(e *spec.Expr) (val, bool) {
	first := e.Path[0]
	if s.self != nil {
		if pl := s.self.fields[first.Value]; pl != nil && len(e.Path) == 1 {
			return pl.val(), true
		}
	}
	switch first.Value {
	case "setting":
		return s.settingRef(e)
	case "skb":
		return s.skb(e)
	}
	if v, ok := s.named[first.Value]; ok && s.self == nil {
		return s.part(v, e, e.Path)
	}
	if r, ok := s.rows[first.Value]; ok {
		return s.member(r, e)
	}
	in, ok := s.find(first.Value)
	if !ok && first.Value == priorityName && len(e.Path) == 1 && s.self == nil {
		return s.priority(e.Pos)
	}
	if !ok {
		s.noName(first)
		return val{}, false
	}
	if len(e.Path) == 1 {
		return val{t: ir.BoolType, x: boolean(in != nil), layer: in, absent: in == nil}, true
	}
	if in == nil {
		s.fail(codeUnknownName, first.Pos, "header %q is not in every packet that comes here", first.Value).
			WithHint("ask for it first: %s && …", first.Value)
		return val{absent: true}, false
	}
	return s.fieldOf(in, e, e.Path[1:])
}

// noName reports a name that an expression can't begin with here. Where the spec has it in another place, that is said.
func (s *scope) noName(n spec.Name) {
	known := func(format string, args ...any) *diag.Diagnostic {
		return s.fail(codeUnknownName, n.Pos, format, args...)
	}
	switch {
	case s.lost[n.Value]: // its lookup is reported
	case s.self != nil && slices.ContainsFunc(s.self.h.Fields, func(f *spec.Field) bool { return f.Name.Value == n.Value }):
		known("field %q isn't known yet here", n.Value).WithHint("an expression of a header reads the fields in front of its own")
	case s.self == nil && n.Value == receiver && s.each == nil && len(s.spec.Groups) > 0:
		known("%q is the row of a receiver, which only the rules of a fan_out know", n.Value).
			WithHint("write the condition in the fan_out: rules: [{when: \"…\", do: […]}]")
	case s.headers[n.Value] != nil || s.groups[n.Value] != nil:
		var stack []string
		for _, e := range s.src.Stack {
			stack = append(stack, e.Var.Value)
		}
		known("header %q is not in the stack of program %q", n.Value, s.src.Name.Value).WithHint("its stack is %s", strings.Join(stack, ", "))
	default:
		suggest(known("no header, lookup or setting is called %q here", n.Value), n.Value, s.visible())
	}
}

// visible returns the names that an expression can begin with.
func (s *scope) visible() []string {
	names := []string{"setting", "skb"}
	for n := range s.rows {
		names = append(names, n)
	}
	for n := range s.named {
		names = append(names, n)
	}
	for _, e := range s.src.Stack {
		names = append(names, e.Var.Value)
	}
	for _, in := range s.path {
		names = append(names, in.h.Name.Value)
	}
	if s.self != nil {
		for _, pl := range s.self.order {
			names = append(names, pl.f.Name.Value)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fieldOf resolves what follows a header's name.
func (s *scope) fieldOf(in *layer, e *spec.Expr, rest []spec.Name) (val, bool) {
	n := rest[0]
	var v val
	if pl := in.fields[n.Value]; pl != nil {
		v = pl.val()
		if v.x == nil && len(rest) == 1 {
			return v, true // bytes of variable length: only len() can use them
		}
	} else if part := partOf(in.h, n.Value); part != nil {
		inside := &scope{program: s.program, path: s.upTo(in), self: in, quiet: s.quiet}
		if part.Alias != nil {
			a, ok := inside.value(part.Alias)
			if !ok {
				return a, false
			}
			v = a
		} else {
			a, ok1 := inside.value(part.Addr)
			p, ok2 := inside.value(part.Port)
			if !ok1 || !ok2 {
				return val{}, false
			}
			v = val{t: ir.Type{Kind: ir.Endpoint, Size: abi.EndpointSize}, x: a.x, port: p.x, field: a.field, portAt: p.field, max: p.max}
		}
	} else {
		var names []string
		for _, f := range in.h.Fields {
			names = append(names, f.Name.Value)
		}
		for _, p := range in.h.Parts {
			names = append(names, p.Name.Value)
		}
		d := s.fail(codeUnknownName, e.Pos, "no field %q in header %q", n.Value, in.h.Name.Value).WithRelated(in.h.Name.Pos, "the header is declared here")
		if other, both := s.elsewhere(in, n.Value); other == nil {
			suggest(d, n.Value, names)
		} else if both != "" {
			d.WithLabel("did you mean %q?", both).WithHint("%s and %s both have it", other.Name.Value, in.h.Name.Value)
		} else {
			d.WithHint("only %s has it: %s.%s", other.Name.Value, other.Name.Value, n.Value)
		}
		return val{}, false
	}
	return s.part(v, e, rest)
}

// elsewhere returns the header that has a field which in lacks, where it stands in the same place of the stack; and what both of them
// call such a field, or "".
func (s *scope) elsewhere(in *layer, field string) (other *spec.Header, both string) {
	for _, e := range s.src.Stack {
		if e.Var.Value != in.entry || in.entry == "" {
			continue
		}
		for _, h := range s.choices(e) {
			if h == in.h || !slices.ContainsFunc(h.Fields, func(f *spec.Field) bool { return f.Name.Value == field }) {
				continue
			}
			for _, p := range h.Parts {
				if p.Alias != nil && p.Alias.String() == field && (in.fields[p.Name.Value] != nil || partOf(in.h, p.Name.Value) != nil) {
					return h, p.Name.Value
				}
			}
			other = h
		}
	}
	return other, ""
}

// part resolves .addr and .port behind an endpoint.
func (s *scope) part(v val, e *spec.Expr, rest []spec.Name) (val, bool) {
	if len(rest) == 1 {
		return v, true
	}
	if v.t.Kind == ir.Endpoint && len(rest) == 2 {
		switch rest[1].Value {
		case "addr":
			return val{t: ir.AddrType, x: v.x, field: v.field, row: v.row, member: v.member}, true
		case "port":
			return val{t: ir.UintType(16), x: v.port, max: 0xFFFF, field: v.portAt, row: v.row, member: v.member}, true
		}
	}
	s.fail(codeUnknownName, rest[1].Pos, "%s has no part %q", typeName(v.t), rest[1].Value).WithHint("only endpoints have parts: .addr and .port")
	return val{}, false
}

func (s *scope) upTo(in *layer) []*layer {
	i := slices.Index(s.path, in)
	return s.path[:i+1]
}

func partOf(h *spec.Header, name string) *spec.Part {
	for _, p := range h.Parts {
		if p.Name.Value == name {
			return p
		}
	}
	return nil
}

func (s *scope) settingRef(e *spec.Expr) (val, bool) {
	if len(e.Path) != 2 {
		s.fail(codeUnknownName, e.Pos, "a setting is written setting.NAME")
		return val{}, false
	}
	n := e.Path[1]
	set := s.settings[n.Value]
	if set == nil {
		var names []string
		for _, x := range s.spec.Settings {
			names = append(names, x.Name.Value)
		}
		if slices.Contains(names, n.Value) {
			return val{}, false // its declaration is reported
		}
		suggest(s.fail(codeUnknownName, n.Pos, "no setting %q", n.Value), n.Value, names)
		return val{}, false
	}
	return val{t: set.Type, x: &ir.SettingRef{Setting: set}, max: set.Max}, true
}

var skbNames = map[string]ir.MetaKind{"len": ir.FrameLen, "mark": ir.SKBMark, "priority": ir.SKBPrio}

func (s *scope) skb(e *spec.Expr) (val, bool) {
	if len(e.Path) == 2 {
		if k, ok := skbNames[e.Path[1].Value]; ok {
			return val{t: ir.UintType(32), x: &ir.Meta{Kind: k}, max: 0xFFFF_FFFF}, true
		}
	}
	s.fail(codeUnknownName, e.Pos, "no such fact about a packet").WithHint("skb.len, skb.mark and skb.priority are the ones there are")
	return val{}, false
}

// member resolves ROW or ROW.MEMBER.
func (s *scope) member(r *ir.Row, e *spec.Expr) (val, bool) {
	if len(e.Path) == 1 {
		if !r.Optional || s.facts[r] {
			return val{t: ir.BoolType, x: boolean(true), row: r}, true
		}
		return val{t: ir.BoolType, x: &ir.RowHas{Row: r}, row: r}, true
	}
	n := e.Path[1]
	m := member(&r.Table.Value, n.Value)
	if m == nil {
		var names []string
		for _, m := range r.Table.Value.Members {
			if !m.Hidden {
				names = append(names, m.Name)
			}
		}
		suggest(s.fail(codeUnknownName, n.Pos, "table %q has no value %q", r.Table.Name, n.Value), n.Value, names).
			WithRelated(r.Table.Pos, "the table is declared here")
		return val{}, false
	}
	if r.Optional && !s.facts[r] {
		s.fail(codeMaybe, e.Pos, "row %q may be missing here", e.Path[0].Value).WithHint("ask for it first: %s && …", e.Path[0].Value)
		return val{}, false
	}
	v := val{t: m.Type, row: r, member: m, max: maxOf(m.Type.Bits)}
	switch m.Type.Kind {
	case ir.Endpoint:
		v.x = &ir.RowMember{Row: r, Member: m, Part: ir.PartAddr}
		v.port = &ir.RowMember{Row: r, Member: m, Part: ir.PartPort}
		v.max = 0xFFFF
	case ir.Ctr:
		v.t, v.x, v.max, v.counter = ir.UintType(64), &ir.CounterValue{Row: r, Member: m}, ^uint64(0), true
	case ir.NextHop, ir.Credit, ir.Bucket, ir.Translation:
		v.max = 0
	default:
		v.x = &ir.RowMember{Row: r, Member: m}
	}
	return s.part(v, e, e.Path[1:])
}

// member returns the visible member of a struct with a name, or nil.
func member(st *ir.Struct, name string) *ir.Member {
	for _, m := range st.Members {
		if m.Name == name && !m.Hidden {
			return m
		}
	}
	return nil
}

// fits checks that an integer fits so many bits. widen says how there would be room for a value of more; "" where there can't be. What
// identifies something must not be cut, so only a number that arithmetic made, and that is no part of a key, is said to be cut with low.
func (s *scope) fits(v val, width int, what, widen string, key bool) *diag.Diagnostic {
	if v.max <= maxOf(width) {
		return nil
	}
	need := bits.Len64(v.max)
	if c, fixed := constant(v.x); fixed {
		return s.fail(codeRange, v.pos, "%d doesn't fit the %d bits of %s", c, width, what).WithHint("it holds 0 to %d", maxOf(width))
	}
	hint := widen
	if widen == "" {
		hint = fmt.Sprintf("it can't be made wider: give it a value that always fits, such as a part of this one: … >> %d", need-width)
	}
	if v.wraps && !key {
		hint += fmt.Sprintf("\na number that may wrap around: low(…, %d)", width)
	}
	return s.fail(codeRange, v.pos, "the value may be up to %d, but %s has %d bits", v.max, what, width).WithHint("%s", hint)
}

// fitsField is fits for a field of a header, which a message calls name.
func (s *scope) fitsField(v val, f *spec.Field, name string) bool {
	widen := ""
	for _, h := range s.spec.Headers {
		if !h.Std && slices.Contains(h.Fields, f) {
			widen = fmt.Sprintf("give the field more bits: {name: %q, bits: %d}", f.Name.Value, bits.Len64(v.max))
		}
	}
	d := s.fits(v, f.Bits, name, widen, false)
	if d != nil && widen != "" {
		d.WithRelated(f.Name.Pos, "the field is declared here")
	}
	return d == nil
}

// fitsMember is fits for a member of a table, a group or an event, which a message calls name. Members of a session's table are widened
// where the session declares them.
func (s *scope) fitsMember(v val, m *ir.Member, name string) bool {
	of, declared, key := "", m.Pos, false
	for _, t := range s.plan.Tables {
		in := slices.Contains(t.Key.Members, m)
		key = key || in
		if t.Session == nil || !in && !slices.Contains(t.Value.Members, m) {
			continue
		}
		of = fmt.Sprintf(" of session %q", t.Session.Name)
		for _, src := range s.spec.Sessions {
			for _, f := range src.Fields {
				if src.Name.Value == t.Session.Name && f.Name.Value == m.Name {
					declared = f.Name.Pos
				}
			}
		}
	}
	for _, g := range s.plan.Groups {
		key = key || slices.Contains(g.Key.Members, m)
	}
	wide := max(8, 1<<bits.Len(uint(bits.Len64(v.max)-1))) // 8, 16, 32 or 64
	d := s.fits(v, m.Type.Bits, name, fmt.Sprintf("make %q%s wider: \"u%d\"", m.Name, of, wide), key)
	if d != nil {
		d.WithRelated(declared, "it is declared here")
	}
	return d == nil
}

// suggest adds the name that was probably meant, or else the names that there are.
func suggest(d *diag.Diagnostic, word string, words []string) *diag.Diagnostic {
	if n := spell.Nearest(word, words); n != "" {
		return d.WithLabel("did you mean \"%s\"?", n)
	}
	if len(words) > 0 && len(words) <= 12 {
		return d.WithHint("there are: %s", strings.Join(words, ", "))
	}
	return d
}
