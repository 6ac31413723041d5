package c

import (
	"maps"
	"slices"
)

// Two functions that are alike become one, which a flag tells which of the two it is: what both do stands once, what
// they differ in stands under the flag. Since functions are inlined, and flags are constants then, that costs nothing.
//
// Statements of the two are paired (unify.go). What is between those that are a pair is in only one of the two: it
// stands in a branch. What such a branch declares for later is declared in front of it.

// Meeting is what two functions have in common.
type Meeting struct {
	flag Expr // true: it is the second one
	list []joint
	a, b *Prepared
	// variables of the first one, and the ones of the second one that they are
	partner [2]map[*Local]*Local
	rules   MeetingRules
	trail   []*Local // of the first one, in the order in which they got partners
	param   *Param   // the flag, if it is one
	failed  bool
}

// Prepared is a function with what is known of it for comparison with others. It isn't valid any more once the
// function changes.
type Prepared struct {
	f        *Func
	items    []item
	shapes   map[string]int // and frames, and how often the function has them
	declared map[*Local]Declare
	mentions map[*Local]int
}

// Prepare finds out what is to be known of a function. A name that constant reports is that of a constant.
func Prepare(f *Func, constant func(Ident) bool) *Prepared {
	p := &Prepared{
		f: f, items: shaper{constant}.items(f.Body), shapes: map[string]int{}, declared: map[*Local]Declare{},
		mentions: map[*Local]int{},
	}
	p.count(p.items)
	Each(f.Body, func(s Stmt) {
		d, ok := s.(*Declare)
		if !ok {
			return
		}
		for _, v := range d.Vars {
			if local, ok := v.Name.(*Local); ok {
				p.declared[local] = Declare{Type: d.Type, Vars: []Var{v}}
				p.mentions[local]++
			}
		}
	})
	Exprs(f.Body, func(x Expr) {
		if local, ok := x.(*Local); ok {
			p.mentions[local]++
		}
	})
	for _, x := range f.Params {
		if local, ok := x.Name.(*Local); ok {
			p.mentions[local] += 0
		}
	}
	return p
}

func (p *Prepared) count(items []item) {
	for _, x := range items {
		if _, ok := x.s.(*Block); !ok {
			p.shapes[x.shape]++
			if x.frame != "" {
				p.shapes["="+x.frame]++
			}
		}
		for _, block := range x.blocks {
			p.count(block)
		}
	}
}

// has reports whether a function mentions a variable.
func (p *Prepared) has(x *Local) bool {
	_, ok := p.mentions[x]
	return ok
}

// Common is how many statements two functions can have in common at most.
func (p *Prepared) Common(q *Prepared) (n int) {
	for shape, times := range p.shapes {
		n += min(times, q.shapes[shape])
	}
	return n
}

// MeetingRules say what may be unified.
type MeetingRules struct {
	// SameParam reports whether a parameter of the first function can be one of the second one.
	SameParam func(x, y *Local) bool
	// Spare reports whether a parameter can be left out of a call if nothing reads it.
	Spare func(p Param) bool
	// Integer reports whether a function returns an integer.
	Integer func(name string) bool
	// Constant reports whether a name is that of an integer constant.
	Constant func(Ident) bool
}

// joint is a statement of both, or what only one of them has, or the other one, in one place.
type joint struct {
	lead   []Stmt // comments and gaps in front of it
	both   Stmt   // nil: the two differ here
	after  []Stmt
	blocks [][]joint
	only   [2][]item
}

// Meet finds what two functions have in common; nil: they can't be one. The flag is true in the second one: a condition
// that both can tell, or a variable, which becomes a parameter.
func Meet(a, b *Prepared, flag Expr, rules MeetingRules) *Meeting {
	if a.f.Linkage != b.f.Linkage || a.f.Result != b.f.Result {
		return nil
	}
	m := &Meeting{flag: flag, a: a, b: b, rules: rules}
	m.partner[0], m.partner[1] = map[*Local]*Local{}, map[*Local]*Local{}
	m.list = m.align(a.items, b.items)
	if !m.named() {
		return nil
	}
	return m
}

// Both is how many statements of the two are one.
func (m *Meeting) Both() int { return both(m.list) }

func both(list []joint) (n int) {
	for _, j := range list {
		if _, ok := j.both.(*Block); j.both != nil && !ok {
			n++
		}
		for _, block := range j.blocks {
			n += both(block)
		}
	}
	return n
}

// Same calls f with the parameters of the two that are one.
func (m *Meeting) Same(f func(x, y *Local)) {
	for _, x := range m.trail {
		if _, declared := m.a.declared[x]; !declared {
			f(x, m.partner[0][x])
		}
	}
}

