package diagram

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Decision is what a program decides, in stages: a packet comes to a stage from the one above, and ends there under a
// reason, or goes on to the one below.
//
// The stages are those of the spec: headers, conditions, rows, rules. Where a reason may end a packet is found in the
// plan: each of its statements has a position in the spec, and each stage has the positions of what it consists of. A
// statement belongs to the stages that have its position, but never to an earlier stage than the statements in front of
// it: what sending checks in a header belongs to the rule that sends. Declarations that several rules share (CUE's let)
// have one position; their reasons are shown at each of these rules.
type Decision struct {
	Program string
	Hook    string
	Stages  []*Stage
}

// Stage is a step of a decision.
type Stage struct {
	Title      string
	Conditions []string // what has to be true
	Actions    []string // what is done then
	Exits      []Exit   // how a packet (or in a turn, a copy) may end here
	Turn       bool     // it is tried for each receiver of the fan-out above
	Rule       bool     // if its conditions aren't true, the next one is tried
}

// Exit is an end of a packet's processing.
type Exit struct {
	Reason *ir.Reason
	Index  int  // of the reason in the program
	Shared bool // other stages have it, too: its counter is for all of them
}

// Decide makes the decision of a program from its spec and its plan.
func Decide(s *spec.Spec, p *spec.Program, plan *ir.Program) *Decision {
	d := &decider{Decision: &Decision{Program: p.Name.Value, Hook: plan.Hooks()}, spec: s, plan: plan,
		places: map[diag.Pos][]int{}}
	d.stages(p)
	d.walk(plan.Body, 0)
	d.exits()
	d.drop()
	return d.Decision
}

type decider struct {
	*Decision
	spec   *spec.Spec
	plan   *ir.Program
	places map[diag.Pos][]int // the stages that have a position
	last   []bool             // for each stage: it is there for what no other takes
	found  []map[int]bool     // for each stage, the reasons that it has
}

// stage adds a stage that consists of parts of the spec.
func (d *decider) stage(s *Stage, parts ...any) {
	n := len(d.Stages)
	d.Stages = append(d.Stages, s)
	d.last = append(d.last, false)
	d.found = append(d.found, map[int]bool{})
	seen := map[diag.Pos]bool{}
	for _, part := range parts {
		positions(reflect.ValueOf(part), func(p diag.Pos) {
			p.Len = 0
			if p.IsValid() && !seen[p] {
				seen[p] = true
				d.places[p] = append(d.places[p], n)
			}
		})
	}
}

// otherwise adds the stage of packets that no rule takes.
func (d *decider) otherwise(s *Stage, pos diag.Pos) {
	d.stage(s, pos)
	d.last[len(d.last)-1] = true
}

// positions finds all positions in a part of a spec. The rules of a fan-out are stages of their own.
func positions(v reflect.Value, yield func(diag.Pos)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			positions(v.Elem(), yield)
		}
	case reflect.Slice:
		for i := range v.Len() {
			positions(v.Index(i), yield)
		}
	case reflect.Struct:
		if p, ok := v.Interface().(diag.Pos); ok {
			yield(p)
			return
		}
		for i := range v.NumField() {
			if _, rules := v.Field(i).Interface().([]*spec.Rule); !rules {
				positions(v.Field(i), yield)
			}
		}
	}
}

func (d *decider) stages(p *spec.Program) {
	d.stage(&Stage{Title: "packet at " + d.Hook}, p.Name.Pos, p.Pos, p.HookPos)
	for _, e := range p.Stack {
		d.header(e)
	}
	if len(p.Match) > 0 || p.When != nil {
		d.stage(&Stage{Title: "condition", Conditions: conditions(p.Match, p.When)}, p.Match, p.When)
	}
	if len(p.Lookups) > 0 {
		d.stage(&Stage{Title: plural(len(p.Lookups), "row"), Conditions: lookups(p.Lookups)}, p.Lookups)
	}
	for i, r := range p.Rules {
		d.rule(fmt.Sprintf("rule %d", i+1), r, false)
	}
	if len(p.Rules) == 1 && !selective(p.Rules[0]) {
		for _, s := range d.Stages {
			s.Title = pick(s.Title == "rule 1", "do", s.Title)
		}
	}
	if n := len(p.Rules); n > 0 && selective(p.Rules[n-1]) {
		d.otherwise(&Stage{Title: "no rule"}, p.Name.Pos)
	}
}

// selective reports whether a rule may leave a packet to the next one.
func selective(r *spec.Rule) bool { return len(r.Match) > 0 || r.When != nil || len(r.Lookups) > 0 }

