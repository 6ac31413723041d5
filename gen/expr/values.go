package expr

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This file pairs expressions up with the members of a key, a value or an event.

// Values checks expressions against the visible members of a struct and pairs them up.
func (s *Scope) Values(kind, name string, declared diag.Pos, st *ir.Struct, es []*spec.Expr, pos diag.Pos,
	what string) ([]ir.MemberValue, bool) {
	var members []*ir.Member
	for _, m := range st.Members {
		if !m.Hidden {
			members = append(members, m)
		}
	}
	if len(members) != len(es) {
		s.Program.Diags.Add(code.Key, pos, "the %s of %s %q has %d members, not %d", what, kind, name, len(members),
			len(es)).
			WithRelated(declared, "the %s is declared here", kind)
		return nil, false
	}
	ok := true
	var out []ir.MemberValue
	for i, m := range members {
		v, good := s.Value(es[i])
		if !good {
			ok = false
			continue
		}
		mv, good := s.MemberValue(m, v, "member \""+m.Name+"\" of "+kind+" \""+name+"\"")
		ok = ok && good
		out = append(out, mv...)
	}
	return out, ok
}

// MemberValue checks a value against a member, and pairs them up.
func (s *Scope) MemberValue(m *ir.Member, v Value, what string) ([]ir.MemberValue, bool) {
	mismatch := func() ([]ir.MemberValue, bool) {
		d := s.Fail(code.Type, v.Pos, "this is %s, but %s is %s", v.Type.What(), what, m.Type.What())
		switch {
		case v.Type.Kind == ir.Endpoint:
			d.WithHint("an endpoint has the parts .addr and .port")
		case v.Type.Kind == ir.Bytes && m.Type.Kind == ir.Bytes:
			d.WithHint("%s", sameLength(s.Program, max(v.Type.Size, m.Type.Size)))
		}
		return nil, false
	}
	switch m.Type.Kind {
	case ir.Uint:
		if v.Type.Kind != ir.Uint {
			return mismatch()
		}
		if !s.fitsMember(v, m, what) {
			return nil, false
		}
	case ir.Endpoint:
		if v.Type.Kind != ir.Endpoint {
			return mismatch()
		}
		return []ir.MemberValue{{Member: m, Component: ir.AddrOf, Value: v.X},
			{Member: m, Component: ir.PortOf, Value: v.Port}}, true
	case ir.Prefix:
		if v.Type.Kind != ir.Addr {
			return mismatch()
		}
	default:
		if v.Type.Kind != m.Type.Kind || v.Type.Size != m.Type.Size || v.X == nil {
			return mismatch()
		}
	}
	return []ir.MemberValue{{Member: m, Value: v.X}}, true
}

// sameLength says what to do about byte strings of different lengths, of at most size bytes.
func sameLength(p *draft.Program, size int) string {
	const rule = "byte strings are neither padded nor cut"
	i := slices.IndexFunc(p.Src.Stack, func(e *spec.StackEntry) bool { return e.ByLookup })
	switch {
	case i < 0:
		return rule + ": both need the same number of bytes"
	case size <= 8:
		return rule + ", integers are padded: give the fields bits in place of bytes, the member the type \"u64\", " +
			"and the table a member for the length"
	}
	var bits, types []string
	for ; size > 0; size -= 8 {
		n := strconv.Itoa(8 * min(size, 8))
		bits, types = append(bits, n), append(types, `"u`+n+`"`)
	}
	e := p.Src.Stack[i]
	return fmt.Sprintf("%s, integers are padded: split the fields into a, b, … of %s bits, as far as they go, with "+
		"members of types %s, and one for the length; where a header has no b, look up 0: pick(%s, %s.b, 0)",
		rule, strings.Join(bits, ", "), strings.Join(types, ", "), e.Headers[0].Value, e.Var.Value)
}
