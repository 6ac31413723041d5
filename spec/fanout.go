package spec

import (
	"slices"

	"cuelang.org/go/cue"
)

// One to many: priority, groups of receivers, events, and what programs do with them.

const (
	// receiver is what a receiver's row is called in the rules of a fan-out, and in a test the receiver that an event
	// names.
	rowOfReceiver = "r"
	receiverOf    = "receiver"
	// copiesOf is what a test calls what an event has of each copy.
	copiesOf = "copies"
)

// oneToMany reads what the top level of a spec says about receivers and events.
func (l *loader) oneToMany(s *Spec, v cue.Value, tables map[string]Name) {
	if p := get(v, "priority"); p.IncompleteKind() == cue.StructKind {
		s.Priority = &Priority{
			Levels: l.int(get(p, "levels")), From: l.expr(get(p, "from")), High: l.string(get(p, "urgent")) == "high",
			Pos: l.labelPos(p),
		}
	}
	l.each(get(v, "groups"), func(n Name, v cue.Value) {
		l.once(tables, l.named(n, "group"), "table or group")
		s.Groups = append(s.Groups, l.fanGroup(n, v))
	})
	l.each(get(v, "events"), func(n Name, v cue.Value) {
		e := &Event{
			Name: l.named(n, "event"), Fields: l.members(get(v, "fields"), "field", map[string]Name{}),
			Copies:   l.members(get(v, "copies"), "value", map[string]Name{}),
			Required: l.bool(get(v, "required")),
		}
		if copies := get(v, "copies"); copies.Exists() && e.Copies == nil {
			e.Copies = []*Member{}
		}
		for _, f := range slices.Concat(e.Fields, e.Copies) {
			switch {
			case f.Name.Value == receiverOf:
				l.add(codeName, f.Name.Pos, "every event says which receiver it is about: %q can't be a field",
					receiverOf)
			case f.Name.Value == copiesOf && e.Copies != nil:
				l.add(codeName, f.Name.Pos, "%q is what the event has of each copy, and can't be a field", copiesOf)
			}
		}
		s.Events = append(s.Events, e)
	})
	if ring := get(v, "ring"); ring.Exists() {
		s.Ring = l.int(ring)
		if s.Ring&(s.Ring-1) != 0 {
			l.add(codeRange, l.pos(ring), "ring has to be a power of two, such as %d", powerAbove(s.Ring))
		}
	}
	s.Translations = l.int(get(v, "translations"))
}

