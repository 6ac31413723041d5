package specgen

import (
	"fmt"
	"slices"
	"strings"
)

type fieldKind int

const (
	uintField fieldKind = iota
	bytesField
	sizedField
	varintField
	numberField // an integer whose size an expression gives
)

// field is a field of a header, with what matters for its use.
type field struct {
	name     string
	kind     fieldKind
	bits     int
	bytes    int
	typ      string // "ip", "mac"
	is       string // a constraint
	allowed  []uint64
	when     string
	derived  bool // a length or a checksum
	variable bool
	elements bool   // a list of elements
	rest     string // further members, as text
	size     string
	max      int
	little   bool
}

// header is a header that a stack can have.
type header struct {
	name   string
	fields []*field
	parts  []*part
	after  []*after
	std    bool
	fixed  bool // of fixed size
	magic  bool // its first fields distinguish it from others
	sums   bool // a checksum over all that follows
	more   []string
	tail   bool // a trailer

	transport bool // in the place of UDP
}

// shapes reports whether the size or presence of another field depends on a field.
func (h *header) shapes(f *field) bool {
	return slices.ContainsFunc(h.fields, func(g *field) bool {
		return slices.Contains(strings.FieldsFunc(g.when+" "+g.size, func(r rune) bool {
			return strings.ContainsRune(" ()!,", r)
		}), f.name)
	})
}

// ends reports whether a header says where its payload ends, to the byte.
func (h *header) ends() bool {
	counts, slack := false, false
	for _, f := range h.fields {
		counts = counts || strings.Contains(f.rest, `counts: "payload"`) || strings.Contains(f.rest, `counts: "all"`)
		slack = slack || strings.Contains(f.rest, "slack")
	}
	return counts && !slack
}

type part struct {
	name       string
	addr, port string // an endpoint
	alias      string // a field
}

// after is a header that this one may follow, with what announces it there.
type after struct {
	parent string
	fields []string
	match  []string
}

type group struct {
	name    string
	members []string
}

func (gr *group) text() string {
	return fmt.Sprintf("%s: [\"%s\"]", label(gr.name), strings.Join(gr.members, `", "`))
}

