// Package rules compiles what a program does with a packet whose headers are known: match, lookups, rules, actions. The
// first rule that applies runs. Its actions are put in an order of their own: whatever can fail, then state (learn,
// count), then the packet, which package rewrite makes. A scope goes in that has a path; what is compiled is appended
// to a block, which then has an end.
package rules

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/gen/rewrite"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Check reports what is wrong with rules whatever the path.
func Check(p *draft.Program, rules []*spec.Rule) {
	for i, r := range rules {
		checkActions(p, r)
		if i < len(rules)-1 && len(r.Match) == 0 && r.When == nil && !slices.ContainsFunc(r.Lookups,
			func(l *spec.Lookup) bool { return !l.Optional }) {
			p.Diags.Add(code.Unused, rules[i+1].Pos,
				"this rule can never run: the one in front of it has no conditions").
				WithRelated(r.Pos, "the rule in front")
		}
		for j, a := range r.Do {
			last := j == len(r.Do)-1
			switch {
			case a.Kind == spec.ActSend, a.Kind == spec.ActDrop, a.Kind == spec.ActPass, a.Kind == spec.ActFanOut:
				if !last {
					p.Diags.Add(code.Action, a.Pos, "%s ends a rule: nothing can follow it", a.Kind)
				}
				if a.FanOut != nil {
					Check(p, a.FanOut.Rules)
				}
			case a.Kind.Edits(), a.Kind == spec.ActAdmit:
				if r.Do[len(r.Do)-1].Kind == spec.ActDrop {
					p.Diags.Add(code.Action, a.Pos, "%s has no effect on a packet that is dropped", a.Kind)
				}
			}
		}
	}
}

// Compile compiles all that a program does on one path. The block ends in a terminal.
func Compile(s *expr.Scope, blk *[]ir.Stmt) {
	src := s.Program.Src
	s.Searches(blk)
	if done := require(s, matches(s, src.Match), src.MatchPos(), blk); done {
		return
	}
	from := s.Program.Names.Spec.PriorityOf(s.Program.Src)
	late := from != nil && s.Mentions(from, src.Lookups)
	if !late {
		s.FindPriority(blk)
	}
	early := src.When != nil && !s.Mentions(src.When, src.Lookups)
	if early && requireWhen(s, src.When, blk) {
		return
	}
	var nest func(ir.Expr, diag.Pos)
	if s.Program.Stop == draft.TryNext {
		nest = func(found ir.Expr, pos diag.Pos) {
			draft.Emit(blk, &ir.Guard{Cond: found, Reason: draft.Next, Pos: pos})
		}
	}
	lookUp(s, src.Lookups, &blk, nest)
	if late {
		s.FindPriority(blk)
	}
	if src.When != nil && !early && requireWhen(s, src.When, blk) {
		return
	}
	s.Program.Stop = draft.PassToStack
	for i, r := range src.Rules {
		if compileRule(s, r, src.Rules[i+1:], blk) {
			s.Program.Trace.Took(r, src.Rules[i+1:])
			return
		}
	}
	draft.Emit(blk, &ir.Punt{Reason: s.Program.Punted("no_rule", "no rule applies", src.Name.Pos), Pos: src.Name.Pos})
}

func matches(s *expr.Scope, ms []*spec.FieldMatch) ir.Expr {
	var cond ir.Expr
	for _, m := range ms {
		cond = fold.And(cond, s.Match(m))
	}
	return cond
}

func noMatch(s *expr.Scope, pos diag.Pos) int {
	return s.Program.Punted("no_match", "the program's match or condition isn't true", pos)
}

// require continues only if cond holds. It returns true if the block has ended.
func require(s *expr.Scope, cond ir.Expr, pos diag.Pos, blk *[]ir.Stmt) bool {
	switch {
	case cond == nil || fold.IsTrue(cond):
		return false
	case fold.IsFalse(cond):
		draft.Emit(blk, &ir.Punt{Reason: noMatch(s, pos), Pos: pos})
		return true
	}
	draft.Emit(blk, &ir.Guard{Cond: cond, Reason: noMatch(s, pos), Rule: true, Pos: pos})
	return false
}

func requireWhen(s *expr.Scope, e *spec.Expr, blk *[]ir.Stmt) bool {
	cond, ok := s.Cond(e)
	if !ok {
		cond = fold.Bool(true)
	}
	done := require(s, cond, e.Pos, blk)
	expr.Known(e, s, true, s.Facts)
	return done
}

