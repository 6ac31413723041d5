package specgen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// program makes a program.
func (g *generator) program(name string) string {
	var taken []string
	for _, h := range g.headers {
		taken = append(taken, h.name)
	}
	for _, gr := range g.groups {
		taken = append(taken, gr.name)
	}
	names := g.namer(taken...)
	stack := g.stack(names)
	s := g.newScope(stack, names)
	if e := g.chosen(names, stack); e != nil {
		s = g.newScope(append(stack, e), names)
		for range 8 { // a row has to choose
			if l := s.lookup(s.wanted()); l != nil {
				l.optional = false
				s.chooses = l
				break
			}
		}
		if s.chooses == nil {
			s = g.newScope(stack, names)
		}
	}
	s.hook = pick(g, []string{"tc/ingress", "tc/ingress", "tc/ingress", "tc/egress"})
	return s.program(name)
}

const bothHooks = `["xdp", "tc/ingress"]`

// program makes the program of a scope, which has its hook and its stack.
func (s *scope) program(name string) string {
	g := s.generator
	var w strings.Builder
	hook := strconv.Quote(s.hook)
	switch {
	case s.hook != "tc/ingress":
	case g.one(2):
		hook = bothHooks
	case g.one(2): // if a driver can do it: see Plan
		hook = `"xdp"`
	}
	fmt.Fprintf(&w, "%s: {\n\thook: %s\n\tstack: [", label(name), hook)
	for i, e := range s.stack {
		if i > 0 {
			w.WriteString(", ")
		}
		w.WriteString(e.text)
	}
	w.WriteString("]\n")
	if s.hook == "tc/ingress" && g.one(5) {
		w.WriteString("\tmulticast: true\n")
	}
	if g.levels > 0 {
		fmt.Fprintf(&w, "\tpriority: %q\n", s.int(1))
	}
	if g.one(4) {
		var m string
		if m, s = s.match(); m != "" {
			fmt.Fprintf(&w, "\tmatch: %s\n", m)
		}
	}
	when := ""
	if g.one(4) {
		when, s = s.asserting(2)
	}
	var lookups []string
	if s.chooses != nil {
		lookups = append(lookups, s.chooses.text(g))
		s.found(s.chooses)
	}
	for range max(0, g.IntN(4)-1) {
		if l := s.lookup(s.wanted()); l != nil {
			lookups = append(lookups, l.text(g))
			s.found(l)
		}
	}
	if len(lookups) > 0 {
		fmt.Fprintf(&w, "\tlookup: {%s}\n", strings.Join(lookups, ", "))
		if when == "" && g.one(3) {
			when, s = s.asserting(2)
		}
	}
	if when != "" {
		fmt.Fprintf(&w, "\twhen: %s\n", g.quoted(when))
	}
	if s.hasLevel = g.levels > 0; s.hasLevel { // known after the lookups
		s.refs = append(s.refs, ref{text: "priority", t: g.levelType()})
	}
	n := g.between(1, 4)
	if n == 1 {
		fmt.Fprintf(&w, "\tdo: [%s]\n", strings.Join(s.actions(), ", "))
	} else {
		var rules strings.Builder
		for i := range n {
			fmt.Fprintf(&rules, "\t\t{%s},\n", s.rule(i == n-1 && !g.one(3)))
		}
		w.WriteString("\trules: [\n")
		if !s.socket && !strings.Contains(rules.String(), "{send: ") &&
			!strings.Contains(rules.String(), "{fan_out: ") && g.one(3) {
			for _, word := range spec.Conditions {
				fmt.Fprintf(&w, "\t\t{when: %[1]q, do: [{drop: %[1]q}]},\n", word)
			}
		}
		w.WriteString(rules.String() + "\t]\n")
	}
	w.WriteString("}")
	return w.String()
}

// wanted are the types that a lookup's row should have, for a rule to send by.
func (s *scope) wanted() []typ {
	if s.socket {
		return nil
	}
	if s.tunnels && s.one(3) {
		return []typ{{kind: nextHopKind}} // what comes out of a tunnel is mostly routed
	}
	switch s.IntN(5) {
	case 0, 1:
		return []typ{{kind: endpointKind}, {kind: endpointKind}}
	case 2:
		return []typ{{kind: addrKind}}
	case 3:
		return []typ{{kind: nextHopKind}}
	}
	return nil
}

