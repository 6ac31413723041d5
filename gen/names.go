package gen

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds what a name in an expression stands for: a header, a field, a row and its members, a setting, a fact
// about the packet, or a value that the rule has named.

// find returns the header that a name stands for: what the stack calls it, its own name, or its group's. In a header's
// declaration, which knows nothing of stacks, it is the nearest one in front that is called so, or whose group is.
// known is false where no path of the program has it.
func (s *scope) find(name string) (in *layer, known bool) {
	if s.self != nil {
		for _, in := range slices.Backward(s.path) {
			if in.h.Name.Value == name || s.p.names.InGroup(in.h, name) {
				return in, true
			}
		}
		return nil, s.inStack(name)
	}
	for _, is := range []func(*layer) bool{
		func(in *layer) bool { return in.entry == name },
		func(in *layer) bool { return in.h.Name.Value == name },
		func(in *layer) bool { return s.p.names.InGroup(in.h, name) },
	} {
		if i := slices.IndexFunc(s.path, is); i >= 0 {
			return s.path[i], true
		}
	}
	return nil, s.inStack(name)
}

// inStack reports whether the program's stack has a header that a name stands for, on any path.
func (s *scope) inStack(name string) bool {
	return slices.ContainsFunc(s.p.src.Stack, func(e *spec.StackEntry) bool {
		return slices.ContainsFunc(s.p.names.Choices(e), func(h *spec.Header) bool {
			return e.Var.Value == name || h.Name.Value == name || s.p.names.InGroup(h, name)
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
		return s.part(v, e.Path)
	}
	if r, ok := s.rows[first.Value]; ok {
		return s.member(r, e)
	}
	in, ok := s.find(first.Value)
	if !ok && len(e.Path) == 1 && s.self == nil {
		switch first.Value {
		case priorityName:
			return s.priority(e.Pos)
		case lapsedName:
			return s.lapsed(e.Pos)
		}
	}
	if !ok {
		s.noName(first)
		return val{}, false
	}
	if len(e.Path) == 1 {
		return val{t: ir.BoolType, x: fold.Bool(in != nil), layer: in, absent: in == nil}, true
	}
	if in == nil {
		s.fail(code.UnknownName, first.Pos, "header %q is not in every packet that comes here", first.Value).
			WithHint("ask for it first: %s && …", first.Value)
		return val{absent: true}, false
	}
	return s.fieldOf(in, e, e.Path[1:])
}

// noName reports a name that an expression can't begin with here. Where the spec has it in another place, that is said.
func (s *scope) noName(n spec.Name) {
	known := func(format string, args ...any) *diag.Diagnostic {
		return s.fail(code.UnknownName, n.Pos, format, args...)
	}
	switch {
	case s.p.lost[n.Value]: // its lookup is reported
	case s.self != nil && slices.ContainsFunc(s.self.h.Fields, func(f *spec.Field) bool {
		return f.Name.Value == n.Value
	}):
		known("field %q isn't known yet here", n.Value).
			WithHint("an expression of a header reads the fields in front of its own")
	case s.self == nil && n.Value == declare.Receiver && s.each == nil:
		known("%q is the row of a receiver, which only the rules of a fan_out know", n.Value).
			WithHint("what reads %q is written in the fan_out: rules: [{when: \"…\", do: […]}]", n.Value)
	case s.p.names.Headers[n.Value] != nil || s.p.names.Alternatives[n.Value] != nil:
		var stack []string
		for _, e := range s.p.src.Stack {
			stack = append(stack, e.Var.Value)
		}
		known("header %q is not in the stack of program %q", n.Value, s.p.src.Name.Value).
			WithHint("its stack is %s", strings.Join(stack, ", "))
	default:
		known("no header, lookup or setting is called %q here", n.Value).WithNames(n.Value, s.visible())
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
	for _, e := range s.p.src.Stack {
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
		inside := &scope{p: s.p, path: s.upTo(in), self: in, quiet: s.quiet}
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
			v = val{
				t: ir.Type{Kind: ir.Endpoint, Size: 18}, x: a.x, port: p.x, field: a.field, portAt: p.field, max: p.max,
			}
		}
	} else {
		var names []string
		for _, f := range in.h.Fields {
			names = append(names, f.Name.Value)
		}
		for _, p := range in.h.Parts {
			names = append(names, p.Name.Value)
		}
		d := s.fail(code.UnknownName, e.Pos, "no field %q in header %q", n.Value, in.h.Name.Value).
			WithRelated(in.h.Name.Pos, "the header is declared here")
		if other, both := s.elsewhere(in, n.Value); other == nil {
			d.WithNames(n.Value, names)
		} else if both != "" {
			d.WithLabel("did you mean %q?", both).WithHint("%s and %s both have it", other.Name.Value, in.h.Name.Value)
		} else {
			d.WithHint("only %s has it: %s.%s", other.Name.Value, other.Name.Value, n.Value)
		}
		return val{}, false
	}
	return s.part(v, rest)
}

// elsewhere returns the header that has a field which in lacks, where it is in the same place of the stack; and
// what both of them call such a field, or "".
func (s *scope) elsewhere(in *layer, field string) (other *spec.Header, both string) {
	for _, e := range s.p.src.Stack {
		if e.Var.Value != in.entry || in.entry == "" {
			continue
		}
		for _, h := range s.p.names.Choices(e) {
			if h == in.h || !slices.ContainsFunc(h.Fields, func(f *spec.Field) bool { return f.Name.Value == field }) {
				continue
			}
			for _, p := range h.Parts {
				if p.Alias != nil && p.Alias.String() == field &&
					(in.fields[p.Name.Value] != nil || partOf(in.h, p.Name.Value) != nil) {
					return h, p.Name.Value
				}
			}
			other = h
		}
	}
	return other, ""
}

// part resolves .addr and .port after an endpoint.
func (s *scope) part(v val, rest []spec.Name) (val, bool) {
	if len(rest) == 1 {
		return v, true
	}
	if v.t.Kind == ir.Endpoint && len(rest) == 2 {
		switch rest[1].Value {
		case "addr":
			return val{t: ir.AddrType, x: v.x, field: v.field, row: v.row, member: v.member, level: v.level}, true
		case "port":
			return val{
				t: ir.UintType(16), x: v.port, max: 0xFFFF, field: v.portAt, row: v.row, member: v.member,
				level: v.level,
			}, true
		}
	}
	s.fail(code.UnknownName, rest[1].Pos, "%s has no part %q", v.t.What(), rest[1].Value).
		WithHint("only endpoints have parts: .addr and .port")
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
		s.fail(code.UnknownName, e.Pos, "a setting is written setting.NAME")
		return val{}, false
	}
	n := e.Path[1]
	set := s.p.names.Settings[n.Value]
	if set == nil {
		var names []string
		for _, x := range s.p.names.Spec.Settings {
			names = append(names, x.Name.Value)
		}
		if slices.Contains(names, n.Value) {
			return val{}, false // its declaration is reported
		}
		s.fail(code.UnknownName, n.Pos, "no setting %q", n.Value).WithNames(n.Value, names)
		return val{}, false
	}
	return val{t: set.Type, x: &ir.SettingRef{Setting: set}, max: set.Max}, true
}

var skbNames = map[string]ir.MetaKind{"len": ir.FrameLen, "mark": ir.SKBMark, "priority": ir.SKBPrio}

func (s *scope) skb(e *spec.Expr) (val, bool) {
	if s.p.congestion() {
		s.fail(code.Congestion, e.Pos, "there is no packet at %s", ir.Congestion).
			WithHint("what there is are the fields of socket, such as socket.in_flight")
		return val{}, false
	}
	if len(e.Path) == 2 {
		if k, ok := skbNames[e.Path[1].Value]; ok {
			return val{t: ir.UintType(32), x: &ir.Meta{Kind: k}, max: 0xFFFF_FFFF}, true
		}
	}
	s.fail(code.UnknownName, e.Pos, "no such fact about a packet").
		WithHint("skb.len, skb.mark and skb.priority are the ones there are")
	return val{}, false
}

// member resolves ROW or ROW.MEMBER.
func (s *scope) member(r *ir.Row, e *spec.Expr) (val, bool) {
	if len(e.Path) == 1 {
		if !r.Optional || s.facts[r] {
			return val{t: ir.BoolType, x: fold.Bool(true), row: r}, true
		}
		return val{t: ir.BoolType, x: &ir.RowHas{Row: r}, row: r}, true
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
		s.fail(code.UnknownName, n.Pos, "table %q has no value %q", r.Table.Name, n.Value).WithNames(n.Value, names).
			WithRelated(r.Table.Pos, "the table is declared here")
		return val{}, false
	}
	if !s.there(r, e) {
		return val{}, false
	}
	if m.Type.Levels > 0 {
		s.fail(code.Priority, e.Pos, "%q has a value for each level of priority", m.Name).
			WithHint("say which one: %s.%s[priority]", e.Path[0].Value, m.Name)
		return val{}, false
	}
	return s.part(s.memberOf(r, m, nil), e.Path[1:])
}

// there makes sure that a row which an expression names is there.
func (s *scope) there(r *ir.Row, e *spec.Expr) bool {
	if r.Optional && !s.facts[r] {
		s.fail(code.Maybe, e.Pos, "row %q may be missing here", e.Path[0].Value).
			WithHint("ask for it first: %s && …", e.Path[0].Value)
		return false
	}
	return true
}

// memberOf is the value of a member of a row; of one with a value for each level, that of a level.
func (s *scope) memberOf(r *ir.Row, m *ir.Member, level ir.Expr) val {
	v := val{t: m.Type.One(), row: r, member: m, level: level, max: ranges.Max(m.Type.Bits)}
	switch m.Type.Kind {
	case ir.Endpoint:
		v.x = &ir.RowMember{Row: r, Member: m, Part: ir.PartAddr, Level: level}
		v.port = &ir.RowMember{Row: r, Member: m, Part: ir.PartPort, Level: level}
		v.max = 0xFFFF
	case ir.Ctr:
		v.t, v.x, v.max, v.counter = ir.UintType(64), &ir.CounterValue{Row: r, Member: m}, ^uint64(0), true
	case ir.NextHop, ir.Credit, ir.Bucket, ir.Translation:
		v.max = 0
	default:
		v.x = &ir.RowMember{Row: r, Member: m, Level: level}
	}
	return v
}

// sets reports whether a field of this name is given a value: then no other name was meant to be it.
func sets(set []*spec.Assign, name string) bool {
	return slices.ContainsFunc(set, func(as *spec.Assign) bool { return as.Target.Path[0].Value == name })
}
