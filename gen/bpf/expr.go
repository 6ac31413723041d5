package bpf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

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

// number writes an integer as a person would.
func number(v uint64) string {
	switch {
	case v < 256:
		return strconv.FormatUint(v, 10)
	case v <= 0x7FFFFFFF:
		return fmt.Sprintf("0x%x", v)
	}
	return fmt.Sprintf("0x%xULL", v)
}

// expr renders an integer or a condition.
func (f *function) expr(e ir.Expr) string {
	switch e := e.(type) {
	case *ir.Const:
		return f.constantOf(e.V, "")
	case *ir.Load:
		return f.load(e)
	case *ir.VarRef:
		return f.variable(e.Var)
	case *ir.Meta:
		return f.meta(e.Kind)
	case *ir.SettingRef:
		return abi.SettingPrefix + ident(e.Setting.Name)
	case *ir.RowHas:
		return "fr_has(" + f.row(e.Row) + ")"
	case *ir.RowMember:
		s := f.member(e)
		if e.Part == ir.PartPort {
			s += ".port"
		}
		return s
	case *ir.CounterValue:
		return fmt.Sprintf("fr_shared_get(%s->%s)", f.row(e.Row), member(e.Member))
	case *ir.Bin:
		return f.binary(e)
	case *ir.Not:
		return "!" + f.operand(e.X)
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
			return "0"
		}
		return b.load(e.Index, 1)
	case *ir.SumOK:
		return f.sum(e)
	case *ir.Pick:
		return fmt.Sprintf("%s ? %s : %s", f.operand(e.If), f.picked(e.Then), f.picked(e.Else))
	case *ir.Word:
		f.more = true
		function := "fr_varint_word"
		if e.Plain {
			function = "fr_uint_word"
		}
		return fmt.Sprintf("%s(%s, %s)", function, f.expr(e.X), f.variable(e.Width))
	case *ir.Room:
		if e.Plain {
			return fmt.Sprintf("fr_room(%s)", f.variable(e.Width))
		}
		return fmt.Sprintf("fr_varint_room(%s)", f.variable(e.Width))
	}
	f.fail("no C for expression %T", e)
	return "0"
}

// operand renders an expression that stands beside an operator.
func (f *function) operand(e ir.Expr) string {
	switch e.(type) {
	case *ir.IsV4:
		if s := f.expr(e); strings.HasPrefix(s, "fr_") && oneCall(s) || len(s) == 1 {
			return s
		}
		return "(" + f.expr(e) + ")"
	case *ir.Bin, *ir.BytesEq, *ir.InPrefix, *ir.Pick:
		return "(" + f.expr(e) + ")"
	}
	return f.expr(e)
}

// side renders an operand of && or ||.
func (f *function) side(e ir.Expr, op ir.BinOp) string {
	if b, ok := e.(*ir.Bin); ok && (b.Op >= ir.Eq && b.Op < ir.Land || b.Op == op) {
		return f.expr(e)
	}
	return f.operand(e)
}

// picked renders one side of a choice.
func (f *function) picked(e ir.Expr) string {
	if _, ok := e.(*ir.Meta); ok {
		return "fr_fact(" + f.expr(e) + ")"
	}
	return f.wide(e)
}

// wide renders an operand of arithmetic in 64 bits.
func (f *function) wide(e ir.Expr) string {
	switch e := e.(type) {
	case *ir.Const:
		if e.V <= 0x7FFFFFFF {
			return f.constantOf(e.V, "ULL")
		}
	case *ir.Meta, *ir.SettingRef, *ir.RowMember, *ir.ByteAt, *ir.RowHas, *ir.Not, *ir.BytesEq, *ir.InPrefix, *ir.IsV4,
		*ir.Unicast, *ir.Multicast, *ir.SumOK:
		return "(__u64)" + f.operand(e)
	case *ir.Bin:
		if e.Op >= ir.Eq {
			return "(__u64)" + f.operand(e)
		}
	}
	return f.operand(e)
}

