package sample

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Generator makes packets for one program.
type Generator struct {
	Source
	plan    *ir.Plan
	Program *spec.Program
	Headers *packet.Headers
	hints   hints
}

// entry is a header of the packet being made, under the name that the program's stack gives it.
type entry struct {
	name   string
	layer  *spec.Layer
	header *spec.Header
	after  bool // after the payload of another one
}

// Frame returns a Frame that the program's stack expects, often with the values of a row of one of its lookups.
func (g *Generator) Frame(state *sim.Relay) *packet.Frame {
	for try := 0; ; try++ {
		stack := g.stack()
		if try < 6 {
			g.aim(stack, state)
		}
		var layers []*spec.Layer
		for _, e := range stack {
			if e.after { // the payload of the one that it follows
				size := g.IntN(64)
				if g.One(12) { // about as much as there may be
					size = 1900 + g.IntN(150)
				}
				layers = append(layers, &spec.Layer{Bytes: g.bytes(size)})
			}
			layers = append(layers, e.layer)
		}
		layers = append(layers, &spec.Layer{Bytes: g.bytes(g.payloadSize())})
		var diags diag.List
		resolved := g.Headers.Resolve(layers, &diags)
		if diags.Len() > 0 {
			continue // a row of the other family
		}
		if try < 8 {
			g.values(resolved)
		}
		if f, err := g.Headers.Build(resolved, packet.Options{Size: g.lengthSize}); err == nil || try > 16 {
			if err != nil {
				return &packet.Frame{Data: g.bytes(64)}
			}
			return g.present(resolved, f)
		}
	}
}

// present gives fields values that are there under a condition, as far as it holds. That may bring in others.
func (g *Generator) present(layers []packet.Layer, f *packet.Frame) *packet.Frame {
	for range 4 {
		n, given := 0, false
		for i, l := range layers {
			if l.Header == nil {
				continue
			}
			for _, pl := range f.Spans[n].Places {
				_, has := l.Values[pl.Field.Name.Value]
				if has || !pl.There || pl.Field.When == nil || pl.Field.Counts != nil || pl.Field.Checksum != nil ||
					sizes(l.Header, pl.Field) || announced(layers, i, pl.Field) {
					continue
				}
				if v, ok := g.fieldValue(l.Header, pl.Field); ok && packet.Allows(pl.Field.Is, pl.Field, v) {
					l.Values[pl.Field.Name.Value] = v
					given = true
				}
				if len(pl.Field.Elements) > 0 && !g.One(4) {
					l.Values[pl.Field.Name.Value] = packet.Bytes(g.elements(pl.Field, g.form(l, pl.Field)))
				}
			}
			n++
		}
		if !given {
			break
		}
		next, err := g.Headers.Build(layers, packet.Options{Size: g.lengthSize})
		if err != nil {
			break
		}
		f = next
	}
	return f
}

// sizes reports whether a field says how long another one of its header is.
func sizes(h *spec.Header, f *spec.Field) bool {
	return slices.ContainsFunc(h.Fields, func(s *spec.Field) bool {
		return s.Size != nil && names(s.Size, f.Name.Value)
	})
}

func names(e *spec.Expr, field string) bool {
	return e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == field ||
		slices.ContainsFunc(e.Args, func(a *spec.Expr) bool { return names(a, field) })
}

// Arrives reports whether a packet came to the end of a rule; if the program has receivers, one of them got it.
func (g *Generator) Arrives(res sim.Result) bool {
	sent := func(c sim.Copy) bool { return c.Sent }
	return res.Verdict != sim.VerdictPunt && (!g.Does(spec.ActFanOut) || slices.ContainsFunc(res.Copies, sent))
}

// Does reports whether a rule of the program has such an action.
func (g *Generator) Does(kind spec.ActionKind) bool {
	return slices.ContainsFunc(g.Program.Rules, func(r *spec.Rule) bool {
		return slices.ContainsFunc(r.Do, func(a *spec.Action) bool { return a.Kind == kind })
	})
}

// lengthSize is how many bytes a varint takes that is a length; 0: as few as it can.
func (g *Generator) lengthSize() int { return Pick(g.Source, []int{0, 0, 0, 1, 2, 4, 8}) }

func (g *Generator) payloadSize() int {
	switch g.IntN(10) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return g.IntN(1480)
	case 3:
		return 1400 + g.IntN(100)
	}
	return g.IntN(64)
}

