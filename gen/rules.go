package gen

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what a program does with a packet whose headers are known: match, lookups, rules, actions. The
// first rule that applies runs. Its actions are put in an order of their own: whatever can fail, then state (learn,
// count), then the packet.

// checkRules reports what is wrong with rules whatever the path.
func (p *program) checkRules(rules []*spec.Rule) {
	for i, r := range rules {
		p.checkActions(r)
		if i < len(rules)-1 && len(r.Match) == 0 && r.When == nil && !slices.ContainsFunc(r.Lookups,
			func(l *spec.Lookup) bool { return !l.Optional }) {
			p.diags.Add(code.Unused, rules[i+1].Pos,
				"this rule can never run: the one in front of it has no conditions").
				WithRelated(r.Pos, "the rule in front")
		}
		for j, a := range r.Do {
			last := j == len(r.Do)-1
			switch a.Kind {
			case spec.ActSend, spec.ActDrop, spec.ActPass, spec.ActFanOut:
				if !last {
					p.diags.Add(code.Action, a.Pos, "%s ends a rule: nothing can follow it", a.Kind)
				}
				if a.FanOut != nil {
					p.checkRules(a.FanOut.Rules)
				}
			case spec.ActSet, spec.ActPush, spec.ActPop, spec.ActBlank, spec.ActMark, spec.ActAdmit:
				if r.Do[len(r.Do)-1].Kind == spec.ActDrop {
					p.diags.Add(code.Action, a.Pos, "%s has no effect on a packet that is dropped", a.Kind)
				}
			}
		}
	}
}

// rules compiles all that a program does on one path. The block ends in a terminal.
func (s *scope) rules(blk *[]ir.Stmt) {
	src := s.p.src
	s.searches(blk)
	if done := s.require(s.matches(src.Match), src.MatchPos(), blk); done {
		return
	}
	from := s.p.names.Spec.PriorityOf(s.p.src)
	late := from != nil && s.mentions(from, src.Lookups)
	if !late {
		s.findPriority(blk)
	}
	early := src.When != nil && !s.mentions(src.When, src.Lookups)
	if early && s.when(src.When, blk) {
		return
	}
	var nest func(ir.Expr, diag.Pos)
	if s.p.trying {
		nest = func(found ir.Expr, pos diag.Pos) { emit(blk, &ir.Guard{Cond: found, Reason: next, Pos: pos}) }
	}
	s.lookups(src.Lookups, &blk, nest)
	if late {
		s.findPriority(blk)
	}
	if src.When != nil && !early && s.when(src.When, blk) {
		return
	}
	s.p.trying = false
	for i, r := range src.Rules {
		if s.rule(r, src.Rules[i+1:], blk) {
			s.p.trace.Took(r, src.Rules[i+1:])
			return
		}
	}
	emit(blk, &ir.Up{Reason: s.p.punted("no_rule", "no rule applies", src.Name.Pos), Pos: src.Name.Pos})
}

func (s *scope) matches(ms []*spec.FieldMatch) ir.Expr {
	var cond ir.Expr
	for _, m := range ms {
		cond = fold.And(cond, s.match(m))
	}
	return cond
}

func (s *scope) noMatch(pos diag.Pos) int {
	return s.p.punted("no_match", "the program's match or condition isn't true", pos)
}

// require continues only if cond holds. It returns true where the block has ended.
func (s *scope) require(cond ir.Expr, pos diag.Pos, blk *[]ir.Stmt) bool {
	switch {
	case cond == nil || fold.IsTrue(cond):
		return false
	case fold.IsFalse(cond):
		emit(blk, &ir.Up{Reason: s.noMatch(pos), Pos: pos})
		return true
	}
	emit(blk, &ir.Guard{Cond: cond, Reason: s.noMatch(pos), Rule: true, Pos: pos})
	return false
}

func (s *scope) when(e *spec.Expr, blk *[]ir.Stmt) bool {
	cond, ok := s.cond(e)
	if !ok {
		cond = fold.Bool(true)
	}
	done := s.require(cond, e.Pos, blk)
	known(e, s, true, s.facts)
	return done
}

// mentions reports whether an expression reads a row that one of the lookups finds.
func (s *scope) mentions(e *spec.Expr, ls []*spec.Lookup) bool {
	if e.Op == spec.OpName {
		for _, l := range ls {
			if l.Var.Value == e.Path[0].Value {
				return true
			}
		}
		if from := s.p.names.Spec.PriorityOf(s.p.src); from != nil && from != e && e.Path[0].Value == priorityName &&
			len(e.Path) == 1 &&
			s.rows[priorityName] == nil {
			return s.mentions(from, ls)
		}
	}
	for _, a := range e.Args {
		if s.mentions(a, ls) {
			return true
		}
	}
	return false
}