func (f *function) binary(e *ir.Bin) string {
	if e.Op == ir.Land || e.Op == ir.Lor {
		return f.side(e.X, e.Op) + " " + binOps[e.Op] + " " + f.side(e.Y, e.Op)
	}
	if v, ok := e.X.(*ir.VarRef); ok && e.Op == ir.Eq && f.prog.partials[v.Var] {
		if at, ok := e.Y.(*ir.Const); ok && at.V > 0 {
			return fmt.Sprintf("%s == FR_PARTIAL(%d, %d)", f.variable(v.Var), at.V>>16, at.V&0xffff)
		}
	}
	e = difference(e)
	// Each side is rendered once: it may be deep.
	x, y := f.operand, f.operand
	_, fixed := e.Y.(*ir.Const)
	if e.Op < ir.Eq {
		if x = f.wide; joins(e) {
			x = f.expr
		}
		if !fixed {
			y = f.wide
		}
	} else if _, fixed := e.X.(*ir.Const); fixed {
		x = f.wide
	}
	return x(e.X) + " " + binOps[e.Op] + " " + y(e.Y)
}

// joins reports whether an operation goes on with its left side's, and needs no parentheses.
func joins(e *ir.Bin) bool {
	b, ok := e.X.(*ir.Bin)
	return ok && b.Op == e.Op && (e.Op == ir.Add || e.Op == ir.Or || e.Op == ir.And)
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

func (f *function) variable(v *ir.Var) string {
	if !f.prog.vars[v] {
		f.fail("variable %q is not declared", v.Name)
	}
	f.usesVar(v)
	return f.nameOf(v)
}

func (f *function) row(r *ir.Row) string {
	if !f.prog.rows[r] {
		f.fail("row %q is not declared", r.Name)
	}
	f.usesRow(r)
	return f.rowName(r)
}

// use counts the packet in the usage of a row's session.
func (f *function) use(r *ir.Row) {
	f.usesNow()
	row, index := f.row(r), fmt.Sprint(r.Table.Row)
	if r.Table.Rows > 1 {
		index = row + "->" + ir.RowIndex
	}
	f.line("fr_use(%s->slot, %s, len, now);", row, index)
}

// member is what an expression reads of a row.
func (f *function) member(e *ir.RowMember) string {
	s := f.row(e.Row) + "->" + member(e.Member)
	switch level := e.Level.(type) {
	case nil:
		return s
	case *ir.Const:
		return fmt.Sprintf("%s[%d]", s, level.V)
	}
	return fmt.Sprintf("%s[fr_level(%s, %d)]", s, f.expr(e.Level), e.Member.Type.Levels)
}

func (f *function) meta(k ir.MetaKind) string {
	switch k {
	case ir.FrameLen:
		switch { // before the packet changed
		case f.turn != nil && f.turn.End != nil:
			return f.turn.keep("__u32", "len", "len")
		case f.turn == nil && f.writes:
			return "len"
		}
		return f.length()
	case ir.VLANTag:
		return "skb->vlan_present"
	case ir.VLANTCI:
		return "fr_vlan_tci(skb)"
	case ir.VLANProto:
		return "bpf_htons(skb->vlan_proto)"
	case ir.GSOSize:
		return "skb->gso_size"
	case ir.SKBMark:
		return f.asItCame("mark")
	case ir.SKBPrio:
		return f.asItCame("priority")
	case ir.LinkProto:
		return "bpf_htons(skb->protocol)"
	case ir.Partial:
		f.needs["facts"] = "yes"
		return "fr_partial(skb)"
	case ir.Encapsulated:
		f.needs["facts"] = "yes"
		return "fr_encapsulated(skb)"
	case ir.SegmentFront:
		f.needs["facts"], f.needs["segments"] = "yes", "yes"
		return "fr_segment_front(skb)"
	case ir.LinkType:
		return "skb->pkt_type"
	case ir.LeaseValid:
		f.usesNow()
		f.leased = true
		return "fr_lease_valid(lease, now)"
	}
	f.fail("no C for fact %d", k)
	return "0"
}

// ptr is a pointer into the packet. Parentheses are the caller's business: it stands alone as an argument.
func (f *function) ptr(o ir.Off) string {
	if s := f.byName(o, f.packet()); s != "" {
		return s
	}
	return f.raw(o)
}

// raw is the same as a number of bytes.
func (f *function) raw(o ir.Off) string {
	var p string
	if o.Base != nil {
		p = f.base(o.Base)
		o.Const += f.lowered[o.Base]
	} else {
		p = f.usesData()
	}
	return offset(p, o.Const)
}

// plus moves an offset.
func plus(o ir.Off, n int) ir.Off {
	o.Const += n
	return o
}

// load reads an integer at any bit offset.
func (f *function) load(e *ir.Load) string {
	n := (e.Bit + e.Bits + 7) / 8
	if e.Little {
		return f.gather(e.Off, n, true)
	}
	if n > 8 { // 9 bytes: all bits of 8 and some of one more
		tail := 8*n - e.Bit - e.Bits
		return fmt.Sprintf("(be64(%s) << %d | be8(%s) >> %d)%s", f.ptr(e.Off), 8-tail, f.ptr(plus(e.Off, 8)), tail,
			masked(e.Bits))
	}
	s := f.gather(e.Off, n, false)
	shift := 8*n - e.Bit - e.Bits
	if shift == 0 && e.Bit == 0 {
		return s
	}
	if shift > 0 {
		s += fmt.Sprintf(" >> %d", shift)
		if e.Bit > 0 {
			s = "(" + s + ")"
		}
	}
	if e.Bit > 0 {
		s += masked(e.Bits)
	}
	return "(" + s + ")"
}

func masked(n int) string {
	if n >= 64 {
		return ""
	}
	return " & " + number(1<<n-1)
}

// gather reads n bytes as an integer, in as few loads as there are.
func (f *function) gather(o ir.Off, n int, little bool) string {
	out := ""
	for done := 0; done < n; {
		size := 1 << (bits.Len(uint(n-done)) - 1)
		at, shift := f.ptr(plus(o, done)), 8*(n-done-size)
		s := fmt.Sprintf("be%d(%s)", size*8, at)
		if little {
			s, shift = fmt.Sprintf("(__u64)ld%d(%s)", size*8, at), 8*done
		}
		if shift > 0 {
			s = fmt.Sprintf("%s << %d", s, shift)
		}
		if out != "" {
			out += " | "
		}
		out += s
		done += size
	}
	if n&(n-1) != 0 {
		return "(" + out + ")"
	}
	return out
}

// sum renders whether the sum of a part of the packet is that of bytes with their checksum.
func (f *function) sum(e *ir.SumOK) string {
	s := ""
	if e.Whole {
		return f.wholeSum(e)
	}
	if e.Size != nil {
		return fmt.Sprintf("fr_sum_ok(%s(skb, %s, %s))", f.sumOf(e.Len), f.offset(e.Off), f.expr(e.Size))
	}
	for done := 0; done < e.Len; {
		size := min(4, 1<<(bits.Len(uint(e.Len-done))-1))
		if s != "" {
			s += " + "
		} else {
			s += "(__u64)"
		}
		s += fmt.Sprintf("ld%d(%s)", size*8, f.ptr(plus(e.Off, done)))
		done += size
	}
	return "fr_sum_ok(" + s + ")"
}

// byteString is a value of a fixed number of bytes, as something to load pieces from.
type byteString struct {
	size  int
	mem   string         // a pointer to the bytes; or
	ro    bool           // which are read-only data, that clang must not take for constants
	fixed []byte         // the bytes; or
	v4    string         // a pointer to an IPv4 address, which stands for its mapped form; or
	cond  string         // a condition, and
	sides [2]*byteString // what it is where the condition holds, and else
}

var mapped = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// load reads size bytes at off as they lie in memory.
func (b byteString) load(off, size int) string {
	switch {
	case b.cond != "":
		return fmt.Sprintf("(%s ? %s : %s)", b.cond, b.sides[0].load(off, size), b.sides[1].load(off, size))
	case b.fixed != nil:
		return number(littleEndian(b.fixed[off : off+size]))
	case b.v4 != "" && off+size <= 12:
		return number(littleEndian(mapped[off : off+size]))
	case b.v4 != "" && off >= 12:
		return fmt.Sprintf("ld%d(%s)", size*8, offset(b.v4, off-12))
	case b.v4 != "" && off == 8 && size == 8:
		return fmt.Sprintf("((__u64)ld32(%s) << 32 | 0xffff0000ULL)", b.v4)
	}
	if b.ro {
		return fmt.Sprintf("ldv%d(%s)", size*8, offset(b.mem, off))
	}
	return fmt.Sprintf("ld%d(%s)", size*8, offset(b.mem, off))
}

// ipv4 reads the IPv4 address that is meant by an address of 16 bytes.
func (b byteString) ipv4() string {
	switch {
	case b.cond != "":
		return fmt.Sprintf("(%s ? %s : %s)", b.cond, b.sides[0].ipv4(), b.sides[1].ipv4())
	case b.mem != "" && b.ro:
		return fmt.Sprintf("fr_setting_v4(%s)", b.mem)
	case b.mem != "":
		return fmt.Sprintf("fr_v4(%s)", b.mem)
	}
	return b.load(12, 4)
}

func offset(p string, n int) string {
	if n == 0 {
		return p
	}
	return fmt.Sprintf("%s + %d", p, n)
}

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
		return byteString{size: e.Var.Type.Size, mem: "(void *)" + f.variable(e.Var)}
	case *ir.SettingRef:
		return byteString{size: e.Setting.Type.Size, mem: abi.SettingPrefix + ident(e.Setting.Name), ro: true}
	case *ir.Pick:
		then, other := f.bytes(e.Then), f.bytes(e.Else)
		return byteString{size: then.size, cond: f.operand(e.If), sides: [2]*byteString{&then, &other}}
	case *ir.RowMember:
		s := f.member(e)
		size := e.Type().Size
		switch {
		case e.Part == ir.PartAddr:
			s += ".addr"
		case !e.Type().Plain():
			s = "(void *)&" + s
		}
		return byteString{size: size, mem: s}
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

func (f *function) bytesEq(x, y byteString) string {
	if x.size != y.size {
		f.fail("byte strings of %d and %d bytes are compared", x.size, y.size)
		return "0"
	}
	s, off := "", 0
	for _, n := range pieces(0, x.size) {
		if s != "" {
			s += " && "
		}
		s += fmt.Sprintf("%s == %s", x.load(off, n), y.load(off, n))
		off += n
	}
	return s
}

func (f *function) isV4(b byteString) string {
	switch {
	case b.v4 != "":
		return "1"
	case b.fixed != nil:
		if string(b.fixed[:12]) == string(mapped) {
			return "1"
		}
		return "0"
	}
	if b.ro {
		return fmt.Sprintf("%s == 0 && %s == 0xffff0000", b.load(0, 8), b.load(8, 4))
	}
	return fmt.Sprintf("fr_is_v4(%s)", b.mem)
}

// addressIs renders a question about an address of a family that is known, or of either.
func (f *function) addressIs(what string, b byteString) string {
	switch {
	case b.v4 != "":
		return fmt.Sprintf("fr_%s_v4(ld32(%s))", what, b.v4)
	case b.mem != "" && !b.ro:
		return fmt.Sprintf("fr_%s(%s)", what, b.mem)
	}
	f.fail("no C for whether this address is %s", what)
	return "0"
}

func (f *function) inPrefix(e *ir.InPrefix) string {
	b := f.bytes(e.X)
	p := e.Prefix.Masked().Addr().As16()
	s := ""
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
			term = fmt.Sprintf("(%s & %s)", term, number(mask))
		}
		if s != "" {
			s += " && "
		}
		s += fmt.Sprintf("%s == %s", term, number(want))
	}
	if s == "" {
		return "1"
	}
	return s
}
