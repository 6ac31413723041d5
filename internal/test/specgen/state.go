package specgen

import (
	"fmt"
	"slices"
	"strings"
)

type setting struct {
	name string
	t    typ
	more string
}

func (x *setting) text() string {
	return fmt.Sprintf("%s: {type: %q%s}", label(x.name), x.t.text(), x.more)
}

type member struct {
	name string
	t    typ
}

func members(ms []member) string {
	var out []string
	for _, m := range ms {
		out = append(out, fmt.Sprintf("%s: %q", label(m.name), m.t.text()))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

type table struct {
	name       string
	kind       string
	perCPU     bool
	size       int
	key, value []member
	session    bool
	with       bool // its rows are learned with those of sessions
}

func (t *table) text() string {
	if t.session {
		return "// " + t.name + " has the rows of a session"
	}
	s := fmt.Sprintf("%s: {", label(t.name))
	if t.kind != "" {
		s += fmt.Sprintf("kind: %q, ", t.kind)
	}
	if t.perCPU {
		s += "per_cpu: true, "
	}
	return s + fmt.Sprintf("key: %s, value: %s, size: %d}", members(t.key), members(t.value), t.size)
}

type session struct {
	name   string
	fields []member
	rows   []*sessionRow
	more   string
}

type sessionRow struct {
	t          *table
	key, value []string
}

func (x *session) text() string {
	var rows []string
	for i, r := range x.rows {
		var all []string
		for _, same := range x.rows[i:] {
			if same.t == r.t {
				all = append(all, fmt.Sprintf("{key: %s, value: %s}", list(same.key), list(same.value)))
			}
		}
		switch {
		case slices.ContainsFunc(x.rows[:i], func(o *sessionRow) bool { return o.t == r.t }):
		case len(all) > 1:
			rows = append(rows, fmt.Sprintf("%s: [%s]", label(r.t.name), strings.Join(all, ", ")))
		default:
			rows = append(rows, fmt.Sprintf("%s: %s", label(r.t.name), all[0]))
		}
	}
	return fmt.Sprintf("%s: {\n\tfields: %s\n\trows: {\n\t\t%s\n\t}\n%s}", label(x.name), members(x.fields),
		strings.Join(rows, "\n\t\t"), x.more)
}

func list(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	return `["` + strings.Join(names, `", "`) + `"]`
}

func (g *generator) someSettings() []*setting {
	names := g.namer()
	var out []*setting
	for range g.IntN(4) {
		x := &setting{name: names.next()}
		switch g.IntN(5) {
		case 0:
			x.t = typ{kind: boolKind}
			x.more = fmt.Sprintf(", default: %v", g.one(2))
		case 1:
			x.t = typ{kind: addrKind}
			x.more = fmt.Sprintf(", default: %q", pick(g, addresses))
		case 2:
			x.t = typ{kind: macKind}
			x.more = fmt.Sprintf(", default: %q", pick(g, macs))
		default:
			x.t = typ{kind: intKind, n: pick(g, []int{1, 5, 8, 12, 16, 16, 31, 32, 48, 64})}
			is, allowed := g.constraint(x.t.n)
			x.more = fmt.Sprintf(", default: %s", g.literal(pick(g, allowed)))
			if g.one(3) {
				x.more += ", is: " + is
			}
		}
		if g.one(6) {
			x.more = ""
		}
		out = append(out, x)
	}
	return out
}

// lookup is a lookup of a program, as text, and the members that its row has.
type lookup struct {
	name     string
	optional bool
	t        *table
	key      []string
}

func (l *lookup) text(g *generator) string {
	name := l.name
	if l.optional {
		name += "?"
	}
	return fmt.Sprintf("%s: %s: [%s]", label(name), label(l.t.name), g.quotedAll(l.key))
}

// found adds what a row has to a scope.
func (s *scope) found(l *lookup) {
	need := ""
	if l.optional {
		need = l.name
	}
	s.asks = append(s.asks, l.name)
	if l.t.session || l.t.with {
		s.bound = append(s.bound, ref{text: l.name, need: need})
	}
	for _, m := range l.t.value {
		s.member(l.name+"."+m.name, m.t, need)
	}
}

// member adds a member of a row to a scope.
func (s *scope) member(text string, t typ, need string) {
	if t.levels && t.kind <= endpointKind {
		t.levels = false
		for range 2 {
			s.member(text+"["+s.level()+"]", t, need)
		}
		return
	}
	s.refs = append(s.refs, ref{text: text, t: t, need: need})
	if t.kind == endpointKind {
		s.refs = append(s.refs, ref{text: text + ".addr", t: typ{kind: addrKind}, need: need},
			ref{text: text + ".port", t: typ{kind: intKind, n: 16}, need: need})
	}
}

// lookup makes a lookup, and its table if it takes a new one. want are types that the value should have.
func (s *scope) lookup(want []typ) *lookup {
	l := &lookup{name: s.names.next(), optional: s.one(2)}
	if s.one(3) {
		for _, t := range s.tables {
			if s.socket && slices.ContainsFunc(t.value, func(m member) bool { return !rowType(m.t) }) {
				continue
			}
			if key, ok := s.key(t); ok && !slices.ContainsFunc(want, func(w typ) bool { return !t.has(w) }) {
				l.t, l.key = t, key
				return l
			}
		}
	}
	if s.one(3) && !s.socket && !slices.Contains(want, typ{kind: nextHopKind}) {
		l.t = s.newSession(want)
	} else {
		l.t = s.newTable(want)
	}
	key, ok := s.key(l.t)
	if !ok {
		return nil
	}
	l.key = key
	return l
}

func (t *table) has(w typ) bool {
	return slices.ContainsFunc(t.value, func(m member) bool { return m.t == w })
}

// key makes the expressions of a lookup's key.
func (s *scope) key(t *table) ([]string, bool) {
	var key []string
	for _, m := range t.key {
		want := m.t
		if want.kind == prefixKind {
			want.kind = addrKind
		}
		x, ok := s.typed(want)
		if want.kind == intKind && !s.one(4) { // a field as it is, if one has the size
			if r, found := s.choose(func(r ref) bool { return r.t == want }); found {
				x = r.text
			}
		}
		if !ok {
			return nil, false
		}
		key = append(key, x)
	}
	return key, true
}

var valueTypes = []typ{
	{kind: intKind, n: 8}, {kind: intKind, n: 16}, {kind: intKind, n: 32}, {kind: intKind, n: 64},
	{kind: intKind, n: 1}, {kind: intKind, n: 12}, {kind: intKind, n: 33}, {kind: boolKind},
	{kind: bytesKind, n: 3}, {kind: bytesKind, n: 8},
	{kind: macKind}, {kind: addrKind}, {kind: endpointKind}, {kind: counterKind}, {kind: nextHopKind},
}

// valueType is the type of a value of a row: if it can, one for each level of priority, sometimes.
func (g *generator) valueType() typ {
	t := pick(g, valueTypes)
	t.levels = t.kind <= endpointKind && g.levels > 0 && g.one(4)
	return t
}

// newTable declares a table whose key can be made here.
func (s *scope) newTable(want []typ) *table {
	names := s.generator.namer()
	t := &table{
		name: s.state.next(), kind: pick(s.generator, []string{"", "hash", "hash", "lru", "array", "lpm"}),
		size: pick(s.generator, []int{1, 2, 16, 64, 100, 1024}),
	}
	_, hasAddr := s.choose(func(r ref) bool { return r.t.kind == addrKind })
	if t.kind == "lpm" && !hasAddr {
		t.kind = ""
	}
	switch t.kind {
	case "lpm":
		t.key = []member{{names.next(), typ{kind: prefixKind}}}
	case "array":
		t.key = []member{{names.next(), typ{kind: intKind, n: s.between(1, 32)}}}
	default:
		for range s.between(1, 3) {
			t.key = append(t.key, member{names.next(), s.keyType()})
		}
	}
	if t.kind == "array" && slices.Contains(want, typ{kind: nextHopKind}) {
		t.kind = ""
		t.key = []member{{names.next(), s.keyType()}}
	}
	if t.kind != "lpm" && len(want) == 0 {
		t.perCPU = s.one(8)
	}
	for _, w := range want {
		t.value = append(t.value, member{names.next(), w})
	}
	for range s.between(0, 3) {
		v := s.valueType()
		if v.kind == counterKind && (t.kind == "lru" || t.kind == "array" || t.perCPU) || v.kind == nextHopKind &&
			(t.kind == "array" || t.perCPU) || s.socket && !rowType(v) {
			v = typ{kind: intKind, n: 32}
		}
		t.value = append(t.value, member{names.next(), v})
	}
	if (t.kind == "" || t.kind == "hash") && !t.perCPU && s.one(3) {
		t.value = append(t.value, member{names.next(), pick(s.generator, s.sharedTypes())})
	}
	if len(t.value) == 0 {
		t.value = []member{{names.next(), typ{kind: intKind, n: 8}}}
	}
	s.Shuffle(len(t.value), func(i, j int) { t.value[i], t.value[j] = t.value[j], t.value[i] })
	s.tables = append(s.tables, t)
	return t
}

// sessionState are counters, credits and buckets of a session, now and then. What is drawn otherwise stays the same.
func (s *scope) sessionState(names *namer) (ms []member) {
	switch n := len(s.sessions) + len(s.tables) + len(s.refs); {
	case n%3 == 0:
		ms = append(ms, member{names.next(), typ{kind: counterKind}})
		fallthrough
	case n%3 == 1:
		t := typ{kind: []kind{creditKind, bucketKind}[n%2], levels: s.levels > 0 && n%5 < 2}
		ms = append(ms, member{names.next(), t})
	}
	return ms
}

// anotherRow puts a second row of a session into the table of its first one, with a key of its own or of its fields in
// another order.
func (s *scope) anotherRow(x *session, key, value []member) {
	if len(x.fields)%2 == 0 {
		return
	}
	first := x.rows[0]
	r := &sessionRow{t: first.t, value: first.value}
	names := s.generator.namer()
	for _, m := range x.fields {
		names.used[m.name] = true
	}
	for _, m := range key {
		same := slices.IndexFunc(value, func(o member) bool { return o.t == m.t })
		if same >= 0 && !slices.Contains(r.key, value[same].name) && len(value) == 1 { // both directions
			r.key, r.value = append(r.key, value[same].name), []string{m.name}
			continue
		}
		m.name = names.next()
		x.fields, r.key = append(x.fields, m), append(r.key, m.name)
	}
	x.rows = append(x.rows, r)
}

// newSession declares a session one of whose rows has a key that can be made here, and returns that row's table.
func (s *scope) newSession(want []typ) *table {
	names := s.generator.namer()
	x := &session{name: s.names.g.namer().next()}
	for slices.ContainsFunc(s.sessions, func(o *session) bool { return o.name == x.name }) {
		x.name = s.names.g.namer().next()
	}
	var key, value []member
	for range s.between(1, 3) {
		key = append(key, member{names.next(), s.keyType()})
	}
	for _, w := range want {
		value = append(value, member{names.next(), w})
	}
	for range s.between(0, 2) {
		if v := s.valueType(); v.kind <= endpointKind {
			value = append(value, member{names.next(), v})
		}
	}
	value = append(value, s.sessionState(names)...)
	x.fields = slices.Concat(key, value)
	s.Shuffle(len(x.fields), func(i, j int) { x.fields[i], x.fields[j] = x.fields[j], x.fields[i] })
	row := func(key, value []member) *table {
		t := &table{name: s.state.next(), session: true, key: key, value: value}
		r := &sessionRow{t: t}
		for _, m := range key {
			r.key = append(r.key, m.name)
		}
		for _, m := range value {
			r.value = append(r.value, m.name)
		}
		x.rows = append(x.rows, r)
		s.tables = append(s.tables, t)
		return t
	}
	t := row(key, value)
	if len(value) > 0 && s.one(2) && !slices.ContainsFunc(value, func(m member) bool {
		return m.t.levels || m.t.kind > endpointKind
	}) {
		row(value, key) // the way back
	}
	s.anotherRow(x, key, value)
	x.more = fmt.Sprintf("\tsize: %d\n", pick(s.generator, []int{1, 8, 64, 500}))
	if s.one(4) {
		x.more += "\tlifetime: \"10m\"\n"
	}
	if s.one(4) {
		x.more += "\tidle: \"30s\"\n"
	}
	s.sessions = append(s.sessions, x)
	return t
}
