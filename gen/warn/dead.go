package warn

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Unreached warns of what no packet gets to: a program's rules, one of its headers, a rule, the end of a rule. A trace
// says which statements came of what the spec says; gen/reach knows which of them packets can reach.
func Unreached(t *trace.Program, diags *diag.List) {
	d := dead{t, diags, reach.Of(t.Out), map[ir.Stmt]bool{}}
	for s := range ir.Stmts(t.Out.Body) {
		d.planned[s] = true
	}
	if !slices.ContainsFunc(t.Src.Rules, d.applies) {
		d.all()
		return
	}
	for _, at := range t.Places {
		d.header(at)
	}
	d.rules(t.Src.Rules)
}

// dead looks for what packets can't reach in a program.
type dead struct {
	trace   *trace.Program
	diags   *diag.List
	reached *reach.Reached
	planned map[ir.Stmt]bool
}

// applies reports whether a packet gets to a rule's actions.
func (d *dead) applies(r *spec.Rule) bool {
	return slices.ContainsFunc(d.trace.Rules[r], func(stmts []ir.Stmt) bool { return d.reached.Stmt(stmts[0]) })
}

// all warns of a program none of whose rules applies.
func (d *dead) all() {
	pos := d.trace.Src.MatchPos()
	if len(d.trace.Src.Match) == 0 && d.trace.Src.When != nil {
		pos = d.trace.Src.When.Pos
	}
	w := d.diags.Warn(code.Never, pos, "no packet gets to a rule of program %q: all of them pass to the stack",
		d.trace.Out.Name)
	for _, r := range d.trace.Src.Rules {
		d.because(w, d.trace.Rules[r])
	}
	w.WithHint("its stack, its match and its conditions exclude each other: `fastrelay-gen explain SPEC --program %s` "+
		"shows what they ask for", d.trace.Out.Name)
}

// header warns of one that no packet has. If an alternative is tried, checks that lead on to the next one aren't in
// the plan as they were.
func (d *dead) header(at trace.Place) {
	var first ir.Stmt // that is in the plan
	for s := range ir.Stmts(d.trace.Headers[at]) {
		if d.reached.Stmt(s) {
			return
		}
		if first == nil && d.planned[s] {
			first = s
		}
	}
	if first == nil {
		return
	}
	pos := at.Entry.Pos
	for _, n := range at.Entry.Headers {
		if n.Value == at.Header.Name.Value {
			pos = n.Pos
		}
	}
	w := d.diags.Warn(code.Never, pos, "no packet is found to have header %q here", at.Header.Name.Value)
	d.excluded(w, first)
	w.WithHint("an alternative in front of it is found in all packets that have it, or what announces it is " +
		"excluded: put the alternative that asks for more in front, or leave this one out")
}

func (d *dead) rules(rs []*spec.Rule) {
	for _, r := range rs {
		if !d.applies(r) {
			d.rule(r)
			continue
		}
		if end := d.trace.Rules[r]; !slices.ContainsFunc(end, d.ends) {
			w := d.diags.Warn(code.Vain, r.Pos, "the actions of this rule are never carried out: every packet that "+
				"it applies to passes to the stack")
			d.because(w, end)
			w.WithHint("one of the values that it gives the packet can never be right: give it one that the field " +
				"can have, or leave the rule out")
		}
		for _, a := range r.Do {
			if a.FanOut != nil {
				d.rules(a.FanOut.Rules)
			}
		}
	}
}

// ends reports whether a packet gets to the end of a rule's actions, whose statements these are.
func (d *dead) ends(stmts []ir.Stmt) bool {
	for s := range ir.Stmts(stmts) {
		switch s.(type) {
		case *ir.Drop, *ir.Forward, *ir.FanOut, *ir.Copy, *ir.Skip:
			if d.reached.Stmt(s) {
				return true
			}
		}
	}
	return false
}

func (d *dead) rule(r *spec.Rule) {
	blocks, front := d.trace.Rules[r], d.trace.After[r]
	switch {
	case len(blocks) > 0 && !d.own(blocks):
		w := d.diags.Warn(code.Never, r.Pos, "this rule never applies: nothing that it asks for is left for it")
		d.because(w, blocks)
		w.WithHint("its conditions contradict what the stack, the program or a rule in front of it has decided: put " +
			"it in front, ask for something else, or leave it out")
	case len(front) > 0:
		w := d.diags.Warn(code.Never, r.Pos, "this rule never applies: all packets that it may apply to are taken by "+
			"rules in front of it")
		for _, f := range front {
			w.WithRelated(f.Pos, "this rule takes them")
		}
		w.WithHint("put it in front of them, or leave it out")
	default:
		d.diags.Warn(code.Never, r.Pos, "this rule never applies: its match or its condition is never true").
			WithHint("it asks for a header that the stack doesn't have, for a value that there isn't, or for two " +
				"things that exclude each other")
	}
}

// own reports whether a rule's own condition keeps all packets from its actions, with nothing in front of it.
func (d *dead) own(blocks [][]ir.Stmt) bool {
	return !slices.ContainsFunc(blocks, func(stmts []ir.Stmt) bool { return !d.reached.Own(stmts[0]) })
}

// because adds what keeps packets from statements.
func (d *dead) because(w *diag.Diagnostic, blocks [][]ir.Stmt) {
	for _, stmts := range blocks {
		for s := range ir.Stmts(stmts) {
			if !d.reached.Stmt(s) {
				d.excluded(w, s)
			}
		}
	}
}

// excluded adds what keeps packets from a statement, each place once.
func (d *dead) excluded(w *diag.Diagnostic, s ir.Stmt) {
	for _, pos := range d.reached.Why(s) {
		if pos != w.Pos && !slices.ContainsFunc(w.Related, func(r diag.Related) bool { return r.Pos == pos }) {
			w.WithRelated(pos, "what it asks for is excluded here")
		}
	}
}
