package specgen

import (
	"fmt"
	"slices"
	"strings"
)

// This file makes what tunnels need: headers in the place of UDP, headers between an outer packet and an inner one,
// stacks that go on after them, and rules that put whole packets into others or take them out.

// transport makes a header in the place of UDP, with ports of its own. It doesn't say which checksum is left to
// devices.
func (g *generator) transport(name string) *header {
	h := &header{name: name, fixed: true, transport: true}
	own := []*field{bits("src_port", 16), bits("dst_port", 16)}
	if g.one(3) {
		v := uint64(pick(g, []int{5555, 443, 7000}))
		own[1].is, own[1].allowed = g.literal(v), []uint64{v}
		h.magic = true
	}
	h.fields = own
	if !g.one(3) {
		h.fields = append(h.fields, &field{name: "length", bits: 16, derived: true, rest: `, counts: "all"`})
	} else if g.one(2) {
		h.fields = append(h.fields, bits("length", 16))
	}
	switch g.IntN(8) {
	case 0, 1, 2, 3: // the bytes of UDP's checksum, of which the spec says nothing
		h.fields = append(h.fields, bits("sum", 16))
	case 4:
		pseudo := `["ip.src", "ip.dst", 17, "len(` + name + `)"]`
		h.fields = append(h.fields, &field{
			name: "sum", bits: 16, derived: true,
			rest: `, checksum: {covers: "all", pseudo: ` + pseudo + `, absent: ["ipv4"], optional: true}`,
		})
		h.sums = true
	case 5:
		g.variable(h, g.namer("src_port", "dst_port", "length", "sum"))
		h.fixed = false
	}
	proto := pick(g, []string{"17", "17", "17", "253", "6", "17 | 136"})
	in4, in6 := &after{"ipv4", []string{"protocol"}, []string{proto}}, &after{
		"ipv6", []string{"next_header"}, []string{proto},
	}
	switch g.IntN(4) {
	case 0:
		h.after = []*after{in4}
	case 1:
		h.after = []*after{in6}
	default:
		h.after = []*after{in4, in6}
	}
	if g.one(2) {
		h.parts = []*part{
			{name: "src", addr: "ip.src", port: "src_port"}, {name: "dst", addr: "ip.dst", port: "dst_port"},
		}
	}
	if g.one(4) {
		h.more = append(h.more, "segmented: true")
	}
	return h
}

// tunnelHeader makes a header that is between an outer packet and an inner one.
func (g *generator) tunnelHeader(name string) *header {
	h := &header{name: name, fixed: true}
	names := g.namer()
	g.bitRun(h, names, g.one(2))
	switch g.IntN(6) {
	case 0: // bytes of any length in front of the inner packet
		f := &field{name: names.next(), bits: 8}
		by := "%s"
		if g.one(2) {
			by = "%s * 4"
		}
		h.fields = append(h.fields, f, &field{
			name: names.next(), kind: sizedField, size: fmt.Sprintf(by, f.name), max: pick(g, []int{1, 3, 8, 40}),
			variable: true,
		})
		h.fixed = false
	case 1:
		g.variable(h, names)
		h.fixed = false
	case 2:
		g.length(h, names, false)
	}
	if g.one(3) {
		port := pick(g, []string{"4789", "7000", "5555 | 7001"})
		h.after = []*after{{"udp", []string{"dst_port"}, []string{port}}}
		for _, o := range g.headers {
			if o.transport && o.field("dst_port").is == "" {
				h.after = append(h.after, &after{o.name, []string{"dst_port"}, []string{port}})
			}
		}
	}
	for _, f := range h.fields {
		h.magic = h.magic || !f.variable && f.is != ""
	}
	if g.one(3) {
		h.more = append(h.more, "segmented: true")
	}
	return h
}

// transports are the user's headers that are in the place of UDP.
func (g *generator) transports() []*header {
	return slices.DeleteFunc(slices.Clone(g.headers), func(h *header) bool { return !h.transport })
}