// stack chooses one sequence of headers.
func (g *Generator) stack() []entry {
	var out []entry
	for _, e := range g.Program.Stack {
		if e.Optional && g.One(2) {
			continue
		}
		var choices []*spec.Header
		for _, n := range e.Headers {
			choices = append(choices, g.Headers.Group(n.Value)...)
		}
		if len(out) > 0 {
			parent := out[len(out)-1].header.Name.Value
			fit := slices.DeleteFunc(slices.Clone(choices), func(h *spec.Header) bool { return !g.follows(h, parent) })
			if len(fit) > 0 {
				choices = fit
			}
		}
		if len(choices) == 0 {
			continue
		}
		h := Pick(g.Source, choices)
		after := e.After != nil && slices.ContainsFunc(out, func(o entry) bool { return o.name == e.After.Value })
		out = append(out, entry{e.Var.Value, &spec.Layer{Header: spec.Name{Value: h.Name.Value}}, h, after})
	}
	return out
}

func (g *Generator) follows(h *spec.Header, parent string) bool {
	return len(h.After) == 0 || slices.ContainsFunc(h.After, func(a *spec.After) bool {
		return slices.ContainsFunc(g.Headers.Group(a.Parent.Value), func(p *spec.Header) bool {
			return p.Name.Value == parent
		})
	})
}

// aim gives fields the values of the key of a random row. Half of the time one rule is aimed at, and rows of the others
// are mostly missing.
func (g *Generator) aim(stack []entry, state *sim.Relay) {
	mapped := g.One(30) // IPv4 addresses as IPv6 has them: they have to be refused
	given := map[string]bool{}
	lookups := slices.Clone(g.Program.Lookups)
	rules := g.Program.Rules
	if n := g.IntN(len(rules)); g.One(2) {
		if rules = rules[n : n+1]; g.One(8) {
			rules = append(rules[:1:1], g.Program.Rules...)
		}
	}
	for _, r := range rules {
		lookups = append(lookups, r.Lookups...)
	}
	for _, r := range rules {
		for _, a := range r.Do {
			if a.FanOut == nil {
				continue
			}
			i := slices.IndexFunc(g.plan.Groups, func(o *ir.Group) bool { return o.Name == a.FanOut.Group.Value })
			if i >= 0 && !g.One(16) {
				g.key(stack, &g.plan.Groups[i].Key, a.FanOut.Key, state.Group(a.FanOut.Group.Value).Keys(),
					mapped, given)
			}
			for _, inside := range a.FanOut.Rules {
				lookups = append(lookups, inside.Lookups...)
			}
		}
	}
	optional := func(l *spec.Lookup) bool { return l.Optional }
	// what has to be found comes first
	for _, l := range append(slices.DeleteFunc(slices.Clone(lookups), optional), lookups...) {
		i := slices.IndexFunc(g.plan.Tables, func(t *ir.Table) bool { return t.Name == l.Table.Value })
		if i >= 0 && !g.One(16) {
			g.key(stack, &g.plan.Tables[i].Key, l.Key, state.Table(l.Table.Value).Keys(), mapped, given)
		}
	}
}

// key gives fields the values of one of several keys, except those that mostly keep what another key gave them: one
// packet has to find all of its rows.
func (g *Generator) key(stack []entry, layout *ir.Struct, from []*spec.Expr, keys []string, mapped bool,
	given map[string]bool) {
	if len(keys) == 0 {
		return
	}
	key := []byte(Pick(g.Source, keys))
	again := g.One(8)
	n := 0
	for _, m := range layout.Members {
		if m.Hidden || n >= len(from) {
			continue
		}
		e := from[n]
		for e.Op == spec.OpCall && e.Fn.Value == "pick" && len(e.Args) == 3 {
			e = e.Args[1+g.IntN(2)]
		}
		if e.Op == spec.OpName && len(e.Path) >= 2 {
			name := dotted(e.Path)
			if !given[name] || again {
				g.give(stack, e.Path, key[m.Off:m.Off+m.Type.Size], m.Type, mapped)
			}
			given[name] = true
		}
		n++
	}
}

func dotted(path []spec.Name) string {
	var out []string
	for _, n := range path {
		out = append(out, n.Value)
	}
	return strings.Join(out, ".")
}

// called reports whether a name of the program stands for a header of the stack.
func (g *Generator) called(e entry, name string) bool {
	return e.name == name || e.header.Name.Value == name ||
		slices.ContainsFunc(g.Headers.Group(name), func(h *spec.Header) bool { return h == e.header })
}

// give sets what a dotted name of the program stands for.
func (g *Generator) give(stack []entry, path []spec.Name, value []byte, t ir.Type, mapped bool) {
	i := slices.IndexFunc(stack, func(e entry) bool { return g.called(e, path[0].Value) })
	if i >= 0 {
		g.giveTo(stack, i, path, value, t, mapped)
	}
}

