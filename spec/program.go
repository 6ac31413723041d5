package spec

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Programs, rules and actions.

func (l *loader) program(n Name, v cue.Value) *Program {
	p := &Program{Name: n, Match: l.matches(get(v, "match")),
		When:      l.expr(get(v, "when")),
		Multicast: l.bool(get(v, "multicast")), Pos: n.Pos}
	if from := l.expr(get(v, "priority")); from != nil {
		p.Priority = &Priority{From: from, Pos: l.labelPos(get(v, "priority"))}
	}
	if hook := get(v, "hook"); hook.Exists() {
		p.HookPos = l.pos(hook)
		p.Hook, p.XDP = l.hook(hook)
	}
	vars := map[string]Name{}
	stack := get(v, "stack")
	for _, e := range l.list(stack) {
		if s := l.stackEntry(e); s != nil {
			l.notReserved(s.Var)
			if !l.once(vars, s.Var, "stack entry") {
				continue
			}
			p.Stack = append(p.Stack, s)
		}
	}
	if l.empty(stack) {
		l.add(codeMissing, l.pos(stack), "the stack of program %q is empty", n.Value)
	}
	p.Lookups = l.lookups(get(v, "lookup"), vars)
	p.Rules = l.ruleList(v, "do", fmt.Sprintf("program %q", n.Value), n.Pos, vars)
	return p
}

// hook reads "tc/ingress", "xdp" or ["xdp", "tc/ingress"].
func (l *loader) hook(v cue.Value) (hook string, xdp bool) {
	if v.IncompleteKind() != cue.ListKind {
		return l.string(v), false
	}
	var hooks []string
	for _, e := range l.list(v) {
		hooks = append(hooks, l.string(e))
	}
	slices.Sort(hooks)
	if !slices.Contains(hooks, "") && !slices.Equal(hooks, []string{ingress, "xdp"}) { // else one of them is reported
		l.add(codeOneOf, l.pos(v), "a list of hooks has \"xdp\" and %q, each once", ingress).
			WithHint("hook: [\"xdp\", %q]", ingress)
	}
	return ingress, true
}

// ingress is the hook of packets that a device receives.
const ingress = "tc/ingress"

// ruleList reads the rules of a program or a fan-out; short is the member that is short for one rule without
// conditions.
func (l *loader) ruleList(v cue.Value, short, what string, pos diag.Pos, vars map[string]Name) (all []*Rule) {
	do, rules := get(v, short), get(v, "rules")
	switch {
	case do.Exists() && rules.Exists():
		l.add(codeTogether, l.labelPos(do), "%s has both %q and \"rules\"", what, short).
			WithRelated(l.labelPos(rules), "the rules are here").WithHint("make it the last rule: {do: [...]}")
	case do.Exists():
		all = []*Rule{{Do: l.actions(do, vars), Pos: l.labelPos(do)}}
	case rules.Exists():
		for _, r := range l.list(rules) {
			all = append(all, l.rule(r, vars))
		}
	}
	if !do.Exists() && (!rules.Exists() || l.empty(rules)) && l.whole(v) {
		if rules.Exists() {
			pos = l.pos(rules)
		}
		l.add(codeMissing, pos, "%s does nothing: it needs %q or \"rules\"", what, short)
	}
	return all
}

// stackEntry reads "udp", "vlan?", {l4: ["udp", "tcp"]}, {second: "frame", after: "first"} or
// {id: ["id8", "id4"], by: "lookup"}.
func (l *loader) stackEntry(v cue.Value) *StackEntry {
	if text, p, ok := l.text(v); ok {
		n, optional := maybe(Name{text, p.pos})
		if !isName(n.Value) {
			l.named(n, "header")
			return nil
		}
		return &StackEntry{Var: n, Headers: []Name{n}, Optional: optional, Pos: n.Pos}
	}
	n, headers, e, ok := l.entry(v)
	if !ok {
		return nil
	}
	n, e.Optional = maybe(n)
	e.Var, e.Pos = l.named(n, "stack entry"), n.Pos
	if headers.IncompleteKind() == cue.StringKind {
		e.Headers = []Name{l.name(headers, "header")}
	} else if e.Headers = l.nameList(headers, "header"); l.empty(headers) {
		l.add(codeMissing, n.Pos, "stack entry %q has no headers", n.Value)
	}
	return e
}

// entry splits {second: "frame", after: "first", by: "lookup"}; an entry may also be called after or by.
func (l *loader) entry(v cue.Value) (n Name, headers cue.Value, e *StackEntry, ok bool) {
	e = &StackEntry{}
	after, by := get(v, "after"), get(v, "by")
	isAfter := after.IncompleteKind() == cue.StringKind
	word, _, isBy := l.text(by)
	isBy = isBy && word == byLookup
	var rest []Name
	l.each(v, func(m Name, w cue.Value) {
		if !(m.Value == "after" && isAfter || m.Value == "by" && isBy) {
			rest, n, headers = append(rest, m), m, w
		}
	})
	if len(rest) != 1 {
		n, headers, ok = l.only(v, "a stack entry")
		return n, headers, e, ok
	}
	if isAfter {
		name := l.name(after, "stack entry")
		e.After = &name
	}
	e.ByLookup = isBy
	return n, headers, e, true
}

// byLookup is what a stack entry says whose alternatives rows choose from: by: "lookup".
const byLookup = "lookup"

// maybe splits the ? off a name.
func maybe(n Name) (Name, bool) {
	name, optional := strings.CutSuffix(n.Value, "?")
	if optional {
		n.Value = name
		n.Pos.Len = max(1, n.Pos.Len-1)
	}
	return n, optional
}

