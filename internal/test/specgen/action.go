package specgen

import (
	"fmt"
	"slices"
	"strings"
)

// rewriting is the packet as the actions of a rule have changed it so far.
type rewriting struct {
	*scope
	now  []*entry
	gone map[*entry]bool
	told map[*entry]bool // fields of theirs have values
	sets map[string]bool // these fields: "ENTRY.FIELD"
}

// actions makes what a rule does.
func (s *scope) actions() []string {
	if s.socket {
		return s.decide()
	}
	w := &rewriting{
		scope: s, now: slices.Clone(s.stack), gone: map[*entry]bool{}, told: map[*entry]bool{}, sets: map[string]bool{},
	}
	var out []string
	add := func(a string) {
		if a != "" {
			out = append(out, a)
		}
	}
	s = s.clone() // names that actions give are known in this rule only
	w.scope = s
	end := s.IntN(20)
	fixed := s.inFan || slices.ContainsFunc(s.stack, func(e *entry) bool { return e.after != "" }) && !s.one(12)
	for _, a := range s.effects(end < 3) {
		add(a)
	}
	if end >= 3 && !s.inFan && s.IntN(5) < 2 {
		if actions := w.fanOut(); len(actions) > 0 {
			return append(out, actions...)
		}
	}
	if end >= 3 && !fixed && !s.one(3) {
		for _, a := range w.decapsulate() {
			add(a)
		}
	}
	if end >= 3 && !fixed && s.one(3) {
		for _, a := range w.encapsulate() {
			add(a)
		}
	}
	if end >= 3 { // not dropped
		for range s.IntN(3) {
			switch s.IntN(6) {
			case 0:
				if !fixed {
					add(w.push())
				}
			case 1:
				if !fixed {
					add(w.pop())
				}
			case 2:
				add(w.mark())
			case 3:
				add(w.blank())
			default:
				add(w.set())
			}
		}
	}
	if s.one(5) {
		add(s.count())
	}
	if s.one(8) && !s.inFan {
		add(s.learn())
	}
	switch {
	case s.inFan && end >= 3:
		if a := w.send(); a != "" {
			add(a)
			break
		}
		return []string{fmt.Sprintf("{drop: %q}", s.generator.namer().next())}
	case end < 3:
		add(fmt.Sprintf("{drop: %q}", s.generator.namer().next()))
	case end < 12:
		if a := w.send(); a != "" {
			add(a)
			break
		}
		add(`"pass"`)
	case end < 17 || len(out) == 0:
		add(pick(s.generator, []string{`"pass"`, `{pass: true}`}))
	}
	return out
}

// set gives fields of the packet values.
func (w *rewriting) set() string {
	seen := map[string]bool{}
	var out []string
	for range w.between(1, 3) {
		r, ok := w.choose(func(r ref) bool { return w.settable(r) && !seen[r.text] })
		if !ok {
			break
		}
		seen[r.text] = true
		var v string
		if a := r.flds[0].allowed; r.flds[0].is != "" {
			if len(a) == 0 || len(r.flds) > 1 {
				continue
			}
			v = w.literal(pick(w.generator, a))
		} else if f := r.flds[0]; f.kind == numberField && len(r.flds) == 1 && !w.one(4) {
			v = fmt.Sprintf("low(%s, %s)", w.stored(64), r.text)
		} else if r.t.kind == intKind && f.kind != varintField && f.kind != numberField {
			v = w.stored(narrowest(r))
		} else if v, ok = w.typed(typ{kind: r.t.kind, n: narrowestOf(r)}); !ok {
			continue
		}
		if !w.gives(r.at, r.flds...) {
			continue
		}
		out, w.told[r.at] = append(out, fmt.Sprintf("%q: %s", r.text, w.quoted(v))), true
	}
	if len(out) == 0 {
		return ""
	}
	return "{set: " + w.braces(out) + "}"
}