// lookUp finds rows. A packet whose row is missing passes to the stack, unless nest is given: what follows then is
// where the row is there.
func lookUp(s *expr.Scope, ls []*spec.Lookup, blk **[]ir.Stmt, nest func(ir.Expr, diag.Pos)) {
	for _, l := range ls {
		t := s.Program.Names.Tables[l.Table.Value]
		if t == nil {
			s.Program.Names.NoTable(l.Table, s.Program.Diags)
			s.Program.Lost[l.Var.Value] = true
			continue
		}
		if _, taken := s.Named[l.Var.Value]; taken {
			s.Fail(code.Action, l.Var.Pos, "%q is the name of a value (let), and can't be that of a row", l.Var.Value).
				WithHint("give the row or the value another name")
			continue
		}
		checkRow(s, t, l)
		row := &ir.Row{Name: s.Program.Unique(l.Var.Value), Table: t, Optional: l.Optional || nest != nil}
		key, ok := s.Values("table", t.Name, t.Pos, &t.Key, l.Key, l.Pos, "key")
		s.Rows[l.Var.Value] = row
		if !ok {
			continue
		}
		miss := -1
		if !row.Optional {
			miss = s.Program.Punted("no_"+t.Name, "no row in "+t.Name, l.Pos)
		}
		s.Program.Out.Rows = append(s.Program.Out.Rows, row)
		changing := s.Program.Reason("changing", s.Program.Stopped(), "user space changed rows at each attempt to "+
			"read one", l.Pos)
		draft.Emit(*blk, &ir.Lookup{Row: row, Key: key, Miss: miss, Changing: changing, Pos: l.Pos})
		if row.Optional && !l.Optional {
			nest(&ir.RowHas{Row: row}, l.Pos)
			s.Facts[row] = true
		}
		narrow(s, t, l.Key)
	}
}

// narrow takes over into a session's fields what a header says of the field that they are looked up with, so that a row
// that no packet can find is refused when the session is opened.
func narrow(s *expr.Scope, t *ir.Table, key []*spec.Expr) {
	if t.Session == nil {
		return
	}
	for i, e := range key {
		v, ok := s.Value(e)
		if !ok || v.Field == nil || v.Type.Kind != ir.Uint || v.Field.Decl.Is == nil {
			continue
		}
		for _, row := range t.Session.Rows {
			if row.Table != t || i >= len(row.Key) { // fewer: an error that is reported where the row is declared
				continue
			}
			if f := t.Session.Fields[row.Key[i]]; f.Type.Kind == ir.Uint {
				f.Is = ranges.Of(v.Field.Decl.Is, v.Max).Ranges()
			}
		}
	}
}

// compileRule compiles one rule; it returns true if the block has ended with it. As in a program, a condition that
// doesn't ask for what the rule looks up comes before the lookups, so that they may rely on it. A rule that can't apply
// on this path leaves nothing there: what it says of headers that the path doesn't have is not looked at. A row that is
// missing leads on to the following rules; if none of them can apply on this path, it is why the packet passes to
// the stack.
func compileRule(s *expr.Scope, r *spec.Rule, next []*spec.Rule, outer *[]ir.Stmt) bool {
	cond := matches(s, r.Match)
	if fold.IsFalse(cond) && cond != nil {
		return false
	}
	in := *s
	in.Rows, in.Facts, in.Named = maps.Clone(s.Rows), maps.Clone(s.Facts), maps.Clone(s.Named)
	blk, always := outer, true
	nest := func(c ir.Expr, pos diag.Pos) {
		if c == nil || fold.IsTrue(c) {
			return
		}
		i := &ir.If{Cond: c, Pos: pos, Note: "rule"}
		draft.Emit(blk, i)
		blk = &i.Then
		always = false
	}
	when := func() (c ir.Expr, never bool) {
		c, ok := in.Cond(r.When)
		if !ok {
			return nil, false
		}
		expr.Known(r.When, &in, true, in.Facts)
		return c, fold.IsFalse(c)
	}
	var early ir.Expr
	late := r.When != nil && s.Mentions(r.When, r.Lookups)
	if r.When != nil && !late {
		never := false
		if early, never = when(); never {
			return false
		}
	}
	if late && !applies(s, r) {
		return false
	}
	nest(cond, r.Pos)
	if early != nil {
		nest(early, r.When.Pos)
	}
	if slices.ContainsFunc(next, func(r *spec.Rule) bool { return applies(s, r) }) {
		lookUp(&in, r.Lookups, &blk, nest)
	} else {
		lookUp(&in, r.Lookups, &blk, nil)
	}
	if late {
		c, _ := when()
		nest(c, r.When.Pos)
	}
	before := len(*blk)
	compileActions(&in, r, blk)
	s.Program.Trace.Applied(r, (*blk)[before:])
	return always
}

