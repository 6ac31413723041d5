package bpf

import (
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
)

// Functions that are alike become one (c.Meet): of IPv4 and of IPv6, of two rules that do nearly the same, of two
// programs. The two that have the most in common are joined first, and so on, until no two are worth it.
//
// Since functions are inlined, and what tells them apart is constant then, clang makes the same of them as before.

const (
	// Two functions are worth joining if so many statements are saved,
	worthStatements = 5
	// and if these are such a part of the smaller one: else most of the function is about what they differ in.
	worthPercent = 45
	// mostFlags is how many things a function distinguishes.
	mostFlags = 3
	// mostJoined is how many lines a function has that two were joined to.
	mostJoined = 121
)

type meeting struct {
	*unit
	pairs    map[[2]*c.Func]*pair
	flags    map[*c.Func]int // how many a function has got
	prepared map[*c.Func]*c.Prepared
	about    map[*c.Func]*about
	byName   map[string]*c.Func
	users    map[*c.Func][]*program
	called   map[string]bool // functions that others call
	passed   map[string]bool // functions that others pass on, to be called by the kernel
	rules    c.MeetingRules
	classes  map[*c.Local][]*c.Local // parameters that are one, of functions that call each other or were joined
}

// about is what is known of a function.
type about struct {
	calls, mentions map[string]bool // names of others
	statements      int
	ipv6            bool // it points at a header of IPv6
}

// pair is what is known of two functions.
type pair struct {
	a, b   *c.Func
	most   int  // statements that are saved, at most
	known  bool // joined is known; nil: it isn't worth it
	joined *joined
}

// joined is what two functions would be.
type joined struct {
	meeting *c.Meeting
	a, b    *c.Func
	f       *c.Func
	name    string
	saves   int // statements
}

// meet joins functions. It returns the programs that use each.
func (u *unit) meet() map[*c.Func][]*program {
	m := &meeting{
		unit: u, pairs: map[[2]*c.Func]*pair{}, flags: map[*c.Func]int{}, prepared: map[*c.Func]*c.Prepared{},
		about: map[*c.Func]*about{}, classes: map[*c.Local][]*c.Local{},
	}
	m.makeRules()
	for best := m.best(); best != nil; best = m.best() {
		// What was found before other functions were joined may not hold any more.
		was := best.joined
		best.joined = m.join(best.a, best.b)
		if best.joined == nil || best.joined.saves != was.saves {
			continue
		}
		best.joined.meeting.Same(m.unite)
		if m.passed[best.a.Name] {
			m.putCallback(best.joined)
		} else {
			m.put(best.joined)
		}
		m.forget(best.a)
		m.forget(best.b)
	}
	return m.users
}

// forget is called for a function that has changed, or is gone.
func (m *meeting) forget(f *c.Func) {
	delete(m.prepared, f)
	delete(m.about, f)
	for key := range m.pairs {
		if slices.Contains(key[:], f) {
			delete(m.pairs, key)
		}
	}
}

// best are the two functions that have the most in common; nil: no two are worth it. Of pairs that save as much it is
// the first.
func (m *meeting) best() *pair {
	m.survey()
	all := m.candidates()
	places := map[*pair]int{}
	for i, p := range all {
		places[p] = i
	}
	// Those that may be the best are looked at first, so that most others needn't be.
	slices.SortStableFunc(all, func(x, y *pair) int { return y.most - x.most })
	var best *pair
	for _, p := range all {
		if best != nil && p.most < best.joined.saves {
			break
		}
		if !p.known {
			p.joined, p.known = m.join(p.a, p.b), true
		}
		if p.joined == nil {
			continue
		}
		if best == nil || p.joined.saves > best.joined.saves ||
			p.joined.saves == best.joined.saves && places[p] < places[best] {
			best = p
		}
	}
	return best
}