// powerAbove returns the smallest power of two that isn't below n.
func powerAbove(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func (l *loader) fanGroup(n Name, v cue.Value) *Group {
	g := &Group{Name: n, Max: l.int(get(v, "max")), Rows: l.int(get(v, "receivers")), Size: l.int(get(v, "size"))}
	g.Key = l.members(get(v, "key"), "member", map[string]Name{})
	g.Receiver = l.members(get(v, "receiver"), "member", map[string]Name{})
	return g
}

// elements reads the forms of a list's elements.
func (l *loader) elements(v cue.Value) (all []*Elements) {
	forms := l.list(v)
	for i, e := range forms {
		f := &Elements{
			When: l.expr(get(e, "when")), ID: l.int(get(e, "id")), Bias: l.int(get(e, "bias")), Pad: -1, Stop: -1,
			Pos: l.pos(e),
		}
		f.Len = f.ID
		for _, id := range []struct {
			name string
			to   *int
		}{{"pad", &f.Pad}, {"stop", &f.Stop}} {
			v := get(e, id.name)
			if v.IncompleteKind() != cue.IntKind {
				continue
			}
			if *id.to = l.int(v); l.whole(e) && *id.to >= 1<<f.ID {
				l.add(codeRange, l.pos(v), "%d doesn't fit an identifier of %d bits", *id.to, f.ID)
			}
		}
		if f.Pad >= 0 && f.Pad == f.Stop {
			l.add(codeTogether, l.pos(get(e, "stop")), "identifier %d can't both be padding and end the list", f.Stop)
		}
		if i > 0 && l.whole(forms[i-1]) && !has(forms[i-1], "when") {
			l.add(codeTogether, f.Pos, "this form is never looked at: the one in front of it has no condition").
				WithRelated(all[i-1].Pos, "the one in front")
		}
		all = append(all, f)
	}
	if l.empty(v) {
		l.add(codeMissing, l.pos(v), "the elements have no form")
	}
	return all
}

func (l *loader) admit(a *Action, v cue.Value) {
	if text, p, ok := l.text(get(v, "credit")); ok {
		a.Credit = l.parse(text, p)
		if e := a.Credit; e != nil {
			if e.Op == OpIndex {
				e = e.Args[0]
			}
			if e.Op != OpName {
				l.add(codeExpr, a.Credit.Pos, "a credit has to be a name such as \"r.credit\", or one of several: "+
					"\"r.credit[priority]\"")
			}
		}
	}
	l.tagged(a, v)
	a.Count, a.By = l.counter(get(v, "count"))
	a.Else = l.dropped(get(v, "else"))
	if a.Else != nil && a.Overdraft {
		l.add(codeTogether, a.Else.Pos, "with overdraft nothing is refused, so nothing can be dropped").
			WithHint("leave out `overdraft` or `else`")
	}
}

// dropped reads {drop: REASON}; nil if there is none.
func (l *loader) dropped(v cue.Value) *Name {
	if v.IncompleteKind() != cue.StructKind {
		return nil
	}
	drop := get(v, "drop")
	if drop.IncompleteKind() != cue.StringKind {
		return nil
	}
	reason := l.name(drop, "reason")
	return &reason
}

// lets reads names for values; vars are the names that the rule knows already.
func (l *loader) lets(v cue.Value, vars map[string]Name) (all []*Assign) {
	l.each(v, func(n Name, v cue.Value) {
		l.notReserved(l.named(n, "name"))
		if slices.Contains(Conditions, n.Value) || slices.Contains(functions, n.Value) {
			l.add(codeName, n.Pos, "%q has a meaning of its own in expressions, and can't be the name of a value",
				n.Value).
				WithHint("give the value another name: my_%s", n.Value)
		}
		if first, taken := vars[n.Value]; taken {
			l.add(codeTwice, n.Pos, "%q is a name already", n.Value).WithRelated(first.Pos, "it is declared here").
				WithHint("give the value another name; that of a field is free, as fields are named with their header")
		}
		if value := l.expr(v); value != nil {
			all = append(all, &Assign{Target: &Expr{Op: OpName, Path: []Name{n}, Pos: n.Pos}, Value: value})
		}
	})
	return all
}

// emit reads EVENT: {FIELD: value}.
func (l *loader) emit(a *Action, v cue.Value) {
	event, fields, ok := l.only(v, "emit")
	if !ok {
		return
	}
	a.Event = l.named(event, "event")
	l.each(fields, func(n Name, v cue.Value) {
		l.named(n, "field")
		if value := l.expr(v); value != nil {
			a.Set = append(a.Set, &Assign{Target: &Expr{Op: OpName, Path: []Name{n}, Pos: n.Pos}, Value: value})
		}
	})
}

func (l *loader) fanOut(pos Name, v cue.Value, outer map[string]Name) *FanOut {
	f := &FanOut{Pos: pos.Pos}
	if group, key, ok := l.only(get(v, "group"), "a fan-out's group"); ok {
		f.Group, f.Key, f.Pos = l.named(group, "group"), l.exprs(key), group.Pos
		if l.empty(key) {
			l.add(codeMissing, l.pos(key), "the key of group %q is missing", group.Value)
		}
	}
	vars := map[string]Name{}
	for k, n := range outer {
		vars[k] = n
	}
	if _, taken := outer[rowOfReceiver]; !taken {
		vars[rowOfReceiver] = Name{rowOfReceiver, f.Pos}
	}
	f.Rules = l.ruleList(v, "each", "a fan-out", pos.Pos, vars)
	f.Drop = l.dropped(get(v, "then"))
	return f
}

// Tests.

func (l *loader) testGroups(v cue.Value) (all []*TestGroup) {
	for _, e := range l.list(v) {
		n, group, ok := l.only(e, "a group")
		if !ok {
			continue
		}
		g := &TestGroup{Group: n, Key: l.values(get(group, "key")), Receivers: [][]*TestValue{}, Pos: n.Pos}
		for _, r := range l.list(get(group, "receivers")) {
			g.Receivers = append(g.Receivers, l.values(r))
		}
		all = append(all, g)
	}
	return all
}

func (l *loader) copies(v cue.Value) []*TestCopy {
	if v.IncompleteKind() != cue.ListKind {
		return nil
	}
	all := []*TestCopy{}
	for _, e := range l.list(v) {
		c := &TestCopy{Pos: l.pos(e)}
		switch e.IncompleteKind() {
		case cue.ListKind:
			c.Packet = l.packet(e)
		case cue.StructKind:
			n, arg, ok := l.only(e, "a copy")
			switch {
			case !ok:
			case n.Value == "hex":
				c.Packet = l.packet(e)
			default:
				c.Declined = true
				if arg.IncompleteKind() == cue.StringKind {
					reason := l.name(arg, "reason")
					c.Reason, c.Pos = reason.Value, reason.Pos
				}
			}
		}
		all = append(all, c)
	}
	return all
}

func (l *loader) testEvents(v cue.Value) []*TestEvent {
	if v.IncompleteKind() != cue.ListKind {
		return nil
	}
	all := []*TestEvent{}
	for _, e := range l.list(v) {
		n, fields, ok := l.only(e, "an event")
		if !ok {
			continue
		}
		ev := l.testEvent(fields)
		ev.Event, ev.Pos = n, n.Pos
		if copies := get(fields, copiesOf); copies.IncompleteKind() == cue.ListKind {
			ev.Copies = []*TestEvent{}
			for _, c := range l.list(copies) {
				one := l.testEvent(c)
				one.Pos = l.pos(c)
				ev.Copies = append(ev.Copies, one)
			}
		}
		all = append(all, ev)
	}
	return all
}

// testEvent reads the fields of an event, or of a copy.
func (l *loader) testEvent(v cue.Value) *TestEvent {
	ev := &TestEvent{Receiver: -1}
	for _, f := range l.values(v) {
		switch {
		case f.Value.Kind == LitList: // copies
		case f.Name.Value != receiverOf:
			ev.Fields = append(ev.Fields, f)
		case f.Value.Kind != LitInt || f.Value.Int >= maxReceivers:
			l.add(codeRange, f.Value.Pos, "%s has to be the number of a receiver in the test, from 0 to %d",
				receiverOf, maxReceivers-1)
		default:
			ev.Receiver = int(f.Value.Int)
		}
	}
	return ev
}
