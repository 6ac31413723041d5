package spectest

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// test is a test with all its names and values resolved.
type test struct {
	src      *spec.Test
	program  *ir.Program
	stack    *spec.Program // the program as the spec has it
	settings map[string][]byte
	groups   []group    // in the order of the test
	state    *sim.Relay // the state before
	packet   sim.Packet
	expect   expectation
}

// expectation is what has to come out.
type expectation struct {
	layers   []packet.Layer
	rows     []row
	counters []counter
	copies   []wantCopy
	events   []wantEvent
}

// row is a row that is expected: its key, and the members of its value that are given.
type row struct {
	table  *ir.Table
	key    []byte
	value  []given
	absent bool
	pos    diag.Pos
}

type given struct {
	member *ir.Member
	bytes  []byte // of a counter, a credit or a translation: 8 bytes for each, what stands for it in tests
}

// counter is a counter that is expected: a named one, or (index -1) that of a reason.
type counter struct {
	name    string
	index   int
	reasons []int
	want    uint64
}

// preparer resolves the tests of a spec.
type preparer struct {
	spec    *spec.Spec
	plan    *ir.Plan
	headers *packet.Headers
	diags   *diag.List

	together bool // the state is that of several tests: what contradicts is left out

	// of the test at hand
	t     *test
	hop   sim.Hop
	slots int
	open  map[*spec.TestSession]int // their slots
	given []*spec.TestSession       // also those that couldn't be opened
	shared
}

// prepare resolves all tests. Those with mistakes are missing in the result.
func prepare(s *spec.Spec, plan *ir.Plan) ([]*test, *diag.List) {
	p := &preparer{spec: s, plan: plan, headers: packet.NewHeaders(s), diags: &diag.List{}}
	var tests []*test
	for _, src := range s.Tests {
		before := p.diags.Len()
		p.t = &test{src: src, settings: map[string][]byte{}}
		p.slots, p.shared = 0, shared{}
		p.all()
		if p.diags.Len() == before {
			tests = append(tests, p.t)
		}
	}
	return tests, p.diags
}

// Check reports the mistakes in the tests of a spec: names that don't exist, values that don't fit, packets that can't
// be built.
func Check(s *spec.Spec, plan *ir.Plan) *diag.List {
	_, diags := prepare(s, plan)
	return diags
}

func (p *preparer) unknown(code diag.Code, n spec.Name, what string, known []string) {
	label := ""
	if near := spell.Nearest(n.Value, known); near != "" {
		label = "did you mean \"" + near + "\"?"
	}
	p.diags.Add(code, n.Pos, "no %s %q", what, n.Value).WithLabel("%s", label)
}

func (p *preparer) bad(l spec.Literal, what string, err error) {
	p.diags.Add(codeTestValue, l.Pos, "%s: %s", what, err)
}

func (p *preparer) all() {
	if p.before() {
		p.packet()
		p.expected()
	}
}

// before makes the state before the test; it reports whether there is one.
func (p *preparer) before() bool {
	src := p.t.src
	program, ok := find(p, p.plan.Programs, func(pr *ir.Program) string {
		return pr.Name
	}, src.Program, codeUnknownProgram, "program")
	if !ok {
		return false
	}
	p.t.program, p.t.stack = program, p.spec.Programs[slices.Index(p.plan.Programs, program)]
	p.hop = sim.Hop{
		Ifindex: 1, MTU: 1500, State: ir.HopDirect, Src: packet.DefaultSource, Dst: packet.DefaultDestination,
	}
	if src.Route != nil {
		p.hop.State = abi.HopState(slices.Index(states[:], src.Route.State))
		if src.Route.MTU > 0 {
			p.hop.MTU = uint16(min(src.Route.MTU, math.MaxUint16))
		}
	}
	if !p.settings() {
		return false
	}
	p.open, p.given = map[*spec.TestSession]int{}, src.Sessions
	src.Sessions = keep(p, src.Sessions, p.session)
	src.Rows = keep(p, src.Rows, p.row)
	src.Groups = keep(p, src.Groups, p.group)
	return true
}

// keep puts pieces of state in. Of the state of several tests, those that can't be put in are left out.
func keep[T any](p *preparer, pieces []T, put func(T)) []T {
	if !p.together {
		for _, x := range pieces {
			put(x)
		}
		return pieces
	}
	return slices.DeleteFunc(slices.Clone(pieces), func(x T) bool {
		found := p.diags
		p.diags = &diag.List{}
		put(x)
		out := p.diags.Len() > 0
		p.diags = found
		return out
	})
}

var states = [ir.HopStates]string{
	"none", "direct", "neighbour", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule", "encap",
	"forwarding_off",
}

