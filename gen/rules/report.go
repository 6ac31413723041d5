package rules

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what a rule reports and spends: events and credits.

// report makes the record of an event.
func report(w *edit.Packet, a *spec.Action) {
	e := w.Program.Names.Events[a.Event.Value]
	if e == nil {
		var names []string
		for _, e := range w.Program.Names.Spec.Events {
			names = append(names, e.Name.Value)
		}
		if !slices.Contains(names, a.Event.Value) { // else its declaration is reported
			w.Scope.Fail(code.UnknownName, a.Event.Pos, "no event %q", a.Event.Value).WithNames(a.Event.Value, names)
		}
		return
	}
	if e.Copies != nil && w.Scope.Each != nil {
		entry(w, a, e)
		return
	}
	out := &ir.Emit{Event: e, Row: w.Scope.Rows[declare.Receiver], Full: -1, Pos: a.Pos}
	if w.Scope.Each == nil {
		out.Row = nil
	}
	if e.Required {
		out.Full = w.Program.Punted("ring_full", "the ring of events is full", a.Pos)
	}
	if e.Copies != nil && slices.ContainsFunc(w.Effects.Emits, func(s *ir.Emit) bool { return s.Event == e }) {
		w.Scope.Fail(code.Event, a.Pos, "event %q is emitted for the second time: which record would have the copies?",
			e.Name)
		return
	}
	given := fields(w, a, e, &e.Fields, "field")
	for _, f := range given {
		if f.member.Type.Kind == ir.Data {
			out.Data = excerpt(w, f.value)
		} else {
			out.Values = append(out.Values, value(w, f, fmt.Sprintf("field %q of event %q", f.member.Name, e.Name))...)
		}
	}
	w.Effects.Emits = append(w.Effects.Emits, out)
}

// entry makes what a record has of a copy.
func entry(w *edit.Packet, a *spec.Action, e *ir.Event) {
	if !w.Scope.Each.Emits[e] {
		w.Scope.Fail(code.Event, a.Pos, "the rule with the fan_out doesn't emit %q: there is no record for its copies",
			e.Name).
			WithRelated(e.Pos, "the event is declared here").
			WithHint("emit it there, with its fields; here it gets what there is of each copy")
		return
	}
	out := &ir.Entry{Event: e, Row: w.Scope.Rows[declare.Receiver], Pos: a.Pos}
	for _, f := range fields(w, a, e, &e.Copies.Entry, "value for each copy") {
		out.Values = append(out.Values, value(w, f, fmt.Sprintf("%q of event %q", f.member.Name, e.Name))...)
	}
	w.Effects.Entries = append(w.Effects.Entries, out)
}

// field is what a rule says of a member of an event.
type field struct {
	member *ir.Member
	value  *spec.Expr
}

// fields are what a rule says of an event's members, which have to be all of them.
func fields(w *edit.Packet, a *spec.Action, e *ir.Event, members *ir.Struct, what string) (all []field) {
	visible := slices.DeleteFunc(slices.Clone(members.Members), func(m *ir.Member) bool { return m.Hidden })
	given := map[string]bool{}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		i := slices.IndexFunc(visible, func(m *ir.Member) bool { return m.Name == name })
		if i < 0 {
			var names []string
			for _, m := range visible {
				if !edit.Sets(a.Set, m.Name) {
					names = append(names, m.Name)
				}
			}
			w.Scope.Fail(code.UnknownName, as.Target.Pos, "event %q has no %s %q", e.Name, what, name).WithNames(name,
				names).
				WithRelated(e.Pos, "the event is declared here")
			continue
		}
		given[name] = true
		all = append(all, field{visible[i], as.Value})
	}
	for _, m := range visible {
		if !given[m.Name] {
			w.Scope.Fail(code.Event, a.Pos, "%s %q of event %q has no value", what, m.Name, e.Name).
				WithRelated(m.Pos, "it is declared here")
		}
	}
	return all
}

// value compiles the value of a member.
func value(w *edit.Packet, f field, what string) []ir.MemberValue {
	v, ok := w.WithEffects(f.value)
	if !ok {
		return nil
	}
	mv, _ := w.Scope.MemberValue(f.member, v, what)
	return mv
}

