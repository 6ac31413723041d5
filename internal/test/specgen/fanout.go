package specgen

import (
	"fmt"
	mathbits "math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// This file makes what one-to-many relays need: groups of receivers, priority, credits, numbers that are allocated,
// translations, events.

// fanGroup is a kind of group of receivers.
type fanGroup struct {
	name     string
	key      []member
	receiver []member
	more     string
}

func (f *fanGroup) text() string {
	return fmt.Sprintf("%s: {key: %s, receiver: %s%s}", label(f.name), members(f.key), members(f.receiver), f.more)
}

// event is a record for user space.
type event struct {
	name     string
	fields   []member
	copies   []member // nil: it says nothing of each copy
	required bool
}

func (e *event) text() string {
	more := ""
	if e.copies != nil {
		more = ", copies: " + members(e.copies)
	}
	if e.required {
		more += ", required: true"
	}
	return fmt.Sprintf("%s: {fields: %s%s}", label(e.name), members(e.fields), more)
}

// priority declares how many levels there are; programs say where to find it.
func (g *generator) priority() string {
	if g.one(2) {
		return ""
	}
	g.levels = g.between(2, 6)
	text := fmt.Sprintf("priority: {levels: %d", g.levels)
	if g.one(3) {
		text += `, urgent: "high"`
	}
	return text + "}\n"
}

// sharedTypes are the types of what a row shares with user space.
func (g *generator) sharedTypes() []typ {
	out := []typ{{kind: counterKind}, {kind: creditKind}, {kind: bucketKind}, {kind: translationKind}}
	if g.levels > 0 {
		out = append(out, typ{kind: creditKind, levels: true}, typ{kind: bucketKind, levels: true})
	}
	return out
}

// level makes an expression of a level of priority.
func (s *scope) level() string {
	switch {
	case s.hasLevel && !s.one(4):
		return "priority"
	case s.one(2):
		return fmt.Sprintf("(%s) %% %d", s.intLeaf(), s.levels)
	}
	return fmt.Sprint(s.IntN(s.levels))
}

// levelType is the type of the packet's priority.
func (g *generator) levelType() typ {
	return typ{kind: intKind, n: max(1, mathbits.Len(uint(g.levels-1)))}
}

// fansOut reports whether a rule's packet can be copied at all.
func (w *rewriting) fansOut() bool {
	if w.hook != "tc/ingress" || slices.ContainsFunc(w.stack, func(e *entry) bool {
		return slices.Contains(e.alts, stdVLAN)
	}) {
		return false
	}
	return w.net() >= 0
}

// fanOut ends a rule with copies for all receivers of a group, or returns nothing.
func (w *rewriting) fanOut() (actions []string) {
	if !w.fansOut() {
		return nil
	}
	f := w.group()
	key, ok := w.key(&table{key: f.key})
	if !ok {
		return nil
	}
	in := w.scope.clone()
	in.inFan, in.padding = true, map[*entry]bool{}
	if w.one(3) {
		e, a := w.copies()
		if e != nil {
			in.report, actions = e, append(actions, a)
		}
	}
	for _, e := range w.now {
		in.padding[e] = w.one(4)
	}
	for _, m := range f.receiver {
		in.member("r."+m.name, m.t, "")
	}
	var rules []string
	for range w.between(0, 2) {
		rules = append(rules, "{"+in.rule(false)+"}")
	}
	open := "do: [" + strings.Join(in.actions(), ", ") + "]"
	each := fmt.Sprintf("rules: [%s]", strings.Join(append(rules, "{"+open+"}"), ", "))
	if len(rules) == 0 && w.one(2) {
		each = "each: " + strings.TrimPrefix(open, "do: ")
	}
	then := ""
	switch w.IntN(4) {
	case 0:
		then = `, then: "pass"`
	case 1:
		then = fmt.Sprintf(", then: {drop: %q}", w.generator.namer().next())
	}
	return append(actions, fmt.Sprintf("{fan_out: {group: %s: [%s], %s%s}}", label(f.name), w.quotedAll(key), each,
		then))
}

// group declares a group whose key can be made here, or takes one that is there.
func (s *scope) group() *fanGroup {
	for _, f := range s.fans {
		if _, ok := s.key(&table{key: f.key}); ok && s.one(2) {
			return f
		}
	}
	names := s.generator.namer()
	f := &fanGroup{name: s.state.next()}
	for range s.between(1, 3) {
		f.key = append(f.key, member{names.next(), s.keyType()})
	}
	f.receiver = []member{{names.next(), typ{kind: endpointKind}}, {names.next(), typ{kind: endpointKind}}}
	if s.one(4) {
		f.receiver = append(f.receiver, member{names.next(), typ{kind: nextHopKind}})
	}
	for range s.between(0, 4) {
		t := s.valueType()
		if s.one(2) {
			t = pick(s.generator, s.sharedTypes())
		}
		if t.kind != nextHopKind {
			f.receiver = append(f.receiver, member{names.next(), t})
		}
	}
	s.Shuffle(len(f.receiver), func(i, j int) { f.receiver[i], f.receiver[j] = f.receiver[j], f.receiver[i] })
	if s.one(2) {
		most := pick(s.generator, []int{1, 3, 16, 100})
		f.more = fmt.Sprintf(", max: %d, receivers: %d, size: %d", most, most+s.IntN(100), s.between(1, 40))
	}
	s.fans = append(s.fans, f)
	return f
}

// effects are actions that change state, not the packet: dropped says that no copy and no packet comes of the rule.
func (s *scope) effects(dropped bool) []string {
	var out []string
	if dropped {
		if s.one(4) && !s.inFan {
			out = append(out, s.emit(false))
		}
		return out
	}
	if s.one(4) {
		out = append(out, s.let())
	}
	for s.one(4) {
		if a := s.admit(); a != "" {
			out = append(out, a)
		}
	}
	for s.one(4) {
		out = append(out, s.emit(true))
	}
	if s.report != nil && !s.one(3) {
		if a, ok := s.tell(s.report, s.report.copies, true); ok {
			out = append(out, a)
		}
	}
	return out
}

// let gives values names.
func (s *scope) let() string {
	var out []string
	for range s.between(1, 2) {
		name := s.likeField(s.letNames.next())
		switch s.IntN(4) {
		case 0:
			out = append(out, fmt.Sprintf("%s: %s", label(name), s.quoted(s.cond(1))))
			s.refs = append(s.refs, ref{text: name, t: typ{kind: boolKind}})
			continue
		case 1:
			if x := s.allocating(); x != "" {
				out = append(out, fmt.Sprintf("%s: %q", label(name), x))
				s.late = append(s.late, name)
				continue
			}
		}
		n := s.between(1, 64)
		out = append(out, fmt.Sprintf("%s: %s", label(name), s.quoted(s.fitting(n))))
		s.refs = append(s.refs, ref{text: name, t: typ{kind: intKind, n: 64}})
	}
	return "{let: " + s.braces(out) + "}"
}

// likeField is the name of a field instead of another name for a value, now and then: which isn't drawn, so that what
// is drawn after it stays the same.
func (s *scope) likeField(name string) string {
	if (len(name)+len(s.refs))%3 > 0 {
		return name
	}
	for _, e := range s.stack {
		for _, f := range e.alts[0].fields {
			if !s.letNames.used[f.name] && !reserved[f.name] && f.name != "len" {
				s.letNames.used[f.name] = true
				return f.name
			}
		}
	}
	return name
}

// allocating makes an expression that takes a number from a counter, or finds or makes a translation; "" if no row
// has any.
func (s *scope) allocating() string {
	if t, ok := s.chooseShared(translationKind); ok && s.one(2) {
		value := s.int(1)
		if c, ok := s.chooseShared(counterKind); ok && s.one(2) {
			value = alloc(s, c)
		}
		return fmt.Sprintf("translate(%s, %s, %s)", t, s.int(1), value)
	}
	if c, ok := s.chooseShared(counterKind); ok {
		return alloc(s, c)
	}
	return ""
}

func alloc(s *scope, counter string) string {
	if s.one(2) {
		return fmt.Sprintf("alloc(%s)", counter)
	}
	return fmt.Sprintf("alloc(%s, %s)", counter, s.literal(1+s.integer(pick(s.generator, []int{2, 8, 32}))))
}

// chooseShared returns a member of a row, of a kind that user space shares.
func (s *scope) chooseShared(k kind) (string, bool) {
	r, ok := s.choose(func(r ref) bool { return r.t.kind == k })
	return r.text, ok
}

// stored makes an expression of an integer that is stored where a packet leaves for certain: it may be one that is
// allocated.
func (s *scope) stored(bits int) string {
	if !s.one(3) {
		return s.fitting(bits)
	}
	x := ""
	switch {
	case len(s.late) > 0 && s.one(2):
		x = pick(s.generator, s.late)
	default:
		x = s.allocating()
	}
	switch {
	case x == "":
		return s.fitting(bits)
	case s.one(3):
		x = fmt.Sprintf("%s + %s", x, s.intLeaf())
	}
	if bits == 64 {
		return x
	}
	return fmt.Sprintf("low(%s, %d)", x, bits)
}

// admit spends a credit of a row, or returns "" if none has one.
func (s *scope) admit() string {
	r, ok := s.choose(func(r ref) bool { return r.t.kind == creditKind || r.t.kind == bucketKind })
	if !ok {
		return ""
	}
	credit := r.text
	if r.t.levels {
		credit += "[" + s.level() + "]"
	}
	cost := pick(s.generator, []string{"1", "len(udp.payload)", "skb.len"})
	if !slices.ContainsFunc(s.lens, func(l ref) bool { return l.text == "udp.payload" && s.known(l.need) }) ||
		s.one(4) {
		cost = s.fitting(pick(s.generator, []int{4, 11, 33, 64}))
	}
	text := fmt.Sprintf("credit: %q, cost: %s", credit, s.quoted(cost))
	for name, isSwitch := range spec.Optional("#Admit") {
		value := ""
		switch {
		case name == "count":
			c, ok := s.chooseShared(counterKind)
			if !ok {
				continue
			}
			value = strconv.Quote(c)
		case name == "else": // not drawn, so that what is drawn after it stays the same
			if !s.socket && len(text)%2 == 0 && !strings.Contains(text, "overdraft: ") {
				reason := "over_" + strings.ReplaceAll(r.text, ".", "_")
				text += fmt.Sprintf(", else: {drop: %q}", reason[:min(31, len(reason))])
			}
			continue
		case isSwitch:
			value = "true"
		default:
			value = s.quoted(s.fitting(pick(s.generator, []int{4, 11, 64})))
		}
		if s.one(3) {
			text += ", " + name + ": " + value
		}
	}
	return "{admit: {" + text + "}}"
}

// emit makes a record of an event; if the packet is dropped it can't be one that is required.
func (s *scope) emit(leaves bool) string {
	var e *event
	for _, known := range s.events {
		data := !known.excerpt() || s.excerpts() && (known.required || !leaves)
		if s.one(3) && known.copies == nil && (leaves || !known.required) && data {
			e = known
		}
	}
	if e == nil {
		names := s.generator.namer()
		e = &event{name: s.eventNames.next(), required: leaves && s.one(3)}
		for range s.between(0, 4) {
			e.fields = append(e.fields, member{names.next(), s.keyType()})
		}
		if s.one(3) && s.excerpts() {
			e.required = leaves // else it would be too late to read the packet
			size := pick(s.generator, []int{1, s.between(2, 64), 1500})
			content := member{names.next(), typ{kind: dataKind, n: size}}
			e.fields = slices.Insert(e.fields, s.IntN(len(e.fields)+1), content)
		}
		s.events = append(s.events, e)
	}
	a, ok := s.tell(e, e.fields, leaves)
	if !ok { // an event of another program, whose values aren't to be had here
		return `{count: "untold"}`
	}
	return a
}

// tell emits an event, or what it says of a copy; ok is false if there is no value for a field.
func (s *scope) tell(e *event, members []member, leaves bool) (action string, ok bool) {
	var fields []string
	for _, m := range members {
		x, ok := "", false
		switch {
		case m.t.kind == dataKind:
			r := pick(s.generator, s.lens) // some are of fields
			if _, field, _ := strings.Cut(r.text, "."); s.known(r.need) && (field == "" || field == "payload") {
				x, ok = r.text, true
			}
		case m.t.kind == intKind && leaves:
			x, ok = s.stored(m.t.n), true
		default:
			x, ok = s.typed(m.t)
		}
		if !ok {
			return "", false
		}
		fields = append(fields, fmt.Sprintf("%s: %s", label(m.name), s.quoted(x)))
	}
	return fmt.Sprintf("{emit: %s: {%s}}", label(e.name), strings.Join(fields, ", ")), true
}

// copies declares an event that says something of each copy, and emits it for the packet.
func (w *rewriting) copies() (*event, string) {
	names := w.generator.namer()
	e := &event{name: w.eventNames.next(), copies: []member{}, required: w.one(2)}
	for range w.between(0, 3) {
		e.fields = append(e.fields, member{names.next(), w.keyType()})
	}
	for range w.between(0, 3) {
		e.copies = append(e.copies, member{names.next(), w.keyType()})
	}
	a, ok := w.tell(e, e.fields, true)
	if !ok {
		return nil, ""
	}
	w.events = append(w.events, e)
	return e, a
}

// excerpt reports whether the event has bytes of the packet.
func (e *event) excerpt() bool {
	return slices.ContainsFunc(e.fields, func(m member) bool { return m.t.kind == dataKind })
}

// excerpts reports whether there may be such events here.
func (s *scope) excerpts() bool { return !s.inFan && !s.socket && len(s.lens) > 0 }

// elements adds a list of elements to a header.
func (g *generator) elements(h *header, names *namer) {
	size := &field{name: names.next(), bits: 8}
	f := &field{
		name: names.next(), kind: sizedField, variable: true, size: size.name, max: g.between(1, 40), elements: true,
	}
	if g.one(2) {
		f.size, f.max = size.name+" * 4", 4*g.between(1, 16)
	}
	var forms []string
	n := g.between(1, 2)
	for i := range n {
		var m []string
		if i < n-1 || g.one(3) { // what follows a form without a condition is never looked at
			m = append(m,
				fmt.Sprintf("when: %q", fmt.Sprintf(pick(g, []string{"%s & 1 == 0", "%s > 8", "%s != 4"}), size.name)))
		}
		id := pick(g, []int{4, 8})
		m = append(m, fmt.Sprintf("id: %d", id))
		if g.one(2) {
			m = append(m, fmt.Sprintf("bias: %d", g.IntN(3)))
		}
		if g.one(2) {
			m = append(m, "pad: 0")
		}
		if g.one(2) {
			m = append(m, fmt.Sprintf("stop: %d", 1<<id-1))
		}
		forms = append(forms, "{"+strings.Join(m, ", ")+"}")
	}
	f.rest = ", elements: [" + strings.Join(forms, ", ") + "]"
	h.fields = append(h.fields, size, f)
}

// element makes an expression that looks into a list of elements, or returns "".
func (s *scope) element() string {
	var lists []string
	for _, l := range s.lens {
		if l.list && s.known(l.need) {
			lists = append(lists, l.text)
		}
	}
	if len(lists) == 0 {
		return ""
	}
	list, id := pick(s.generator, lists), s.literal(uint64(1+s.IntN(4)))
	if s.one(2) {
		return fmt.Sprintf("pick(has(%s, %s), 1, 0)", list, id)
	}
	return fmt.Sprintf("element(%s, %s, %d)", list, id, s.IntN(8))
}
