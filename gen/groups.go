package gen

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives groups of receivers and events their types and layouts.

// Where the spec doesn't say how many.
const (
	defaultGroupMax     = 64
	defaultReceivers    = 1024
	defaultGroups       = 64
	defaultTranslations = 65536
	defaultRing         = 1 << 20
)

// receiver is what the receiver's row is called in the rules of a fan-out.
const receiver = "r"

func (c *compiler) group(g *spec.Group) {
	out := &ir.Group{
		Name: g.Name.Value, Max: g.Max, Rows: g.Rows, Size: g.Size, Base: max(1, c.plan.Receivers), Pos: g.Name.Pos,
	}
	for _, d := range []struct {
		n    *int
		word int
	}{{&out.Max, defaultGroupMax}, {&out.Rows, defaultReceivers}, {&out.Size, defaultGroups}} {
		if *d.n == 0 {
			*d.n = d.word
		}
	}
	if g.Rows == 0 && out.Rows < out.Max {
		out.Rows = out.Max
	}
	if out.Rows < out.Max {
		c.diags.Add(code.Table, out.Pos, "group %q has room for %d receivers in all, but one group may have %d",
			out.Name, out.Rows, out.Max)
		return
	}
	errors := c.diags.Len()
	out.Key.Members = c.members(g.Key, ir.InKey, "the key of a group")
	value := ir.Struct{Members: c.members(g.Receiver, ir.InValue, "the row of a receiver")}
	if c.diags.Len() > errors {
		return
	}
	if len(out.Key.Members) == 0 || len(value.Members) == 0 {
		c.diags.Add(code.Table, out.Pos, "group %q needs a key, and receivers with values", out.Name)
		return
	}
	index := ir.Struct{Members: []*ir.Member{{Name: "row", Type: ir.UintType(32), Pos: out.Pos}}, Size: 4}
	out.Receivers = &ir.Table{
		Name: out.Name, Kind: "receivers", Size: out.Rows + out.Max, Key: index, Value: value, Pos: out.Pos,
	}
	c.plan.Receivers = out.Base + out.Rows
	c.fanOuts[out.Name] = out
	c.plan.Groups = append(c.plan.Groups, out)
}

// maxEvent bounds a record: it is made while a packet is processed.
const maxEvent = 1024

func (c *compiler) event(e *spec.Event) {
	out := &ir.Event{Name: e.Name.Value, ID: len(c.plan.Events) + 1, Required: e.Required, Pos: e.Name.Pos}
	errors := c.diags.Len()
	out.Fields.Members = c.members(e.Fields, ir.InEvent, "an event")
	if c.diags.Len() > errors {
		return
	}
	layOutFrom(&out.Fields, abi.EventHeader, 8)
	if out.Fields.Size > maxEvent {
		c.diags.Add(code.Event, out.Pos, "event %q takes %d bytes; %d is the most", out.Name, out.Fields.Size, maxEvent)
		return
	}
	c.events[out.Name] = out
	c.plan.Events = append(c.plan.Events, out)
}

// emit makes the record of an event.
func (w *rewriter) emit(a *spec.Action) {
	e := w.p.c.events[a.Event.Value]
	if e == nil {
		var names []string
		for _, e := range w.p.c.spec.Events {
			names = append(names, e.Name.Value)
		}
		if !slices.Contains(names, a.Event.Value) { // else its declaration is reported
			suggest(w.s.fail(code.UnknownName, a.Event.Pos, "no event %q", a.Event.Value), a.Event.Value, names)
		}
		return
	}
	out := &ir.Emit{Event: e, Row: w.s.rows[receiver], Full: -1, Pos: a.Pos}
	if w.s.each == nil {
		out.Row = nil
	}
	if e.Required {
		out.Full = w.p.punted("ring_full", "the ring of events is full", a.Pos)
	}
	given := map[string]bool{}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		m := member(&e.Fields, name)
		if m == nil {
			var names []string
			for _, m := range e.Fields.Members {
				if !sets(a.Set, m.Name) {
					names = append(names, m.Name)
				}
			}
			suggest(w.s.fail(code.UnknownName, as.Target.Pos, "event %q has no field %q", e.Name, name), name, names).
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
