package gen

import (
	"github.com/fastrelay/fastrelay-gen/spec"
)

// These are walks of what the spec says: actions and expressions, in no plan yet.

// eachAction calls f for every action, those of fan-outs included.
func eachAction(rules []*spec.Rule, f func(*spec.Action)) {
	for _, r := range rules {
		for _, a := range r.Do {
			f(a)
			if a.FanOut != nil {
				eachAction(a.FanOut.Rules, f)
			}
		}
	}
}

// eachIn calls f for expressions, and all in them.
func eachIn(f func(*spec.Expr), es ...*spec.Expr) {
	for _, e := range es {
		if e != nil {
			f(e)
			eachIn(f, e.Args...)
		}
	}
}

// eachExpr calls f for every expression of a program, and all in them.
func (p *program) eachExpr(f func(*spec.Expr)) {
	all := func(es ...*spec.Expr) { eachIn(f, es...) }
	lookups := func(ls []*spec.Lookup) {
		for _, l := range ls {
			all(l.Key...)
		}
	}
	rules := func(rs []*spec.Rule) {
		for _, r := range rs {
			all(r.When)
			lookups(r.Lookups)
		}
	}
	all(p.priorityFrom(), p.src.When)
	lookups(p.src.Lookups)
	rules(p.src.Rules)
	eachAction(p.src.Rules, func(a *spec.Action) {
		all(a.Exprs()...)
		if a.FanOut != nil {
			rules(a.FanOut.Rules)
		}
	})
}
