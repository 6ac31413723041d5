package spec

import (
	"strings"

	"cuelang.org/go/cue"
)

// Programs, rules and actions.

func (l *loader) program(n Name, v cue.Value) *Program {
	p := &Program{Name: n, Hook: l.string(get(v, "hook")), Match: l.matches(get(v, "match")), When: l.expr(get(v, "when")), Pos: n.Pos}
	if hook := get(v, "hook"); hook.Exists() {
		p.HookPos = l.pos(hook)
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
	do, rules := get(v, "do"), get(v, "rules")
	switch {
	case do.Exists() && rules.Exists():
		l.add(codeTogether, l.labelPos(do), "program %q has both \"do\" and \"rules\"", n.Value).
			WithRelated(l.labelPos(rules), "the rules are here").WithHint("make it the last rule: {do: [...]}")
	case do.Exists():
		p.Rules = []*Rule{{Do: l.actions(do), Pos: l.labelPos(do)}}
	case rules.Exists():
		for _, r := range l.list(rules) {
			p.Rules = append(p.Rules, l.rule(r, vars))
		}
	}
	if pos := n.Pos; !do.Exists() && (!rules.Exists() || l.empty(rules)) && l.whole(v) {
		if rules.Exists() {
			pos = l.pos(rules)
		}
		l.add(codeMissing, pos, "program %q does nothing: it needs \"do\" or \"rules\"", n.Value)
	}
	return p
}

// stackEntry reads "udp", "vlan?" or {l4: ["udp", "tcp"]}.
func (l *loader) stackEntry(v cue.Value) *StackEntry {
	if text, p, ok := l.text(v); ok {
		n, optional := maybe(Name{text, p.pos})
		if !isName(n.Value) {
			l.named(n, "header")
			return nil
		}
		return &StackEntry{Var: n, Headers: []Name{n}, Optional: optional, Pos: n.Pos}
	}
	n, headers, ok := l.only(v, "a stack entry")
	if !ok {
		return nil
	}
	n, optional := maybe(n)
	e := &StackEntry{Var: l.named(n, "stack entry"), Optional: optional, Pos: n.Pos}
	if headers.IncompleteKind() == cue.StringKind {
		e.Headers = []Name{l.name(headers, "header")}
	} else if e.Headers = l.nameList(headers, "header"); l.empty(headers) {
		l.add(codeMissing, n.Pos, "stack entry %q has no headers", n.Value)
	}
	return e
}

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
		all = append(all, &Lookup{Var: n, Optional: optional, Table: l.named(table, "table"), Key: l.exprs(key), Pos: n.Pos})
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
		Do: l.actions(get(v, "do")), Pos: l.pos(v),
	}
}

func (l *loader) actions(v cue.Value) (all []*Action) {
	for _, e := range l.list(v) {
		if a := l.action(e); a != nil {
			all = append(all, a)
		}
	}
	return all
}

func (l *loader) action(v cue.Value) *Action {
	if _, p, ok := l.text(v); ok {
		return &Action{Kind: ActPass, Pos: p.pos}
	}
	n, arg, ok := l.only(v, "an action")
	if !ok {
		return nil
	}
	a := &Action{Kind: ActionKind(n.Value), Pos: n.Pos}
	switch a.Kind {
	case ActSet:
		a.Set = l.assigns(arg)
		l.notEmpty(arg, n, len(a.Set))
	case ActPush:
		l.push(a, arg)
	case ActPop:
		a.Header = l.name(arg, "header")
	case ActSend:
		a.From, a.To, a.Via = l.expr(get(arg, "from")), l.expr(get(arg, "to")), l.expr(get(arg, "via"))
	case ActLearn:
		table, row, ok := l.only(arg, "learn")
		if !ok {
			return nil
		}
		a.Table, a.Key, a.Value = l.named(table, "table"), l.exprs(get(row, "key")), l.exprs(get(row, "value"))
	case ActCount:
		counter := arg
		if arg.IncompleteKind() == cue.StructKind {
			counter, a.By = get(arg, "counter"), l.expr(get(arg, "by"))
		}
		if text, p, ok := l.text(counter); ok {
			a.Counter = l.path(text, p, "a counter")
		}
	case ActMark:
		a.Set = l.assigns(arg)
		l.notEmpty(arg, n, len(a.Set))
	case ActDrop:
		a.Reason = l.name(arg, "reason")
	case ActPass:
	default:
		return nil // an unknown word, and reported
	}
	return a
}

func (l *loader) notEmpty(v cue.Value, n Name, count int) {
	if it, err := v.Fields(); err == nil && count == 0 && !it.Next() && l.whole(v) {
		l.add(codeMissing, n.Pos, "%q has nothing to do", n.Value)
	}
}

func (l *loader) assigns(v cue.Value) (all []*Assign) {
	l.each(v, func(n Name, v cue.Value) {
		target := l.path(n.Value, place{n.Pos, n.Pos.Len == len(n.Value)}, "what is set")
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
			l.add(codeKind, l.pos(v), "%s has to be a struct of fields, not %s", n.Value, kindWord(v.IncompleteKind())).WithHint("push: %s: {…}", n.Value)
			l.notWhole(w)
		case a.Header.Value != "":
			l.add(codeOneOf, n.Pos, "an action pushes exactly one header").WithRelated(a.Header.Pos, "the first one is here")
		default:
			a.Header = l.named(n, "header")
			a.Set = l.assigns(v)
		}
	})
	if a.Header.Value == "" && l.whole(w) {
		l.add(codeMissing, a.Pos, "push needs a header")
	}
}
