// Package warn is the last stage of the compiler: it warns of what is right, and probably not what was meant. Of the
// names that a spec declares it takes those that nothing uses, and of the traces of its programs what no packet gets
// to.
package warn

import (
	"iter"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// warner warns of what is declared and not used.
type warner struct {
	names *declare.Names
	diags *diag.List
}

// Unused warns of what a spec declares and no program uses: the plan is right without it, but a word is probably
// missing somewhere. What only tests use counts as used.
func Unused(names *declare.Names, diags *diag.List) {
	x := &warner{names, diags}
	s := x.names.Spec
	if len(s.Programs) == 0 {
		x.diags.Warn(code.Nothing, s.Name.Pos, "spec %q has no programs: its relay does nothing", s.Name.Value).
			WithHint("a program says what happens to packets: programs: NAME: {hook: \"tc/ingress\", stack: […], " +
				"do: […]}")
		return
	}
	u := x.uses()
	warn := func(n spec.Name, kind, by string) *diag.Diagnostic {
		if slices.Contains(u[kind], n.Value) {
			return nil
		}
		return x.diags.Warn(code.NotUsed, n.Pos, "%s %q is declared, but %s", kind, n.Value, by)
	}
	for _, h := range s.Headers {
		if !h.Std {
			if d := warn(h.Name, "header", "no stack has it and nothing pushes it"); d != nil {
				d.WithHint("a program expects it where its stack names it: stack: […, %q]", h.Name.Value)
			}
		}
	}
	for _, a := range s.Alternatives {
		if !a.Std {
			warn(a.Name, "alternatives", "no stack names them")
		}
	}
	for _, x := range s.Settings {
		if d := warn(x.Name, "setting", "no expression reads it"); d != nil {
			d.WithHint("it is written setting.%s", x.Name.Value)
		}
	}
	lookup := func(n spec.Name) {
		if d := warn(n, "table", "no program looks anything up in it"); d != nil {
			d.WithHint("lookup: row: %s: […]", n.Value)
		}
	}
	for _, t := range s.Tables {
		lookup(t.Name)
	}
	for _, x := range s.Sessions {
		for _, r := range x.Rows {
			lookup(r.Table)
		}
	}
	for _, g := range s.Groups {
		warn(g.Name, "group", "no fan_out sends to it")
	}
	for _, e := range s.Events {
		warn(e.Name, "event", "nothing emits it")
	}
	x.unusedMembers()
	for _, src := range s.Programs {
		x.unusedLets(src.Rules)
	}
}

// unusedLets warns of names for values that the rest of their rule doesn't use.
func (x *warner) unusedLets(rules []*spec.Rule) {
	for _, r := range rules {
		for i, a := range r.Do {
			if a.FanOut != nil {
				x.unusedLets(a.FanOut.Rules)
			}
			if a.Kind != spec.ActLet {
				continue
			}
			used := map[string]bool{}
			find := func(es iter.Seq[*spec.Expr]) {
				for e := range es {
					if e.Op == spec.OpName {
						used[e.Path[0].Value] = true
					}
				}
			}
			for _, as := range a.Set {
				find(spec.Within(as.Value))
			}
			find(x.names.Spec.Exprs(&spec.Program{Rules: []*spec.Rule{{Do: r.Do[i+1:]}}}))
			for _, as := range a.Set {
				name, effect := as.Target.Path[0], false
				for e := range spec.Within(as.Value) {
					effect = effect || e.Fn.Value == "alloc" || e.Fn.Value == "translate"
				}
				if !used[name.Value] && !effect {
					x.diags.Warn(code.NotUsed, name.Pos, "%q gets a value, but the rest of the rule doesn't use it",
						name.Value).
						WithHint("it is known in the actions that follow: use it there, or leave it out")
				}
			}
		}
	}
}

// uses returns the names that programs and tests use, by what they are names of.
func (x *warner) uses() names {
	u := names{}
	for _, src := range x.names.Spec.Programs {
		for _, e := range src.Stack {
			for _, n := range e.Headers {
				u.add("alternatives", n)
			}
			for _, h := range x.names.Choices(e) {
				u.add("header", h.Name)
			}
		}
		u.settings(x.names.Spec.Exprs(src))
		u.lookups(src.Lookups)
		u.rules(src.Rules)
	}
	for _, h := range x.names.Spec.Headers {
		for _, f := range h.Fields {
			u.settings(spec.Within(f.When, f.Size))
		}
	}
	for _, t := range x.names.Spec.Tests {
		u.packet(t.Packet)
		u.packet(t.Expect.Packet)
		for _, k := range t.Expect.Copies {
			u.packet(k.Packet)
		}
	}
	return u
}

// names are names that are used, by what they are names of.
type names map[string][]string

func (u names) add(kind string, n spec.Name) { u[kind] = append(u[kind], n.Value) }

func (u names) settings(es iter.Seq[*spec.Expr]) {
	for e := range es {
		if e.Op == spec.OpName && len(e.Path) > 1 && e.Path[0].Value == "setting" {
			u.add("setting", e.Path[1])
		}
	}
}

func (u names) lookups(ls []*spec.Lookup) {
	for _, l := range ls {
		u.add("table", l.Table)
	}
}

func (u names) rules(rules []*spec.Rule) {
	for _, r := range rules {
		u.lookups(r.Lookups)
	}
	for a := range spec.Actions(rules) {
		u.add("header", a.Header)
		u.add("table", a.Table)
		u.add("event", a.Event)
		if a.FanOut != nil {
			u.add("group", a.FanOut.Group)
			for _, r := range a.FanOut.Rules {
				u.lookups(r.Lookups)
			}
		}
	}
}

func (u names) packet(k *spec.Packet) {
	if k != nil {
		for _, l := range k.Layers {
			u.add("header", l.Header)
		}
	}
}