// find returns the element of a list that a test names, or reports that there is none.
func find[T any](p *preparer, list []T, nameOf func(T) string, n spec.Name, code diag.Code, what string) (found T,
	ok bool) {
	var known []string
	for _, x := range list {
		if nameOf(x) == n.Value {
			return x, true
		}
		known = append(known, nameOf(x))
	}
	p.unknown(code, n, what, known)
	return found, false
}

// settings resolves the settings and makes the empty state.
func (p *preparer) settings() bool {
	before := p.diags.Len()
	for _, v := range p.t.src.Settings {
		setting, ok := find(p, p.plan.Settings, func(s *ir.Setting) string {
			return s.Name
		}, v.Name, codeUnknownSetting, "setting")
		if !ok {
			continue
		}
		b, err := testrun.Encode(v.Value, setting.Type, p.hop)
		if err != nil {
			p.bad(v.Value, "setting "+v.Name.Value, err)
			continue
		}
		p.t.settings[v.Name.Value] = b
	}
	for _, s := range p.plan.Settings {
		if s.Default == nil && p.t.settings[s.Name] == nil {
			p.diags.Add(codeIncomplete, p.t.src.Name.Pos, "setting %q has no default, and the test doesn't give it a "+
				"value", s.Name).
				WithRelated(s.Pos, "the setting is declared here")
		}
	}
	if p.diags.Len() > before {
		return false
	}
	state, err := sim.New(p.plan, p.t.settings)
	if err != nil {
		p.diags.Add(codeIncomplete, p.t.src.Name.Pos, "the test can't be set up: %s", err)
		return false
	}
	p.t.state = state
	state.World.Conditions = p.t.src.Conditions
	hop := p.hop
	state.World.Route = func(_, to netip.Addr) sim.Hop {
		h := hop
		h.NextHop = to
		return h
	}
	return true
}

// session opens a session: its rows, and a slot that never ends.
func (p *preparer) session(src *spec.TestSession) {
	s, ok := find(p, p.plan.Sessions, func(s *ir.Session) string { return s.Name }, src.Session, codeUnknownSession,
		"session")
	if !ok {
		return
	}
	before := p.diags.Len()
	values := make([][]byte, len(s.Fields))
	for _, v := range src.Fields {
		f, ok := find(p, s.Fields, func(f *ir.Field) string {
			return f.Name
		}, v.Name, codeUnknownSession, "field of session "+s.Name)
		if !ok {
			continue
		}
		if b, ok := p.give(&ir.Member{Type: f.Type}, v.Value, s.Name+"."+v.Name.Value); ok {
			values[slices.Index(s.Fields, f)] = b.bytes
		}
	}
	if p.diags.Len() > before {
		return
	}
	for j, b := range values {
		if t := s.Fields[j].Type; t.Kind.IsIndex() { // all rows that name the field share one
			if values[j], ok = p.index(t, b, src.Session.Pos); !ok {
				return
			}
		} else if b == nil {
			p.diags.Add(codeIncomplete, src.Session.Pos, "session %q needs a value for %q", s.Name, s.Fields[j].Name)
		}
	}
	if p.diags.Len() > before {
		return
	}
	if p.slots >= p.plan.Slots {
		p.diags.Add(codeIncomplete, src.Session.Pos, "more sessions are open than the spec has room for (%d)",
			p.plan.Slots)
		return
	}
	slot := p.slots
	keys, rows := make([][]byte, len(s.Rows)), make([][]byte, len(s.Rows))
	for i, r := range s.Rows {
		key, value := make([]byte, r.Table.Key.Size), make([]byte, r.Table.Value.Size)
		fill(&r.Table.Key, key, r.Key, values)
		fill(&r.Table.Value, value, r.Value, values)
		link(&r.Table.Value, value, slot, i)
		taken := slices.ContainsFunc(s.Rows[:i], func(o *ir.SessionRow) bool {
			return o.Table == r.Table && bytes.Equal(keys[slices.Index(s.Rows, o)], key)
		})
		if taken || p.t.state.Table(r.Table.Name).Get(key) != nil {
			p.twice(r.Table, src.Session.Pos)
			return
		}
		keys[i], rows[i] = key, value
	}
	p.slots++
	p.open[src] = slot
	p.t.state.Slots[slot] = sim.Slot{Deadline: math.MaxUint64, Gen: uint32(slot) + 1}
	for i, r := range s.Rows {
		p.put(r.Table, keys[i], rows[i], src.Session.Pos)
	}
}

// link ties a row to the session in a slot; n: which of its rows it is.
func link(s *ir.Struct, value []byte, slot, n int) {
	for _, m := range s.Members {
		switch {
		case m.Hidden && m.Name == abi.MemberSlot:
			binary.LittleEndian.PutUint32(value[m.Off:], uint32(slot))
		case m.Hidden && m.Name == abi.MemberGen:
			binary.LittleEndian.PutUint32(value[m.Off:], uint32(slot)+1)
		case m.Hidden && m.Name == ir.RowIndex:
			binary.LittleEndian.PutUint32(value[m.Off:], uint32(n))
		}
	}
}