func (d *decider) header(e *spec.StackEntry) {
	parts := []any{e}
	var names []string
	for _, n := range d.resolve(e.Headers) {
		for _, h := range d.spec.Headers {
			if h.Name.Value == n {
				parts, names = append(parts, h), append(names, n)
				break // the user's header comes before a standard one of the same name
			}
		}
	}
	s := &Stage{Title: "header " + e.Var.Value}
	if len(names) != 1 || names[0] != e.Var.Value {
		s.Conditions = append(s.Conditions, strings.Join(names, " or "))
	}
	if e.Optional {
		s.Conditions = append(s.Conditions, "if it is there")
	}
	if e.After != nil {
		s.Conditions = append(s.Conditions, "after the content of "+e.After.Value)
	}
	d.stage(s, parts...)
}

// resolve replaces names of alternatives by those of their headers.
func (d *decider) resolve(names []spec.Name) (all []string) {
	for _, n := range names {
		i := slices.IndexFunc(d.spec.Alternatives, func(a *spec.Alternatives) bool { return a.Name.Value == n.Value })
		if i < 0 {
			all = append(all, n.Value)
			continue
		}
		for _, h := range d.spec.Alternatives[i].Headers {
			all = append(all, h.Value)
		}
	}
	return all
}

func (d *decider) rule(title string, r *spec.Rule, turn bool) {
	s := &Stage{Title: title, Conditions: append(lookups(r.Lookups), conditions(r.Match, r.When)...), Turn: turn,
		Rule: selective(r)}
	d.stage(s, r)
	for _, a := range r.Do {
		if a.Kind != spec.ActFanOut {
			s.Actions = append(s.Actions, does(a, turn))
			continue
		}
		s.Actions = append(s.Actions, "fan out "+row(a.FanOut.Group, a.FanOut.Key))
		for i, r := range a.FanOut.Rules {
			d.rule(fmt.Sprintf("%s.%d, for each receiver", title, i+1), r, true)
		}
		if n := len(a.FanOut.Rules); n > 0 && selective(a.FanOut.Rules[n-1]) {
			d.otherwise(&Stage{Title: title + ": no rule for a receiver", Turn: true}, a.FanOut.Pos)
		}
	}
}

func lookups(all []*spec.Lookup) (lines []string) {
	for _, l := range all {
		lines = append(lines, l.Var.Value+pick(l.Optional, "?", "")+" = "+row(l.Table, l.Key))
	}
	return lines
}

// row writes which row of a table, or which group, is meant.
func row(table spec.Name, key []*spec.Expr) string {
	var parts []string
	for _, k := range key {
		parts = append(parts, expression(k))
	}
	return table.Value + "[" + strings.Join(parts, ", ") + "]"
}

func conditions(match []*spec.FieldMatch, when *spec.Expr) (lines []string) {
	for _, m := range match {
		lines = append(lines, expression(m.Field)+" is "+constraint(m.Is))
	}
	if when != nil {
		lines = append(lines, expression(when))
	}
	return lines
}

// does writes what a rule does; turn: for one receiver.
func does(a *spec.Action, turn bool) string {
	switch a.Kind {
	case spec.ActSend:
		return pick(turn, "copy", "send") + ends(a)
	case spec.ActDrop:
		return pick(turn, "no copy", "drop") + ": " + a.Reason.Value
	case spec.ActPush:
		text := "push " + a.Header.Value
		if a.Before != nil {
			text += " before " + a.Before.Value
		}
		if len(a.Set) > 0 {
			text += ": " + assigns(a.Set)
		}
		return text
	case spec.ActPop:
		return "pop " + a.Header.Value
	case spec.ActLearn:
		var values []string
		for _, v := range a.Value {
			values = append(values, expression(v))
		}
		text := "learn " + row(a.Table, a.Key) + " = " + strings.Join(values, ", ")
		if a.Verified != nil {
			text += " (checksum of " + a.Verified.Value + " verified)"
		}
		if a.With != nil {
			text += ", until the session of " + a.With.Value + " ends"
		}
		return text
	case spec.ActAdmit:
		text := action(a)
		if !turn {
			text = strings.Replace(text, "; else no copy", pick(a.Else != nil, "; else drop", "; else to the stack"), 1)
		}
		return text
	}
	return action(a)
}

// ending is a reason that a statement may end a packet under.
type ending struct {
	pos    diag.Pos
	reason int
}

