package expr

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds what a name in an expression stands for: a header, a field, a row and its members, a setting, a fact
// about the packet, or a value that the rule has named.

// Find returns the header that a name stands for: what the stack calls it, its own name, or its group's. In a header's
// declaration, which knows nothing of stacks, it is the nearest one in front that is called so, or whose group is.
// known is false if no path of the program has it.
func (s *Scope) Find(name string) (in *draft.Header, known bool) {
	if s.Self != nil {
		for _, in := range slices.Backward(s.Path) {
			if in.Decl.Name.Value == name || s.Program.Names.InGroup(in.Decl, name) {
				return in, true
			}
		}
		return nil, s.InStack(name)
	}
	for _, is := range []func(*draft.Header) bool{
		func(in *draft.Header) bool { return in.Entry == name },
		func(in *draft.Header) bool { return in.Decl.Name.Value == name },
		func(in *draft.Header) bool { return s.Program.Names.InGroup(in.Decl, name) },
	} {
		if i := slices.IndexFunc(s.Path, is); i >= 0 {
			return s.Path[i], true
		}
	}
	return nil, s.InStack(name)
}

// InStack reports whether the program's stack has a header that a name stands for, on any path.
func (s *Scope) InStack(name string) bool {
	return slices.ContainsFunc(s.Program.Src.Stack, func(e *spec.StackEntry) bool {
		return slices.ContainsFunc(s.Program.Names.Choices(e), func(h *spec.Header) bool {
			return e.Var.Value == name || h.Name.Value == name || s.Program.Names.InGroup(h, name)
		})
	})
}

// name resolves a dotted name.
func (s *Scope) name(e *spec.Expr) (Value, bool) {
	first := e.Path[0]
	if s.Self != nil {
		if pl := s.Self.Fields[first.Value]; pl != nil && len(e.Path) == 1 {
			return ValueOf(pl), true
		}
	}
	switch first.Value {
	case "setting":
		return s.settingRef(e)
	case "skb":
		return s.skb(e)
	}
	if v, ok := s.Named[first.Value]; ok && s.Self == nil {
		return s.part(v, e.Path)
	}
	if r, ok := s.Rows[first.Value]; ok {
		return s.member(r, e)
	}
	in, ok := s.Find(first.Value)
	if !ok && len(e.Path) == 1 && s.Self == nil {
		if first.Value == priorityName {
			return s.priority(e.Pos)
		}
		if x := ir.Asked(first.Value); x != nil {
			return s.condition(x, first.Value, e.Pos)
		}
	}
	if !ok {
		s.noName(first)
		return Value{}, false
	}
	if len(e.Path) == 1 {
		return Value{Type: ir.BoolType, X: fold.Bool(in != nil), Layer: in, absent: in == nil}, true
	}
	if in == nil {
		s.Fail(code.UnknownName, first.Pos, "header %q is not in every packet that comes here", first.Value).
			WithHint("ask for it first: %s && …", first.Value)
		return Value{absent: true}, false
	}
	return s.fieldOf(in, e, e.Path[1:])
}

// noName reports a name that an expression can't begin with here. Where the spec has it in another place, that is said.
func (s *Scope) noName(n spec.Name) {
	known := func(format string, args ...any) *diag.Diagnostic {
		return s.Fail(code.UnknownName, n.Pos, format, args...)
	}
	switch {
	case s.Program.Lost[n.Value]: // its lookup is reported
	case s.Self != nil && slices.ContainsFunc(s.Self.Decl.Fields, func(f *spec.Field) bool {
		return f.Name.Value == n.Value
	}):
		known("field %q isn't known yet here", n.Value).
			WithHint("an expression of a header reads the fields in front of its own")
	case s.Self == nil && n.Value == declare.Receiver && s.Each == nil:
		known("%q is the row of a receiver, which only the rules of a fan_out know", n.Value).
			WithHint("what reads %q is written in the fan_out: rules: [{when: \"…\", do: […]}]", n.Value)
	case s.Program.Names.Headers[n.Value] != nil || s.Program.Names.Alternatives[n.Value] != nil:
		var stack []string
		for _, e := range s.Program.Src.Stack {
			stack = append(stack, e.Var.Value)
		}
		known("header %q is not in the stack of program %q", n.Value, s.Program.Src.Name.Value).
			WithHint("its stack is %s", strings.Join(stack, ", "))
	default:
		known("no header, lookup or setting is called %q here", n.Value).WithNames(n.Value, s.Visible())
	}
}