func (p *preparer) twice(t *ir.Table, pos diag.Pos) {
	p.diags.Add(codeIncomplete, pos, "two rows of table %q have the same key", t.Name)
}

// fill copies a session's values into the members of a key or a value that are not hidden, in their order.
func fill(s *ir.Struct, into []byte, fields []int, values [][]byte) {
	i := 0
	for _, m := range s.Members {
		if !m.Hidden && i < len(fields) {
			copy(into[m.Off:m.Off+m.Type.Size], values[fields[i]])
			i++
		}
	}
}

// hops gives a row the next hops to its destinations.
func (p *preparer) hops(s *ir.Struct, value []byte) {
	for _, m := range s.Members {
		if m.Hidden && m.Type.Kind == ir.Hop {
			copy(value[m.Off:], p.hop.Bytes())
		}
	}
}

// put puts a row in, with its hops.
func (p *preparer) put(t *ir.Table, key, value []byte, pos diag.Pos) {
	p.hops(&t.Value, value)
	table := p.t.state.Table(t.Name)
	if t.Kind != "array" && table.Get(key) != nil {
		p.twice(t, pos)
		return
	}
	if !table.Put(key, value) {
		p.diags.Add(codeIncomplete, pos, "table %q has no room for the row: its size is %d", t.Name, t.Size)
	}
}

// give resolves the value of a member.
func (p *preparer) give(m *ir.Member, l spec.Literal, what string) (given, bool) {
	t := m.Type
	if t.Kind.IsIndex() {
		if t = ir.UintType(64); m.Type.Levels > 0 {
			t, _ = t.PerLevel(m.Type.Levels)
		}
	}
	b, err := testrun.Encode(l, t, p.hop)
	if err != nil {
		p.bad(l, what, err)
		return given{}, false
	}
	return given{m, b}, true
}

// lay makes a row's value of what is given: other members are 0, what is shared gets entries of its own.
func (p *preparer) lay(s *ir.Struct, values []given, pos diag.Pos) ([]byte, bool) {
	out := make([]byte, s.Size)
	for _, m := range s.Members {
		i := slices.IndexFunc(values, func(g given) bool { return g.member == m })
		b := []byte(nil)
		if i >= 0 {
			b = values[i].bytes
		}
		if i < 0 && m.Type.Kind == ir.NextHop {
			p.diags.Add(codeIncomplete, pos, "the row needs a value for %q: packets leave by it", m.Name).
				WithHint("the address of a router; 0.0.0.0 for a row that has none")
			return nil, false
		}
		if m.Type.Kind.IsIndex() {
			var ok bool
			if b, ok = p.index(m.Type, b, pos); !ok {
				return nil, false
			}
		}
		copy(out[m.Off:], b)
	}
	return out, true
}

// index takes entries of what is shared, which have the values that are given.
func (p *preparer) index(t ir.Type, given []byte, pos diag.Pos) ([]byte, bool) {
	var values []uint64
	for one := range slices.Chunk(given, 8) {
		values = append(values, binary.LittleEndian.Uint64(one))
	}
	return p.take(t, values, pos)
}

// members resolves the values of a row of a test.
func (p *preparer) members(src *spec.TestRow) (t *ir.Table, key, value []given, ok bool) {
	t, ok = find(p, p.plan.Tables, func(t *ir.Table) string { return t.Name }, src.Table, codeUnknownTable, "table")
	if !ok {
		return nil, nil, nil, false
	}
	var known []string
	find := func(s *ir.Struct, name string) *ir.Member {
		for _, m := range s.Members {
			if !m.Hidden {
				known = append(known, m.Name)
				if m.Name == name {
					return m
				}
			}
		}
		return nil
	}
	for _, v := range src.Values {
		known = nil
		inKey := true
		m := find(&t.Key, v.Name.Value)
		if m == nil {
			inKey = false
			m = find(&t.Value, v.Name.Value)
		}
		if m == nil {
			p.unknown(codeUnknownTable, v.Name, "member of table "+t.Name, known)
			return nil, nil, nil, false
		}
		g, ok := p.give(m, v.Value, t.Name+"."+v.Name.Value)
		if !ok {
			return nil, nil, nil, false
		}
		if inKey {
			key = append(key, g)
		} else {
			value = append(value, g)
		}
	}
	if !p.whole(&t.Key, key, src.Table.Pos, "a row of table "+t.Name) {
		return nil, nil, nil, false
	}
	return t, key, value, true
}