// gives notes that a rule gives a field of each of an entry's headers a value. It returns false if it has one.
func (w *rewriting) gives(e *entry, fields ...*field) bool {
	for _, f := range fields {
		if w.sets[e.name+"."+f.name] {
			return false
		}
	}
	for _, f := range fields {
		w.sets[e.name+"."+f.name] = true
	}
	return true
}

func narrowestOf(r ref) int {
	if r.t.kind == intKind {
		return narrowest(r)
	}
	return r.t.n
}

// settable reports whether a field can be written: not what follows from the rest of the packet.
func (w *rewriting) settable(r ref) bool {
	if r.at == nil || w.gone[r.at] || w.inFan && w.padding[r.at] {
		return false
	}
	if r.at.alts[0] == stdVLAN && !w.one(30) { // in the metadata a tag can't be written
		return false
	}
	for _, f := range r.flds {
		number := f.kind == varintField || f.kind == numberField // whose size stays
		if f.derived || f.kind == sizedField || f.variable && (!number || f.when != "" && !w.one(4)) {
			return false
		}
	}
	i := slices.Index(w.stack, r.at)
	for _, h := range r.at.alts {
		for _, f := range r.flds {
			if h.shapes(f) && !w.one(30) {
				return false
			}
		}
		for _, next := range w.stack[i+1:] {
			for _, n := range next.alts {
				for _, f := range r.flds {
					if slices.Contains(n.announcers(h), f.name) {
						return false
					}
				}
			}
		}
	}
	return true
}

// blank makes zeros of a header that has no lengths and checksums, and doesn't say which one follows.
func (w *rewriting) blank() string {
	var can []*entry
	for i, e := range w.now {
		if !w.gone[e] && !w.told[e] && (!w.inFan || w.padding[e]) && e.all(func(h *header) bool {
			return !h.std && !slices.ContainsFunc(h.fields, func(f *field) bool {
				return f.derived || slices.ContainsFunc(w.now[i+1:], func(next *entry) bool {
					return slices.ContainsFunc(next.alts, func(n *header) bool {
						return slices.Contains(n.announcers(h), f.name)
					})
				})
			})
		}) || w.one(60) {
			can = append(can, e)
		}
	}
	if len(can) == 0 {
		return ""
	}
	e := pick(w.generator, can)
	w.gone[e] = true
	return fmt.Sprintf("{blank: %q}", e.name)
}

func (w *rewriting) mark() string {
	var out []string
	net := slices.IndexFunc(w.now, func(e *entry) bool {
		return !e.optional && e.isIP()
	})
	field := func(name, value string) {
		if w.gives(w.now[net], stdIPv4.field(name)) {
			out = append(out, name+": "+value)
		}
	}
	if net >= 0 && w.one(2) {
		field("dscp", w.quoted(w.fitting(6)))
	}
	if net >= 0 && w.one(3) {
		field("ecn", w.quoted(w.fitting(2)))
	}
	if w.one(2) {
		out = append(out, "priority: "+w.quoted(w.fitting(32)))
	}
	if w.one(2) || len(out) == 0 {
		out = append(out, "mark: "+w.quoted(w.fitting(32)))
	}
	return "{mark: " + w.braces(out) + "}"
}

// resizable reports whether headers from place i on can be put in or taken out; gone is the one that is taken out, or
// -1.
func (w *rewriting) resizable(i, gone int, last bool) bool {
	if w.one(25) {
		return true // or the compiler says why not
	}
	if size(firsts(w.now)) > mostBytes-15 {
		return false
	}
	hasIP, transport, static := false, false, true
	for j, e := range w.now {
		for _, h := range e.alts {
			hasIP = hasIP || j < i && e.isIP()
			transport = transport || j < i && (h == stdUDP || h == stdTCP) && !e.optional
			static = static && (j == gone || h.fixed)
		}
	}
	return hasIP && static || transport && last
}

