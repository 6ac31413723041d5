package bpf

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Expressions become C expressions. Integers are of type __u64 wherever the width of the arithmetic shows; comparisons
// are left to C's conversions, which keep unsigned values.

var binOps = map[ir.BinOp]string{
	ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.Div: "/", ir.Rem: "%", ir.And: "&", ir.Or: "|", ir.Xor: "^",
	ir.Shl: "<<", ir.Shr: ">>", ir.Eq: "==", ir.Ne: "!=", ir.Lt: "<", ir.Le: "<=", ir.Gt: ">", ir.Ge: ">=",
	ir.Land: "&&", ir.Lor: "||",
}

// expr renders an integer or a condition.
func (f *function) expr(e ir.Expr) c.Expr {
	switch e := e.(type) {
	case *ir.Const:
		return f.constantOf(e.V, c.Plain)
	case *ir.Load:
		return f.load(e)
	case *ir.VarRef:
		return f.variable(e.Var)
	case *ir.Meta:
		return f.meta(e.Kind)
	case *ir.SettingRef:
		return settingName(e.Setting)
	case *ir.RowHas:
		return c.Do("fr_has", f.row(e.Row))
	case *ir.RowMember:
		if e.Component == ir.PortOf {
			return c.In(f.member(e), "port")
		}
		return f.member(e)
	case *ir.CounterValue:
		return c.Do("fr_shared_get", c.To(f.row(e.Row), member(e.Member)))
	case *ir.Bin:
		return f.binary(e)
	case *ir.Not:
		return c.Not(f.expr(e.X))
	case *ir.BytesEq:
		return f.bytesEq(f.bytes(e.X), f.bytes(e.Y))
	case *ir.InPrefix:
		return f.inPrefix(e)
	case *ir.IsV4:
		return f.isV4(f.bytes(e.X))
	case *ir.Unicast:
		return f.addressIs("unicast", f.bytes(e.X))
	case *ir.Multicast:
		return f.addressIs("multicast", f.bytes(e.X))
	case *ir.ByteAt:
		b := f.bytes(e.X)
		if e.Index < 0 || e.Index >= b.size {
			f.fail("byte %d of %d", e.Index, b.size)
			return c.Num(0)
		}
		return b.load(e.Index, 1)
	case *ir.SumOK:
		return f.sum(e)
	case *ir.PseudoSum:
		return c.Do("bpf_htons", c.Do("fr_fold", sumIn64(f.pseudo(e.Terms))))
	case *ir.Pick:
		return c.Choice{If: f.expr(e.If), Then: f.picked(e.Then), Else: f.picked(e.Else)}
	case *ir.Word:
		f.more = true
		function := "fr_varint_word"
		if e.Plain {
			function = "fr_uint_word"
		}
		return c.Do(function, f.expr(e.X), f.variable(e.Width))
	case *ir.Room:
		if e.Plain {
			return c.Do("fr_room", f.variable(e.Width))
		}
		return c.Do("fr_varint_room", f.variable(e.Width))
	}
	f.fail("no C for expression %T", e)
	return c.Num(0)
}

func settingName(s *ir.Setting) c.Ident { return c.Ident(abi.SettingPrefix + ident(s.Name)) }

// picked renders one side of a choice.
func (f *function) picked(e ir.Expr) c.Expr {
	if _, ok := e.(*ir.Meta); ok {
		return c.Do("fr_fact", f.expr(e))
	}
	return f.wide(e)
}

// wide renders an operand of arithmetic in 64 bits.
func (f *function) wide(e ir.Expr) c.Expr {
	switch e := e.(type) {
	case *ir.Const:
		if e.V <= 0x7FFFFFFF {
			return f.constantOf(e.V, c.Wide)
		}
	case *ir.Meta, *ir.SettingRef, *ir.RowMember, *ir.ByteAt, *ir.RowHas, *ir.Not, *ir.BytesEq, *ir.InPrefix, *ir.IsV4,
		*ir.Unicast, *ir.Multicast, *ir.SumOK:
		return in64(f.expr(e))
	case *ir.Bin:
		if e.Op >= ir.Eq {
			return in64(f.expr(e))
		}
	}
	return f.expr(e)
}

// in64 is a number as one of 64 bits.
func in64(x c.Expr) c.Expr { return c.Cast{Type: "__u64", X: x} }