// Join is the function that is both; nil: it can't be written. Args has its arguments.
func (m *Meeting) Join(name string) *Func {
	out := &Func{Linkage: m.a.f.Linkage, Result: m.a.f.Result, Name: name, Body: m.emit(m.list)}
	if flag, ok := m.flag.(*Local); ok && Count(out.Body, flag) > 0 {
		m.param = &Param{Type: flag.Type, Name: flag}
	}
	out.Params = m.params()
	if m.failed || !out.declares() {
		return nil
	}
	return out
}

// declares reports whether each variable is declared once, before it is used.
func (f *Func) declares() bool {
	known := map[Name]bool{}
	for _, p := range f.Params {
		known[p.Name] = true
	}
	return declared(known, f.Body)
}

func declared(outer map[Name]bool, body []Stmt) bool {
	known := maps.Clone(outer)
	for _, s := range flat(body) {
		for _, x := range s.exprs() {
			for y := range All(*x) {
				if local, ok := y.(*Local); ok && !known[local] {
					return false
				}
			}
		}
		if d, ok := s.(*Declare); ok {
			for _, v := range d.Vars {
				if known[v.Name] {
					return false
				}
				known[v.Name] = true
			}
		}
		for _, inner := range s.blocks() {
			if !declared(known, *inner) {
				return false
			}
		}
	}
	return true
}

// params are the parameters of both, and the flag if the body asks for it.
func (m *Meeting) params() (out []Param) {
	out = slices.Clone(m.a.f.Params)
	for _, p := range m.b.f.Params {
		if m.ofB(out, p) < 0 {
			out = append(out, p)
		}
	}
	if m.param != nil {
		out = append(out, *m.param)
	}
	return out
}

// ofB is where a parameter of the second function stands; -1: nowhere.
func (m *Meeting) ofB(params []Param, p Param) int {
	want := p.Name
	if y, ok := p.Name.(*Local); ok && m.partner[1][y] != nil {
		want = m.partner[1][y]
	}
	return slices.IndexFunc(params, func(q Param) bool { return q.Name == want })
}

// named reports whether calls can have the parameters of both: what only one has must be spare.
func (m *Meeting) named() bool {
	types := map[Name]Type{}
	for _, p := range m.a.f.Params {
		types[p.Name] = p.Type
	}
	for _, p := range m.b.f.Params {
		i := m.ofB(m.a.f.Params, p)
		switch {
		case i < 0 && !m.rules.Spare(p):
			return false
		case i >= 0 && m.a.f.Params[i].Type != p.Type:
			return false
		}
	}
	for _, p := range m.a.f.Params {
		of := func(q Param) bool { return m.ofB([]Param{p}, q) == 0 }
		if !slices.ContainsFunc(m.b.f.Params, of) && !m.rules.Spare(p) {
			return false
		}
	}
	return true
}

// Args are the arguments of the function that is both in the place of those of the first one (0) or the second (1).
func (m *Meeting) Args(which int, args []Expr) []Expr {
	params := m.params()
	out := make([]Expr, len(params))
	for i := range out {
		out[i] = Num(0)
	}
	if which == 0 {
		copy(out, args)
	} else {
		for i, p := range m.b.f.Params {
			out[m.ofB(params, p)] = args[i]
		}
	}
	if m.param != nil {
		out[len(out)-1] = Num(uint64(which))
	}
	return out
}

// emit writes what the function that is both does.
func (m *Meeting) emit(list []joint) (out []Stmt) {
	for i, j := range list {
		if j.both == nil {
			out = append(out, m.emitBranch(j, i == len(list)-1)...)
			continue
		}
		for k, block := range j.both.blocks() {
			*block = m.emit(j.blocks[k])
		}
		out = append(append(append(out, j.lead...), j.both), j.after...)
	}
	return out
}

// emitBranch writes what the two differ in.
func (m *Meeting) emitBranch(j joint, last bool) (out []Stmt) {
	var bodies [2][]Stmt
	inFront := func(lead []Stmt, d *Declare) {
		if !slices.ContainsFunc(out, func(s Stmt) bool { return sameDeclare(s, d) }) {
			out = append(append(out, lead...), d)
		}
	}
	for which, items := range j.only {
		changed := map[*Local]bool{}
		for _, x := range items {
			s := m.renamed(x.s, which)
			d, ok := s.(*Declare)
			switch {
			case ok && free(d, changed):
				inFront(notes(x.lead), d)
				continue
			case ok && m.usedElsewhere(d, j):
				hoisted, assigned := m.hoist(d)
				for _, h := range hoisted {
					inFront(nil, h)
				}
				bodies[which] = append(append(bodies[which], notes(x.lead)...), assigned...)
			default:
				bodies[which] = append(append(bodies[which], x.lead...), s)
			}
			noteChanges(s, changed)
		}
	}
	a, b := bodies[0], bodies[1]
	switch {
	case Statements(a) == 0 && Statements(b) == 0:
	case Statements(b) == 0:
		out = append(out, &If{Cond: Not(m.flag), Then: a})
	case Statements(a) == 0:
		out = append(out, &If{Cond: m.flag, Then: b})
	case last && Returns(b):
		out = append(append(out, &If{Cond: m.flag, Then: b}), a...)
	default:
		out = append(out, &If{Cond: m.flag, Then: b, Else: a})
	}
	return out
}

