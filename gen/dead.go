package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass warns of what no packet gets to: a program's rules, one of its headers, a rule, the end of a rule. While a
// program is compiled, a trace notes which statements came of what the spec says; gen/reach knows which of them packets
// can reach.

// trace says where in the plan the rules and headers of a program are: once for each path that has them.
type trace struct {
	rules   map[*spec.Rule][][]ir.Stmt // what came of a rule's actions
	after   map[*spec.Rule][]*spec.Rule
	headers map[place][]ir.Stmt // what comes of packets that have a header
	places  []place             // the keys of headers, in the order of the stack
}

// place is a header in a place of the stack.
type place struct {
	entry  *spec.StackEntry
	header *spec.Header
}

func newTrace() *trace {
	return &trace{
		rules: map[*spec.Rule][][]ir.Stmt{}, after: map[*spec.Rule][]*spec.Rule{}, headers: map[place][]ir.Stmt{},
	}
}

// applied notes what came of a rule's actions on a path.
func (t *trace) applied(r *spec.Rule, stmts []ir.Stmt) {
	if len(stmts) > 0 {
		t.rules[r] = append(t.rules[r], slices.Clone(stmts))
	}
}

// took notes that a rule takes all packets of a path, so that the rules after it aren't compiled there.
func (t *trace) took(r *spec.Rule, after []*spec.Rule) {
	for _, later := range after {
		if !slices.Contains(t.after[later], r) {
			t.after[later] = append(t.after[later], r)
		}
	}
}

// found notes what comes of a packet that has a header in a place of the stack.
func (t *trace) found(e *spec.StackEntry, h *spec.Header, stmts []ir.Stmt) {
	at := place{e, h}
	if _, known := t.headers[at]; !known {
		t.places = append(t.places, at)
	}
	t.headers[at] = append(t.headers[at], stmts...)
}

func (c *compiler) dead() {
	for _, p := range c.programs {
		d := dead{p, reach.Of(p.out), map[ir.Stmt]bool{}}
		for s := range ir.Stmts(p.out.Body) {
			d.planned[s] = true
		}
		if !slices.ContainsFunc(p.src.Rules, d.applies) {
			d.all()
			continue
		}
		for _, at := range p.trace.places {
			d.header(at)
		}
		d.rules(p.src.Rules)
	}
}

// dead looks for what packets can't reach in a program.
type dead struct {
	p       *program
	reached *reach.Reached
	planned map[ir.Stmt]bool
}

// applies reports whether a packet gets to a rule's actions.
func (d *dead) applies(r *spec.Rule) bool {
	return slices.ContainsFunc(d.p.trace.rules[r], func(stmts []ir.Stmt) bool { return d.reached.Stmt(stmts[0]) })
}

// all warns of a program none of whose rules applies.
func (d *dead) all() {
	pos := matchPos(d.p.src)
	if len(d.p.src.Match) == 0 && d.p.src.When != nil {
		pos = d.p.src.When.Pos
	}
	w := d.p.c.diags.Warn(code.Never, pos, "no packet gets to a rule of program %q: all of them pass to the stack",
		d.p.out.Name)
	for _, r := range d.p.src.Rules {
		d.because(w, d.p.trace.rules[r])
	}
	w.WithHint("its stack, its match and its conditions exclude each other: `fastrelay-gen explain SPEC --program %s` "+
		"shows what they ask for", d.p.out.Name)
}

// header warns of one that no packet has. Where an alternative is tried, checks that lead on to the next one aren't in
// the plan as they were.
func (d *dead) header(at place) {
	var first ir.Stmt // that is in the plan
	for s := range ir.Stmts(d.p.trace.headers[at]) {
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
	pos := at.entry.Pos
	for _, n := range at.entry.Headers {
		if n.Value == at.header.Name.Value {
			pos = n.Pos
		}
	}
	w := d.p.c.diags.Warn(code.Never, pos, "no packet is found to have header %q here", at.header.Name.Value)
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
		if end := d.p.trace.rules[r]; !slices.ContainsFunc(end, d.ends) {
			w := d.p.c.diags.Warn(code.Vain, r.Pos, "the actions of this rule are never carried out: every packet "+
				"that it "+
				"applies to passes to the stack")
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
	came, front := d.p.trace.rules[r], d.p.trace.after[r]
	switch {
	case len(came) > 0 && !d.own(came):
		w := d.p.c.diags.Warn(code.Never, r.Pos, "this rule never applies: nothing that it asks for is left for it")
		d.because(w, came)
		w.WithHint("its conditions contradict what the stack, the program or a rule in front of it has decided: put " +
			"it in front, ask for something else, or leave it out")
	case len(front) > 0:
		w := d.p.c.diags.Warn(code.Never, r.Pos, "this rule never applies: all packets that it may apply to are taken "+
			"by "+
			"rules in front of it")
		for _, f := range front {
			w.WithRelated(f.Pos, "this rule takes them")
		}
		w.WithHint("put it in front of them, or leave it out")
	default:
		d.p.c.diags.Warn(code.Never, r.Pos, "this rule never applies: its match or its condition is never true").
			WithHint("it asks for a header that the stack doesn't have, for a value that there isn't, or for two " +
				"things that exclude each other")
	}
}

// own reports whether a rule's own condition keeps all packets from its actions, with nothing in front of it.
func (d *dead) own(came [][]ir.Stmt) bool {
	return !slices.ContainsFunc(came, func(stmts []ir.Stmt) bool { return !d.reached.Own(stmts[0]) })
}

// because adds what keeps packets from statements.
func (d *dead) because(w *diag.Diagnostic, came [][]ir.Stmt) {
	for _, stmts := range came {
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
