package bpf

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Headers are packed structures, so that places in the packet have names: ld16(&udp->length). They are only accessed
// through helpers (ld16, be16, st16, …): clang would read a member of a packed structure byte by byte.

// header is a structure for a field run of a packet.
type header struct {
	name    string // of the structure
	members []headerMember
	size    int
}

type headerMember struct {
	name   string
	off, n int
	scalar bool
}

// header returns the structure of a run; runs with the same fields have the same one.
func (r *renderer) header(p *ir.FieldRun) *header {
	key := fmt.Sprint(p.Header, p.Fields)
	if h := r.headers[key]; h != nil {
		return h
	}
	h := &header{name: r.unique("hdr_" + ident(p.Header))}
	taken := map[string]bool{}
	bits := 0
	var run []ir.HeaderField
	for _, f := range p.Fields {
		run = append(run, f)
		if bits += f.Bits; bits%8 != 0 {
			continue
		}
		m := headerMember{name: run[0].Name, off: h.size, n: bits/8 - h.size}
		switch n := len(run); {
		case n == 1:
			m.scalar = !f.Bytes && (m.n == 1 || m.n == 2 || m.n == 4 || m.n == 8)
		case n == 2:
			m.name += "_" + f.Name
		default:
			m.name += "_to_" + f.Name
		}
		m.scalar = m.scalar || m.n == 1 && !f.Bytes
		m.name = ident(m.name)
		if meant()[m.name] {
			m.name += "_"
		}
		for taken[m.name] {
			m.name += "_"
		}
		taken[m.name] = true
		h.members, h.size, run = append(h.members, m), bits/8, nil
	}
	if r.headers == nil {
		r.headers = map[string]*header{}
	}
	r.headers[key] = h
	r.headerList = append(r.headerList, h)
	return h
}

// text is the declaration of a structure.
func (h *header) text() (lines []string) {
	lines = append(lines, "struct "+h.name+" {")
	for _, m := range h.members {
		switch {
		case m.scalar:
			lines = append(lines, fmt.Sprintf("\t%s %s;", wireType(scalar{size: m.n}), m.name))
		default:
			lines = append(lines, fmt.Sprintf("\t__u8 %s[%d];", m.name, m.n))
		}
	}
	return append(lines, "} __attribute__((packed));")
}

// Packets that a function has pointers into.
const (
	packetReceived = iota // in place
	packetSaved           // the front that was saved
	packetLeaves          // in place, when it is written
)

// pointer is a pointer to a field run of a packet.
type pointer struct {
	run    *ir.FieldRun
	packet int
}

// covers reports whether an offset is in a run.
func covers(p *ir.FieldRun, o ir.Off, size int) bool {
	return p.At.Base == o.Base && o.Const >= p.At.Const && o.Const < p.At.Const+size
}

// find returns the run that an offset is in, or nil.
func (f *function) find(o ir.Off, packet int) *ir.FieldRun {
	scope := f.scope
	if packet == packetLeaves {
		scope = f.leaves
	}
	for _, p := range slices.Backward(scope) {
		if h := f.header(p); len(h.members) > 0 && covers(p, o, h.size) {
			return p
		}
	}
	return nil
}

// packet is which packet a function reads.
func (f *function) packet() int {
	if f.fan != nil {
		return packetSaved
	}
	return packetReceived
}

// to is the pointer to a run, which the function declares.
func (f *function) to(p *ir.FieldRun, packet int) *c.Local {
	key := pointer{p, packet}
	use(&f.headersUsed, key)
	return f.prog.pointer(key)
}

// pointer is the pointer to a run.
func (p *program) pointer(key pointer) *c.Local {
	return p.localOf(key, func() *c.Local {
		switch key.packet {
		case packetLeaves:
			return own("new_"+key.run.Header, "")
		case packetSaved:
			return own("saved_"+key.run.Header, "")
		}
		return p.local(key.run.Header, "")
	})
}

// byName is the pointer to an offset in a packet, by name, or nil.
func (f *function) byName(o ir.Off, packet int) c.Expr {
	p := f.find(o, packet)
	if p == nil {
		return nil
	}
	h, at := f.header(p), o.Const-p.At.Const
	i := slices.IndexFunc(h.members, func(m headerMember) bool { return at < m.off+m.n })
	m := h.members[i]
	x := c.To(f.to(p, packet), m.name)
	switch {
	case m.scalar && at == m.off:
		return c.Address(x)
	case m.scalar:
		return c.Plus(untyped(c.Address(x)), at-m.off)
	}
	return c.Plus(x, at-m.off)
}

// after is the end of a run, if an offset is one, else nil.
func (f *function) after(end ir.Off) c.Expr {
	for _, p := range f.scope {
		if h := f.header(p); len(h.members) > 0 && p.At.Plus(h.size) == end {
			return untyped(c.Plus(f.to(p, f.packet()), 1))
		}
	}
	return nil
}

// late is a pointer to a run that is set if it begins at a variable offset.
type late struct {
	run   *ir.FieldRun
	place *c.List
}

// pointsTo renders what sets pointers to runs that begin at a variable offset.
func (f *function) pointsTo(v *ir.Var, runs ...*ir.FieldRun) {
	for _, p := range runs {
		if p.At.Base == v && f.fan == nil {
			f.late = append(f.late, late{p, f.place()})
		}
	}
}

// text returns the statements of a function, with what sets its pointers: it is left out if nothing uses them.
func (f *function) text() []c.Stmt {
	for _, l := range f.late {
		key := pointer{l.run, packetReceived}
		if slices.Contains(f.headersUsed, key) && f.mentioned(key) {
			at := l.run.At
			from := c.Plus(f.base(at.Base), at.Const+f.lowered[at.Base])
			l.place.Body = []c.Stmt{&c.Assign{To: f.prog.pointer(key), Op: "=", X: from}}
		}
	}
	return f.body
}

// headerPointers declares pointers to runs of a packet, in the packet's order; set: where they begin is known there.
func (f *function) headerPointers(packet int, set func(*ir.FieldRun) bool) (out []c.Stmt) {
	for _, key := range slices.SortedStableFunc(slices.Values(f.headersUsed), inPacket) {
		if key.packet != packet || packet == packetReceived && !f.mentioned(key) {
			continue
		}
		v := c.Var{Name: f.prog.pointer(key)}
		if set(key.run) {
			from, at := data, key.run.At.Const
			if packet == packetSaved {
				from = front
			}
			if v := key.run.At.Base; v != nil {
				from = f.base(v)
				if packet == packetLeaves {
					at += f.lowered[v]
				}
			}
			if f.checking != nil && key.run == f.checking.run && key.run.At.Const > 0 {
				v.Init = c.Binary{Op: "+", X: from, Y: c.Ident(atPlace)}
			} else {
				v.Init = c.Plus(from, at)
			}
		}
		out = append(out, &c.Declare{Type: c.Pointer(c.StructType(f.header(key.run).name)), Vars: []c.Var{v}})
	}
	return out
}

// mentioned reports whether a function mentions a pointer: terms that cancel each other out have asked for it in vain.
func (f *function) mentioned(key pointer) bool { return c.Count(f.body, f.prog.pointer(key)) > 0 }

// inPacket orders the runs of a packet: those at fixed offsets come first.
func inPacket(x, y pointer) int {
	if fixed(x.run) && fixed(y.run) {
		return x.run.At.Const - y.run.At.Const
	}
	switch {
	case fixed(x.run) == fixed(y.run):
		return 0
	case fixed(x.run):
		return -1
	}
	return 1
}
