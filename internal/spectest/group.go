package spectest

import (
	"encoding/binary"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// shared counts what a test has taken of the memory that kernel and user space share. Entry 0 of each array is none.
type shared struct {
	counters   int
	credits    int
	namespaces uint32
	receivers  map[*ir.Group]int
}

// firstNamespace is the first namespace that translations get which a test gives none.
const firstNamespace = 1 << 16

func sharedName(t ir.Type) string {
	return map[ir.Kind]string{
		ir.Ctr: "counter", ir.Credit: "credit", ir.Bucket: "bucket", ir.Translation: "translation",
	}[t.Kind]
}

// take takes new entries and gives them values: what a counter holds, a credit's limit, the burst of one that refills
// (at a rate of 1 a second), the number of a translation's namespace. If no values are given they are 0, or a
// namespace of its own.
func (p *preparer) take(t ir.Type, values []uint64, pos diag.Pos) ([]byte, bool) {
	given := values != nil
	if !given {
		values = make([]uint64, t.Count())
	}
	state := p.t.state
	index, n, room := 0, 1, 0
	switch t.Kind {
	case ir.Ctr:
		index, room = p.counters+1, len(state.Shared)
		p.counters++
	case ir.Credit, ir.Bucket:
		n = t.Count()
		index, room = p.credits+1, len(state.Credits)
		p.credits += n
	case ir.Translation:
		if !given {
			values[0] = uint64(firstNamespace + p.namespaces)
			p.namespaces++
		}
		return binary.LittleEndian.AppendUint32(nil, uint32(values[0])), true
	}
	if index+n > room {
		p.diags.Add(codeIncomplete, pos, "more %ss are used than the spec has room for (%d)", sharedName(t),
			max(room-1, 0))
		return nil, false
	}
	for level, v := range values {
		switch i := index + level; t.Kind {
		case ir.Ctr:
			state.Shared[i] = v
		case ir.Credit:
			state.Credits[i].Limit = v
		case ir.Bucket:
			state.Credits[i].Limit, state.Credits[i].Burst = 1, v
		}
	}
	return binary.LittleEndian.AppendUint32(nil, uint32(index)), true
}

// held is what a test may expect of an index: what a counter holds, what remains of a credit, the number of a
// namespace.
func held(state *sim.Relay, t ir.Type, index uint32) uint64 {
	switch {
	case t.Kind == ir.Translation:
		return uint64(index)
	case t.Kind == ir.Ctr && int64(index) < int64(len(state.Shared)):
		return state.Shared[index]
	case t.Kind == ir.Credit && int64(index) < int64(len(state.Credits)):
		return state.Credits[index].Limit - state.Credits[index].Spent
	}
	return 0
}

// comparable refuses to expect what no single number says.
func (p *preparer) comparable(values []given, src *spec.TestRow) bool {
	for _, g := range values {
		if t := g.member.Type; t.Kind == ir.Bucket || t.Kind == ir.Credit && t.Levels > 0 {
			p.diags.Add(codeTestValue, src.Table.Pos, "%q can't be expected: only what remains of a single credit "+
				"that doesn't refill can", g.member.Name)
			return false
		}
	}
	return true
}

// group is a group of a test's state.
type group struct {
	ir        *ir.Group
	receivers []uint32 // identities, in the order of sending
}

// fields resolves values of members of a structure, which are not hidden; what says what such a member of the owner is.
func (p *preparer) fields(values []*spec.TestValue, s *ir.Struct, code diag.Code, what, owner string) (out []given,
	ok bool) {
	visible := slices.DeleteFunc(slices.Clone(s.Members), func(m *ir.Member) bool { return m.Hidden })
	for _, v := range values {
		m, ok := find(p, visible, func(m *ir.Member) string { return m.Name }, v.Name, code, what+" "+owner)
		if !ok {
			return nil, false
		}
		g, ok := p.give(m, v.Value, owner+"."+m.Name)
		if !ok {
			return nil, false
		}
		out = append(out, g)
	}
	return out, true
}

// group puts a group into the state before. Its receivers get identities of their own.
func (p *preparer) group(src *spec.TestGroup) {
	g, ok := find(p, p.plan.Groups, func(g *ir.Group) string { return g.Name }, src.Group, codeUnknownGroup, "group")
	if !ok {
		return
	}
	key, ok := p.fields(src.Key, &g.Key, codeUnknownGroup, "key of group", g.Name)
	if !ok || !p.whole(&g.Key, key, src.Group.Pos, "the key of group "+g.Name) {
		return
	}
	if p.receivers == nil {
		p.receivers = map[*ir.Group]int{}
	}
	out := group{ir: g}
	var rows [][]byte
	for _, r := range src.Receivers {
		values, ok := p.fields(r, &g.Receivers.Value, codeUnknownGroup, "value of a receiver of group", g.Name)
		if !ok {
			return
		}
		row, ok := p.lay(&g.Receivers.Value, values, src.Group.Pos)
		if !ok {
			return
		}
		p.hops(&g.Receivers.Value, row)
		identity := uint32(g.Base + p.receivers[g])
		p.receivers[g]++
		for _, m := range g.Receivers.Value.Members {
			if m.Hidden && m.Name == "receiver" {
				binary.LittleEndian.PutUint32(row[m.Off:], identity)
			}
		}
		rows = append(rows, row)
		out.receivers = append(out.receivers, identity)
	}
	state := p.t.state.Group(g.Name)
	bytes := keyOf(&g.Key, key)
	if _, known := state.Get(bytes); known {
		p.diags.Add(codeIncomplete, src.Group.Pos, "two groups of %q have the same key", g.Name)
		return
	}
	if p.receivers[g] > g.Rows || !state.Put(bytes, rows) {
		p.diags.Add(codeIncomplete, src.Group.Pos, "%q has no room for the group: %d groups, %d receivers in each, "+
			"%d in all", g.Name, g.Size, g.Max, g.Rows)
		return
	}
	p.t.groups = append(p.t.groups, out)
}

// wantCopy is what a receiver has to get.
type wantCopy struct {
	src    *spec.TestCopy
	layers []packet.Layer // nil: any copy
}

func (p *preparer) copy(src *spec.TestCopy) {
	c := wantCopy{src: src}
	switch {
	case src.Declined && src.Reason != "":
		known := p.reasons(ir.Declined)
		if !slices.Contains(known, src.Reason) {
			p.unknown(codeUnknownReason, spec.Name{Value: src.Reason, Pos: src.Pos},
				"reason to decline a copy in program "+p.t.program.Name, known)
		}
	case src.Packet != nil && src.Packet.Hex == nil:
		c.layers = p.headers.Resolve(src.Packet.Layers, p.diags)
	}
	p.t.expect.copies = append(p.t.expect.copies, c)
}

// wantEvent is a record that has to come out.
type wantEvent struct {
	src    *spec.TestEvent
	event  *ir.Event
	fields []given
	copies [][]given
}

func (p *preparer) event(src *spec.TestEvent) {
	e, ok := find(p, p.plan.Events, func(e *ir.Event) string { return e.Name }, src.Event, codeUnknownEvent, "event")
	if !ok {
		return
	}
	fields, ok := p.fields(src.Fields, &e.Fields, codeUnknownEvent, "field of event", e.Name)
	want := wantEvent{src: src, event: e, fields: fields}
	for _, c := range src.Copies {
		var none ir.Struct
		entry := &none
		if e.Copies != nil {
			entry = &e.Copies.Entry
		}
		values, known := p.fields(c.Fields, entry, codeUnknownEvent, "value for each copy of event", e.Name)
		want.copies = append(want.copies, values)
		ok = ok && known
	}
	if ok {
		p.t.expect.events = append(p.t.expect.events, want)
	}
}

// reasons returns the names of the program's reasons of a kind.
func (p *preparer) reasons(kind ir.ReasonKind) []string {
	var known []string
	for _, r := range p.t.program.Reasons {
		if r.Kind == kind {
			known = append(known, r.Name)
		}
	}
	return known
}
