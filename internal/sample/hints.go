package sample

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// hints are values that a plan compares fields with: the edges at which its behaviour changes.
type hints struct {
	ints     map[string][]uint64
	bytes    map[string][]bytesHint
	elements []uint64 // identifiers of elements that lists are searched for
}

// bytesHint is a value in the layout of a table, or (bits not negative) any address in a prefix.
type bytesHint struct {
	value []byte
	bits  int
}

// anyVarint is under which hints are for all variable-length integers: a plan doesn't say which field one is.
const anyVarint = "varint"

// findHints collects hints from all conditions of a program, with the settings that it is loaded with.
func findHints(p *ir.Program, settings func(*ir.Setting) []byte) hints {
	h := hints{ints: map[string][]uint64{}, bytes: map[string][]bytesHint{}}
	lets, read := map[*ir.Var]ir.Expr{}, map[*ir.Var]string{}
	field := func(e ir.Expr) string {
		if v, ok := e.(*ir.VarRef); ok && lets[v.Var] != nil {
			e = lets[v.Var]
		}
		switch l := e.(type) {
		case *ir.Load:
			return l.Field
		case *ir.LoadBytes:
			return l.Field
		case *ir.VarRef:
			return read[l.Var]
		}
		return ""
	}
	literal := func(e ir.Expr) []byte {
		switch e := e.(type) {
		case *ir.BytesConst:
			return e.B
		case *ir.SettingRef:
			return settings(e.Setting)
		}
		return nil
	}
	var numbers func(ir.Expr) []uint64 // that it may be
	numbers = func(e ir.Expr) []uint64 {
		switch e := e.(type) {
		case *ir.Const:
			return []uint64{e.V}
		case *ir.Pick:
			return append(numbers(e.Then), numbers(e.Else)...)
		case *ir.SettingRef:
			if e.Setting.Type.Kind == ir.Uint {
				var v uint64
				for i, b := range settings(e.Setting) {
					v |= uint64(b) << (8 * i)
				}
				return []uint64{v}
			}
		}
		return nil
	}
	compare := func(e *ir.Bin) {
		for _, side := range [][2]ir.Expr{{e.X, e.Y}, {e.Y, e.X}} {
			f := field(unmasked(side[0]))
			if f == "" {
				continue
			}
			for _, v := range numbers(side[1]) {
				switch e.Op { // what a packet has to be counts more than where a range ends
				case ir.Eq:
					h.ints[f] = append(h.ints[f], v, v, v, v, v, v)
				case ir.Ne:
					h.ints[f] = append(h.ints[f], v, v-1, v+1, v+2)
				case ir.Lt, ir.Le, ir.Gt, ir.Ge:
					h.ints[f] = append(h.ints[f], v, v, v-1, v+1)
				}
			}
		}
	}
	condition := func(n ir.Node) {
		for e := range ir.Exprs(n) {
			switch e := e.(type) {
			case *ir.Bin:
				compare(e)
			case *ir.BytesEq:
				for _, side := range [][2]ir.Expr{{e.X, e.Y}, {e.Y, e.X}} {
					if f, v := field(side[0]), literal(side[1]); f != "" && v != nil {
						h.bytes[f] = append(h.bytes[f], bytesHint{v, -1})
					}
				}
			case *ir.InPrefix:
				if f := field(e.X); f != "" {
					a := e.Prefix.Addr().As16()
					h.bytes[f] = append(h.bytes[f], bytesHint{a[:], e.Prefix.Bits()})
				}
			}
		}
	}
	for s := range ir.Stmts(p.Body) {
		switch s := s.(type) {
		case *ir.Let:
			lets[s.Var] = s.Value
		case *ir.ReadUint:
			read[s.Value] = s.Field
		case *ir.ReadVarint:
			read[s.Value] = anyVarint
		case *ir.FindElement:
			h.elements = append(h.elements, numbers(s.ID)...)
		case *ir.Guard, *ir.If:
		default: // the conditions of what a rewrite writes; what it makes of numbers doesn't count
			for e := range ir.Exprs(s) {
				if pick, ok := e.(*ir.Pick); ok {
					condition(pick.If)
				}
			}
			continue
		}
		condition(s)
	}
	return h
}

// unmasked is the field of which a condition looks at some bits.
func unmasked(e ir.Expr) ir.Expr {
	if b, ok := e.(*ir.Bin); ok && b.Op == ir.And {
		if _, ok := b.Y.(*ir.Const); ok {
			return b.X
		}
	}
	return e
}

// numbers are all values of the hints.
func (h hints) numbers() []uint64 {
	var all []uint64
	for _, f := range slices.Sorted(maps.Keys(h.ints)) {
		all = append(all, h.ints[f]...)
	}
	return all
}

// addresses are all addresses and prefixes of the hints.
func (h hints) addresses() []bytesHint {
	var all []bytesHint
	for _, f := range slices.Sorted(maps.Keys(h.bytes)) {
		for _, b := range h.bytes[f] {
			// a check that an address is IPv4 knows none
			if len(b.value) == 16 && !(b.bits == 96 && isMapped(b.value)) {
				all = append(all, b)
			}
		}
	}
	return all
}

// make returns a value as it is in a packet, in n bytes.
func (b bytesHint) make(s Source, n int) []byte {
	v := slices.Clone(b.value)
	if b.bits >= 0 {
		noise := s.bytes(len(v))
		for i := b.bits; i < 8*len(v); i++ {
			v[i/8] |= noise[i/8] & (0x80 >> (i % 8))
		}
	}
	if len(v) > n {
		return v[len(v)-n:]
	}
	return v
}