// giveTo sets a field of the i-th header. What a part of it names in other headers is in the nearest one in front of
// it, as in a tunnel.
func (g *Generator) giveTo(stack []entry, i int, path []spec.Name, value []byte, t ir.Type, mapped bool) {
	name := path[1].Value
	lit := spec.Literal{Kind: spec.LitString, Text: t.Show(value)}
	switch t.Kind {
	case ir.Uint:
		lit = spec.Literal{Kind: spec.LitInt}
		for i, b := range value {
			lit.Int |= uint64(b) << (8 * i)
		}
	case ir.Prefix:
		lit.Text = g.inside(value).String()
	case ir.Addr:
		if mapped {
			lit.Text = netip.AddrFrom16([16]byte(value)).String()
		}
	case ir.Endpoint:
		if mapped {
			lit.Text = netip.AddrPortFrom(netip.AddrFrom16([16]byte(value)),
				binary.LittleEndian.Uint16(value[16:])).String()
		}
	}
	if len(path) == 3 {
		for _, p := range stack[i].header.Parts {
			if p.Name.Value != name || p.Addr == nil {
				continue
			}
			part := p.Port
			if path[2].Value == "addr" {
				part = p.Addr
			}
			if len(part.Path) > 1 {
				for n, e := range slices.Backward(stack[:i]) {
					if g.called(e, part.Path[0].Value) {
						g.giveTo(stack, n, part.Path, value, t, mapped)
						break
					}
				}
				return
			}
			name = part.Path[0].Value
		}
	}
	stack[i].layer.Fields = append(stack[i].layer.Fields, &spec.TestValue{Name: spec.Name{Value: name}, Value: lit})
}

// inside returns an address in a prefix.
func (g *Generator) inside(prefix []byte) netip.Addr {
	length := int(binary.LittleEndian.Uint32(prefix))
	a := [16]byte(prefix[4:])
	noise := g.bytes(16)
	for i := max(length, 96); i < 128; i++ {
		a[i/8] |= noise[i/8] & (0x80 >> (i % 8))
	}
	return netip.AddrFrom16(a).Unmap()
}

// values gives fields that nothing determines random values.
func (g *Generator) values(layers []packet.Layer) {
	for i, l := range layers {
		if l.Header == nil {
			continue
		}
		for _, f := range l.Header.Fields {
			if _, given := l.Values[f.Name.Value]; given || f.Counts != nil || f.Checksum != nil || f.When != nil ||
				f.Role.Value != "" && f.Type == "mac" {
				continue
			}
			if announced(layers, i, f) || sizes(l.Header, f) && !g.One(4) {
				continue
			}
			if v, ok := g.fieldValue(l.Header, f); ok && packet.Allows(f.Is, f, v) {
				l.Values[f.Name.Value] = v
			}
			if len(f.Elements) > 0 && !g.One(4) {
				l.Values[f.Name.Value] = packet.Bytes(g.elements(f, g.form(l, f)))
			}
		}
	}
}

// announced reports whether a field says which header follows.
func announced(layers []packet.Layer, i int, f *spec.Field) bool {
	if i+1 >= len(layers) || layers[i+1].Header == nil {
		return false
	}
	for _, a := range layers[i+1].Header.After {
		for _, m := range a.Match {
			if m.Field.Path[len(m.Field.Path)-1].Value == f.Name.Value {
				return true
			}
		}
	}
	return false
}

// fieldValue is a random value for a field.
func (g *Generator) fieldValue(h *spec.Header, f *spec.Field) (packet.Value, bool) {
	name := h.Name.Value + "." + f.Name.Value
	switch known := g.hints.ints[name]; f.Kind {
	case spec.FieldUint:
		switch {
		case len(known) > 0 && !g.One(4):
			return packet.Uint(Pick(g.Source, known) & (^uint64(0) >> (64 - f.Bits))), true
		case f.Is != nil:
			return packet.Uint(g.Uint64() & (^uint64(0) >> (64 - f.Bits))), true
		case f.Role.Value == "hop_limit":
			return packet.Uint(uint64(2 + g.IntN(254))), true
		case !g.One(3):
			return packet.Uint(g.integer(f.Bits)), true
		}
		return packet.Value{}, false
	case spec.FieldVarint:
		v := packet.Uint(g.integer(1 + g.IntN(62)))
		if known := g.hints.ints[anyVarint]; len(known) > 0 && g.One(2) {
			v.Int = Pick(g.Source, known) & (1<<62 - 1)
		}
		if g.One(2) {
			v.Bytes = longVarint(v.Int, g.IntN(4))
		}
		return v, true
	case spec.FieldSized:
		return g.sizedValue(f, known)
	}
	return packet.Bytes(g.bytesValue(f, g.hints.bytes[name])), true
}

