package expr

import (
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass turns constraints into conditions. A match on a header that a path doesn't have is not an error: such a
// packet doesn't match.

// Match lowers FIELD: CONSTRAINT to a condition.
func (s *Scope) Match(m *spec.FieldMatch) ir.Expr {
	if _, row := s.Rows[m.Field.Path[0].Value]; row || m.Field.Path[0].Value == "setting" {
		s.Fail(code.Type, m.Field.Pos, "a match is about the packet, not about state").
			WithHint("write it as a condition: when: \"…\"")
		return fold.Bool(false)
	}
	if len(m.Field.Path) > 1 {
		if in, known := s.Find(m.Field.Path[0].Value); in == nil && known {
			return fold.Bool(false)
		}
	}
	v, ok := s.Value(m.Field)
	if !ok {
		return fold.Bool(false)
	}
	cond := s.Constraint(v, m.Is)
	if cond == nil {
		return fold.Bool(true)
	}
	return cond
}

// Constraint lowers what a value has to be; nil means that it always is.
func (s *Scope) Constraint(v Value, k *spec.Constraint) ir.Expr {
	switch v.Type.Kind {
	case ir.Uint:
		if !s.intLiterals(k) {
			return fold.Bool(false)
		}
		limit := ranges.Max(64)
		if v.Field != nil {
			limit = v.Max
		}
		rs := ranges.Of(k, limit).Ranges()
		if len(rs) == 0 {
			s.Fail(code.Constraint, k.Pos, "no value of %d bits can be this", v.Type.Bits)
			return fold.Bool(false)
		}
		var cond ir.Expr
		for i, r := range rs {
			c := within(v.X, r, limit)
			if i == 0 {
				cond = c
				continue
			}
			cond = fold.Or(cond, c)
		}
		return cond
	case ir.Bool:
		if k.Op == spec.IsEq && k.Value.Kind == spec.LitBool {
			if k.Value.Bool {
				return v.X
			}
			return fold.Not(v.X)
		}
		s.Fail(code.Type, k.Pos, "a condition is true or false")
		return fold.Bool(false)
	}
	return s.bytesConstraint(v, k)
}

// within holds if x is in a range; nil if it always is.
func within(x ir.Expr, r ir.Range, limit uint64) ir.Expr {
	if r.Min == r.Max {
		return fold.Bin(ir.Eq, x, fold.Num(r.Min))
	}
	var cond ir.Expr
	if r.Min > 0 {
		cond = fold.Bin(ir.Ge, x, fold.Num(r.Min))
	}
	if r.Max < limit {
		cond = fold.And(cond, fold.Bin(ir.Le, x, fold.Num(r.Max)))
	}
	return cond
}

func (s *Scope) intLiterals(k *spec.Constraint) bool {
	ok := true
	for _, a := range k.Args {
		ok = s.intLiterals(a) && ok
	}
	if len(k.Args) == 0 && k.Value.Kind != spec.LitInt {
		s.Fail(code.Type, k.Pos, "this has to be an integer")
		return false
	}
	return ok
}

// bytesConstraint lowers literals, != and disjunctions on addresses, endpoints and bytes.
func (s *Scope) bytesConstraint(v Value, k *spec.Constraint) ir.Expr {
	switch k.Op {
	case spec.IsAnd, spec.IsOr:
		var cond ir.Expr
		for i, a := range k.Args {
			c := s.bytesConstraint(v, a)
			switch {
			case i == 0:
				cond = c
			case k.Op == spec.IsAnd:
				cond = fold.And(cond, c)
			default:
				cond = fold.Or(cond, c)
			}
		}
		return cond
	case spec.IsEq:
		return s.equals(v, k.Value, k.Pos)
	case spec.IsNe:
		return fold.Not(s.equals(v, k.Value, k.Pos))
	}
	s.Fail(code.Type, k.Pos, "%s has no order: only values, != and | are possible", v.Type.What())
	return fold.Bool(false)
}

func (s *Scope) equals(v Value, l spec.Literal, pos diag.Pos) ir.Expr {
	bad := func(hint string) ir.Expr {
		s.Fail(code.Type, pos, "this isn't %s", v.Type.What()).WithHint("%s", hint)
		return fold.Bool(false)
	}
	if l.Kind != spec.LitString {
		return bad("write it as a string")
	}
	switch v.Type.Kind {
	case ir.Addr:
		if p, err := literal.Prefix(l.Text); err == nil {
			return &ir.InPrefix{X: v.X, Prefix: literal.Mapped(p)}
		}
		a, err := literal.Addr(l.Text)
		if err != nil {
			return bad("addresses are written \"192.0.2.1\", prefixes \"192.0.2.0/24\"")
		}
		return &ir.BytesEq{X: v.X, Y: addrConst(a)}
	case ir.Endpoint:
		ap, err := literal.Endpoint(l.Text)
		if err != nil {
			return bad("endpoints are written \"192.0.2.1:3478\" or \"[2001:db8::1]:3478\"")
		}
		return fold.And(&ir.BytesEq{X: v.X, Y: addrConst(ap.Addr())}, fold.Bin(ir.Eq, v.Port,
			fold.Num(uint64(ap.Port()))))
	case ir.Mac:
		m, err := literal.Mac(l.Text)
		if err != nil {
			return bad("link-layer addresses are written \"02:00:00:00:00:01\"")
		}
		return &ir.BytesEq{X: v.X, Y: &ir.BytesConst{B: m, T: ir.MacType}}
	case ir.Bytes:
		b, err := literal.Bytes(l.Text, v.Type.Size)
		if v.X == nil || err != nil {
			return bad("bytes of a fixed size are written as hexadecimal digits, two a byte")
		}
		return &ir.BytesEq{X: v.X, Y: &ir.BytesConst{B: b, T: v.Type}}
	}
	return bad("it can't be compared with a literal")
}

func addrConst(a netip.Addr) ir.Expr {
	b := a.As16()
	return &ir.BytesConst{B: b[:], T: ir.AddrType}
}