func (h *header) field(name string) *field {
	i := slices.IndexFunc(h.fields, func(f *field) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return h.fields[i]
}

// follows reports whether h may follow p.
func (h *header) follows(p *header) bool {
	return len(h.after) == 0 || slices.ContainsFunc(h.after, func(a *after) bool { return a.parent == p.name })
}

// announcers are the fields of p that say that h follows.
func (h *header) announcers(p *header) []string {
	var out []string
	for _, a := range h.after {
		if a.parent == p.name {
			out = append(out, a.fields...)
		}
	}
	return out
}

// header makes a header.
func (g *generator) header(name string) *header {
	h := &header{name: name, fixed: true}
	names := g.namer()
	onlyFixed := g.one(2)
	if g.one(2) {
		g.bitRun(h, names, true)
	}
	if !onlyFixed && g.one(6) {
		g.elements(h, names)
	}
	for range g.between(1, 4) {
		switch g.IntN(9) {
		case 0, 1, 2:
			g.bitRun(h, names, g.one(5))
		case 3:
			g.littleEndian(h, names)
		case 4:
			g.bytesRun(h, names)
		case 5:
			g.length(h, names, !onlyFixed && g.one(2))
		case 6:
			if g.one(2) {
				g.checksum(h, names)
			}
		default:
			if !onlyFixed {
				g.variable(h, names)
			}
		}
	}
	if len(h.fields) == 0 {
		g.bitRun(h, names, false)
	}
	g.after(h)
	g.sumDetails(h)
	g.parts(h, names)
	if g.one(12) {
		h.tail = true
		h.more = append(h.more, fmt.Sprintf("trailer: %d", g.between(1, 16)))
	} else if g.one(12) {
		h.more = append(h.more, "closed: true")
	}
	if g.one(5) {
		h.more = append(h.more, "segmented: true")
	}
	for _, f := range h.fields {
		if f.variable {
			h.fixed = false
			break
		}
		h.magic = h.magic || f.is != ""
	}
	return h
}

// bitRun adds integers of odd widths that make whole bytes together.
func (g *generator) bitRun(h *header, names *namer, fixed bool) {
	left := 8 * g.between(1, 5)
	for left > 0 {
		n := min(left, g.between(1, pick(g, []int{3, 8, 16, 33, 64})))
		f := &field{name: names.next(), bits: n}
		if fixed {
			f.is, f.allowed = g.constraint(n)
			if g.one(4) {
				f.rest = fmt.Sprintf(", reason: %q", g.namer().next())
			}
		}
		fixed = fixed && g.one(6)
		h.fields = append(h.fields, f)
		left -= n
	}
}

// constraint makes a constraint on an integer of so many bits, and a few values that it allows.
func (g *generator) constraint(bits int) (text string, allowed []uint64) {
	top := maxOf(bits)
	a := g.integer(bits)
	switch g.IntN(6) {
	case 0:
		if top > 4 {
			lo := min(a, top-3)
			hi := lo + 1 + g.Uint64N(min(top-lo-1, 1<<20)+1)
			if hi-lo == top {
				hi--
			}
			return fmt.Sprintf(">=%s & <=%s", g.literal(lo), g.literal(hi)), []uint64{lo, hi}
		}
	case 1:
		b := a ^ 1
		if bits == 1 {
			break
		}
		return fmt.Sprintf("%s | %s", g.literal(a), g.literal(b)), []uint64{a, b}
	case 2:
		if a < top {
			return fmt.Sprintf(">%s", g.literal(a)), []uint64{a + 1, top}
		}
	case 3:
		if a < top {
			return fmt.Sprintf("<=%s", g.literal(a)), []uint64{0, a}
		}
	case 4:
		return fmt.Sprintf("!=%s", g.literal(a)), []uint64{a ^ 1}
	}
	return g.literal(a), []uint64{a}
}

func (g *generator) littleEndian(h *header, names *namer) {
	h.fields = append(h.fields, &field{
		name: names.next(), bits: 8 * pick(g, []int{1, 2, 2, 3, 4, 4, 5, 8}), little: true,
	})
}

func (g *generator) bytesRun(h *header, names *namer) {
	f := &field{name: names.next(), kind: bytesField, bytes: g.between(1, 12)}
	switch g.IntN(5) {
	case 0:
		f.typ, f.bytes = "ip", pick(g, []int{4, 16})
	case 1:
		f.typ, f.bytes = "mac", 6
	}
	h.fields = append(h.fields, f)
}

// length adds a field that counts bytes: in a varint, perhaps, which may be absent.
func (g *generator) length(h *header, names *namer, varint bool) {
	if slices.ContainsFunc(h.fields, func(f *field) bool { return f.derived && strings.Contains(f.rest, "counts") }) &&
		!g.one(8) {
		return
	}
	f := &field{name: names.next(), bits: pick(g, []int{8, 16, 16, 16, 24, 32}), derived: true}
	if varint {
		f.kind, f.bits, f.variable = varintField, 62, true
		if by := h.deciding(); len(by) > 0 && g.one(5) {
			f.kind, f.max, f.size = numberField, 4, fmt.Sprintf("%s & 3 + 1", pick(g, by).name)
			f.bits = 8 * f.max
		}
		if by := h.deciding(); len(by) > 0 && g.one(2) {
			f.when = g.presence(by)
		}
	} else if g.one(6) {
		f.little = true
	}
	what := pick(g, []string{"payload", "payload", "payload", "all", "all", "header"})
	f.rest = fmt.Sprintf(", counts: %q", what)
	if g.one(4) {
		f.rest += fmt.Sprintf(", unit: %d", pick(g, []int{2, 4, 8}))
	}
	if what != "header" && g.one(2) {
		f.rest += g.slack()
	}
	if g.one(5) {
		f.rest += fmt.Sprintf(", bias: %d", pick(g, []int{-1, 1, 4, -2}))
	}
	h.fields = append(h.fields, f)
}

// slack makes a length one that allows bytes after what it counts.
func (g *generator) slack() string {
	return ", slack: " + pick(g, []string{"3", `"any"`, "1", "7", "20", "0"}) +
		pick(g, []string{"", `, slack_is: "padding"`, `, slack_is: "data"`})
}

// loose makes a header that any packet may have, and bytes after what it counts.
func (g *generator) loose(name string) *header {
	h := &header{name: name, fixed: true}
	names := g.namer()
	g.bitRun(h, names, false)
	h.fields = append(h.fields, &field{
		name: names.next(), bits: 16, derived: true,
		rest: ", counts: " + pick(g, []string{`"payload"`, `"all"`}) + g.slack(),
	})
	return h
}

func (g *generator) checksum(h *header, names *namer) {
	if slices.ContainsFunc(h.fields, func(f *field) bool { return strings.Contains(f.rest, "checksum") }) {
		return // each would cover the other
	}
	f := &field{name: names.next(), bits: 16, derived: true}
	covers := pick(g, []string{"header", "all"})
	members := []string{fmt.Sprintf("covers: %q", covers)}
	h.sums = h.sums || covers == "all"
	if g.one(4) {
		members = append(members, "optional: true")
	}
	if g.one(4) {
		pseudo := []string{fmt.Sprint(g.integer(pick(g, []int{8, 16, 32, 48}))), fmt.Sprintf("%q", "len("+h.name+")")}
		for _, f := range h.fields {
			if g.one(3) && !f.variable {
				pseudo = append(pseudo, fmt.Sprintf("%q", f.name))
			}
		}
		members = append(members, "pseudo: ["+strings.Join(pseudo, ", ")+"]")
	}
	f.rest = ", checksum: " + g.braces(members)
	h.fields = append(h.fields, f)
}

// sumDetails adds to a checksum what depends on the headers that are in front.
func (g *generator) sumDetails(h *header) {
	inIP := len(h.after) > 0
	var parents []string
	for _, a := range h.after {
		inIP = inIP && slices.Contains([]string{"udp", "tcp", "ipv4", "ipv6"}, a.parent)
		parents = append(parents, a.parent)
	}
	for _, f := range h.fields {
		if strings.Contains(f.rest, `covers: "header"`) && !strings.Contains(f.rest, "optional") &&
			!strings.Contains(f.rest, "pseudo") &&
			!slices.ContainsFunc(h.fields, func(f *field) bool { return f.variable }) && g.one(2) {
			f.rest = `, checksum: {covers: "header", verify: true}`
			continue
		}
		if !strings.Contains(f.rest, "checksum") || !inIP {
			continue
		}
		more := ""
		if g.one(2) && !strings.Contains(f.rest, "pseudo") {
			more += `, pseudo: ["ip.src", "ip.dst", "len(` + h.name + `)", 253]`
		}
		if g.one(3) {
			more += fmt.Sprintf(`, absent: [%q]`, pick(g, parents))
		}
		if more != "" {
			f.rest = strings.Replace(strings.Replace(f.rest, "checksum: covers", "checksum: {covers", 1), "\"header\"}",
				"\"header\"", 1)
			f.rest = strings.TrimSuffix(f.rest, "}") + more + "}"
		}
	}
}

// deciding are the fields that the size or the presence of another one may depend on.
func (h *header) deciding() (out []*field) {
	for _, f := range h.fields {
		if f.kind == uintField && !f.derived && f.when == "" {
			out = append(out, f)
		}
	}
	return out
}

// presence is a condition on one of some fields.
func (g *generator) presence(by []*field) string {
	return fmt.Sprintf(pick(g, []string{"%s == 1", "%s & 1 != 0", "%s > 2", "%s != 0", "%s & 2 == 2", "!(%s == 0)"}),
		pick(g, by).name)
}

// variable adds a field of variable length or presence.
func (g *generator) variable(h *header, names *namer) {
	before := h.deciding()
	f := &field{name: names.next(), variable: true}
	switch {
	case g.one(3) || len(before) == 0:
		f.kind = varintField
		f.bits = 62
	case g.one(2):
		f.kind = sizedField
		by := pick(g, before)
		f.max = g.between(1, 40)
		if g.one(2) {
			f.kind, f.max = numberField, g.between(1, 8)
			f.bits = 8 * f.max
		}
		f.size = pick(g, []string{"%s", "%s + 1", "%s & 7", "%s * 4", "low(%s, 3)", "%s / 2", "(%s & 3) << 1"})
		f.size = fmt.Sprintf(f.size, by.name)
	case g.one(3):
		f.kind, f.bytes = bytesField, g.between(1, 8)
	default:
		f.bits = 8 * pick(g, []int{1, 2, 3, 4, 8})
	}
	if len(before) > 0 && (g.one(2) || f.kind <= bytesField) {
		f.when = g.presence(before)
	}
	if (f.kind == uintField || f.kind == numberField) && g.one(4) {
		f.is, _ = g.constraint(f.bits)
	}
	h.fields = append(h.fields, f)
}

// after says where the header may be; often anywhere.
func (g *generator) after(h *header) {
	if g.one(2) {
		return
	}
	port := fmt.Sprint(pick(g, []int{7000, 443, 50000, 5004}))
	value := pick(g, []string{port, port, port + " | 7001", ">=7000 & <=7003"})
	add := func(parent, field, match string) {
		h.after = append(h.after, &after{parent, []string{field}, []string{match}})
	}
	switch g.IntN(6) {
	case 0, 1:
		add("udp", pick(g, []string{"dst_port", "src_port"}), value)
		if g.one(3) {
			add("tcp", "dst_port", value)
		}
	case 2:
		add("ipv4", "protocol", "253")
		add("ipv6", "next_header", "253")
	case 3:
		add("eth", "type", "0x88B5")
		if g.one(2) {
			add("vlan", "type", "0x88B5")
		}
	case 4:
		h.after = append(h.after, &after{"udp", []string{"src_port", "dst_port"}, []string{"7000", "7001"}})
	default:
		for _, p := range g.headers {
			for _, f := range p.fields {
				if f.kind == uintField && !f.derived && f.is == "" && f.when == "" && len(h.after) == 0 {
					add(p.name, f.name, g.literal(g.integer(f.bits)))
				}
			}
		}
	}
}

// parts adds another name for a field, or an endpoint of two fields.
func (g *generator) parts(h *header, names *namer) {
	if !g.one(4) {
		return
	}
	f := pick(g, h.fields)
	if f.kind != sizedField {
		h.parts = append(h.parts, &part{name: names.next(), alias: f.name})
	}
	var addr, port string
	for _, f := range h.fields {
		if f.typ == "ip" && !f.variable {
			addr = f.name
		} else if f.kind == uintField && f.bits == 16 && !f.derived && !f.variable {
			port = f.name
		}
	}
	if addr != "" && port != "" {
		h.parts = append(h.parts, &part{name: names.next(), addr: addr, port: port})
	}
}

func (h *header) text() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s: {\n\tfields: [\n", label(h.name))
	for _, f := range h.fields {
		fmt.Fprintf(&w, "\t\t%s,\n", f.text())
	}
	w.WriteString("\t]\n")
	if len(h.after) > 0 {
		w.WriteString("\tafter: {\n")
		for _, a := range h.after {
			var m []string
			for i, f := range a.fields {
				m = append(m, fmt.Sprintf("%s: %s", label(f), a.match[i]))
			}
			fmt.Fprintf(&w, "\t\t%s: {%s}\n", label(a.parent), strings.Join(m, ", "))
		}
		w.WriteString("\t}\n")
	}
	if len(h.parts) > 0 {
		w.WriteString("\tparts: {\n")
		for _, p := range h.parts {
			if p.alias != "" {
				fmt.Fprintf(&w, "\t\t%s: %q\n", label(p.name), p.alias)
			} else {
				fmt.Fprintf(&w, "\t\t%s: {addr: %q, port: %q}\n", label(p.name), p.addr, p.port)
			}
		}
		w.WriteString("\t}\n")
	}
	for _, m := range h.more {
		fmt.Fprintf(&w, "\t%s\n", m)
	}
	w.WriteString("}")
	return w.String()
}

func (f *field) text() string {
	s := fmt.Sprintf("{name: %q, ", f.name)
	switch f.kind {
	case uintField:
		s += fmt.Sprintf("bits: %d", f.bits)
	case bytesField:
		s += fmt.Sprintf("bytes: %d", f.bytes)
	case sizedField:
		s += fmt.Sprintf("bytes: %q, max: %d", f.size, f.max)
	case numberField:
		s += fmt.Sprintf("bytes: %q, max: %d, type: \"uint\"", f.size, f.max)
	case varintField:
		s += `varint: "quic"`
	}
	if f.little {
		s += `, endian: "little"`
	}
	if f.typ != "" {
		s += fmt.Sprintf(", type: %q", f.typ)
	}
	if f.is != "" {
		s += ", is: " + f.is
	}
	if f.when != "" {
		s += fmt.Sprintf(", when: %q", f.when)
	}
	return s + f.rest + "}"
}