// lookups finds rows. A packet whose row is missing passes to the stack, unless nest is given: what follows then is
// where the row is there.
func (s *scope) lookups(ls []*spec.Lookup, blk **[]ir.Stmt, nest func(ir.Expr, diag.Pos)) {
	for _, l := range ls {
		t := s.p.names.Tables[l.Table.Value]
		if t == nil {
			s.p.names.NoTable(l.Table, s.p.diags)
			s.p.lost[l.Var.Value] = true
			continue
		}
		if _, taken := s.named[l.Var.Value]; taken {
			s.fail(code.Action, l.Var.Pos, "%q is the name of a value (let), and can't be that of a row", l.Var.Value).
				WithHint("give the row or the value another name")
			continue
		}
		s.checkRow(t, l)
		row := &ir.Row{Name: s.p.unique(l.Var.Value), Table: t, Optional: l.Optional || nest != nil}
		key, ok := s.values("table", t.Name, t.Pos, &t.Key, l.Key, l.Pos, "key")
		s.rows[l.Var.Value] = row
		if !ok {
			continue
		}
		miss := -1
		if !row.Optional {
			miss = s.p.punted("no_"+t.Name, "no row in "+t.Name, l.Pos)
		}
		s.p.out.Rows = append(s.p.out.Rows, row)
		changing := s.p.reason("changing", s.p.stopped(), "user space changed rows at each attempt to read one", l.Pos)
		emit(*blk, &ir.Lookup{Row: row, Key: key, Miss: miss, Changing: changing, Pos: l.Pos})
		if row.Optional && !l.Optional {
			nest(&ir.RowHas{Row: row}, l.Pos)
			s.facts[row] = true
		}
		s.narrow(t, l.Key)
	}
}

// narrow takes over into a session's fields what a header says of the field that they are looked up with, so that a row
// that no packet can find is refused when the session is opened.
func (s *scope) narrow(t *ir.Table, key []*spec.Expr) {
	if t.Session == nil {
		return
	}
	for i, e := range key {
		v, ok := s.value(e)
		if !ok || v.field == nil || v.t.Kind != ir.Uint || v.field.f.Is == nil {
			continue
		}
		for _, row := range t.Session.Rows {
			if row.Table != t || i >= len(row.Key) { // fewer: an error that is reported where the row is declared
				continue
			}
			if f := t.Session.Fields[row.Key[i]]; f.Type.Kind == ir.Uint {
				f.Is = ranges.Of(v.field.f.Is, v.max).Ranges()
			}
		}
	}
}

// values checks expressions against the visible members of a struct and pairs them up.
func (s *scope) values(kind, name string, declared diag.Pos, st *ir.Struct, es []*spec.Expr, pos diag.Pos,
	what string) ([]ir.MemberValue, bool) {
	var members []*ir.Member
	for _, m := range st.Members {
		if !m.Hidden {
			members = append(members, m)
		}
	}
	if len(members) != len(es) {
		s.p.diags.Add(code.Key, pos, "the %s of %s %q has %d members, not %d", what, kind, name, len(members),
			len(es)).
			WithRelated(declared, "the %s is declared here", kind)
		return nil, false
	}
	ok := true
	var out []ir.MemberValue
	for i, m := range members {
		v, good := s.value(es[i])
		if !good {
			ok = false
			continue
		}
		mv, good := s.memberValue(m, v, "member \""+m.Name+"\" of "+kind+" \""+name+"\"")
		ok = ok && good
		out = append(out, mv...)
	}
	return out, ok
}

func (s *scope) memberValue(m *ir.Member, v val, what string) ([]ir.MemberValue, bool) {
	mismatch := func() ([]ir.MemberValue, bool) {
		d := s.fail(code.Type, v.pos, "this is %s, but %s is %s", v.t.What(), what, m.Type.What())
		switch {
		case v.t.Kind == ir.Endpoint:
			d.WithHint("an endpoint has the parts .addr and .port")
		case v.t.Kind == ir.Bytes && m.Type.Kind == ir.Bytes:
			d.WithHint("%s", s.p.sameLength(max(v.t.Size, m.Type.Size)))
		}
		return nil, false
	}
	switch m.Type.Kind {
	case ir.Uint:
		if v.t.Kind != ir.Uint {
			return mismatch()
		}
		if !s.fitsMember(v, m, what) {
			return nil, false
		}
	case ir.Endpoint:
		if v.t.Kind != ir.Endpoint {
			return mismatch()
		}
		return []ir.MemberValue{{Member: m, Part: ir.PartAddr, Value: v.x},
			{Member: m, Part: ir.PartPort, Value: v.port}}, true
	case ir.Prefix:
		if v.t.Kind != ir.Addr {
			return mismatch()
		}
	default:
		if v.t.Kind != m.Type.Kind || v.t.Size != m.Type.Size || v.x == nil {
			return mismatch()
		}
	}
	return []ir.MemberValue{{Member: m, Value: v.x}}, true
}

