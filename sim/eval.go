package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// mapped is the prefix of IPv4 addresses in their 16-byte form.
var mapped = [12]byte{10: 0xff, 11: 0xff}

// fail records the first contradiction of the plan; the run ends at the next statement.
func (r *run) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// scratch returns n bytes that live until the run ends.
func (r *run) scratch(n int) []byte {
	if len(r.arena)+n > cap(r.arena) {
		r.arena = make([]byte, 0, 2*cap(r.arena)+n+1024)
	}
	start := len(r.arena)
	r.arena = r.arena[:start+n]
	b := r.arena[start : start+n : start+n]
	clear(b)
	return b
}

// offset evaluates an offset.
func (r *run) offset(o ir.Off) int {
	if o.Base == nil {
		return o.Const
	}
	v := r.variable(o.Base).u
	if o.Base.Max != 0 && v > o.Base.Max {
		r.fail("variable %q: %d is used as an offset, over its bound of %d", o.Base.Name, v, o.Base.Max)
		return 0
	}
	return int(v) + o.Const
}

func (r *run) variable(v *ir.Var) value {
	i, ok := r.prog.vars[v]
	if !ok || !r.set[i] {
		r.fail("variable %q is read before it is set", v.Name)
		return value{b: r.scratch(v.Type.Size)}
	}
	return r.vars[i]
}

// assign sets a variable, and holds the plan to its type. Its bound may come from a guard that follows.
func (r *run) assign(v *ir.Var, val value) {
	i, ok := r.prog.vars[v]
	switch {
	case !ok:
		r.fail("variable %q is not declared", v.Name)
		return
	case v.Type.IsBytes() && len(val.b) != v.Type.Size:
		r.fail("variable %q: %d bytes stored in %d", v.Name, len(val.b), v.Type.Size)
	case !v.Type.IsBytes() && !fits(val.u, v.Type.Bits):
		r.fail("variable %q: %d doesn't fit into %d bits", v.Name, val.u, v.Type.Bits)
	}
	r.vars[i], r.set[i] = val, true
}

func fits(v uint64, bits int) bool { return bits >= 64 || v>>bits == 0 }

// bytesAt returns n bytes of the packet that came, which the program must have checked.
func (r *run) bytesAt(o ir.Off, n int, what string) []byte {
	at := r.offset(o)
	if at < 0 || n < 0 || at+n > r.checked {
		r.fail("%s: bytes %d to %d are read, but only %d were checked", what, at, at+n, r.checked)
		return r.scratch(max(n, 0))
	}
	return r.in[at : at+n]
}

// any evaluates an expression of any type.
func (r *run) any(e ir.Expr) value {
	if e.Type().IsBytes() {
		return value{b: r.bytes(e)}
	}
	return value{u: r.uint(e)}
}

func (r *run) bool(e ir.Expr) bool { return r.uint(e) != 0 }

// uint evaluates an integer or boolean expression.
func (r *run) uint(e ir.Expr) uint64 {
	if r.err != nil {
		return 0
	}
	switch e := e.(type) {
	case *ir.Const:
		return e.V
	case *ir.Load:
		return r.load(e)
	case *ir.VarRef:
		return r.variable(e.Var).u
	case *ir.Meta:
		return r.meta(e.Kind)
	case *ir.SettingRef:
		return littleEndian(r.relay.settings[e.Setting])
	case *ir.RowHas:
		return truth(r.row(e.Row).found)
	case *ir.RowMember:
		return littleEndian(r.memberOf(e))
	case *ir.PseudoSum:
		sum := r.terms(e.Terms, "pseudo-header")
		if sum == 0 {
			return modulus // of summands that are not all zero
		}
		return sum
	case *ir.CounterValue:
		if c := r.shared(e.Row, e.Member); c != nil {
			return *c
		}
		return 0
	case *ir.Bin:
		return r.binary(e)
	case *ir.Not:
		return truth(!r.bool(e.X))
	case *ir.BytesEq:
		x, y := r.bytes(e.X), r.bytes(e.Y)
		if len(x) != len(y) {
			r.fail("byte strings of %d and %d bytes are compared", len(x), len(y))
		}
		return truth(bytes.Equal(x, y))
	case *ir.InPrefix:
		return truth(inPrefix(r.bytes(e.X), e.Prefix))
	case *ir.IsV4:
		return truth(isV4(r.bytes(e.X)))
	case *ir.Unicast:
		return truth(isUnicast(r.bytes(e.X)))
	case *ir.Multicast:
		return truth(isMulticast(r.bytes(e.X)))
	case *ir.ByteAt:
		b := r.bytes(e.X)
		if e.Index < 0 || e.Index >= len(b) {
			r.fail("byte %d of a string of %d bytes", e.Index, len(b))
			return 0
		}
		return uint64(b[e.Index])
	case *ir.SumOK:
		return truth(r.sumOK(e))
	case *ir.Pick:
		if r.bool(e.If) {
			return r.uint(e.Then)
		}
		return r.uint(e.Else)
	case *ir.Word:
		return r.word(e)
	case *ir.Room:
		bits := 8 * r.variable(e.Width).u
		if !e.Plain {
			bits -= min(bits, 2)
		}
		if bits > 64 {
			r.fail("an integer of %d bits", bits)
		}
		return 1<<bits - 1
	}
	r.fail("%T is not an integer", e)
	return 0
}

