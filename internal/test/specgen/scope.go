package specgen

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

type kind int

const (
	intKind kind = iota
	boolKind
	bytesKind
	macKind
	addrKind
	endpointKind
	prefixKind
	nextHopKind
	counterKind
	translationKind
	creditKind
	bucketKind
	dataKind
)

// typ is a type: n is the number of bits of an integer or of bytes. With levels there is a value for each level of
// priority.
type typ struct {
	kind   kind
	n      int
	levels bool
}

func (t typ) text() string {
	if t.levels {
		t.levels = false
		return t.text() + "[priority]"
	}
	switch t.kind {
	case intKind:
		return fmt.Sprintf("u%d", t.n)
	case bytesKind:
		return fmt.Sprintf("bytes%d", t.n)
	case dataKind:
		return fmt.Sprintf("data%d", t.n)
	}
	return [...]string{boolKind: "bool", macKind: "mac", addrKind: "ip", endpointKind: "endpoint", prefixKind: "prefix",
		nextHopKind: "next_hop", counterKind: "counter",
		translationKind: "translation", creditKind: "credit", bucketKind: "bucket",
	}[t.kind]
}

// ref is a value that an expression can name.
type ref struct {
	text string
	t    typ
	need string   // what has to be there: an optional header or row; "" if nothing has to
	at   *entry   // of fields
	flds []*field // the field in each of the entry's headers
	list bool     // a list of elements
}

// entry is a place in a program's stack.
type entry struct {
	name     string
	text     string
	alts     []*header
	optional bool
	after    string // the entry after whose payload it begins
}

func (e *entry) isIP() bool {
	return e.alts[0] == stdIPv4 || e.alts[0] == stdIPv6 || e.alts[0] == stdIPv4Any
}

func (e *entry) all(f func(*header) bool) bool {
	return !slices.ContainsFunc(e.alts, func(h *header) bool { return !f(h) })
}

// scope is what expressions can use at a place in a program.
type scope struct {
	*generator
	stack []*entry
	refs  []ref
	lens  []ref
	bound []ref           // rows that end with sessions
	facts map[string]bool // optional things that are known to be there
	asks  []string        // optional things that a condition can ask for
	names *namer

	hook     string
	socket   bool            // there is no packet, but a socket
	chooses  *lookup         // whose row says which of the last headers a packet has; nil: none has to
	inFan    bool            // in the rules of a fan-out
	report   *event          // that says something of each copy; nil: none
	padding  map[*entry]bool // headers that these rules may make zeros of, and set no fields of
	hasLevel bool            // the program says what its packets' priority is
	late     []string        // names of values that are known when the packet leaves, and can't decide anything
	letNames *namer
}

func (s *scope) clone() *scope {
	c := *s
	c.late, c.bound = slices.Clone(s.late), slices.Clone(s.bound)
	c.refs, c.lens, c.asks, c.facts = slices.Clone(s.refs), slices.Clone(s.lens), slices.Clone(s.asks),
		maps.Clone(s.facts)
	return &c
}

// askable are the optional things that a condition can ask for: not one whose alternative is there.
func (s *scope) askable() []string {
	return slices.DeleteFunc(slices.Clone(s.asks), s.excluded)
}

// excluded reports whether a header isn't there, because another one is known to be in its place.
func (s *scope) excluded(name string) bool {
	for _, e := range s.stack {
		if len(e.alts) > 1 && slices.ContainsFunc(e.alts, func(h *header) bool { return h.name == name }) {
			for _, h := range e.alts {
				if h.name != name && s.facts[h.name] {
					return true
				}
			}
		}
	}
	return false
}

// with returns the scope after a condition that asked for name.
func (s *scope) with(name string) *scope {
	c := s.clone()
	c.facts[name] = true
	return c
}

// newScope lists what a stack offers.
func (g *generator) newScope(stack []*entry, names *namer) *scope {
	s := &scope{generator: g, stack: stack, facts: map[string]bool{}, names: names, letNames: names}
	count := map[string]int{}
	for _, e := range stack {
		for _, h := range e.alts {
			count[h.name]++
		}
	}
	for _, e := range stack {
		need := ""
		if e.optional {
			need = e.name
			s.asks = append(s.asks, e.name)
		}
		s.headers_(e, e.name, e.alts, need)
		if len(e.alts) > 1 {
			for _, h := range e.alts {
				if count[h.name] == 1 && e.name != h.name {
					s.asks = append(s.asks, h.name)
					s.headers_(e, h.name, []*header{h}, h.name)
				}
			}
		}
	}
	for _, x := range g.settings {
		s.refs = append(s.refs, ref{text: "setting." + x.name, t: x.t})
	}
	for _, m := range []string{"len", "mark", "priority"} {
		s.refs = append(s.refs, ref{text: "skb." + m, t: typ{kind: intKind, n: 32}})
	}
	return s
}