func (w *rewriting) pop() string {
	var can []int
	for i, e := range w.now {
		if i == 0 || e.alts[0] == stdEth || w.gone[e] || !w.known(presence(e)) && w.one(2) {
			continue
		}
		last := i == len(w.now)-1
		ok := last || w.now[i+1].all(func(n *header) bool {
			return w.now[i-1].all(func(p *header) bool { return n.follows(p) })
		})
		tag := e.alts[0] == stdVLAN
		user := !e.alts[0].std
		if last && !tag && slices.ContainsFunc(e.alts, func(h *header) bool {
			return slices.ContainsFunc(h.after, func(a *after) bool { return a.parent != "udp" && a.parent != "tcp" })
		}) && !w.one(20) {
			continue // nothing would say what follows
		}
		if ok && (tag || user && w.resizable(i, i, last) || w.one(30)) {
			can = append(can, i)
		}
	}
	if len(can) == 0 {
		return ""
	}
	i := pick(w.generator, can)
	e := w.now[i]
	w.gone[e] = true
	w.now = slices.Delete(slices.Clone(w.now), i, i+1)
	return fmt.Sprintf("{pop: %q}", e.name)
}

// decapsulate takes a tunnel apart: all headers from the first IP header to the one in front of the last. It returns
// nil if there is none, or too little is known of it.
func (w *rewriting) decapsulate() (out []string) {
	outer, inner := w.net(), len(w.now)-1
	for inner > 0 && !w.now[inner].isIP() {
		inner--
	}
	if outer < 0 || inner <= outer || slices.ContainsFunc(w.now[outer:inner+1], func(e *entry) bool {
		return e.optional || w.gone[e]
	}) {
		return nil
	}
	v4 := func(h *header) bool { return h == stdIPv4 || h == stdIPv4Any }
	if slices.Contains(w.now[outer].alts, stdIPv6) && slices.ContainsFunc(w.now[inner].alts, v4) && !w.one(4) {
		return nil // the kernel doesn't make such a packet shorter than an IPv6 header
	}
	if w.rigid(w.now[inner:]) && !w.one(20) {
		return nil
	}
	if w.now[inner-1].alts[0] == stdEth && outer == 1 && w.one(2) { // a frame in a packet
		outer, inner = 0, inner-1
	}
	for _, e := range slices.Backward(w.now[outer:inner]) {
		w.gone[e] = true
		if e.alts[0] == stdUDP && !w.one(4) {
			out = append(out, fmt.Sprintf("{pop: {header: %q, zero_checksum: true}}", e.name))
			continue
		}
		out = append(out, fmt.Sprintf("{pop: %q}", e.name))
	}
	w.now = slices.Delete(slices.Clone(w.now), outer, inner)
	return out
}

func presence(e *entry) string {
	if e.optional {
		return e.name
	}
	return ""
}

func (w *rewriting) push() string {
	candidates := w.headers
	if w.one(12) {
		candidates = []*header{stdVLAN, stdUDP}
	}
	type place struct {
		h    *header
		at   int
		vals []string
	}
	var places []place
	for _, h := range candidates {
		if !h.fixed || (h.sums || h.tail) && !w.one(20) {
			continue
		}
		for at := 1; at <= len(w.now); at++ {
			if !w.now[at-1].all(func(p *header) bool { return h.follows(p) }) || w.now[at-1].optional {
				continue
			}
			if at < len(w.now) && (w.now[at].optional || w.gone[w.now[at]] || !w.now[at].all(func(n *header) bool {
				return n.follows(h)
			})) {
				continue
			}
			if !w.resizable(at, -1, at == len(w.now)) {
				continue
			}
			if vals, ok := w.values(h, at); ok {
				places = append(places, place{h, at, vals})
			}
		}
	}
	if len(places) == 0 {
		return ""
	}
	p := pick(w.generator, places)
	body := fmt.Sprintf("%s: {%s}", label(p.h.name), strings.Join(p.vals, ", "))
	text := "{push: " + body + "}"
	if p.at < len(w.now) {
		text = fmt.Sprintf("{push: {%s, before: %q}}", body, w.now[p.at].name)
	}
	e := &entry{name: p.h.name, alts: []*header{p.h}}
	w.gone[e] = true // it isn't one of the packet that came
	w.now = slices.Insert(slices.Clone(w.now), p.at, e)
	return text
}