// Visible returns the names that an expression can begin with.
func (s *Scope) Visible() []string {
	names := []string{"setting", "skb"}
	for n := range s.Rows {
		names = append(names, n)
	}
	for n := range s.Named {
		names = append(names, n)
	}
	for _, e := range s.Program.Src.Stack {
		names = append(names, e.Var.Value)
	}
	for _, in := range s.Path {
		names = append(names, in.Decl.Name.Value)
	}
	if s.Self != nil {
		for _, pl := range s.Self.Order {
			names = append(names, pl.Decl.Name.Value)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fieldOf resolves what follows a header's name.
func (s *Scope) fieldOf(in *draft.Header, e *spec.Expr, rest []spec.Name) (Value, bool) {
	n := rest[0]
	var v Value
	if pl := in.Fields[n.Value]; pl != nil {
		v = ValueOf(pl)
		if v.X == nil && len(rest) == 1 {
			return v, true // bytes of variable length: only len() can use them
		}
	} else if part := partOf(in.Decl, n.Value); part != nil {
		inside := &Scope{Program: s.Program, Path: s.UpTo(in), Self: in, Diags: s.Diags}
		if part.Alias != nil {
			a, ok := inside.Value(part.Alias)
			if !ok {
				return a, false
			}
			v = a
		} else {
			a, ok1 := inside.Value(part.Addr)
			p, ok2 := inside.Value(part.Port)
			if !ok1 || !ok2 {
				return Value{}, false
			}
			v = Value{
				Type: ir.Type{Kind: ir.Endpoint, Size: 18}, X: a.X, Port: p.X, Field: a.Field, PortAt: p.Field,
				Max: p.Max,
			}
		}
	} else {
		var names []string
		for _, f := range in.Decl.Fields {
			names = append(names, f.Name.Value)
		}
		for _, p := range in.Decl.Parts {
			names = append(names, p.Name.Value)
		}
		d := s.Fail(code.UnknownName, e.Pos, "no field %q in header %q", n.Value, in.Decl.Name.Value).
			WithRelated(in.Decl.Name.Pos, "the header is declared here")
		if other, both := s.elsewhere(in, n.Value); other == nil {
			d.WithNames(n.Value, names)
		} else if both != "" {
			d.WithLabel("did you mean %q?", both).WithHint("%s and %s both have it", other.Name.Value,
				in.Decl.Name.Value)
		} else {
			d.WithHint("only %s has it: %s.%s", other.Name.Value, other.Name.Value, n.Value)
		}
		return Value{}, false
	}
	return s.part(v, rest)
}

// elsewhere returns the header that has a field which in lacks, if it is in the same place of the stack; and
// what both of them call such a field, or "".
func (s *Scope) elsewhere(in *draft.Header, field string) (other *spec.Header, both string) {
	for _, e := range s.Program.Src.Stack {
		if e.Var.Value != in.Entry || in.Entry == "" {
			continue
		}
		for _, h := range s.Program.Names.Choices(e) {
			if h == in.Decl || !slices.ContainsFunc(h.Fields,
				func(f *spec.Field) bool { return f.Name.Value == field }) {
				continue
			}
			for _, p := range h.Parts {
				if p.Alias != nil && p.Alias.String() == field &&
					(in.Fields[p.Name.Value] != nil || partOf(in.Decl, p.Name.Value) != nil) {
					return h, p.Name.Value
				}
			}
			other = h
		}
	}
	return other, ""
}

// part resolves .addr and .port after an endpoint.
func (s *Scope) part(v Value, rest []spec.Name) (Value, bool) {
	if len(rest) == 1 {
		return v, true
	}
	if v.Type.Kind == ir.Endpoint && len(rest) == 2 {
		switch rest[1].Value {
		case "addr":
			return Value{Type: ir.AddrType, X: v.X, Field: v.Field, Row: v.Row, Member: v.Member, Level: v.Level}, true
		case "port":
			return Value{
				Type: ir.UintType(16), X: v.Port, Max: 0xFFFF, Field: v.PortAt, Row: v.Row, Member: v.Member,
				Level: v.Level,
			}, true
		}
	}
	s.Fail(code.UnknownName, rest[1].Pos, "%s has no part %q", v.Type.What(), rest[1].Value).
		WithHint("only endpoints have parts: .addr and .port")
	return Value{}, false
}

// UpTo is the path up to a header.
func (s *Scope) UpTo(in *draft.Header) []*draft.Header {
	i := slices.Index(s.Path, in)
	return s.Path[:i+1]
}

func partOf(h *spec.Header, name string) *spec.Part {
	for _, p := range h.Parts {
		if p.Name.Value == name {
			return p
		}
	}
	return nil
}

func (s *Scope) settingRef(e *spec.Expr) (Value, bool) {
	if len(e.Path) != 2 {
		s.Fail(code.UnknownName, e.Pos, "a setting is written setting.NAME")
		return Value{}, false
	}
	n := e.Path[1]
	set := s.Program.Names.Settings[n.Value]
	if set == nil {
		var names []string
		for _, x := range s.Program.Names.Spec.Settings {
			names = append(names, x.Name.Value)
		}
		if slices.Contains(names, n.Value) {
			return Value{}, false // its declaration is reported
		}
		s.Fail(code.UnknownName, n.Pos, "no setting %q", n.Value).WithNames(n.Value, names)
		return Value{}, false
	}
	return Value{Type: set.Type, X: &ir.SettingRef{Setting: set}, Max: set.Max}, true
}

func (s *Scope) skb(e *spec.Expr) (Value, bool) {
	if s.Program.Congestion() {
		s.Fail(code.Congestion, e.Pos, "there is no packet at %s", ir.Congestion).
			WithHint("what there is are the fields of socket, such as socket.in_flight")
		return Value{}, false
	}
	if x := ir.Asked(e.String()); x != nil {
		return Value{Type: ir.UintType(32), X: x, Max: 0xFFFF_FFFF}, true
	}
	s.Fail(code.UnknownName, e.Pos, "no such fact about a packet").
		WithHint("skb.len, skb.mark and skb.priority are the ones there are")
	return Value{}, false
}

// member resolves ROW or ROW.MEMBER.
func (s *Scope) member(r *ir.Row, e *spec.Expr) (Value, bool) {
	if len(e.Path) == 1 {
		if !r.Optional || s.Facts[r] {
			return Value{Type: ir.BoolType, X: fold.Bool(true), Row: r}, true
		}
		return Value{Type: ir.BoolType, X: &ir.RowHas{Row: r}, Row: r}, true
	}
	n := e.Path[1]
	m := r.Table.Value.Member(n.Value)
	if m == nil {
		var names []string
		for _, m := range r.Table.Value.Members {
			if !m.Hidden {
				names = append(names, m.Name)
			}
		}
		s.Fail(code.UnknownName, n.Pos, "table %q has no value %q", r.Table.Name, n.Value).WithNames(n.Value, names).
			WithRelated(r.Table.Pos, "the table is declared here")
		return Value{}, false
	}
	if !s.there(r, e) {
		return Value{}, false
	}
	if m.Type.Levels > 0 {
		s.Fail(code.Priority, e.Pos, "%q has a value for each level of priority", m.Name).
			WithHint("say which one: %s.%s[priority]", e.Path[0].Value, m.Name)
		return Value{}, false
	}
	return s.part(s.memberOf(r, m, nil), e.Path[1:])
}

// there makes sure that a row which an expression names is there.
func (s *Scope) there(r *ir.Row, e *spec.Expr) bool {
	if r.Optional && !s.Facts[r] {
		s.Fail(code.Maybe, e.Pos, "row %q may be missing here", e.Path[0].Value).
			WithHint("ask for it first: %s && …", e.Path[0].Value)
		return false
	}
	return true
}

// memberOf is the value of a member of a row; of one with a value for each level, that of a level.
func (s *Scope) memberOf(r *ir.Row, m *ir.Member, level ir.Expr) Value {
	v := Value{Type: m.Type.One(), Row: r, Member: m, Level: level, Max: ranges.Max(m.Type.Bits)}
	switch m.Type.Kind {
	case ir.Endpoint:
		v.X = &ir.RowMember{Row: r, Member: m, Component: ir.AddrOf, Level: level}
		v.Port = &ir.RowMember{Row: r, Member: m, Component: ir.PortOf, Level: level}
		v.Max = 0xFFFF
	case ir.Ctr:
		v.Type, v.X, v.Max, v.Counter = ir.UintType(64), &ir.CounterValue{Row: r, Member: m}, ^uint64(0), true
	case ir.NextHop, ir.Credit, ir.Bucket, ir.Translation:
		v.Max = 0
	default:
		v.X = &ir.RowMember{Row: r, Member: m, Level: level}
	}
	return v
}