// sizedValue is a random value for a field of variable size, of which some numbers are known to make a difference.
func (g *Generator) sizedValue(f *spec.Field, known []uint64) (packet.Value, bool) {
	if f.SizedUint() {
		v := packet.Uint(g.integer(8 * f.Max))
		if len(known) > 0 && !g.One(4) {
			v.Int = Pick(g.Source, known) & (^uint64(0) >> (64 - 8*f.Max))
		}
		if g.One(3) { // in more bytes than it needs
			v.Bytes = g.bytes(1 + g.IntN(f.Max))
		}
		return v, true
	}
	if len(f.Elements) > 0 && !g.One(8) {
		return packet.Bytes(g.elements(f, Pick(g.Source, f.Elements))), true
	}
	if g.One(2) {
		return packet.Value{}, false
	}
	n := g.IntN(f.Max + 1)
	if !g.One(4) {
		n &^= 3 // lengths are often in units of 4 bytes
	}
	return packet.Bytes(g.bytes(n)), true
}

// bytesValue is a random value for a field of fixed size, often one of or in near.
func (g *Generator) bytesValue(f *spec.Field, near []bytesHint) []byte {
	if len(near) > 0 && !g.One(4) {
		for range 4 {
			if b := Pick(g.Source, near); f.Type != "ip" || isMapped(b.value) == (f.Bytes == 4) {
				return b.make(g.Source, f.Bytes)
			}
		}
	}
	if f.Type == "ip" {
		if f.Bytes == 16 && g.One(120) { // IPv4 as IPv6 has it
			a := addresses[g.IntN(4)].As16()
			return a[:]
		}
		for range 8 {
			if a := g.address(); a.BitLen() == 8*f.Bytes {
				return a.AsSlice()
			}
		}
	}
	return g.bytes(f.Bytes)
}

// longVarint encodes a variable-length integer (RFC 9000 §16) in 2^size bytes, or more if it needs them.
func longVarint(v uint64, size int) []byte {
	for v>>(8<<size-2) != 0 {
		size++
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	out := slices.Clone(b[8-1<<size:])
	out[0] |= byte(size) << 6
	return out
}

// form chooses one of the forms of a field's elements, and makes a condition of it true that asks a field for a value,
// or for one under a mask.
func (g *Generator) form(l packet.Layer, f *spec.Field) *spec.Elements {
	form := Pick(g.Source, f.Elements)
	if form.When == nil || form.When.Op != spec.OpEq || form.When.Args[1].Op != spec.OpInt {
		return form
	}
	e, mask := form.When.Args[0], ^uint64(0)
	if e.Op == spec.OpAnd && e.Args[1].Op == spec.OpInt {
		e, mask = e.Args[0], e.Args[1].Int
	}
	if e.Op != spec.OpName || len(e.Path) != 1 {
		return form
	}
	i := slices.IndexFunc(l.Header.Fields, func(f *spec.Field) bool { return f.Name.Value == e.Path[0].Value })
	if i >= 0 && l.Header.Fields[i].Kind == spec.FieldUint {
		top := ^uint64(0) >> (64 - l.Header.Fields[i].Bits)
		l.Values[e.Path[0].Value] = packet.Uint((form.When.Args[1].Int | g.Uint64()&^mask) & top)
	}
	return form
}

// elements is a list of elements in a form, padded to 4 bytes: most are right, with an identifier that the program
// searches for.
func (g *Generator) elements(f *spec.Field, form *spec.Elements) []byte {
	var out []byte
	for range g.IntN(8) {
		id := g.integer(form.ID)
		if len(g.hints.elements) > 0 && g.One(2) {
			id = Pick(g.Source, g.hints.elements) & (1<<form.ID - 1)
		}
		n := g.IntN(6)
		if g.One(8) {
			n = g.IntN(1 << form.Len)
		}
		for g.One(4) && form.Pad >= 0 {
			out = append(out, byte(form.Pad<<(8-form.ID)))
		}
		content := n + form.Bias
		if g.One(16) {
			content = max(0, content+g.IntN(9)-4)
		}
		if form.ID == 4 {
			out = append(out, byte(id<<4)|byte(n))
		} else {
			out = append(out, byte(id), byte(n))
		}
		for range content {
			out = append(out, Pick(g.Source, []byte{0, 1, 2, 0x40, 0x80, 0xc0, 0xff, byte(g.Uint32())}))
		}
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out[:min(len(out), f.Max)]
}