// excerpt is what a record has of the packet: a header with all that follows it, or what follows it.
func excerpt(w *edit.Packet, e *spec.Expr) *ir.Excerpt {
	from, size, ok := w.Scope.Extent(e)
	switch {
	case !ok:
		if _, ok := w.Scope.Value(e); ok { // else that says what is wrong
			w.Scope.Fail(code.Event, e.Pos, "bytes of the packet are a header, or what follows one").
				WithHint("such as \"udp\" or \"udp.payload\"")
		}
	case w.Scope.Each != nil:
		w.Scope.Fail(code.Event, e.Pos, "the copies before this one have changed the packet: its bytes are gone").
			WithHint("report them in the rule that has the fan_out, once for all receivers")
	case w.Program.Out.Hook == ir.Congestion:
		w.Scope.Fail(code.Event, e.Pos, "there are no packets at tcp/congestion, so no bytes of one")
	default:
		return &ir.Excerpt{At: from, Size: size}
	}
	return nil
}

// ended reports records that don't go with how their rule ends. ends is its last action.
func ended(w *edit.Packet, ends *spec.Action) {
	is := func(kind spec.ActionKind) bool { return ends != nil && ends.Kind == kind }
	for _, s := range w.Effects.Emits {
		switch {
		case s.Event.Copies != nil && !is(spec.ActFanOut):
			w.Scope.Fail(code.Event, s.Pos, "event %q says something of each copy, and this rule makes none",
				s.Event.Name).
				WithRelated(s.Event.Pos, "the event is declared here")
		case s.Data != nil && !s.Event.Required && !is(spec.ActFanOut) && !is(spec.ActDrop):
			w.Scope.Fail(code.Event, s.Pos, "the record of %q is made when the packet has left, and its bytes with it",
				s.Event.Name).WithRelated(s.Event.Pos, "the event is declared here").
				WithHint("let it be made before: required: true")
		}
	}
}

// admit spends a credit.
func admit(w *edit.Packet, a *spec.Action) {
	v, ok := w.Scope.Value(a.Credit)
	if !ok {
		return
	}
	if v.Type.Kind != ir.Credit && v.Type.Kind != ir.Bucket {
		w.Scope.Fail(code.Admit, a.Credit.Pos, "this is %s, where a credit is wanted", v.Type.What()).
			WithHint("declare the value with type \"credit\" or \"bucket\"")
		return
	}
	out := &ir.Admit{Row: v.Row, Member: v.Member, Overdraft: a.Overdraft, Refused: -1, Contended: -1, Pos: a.Pos}
	switch {
	case v.Level != nil:
		out.Level = v.Level
	case w.Scope.Level != nil && !a.Overdraft: // of what is refused
		out.Level = w.Scope.Level.X
	}
	cost, ok := w.Scope.Integer(a.Cost)
	if !ok {
		return
	}
	out.Cost = cost.X
	if a.Floor != nil {
		floor, ok := w.Scope.Integer(a.Floor)
		if !ok {
			return
		}
		out.Floor = floor.X
	}
	if a.Count != nil {
		if out.Count = count(w.Scope, &spec.Action{
			Kind: spec.ActCount, Counter: a.Count, By: a.By, Pos: a.Count.Pos,
		}); out.Count == nil {
			return
		}
	}
	const contended = "too many processors spend from one credit at once"
	left := "no " + v.Member.Name + " left"
	switch {
	case a.Else != nil: // what can't be spent isn't admitted, so neither is let through
		kind := ir.Dropped
		if w.Scope.Each != nil {
			kind = ir.Declined
		}
		out.Refused = w.Program.Reason(a.Else.Value, kind, left, a.Else.Pos)
		out.Contended = w.Program.Reason(a.Else.Value, kind, contended, a.Else.Pos)
	case !a.Overdraft:
		out.Refused = w.Program.Punted("refused_"+v.Member.Name, left, a.Pos)
		out.Contended = w.Program.Punted("contended", contended, a.Pos)
	}
	w.Effects.Admits = append(w.Effects.Admits, out)
}