// whole reports whether a key has all its members.
func (p *preparer) whole(s *ir.Struct, key []given, pos diag.Pos, what string) bool {
	before := p.diags.Len()
	for _, m := range s.Members {
		if !m.Hidden && !slices.ContainsFunc(key, func(g given) bool { return g.member == m }) {
			p.diags.Add(codeIncomplete, pos, "%s needs a value for %q", what, m.Name)
		}
	}
	return p.diags.Len() == before
}

func keyOf(s *ir.Struct, key []given) []byte {
	b := make([]byte, s.Size)
	for _, g := range key {
		copy(b[g.member.Off:], g.bytes)
	}
	return b
}

// row puts a row of the state before into its table. Members that are not given are 0, counters new ones. What was
// learned with a session that isn't open is a row of one that has ended.
func (p *preparer) row(src *spec.TestRow) {
	t, key, values, ok := p.members(src)
	if !ok {
		return
	}
	if t.Session != nil {
		p.diags.Add(codeUnknownTable, src.Table.Pos, "the rows of table %q belong to session %q", t.Name,
			t.Session.Name).
			WithHint("open the session instead: sessions: [{%s: {…}}]", t.Session.Name)
		return
	}
	if value, ok := p.lay(&t.Value, values, src.Table.Pos); ok {
		if src.Of >= 0 && src.Of < len(p.given) {
			if slot, open := p.open[p.given[src.Of]]; open {
				link(&t.Value, value, slot, 0)
			}
		}
		p.put(t, keyOf(&t.Key, key), value, src.Table.Pos)
	}
}

func (p *preparer) packet() {
	src := p.t.src.Packet
	if src == nil {
		p.diags.Add(codeIncomplete, p.t.src.Name.Pos, "the test has no packet")
		return
	}
	frame := p.headers.Make(src, p.diags)
	p.t.packet = sim.Packet{Data: frame.Data}
	if src.Partial {
		start, field := p.headers.Partial(frame)
		p.t.packet.Partial = sim.Partial{Start: start, Field: field}
	}
	if src.VLAN != nil {
		p.t.packet.VLAN = &sim.Tag{Proto: src.VLAN.Proto, TCI: src.VLAN.TCI}
	}
	switch to := sim.LinkType(p.t.packet.Data, [6]byte{}); {
	case to == ir.ToBroadcast || to == ir.ToMulticast:
		p.t.packet.Link = to
	case src.OtherHost:
		p.t.packet.Link = ir.ToOther
	}
}

func (p *preparer) expected() {
	e := p.t.src.Expect
	if e == nil {
		p.diags.Add(codeIncomplete, p.t.src.Name.Pos, "the test expects nothing")
		return
	}
	if e.Reason != "" {
		kinds := map[string]ir.ReasonKind{"up": ir.Punted, "drop": ir.Dropped, "sent": ir.Sent, "pass": ir.Passed}
		known := p.reasons(kinds[e.Verdict])
		if !slices.Contains(known, e.Reason) {
			n := spec.Name{Value: e.Reason, Pos: e.Pos}
			p.unknown(codeUnknownReason, n, "reason to "+verb(e.Verdict)+" in program "+p.t.program.Name, known)
		}
	}
	if e.Packet != nil && e.Packet.Hex == nil {
		p.t.expect.layers = p.headers.Resolve(e.Packet.Layers, p.diags)
	}
	for _, r := range e.Rows {
		t, key, value, ok := p.members(r)
		if ok && p.comparable(value, r) {
			p.t.expect.rows = append(p.t.expect.rows, row{t, keyOf(&t.Key, key), value, r.Absent, r.Table.Pos})
		}
	}
	for _, c := range e.Copies {
		p.copy(c)
	}
	for _, ev := range e.Events {
		p.event(ev)
	}
	for _, v := range e.Counters {
		c := counter{name: v.Name.Value, index: -1, want: v.Value.Int}
		var known []string
		for _, n := range p.plan.Counters {
			known = append(known, n.Name)
			if n.Name == c.name {
				c.index = n.Index
			}
		}
		for i, r := range p.t.program.Reasons {
			known = append(known, r.Name)
			if r.Name == c.name && c.index < 0 {
				c.reasons = append(c.reasons, p.plan.Tallies().Of(p.t.program, i))
				if first := p.t.program.XDP; first != nil {
					c.reasons = append(c.reasons, p.plan.Tallies().Base(first)+p.plan.Tallies().Number(p.t.program, i))
				}
			}
		}
		if c.index < 0 && len(c.reasons) == 0 {
			p.unknown(codeUnknownSetting, v.Name, "counter", known)
			continue
		}
		p.t.expect.counters = append(p.t.expect.counters, c)
	}
}

func verb(verdict string) string {
	switch verdict {
	case "up":
		return "pass to the stack"
	case "sent":
		return "be sent"
	}
	return verdict
}