// rule makes a rule; the last one of most programs has no conditions.
func (s *scope) rule(open bool) string {
	var parts []string
	in := s.clone()
	only := !open && s.one(4) // nothing but a row decides
	if only {
		if l := in.lookup(in.wanted()); l != nil {
			l.optional = false
			in = in.clone()
			in.found(l)
			parts = append(parts, fmt.Sprintf("lookup: {%s}", l.text(s.generator)))
		} else {
			only = false
		}
	}
	if !open && !only {
		if s.one(2) {
			var m string
			if m, in = in.match(); m != "" {
				parts = append(parts, "match: "+m)
			}
		}
		when := ""
		if s.one(2) || len(parts) == 0 {
			when, in = in.asserting(2)
		}
		var lookups []string
		for s.one(4) && len(lookups) < 2 {
			if l := in.lookup(in.wanted()); l != nil {
				in = in.clone()
				in.found(l)
				lookups = append(lookups, l.text(s.generator))
			}
		}
		if len(lookups) > 0 {
			parts = append(parts, fmt.Sprintf("lookup: {%s}", strings.Join(lookups, ", ")))
			if when == "" && s.one(4) { // it may ask for what was found
				when, in = in.asserting(2)
			}
		}
		if when != "" {
			parts = append(parts, "when: "+s.quoted(when))
		}
	}
	parts = append(parts, fmt.Sprintf("do: [%s]", strings.Join(in.actions(), ", ")))
	return strings.Join(parts, ", ")
}

// match makes constraints on fields, and the scope after them.
func (s *scope) match() (string, *scope) {
	in := s.clone()
	seen := map[string]bool{}
	var out []string
	for range s.between(1, 2) {
		var all []ref
		for _, r := range s.refs {
			row := !strings.HasPrefix(r.text, "setting.") && !strings.HasPrefix(r.text,
				"skb.") && slices.ContainsFunc(s.stack, func(e *entry) bool {
				first, _, _ := strings.Cut(r.text, ".")
				return e.name == first || slices.ContainsFunc(e.alts, func(h *header) bool { return h.name == first })
			})
			if row && !seen[r.text] && !in.excluded(r.need) && (len(r.flds) == 0 || r.flds[0].is == "") {
				all = append(all, r)
			}
		}
		if len(all) == 0 {
			break
		}
		r := pick(s.generator, all)
		c := s.matchOf(r)
		if c == "" {
			continue
		}
		seen[r.text] = true
		if r.need != "" {
			in.facts[r.need] = true
		}
		out = append(out, fmt.Sprintf("%q: %s", r.text, c))
	}
	if len(out) == 0 {
		return "", s
	}
	return s.braces(out), in
}

func (s *scope) matchOf(r ref) string {
	text := func(one func() string) string {
		switch s.IntN(4) {
		case 0:
			return one() + " | " + one()
		case 1:
			return "!=" + one()
		}
		return one()
	}
	quote := func(list []string) func() string {
		return func() string { return fmt.Sprintf("%q", pick(s.generator, list)) }
	}
	switch r.t.kind {
	case intKind:
		c, _ := s.constraint(narrowest(r))
		return c
	case addrKind:
		return text(quote(slices.Concat(addresses, prefixes)))
	case macKind:
		return text(quote(macs))
	case bytesKind:
		return text(func() string { return fmt.Sprintf("%q", s.hex(r.t.n)) })
	case endpointKind:
		return text(quote([]string{"198.51.100.7:40001", "[2001:db8::7]:7000", "192.0.2.1:443"}))
	}
	return ""
}

func narrowest(r ref) int {
	n := r.t.n
	for _, f := range r.flds {
		n = min(n, f.bits)
	}
	return n
}

// stack makes the stack of a program.
func (g *generator) stack(names *namer) []*entry {
	var out []*entry
	add := func(e *entry) { out = append(out, e) }
	ip := func() *entry {
		switch g.IntN(8) {
		case 0:
			return g.entry(names, false, stdIPv4)
		case 1:
			return g.entry(names, false, stdIPv6)
		case 2:
			return g.entry(names, false, stdIPv6, stdIPv4)
		}
		return &entry{name: "ip", text: `"ip"`, alts: groupIP}
	}
	transport := func() {
		last := out[len(out)-1]
		own := slices.DeleteFunc(g.transports(), func(h *header) bool {
			return !last.all(func(p *header) bool { return h.follows(p) })
		})
		if len(own) > 0 && !g.one(3) {
			if h := pick(g, own); slices.Contains(h.after[0].match, "253") && g.one(3) {
				add(g.entry(names, false, h, stdUDP))
			} else {
				add(g.entry(names, false, h))
			}
			return
		}
		switch g.IntN(8) {
		case 0:
			add(g.entry(names, false, stdUDP, stdTCP))
		case 1:
			add(g.entry(names, false, stdTCP))
		default:
			add(g.entry(names, false, stdUDP))
		}
	}
	add(g.entry(names, false, stdEth))
	if g.one(7) {
		add(g.entry(names, !g.one(3), stdVLAN))
		if g.one(6) { // a tag in a tag
			n := names.next()
			add(&entry{name: n, text: fmt.Sprintf("{%s: \"vlan\"}", label(n)), alts: []*header{stdVLAN}})
		}
	}
	if g.one(10) { // in front of IP, as PPPoE's header is
		if e := g.userEntry(names, out); e != nil {
			add(e)
		}
	}
	if g.tunnels && g.one(4) { // what goes into a tunnel
		add(g.anyIP(names))
		return out
	}
	switch n := g.IntN(16); {
	case n == 0: // nothing but what follows Ethernet
	case n == 1 || g.tunnels && n > 13:
		add(ip())
	case n == 2:
		e := pick(g, [][2]*header{{stdIPv4, stdICMP}, {stdIPv6, stdICMPv6}})
		add(g.entry(names, false, e[0]))
		add(g.entry(names, false, e[1]))
	default:
		add(ip())
		transport()
	}
	users := g.IntN(3)
	if g.tunnels && g.one(2) {
		users = 1
	}
	for range users {
		if e := g.userEntry(names, out); e != nil {
			add(e)
		}
	}
	for range 2 {
		if e := g.following(names, out[len(out)-1]); e != nil {
			add(e)
		}
	}
	last := out[len(out)-1]
	if (len(out) > 2 || last.isIP()) && last.after == "" && (g.tunnels && !g.one(4) || g.one(16)) {
		out = append(out, g.inner(names, out)...)
	}
	return out
}