// headers_ lists the fields that all of some headers have, under a name.
func (s *scope) headers_(e *entry, name string, hs []*header, need string) {
	s.lens = append(s.lens, ref{text: name, need: need}, ref{text: name + ".payload", need: need})
	for _, f := range hs[0].fields {
		flds := []*field{f}
		for _, h := range hs[1:] {
			if other := h.field(f.name); other != nil && other.kind == f.kind && other.typ == f.typ &&
				(f.typ == "ip" || other.bytes == f.bytes) {
				flds = append(flds, other)
			}
		}
		if len(flds) < len(hs) {
			continue
		}
		text := name + "." + f.name
		if f.kind == sizedField {
			s.lens = append(s.lens, ref{text: text, need: need, list: f.elements && len(hs) == 1 && f.when == ""})
			continue
		}
		if f.kind == bytesField && !slices.ContainsFunc(flds, func(x *field) bool { return x.bytes != f.bytes }) {
			s.lens = append(s.lens, ref{text: text, need: need})
		}
		width := 1
		for _, x := range flds {
			width = max(width, x.bits)
		}
		s.refs = append(s.refs, ref{text: text, t: fieldType(f, width), need: need, at: e, flds: flds})
	}
	// a part of one, a field of the other
	if len(hs) == 2 && hs[0] != hs[1] && hs[0].field("dscp") != nil && hs[1].field("dscp") != nil {
		flds := []*field{stdIPv4.field("ttl"), stdIPv6.field("hop_limit")}
		s.refs = append(s.refs, ref{
			text: name + ".hop_limit", t: typ{kind: intKind, n: 8}, need: need, at: e, flds: flds,
		})
	}
	for _, p := range hs[0].parts {
		if slices.ContainsFunc(hs, func(h *header) bool {
			return !slices.ContainsFunc(h.parts, func(q *part) bool {
				return q.name == p.name && q.alias == p.alias && q.addr == p.addr
			})
		}) {
			continue
		}
		text := name + "." + p.name
		if p.alias != "" {
			if f := hs[0].field(p.alias); len(hs) == 1 {
				s.refs = append(s.refs, ref{text: text, t: fieldType(f, f.bits), need: need, at: e, flds: []*field{f}})
			}
			continue
		}
		s.refs = append(s.refs, ref{text: text, t: typ{kind: endpointKind}, need: need},
			ref{text: text + ".addr", t: typ{kind: addrKind}, need: need},
			ref{text: text + ".port", t: typ{kind: intKind, n: 16}, need: need})
	}
}

func fieldType(f *field, width int) typ {
	switch {
	case f.kind != bytesField:
		return typ{kind: intKind, n: width}
	case f.typ == "ip":
		return typ{kind: addrKind}
	case f.typ == "mac":
		return typ{kind: macKind}
	}
	return typ{kind: bytesKind, n: f.bytes}
}

func (s *scope) known(need string) bool { return need == "" || s.facts[need] }