// applies reports whether a rule can apply on this path. It leaves no trace, and reports nothing.
func applies(s *expr.Scope, r *spec.Rule) bool {
	in := *s
	in.Diags = &diag.List{}
	in.Rows, in.Facts = maps.Clone(s.Rows), maps.Clone(s.Facts)
	if cond := matches(&in, r.Match); cond != nil && fold.IsFalse(cond) {
		return false
	}
	for _, l := range r.Lookups {
		if t := s.Program.Names.Tables[l.Table.Value]; t != nil {
			in.Rows[l.Var.Value] = &ir.Row{Name: l.Var.Value, Table: t, Optional: l.Optional}
		}
	}
	if r.When == nil {
		return true
	}
	cond, ok := in.Cond(r.When)
	return !ok || !fold.IsFalse(cond)
}

// compileActions compiles a rule's actions and ends the block.
func compileActions(s *expr.Scope, r *spec.Rule, blk *[]ir.Stmt) {
	errors := s.Program.Diags.Len()
	w := edit.New(s, blk, r.Pos)
	var learns, counts []ir.Stmt
	var end *spec.Action
	for _, a := range r.Do {
		switch a.Kind {
		case spec.ActLearn, spec.ActPush, spec.ActPop, spec.ActPass, spec.ActFanOut:
			if s.Each != nil {
				s.Program.Diags.Add(code.FanOut, a.Pos, "%s has no place in the rules of a fan-out", a.Kind)
				return
			}
		}
		switch a.Kind {
		case spec.ActSet:
			w.Set(a)
		case spec.ActPush:
			w.Push(a)
		case spec.ActPop:
			w.Pop(a)
		case spec.ActMark:
			w.Mark(a)
		case spec.ActLet:
			lets(w, a)
		case spec.ActAdmit:
			admit(w, a)
		case spec.ActEmit:
			report(w, a)
		case spec.ActLearn:
			learns = append(learns, learn(w, a)...)
		case spec.ActCount:
			if c := count(w.Scope, a); c != nil {
				counts = append(counts, c)
			}
		default:
			if a.Kind.OnHeader() {
				w.Fill(a)
			} else {
				end = a
			}
		}
	}
	ended(w, end)
	if s.Program.Diags.Len() > errors {
		return
	}
	state := append(learns, counts...)
	switch {
	case end != nil && end.Kind == spec.ActFanOut:
		fanOut(w, end, r, state)
	case end != nil && end.Kind == spec.ActDrop:
		drop(w, end, state)
	case end != nil && end.Kind == spec.ActSend:
		send(w, end, state)
	case s.Each != nil:
		s.Program.Diags.Add(code.FanOut, r.Pos, "a rule of a fan-out ends with send or drop: it says what the "+
			"receiver gets")
	default:
		pos := r.Pos
		if end != nil {
			pos = end.Pos
		}
		rewrite.Finish(&edit.Departure{Packet: w, Pos: pos}, state)
	}
}

// send ends a rule with a packet that is sent.
func send(w *edit.Packet, a *spec.Action, state []ir.Stmt) {
	departures, branch := w.Send(a)
	for _, d := range departures {
		rewrite.Finish(d, state)
	}
	if branch != nil {
		rewrite.Join(w, branch)
	}
}

// drop ends a rule without a packet.
func drop(w *edit.Packet, a *spec.Action, state []ir.Stmt) {
	if len(w.Effects.Allocs) > 0 {
		w.Scope.Fail(code.Alloc, w.Effects.Allocs[0].Pos, "a number is allocated for a packet that leaves, and this "+
			"rule drops it")
		return
	}
	draft.Emit(w.Blk, w.Guards...)
	draft.Emit(w.Blk, w.Effects.Late...)
	draft.Emit(w.Blk, state...)
	if w.Scope.Each != nil {
		var reports []diag.Pos
		for _, s := range w.Effects.Emits {
			reports = append(reports, s.Pos)
		}
		for _, s := range w.Effects.Entries {
			reports = append(reports, s.Pos)
		}
		if len(reports) > 0 {
			w.Scope.Fail(code.Event, reports[0], "the receiver gets no copy: there is nothing to report")
			return
		}
		draft.Emit(w.Blk, &ir.Skip{
			Reason: w.Program.Reason(a.Reason.Value, ir.Declined, "no copy, as the spec says", a.Reason.Pos),
			Pos:    a.Pos,
		})
		return
	}
	draft.Emit(w.Blk, &ir.Drop{
		Effects: w.Effects.Effects, Reason: w.Program.Reason(a.Reason.Value, ir.Dropped, "dropped, as the spec says",
			a.Reason.Pos),
		Pos: a.Pos,
	})
}