// entry makes a place in a stack for one of several headers.
func (g *generator) entry(names *namer, optional bool, hs ...*header) *entry {
	e := &entry{alts: hs, optional: optional}
	mark := ""
	if optional {
		mark = "?"
	}
	if len(hs) == 1 && !g.one(4) {
		e.name = hs[0].name
		e.text = fmt.Sprintf("%q", e.name+mark)
		return e
	}
	e.name = names.next()
	var list []string
	for _, h := range hs {
		list = append(list, fmt.Sprintf("%q", h.name))
	}
	value := "[" + strings.Join(list, ", ") + "]"
	if len(list) == 1 && g.one(2) {
		value = list[0]
	}
	e.text = fmt.Sprintf("{%s: %s}", label(e.name+mark), value)
	return e
}

// following makes a place for a header after the payload of the last one, or returns nil.
func (g *generator) following(names *namer, host *entry) *entry {
	var fit []*header
	for _, h := range g.headers {
		if len(h.after) == 0 {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 || host.optional || !host.all((*header).ends) || g.one(3) {
		return nil
	}
	e := &entry{name: names.next(), alts: []*header{pick(g, fit)}, optional: g.one(2), after: host.name}
	mark := ""
	if e.optional {
		mark = "?"
	}
	e.text = fmt.Sprintf("{%s: %q, after: %q}", label(e.name+mark), e.alts[0].name, host.name)
	return e
}

// userEntry makes a place for the user's headers after a stack, or returns nil if none fits.
func (g *generator) userEntry(names *namer, stack []*entry) *entry {
	last := stack[len(stack)-1]
	var fit []*header
	for _, h := range g.headers {
		follows := func(p *header) bool { return h.follows(p) }
		ok := last.all(follows) &&
			!slices.ContainsFunc(stack, func(e *entry) bool { return slices.Contains(e.alts, h) })
		for i := len(stack) - 1; i > 0 && stack[i].optional; i-- {
			ok = ok && stack[i-1].all(follows)
		}
		if ok {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	h := pick(g, fit)
	announced := func(h *header) bool { return h.magic || len(h.after) > 0 }
	if announced(h) && g.one(3) {
		for _, o := range fit {
			if o != h {
				if g.one(3) && len(g.groups) < 2 {
					gr := &group{name: names.next(), members: []string{h.name, o.name}}
					g.groups = append(g.groups, gr)
					return &entry{name: gr.name, text: fmt.Sprintf("%q", gr.name), alts: []*header{h, o}}
				}
				return g.entry(names, announced(o) && g.one(3), h, o)
			}
		}
	}
	return g.entry(names, announced(h) && g.one(4), h)
}

// chosen makes a last place for headers among which rows choose, or returns nil.
func (g *generator) chosen(names *namer, stack []*entry) *entry {
	last := stack[len(stack)-1]
	if last.optional || last.after != "" || !g.one(3) {
		return nil
	}
	var fit []*header
	for _, h := range g.headers {
		plain := !slices.ContainsFunc(h.fields, func(f *field) bool {
			return f.when != "" || f.kind == varintField || strings.Contains(f.rest, "role: ")
		})
		if plain && last.all(func(p *header) bool { return h.follows(p) }) &&
			!slices.ContainsFunc(stack, func(e *entry) bool { return slices.Contains(e.alts, h) }) {
			fit = append(fit, h)
		}
	}
	if len(fit) < 2 {
		return nil
	}
	e := &entry{name: names.next(), alts: fit[:min(len(fit), g.between(2, 3))]}
	var list []string
	for _, h := range e.alts {
		list = append(list, fmt.Sprintf("%q", h.name))
	}
	e.text = fmt.Sprintf("{%s: [%s], by: \"lookup\"}", label(e.name), strings.Join(list, ", "))
	return e
}