// inner makes the places of a packet in another one's payload: IP, with Ethernet in front of it or without, and what it
// carries; or IP as it comes, with options and fragments, after which nothing is read. What follows a header of the
// standard ones has to be announced, or allowed there.
func (g *generator) inner(names *namer, stack []*entry) []*entry {
	last := stack[len(stack)-1]
	if last.optional {
		return nil
	}
	var out []*entry
	add := func(hs ...*header) {
		n := names.next()
		e := &entry{name: n, alts: hs}
		var list []string
		for _, h := range hs {
			list = append(list, fmt.Sprintf("%q", h.name))
		}
		e.text = fmt.Sprintf("{%s: [%s]}", label(n), strings.Join(list, ", "))
		if len(hs) == 1 {
			e.text = fmt.Sprintf("{%s: %q}", label(n), hs[0].name)
		}
		out = append(out, e)
	}
	if !last.all(carriesIP) || g.one(4) {
		add(stdEth)
	}
	if g.one(3) {
		return append(out, g.anyIP(names))
	}
	add(pick(g, [][]*header{{stdIPv4}, {stdIPv4}, {stdIPv6}, {stdIPv6}, {stdIPv4, stdIPv6}})...)
	ip := out[len(out)-1]
	own := slices.DeleteFunc(g.transports(), func(h *header) bool {
		return !ip.all(func(p *header) bool { return h.follows(p) })
	})
	switch n := g.IntN(8); {
	case n < 3:
		add(stdUDP)
	case n < 4:
		add(stdTCP)
	case n < 5:
		add(stdUDP, stdTCP)
	case n < 6 && len(own) > 0:
		add(pick(g, own))
	}
	return out
}

// carriesIP reports whether IP may follow a header.
func carriesIP(p *header) bool { return !p.std || stdIPv4.follows(p) }

// anyIP makes a place for IP as it comes.
func (g *generator) anyIP(names *namer) *entry {
	switch g.IntN(4) {
	case 0:
		return g.entry(names, false, stdIPv4Any)
	case 1:
		return &entry{name: "ip_any", text: `"ip_any"`, alts: groupIPAny}
	}
	n := names.next()
	return &entry{name: n, text: fmt.Sprintf("{%s: \"ip_any\"}", label(n)), alts: groupIPAny}
}

// encapsulate puts a packet into another one, in front of its first IP header, or returns nil.
func (w *rewriting) encapsulate() (out []string) {
	at := w.net()
	if at < 1 || w.gone[w.now[at]] {
		return nil
	}
	outer := pick(w.generator, groupIP)
	chain := []*header{outer}
	if w.rigid(w.now[at:]) && !w.one(20) {
		return nil
	}
	var users []*header
	for _, h := range w.headers {
		if h.fixed && !h.tail && !h.sums && !h.transport {
			users = append(users, h)
		}
	}
	own := slices.DeleteFunc(w.transports(), func(h *header) bool { return !h.fixed || h.sums || !h.follows(outer) })
	following := func(hs []*header) []*header {
		return slices.DeleteFunc(slices.Clone(hs), func(h *header) bool { return !h.follows(chain[len(chain)-1]) })
	}
	switch n := w.IntN(6); {
	case n < 3:
		chain = append(chain, stdUDP)
	case n < 5 && len(own) > 0:
		chain = append(chain, pick(w.generator, own))
	}
	if fit := following(users); len(fit) > 0 && !w.one(3) {
		chain = append(chain, pick(w.generator, fit))
	}
	if !carriesIP(chain[len(chain)-1]) || w.one(3) {
		chain = append(chain, stdEth)
	}
	if size(chain)+size(firsts(w.now)) > mostBytes && !w.one(20) {
		return nil
	}
	before := w.now[at]
	for i, h := range chain {
		var next []*header
		if i+1 < len(chain) {
			next = chain[i+1 : i+2]
		} else {
			next = before.alts
		}
		vals, ok := w.pushedValues(h, next)
		if !ok {
			return nil
		}
		if h == stdUDP && !w.one(4) {
			vals = append(vals, "checksum: "+pick(w.generator, []string{"0", `"computed"`, `"computed"`}))
		}
		out = append(out, fmt.Sprintf("{push: {%s: {%s}, before: %q}}", label(h.name), strings.Join(vals, ", "),
			before.name))
	}
	for i, h := range chain {
		e := &entry{name: h.name, alts: []*header{h}}
		w.gone[e] = true
		w.now = slices.Insert(slices.Clone(w.now), at+i, e)
	}
	return out
}

