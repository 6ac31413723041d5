package sample

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// State fills a relay with random sessions, rows, counters, groups and credits. If generators are given, it returns
// frames of theirs that find there what they look for. The relay's coverage then isn't that of packets.
func (s Source) State(plan *ir.Plan, r *sim.Relay, generators ...*Generator) []Fitted {
	s.credits = findCredits(plan)
	keys := map[string][]string{}
	for _, g := range plan.Groups {
		keys[g.Name] = r.Group(g.Name).Keys()
	}
	r.Reset()
	r.World.Now, r.World.Conditions = 1, nil
	for _, word := range spec.Conditions {
		often := 40
		if asks(plan, word) {
			often = 4
		}
		if s.One(often) {
			r.World.Conditions = append(r.World.Conditions, word)
		}
	}
	s.groups(plan, r, keys)
	slot := s.rows(plan, r)
	s.creditLimits(r)
	credits := slices.Clone(r.Credits)
	fitted := s.fit(r, slot, generators)
	r.ClearCounts()
	copy(r.Credits, credits)
	s.translations(plan, r)
	for i := range r.Lost[1:] {
		r.Lost[1+i] = s.Uint64N(3)
	}
	return fitted
}

// asks reports whether rules differ by a condition of the relay; in other plans it stops everything, or nothing.
func asks(plan *ir.Plan, condition string) bool {
	is := func(e ir.Expr) bool {
		m, ok := e.(*ir.Meta)
		return ok && ir.Facts[m.Kind].Word == condition
	}
	for _, p := range plan.Programs {
		for s := range ir.Stmts(p.Body) {
			if s, ok := s.(*ir.If); ok && slices.ContainsFunc(slices.Collect(ir.Exprs(s)), is) {
				return true
			}
		}
	}
	return false
}

// rows fills a relay's tables and shared counters, and returns the first slot that no session has.
func (s Source) rows(plan *ir.Plan, r *sim.Relay) (slot int) {
	for i := 1; i < min(Watched, len(r.Shared)); i++ {
		r.Shared[i] = s.Uint64N(8)
	}
	for _, session := range plan.Sessions {
		for range 3 + s.IntN(8) {
			if slot == len(r.Slots) {
				break
			}
			s.session(session, r, slot, nil)
			slot++
		}
	}
	for _, t := range plan.Tables {
		if t.Session != nil {
			continue
		}
		for range min(s.IntN(24), t.Size) {
			key := s.layout(&t.Key)
			if t.Kind == "array" {
				key = binary.LittleEndian.AppendUint32(nil, s.Uint32N(uint32(min(t.Size, 8))))
			}
			r.Table(t.Name).Put(key, s.value(t, r))
		}
		for _, g := range plan.Groups {
			if t.Kind == "array" || t.Kind == "lpm" || !alike(&t.Key, &g.Key) {
				continue
			}
			for _, k := range r.Group(g.Name).Keys() { // what finds a group often finds a row
				if !s.One(8) {
					r.Table(t.Name).Put([]byte(k), s.value(t, r))
				}
			}
		}
	}
	return slot
}

// alike reports whether two keys have the same types.
func alike(a, b *ir.Struct) bool {
	return a.Size == b.Size && slices.EqualFunc(a.Members, b.Members, func(x, y *ir.Member) bool {
		return x.Type == y.Type && x.Off == y.Off
	})
}

// value is the value of a row of a table that is no session's. What is learned with a session was mostly learned with
// one that is still open.
func (s Source) value(t *ir.Table, r *sim.Relay) []byte {
	b := s.layout(&t.Value)
	slot := s.IntN(max(min(len(r.Slots), 12), 1))
	for _, m := range t.Value.Members {
		switch {
		case !m.Hidden || slot >= len(r.Slots) || s.One(12):
		case m.Name == abi.MemberSlot:
			binary.LittleEndian.PutUint32(b[m.Off:], uint32(slot))
		case m.Name == abi.MemberGen:
			binary.LittleEndian.PutUint32(b[m.Off:], r.Slots[slot].Gen)
		}
	}
	return b
}

