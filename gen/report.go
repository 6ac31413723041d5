package gen

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what a rule reports and spends: events and credits.

// emit makes the record of an event.
func (w *rewriter) emit(a *spec.Action) {
	e := w.p.names.Events[a.Event.Value]
	if e == nil {
		var names []string
		for _, e := range w.p.names.Spec.Events {
			names = append(names, e.Name.Value)
		}
		if !slices.Contains(names, a.Event.Value) { // else its declaration is reported
			w.s.fail(code.UnknownName, a.Event.Pos, "no event %q", a.Event.Value).WithNames(a.Event.Value, names)
		}
		return
	}
	out := &ir.Emit{Event: e, Row: w.s.rows[declare.Receiver], Full: -1, Pos: a.Pos}
	if w.s.each == nil {
		out.Row = nil
	}
	if e.Required {
		out.Full = w.p.punted("ring_full", "the ring of events is full", a.Pos)
	}
	given := map[string]bool{}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		m := e.Fields.Member(name)
		if m == nil {
			var names []string
			for _, m := range e.Fields.Members {
				if !sets(a.Set, m.Name) {
					names = append(names, m.Name)
				}
			}
			w.s.fail(code.UnknownName, as.Target.Pos, "event %q has no field %q", e.Name, name).WithNames(name, names).
				WithRelated(e.Pos, "the event is declared here")
			continue
		}
		given[name] = true
		v, ok := w.withEffects(as.Value)
		if !ok {
			continue
		}
		mv, ok := w.s.memberValue(m, v, fmt.Sprintf("field %q of event %q", name, e.Name))
		if ok {
			out.Values = append(out.Values, mv...)
		}
	}
	for _, m := range e.Fields.Members {
		if !given[m.Name] {
			w.s.fail(code.Event, a.Pos, "field %q of event %q has no value", m.Name, e.Name).
				WithRelated(m.Pos, "the field is declared here")
		}
	}
	w.fx.Emits = append(w.fx.Emits, out)
}

// admit spends a credit.
func (w *rewriter) admit(a *spec.Action) {
	v, ok := w.s.value(a.Credit)
	if !ok {
		return
	}
	if v.t.Kind != ir.Credit && v.t.Kind != ir.Bucket {
		w.s.fail(code.Admit, a.Credit.Pos, "this is %s, where a credit is wanted", v.t.What()).
			WithHint("declare the value with type \"credit\" or \"bucket\"")
		return
	}
	out := &ir.Admit{Row: v.row, Member: v.member, Overdraft: a.Overdraft, Refused: -1, Contended: -1, Pos: a.Pos}
	switch {
	case v.level != nil:
		out.Level = v.level
	case w.s.level != nil && !a.Overdraft: // of what is refused
		out.Level = w.s.level.x
	}
	cost, ok := w.s.integer(a.Cost)
	if !ok {
		return
	}
	out.Cost = cost.x
	if a.Floor != nil {
		floor, ok := w.s.integer(a.Floor)
		if !ok {
			return
		}
		out.Floor = floor.x
	}
	if a.Count != nil {
		if out.Count = w.s.count(&spec.Action{
			Kind: spec.ActCount, Counter: a.Count, By: a.By, Pos: a.Count.Pos,
		}); out.Count == nil {
			return
		}
	}
	const contended = "too many processors spend from one credit at once"
	left := "no " + v.member.Name + " left"
	switch {
	case a.Else != nil: // what can't be spent isn't admitted, so neither is let through
		kind := ir.Dropped
		if w.s.each != nil {
			kind = ir.Declined
		}
		out.Refused = w.p.reason(a.Else.Value, kind, left, a.Else.Pos)
		out.Contended = w.p.reason(a.Else.Value, kind, contended, a.Else.Pos)
	case !a.Overdraft:
		out.Refused = w.p.punted("refused_"+v.member.Name, left, a.Pos)
		out.Contended = w.p.punted("contended", contended, a.Pos)
	}
	w.fx.Admits = append(w.fx.Admits, out)
}