func (f *function) binary(e *ir.Bin) c.Expr {
	if v, ok := e.X.(*ir.VarRef); ok && e.Op == ir.Eq && f.prog.partials[v.Var] {
		if at, ok := e.Y.(*ir.Const); ok && at.V > 0 {
			partial := c.Do("FR_PARTIAL", c.Dec(int(at.V>>16)), c.Dec(int(at.V&0xffff)))
			return c.Binary{Op: "==", X: f.variable(v.Var), Y: partial}
		}
	}
	if name := nameOfValue(e); name != "" {
		return c.Binary{Op: binOps[e.Op], X: f.expr(e.X), Y: name}
	}
	e = difference(e)
	x, y := f.expr, f.expr // each side is rendered once: it may be deep
	_, fixedX := e.X.(*ir.Const)
	_, fixedY := e.Y.(*ir.Const)
	switch {
	case e.Op < ir.Eq:
		if x = f.wide; !fixedY {
			y = f.wide
		}
	case e.Op < ir.Land && fixedX:
		x = f.wide
	}
	return c.Binary{Op: binOps[e.Op], X: x(e.X), Y: y(e.Y)}
}

// difference turns the sum with a constant that stands for a negative number into what a person would write: x - 4.
func difference(e *ir.Bin) *ir.Bin {
	x, y := e.X, e.Y
	if c, ok := x.(*ir.Const); ok && e.Op == ir.Add && int64(c.V) < 0 {
		x, y = y, x
	}
	c, ok := y.(*ir.Const)
	if !ok || int64(c.V) >= 0 || e.Op != ir.Add && e.Op != ir.Sub {
		return e
	}
	op := ir.Sub
	if e.Op == ir.Sub {
		op = ir.Add
	}
	return &ir.Bin{Op: op, X: x, Y: &ir.Const{V: -c.V}}
}

func (f *function) variable(v *ir.Var) *c.Local {
	if !f.prog.vars[v] {
		f.fail("variable %q is not declared", v.Name)
	}
	return f.prog.varLocal(v)
}

func (f *function) row(r *ir.Row) *c.Local {
	if !f.prog.rows[r] {
		f.fail("row %q is not declared", r.Name)
	}
	return f.prog.rowLocal(r)
}

// use counts the packet in the usage of a row's session.
func (f *function) use(r *ir.Row) {
	row, index := f.row(r), c.Dec(r.Table.Row)
	if r.Table.Rows > 1 {
		index = c.To(row, ir.RowIndex)
	}
	f.do(noPos, "fr_use", c.To(row, "slot"), index, frameLen, now)
}

// member is what an expression reads of a row.
func (f *function) member(e *ir.RowMember) c.Expr {
	x := c.To(f.row(e.Row), member(e.Member))
	switch level := e.Level.(type) {
	case nil:
		return x
	case *ir.Const:
		return c.Index{X: x, At: c.Dec(int(level.V))}
	}
	return c.Index{X: x, At: c.Do("fr_level", f.expr(e.Level), c.Dec(e.Member.Type.Levels))}
}

// skb is what the kernel keeps of the packet.
const skb = c.Ident("skb")

func ofSKB(member string) c.Expr { return c.To(skb, member) }

func (f *function) meta(k ir.MetaKind) c.Expr {
	switch k {
	case ir.FrameLen:
		switch { // before the packet changed
		case f.turn != nil && f.turn.End != nil:
			return f.turn.keep("__u32", string(frameLen), frameLen)
		case f.turn == nil && f.writes && !f.first:
			return frameLen
		}
		return f.length()
	case ir.VLANTag:
		if f.prog.frame() {
			return c.Do("fr_xdp_tagged", xdp)
		}
		return ofSKB("vlan_present")
	case ir.VLANTCI:
		return c.Do("fr_vlan_tci", skb)
	case ir.VLANProto:
		return c.Do("bpf_htons", ofSKB("vlan_proto"))
	case ir.GSOSize:
		return ofSKB("gso_size")
	case ir.SKBMark:
		return f.asReceived("mark")
	case ir.SKBPrio:
		return f.asReceived("priority")
	case ir.LinkProto:
		return c.Do("bpf_htons", ofSKB("protocol"))
	case ir.Partial:
		f.needs["facts"] = "yes"
		return c.Do("fr_partial", skb)
	case ir.Encapsulated:
		f.needs["facts"] = "yes"
		return c.Do("fr_encapsulated", skb)
	case ir.SegmentFront:
		f.needs["facts"], f.needs["segments"] = "yes", "yes"
		return c.Do("fr_segment_front", skb)
	case ir.LinkType:
		if f.prog.frame() {
			return c.Do("fr_xdp_link_type", xdp, data, dataEnd)
		}
		return ofSKB("pkt_type")
	}
	if fact := ir.Facts[k]; fact.Word != "" {
		return c.Do("fr_"+fact.Text, lease, now)
	}
	f.fail("no C for fact %d", k)
	return c.Num(0)
}

// ptr is a pointer into the packet.
func (f *function) ptr(o ir.Off) c.Expr {
	if x := f.byName(o, f.packet()); x != nil {
		return x
	}
	return f.raw(o)
}

