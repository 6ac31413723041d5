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
func (x *warner) uses() map[string][]string {
	u := map[string][]string{}
	use := func(kind string, n spec.Name) { u[kind] = append(u[kind], n.Value) }
	exprs := func(es iter.Seq[*spec.Expr]) {
		for e := range es {
			if e.Op == spec.OpName && len(e.Path) > 1 && e.Path[0].Value == "setting" {
				use("setting", e.Path[1])
			}
		}
	}
	lookups := func(ls []*spec.Lookup) {
		for _, l := range ls {
			use("table", l.Table)
		}
	}
	for _, src := range x.names.Spec.Programs {
		for _, e := range src.Stack {
			for _, n := range e.Headers {
				use("alternatives", n)
			}
			for _, h := range x.names.Choices(e) {
				use("header", h.Name)
			}
		}
		exprs(x.names.Spec.Exprs(src))
		lookups(src.Lookups)
		for _, r := range src.Rules {
			lookups(r.Lookups)
		}
		for a := range spec.Actions(src.Rules) {
			use("header", a.Header)
			use("table", a.Table)
			use("event", a.Event)
			if a.FanOut != nil {
				use("group", a.FanOut.Group)
				for _, r := range a.FanOut.Rules {
					lookups(r.Lookups)
				}
			}
		}
	}
	for _, h := range x.names.Spec.Headers {
		for _, f := range h.Fields {
			exprs(spec.Within(f.When, f.Size))
		}
	}
	for _, t := range x.names.Spec.Tests {
		packets := []*spec.Packet{t.Packet, t.Expect.Packet}
		for _, k := range t.Expect.Copies {
			packets = append(packets, k.Packet)
		}
		for _, k := range packets {
			if k != nil {
				for _, l := range k.Layers {
					use("header", l.Header)
				}
			}
		}
	}
	return u
}