// choose returns a value that can be named here and for which ok holds.
func (s *scope) choose(ok func(ref) bool) (ref, bool) {
	var all []ref
	for _, r := range s.refs {
		if s.known(r.need) && ok(r) {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return ref{}, false
	}
	return pick(s.generator, all), true
}

// int makes an expression of an integer.
func (s *scope) int(depth int) string {
	if depth <= 0 || s.one(3) {
		return s.intLeaf()
	}
	sub := func() string {
		x := s.int(depth - 1)
		if strings.ContainsAny(x, " ") && !s.one(3) {
			return "(" + x + ")"
		}
		return x
	}
	switch s.IntN(11) {
	case 10:
		return fmt.Sprintf("pick(%s, %s, %s)", s.cond(depth-1), s.int(depth-1), s.int(depth-1))
	case 0:
		return pick(s.generator, []string{"^", "-"}) + "(" + s.int(depth-1) + ")"
	case 1:
		return fmt.Sprintf("%s %s %s", sub(), pick(s.generator, []string{"/", "%"}),
			s.literal(1+s.integer(pick(s.generator, []int{2, 8, 32, 63}))))
	case 2, 3:
		return fmt.Sprintf("%s %s %d", sub(), pick(s.generator, []string{"<<", ">>"}),
			pick(s.generator, []int{0, 1, 3, 7, 8, 16, 31, 32, 48, 63}))
	case 4:
		if r, ok := s.choose(func(r ref) bool { return r.t.kind == intKind && len(r.flds) == 1 }); ok && s.one(2) {
			return fmt.Sprintf("low(%s, %s)", s.int(depth-1), r.text)
		}
		return fmt.Sprintf("low(%s, %d)", s.int(depth-1), s.between(1, 64))
	}
	return fmt.Sprintf("%s %s %s", sub(), pick(s.generator, []string{"+", "-", "*", "&", "|", "^", "&^"}), sub())
}

func (s *scope) intLeaf() string {
	switch s.IntN(9) {
	case 8:
		if x := s.element(); x != "" {
			return x
		}
	case 0:
		return s.literal(s.integer(pick(s.generator, []int{4, 8, 16, 32, 64})))
	case 1:
		var lens []string
		for _, l := range s.lens {
			if s.known(l.need) {
				lens = append(lens, l.text)
			}
		}
		if len(lens) > 0 {
			return "len(" + pick(s.generator, lens) + ")"
		}
	case 2:
		if r, ok := s.choose(func(r ref) bool {
			return r.t.kind == bytesKind || r.t.kind == macKind || r.t.kind == addrKind
		}); ok {
			n := map[kind]int{bytesKind: r.t.n, macKind: 6, addrKind: 4}[r.t.kind] // an IPv4 address may have no more
			return fmt.Sprintf("%s[%d]", r.text, s.IntN(n))
		}
	}
	if r, ok := s.choose(func(r ref) bool { return r.t.kind == intKind || r.t.kind == counterKind }); ok {
		return r.text
	}
	return s.literal(s.integer(16))
}

// fitting makes an expression of an integer that is provably below 1<<bits.
func (s *scope) fitting(bits int) string {
	if s.one(3) {
		return s.literal(s.integer(bits))
	}
	if r, ok := s.choose(func(r ref) bool { return r.t.kind == intKind && r.t.n <= bits }); ok && s.one(2) {
		return r.text
	}
	if bits == 64 {
		return s.int(2)
	}
	return fmt.Sprintf("low(%s, %d)", s.int(2), s.between(1, bits))
}

// cond makes a condition.
func (s *scope) cond(depth int) string {
	if depth > 0 && s.one(2) {
		op := pick(s.generator, []string{"&&", "||"})
		if asks := s.askable(); len(asks) > 0 && s.one(2) {
			name := pick(s.generator, asks)
			inner := s.with(name).cond(depth - 1)
			if s.one(2) {
				return fmt.Sprintf("%s && (%s)", name, inner)
			}
			return fmt.Sprintf("!%s || (%s)", name, inner)
		}
		return fmt.Sprintf("(%s) %s (%s)", s.cond(depth-1), op, s.cond(depth-1))
	}
	switch s.IntN(12) {
	case 0:
		if len(s.asks) > 0 {
			return pick(s.generator, []string{"", "!"}) + pick(s.generator, s.asks)
		}
	case 1:
		if r, ok := s.choose(func(r ref) bool { return r.t.kind == boolKind }); ok {
			return pick(s.generator, []string{"", "!"}) + r.text
		}
	case 2, 3, 4:
		a, ok := s.choose(func(r ref) bool {
			return r.t.kind >= bytesKind && r.t.kind <= endpointKind || r.t.kind == boolKind
		})
		if ok {
			b, ok := s.choose(func(r ref) bool { return r.t == a.t && r.text != a.text })
			if ok {
				return fmt.Sprintf("%s %s %s", a.text, pick(s.generator, []string{"==", "!="}), b.text)
			}
		}
	case 5:
		if depth > 0 {
			return "!(" + s.cond(depth-1) + ")"
		}
	}
	op := pick(s.generator, []string{"==", "!=", "<", "<=", ">", ">="})
	if s.one(3) {
		return fmt.Sprintf("%s %s %s", s.int(2), op, s.int(1))
	}
	// A field against a value that it can have.
	r, ok := s.choose(func(r ref) bool { return r.t.kind == intKind })
	if !ok {
		return fmt.Sprintf("%s %s %s", s.intLeaf(), op, s.intLeaf())
	}
	return fmt.Sprintf("%s %s %s", r.text, op, s.literal(s.integer(r.t.n)))
}

// asserting makes a condition that may make sure of something optional, and the scope after it.
func (s *scope) asserting(depth int) (string, *scope) {
	if asks := s.askable(); len(asks) > 0 && s.one(2) {
		name := pick(s.generator, asks)
		in := s.with(name)
		if s.one(3) {
			return name, in
		}
		return fmt.Sprintf("%s && (%s)", name, in.cond(depth)), in
	}
	return s.cond(depth), s
}

// typed makes an expression of a type; ok is false if nothing here has that type.
func (s *scope) typed(t typ) (string, bool) {
	switch t.kind {
	case intKind:
		return s.fitting(t.n), true
	case boolKind:
		if s.one(4) {
			return pick(s.generator, []string{"true", "false"}), true
		}
		return s.cond(0), true
	}
	same := func(r ref) bool { return r.t == t }
	r, ok := s.choose(same)
	if other, _ := s.choose(same); ok && (t.kind == bytesKind || t.kind == macKind) && s.one(4) {
		return fmt.Sprintf("pick(%s, %s, %s)", s.cond(1), r.text, other.text), true
	}
	return r.text, ok
}

// keyType is a random type of which something can be named here.
func (s *scope) keyType() typ {
	switch s.IntN(10) {
	case 0:
		return typ{kind: boolKind}
	case 1, 2:
		return typ{kind: intKind, n: s.between(1, 64)}
	}
	r, ok := s.choose(func(r ref) bool { return r.t.kind <= endpointKind && !strings.HasPrefix(r.text, "skb.") })
	if !ok {
		return typ{kind: intKind, n: 16}
	}
	return r.t
}