func (r *run) sumOK(e *ir.SumOK) bool {
	n := e.Len
	if e.Size != nil {
		n = int(r.uint(e.Size))
	}
	if e.Whole {
		return r.wholeOK(e, n)
	}
	return sumIsRight(r.region(r.offset(e.Off), n, e.Len, "checksum"))
}

// word is an integer of variable size as 8 bytes of the packet hold it, from the first one on.
func (r *run) word(e *ir.Word) uint64 {
	if !e.Plain {
		var word [8]byte
		copy(word[:], r.varintBytes(e.X, e.Width))
		return bigEndian(word[:])
	}
	v, width := r.uint(e.X), int(r.variable(e.Width).u)
	if width > 8 || !fits(v, 8*width) {
		r.fail("%d as an integer of %d bytes", v, width)
	}
	return v << (64 - 8*width)
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func isV4(addr []byte) bool { return len(addr) == 16 && [12]byte(addr[:12]) == mapped }

// isMulticast reports whether an address is multicast or broadcast.
func isMulticast(addr []byte) bool {
	if len(addr) != 16 {
		return false
	}
	a := netip.AddrFrom16([16]byte(addr)).Unmap()
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// isUnicast reports whether an address may be another host's.
func isUnicast(addr []byte) bool {
	if len(addr) != 16 {
		return false
	}
	a := netip.AddrFrom16([16]byte(addr)).Unmap()
	return !isMulticast(addr) && !a.IsLoopback() && !a.IsUnspecified() && !(a.Is4() && a.As4()[0] == 0)
}

func inPrefix(addr []byte, p netip.Prefix) bool {
	a16 := p.Addr().As16()
	return len(addr) == 16 && samePrefix(addr, a16[:], p.Bits())
}

// littleEndian reads an integer of 1 to 8 bytes in the order of the host.
func littleEndian(b []byte) uint64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func bigEndian(b []byte) uint64 {
	var v uint64
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

func (r *run) load(e *ir.Load) uint64 {
	b := r.bytesAt(e.Off, (e.Bit+e.Bits+7)/8, e.Field)
	switch {
	case e.Little:
		return littleEndian(b)
	case e.Bit == 0 && e.Bits%8 == 0:
		return bigEndian(b)
	}
	var v uint64
	for i := e.Bit; i < e.Bit+e.Bits; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8)&1)
	}
	return v
}

func (r *run) meta(k ir.MetaKind) uint64 {
	switch k {
	case ir.FrameLen:
		return uint64(r.size)
	case ir.VLANTag:
		return truth(r.packet.VLAN != nil)
	case ir.VLANTCI:
		if r.packet.VLAN != nil {
			return uint64(r.packet.VLAN.TCI)
		}
		return 0
	case ir.VLANProto:
		if r.packet.VLAN != nil {
			return uint64(r.packet.VLAN.Proto)
		}
		return 0
	case ir.GSOSize:
		return uint64(r.packet.GSO)
	case ir.SKBMark:
		return uint64(r.packet.Mark)
	case ir.SKBPrio:
		return uint64(r.packet.Priority)
	case ir.LinkProto:
		return uint64(r.packet.linkProto())
	case ir.LinkType:
		return uint64(r.packet.Link)
	case ir.Partial:
		return uint64(r.packet.Partial.Start)<<16 | uint64(r.packet.Partial.Field)
	case ir.Encapsulated:
		return truth(r.packet.Tunnel)
	case ir.SegmentFront:
		return uint64(r.packet.segmentFront())
	}
	if fact := ir.Facts[k]; fact.Word != "" {
		return truth(slices.Contains(r.relay.World.Conditions, fact.Word) != fact.Not)
	}
	r.fail("unknown fact %d about the packet", k)
	return 0
}

// row returns the result of a lookup that must have happened.
func (r *run) row(row *ir.Row) rowState {
	i, ok := r.prog.rows[row]
	if !ok || !r.rows[i].looked {
		r.fail("row %q is used before it is looked up", row.Name)
		return rowState{}
	}
	return r.rows[i]
}

// memberOf returns the bytes that an expression reads of a row.
func (r *run) memberOf(e *ir.RowMember) []byte {
	level := 0
	if e.Level != nil {
		if v := r.uint(e.Level); v < uint64(e.Member.Type.Levels) {
			level = int(v)
		} else {
			r.fail("member %q is read for level %d, of %d", e.Member.Name, v, e.Member.Type.Levels)
		}
	} else if e.Member.Type.Levels > 0 {
		r.fail("member %q is read, and not for which level", e.Member.Name)
	}
	return r.member(e.Row, e.Member, e.Component, level)
}