// rule compiles one rule; it returns true where the block has ended with it. As in a program, a condition that doesn't
// ask for what the rule looks up comes before the lookups, so that they may rely on it. A rule that can't apply on this
// path leaves nothing there: what it says of headers that the path doesn't have is not looked at. A row that is missing
// leads on to the following rules; where none of them can apply on this path, it is why the packet passes to the stack.
func (s *scope) rule(r *spec.Rule, next []*spec.Rule, outer *[]ir.Stmt) bool {
	cond := s.matches(r.Match)
	if fold.IsFalse(cond) && cond != nil {
		return false
	}
	in := *s
	in.rows, in.facts, in.named = maps.Clone(s.rows), maps.Clone(s.facts), maps.Clone(s.named)
	blk, always := outer, true
	nest := func(c ir.Expr, pos diag.Pos) {
		if c == nil || fold.IsTrue(c) {
			return
		}
		i := &ir.If{Cond: c, Pos: pos, Note: "rule"}
		emit(blk, i)
		blk = &i.Then
		always = false
	}
	when := func() (c ir.Expr, never bool) {
		c, ok := in.cond(r.When)
		if !ok {
			return nil, false
		}
		known(r.When, &in, true, in.facts)
		return c, fold.IsFalse(c)
	}
	var early ir.Expr
	late := r.When != nil && s.mentions(r.When, r.Lookups)
	if r.When != nil && !late {
		never := false
		if early, never = when(); never {
			return false
		}
	}
	if late && !s.applies(r) {
		return false
	}
	nest(cond, r.Pos)
	if early != nil {
		nest(early, r.When.Pos)
	}
	if slices.ContainsFunc(next, s.applies) {
		in.lookups(r.Lookups, &blk, nest)
	} else {
		in.lookups(r.Lookups, &blk, nil)
	}
	if late {
		c, _ := when()
		nest(c, r.When.Pos)
	}
	before := len(*blk)
	in.actions(r, blk)
	s.p.trace.Applied(r, (*blk)[before:])
	return always
}

// applies reports whether a rule can apply on this path. It leaves no trace, and reports nothing.
func (s *scope) applies(r *spec.Rule) bool {
	in := *s
	in.quiet = true
	in.rows, in.facts = maps.Clone(s.rows), maps.Clone(s.facts)
	if cond := in.matches(r.Match); cond != nil && fold.IsFalse(cond) {
		return false
	}
	for _, l := range r.Lookups {
		if t := s.p.names.Tables[l.Table.Value]; t != nil {
			in.rows[l.Var.Value] = &ir.Row{Name: l.Var.Value, Table: t, Optional: l.Optional}
		}
	}
	if r.When == nil {
		return true
	}
	cond, ok := in.cond(r.When)
	return !ok || !fold.IsFalse(cond)
}

// actions compiles a rule's actions and ends the block.
func (s *scope) actions(r *spec.Rule, blk *[]ir.Stmt) {
	errors := s.p.diags.Len()
	w := s.newRewriter(blk, r.Pos)
	var learns, counts []ir.Stmt
	var end *spec.Action
	for _, a := range r.Do {
		switch a.Kind {
		case spec.ActLearn, spec.ActPush, spec.ActPop, spec.ActPass, spec.ActFanOut:
			if s.each != nil {
				s.p.diags.Add(code.FanOut, a.Pos, "%s has no place in the rules of a fan-out", a.Kind)
				return
			}
		}
		switch a.Kind {
		case spec.ActSet:
			w.set(a)
		case spec.ActPush:
			w.push(a)
		case spec.ActPop:
			w.pop(a)
		case spec.ActBlank:
			w.blank(a)
		case spec.ActMark:
			w.mark(a)
		case spec.ActLet:
			w.lets(a)
		case spec.ActAdmit:
			w.admit(a)
		case spec.ActEmit:
			w.emit(a)
		case spec.ActLearn:
			learns = append(learns, w.learn(a)...)
		case spec.ActCount:
			if c := w.s.count(a); c != nil {
				counts = append(counts, c)
			}
		default:
			end = a
		}
	}
	if s.p.diags.Len() > errors {
		return
	}
	state := append(learns, counts...)
	switch {
	case end != nil && end.Kind == spec.ActFanOut:
		w.fanOut(end, r, state)
	case end != nil && end.Kind == spec.ActDrop:
		w.drop(end, state)
	case end != nil && end.Kind == spec.ActSend:
		w.send(end, state)
	case s.each != nil:
		s.p.diags.Add(code.FanOut, r.Pos, "a rule of a fan-out ends with send or drop: it says what the receiver "+
			"gets")
	default:
		pos := r.Pos
		if end != nil {
			pos = end.Pos
		}
		w.finish(nil, state, pos)
	}
}