// raw is the same as a number of bytes.
func (f *function) raw(o ir.Off) c.Expr {
	if o.Base != nil {
		return c.Plus(f.base(o.Base), o.Const+f.lowered[o.Base])
	}
	return c.Plus(f.front(), o.Const)
}

// load reads an integer at any bit offset.
func (f *function) load(e *ir.Load) c.Expr {
	n := (e.Bit + e.Bits + 7) / 8
	if e.Little {
		return f.gather(e.Off, n, true)
	}
	if n > 8 { // 9 bytes: all bits of 8 and some of one more
		tail := 8*n - e.Bit - e.Bits
		return masked(c.Binary{
			Op: "|", X: shifted("<<", c.Bytes("be", 8, f.ptr(e.Off)), 8-tail),
			Y: shifted(">>", c.Bytes("be", 1, f.ptr(e.Off.Plus(8))), tail),
		}, e.Bits)
	}
	x := shifted(">>", f.gather(e.Off, n, false), 8*n-e.Bit-e.Bits)
	if e.Bit == 0 {
		return x
	}
	return masked(x, e.Bits)
}

// shifted moves an integer by so many bits.
func shifted(op string, x c.Expr, bits int) c.Expr {
	if bits == 0 {
		return x
	}
	return c.Binary{Op: op, X: x, Y: c.Dec(bits)}
}

// masked is the lowest n bits of an integer.
func masked(x c.Expr, n int) c.Expr {
	if n >= 64 {
		return x
	}
	return c.Binary{Op: "&", X: x, Y: c.Num(1<<n - 1)}
}

// gather reads n bytes as an integer, in as few loads as there are.
func (f *function) gather(o ir.Off, n int, little bool) c.Expr {
	var loads []c.Expr
	for done := 0; done < n; {
		size := 1 << (bits.Len(uint(n-done)) - 1)
		at, shift := f.ptr(o.Plus(done)), 8*(n-done-size)
		x := c.Expr(c.Bytes("be", size, at))
		if little {
			x, shift = in64(c.Bytes("ld", size, at)), 8*done
		}
		loads = append(loads, shifted("<<", x, shift))
		done += size
	}
	return c.Join("|", loads...)
}

// sum renders whether the sum of a part of the packet is that of bytes with their checksum.
func (f *function) sum(e *ir.SumOK) c.Expr {
	if e.Whole {
		return f.wholeSum(e)
	}
	if e.Size != nil {
		return c.Do("fr_sum_ok", c.Do(f.sumOf(e.Len), f.prog.given(), f.offset(e.Off), f.expr(e.Size)))
	}
	var loads []c.Expr
	for done := 0; done < e.Len; {
		size := min(4, 1<<(bits.Len(uint(e.Len-done))-1))
		loads = append(loads, c.Bytes("ld", size, f.ptr(e.Off.Plus(done))))
		done += size
	}
	return c.Do("fr_sum_ok", sumIn64(loads))
}

// sumIn64 adds numbers in 64 bits.
func sumIn64(list []c.Expr) c.Expr {
	list = slices.Clone(list)
	list[0] = in64(list[0])
	return c.Join("+", list...)
}

// byteString is a value of a fixed number of bytes, as something to load pieces from.
type byteString struct {
	size  int
	mem   c.Expr         // a pointer to the bytes; or
	ro    bool           // which are read-only data, that clang must not take for constants
	fixed []byte         // the bytes; or
	v4    c.Expr         // a pointer to an IPv4 address, which stands for its mapped form; or
	cond  c.Expr         // a condition, and
	sides [2]*byteString // what it is if the condition holds, and else
}

var mapped = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// load reads size bytes at off as they lie in memory.
func (b byteString) load(off, size int) c.Expr {
	switch {
	case b.cond != nil:
		return c.Choice{If: b.cond, Then: b.sides[0].load(off, size), Else: b.sides[1].load(off, size)}
	case b.fixed != nil:
		return c.Num(littleEndian(b.fixed[off : off+size]))
	case b.v4 != nil && off+size <= 12:
		return c.Num(littleEndian(mapped[off : off+size]))
	case b.v4 != nil && off >= 12:
		return c.Bytes("ld", size, c.Plus(b.v4, off-12))
	case b.v4 != nil && off == 8 && size == 8:
		high := shifted("<<", in64(c.Bytes("ld", 4, b.v4)), 32)
		return c.Binary{Op: "|", X: high, Y: c.Num(0xffff0000)}
	}
	if b.ro {
		return c.Bytes("ldv", size, c.Plus(b.mem, off))
	}
	return c.Bytes("ld", size, c.Plus(b.mem, off))
}