func notes(lead []Stmt) (out []Stmt) {
	for _, s := range lead {
		if n, ok := s.(*Note); ok {
			out = append(out, n)
		}
	}
	return out
}

// renamed is a statement of one of the two, with the variables of the function that is both.
func (m *Meeting) renamed(s Stmt, which int) Stmt {
	list := copied([]Stmt{s})
	if which == 1 {
		name := func(x Name) Name {
			if y, ok := x.(*Local); ok && m.partner[1][y] != nil {
				return m.partner[1][y]
			}
			return x
		}
		Each(list, func(t Stmt) {
			if d, ok := t.(*Declare); ok {
				for i := range d.Vars {
					d.Vars[i].Name = name(d.Vars[i].Name)
				}
			}
		})
		ReplaceIn(list, func(x Expr) Expr {
			if y, ok := x.(*Local); ok {
				return name(y)
			}
			return nil
		})
	}
	return list[0]
}

// free reports whether a declaration can stand in front, and in both, because it computes an address at most, of
// nothing that was changed.
func free(d *Declare, changed map[*Local]bool) bool {
	for _, v := range d.Vars {
		if v.Init == nil || !d.Type.IsPointer() && !d.Type.IsConst() {
			return false
		}
		for x := range All(v.Init) {
			switch x := x.(type) {
			case *Local:
				if changed[x] {
					return false
				}
			case Ident, Number, Binary, Cast:
			case Unary:
				if x.Op != "-" {
					return false
				}
			default:
				return false
			}
		}
	}
	return true
}

// noteChanges notes the variables that a statement gives values, or hands on to be given one.
func noteChanges(s Stmt, changed map[*Local]bool) {
	note := func(x Expr) {
		if local, ok := x.(*Local); ok {
			changed[local] = true
		}
	}
	Each([]Stmt{s}, func(s Stmt) {
		switch s := s.(type) {
		case *Assign:
			note(s.To)
		case *Declare:
			for _, v := range s.Vars {
				note(v.Name)
			}
		}
	})
	Exprs([]Stmt{s}, func(x Expr) {
		if u, ok := x.(Unary); ok && u.Op == "&" {
			note(u.X)
		}
	})
}

func sameDeclare(s Stmt, d *Declare) bool {
	e, ok := s.(*Declare)
	return ok && e.Type == d.Type && slices.EqualFunc(e.Vars, d.Vars, func(v, w Var) bool {
		return v.Name == w.Name && v.Tail == w.Tail && (v.Init == nil) == (w.Init == nil) &&
			(v.Init == nil || Equal(v.Init, w.Init))
	})
}

// usedElsewhere reports whether what a branch declares is mentioned beside it.
func (m *Meeting) usedElsewhere(d *Declare, j joint) bool {
	for _, v := range d.Vars {
		x, ok := v.Name.(*Local)
		if !ok {
			x = nil
		}
		for which, p := range []*Prepared{m.a, m.b} {
			name, all := v.Name, 0
			if x != nil {
				if which == 1 && m.partner[0][x] != nil {
					name = m.partner[0][x]
				}
				if all = p.mentions[name.(*Local)]; all == 0 {
					continue
				}
			} else {
				all = Count(p.f.Body, name)
			}
			for _, y := range j.only[which] {
				all -= Count([]Stmt{y.s}, name)
			}
			if all > 0 {
				return true
			}
		}
	}
	return false
}

// hoist declares variables without values, and gives them these where they were declared.
func (m *Meeting) hoist(d *Declare) (declared []*Declare, assigned []Stmt) {
	for _, v := range d.Vars {
		if d.Type.IsConst() {
			m.failed = true
		}
		front := Var{Name: v.Name, Tail: v.Tail}
		if x, ok := v.Name.(*Local); ok && m.partner[0][x] == nil && d.Type.IsScalar() {
			front.Init, front.Idle = Num(0), true // only one gives it another value
			if v.Tail != "" {
				front.Init = Init{}
			}
		}
		declared = append(declared, &Declare{Type: d.Type, Vars: []Var{front}})
		if v.Init == nil || front.Init != nil && Equal(v.Init, front.Init) {
			continue
		}
		if _, ok := v.Init.(Init); ok || v.Tail != "" {
			m.failed = true
		}
		assigned = append(assigned, &Assign{Pos: d.Pos, To: v.Name, Op: "=", X: v.Init})
	}
	return declared, assigned
}