func learn(w *edit.Packet, a *spec.Action) []ir.Stmt {
	t := w.Program.Names.Tables[a.Table.Value]
	if t == nil {
		w.Program.Names.NoTable(a.Table, w.Program.Diags)
		return nil
	}
	bad := func(why string) []ir.Stmt {
		w.Program.Diags.Add(code.Learn, a.Table.Pos, "table %q can't be learned into: %s", t.Name, why).
			WithRelated(t.Pos, "the table is declared here")
		return nil
	}
	switch {
	case t.Session != nil:
		return bad("its rows belong to session \"" + t.Session.Name + "\"")
	case t.Kind == "lpm" || t.Kind == "array":
		return bad("its kind is " + t.Kind)
	case t.PerCPU:
		return bad("it is per CPU")
	}
	for _, m := range t.Value.Members {
		if k := m.Type.Kind; k == ir.Hop || k == ir.NextHop || k.IsIndex() {
			return bad("its value \"" + m.Name + "\" is kept by user space")
		}
		if m.Type.Levels > 0 {
			return bad("its value \"" + m.Name + "\" has one for each level of priority")
		}
	}
	key, ok1 := w.Scope.Values("table", t.Name, t.Pos, &t.Key, a.Key, a.Pos, "key")
	value, ok2 := w.Scope.Values("table", t.Name, t.Pos, &t.Value, a.Value, a.Pos, "value")
	owner, ok3 := learnedWith(w, a, t)
	if !ok1 || !ok2 || !ok3 || !believe(w, a) {
		return nil
	}
	return []ir.Stmt{
		&ir.Learn{
			Table: t, Key: key, Value: append(value, owner...),
			Full: w.Program.Punted("full_"+t.Name, "table "+t.Name+" is full", a.Pos), Pos: a.Pos,
		},
	}
}

// learnedWith are the values that tie a row that is learned to the session of another row.
func learnedWith(w *edit.Packet, a *spec.Action, t *ir.Table) (values []ir.MemberValue, ok bool) {
	if a.With == nil {
		if t.Bound() {
			w.Scope.Fail(code.Learn, a.Pos, "other rows of table %q are learned with a session, and this one isn't",
				t.Name).
				WithHint("say whose it is (with: \"ROW\"), or learn into another table")
		}
		return nil, !t.Bound()
	}
	r := w.Scope.Rows[a.With.Value]
	switch {
	case r == nil && w.Program.Lost[a.With.Value]: // its lookup is reported
		return nil, false
	case r == nil:
		w.Scope.Fail(code.Learn, a.With.Pos, "no row %q is looked up here", a.With.Value).WithNames(a.With.Value,
			slices.Sorted(maps.Keys(w.Scope.Rows))).
			WithHint("look a row of the session up: lookup: %s: TABLE: […]", a.With.Value)
		return nil, false
	case !r.Table.Bound() || w.Program.Names.Plan.Slots == 0:
		w.Scope.Fail(code.Learn, a.With.Pos, "row %q is of no session, so nothing can end with it", a.With.Value).
			WithRelated(r.Table.Pos, "table %q is declared here", r.Table.Name)
		return nil, false
	case r.Optional && !w.Scope.Facts[r]:
		w.Scope.Fail(code.Maybe, a.With.Pos, "row %q may be missing here", a.With.Value).
			WithHint("ask for it in the rule's condition: when")
		return nil, false
	}
	link := func(of *ir.Table) []*ir.Member {
		return slices.DeleteFunc(slices.Clone(of.Value.Members), func(m *ir.Member) bool {
			return !m.Hidden || m.Name != abi.MemberSlot && m.Name != abi.MemberGen
		})
	}
	from := link(r.Table)
	for i, m := range link(t) {
		values = append(values, ir.MemberValue{Member: m, Value: &ir.RowMember{Row: r, Member: from[i]}})
	}
	return values, true
}

