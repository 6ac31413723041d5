package rules

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/rewrite"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles fan_out. Its rules are compiled like a program's, once more for each path, with the receiver's row
// among the names; what would pass a packet to the stack ends the receiver's turn there, so that its reasons are of
// another kind.

// fanOut ends a rule with copies of the packet.
func fanOut(w *edit.Packet, a *spec.Action, r *spec.Rule, state []ir.Stmt) {
	if !mayFanOut(w, a, r) {
		return
	}
	fo := a.FanOut
	g := fanOutGroup(w, a)
	if g == nil {
		return
	}
	key, ok := w.Scope.Values("group", g.Name, g.Pos, &g.Key, fo.Key, fo.Pos, "key")
	if !ok {
		return
	}
	end := rewrite.Copyable(w, a.Pos)
	draft.Emit(w.Blk, w.Guards...)
	draft.Emit(w.Blk, w.Effects.Late...)
	out := &ir.FanOut{
		Effects: w.Effects.Effects, Group: g, Key: key, Usage: w.Used(), Pos: a.Pos,
		Miss:   w.Program.Punted("no_"+g.Name, "no group in "+g.Name, fo.Pos),
		NoRoom: w.Program.Punted("no_memory", "the kernel has no memory to change the packet", w.Program.Src.Name.Pos),
		Fault: w.Program.Reason("fault", ir.Fault, "dropped: the kernel failed after the first change",
			w.Program.Src.Name.Pos),
	}
	if fo.Drop != nil {
		out.Drop = true
		out.Reason = w.Program.Reason(fo.Drop.Value, ir.Dropped, "dropped, as the spec says", fo.Drop.Pos)
	} else {
		out.Reason = w.Program.Reason("pass", ir.Passed, "", a.Pos)
	}
	out.End = end
	out.Row = &ir.Row{Name: w.Program.Unique(declare.Receiver), Table: g.Receivers}
	w.Program.Out.Rows = append(w.Program.Out.Rows, out.Row)
	w.Program.Stop = draft.EndTurn
	receivers(w, out, fo)
	w.Program.Stop = draft.PassToStack
	out.Front = extent(out.Each, w.Scope.Path[len(w.Scope.Path)-1].End)
	draft.Emit(w.Blk, state...)
	draft.Emit(w.Blk, out)
}

// mayFanOut reports where a rule can't end with copies: because of the program, the rule's other actions, or headers.
func mayFanOut(w *edit.Packet, a *spec.Action, r *spec.Rule) bool {
	switch {
	case w.Scope.Each != nil:
		w.Scope.Fail(code.FanOut, a.Pos, "a fan-out inside a fan-out")
		return false
	case w.Program.Src.Hook != "tc/ingress":
		w.Scope.Fail(code.FanOut, a.Pos, "fan_out runs at tc/ingress only: copies that leave would come by here again").
			WithRelated(w.Program.Src.HookPos, "the program's hook")
		return false
	case !w.Program.Out.L2:
		w.Scope.Fail(code.FanOut, a.Pos, "fan_out needs a link-layer header: the kernel doesn't send copies without "+
			"one").
			WithHint("a stack begins with the link layer: [\"eth\", …]")
		return false
	}
	for _, b := range r.Do {
		if b.Kind.Edits() {
			w.Scope.Fail(code.FanOut, b.Pos, "%s has no effect here: the packet that came goes on as it came", b.Kind).
				WithHint("change the copies, in the rules of fan_out")
			return false
		}
	}
	for _, in := range w.Scope.Path {
		if in.Decl.Metadata == "vlan" {
			w.Scope.Fail(code.FanOut, a.Pos, "a fan-out can't take VLAN tags from its copies: the stack has header %q",
				in.Entry)
			return false
		}
	}
	return true
}

// fanOutGroup returns the group that a fan-out sends to; nil if there is none, or the name of a receiver's row is
// taken.
func fanOutGroup(w *edit.Packet, a *spec.Action) *ir.Group {
	name := a.FanOut.Group
	g := w.Program.Names.Groups[name.Value]
	if g == nil {
		var names []string
		for _, g := range w.Program.Names.Spec.Groups {
			names = append(names, g.Name.Value)
		}
		if !slices.Contains(names, name.Value) { // else its declaration is reported
			w.Scope.Fail(code.UnknownName, name.Pos, "no group %q", name.Value).WithNames(name.Value, names)
		}
		return nil
	}
	if _, taken := w.Scope.Rows[declare.Receiver]; taken {
		w.Scope.Fail(code.FanOut, a.Pos, "a lookup is called %q, which is what the receiver's row is called",
			declare.Receiver)
		return nil
	}
	if _, taken := w.Scope.Named[declare.Receiver]; taken {
		w.Scope.Fail(code.FanOut, a.Pos, "a value is called %q (let), which is what the receiver's row is called",
			declare.Receiver)
		return nil
	}
	return g
}

// receivers compiles the rules of a fan-out.
func receivers(w *edit.Packet, out *ir.FanOut, fo *spec.FanOut) {
	s := *w.Scope
	s.Each = &expr.FanOut{
		Row: out.Row, Emits: map[*ir.Event]bool{}, Filled: map[*draft.Header]ir.Filled{}, Set: map[*draft.Header]bool{},
	}
	for _, e := range out.Emits {
		s.Each.Emits[e.Event] = true
	}
	s.Fx = nil
	s.Rows, s.Facts, s.Named = maps.Clone(w.Scope.Rows), maps.Clone(w.Scope.Facts), maps.Clone(w.Scope.Named)
	s.Rows[declare.Receiver] = out.Row
	for i, r := range fo.Rules {
		if compileRule(&s, r, fo.Rules[i+1:], &out.Each) {
			s.Program.Trace.Took(r, fo.Rules[i+1:])
			return
		}
	}
	draft.Emit(&out.Each, &ir.Skip{Reason: s.Program.Punted("no_rule", "no rule applies", fo.Pos), Pos: fo.Pos})
}
