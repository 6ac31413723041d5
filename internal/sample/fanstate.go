package sample

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// This file makes the state of one-to-many relays: groups of receivers, credits, translations.

const (
	namespaces = 4   // of translations that rows have; 0 is none
	someRows   = 128 // room for translations, so that they run out
	someCredit = 192 // credits that are used
	ringSize   = 4096
)

// creditRange says which entries of the array of credits rows have: credits below split, those that refill from there
// on.
type creditRange struct{ split, end int }

func findCredits(plan *ir.Plan) creditRange {
	var kinds [ir.Translation + 1]bool
	look := func(s *ir.Struct) {
		for _, m := range s.Members {
			kinds[m.Type.Kind] = true
		}
	}
	for _, g := range plan.Groups {
		look(&g.Receivers.Value)
	}
	for _, t := range plan.Tables {
		look(&t.Value)
	}
	switch end := plan.Credits; {
	case !kinds[ir.Bucket]:
		return creditRange{end, end}
	case !kinds[ir.Credit]:
		return creditRange{1, end}
	default:
		return creditRange{1 + end/2, end}
	}
}

// index is the first of as many credits as a type has, or 0, which is none.
func (c creditRange) index(s Source, t ir.Type) uint32 {
	first, end := 1, c.split
	if t.Kind == ir.Bucket {
		first, end = c.split, c.end
	}
	n := min((end-first)/t.Count(), 8) // few: receivers share them
	if n < 1 || s.One(16) {
		return 0
	}
	return uint32(first + t.Count()*s.IntN(n))
}

// groups makes groups of receivers. Their keys are often those of the round before: the kernel takes its time over new
// ones.
func (s Source) groups(plan *ir.Plan, r *sim.Relay, keys map[string][]string) {
	for _, g := range plan.Groups {
		was := keys[g.Name]
		if len(was) > 0 && s.One(8) {
			was = was[:s.IntN(len(was))]
		} else if len(was) > 0 && s.One(4) {
			was[s.IntN(len(was))] = string(s.groupKey(&g.Key))
		}
		for len(was) == 0 {
			for range min(2+s.IntN(5), g.Size) {
				was = append(was, string(s.groupKey(&g.Key)))
			}
		}
		left, identity := min(g.Rows, 200), uint32(g.Base)
		for _, k := range was {
			n := s.IntN(4)
			switch s.IntN(8) {
			case 0:
				n = s.IntN(min(g.Max, 40) + 1)
			case 1, 2:
				n = s.IntN(10)
			}
			rows := make([][]byte, min(n, g.Max, left))
			v4 := s.keyFamily(&g.Key, []byte(k))
			for i := range rows {
				rows[i] = s.receiver(&g.Receivers.Value, identity, v4)
				identity++
			}
			left -= len(rows)
			r.Group(g.Name).Put([]byte(k), rows)
		}
	}
}

// groupKey is a key whose addresses are mostly of one family.
func (s Source) groupKey(st *ir.Struct) []byte {
	key := s.layout(st)
	v4 := s.keyFamily(st, key)
	for _, m := range st.Members {
		s.family(m, key, v4)
	}
	return key
}

// family gives an address or an endpoint in a row another value until it is of a family, most often.
func (s Source) family(m *ir.Member, row []byte, v4 bool) {
	if m.Type.Kind != ir.Addr && m.Type.Kind != ir.Endpoint {
		return
	}
	one := m.Type.One()
	for value := range slices.Chunk(row[m.Off:m.Off+m.Type.Size], one.Size) {
		for isMapped(value) != v4 && !s.One(12) {
			copy(value, s.typed(one, nil))
		}
	}
}

// keyFamily reports whether the first address of a key is one of IPv4; without any, it is a matter of luck.
func (s Source) keyFamily(st *ir.Struct, key []byte) bool {
	i := slices.IndexFunc(st.Members, func(m *ir.Member) bool {
		return m.Type.Kind == ir.Addr || m.Type.Kind == ir.Endpoint
	})
	if i < 0 {
		return s.One(2)
	}
	return isMapped(key[st.Members[i].Off:])
}

// receiver is a receiver's row: its addresses are mostly of the family of the packets that it gets, and most of its
// copies are taken.
func (s Source) receiver(st *ir.Struct, identity uint32, v4 bool) []byte {
	b := make([]byte, st.Size)
	for _, m := range st.Members {
		into := b[m.Off : m.Off+m.Type.Size]
		copy(into, s.typed(m.Type, nil))
		switch {
		case m.Hidden && m.Name == "receiver":
			binary.LittleEndian.PutUint32(into, identity)
		case m.Type.Kind == ir.Hop, m.Type.Kind == ir.NextHop:
			copy(into, s.copyHop().Bytes())
		default:
			s.family(m, b, v4)
		}
	}
	return b
}

// copyHop is the next hop of copies, through devices that exist, and some that don't take them.
func (s Source) copyHop() sim.Hop {
	h := s.hop()
	h.Ifindex = sim.Wire
	if s.One(4) {
		h.Ifindex = Pick(s, sim.Devices)
	}
	if h.State != ir.HopDirect && !s.One(4) {
		h.State = ir.HopDirect
	}
	return h
}

// creditLimits gives credits limits that are often almost reached, and times that are spent far in the past or the
// future: what comes of a packet must not depend on a second more or less.
func (s Source) creditLimits(r *sim.Relay) {
	for i := 1; i < len(r.Credits); i++ {
		c := &r.Credits[i]
		for level := range c.Refused {
			c.Refused[level] = s.Uint64N(3)
		}
		if i >= s.credits.split {
			s.bucket(c, r.World.Clock)
			continue
		}
		c.Spent = Pick(s, []uint64{0, 1, s.Uint64N(5000), s.Uint64() >> 1, math.MaxUint64 - s.Uint64N(2000)})
		left := Pick(s, []uint64{0, s.Uint64N(64), s.Uint64N(4000), 1 << 20, 1 << 40, 1 << 40})
		c.Limit = c.Spent + min(left, math.MaxUint64-c.Spent)
		if s.One(8) {
			c.Limit = s.Uint64N(max(c.Spent, 1))
		}
	}
}

const second = 1_000_000_000

func (s Source) bucket(c *sim.Credit, now uint64) {
	c.Limit = Pick(s, []uint64{1, 1, 2, 0, 1 << 63, math.MaxUint64})
	c.Burst = Pick(s, []uint64{0, 1, s.Uint64N(64), s.Uint64N(4000), 1 << 20, 1 << 33, math.MaxUint64})
	c.Spent = Pick(s, []uint64{0, 0, 1, now + second*s.Uint64N(4000), math.MaxUint64})
}

// translations fills the table of translations a little, or almost, or to the brim.
func (s Source) translations(plan *ir.Plan, r *sim.Relay) {
	if plan.Translations == 0 {
		return
	}
	n := s.IntN(16)
	if s.One(3) {
		n = plan.Translations - s.IntN(8)
	}
	for range min(n, plan.Translations) {
		k := sim.TranslationKey{Key: s.integer(1 + s.IntN(64)), Namespace: 1 + s.Uint32N(namespaces-1)}
		r.Translations[k] = sim.Translation{Value: s.integer(1 + s.IntN(64)), Done: !s.One(6)}
	}
}