func count(s *expr.Scope, a *spec.Action) *ir.Count {
	by := expr.Value{X: fold.Num(1)}
	if a.By != nil {
		v, ok := s.Integer(a.By)
		if !ok {
			return nil
		}
		by = v
	}
	e := a.Counter
	if len(e.Path) == 1 {
		name := e.Path[0].Value
		plan := s.Program.Names.Plan
		i := slices.IndexFunc(plan.Counters, func(c *ir.Counter) bool { return c.Name == name })
		if i < 0 {
			i = len(plan.Counters)
			plan.Counters = append(plan.Counters, &ir.Counter{Name: name, Index: i, Pos: e.Pos})
		}
		return &ir.Count{Counter: plan.Counters[i], By: by.X, Pos: a.Pos}
	}
	v, ok := s.Value(e)
	if !ok {
		return nil
	}
	if !v.Counter {
		s.Program.Diags.Add(code.Type, e.Pos, "this is %s, where a counter is wanted", v.Type.What()).
			WithHint("declare the value with type \"counter\", or count by a name of its own: {count: \"NAME\"}")
		return nil
	}
	return &ir.Count{Row: v.Row, Member: v.Member, By: by.X, Pos: a.Pos}
}

// CheckLapsed reports a program that would send packets without a lease.
func CheckLapsed(p *draft.Program) {
	if !p.Asks(spec.Lapsed) {
		return
	}
	for a := range spec.Actions(p.Src.Rules) {
		if a.Kind == spec.ActSend || a.Kind == spec.ActFanOut {
			p.Diags.Add(code.Lapsed, a.Pos, "a program that runs without a lease can't %s packets", a.Kind).
				WithHint("its expressions say %s; rules that send belong into another program", spec.Lapsed)
		}
	}
}

// believe makes sure of the checksum that a rule asks for before it learns. If it asks for none, although there is
// one, that is pointed out.
func believe(w *edit.Packet, a *spec.Action) bool {
	if a.Verified == nil {
		i := slices.IndexFunc(w.Scope.Path, func(in *draft.Header) bool { return edit.SumOver(in.Decl) != nil })
		if i >= 0 && !a.Unverified && w.Program.Ingress() {
			w.Program.Diags.Warn(code.Unverified, a.Pos, "what is learned isn't verified: a packet with a wrong "+
				"checksum changes table %q, too", a.Table.Value).
				WithHint("verify it: verified: %q; or say that it does no harm: verified: false", w.Scope.Path[i].Entry)
		}
		return true
	}
	name := a.Verified.Value
	in, known := w.Scope.Find(name)
	switch {
	case in == nil && !known:
		w.Scope.Fail(code.Learn, a.Verified.Pos, "no header %q in the stack", name).WithNames(name, w.Scope.Visible())
		return false
	case in == nil:
		w.Scope.Fail(code.Learn, a.Verified.Pos, "header %q can't be verified: not every packet of this rule has it",
			name).
			WithHint("ask for it in the rule: match, when")
		return false
	case edit.SumOver(in.Decl) == nil:
		w.Scope.Fail(code.Learn, a.Verified.Pos, "header %q can't be verified: it has no checksum over what follows it",
			name).
			WithRelated(in.Decl.Name.Pos, "the header is declared here")
		return false
	}
	w.Summable(fold.Bin(ir.Sub, in.Inner, fold.Off(in.Off)), a.Verified.Pos)
	w.VerifyWhole(in, in.Fields[edit.SumOver(in.Decl).Name.Value], false, a.Verified.Pos)
	return true
}

// checkActions reports actions that a rule of this hook can't have.
func checkActions(p *draft.Program, r *spec.Rule) {
	if !p.Congestion() {
		return
	}
	for _, a := range r.Do {
		if a.Else != nil {
			p.Diags.Add(code.Congestion, a.Else.Pos, "nothing can be dropped at %s: there is no packet",
				ir.Congestion)
		}
		switch a.Kind {
		case spec.ActSet, spec.ActLet, spec.ActCount, spec.ActLearn, spec.ActEmit, spec.ActAdmit, spec.ActPass:
		default:
			p.Diags.Add(code.Congestion, a.Pos, "%s has no meaning at %s: there is no packet", a.Kind, ir.Congestion).
				WithHint("there are set, let, count, learn, emit, admit and pass")
		}
	}
}

// checkRow reports a table whose rows a program of this hook can't look up. It may be interrupted by another one on the
// same processor, so what it reads is copied to its stack, where each access has to be aligned.
func checkRow(s *expr.Scope, t *ir.Table, l *spec.Lookup) {
	if !s.Program.Congestion() || t.Kind == "lpm" {
		return
	}
	for _, m := range t.Value.Members {
		if k := m.Type.One().Kind; k != ir.Uint && k != ir.Bool && !k.IsIndex() || t.Value.Size > maxRow {
			s.Fail(code.Congestion, l.Pos, "at %s rows consist of integers, of at most %d bytes together",
				ir.Congestion,
				maxRow).WithRelated(t.Pos, "the table is declared here")
			return
		}
	}
}

const maxRow = 64 // bytes of a row on the stack