func (l *loader) lookups(v cue.Value, vars map[string]Name) (all []*Lookup) {
	l.each(v, func(n Name, v cue.Value) {
		table, key, ok := l.only(v, "a lookup")
		if !ok {
			return
		}
		n, optional := maybe(n)
		l.notReserved(l.named(n, "lookup"))
		l.once(vars, n, "lookup")
		all = append(all, &Lookup{
			Var: n, Optional: optional, Table: l.named(table, "table"), Key: l.exprs(key), Pos: n.Pos,
		})
		if l.empty(key) {
			l.add(codeMissing, l.pos(key), "the lookup in table %q has no key", table.Value)
		}
	})
	return all
}

func (l *loader) rule(v cue.Value, outer map[string]Name) *Rule {
	vars := map[string]Name{}
	for k, n := range outer {
		vars[k] = n
	}
	return &Rule{
		Match: l.matches(get(v, "match")), When: l.expr(get(v, "when")), Lookups: l.lookups(get(v, "lookup"), vars),
		Do: l.actions(get(v, "do"), vars), Pos: l.pos(v),
	}
}

// actions reads what a rule does; vars are the names that it knows of headers and rows.
func (l *loader) actions(v cue.Value, vars map[string]Name) (all []*Action) {
	for _, e := range l.list(v) {
		if a := l.action(e, vars); a != nil {
			all = append(all, a)
		}
	}
	return all
}

func (l *loader) action(v cue.Value, vars map[string]Name) *Action {
	if _, p, ok := l.text(v); ok {
		return &Action{Kind: ActPass, Pos: p.pos}
	}
	n, arg, ok := l.only(v, "an action")
	if !ok {
		return nil
	}
	a := &Action{Kind: ActionKind(n.Value), Pos: n.Pos}
	if a.Kind.OnHeader() {
		a.Header = l.name(arg, "header")
		return a
	}
	switch a.Kind {
	case ActSet:
		a.Set = l.assigns(arg)
		l.notEmpty(arg, n, len(a.Set))
	case ActPush:
		l.push(a, arg)
	case ActPop:
		if arg.IncompleteKind() == cue.StructKind {
			a.ZeroChecksum = l.bool(get(arg, "zero_checksum"))
			arg = get(arg, "header")
		}
		a.Header = l.name(arg, "header")
	case ActLearn:
		table, row, ok := l.only(arg, "learn")
		if !ok {
			return nil
		}
		a.Table, a.Key, a.Value = l.named(table, "table"), l.exprs(get(row, "key")), l.exprs(get(row, "value"))
		if v := get(row, "verified"); v.Kind() == cue.BoolKind {
			a.Unverified = true
		} else if v.Exists() {
			header := l.name(v, "header")
			a.Verified = &header
		}
		if v := get(row, "with"); v.Exists() {
			with := l.name(v, "row")
			a.With = &with
		}
	case ActCount:
		a.Counter, a.By = l.counter(arg)
	case ActMark:
		a.Set = l.assigns(arg)
		l.notEmpty(arg, n, len(a.Set))
	case ActDrop:
		a.Reason = l.name(arg, "reason")
	case ActPass:
	case ActLet:
		a.Set = l.lets(arg, vars)
		l.notEmpty(arg, n, len(a.Set))
	case ActAdmit:
		l.admit(a, arg)
	case ActEmit:
		l.emit(a, arg)
	case ActFanOut:
		a.FanOut = l.fanOut(n, arg, vars)
	default:
		if !isAction(n.Value) {
			return nil // it is reported
		}
		l.tagged(a, arg)
	}
	return a
}

// counter reads "src.refused" or {counter: "src.bytes", by: "skb.len"}.
func (l *loader) counter(v cue.Value) (counter, by *Expr) {
	if v.IncompleteKind() == cue.StructKind {
		v, by = get(v, "counter"), l.expr(get(v, "by"))
	}
	if text, p, ok := l.text(v); ok {
		counter = l.path(text, p, "a counter")
	}
	return counter, by
}

func (l *loader) notEmpty(v cue.Value, n Name, count int) {
	if it, err := v.Fields(); err == nil && count == 0 && !it.Next() && l.whole(v) {
		l.add(codeMissing, n.Pos, "%q has nothing to do", n.Value)
	}
}

func (l *loader) assigns(v cue.Value) (all []*Assign) {
	l.each(v, func(n Name, v cue.Value) {
		target := l.path(n.Value, textPos{n.Pos, n.Pos.Len == len(n.Value)}, "what is set")
		value := l.expr(v)
		if target != nil && value != nil {
			all = append(all, &Assign{target, value})
		}
	})
	return all
}

// push reads {HEADER: {FIELD: value}, before: "udp"}.
func (l *loader) push(a *Action, w cue.Value) {
	l.each(w, func(n Name, v cue.Value) {
		switch isStruct := v.IncompleteKind() == cue.StructKind; {
		case !isStruct && n.Value == "before":
			before := l.name(v, "stack entry")
			a.Before = &before
		case !isStruct:
			l.add(codeKind, l.pos(v), "%s has to be a struct of fields, not %s", n.Value, kindWord(v.IncompleteKind())).
				WithHint("push: %s: {…}", n.Value)
			l.notWhole(w)
		case a.Header.Value != "":
			l.add(codeOneOf, n.Pos, "an action pushes exactly one header").
				WithRelated(a.Header.Pos, "the first one is here")
		default:
			a.Header = l.named(n, "header")
			a.Set = l.assigns(v)
		}
	})
	if a.Header.Value == "" && l.whole(w) {
		l.add(codeMissing, a.Pos, "push needs a header")
	}
}
