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
	out := &ir.Emit{Event: e, Row: w.Scope.Rows[declare.Receiver], Full: -1, Pos: a.Pos}
	if w.Scope.Each == nil {
		out.Row = nil
	}
	if e.Required {
		out.Full = w.Program.Punted("ring_full", "the ring of events is full", a.Pos)
	}
	given := map[string]bool{}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		m := e.Fields.Member(name)
		if m == nil {
			var names []string
			for _, m := range e.Fields.Members {
				if !edit.Sets(a.Set, m.Name) {
					names = append(names, m.Name)
				}
			}
			w.Scope.Fail(code.UnknownName, as.Target.Pos, "event %q has no field %q", e.Name, name).WithNames(name,
				names).
				WithRelated(e.Pos, "the event is declared here")
			continue
		}
		given[name] = true
		v, ok := w.WithEffects(as.Value)
		if !ok {
			continue
		}
		mv, ok := w.Scope.MemberValue(m, v, fmt.Sprintf("field %q of event %q", name, e.Name))
		if ok {
			out.Values = append(out.Values, mv...)
		}
	}
	for _, m := range e.Fields.Members {
		if !given[m.Name] {
			w.Scope.Fail(code.Event, a.Pos, "field %q of event %q has no value", m.Name, e.Name).
				WithRelated(m.Pos, "the field is declared here")
		}
	}
	w.Effects.Emits = append(w.Effects.Emits, out)
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