// endings are the reasons of a statement, without those of the statements in its blocks.
func endings(s ir.Stmt) (all []ending) {
	at := func(pos diag.Pos, reasons ...int) {
		for _, r := range reasons {
			if r >= 0 {
				all = append(all, ending{pos, r})
			}
		}
	}
	pos := ir.Pos(s)
	switch s := s.(type) {
	case *ir.NeedBytes:
		at(pos, s.Reason)
	case *ir.Guard:
		at(pos, s.Reason)
	case *ir.ReadVarint:
		at(pos, s.Reason)
	case *ir.Lookup:
		at(pos, s.Miss, s.Changing)
	case *ir.Learn:
		at(pos, s.Full)
	case *ir.CheckHop:
		at(pos, s.Reasons[:]...)
		at(pos, s.TooBig)
	case *ir.Translate:
		at(pos, s.Unfinished, s.Full)
	case *ir.Punt:
		at(pos, s.Reason)
	case *ir.Drop:
		at(pos, s.Reason)
	case *ir.Skip:
		at(pos, s.Reason)
	case *ir.Forward:
		at(pos, s.Reason, s.NoRoom, s.Fault)
	case *ir.FanOut:
		at(pos, s.Miss, s.Reason, s.NoRoom, s.Fault)
	case *ir.Copy:
		at(pos, s.Reason, s.Failed)
	}
	if e := ir.EffectsOf(s); e != nil {
		for _, x := range e.Emits {
			at(x.Pos, x.Full)
		}
		for _, x := range e.Admits {
			at(x.Pos, x.Refused, x.Contended)
		}
		for _, x := range e.Learns {
			at(x.Pos, x.Full)
		}
	}
	return all
}

// walk notes the reasons of a block. The packet has come to a stage before; it returns the one that it has come to.
func (d *decider) walk(block []ir.Stmt, stage int) {
	for _, s := range block {
		ends := endings(s)
		if _, branch := s.(*ir.If); branch || len(ends) > 0 { // others may be in front of what needs them
			stage = d.at(ir.Pos(s), stage)[0]
		}
		for _, e := range ends {
			for _, n := range d.at(e.pos, stage) {
				d.found[n][e.reason] = true
			}
		}
		for inner := range ir.Blocks(s) {
			next := stage
			if _, fan := s.(*ir.FanOut); fan && stage+1 < len(d.Stages) {
				next++ // the first rule for a receiver
			}
			d.walk(*inner, next)
		}
	}
}

// at returns the stages of a position, from a stage on: one of a header, or all rules that have it.
func (d *decider) at(pos diag.Pos, from int) []int {
	pos.Len = 0
	var later []int
	for _, n := range d.places[pos] {
		if n >= from {
			later = append(later, n)
		}
	}
	slices.Sort(later)
	if strong := slices.DeleteFunc(slices.Clone(later), func(n int) bool { return d.last[n] }); len(strong) > 0 {
		later = strong
	}
	switch {
	case len(later) == 0:
		return []int{from}
	case len(d.Stages[later[0]].Actions) == 0:
		return later[:1] // two headers of a kind: the nearer one
	}
	return later
}

// exits orders the reasons of each stage: what it is for first, then as in the plan.
func (d *decider) exits() {
	places := map[int]int{}
	for _, reasons := range d.found {
		for r := range reasons {
			places[r]++
		}
	}
	for n, s := range d.Stages {
		for i, r := range d.plan.Reasons {
			if d.found[n][i] {
				s.Exits = append(s.Exits, Exit{Reason: r, Index: i, Shared: places[i] > 1})
			}
		}
		slices.SortStableFunc(s.Exits, func(a, b Exit) int {
			return slices.Index(kinds, a.Reason.Kind) - slices.Index(kinds, b.Reason.Kind)
		})
	}
}

// drop removes stages for what no rule takes if there is nothing of the kind: a missing row of the last rule is its
// own reason.
func (d *decider) drop() {
	var kept []*Stage
	for n, s := range d.Stages {
		if !d.last[n] || len(s.Exits) > 0 {
			kept = append(kept, s)
		}
	}
	d.Stages = kept
}

// kinds of reasons, in the order in which they are shown.
var kinds = []ir.ReasonKind{ir.Sent, ir.Copied, ir.Passed, ir.Dropped, ir.Punted, ir.Declined, ir.Fault}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// byKind are the names of a stage's reasons, by their index in kinds.
func (s *Stage) byKind() iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		for i, kind := range kinds {
			var names []string
			for _, e := range s.Exits {
				if e.Reason.Kind == kind {
					names = append(names, e.Reason.Name)
				}
			}
			if len(names) > 0 && !yield(i, names) {
				return
			}
		}
	}
}
