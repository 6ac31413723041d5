package gen

import (
	"iter"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass warns of what a spec declares and no program uses: the plan is right without it, but a word is probably
// missing somewhere. What only tests use counts as used.

func (c *compiler) unused() {
	s := c.spec
	if len(s.Programs) == 0 {
		c.diags.Warn(code.Nothing, s.Name.Pos, "spec %q has no programs: its relay does nothing", s.Name.Value).
			WithHint("a program says what happens to packets: programs: NAME: {hook: \"tc/ingress\", stack: […], " +
				"do: […]}")
		return
	}
	u := c.uses()
	warn := func(n spec.Name, kind, by string) *diag.Diagnostic {
		if slices.Contains(u[kind], n.Value) {
			return nil
		}
		return c.diags.Warn(code.NotUsed, n.Pos, "%s %q is declared, but %s", kind, n.Value, by)
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
	c.unusedMembers()
	for _, src := range s.Programs {
		c.unusedLets(src.Rules)
	}
}

// unusedLets warns of names for values that the rest of their rule doesn't use.
func (c *compiler) unusedLets(rules []*spec.Rule) {
	for _, r := range rules {
		for i, a := range r.Do {
			if a.FanOut != nil {
				c.unusedLets(a.FanOut.Rules)
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
			find(c.spec.Exprs(&spec.Program{Rules: []*spec.Rule{{Do: r.Do[i+1:]}}}))
			for _, as := range a.Set {
				name, effect := as.Target.Path[0], false
				for e := range spec.Within(as.Value) {
					effect = effect || e.Fn.Value == "alloc" || e.Fn.Value == "translate"
				}
				if !used[name.Value] && !effect {
					c.diags.Warn(code.NotUsed, name.Pos, "%q gets a value, but the rest of the rule doesn't use it",
						name.Value).
						WithHint("it is known in the actions that follow: use it there, or leave it out")
				}
			}
		}
	}
}

// uses returns the names that programs and tests use, by what they are names of.
func (c *compiler) uses() map[string][]string {
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
	for _, src := range c.spec.Programs {
		p := &program{c: c, src: src}
		for _, e := range src.Stack {
			for _, n := range e.Headers {
				use("alternatives", n)
			}
			for _, h := range p.choices(e) {
				use("header", h.Name)
			}
		}
		exprs(c.spec.Exprs(src))
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
	for _, h := range c.spec.Headers {
		for _, f := range h.Fields {
			exprs(spec.Within(f.When, f.Size))
		}
	}
	for _, t := range c.spec.Tests {
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