// values gives the fields of a pushed header values, if they need one.
func (w *rewriting) values(h *header, at int) ([]string, bool) {
	var out []string
	var announced []string
	if at < len(w.now) {
		for _, n := range w.now[at].alts {
			announced = append(announced, n.announcers(h)...)
		}
	}
	for _, f := range h.fields {
		switch {
		case f.derived || slices.Contains(announced, f.name):
			continue
		case f.is != "":
			if len(f.allowed) == 1 && !strings.HasPrefix(f.is, "!") {
				continue
			}
			out = append(out, fmt.Sprintf("%s: %s", label(f.name), w.literal(pick(w.generator, f.allowed))))
			continue
		}
		v, ok := w.typed(fieldType(f, f.bits))
		if !ok {
			return nil, false
		}
		out = append(out, fmt.Sprintf("%s: %s", label(f.name), w.quoted(v)))
	}
	return out, true
}

func (s *scope) count() string {
	var counter string
	if r, ok := s.choose(func(r ref) bool { return r.t.kind == counterKind }); ok && !s.one(4) {
		counter = r.text
	} else {
		if len(s.counters) == 0 || s.one(3) {
			s.counters = append(s.counters, s.generator.namer(append(s.visible(), s.counters...)...).next())
		}
		counter = pick(s.generator, s.counters)
	}
	if s.one(2) {
		return fmt.Sprintf("{count: %q}", counter)
	}
	return fmt.Sprintf("{count: {counter: %q, by: %s}}", counter, s.quoted(s.fitting(32)))
}

// visible are the first words of all names here.
func (s *scope) visible() []string {
	var out []string
	for _, r := range s.refs {
		first, _, _ := strings.Cut(r.text, ".")
		out = append(out, first)
	}
	return append(out, s.asks...)
}

// learn puts a row into a table that nothing but the kernel fills.
func (s *scope) learn() string {
	t := s.newTable(nil)
	if t.kind != "lru" {
		t.kind = "hash"
	}
	t.perCPU = false
	names := s.generator.namer()
	t.key, t.value = nil, nil
	for range s.between(1, 3) {
		t.key = append(t.key, member{names.next(), s.keyType()})
	}
	for range s.between(1, 3) {
		t.value = append(t.value, member{names.next(), s.keyType()})
	}
	key, _ := s.key(t)
	value, _ := s.key(&table{key: t.value})
	return fmt.Sprintf("{learn: %s: {key: [%s], value: [%s]%s%s}}", label(t.name), s.quotedAll(key), s.quotedAll(value),
		s.verified(), s.owner(t))
}

// owner says which row's session a row ends with, mostly, if it can. What is drawn otherwise stays the same.
func (s *scope) owner(t *table) string {
	there := slices.DeleteFunc(slices.Clone(s.bound), func(r ref) bool { return !s.known(r.need) })
	if n := len(s.refs); len(there) > 0 && n%5 != 0 {
		t.with = true
		return fmt.Sprintf(", with: %q", there[n%len(there)].text)
	}
	return ""
}

// verified says whose checksum is verified before a packet is learned from.
func (s *scope) verified() string {
	var sums []*entry
	for _, e := range s.stack {
		if !e.optional && e.all(func(h *header) bool { return h.sums }) {
			sums = append(sums, e)
		}
	}
	if len(sums) == 0 || s.one(2) {
		return ""
	}
	return fmt.Sprintf(", verified: %q", pick(s.generator, sums).name)
}
