package spec

import (
	"iter"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// PriorityOf returns the expression that says the priority of a program's packets, or nil.
func (s *Spec) PriorityOf(p *Program) *Expr {
	switch {
	case p.Priority != nil:
		return p.Priority.From
	case s.Priority != nil:
		return s.Priority.From
	}
	return nil
}

// Actions are those of rules, and of the rules of their fan-outs.
func Actions(rules []*Rule) iter.Seq[*Action] {
	return func(yield func(*Action) bool) {
		for _, r := range rules {
			for _, a := range r.Do {
				if !yield(a) {
					return
				}
				if a.FanOut == nil {
					continue
				}
				for in := range Actions(a.FanOut.Rules) {
					if !yield(in) {
						return
					}
				}
			}
		}
	}
}

// Within are expressions and all that they consist of. One that is nil is left out.
func Within(es ...*Expr) iter.Seq[*Expr] {
	return func(yield func(*Expr) bool) {
		for _, e := range es {
			if e == nil {
				continue
			}
			if !yield(e) {
				return
			}
			for in := range Within(e.Args...) {
				if !yield(in) {
					return
				}
			}
		}
	}
}

// Exprs are the expressions of a program, that of its packets' priority among them, and all that they consist of.
func (s *Spec) Exprs(p *Program) iter.Seq[*Expr] {
	es := []*Expr{s.PriorityOf(p), p.When}
	lookups := func(ls []*Lookup) {
		for _, l := range ls {
			es = append(es, l.Key...)
		}
	}
	rules := func(rs []*Rule) {
		for _, r := range rs {
			es = append(es, r.When)
			lookups(r.Lookups)
		}
	}
	lookups(p.Lookups)
	rules(p.Rules)
	for a := range Actions(p.Rules) {
		es = append(es, a.Exprs()...)
		if a.FanOut != nil {
			rules(a.FanOut.Rules)
		}
	}
	return Within(es...)
}

// MatchPos is where a program says what it matches.
func (p *Program) MatchPos() diag.Pos {
	if len(p.Match) > 0 {
		return p.Match[0].Field.Pos
	}
	return p.HookPos
}