// candidates are the pairs of functions that may be worth joining.
func (m *meeting) candidates() (all []*pair) {
	functions := slices.DeleteFunc(slices.Clone(m.functions), func(f *c.Func) bool { return !m.canJoin(f) })
	for i, x := range functions {
		for _, y := range functions[i+1:] {
			if m.apart[x] != m.apart[y] || m.passed[x.Name] != m.passed[y.Name] || x.Linkage != y.Linkage ||
				x.Result != y.Result {
				continue
			}
			p := m.pairs[[2]*c.Func{x, y}]
			if p == nil {
				p = &pair{}
				p.a, p.b = m.inOrderOfVersions(x, y)
				p.most = m.prepare(x).Common(m.prepare(y))
				p.known = !m.isWorth(p.most, x, y)
				m.pairs[[2]*c.Func{x, y}] = p
			}
			if !p.known || p.joined != nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// isWorth reports whether two functions are worth joining if so many statements are saved.
func (m *meeting) isWorth(saves int, a, b *c.Func) bool {
	return saves >= worthStatements && 100*saves >= worthPercent*min(m.about[a].statements, m.about[b].statements)
}

// survey finds out what functions are now.
func (m *meeting) survey() {
	m.called, m.passed, m.byName = map[string]bool{}, map[string]bool{}, map[string]*c.Func{}
	for _, f := range m.functions {
		m.byName[f.Name] = f
		if m.about[f] == nil {
			m.about[f] = aboutFunc(f)
		}
		maps.Copy(m.called, m.about[f].calls)
		maps.Copy(m.passed, m.about[f].mentions)
	}
	m.users = map[*c.Func][]*program{}
	for i, p := range m.programs {
		for _, f := range m.roots[i] {
			for g := range m.reached(f) {
				if !slices.Contains(m.users[g], p) {
					m.users[g] = append(m.users[g], p)
				}
			}
		}
	}
}

func aboutFunc(f *c.Func) *about {
	out := &about{
		calls: map[string]bool{}, mentions: map[string]bool{},
		statements: c.Statements(f.Body), ipv6: pointsAt(f, "ipv6"),
	}
	c.Exprs(f.Body, func(x c.Expr) {
		switch x := x.(type) {
		case c.Call:
			out.calls[x.Name] = true
		case c.Ident:
			out.mentions[string(x)] = true
		}
	})
	return out
}

// reached are a function and those that it calls or passes on, also through others.
func (m *meeting) reached(f *c.Func) map[*c.Func]bool {
	out := map[*c.Func]bool{}
	var visit func(f *c.Func)
	visit = func(f *c.Func) {
		if f == nil || out[f] {
			return
		}
		out[f] = true
		for name := range m.about[f].calls {
			visit(m.byName[name])
		}
		for name := range m.about[f].mentions {
			visit(m.byName[name])
		}
	}
	visit(f)
	return out
}

// canJoin reports whether a function is one that others call, and clang inlines, or pass on.
func (m *meeting) canJoin(f *c.Func) bool {
	if _, ok := m.entries[f]; ok {
		return false
	}
	if m.passed[f.Name] {
		return m.about[f].statements > 1
	}
	return m.called[f.Name] && f.Linkage == c.Inline
}

// makeRules says what may be unified: two parameters that can be one member of the packet's structure, because no path
// through a function has both, or anything that is one with them.
func (m *meeting) makeRules() {
	x := m.context(m.given())
	meet := x.meet()
	for _, class := range x.classes(x.interferences()) {
		for _, local := range class[1:] {
			m.unite(class[0], local)
		}
	}
	m.rules = c.MeetingRules{
		SameParam: func(a, b *c.Local) bool {
			for _, one := range m.classOf(a) {
				for _, other := range m.classOf(b) {
					if meet[[2]*c.Local{one, other}] {
						return false
					}
				}
			}
			return m.canBeMember(a) == m.canBeMember(b)
		},
		Spare: func(p c.Param) bool {
			local, ok := p.Name.(*c.Local)
			return ok && (m.canBeMember(local) || p.Type.IsScalar())
		},
		Integer:  isInteger,
		Constant: m.isConstant,
	}
}

// classOf are the parameters that are one with x.
func (m *meeting) classOf(x *c.Local) []*c.Local {
	if m.classes[x] == nil {
		return []*c.Local{x}
	}
	return m.classes[x]
}

// unite notes that two parameters are one.
func (m *meeting) unite(x, y *c.Local) {
	if slices.Contains(m.classOf(x), y) {
		return
	}
	all := slices.Concat(m.classOf(x), m.classOf(y))
	for _, z := range all {
		m.classes[z] = all
	}
}

// isInteger reports whether a helper returns an integer, and does nothing else.
func isInteger(name string) bool {
	for _, prefix := range []string{"be", "ld", "bpf_hton", "bpf_cpu_to_be"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && strings.Trim(rest, "0123456789ls") == "" {
			return true
		}
	}
	return false
}

// isConstant reports whether a name is that of a constant: a number, or a function.
func (r *renderer) isConstant(x c.Ident) bool {
	return r.names[string(x)] || string(x) == strings.ToUpper(string(x))
}

// join is what two functions would be; nil: it isn't worth it. One that calls the other would call itself.
func (m *meeting) join(a, b *c.Func) *joined {
	if m.flags[a]+m.flags[b] >= mostFlags || m.reached(a)[b] || m.reached(b)[a] {
		return nil
	}
	versions := m.areVersions(a, b)
	flag := m.flag(a, b, versions)
	met := c.Meet(m.prepare(a), m.prepare(b), flag, m.rules)
	if met == nil || !m.isWorth(met.Both(), a, b) {
		return nil
	}
	j := &joined{meeting: met, a: a, b: b, name: m.joinedName(a, b)}
	if j.f = met.Join(j.name); j.f == nil || !versions && isBound(j.f, flag) {
		return nil
	}
	j.saves = m.about[a].statements + m.about[b].statements - c.Statements(j.f.Body)
	if m.passed[a.Name] {
		j.saves -= 2
	}
	if !m.isWorth(j.saves, a, b) {
		return nil
	}
	file := &c.Printer{}
	if file.Tops([]c.Top{j.f}); len(file.Lines) > mostJoined {
		return nil
	}
	return j
}

func (m *meeting) prepare(f *c.Func) *c.Prepared {
	if m.prepared[f] == nil {
		m.prepared[f] = c.Prepare(f, m.isConstant)
	}
	return m.prepared[f]
}

// flag is what tells two functions apart: the program, if these differ, or a parameter.
func (m *meeting) flag(a, b *c.Func, versions bool) c.Expr {
	both := slices.ContainsFunc(m.users[a], func(p *program) bool { return slices.Contains(m.users[b], p) })
	switch {
	case !both:
		var is []c.Expr
		for _, p := range m.users[b] {
			is = append(is, c.Binary{Op: "==", X: base, Y: m.bases[p.ir]})
		}
		return c.Join("||", is...)
	case versions && strings.Contains(b.Name, "_send_"):
		return c.NewLocal("to_v6", flagType)
	case versions:
		return c.NewLocal("v6", flagType)
	}
	_, was, is, _ := differ(strings.Split(a.Name, "_"), strings.Split(b.Name, "_"))
	if len(was) == 1 && len(is) == 1 && unnumbered(was[0]) != unnumbered(is[0]) {
		return c.NewLocal("is_"+is[0], flagType)
	}
	return c.NewLocal("second", flagType)
}

const flagType c.Type = "const int"

// isFlag reports whether a variable is 1 or 0, as its caller says, or its program.
func isFlag(x *c.Local) bool { return x.Type == flagType }

// isBound reports whether a parameter decides how long the packet has to be at least. If one program calls such a
// function with both values, clang puts some of the two copies together again, and looks at the end of the packet once
// for both: that is beyond the verifier. IPv4 and IPv6 are too different for it.
func isBound(f *c.Func, flag c.Expr) (found bool) {
	if _, ok := flag.(*c.Local); !ok {
		return false
	}
	c.Each(f.Body, func(s c.Stmt) {
		switch s := s.(type) {
		case *c.If:
			end, flagged := false, false
			for x := range c.All(s.Cond) {
				field, ok := x.(c.Field)
				end = end || ok && field.Name == "data_end" || x == c.Expr(dataEnd)
				flagged = flagged || x == flag
			}
			found = found || end && flagged
		case *c.Declare: // lengths of headers are constants
			found = found || s.Type.IsConst() && c.Count([]c.Stmt{s}, flag.(*c.Local)) > 0
		}
	})
	return found
}

// put has a function be in the place of two.
func (m *meeting) put(j *joined) {
	delete(m.names, j.a.Name)
	delete(m.names, j.b.Name)
	m.add(j)
	m.functions[slices.Index(m.functions, j.a)] = j.f
	m.functions = slices.DeleteFunc(m.functions, func(f *c.Func) bool { return f == j.b })
	for _, f := range m.functions {
		calls := false
		c.ReplaceIn(f.Body, func(x c.Expr) c.Expr {
			y := j.call(x)
			calls = calls || y != nil
			return y
		})
		if calls {
			m.forget(f)
		}
	}
}

// putCallback has two functions that the kernel calls call one.
func (m *meeting) putCallback(j *joined) {
	m.add(j)
	j.f.Linkage = c.Inline
	for which, f := range []*c.Func{j.a, j.b} {
		var args []c.Expr
		for _, p := range f.Params {
			args = append(args, p.Name)
		}
		f.Body = []c.Stmt{&c.Return{X: c.Do(j.f.Name, j.meeting.Args(which, args)...)}}
	}
	m.functions = append(m.functions, j.f)
}

// add names the function that two become.
func (m *meeting) add(j *joined) {
	j.f.Name = m.unique(j.name)
	m.apart[j.f] = m.apart[j.a]
	m.flags[j.f] = max(m.flags[j.a], m.flags[j.b]) + 1
}

// call is a call of the function that is both in the place of a call of one; nil: it is none.
func (j *joined) call(x c.Expr) c.Expr {
	call, ok := x.(c.Call)
	if !ok || call.Name != j.a.Name && call.Name != j.b.Name {
		return nil
	}
	which := 0
	if call.Name == j.b.Name {
		which = 1
	}
	args := make([]c.Expr, len(call.Args))
	for i, arg := range call.Args {
		args[i] = c.Replace(arg, j.call)
	}
	return c.Do(j.f.Name, j.meeting.Args(which, args)...)
}

// inOrderOfVersions puts a function of IPv4 in front of the same one of IPv6.
func (m *meeting) inOrderOfVersions(a, b *c.Func) (first, second *c.Func) {
	if m.areVersions(b, a) && !m.areVersions(a, b) {
		return b, a
	}
	return a, b
}

// areVersions reports whether two functions are of IPv4 and of IPv6: by what they point at, or by where their names
// differ.
func (m *meeting) areVersions(a, b *c.Func) bool {
	if m.about[a].ipv6 != m.about[b].ipv6 {
		return m.about[b].ipv6
	}
	x, y := strings.Split(a.Name, "_"), strings.Split(b.Name, "_")
	_, was, is, _ := differ(x, y)
	return slices.Contains(is, "ipv6") && slices.Index(is, "ipv6") != slices.Index(was, "ipv6") &&
		(len(was) == 0 || slices.Contains(was, "ipv4"))
}

// pointsAt reports whether a function has a pointer to such a header.
func pointsAt(f *c.Func, header string) (found bool) {
	c.Each(f.Body, func(s c.Stmt) {
		d, ok := s.(*c.Declare)
		found = found || ok && d.Type == c.Pointer(c.StructType("hdr_"+header))
	})
	return found
}

// differ divides two lists into the beginning that both have, what each has then, and the end that both have.
func differ(x, y []string) (begin, was, is, end []string) {
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	m := 0
	for m < len(x)-n && m < len(y)-n && x[len(x)-1-m] == y[len(y)-1-m] {
		m++
	}
	return x[:n], x[n : len(x)-m], y[n : len(y)-m], x[len(x)-m:]
}

// joinedName is what the function is called that is both: what the names of the two have in common, with "shared" in
// the place of programs that have nothing in common, and "ip" if one has ipv4 and the other one ipv6.
func (m *meeting) joinedName(a, b *c.Func) string {
	begin, was, is, end := differ(strings.Split(a.Name, "_"), strings.Split(b.Name, "_"))
	if p := m.program(a.Name); p != m.program(b.Name) {
		if own := len(strings.Split(p, "_")) - len(begin); p != "" && own > 0 {
			was = was[min(own, len(was)):]
		}
		if len(begin) == 0 {
			begin = []string{shared}
			was = slices.DeleteFunc(slices.Clone(was), func(s string) bool { return s == shared })
		}
	}
	if i := slices.Index(was, "ipv4"); i >= 0 && slices.Contains(is, "ipv6") {
		was = slices.Clone(was)
		was[i] = "ip"
		was = slices.DeleteFunc(was, func(s string) bool { return s == "any" })
	} else if len(was) == 1 && len(is) == 1 && unnumbered(was[0]) == unnumbered(is[0]) && unnumbered(was[0]) != "" {
		was = []string{unnumbered(was[0])}
	}
	return strings.Join(slices.Concat(begin, was, end), "_")
}

// shared is what the names of functions begin with that programs have which have no word in common.
const shared = "shared"

// program is the one that the name of a function begins with, or "".
func (m *meeting) program(name string) (out string) {
	for _, p := range m.programs {
		if strings.HasPrefix(name, p.short+"_") && len(p.short) > len(out) {
			out = p.short
		}
	}
	return out
}

// unnumbered is a name without a number at its end.
func unnumbered(name string) string { return strings.TrimRight(name, "0123456789") }