func (s Source) layout(st *ir.Struct) []byte {
	b := make([]byte, st.Size)
	for _, m := range st.Members {
		copy(b[m.Off:m.Off+m.Type.Size], s.typed(m.Type, nil))
	}
	return b
}

// session opens a session. Most are alive, some have ended or make way for another generation; but not if values of
// fields are given, by their number: there something looks for it.
func (s Source) session(session *ir.Session, r *sim.Relay, slot int, given map[int][]byte) {
	gen := 1 + s.Uint32N(1000)
	r.Slots[slot] = sim.Slot{Deadline: math.MaxUint64, Gen: gen}
	switch n := s.IntN(24); {
	case given != nil:
	case n == 0:
		r.Slots[slot].Deadline = 0
	case n == 3:
		gen, r.Slots[slot].Gen = 0, 0 // a row that was never filled in
	case n == 1:
		r.Slots[slot].Gen++
	case n == 2:
		r.Slots[slot].Gen = 0
	}
	values := make([][]byte, len(session.Fields))
	v4 := s.One(2) // the ends of a session are often of one family
	for i, f := range session.Fields {
		values[i] = s.typed(f.Type, f.Is)
		for range 4 {
			if s.One(4) || len(values[i]) < 16 || isMapped(values[i]) == v4 {
				break
			}
			values[i] = s.typed(f.Type, f.Is)
		}
		if v := given[i]; v != nil {
			values[i] = v
		}
	}
	for i, row := range session.Rows {
		key, value := make([]byte, row.Table.Key.Size), make([]byte, row.Table.Value.Size)
		visible(&row.Table.Key, key, row.Key, values)
		visible(&row.Table.Value, value, row.Value, values)
		for _, m := range row.Table.Value.Members {
			switch {
			case !m.Hidden:
			case m.Type.Kind == ir.Hop:
				copy(value[m.Off:], s.hop().Bytes())
			case m.Name == "slot":
				n := uint32(slot)
				if s.One(60) {
					n = s.Uint32() // a row of something else
				}
				binary.LittleEndian.PutUint32(value[m.Off:], n)
			case m.Name == "gen":
				binary.LittleEndian.PutUint32(value[m.Off:], gen)
			case m.Name == ir.RowIndex:
				binary.LittleEndian.PutUint32(value[m.Off:], uint32(i))
			}
		}
		r.Table(row.Table.Name).Put(key, value)
	}
}

func isMapped(b []byte) bool {
	return len(b) >= 16 && [12]byte(b[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

func visible(st *ir.Struct, into []byte, fields []int, values [][]byte) {
	i := 0
	for _, m := range st.Members {
		if !m.Hidden && i < len(fields) {
			copy(into[m.Off:m.Off+m.Type.Size], values[fields[i]])
			i++
		}
	}
}

// settingTurns is at least how many choices of settings pass until one has its turn again.
const settingTurns = 7

// Settings are mostly the defaults; those without one, and some others, are random in their range. By turns each has
// another value than its default, whatever luck says: n counts the choices.
func (s Source) Settings(plan *ir.Plan, n int) map[string][]byte {
	out := map[string][]byte{}
	for i, st := range plan.Settings {
		turn := i == n%max(len(plan.Settings), settingTurns)
		// a switch often switches everything off
		if !turn && st.Default != nil && (s.One(2) || st.Type.Kind == ir.Bool && !s.One(4)) {
			continue
		}
		v := s.setting(st)
		for range 8 {
			if !turn || !bytes.Equal(v, st.Default) {
				break
			}
			v = s.setting(st)
		}
		out[st.Name] = v
	}
	return out
}

func (s Source) setting(st *ir.Setting) []byte {
	if st.Type.Kind != ir.Uint {
		return s.typed(st.Type, nil)
	}
	limit := max(st.Max, st.Min) - st.Min
	n := st.Min + min(s.integer(st.Type.Bits), limit)
	if s.One(2) {
		n = st.Min + s.Uint64N(min(limit, 8)+1)
	}
	return binary.LittleEndian.AppendUint64(nil, n)[:st.Type.Size]
}