// ipv4 reads the IPv4 address that is meant by an address of 16 bytes.
func (b byteString) ipv4() c.Expr {
	switch {
	case b.cond != nil:
		return c.Choice{If: b.cond, Then: b.sides[0].ipv4(), Else: b.sides[1].ipv4()}
	case b.mem != nil && b.ro:
		return c.Do("fr_setting_v4", b.mem)
	case b.mem != nil:
		return c.Do("fr_v4", b.mem)
	}
	return b.load(12, 4)
}

// untyped is a pointer to bytes.
func untyped(x c.Expr) c.Expr { return c.Cast{Type: "void *", X: x} }

// bytes renders a byte string.
func (f *function) bytes(e ir.Expr) byteString {
	switch e := e.(type) {
	case *ir.BytesConst:
		return byteString{size: len(e.B), fixed: e.B}
	case *ir.LoadBytes:
		if e.T.Kind == ir.Addr && e.N == 4 {
			return byteString{size: 16, v4: f.ptr(e.Off)}
		}
		return byteString{size: e.N, mem: f.ptr(e.Off)}
	case *ir.VarRef:
		return byteString{size: e.Var.Type.Size, mem: untyped(f.variable(e.Var))}
	case *ir.SettingRef:
		return byteString{size: e.Setting.Type.Size, mem: settingName(e.Setting), ro: true}
	case *ir.Pick:
		then, other := f.bytes(e.Then), f.bytes(e.Else)
		return byteString{size: then.size, cond: f.expr(e.If), sides: [2]*byteString{&then, &other}}
	case *ir.RowMember:
		x := f.member(e)
		switch {
		case e.Component == ir.AddrOf:
			x = c.In(x, "addr")
		case !e.Type().Plain():
			x = untyped(c.Address(x))
		}
		return byteString{size: e.Type().Size, mem: x}
	}
	f.fail("no C for byte string %T", e)
	return byteString{size: e.Type().Size, fixed: make([]byte, e.Type().Size)}
}

// pieces cuts n bytes at off into naturally aligned ones.
func pieces(off, n int) (sizes []int) {
	for n > 0 {
		size := 8
		for size > n || off%size != 0 {
			size /= 2
		}
		sizes = append(sizes, size)
		off, n = off+size, n-size
	}
	return sizes
}

// equals compares two numbers.
func equals(x, y c.Expr) c.Expr { return c.Binary{Op: "==", X: x, Y: y} }

func (f *function) bytesEq(x, y byteString) c.Expr {
	if x.size != y.size {
		f.fail("byte strings of %d and %d bytes are compared", x.size, y.size)
		return c.Num(0)
	}
	var same []c.Expr
	off := 0
	for _, n := range pieces(0, x.size) {
		same = append(same, equals(x.load(off, n), y.load(off, n)))
		off += n
	}
	return c.Join("&&", same...)
}

func (f *function) isV4(b byteString) c.Expr {
	switch {
	case b.v4 != nil:
		return c.Num(1)
	case b.fixed != nil:
		if string(b.fixed[:12]) == string(mapped) {
			return c.Num(1)
		}
		return c.Num(0)
	}
	if b.ro {
		return c.Binary{Op: "&&", X: equals(b.load(0, 8), c.Num(0)), Y: equals(b.load(8, 4), c.Num(0xffff0000))}
	}
	return c.Do("fr_is_v4", b.mem)
}

// addressIs renders a question about an address of a family that is known, or of either.
func (f *function) addressIs(what string, b byteString) c.Expr {
	switch {
	case b.v4 != nil:
		return c.Do("fr_"+what+"_v4", c.Bytes("ld", 4, b.v4))
	case b.mem != nil && !b.ro:
		return c.Do("fr_"+what, b.mem)
	}
	f.fail("no C for whether this address is %s", what)
	return c.Num(0)
}

func (f *function) inPrefix(e *ir.InPrefix) c.Expr {
	b := f.bytes(e.X)
	p := e.Prefix.Masked().Addr().As16()
	var same []c.Expr
	for off := 0; off < 16; off += 4 {
		n := min(max(e.Prefix.Bits()-off*8, 0), 32)
		if n == 0 {
			break
		}
		var m [4]byte
		binary.BigEndian.PutUint32(m[:], ^uint32(0)<<(32-n))
		mask, want := littleEndian(m[:]), littleEndian(p[off:off+4])
		term := b.load(off, 4)
		if off == 12 && string(p[:12]) == string(mapped) {
			term = b.ipv4()
		}
		if n < 32 {
			term = c.Binary{Op: "&", X: term, Y: c.Num(mask)}
		}
		same = append(same, equals(term, c.Num(want)))
	}
	if len(same) == 0 {
		return c.Num(1)
	}
	return c.Join("&&", same...)
}