// member returns the bytes of a member of a row's value, of several those for a level of priority.
func (r *run) member(row *ir.Row, m *ir.Member, part ir.Component, level int) []byte {
	state := r.row(row)
	size := m.Type.One().Size
	off := m.Off + level*size
	switch part {
	case ir.AddrOf:
		size = 16
		if m.Type.Kind == ir.NextHop {
			off += abi.NextHopAddr
		}
	case ir.PortOf:
		off, size = off+16, 2
	}
	if !state.found {
		r.fail("member %q of row %q is read, but there is no row", m.Name, row.Name)
		return r.scratch(size)
	}
	if off+size > len(state.value) {
		r.fail("member %q of row %q is outside its value", m.Name, row.Name)
		return r.scratch(size)
	}
	return state.value[off : off+size]
}

// bytes evaluates an expression whose value is a byte string.
func (r *run) bytes(e ir.Expr) []byte {
	if r.err != nil {
		return r.scratch(max(e.Type().Size, 0))
	}
	switch e := e.(type) {
	case *ir.BytesConst:
		return e.B
	case *ir.LoadBytes:
		b := r.bytesAt(e.Off, e.N, e.Field)
		if e.T.Kind == ir.Addr && e.N == 4 {
			a := r.scratch(16)
			copy(a, mapped[:])
			copy(a[12:], b)
			return a
		}
		return b
	case *ir.VarRef:
		return r.variable(e.Var).b
	case *ir.SettingRef:
		return r.relay.settings[e.Setting]
	case *ir.RowMember:
		return r.memberOf(e)
	case *ir.Pick:
		b := e.Else
		if r.bool(e.If) {
			b = e.Then
		}
		return r.bytes(b)
	}
	r.fail("%T is not a byte string", e)
	return r.scratch(max(e.Type().Size, 0))
}

func (r *run) binary(e *ir.Bin) uint64 {
	x := r.uint(e.X)
	switch e.Op {
	case ir.Land:
		return truth(x != 0 && r.bool(e.Y))
	case ir.Lor:
		return truth(x != 0 || r.bool(e.Y))
	}
	y := r.uint(e.Y)
	switch e.Op {
	case ir.Add:
		return x + y
	case ir.Sub:
		return x - y
	case ir.Mul:
		return x * y
	case ir.Div, ir.Rem:
		if y == 0 {
			r.fail("division by zero")
			return 0
		}
		if e.Op == ir.Div {
			return x / y
		}
		return x % y
	case ir.And:
		return x & y
	case ir.Or:
		return x | y
	case ir.Xor:
		return x ^ y
	case ir.Shl, ir.Shr:
		if y >= 64 {
			r.fail("shift by %d", y)
			return 0
		}
		if e.Op == ir.Shl {
			return x << y
		}
		return x >> y
	case ir.Eq:
		return truth(x == y)
	case ir.Ne:
		return truth(x != y)
	case ir.Lt:
		return truth(x < y)
	case ir.Le:
		return truth(x <= y)
	case ir.Gt:
		return truth(x > y)
	case ir.Ge:
		return truth(x >= y)
	}
	r.fail("unknown operator %d", e.Op)
	return 0
}

// varintBytes returns an integer as a variable-length one of a width (RFC 9000 §16): the upper 2 bits are the
// logarithm of the width, the others the integer, which fits.
func (r *run) varintBytes(e ir.Expr, width *ir.Var) []byte {
	v, n := r.uint(e), r.variable(width).u
	if r.err != nil || n != 1 && n != 2 && n != 4 && n != 8 || !fits(v, int(8*n)-2) {
		r.fail("%d is written as a variable-length integer of %d bytes", v, n)
		return nil
	}
	b := r.scratch(8)
	binary.BigEndian.PutUint64(b, v<<(64-8*n))
	b[0] |= byte(bits.TrailingZeros64(n)) << 6
	return b[:n]
}

// wire returns the Size bytes that a value takes in a packet. Integers are big endian unless little is set; an address
// in 4 bytes is the IPv4 address in it.
func (r *run) wire(e ir.Expr, size int, little bool, what string) []byte {
	v := r.any(e)
	b := r.scratch(size)
	if r.err != nil {
		return b
	}
	if e.Type().IsBytes() {
		src := v.b
		if e.Type().Kind == ir.Addr && size == 4 {
			if !isV4(src) {
				r.fail("%s: an address that is not IPv4 in 4 bytes", what)
				return b
			}
			src = src[12:]
		}
		if len(src) != size {
			r.fail("%s: %d bytes written as %d", what, len(src), size)
			return b
		}
		copy(b, src)
		return b
	}
	if size < 0 || size > 8 || !fits(v.u, 8*size) {
		r.fail("%s: %d doesn't fit into %d bytes", what, v.u, size)
		return b
	}
	var buf [8]byte
	if little {
		binary.LittleEndian.PutUint64(buf[:], v.u)
		copy(b, buf[:size])
	} else {
		binary.BigEndian.PutUint64(buf[:], v.u)
		copy(b, buf[8-size:])
	}
	return b
}
