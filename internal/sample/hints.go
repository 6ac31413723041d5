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
	x := finder{
		hints:    hints{ints: map[string][]uint64{}, bytes: map[string][]bytesHint{}},
		settings: settings, lets: map[*ir.Var]ir.Expr{}, read: map[*ir.Var]string{},
	}
	for s := range ir.Stmts(p.Body) {
		switch s := s.(type) {
		case *ir.Let:
			x.lets[s.Var] = s.Value
		case *ir.ReadUint:
			x.read[s.Value] = s.Field
		case *ir.ReadVarint:
			x.read[s.Value] = anyVarint
		case *ir.FindElement:
			x.elements = append(x.elements, x.numbersOf(s.ID)...)
		case *ir.Guard, *ir.If:
		default: // the conditions of what a rewrite writes; what it makes of numbers doesn't count
			for e := range ir.Exprs(s) {
				if pick, ok := e.(*ir.Pick); ok {
					x.condition(pick.If)
				}
			}
			continue
		}
		x.condition(s)
	}
	return x.hints
}

// A finder collects hints. It knows what the variables of the statements so far hold.
type finder struct {
	hints
	settings func(*ir.Setting) []byte
	lets     map[*ir.Var]ir.Expr
	read     map[*ir.Var]string // names of fields
}

// condition collects the hints of a condition.
func (x *finder) condition(n ir.Node) {
	for e := range ir.Exprs(n) {
		switch e := e.(type) {
		case *ir.Bin:
			x.compared(e.Op, e.X, e.Y)
			x.compared(e.Op, e.Y, e.X)
		case *ir.BytesEq:
			x.equal(e.X, e.Y)
			x.equal(e.Y, e.X)
		case *ir.InPrefix:
			if f := x.field(e.X); f != "" {
				a := e.Prefix.Addr().As16()
				x.bytes[f] = append(x.bytes[f], bytesHint{a[:], e.Prefix.Bits()})
			}
		}
	}
}

// compared collects the hints of a comparison of a field with numbers.
func (x *finder) compared(op ir.BinOp, field, numbers ir.Expr) {
	f := x.field(unmasked(field))
	if f == "" {
		return
	}
	for _, v := range x.numbersOf(numbers) {
		switch op { // what a packet has to be counts more than where a range ends
		case ir.Eq:
			x.ints[f] = append(x.ints[f], v, v, v, v, v, v)
		case ir.Ne:
			x.ints[f] = append(x.ints[f], v, v-1, v+1, v+2)
		case ir.Lt, ir.Le, ir.Gt, ir.Ge:
			x.ints[f] = append(x.ints[f], v, v, v-1, v+1)
		}
	}
}

// equal collects the hint of a comparison of a field with bytes.
func (x *finder) equal(field, bytes ir.Expr) {
	if f, v := x.field(field), x.literal(bytes); f != "" && v != nil {
		x.bytes[f] = append(x.bytes[f], bytesHint{v, -1})
	}
}

// field is the name of the field that an expression is the value of; "" if it is none.
func (x *finder) field(e ir.Expr) string {
	if v, ok := e.(*ir.VarRef); ok && x.lets[v.Var] != nil {
		e = x.lets[v.Var]
	}
	switch l := e.(type) {
	case *ir.Load:
		return l.Field
	case *ir.LoadBytes:
		return l.Field
	case *ir.VarRef:
		return x.read[l.Var]
	}
	return ""
}

func (x *finder) literal(e ir.Expr) []byte {
	switch e := e.(type) {
	case *ir.BytesConst:
		return e.B
	case *ir.SettingRef:
		return x.settings(e.Setting)
	}
	return nil
}

// numbersOf are the numbers that an expression may be, as far as they are known.
func (x *finder) numbersOf(e ir.Expr) []uint64 {
	switch e := e.(type) {
	case *ir.Const:
		return []uint64{e.V}
	case *ir.Pick:
		return append(x.numbersOf(e.Then), x.numbersOf(e.Else)...)
	case *ir.SettingRef:
		if e.Setting.Type.Kind == ir.Uint {
			var v uint64
			for i, b := range x.settings(e.Setting) {
				v |= uint64(b) << (8 * i)
			}
			return []uint64{v}
		}
	}
	return nil
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