// drop ends a rule without a packet.
func (w *rewriter) drop(a *spec.Action, state []ir.Stmt) {
	if len(w.fx.Allocs) > 0 {
		w.s.fail(code.Alloc, w.fx.Allocs[0].Pos, "a number is allocated for a packet that leaves, and this rule drops "+
			"it")
		return
	}
	emit(w.blk, w.guards...)
	emit(w.blk, w.fx.late...)
	emit(w.blk, state...)
	if w.s.each != nil {
		if len(w.fx.Emits) > 0 {
			w.s.fail(code.Event, w.fx.Emits[0].Pos, "the receiver gets no copy: there is nothing to report")
			return
		}
		emit(w.blk, &ir.Skip{
			Reason: w.p.reason(a.Reason.Value, ir.Declined, "no copy, as the spec says", a.Reason.Pos), Pos: a.Pos,
		})
		return
	}
	emit(w.blk, &ir.Drop{
		Effects: w.fx.Effects, Reason: w.p.reason(a.Reason.Value, ir.Dropped, "dropped, as the spec says",
			a.Reason.Pos),
		Pos: a.Pos,
	})
}

func (w *rewriter) learn(a *spec.Action) []ir.Stmt {
	t := w.p.names.Tables[a.Table.Value]
	if t == nil {
		w.p.names.NoTable(a.Table, w.p.diags)
		return nil
	}
	bad := func(why string) []ir.Stmt {
		w.p.diags.Add(code.Learn, a.Table.Pos, "table %q can't be learned into: %s", t.Name, why).
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
	key, ok1 := w.s.values("table", t.Name, t.Pos, &t.Key, a.Key, a.Pos, "key")
	value, ok2 := w.s.values("table", t.Name, t.Pos, &t.Value, a.Value, a.Pos, "value")
	owner, ok3 := w.learnedWith(a, t)
	if !ok1 || !ok2 || !ok3 || !w.believe(a) {
		return nil
	}
	return []ir.Stmt{
		&ir.Learn{
			Table: t, Key: key, Value: append(value, owner...),
			Full: w.p.punted("full_"+t.Name, "table "+t.Name+" is full", a.Pos), Pos: a.Pos,
		},
	}
}

// learnedWith are the values that tie a row that is learned to the session of another row.
func (w *rewriter) learnedWith(a *spec.Action, t *ir.Table) (values []ir.MemberValue, ok bool) {
	if a.With == nil {
		if t.Bound() {
			w.s.fail(code.Learn, a.Pos, "other rows of table %q are learned with a session, and this one isn't",
				t.Name).
				WithHint("say whose it is (with: \"ROW\"), or learn into another table")
		}
		return nil, !t.Bound()
	}
	r := w.s.rows[a.With.Value]
	switch {
	case r == nil && w.p.lost[a.With.Value]: // its lookup is reported
		return nil, false
	case r == nil:
		w.s.fail(code.Learn, a.With.Pos, "no row %q is looked up here", a.With.Value).WithNames(a.With.Value,
			slices.Sorted(maps.Keys(w.s.rows))).
			WithHint("look a row of the session up: lookup: %s: TABLE: […]", a.With.Value)
		return nil, false
	case !r.Table.Bound() || w.p.names.Plan.Slots == 0:
		w.s.fail(code.Learn, a.With.Pos, "row %q is of no session, so nothing can end with it", a.With.Value).
			WithRelated(r.Table.Pos, "table %q is declared here", r.Table.Name)
		return nil, false
	case r.Optional && !w.s.facts[r]:
		w.s.fail(code.Maybe, a.With.Pos, "row %q may be missing here", a.With.Value).
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

func (s *scope) count(a *spec.Action) *ir.Count {
	by := val{x: fold.Num(1)}
	if a.By != nil {
		v, ok := s.integer(a.By)
		if !ok {
			return nil
		}
		by = v
	}
	e := a.Counter
	if len(e.Path) == 1 {
		name := e.Path[0].Value
		plan := s.p.names.Plan
		i := slices.IndexFunc(plan.Counters, func(c *ir.Counter) bool { return c.Name == name })
		if i < 0 {
			i = len(plan.Counters)
			plan.Counters = append(plan.Counters, &ir.Counter{Name: name, Index: i, Pos: e.Pos})
		}
		return &ir.Count{Counter: plan.Counters[i], By: by.x, Pos: a.Pos}
	}
	v, ok := s.value(e)
	if !ok {
		return nil
	}
	if !v.counter {
		s.p.diags.Add(code.Type, e.Pos, "this is %s, where a counter is wanted", v.t.What()).
			WithHint("declare the value with type \"counter\", or count by a name of its own: {count: \"NAME\"}")
		return nil
	}
	return &ir.Count{Row: v.row, Member: v.member, By: by.x, Pos: a.Pos}
}