// pushedValues gives the fields of a header that next will follow values: addresses of the header's own family, and
// nothing if the language has a value of its own.
func (w *rewriting) pushedValues(h *header, next []*header) ([]string, bool) {
	var out []string
	announced := map[string]bool{}
	for _, n := range next {
		for _, f := range n.announcers(h) {
			announced[f] = true
		}
	}
	for _, f := range h.fields {
		origin := h.std && slices.Contains([]string{"id", "df", "ttl", "flow_label", "hop_limit"}, f.name)
		switch {
		case f.derived || announced[f.name] || origin && !w.one(4):
			continue
		case f.is != "" && len(f.allowed) == 1 && !strings.HasPrefix(f.is, "!"):
			continue
		case f.is != "":
			if len(f.allowed) == 0 {
				return nil, false
			}
			out = append(out, fmt.Sprintf("%s: %s", label(f.name), w.literal(pick(w.generator, f.allowed))))
			continue
		case f.typ == "ip" && !w.one(6):
			out = append(out, fmt.Sprintf("%s: %q", label(f.name), "setting."+w.address(f.bytes == 16).name))
			continue
		case f.name == "protocol" || f.name == "next_header":
			// Nothing says what follows: a number that is no protocol's (RFC 3692 §2.1).
			out = append(out, fmt.Sprintf("%s: %s", label(f.name), w.literal(pick(w.generator, []uint64{253, 254}))))
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

// address is a setting with an address of a family.
func (g *generator) address(v6 bool) *setting {
	var fit []*setting
	for _, x := range g.settings {
		if x.t.kind == addrKind && x.more != "" && strings.Contains(x.more, "::") == v6 {
			fit = append(fit, x)
		}
	}
	if len(fit) > 1 || len(fit) > 0 && g.one(2) {
		return pick(g, fit)
	}
	var taken []string
	for _, x := range g.settings {
		taken = append(taken, x.name)
	}
	from := addresses[:4]
	if v6 {
		from = addresses[4:]
	}
	x := &setting{
		name: g.namer(taken...).next(), t: typ{kind: addrKind}, more: fmt.Sprintf(", default: %q", pick(g, from)),
	}
	g.settings = append(g.settings, x)
	return x
}

// mostBytes of headers are written again when a packet is resized.
const mostBytes = 105

// size is the number of bytes of some headers, those of variable length not counted.
func size(hs []*header) int {
	n := 0
	for _, h := range hs {
		for _, f := range h.fields {
			if !f.variable {
				n += f.bits + 8*f.bytes
			}
		}
	}
	return n / 8
}

// firsts are the largest headers of some places.
func firsts(stack []*entry) (out []*header) {
	for _, e := range stack {
		out = append(out, slices.MaxFunc(e.alts, func(a, b *header) int {
			return size([]*header{a}) - size([]*header{b})
		}))
	}
	return out
}

// rigid reports whether some header is of variable length, so that it can't be moved. A last one that is IP moves with
// its payload.
func (w *rewriting) rigid(stack []*entry) bool {
	if n := len(stack); n > 0 && stack[n-1].isIP() {
		stack = stack[:n-1]
	}
	return slices.ContainsFunc(stack, func(e *entry) bool { return !e.all(func(h *header) bool { return h.fixed }) })
}
