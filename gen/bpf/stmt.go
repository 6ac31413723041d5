package bpf

import (
	"fmt"
	"maps"
	"math/bits"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// The statements that decide. Each is one line of C where it can be, so that one #line attributes it.

// block renders statements, and reports whether they end the packet's way.
func (f *function) block(stmts []ir.Stmt) bool {
	for i := 0; i < len(stmts); i++ {
		s := stmts[i]
		if i > 0 && f.long(stmts[i:]) {
			f.gap()
			name := restName
			if header, ok := s.(*ir.NeedBytes); ok && header.Part != nil {
				name = header.Part.Header
			}
			f.stmt(ir.Pos(s), "return %s;", f.goOn(name, stmts[i:]))
			return true
		}
		if n := f.check(stmts[i:]); n > 0 {
			i += n - 1
			continue
		}
		if n := f.guards(stmts[i:]); n > 1 {
			f.guard(stmts[i : i+n])
			i += n - 1
			continue
		}
		if f.statement(s, stmts[i+1:]) {
			return true
		}
	}
	return false
}

// guards is the number of guards that a block begins with which are one condition in C: they have one reason, and come
// from one line of the spec, or from the standard headers.
func (f *function) guards(stmts []ir.Stmt) (n int) {
	for _, s := range stmts {
		g, ok := s.(*ir.Guard)
		if !ok {
			break
		}
		if first := stmts[0].(*ir.Guard); g.Reason != first.Reason || g.Pos.File != first.Pos.File ||
			g.Pos.Line != first.Pos.Line && g.Pos.File == f.plan.Pos.File {
			break
		}
		n++
	}
	return n
}

// guard renders guards that have one reason.
func (f *function) guard(guards []ir.Stmt) {
	first := guards[0].(*ir.Guard)
	f.quote(first.Pos)
	for _, s := range guards {
		f.cover(first.Pos, s.(*ir.Guard).Cond)
	}
	var conds []string
	for _, s := range guards {
		g := s.(*ir.Guard)
		cond := f.negated(g.Cond)
		if len(guards) > 1 && strings.Contains(cond, " && ") {
			cond = "(" + cond + ")"
		}
		conds = append(conds, cond)
		if b, ok := g.Cond.(*ir.Bin); ok && b.Op == ir.Eq && isMeta(b.X, ir.GSOSize) && isZero(b.Y) {
			f.known.plain = true
		}
	}
	f.unless(first.Pos, strings.Join(conds, " || "), first.Reason)
}

// statement renders one statement; rest are those after it in the block. It reports whether it is a terminal.
func (f *function) statement(s ir.Stmt, rest []ir.Stmt) bool {
	switch s := s.(type) {
	case *ir.NeedBytes:
		f.quote(s.Pos)
		f.reason = f.prog.reasonName(s.Reason)
		if s.Part != nil {
			f.scope = append(f.scope[:len(f.scope):len(f.scope)], s.Part)
			if v := s.Part.At.Base; v != nil && !f.pointer(v, f.reason, s.Pos) {
				f.pointsTo(v, s.Part)
			} else if v != nil {
				f.known.bytes[v] = 0
			}
		}
		f.need(s.End, f.reason, s.Pos)
	case *ir.Let:
		if !f.prog.read.vars[s.Var] {
			return false
		}
		f.quote(s.Pos)
		f.let(s)
	case *ir.Guard:
		f.guard([]ir.Stmt{s})
	case *ir.If:
		return f.branch(s)
	case *ir.ReadVarint:
		f.quote(s.Pos)
		if s.At.Base != nil {
			f.pointer(s.At.Base, f.prog.reasonName(s.Reason), s.Pos)
			if _, ok := f.known.bytes[s.At.Base]; !ok {
				f.known.bytes[s.At.Base] = 0
			}
		}
		f.usesData()
		f.dataEnd = true
		if !f.declared[s.Value] {
			f.variable(s.Value)
			f.stmt(s.Pos, "%s;", f.declare(s.Value))
		}
		f.stmt(s.Pos, "%s = fr_varint(%s, data_end, &%s);", f.set(s.Size), f.place(s.At), f.variable(s.Value))
		f.unless(s.Pos, fmt.Sprintf("!%s", f.variable(s.Size)), s.Reason)
	case *ir.ReadUint:
		f.readUint(s)
	case *ir.Lookup:
		f.lookup(s)
	case *ir.Count:
		f.quote(s.Pos)
		f.cover(s.Pos, s.By)
		f.counter(s)
	case *ir.Learn:
		f.cover(s.Pos, s)
		f.learn(s, nil)
	case *ir.CheckHop:
		f.checkHop(s, rest)
	case *ir.Up:
		f.quote(s.Pos)
		f.stmt(s.Pos, "%s", f.up(s.Reason))
		return true
	case *ir.Translate:
		f.translate(s)
	case *ir.FindElement:
		f.findElement(s)
	case *ir.Drop:
		f.drop(s)
		return true
	case *ir.Forward:
		f.forward(s)
		return true
	case *ir.FanOut:
		f.fanOut(s)
		return true
	case *ir.Copy:
		f.copy(s)
		return true
	case *ir.Skip:
		f.quote(s.Pos)
		f.stmt(s.Pos, "%s", f.up(s.Reason))
		return true
	default:
		f.fail("no C for statement %T", s)
	}
	return false
}

// readUint reads an integer of variable size: the lower part of the word that ends where it does, so that the verifier
// has one way to follow, whatever the size.
func (f *function) readUint(s *ir.ReadUint) {
	f.quote(s.Pos)
	f.dataEnd = true
	if !f.declared[s.Value] {
		f.variable(s.Value)
		f.stmt(s.Pos, "%s;", f.declare(s.Value))
	}
	n := wordSize(s.Max)
	read := fmt.Sprintf("fr_uint(%s, data_end, %d, %s, &%s)", f.word(f.offset(plus(s.End, -n)), s.End.Base.Max), n,
		f.variable(s.Size), f.variable(s.Value))
	f.stopIf(s.Pos, "!"+read, nil, fmt.Sprintf("return fr_up(skb, %s);", f.reason))
}

// word is a place in the packet, of at most limit, as a pointer.
func (f *function) word(place string, limit uint64) string {
	return fmt.Sprintf("fr_pin(%s + fr_bound(%s, 0x%x))", f.usesData(), place, uint64(1)<<bits.Len64(limit)-1)
}

// wordSize is the size of the word that has room for n bytes.
func wordSize(n int) int { return 1 << bits.Len(uint(n-1)) }

// counter adds to a counter.
func (f *function) counter(s *ir.Count) {
	if s.Counter != nil {
		f.stmt(s.Pos, "fr_named_add(%d, %s);", s.Counter.Index, f.expr(s.By))
	} else {
		f.stmt(s.Pos, "fr_shared_add(%s->%s, %s);", f.row(s.Row), member(s.Member), f.expr(s.By))
	}
}

func (f *function) drop(s *ir.Drop) {
	f.quote(s.Pos)
	f.cover(s.Pos, &s.Effects)
	e := f.effects(&s.Effects)
	e.before()
	e.after()
	f.stmt(s.Pos, "return fr_drop(skb->len, %s);", f.prog.reasonName(s.Reason))
}

func isMeta(e ir.Expr, k ir.MetaKind) bool {
	m, ok := e.(*ir.Meta)
	return ok && m.Kind == k
}

func isZero(e ir.Expr) bool {
	c, ok := e.(*ir.Const)
	return ok && c.V == 0
}

var opposite = map[ir.BinOp]ir.BinOp{ir.Eq: ir.Ne, ir.Ne: ir.Eq, ir.Lt: ir.Ge, ir.Ge: ir.Lt, ir.Gt: ir.Le, ir.Le: ir.Gt}

// negated renders the opposite of a condition.
func (f *function) negated(e ir.Expr) string {
	switch e := e.(type) {
	case *ir.Not:
		return f.expr(e.X)
	case *ir.Bin:
		if op, ok := opposite[e.Op]; ok {
			return f.expr(&ir.Bin{Op: op, X: e.X, Y: e.Y})
		}
	}
	return "!" + f.operand(e)
}

func (f *function) let(s *ir.Let) {
	f.cover(s.Pos, s.Value)
	if isMeta(s.Value, ir.Partial) {
		f.known.partial = s.Var
	}
	if s.Var.Type.IsBytes() {
		if !f.declared[s.Var] {
			f.variable(s.Var)
			f.stmt(s.Pos, "%s;", f.declare(s.Var))
		}
		f.store("(void *)"+f.variable(s.Var), 0, f.bytes(s.Value), s.Pos)
		return
	}
	value := f.expr(s.Value)
	if f.prog.read.places[s.Var] && s.Var.Max > 0 && s.Var.Max <= maxForgotten {
		value = fmt.Sprintf("fr_forget(skb, %s)", value)
	}
	f.stmt(s.Pos, "%s = %s;", f.set(s.Var), value)
}

// maxForgotten is the largest place that fr_forget takes.
const maxForgotten = 0xFFF

// store writes a byte string to the stack at off bytes after an aligned place.
func (f *function) store(p string, off int, b byteString, pos diag.Pos) {
	done := 0
	for _, n := range pieces(off, b.size) {
		f.stmt(pos, "st%d(%s, %s);", n*8, offset(p, off+done), b.load(done, n))
		done += n
	}
}

func (f *function) branch(s *ir.If) bool {
	f.quote(s.Pos)
	f.cover(s.Pos, s.Cond)
	note := ""
	if s.Note != "" {
		note = " /* " + comment(s.Note) + " */"
	}
	last, declared := f.last, maps.Clone(f.declared)
	rows, scope := maps.Clone(f.rowsDeclared), f.scope
	defer func() { f.last = last }()
	thenEnds := ends(s.Then)
	before := f.known.clone()
	if f.last = thenEnds; thenEnds && size(s.Then) >= branchSize {
		f.stmt(s.Pos, "if (%s)", f.expr(s.Cond))
		f.indent++
		name := s.Note
		if name == "" {
			name = "branch"
		}
		f.stmt(s.Pos, "return %s;", f.goOn(name, s.Then))
		f.indent--
		f.known = before
		if len(s.Else) == 0 {
			return false
		}
		f.last = last || ends(s.Else)
		return f.block(s.Else)
	}
	if !thenEnds {
		f.declares(s.Then, s.Else)
		declared, rows = maps.Clone(f.declared), maps.Clone(f.rowsDeclared)
	}
	f.stmt(s.Pos, "if (%s) {%s", f.expr(s.Cond), note)
	f.indent++
	f.block(s.Then)
	f.indent--
	then := f.known
	f.known, f.declared, f.rowsDeclared, f.scope = before, declared, rows, scope
	f.last = last
	if len(s.Else) == 0 {
		f.line("}")
		if !thenEnds {
			f.known = before.both(then)
		}
		return false
	}
	if thenEnds { // no else after a return
		f.line("}")
		return f.block(s.Else)
	}
	f.line("} else {")
	f.indent++
	f.last = ends(s.Else)
	elseEnds := f.block(s.Else)
	f.indent--
	f.scope = scope
	f.line("}")
	switch {
	case elseEnds:
		f.known = then
	default:
		f.known = f.known.both(then)
	}
	return false
}

// inMemory is how a structure is accessed that is aligned to 8 bytes.
type inMemory struct {
	access  string // what stands in front of a member's name
	address string // a pointer to its first byte
	dirty   bool   // it isn't zeroed
}

// onStack is a structure on the stack, which was declared zeroed.
func onStack(name string) inMemory {
	return inMemory{access: name + ".", address: "(void *)&" + name}
}

// members fills in a key, a value or a record.
func (f *function) members(p inMemory, values []ir.MemberValue, pos diag.Pos) {
	for _, mv := range values {
		m := mv.Member
		off, name := m.Off, p.access+member(m)
		switch {
		case mv.Part == ir.PartPort:
			f.stmt(pos, "%s.port = %s;", name, f.expr(mv.Value))
			continue
		case m.Type.Kind == ir.Prefix:
			f.stmt(pos, "%s.len = 128;", name)
			off, name = off+4, name+".addr"
		case mv.Part == ir.PartAddr:
			name += ".addr"
		}
		if !mv.Value.Type().IsBytes() {
			f.stmt(pos, "%s = %s;", name, f.expr(mv.Value))
			continue
		}
		b := f.bytes(mv.Value)
		switch {
		case b.size == 16 && b.mem != "" && !b.ro && !p.dirty:
			f.stmt(pos, "fr_put_v6(%s, %s, %d);", name, b.mem, off%8)
		case b.v4 != "":
			if p.dirty {
				f.zero(p, off, 10, pos)
			}
			f.stmt(pos, "fr_put_v4(%s, ld32(%s));", name, b.v4)
		default:
			f.store(p.address, off, b, pos)
		}
	}
}

// zero clears n bytes.
func (f *function) zero(p inMemory, off, n int, pos diag.Pos) {
	for _, size := range pieces(off, n) {
		f.stmt(pos, "st%d(%s, 0);", size*8, offset(p.address, off))
		off += size
	}
}

func (f *function) lookup(s *ir.Lookup) {
	f.quote(s.Pos)
	f.cover(s.Pos, s)
	t := s.Row.Table
	f.declareRow(s.Row)
	place := strconv.Itoa(f.places[s.Row])
	if f.prog.flow && copied(t) {
		at := f.names.own("here_" + f.row(s.Row))
		init := ""
		if s.Row.Optional { // where there is no row, clang may keep what was never written, which the verifier refuses
			init = " = {}"
		}
		f.line("struct %s %s%s;", f.vals[t], at, init)
		f.line("%s = &%s;", f.row(s.Row), at)
		place = "FR_ON_STACK"
	}
	f.line("{")
	f.indent++
	if t.Kind == "array" {
		key := "0"
		for _, mv := range s.Key {
			key = f.expr(mv.Value)
		}
		f.stmt(s.Pos, "__u32 key = %s;", key)
	} else {
		f.stmt(s.Pos, "struct %s key __attribute__((aligned(8))) = {};", f.keys[t])
	}
	f.line("")
	if t.Kind != "array" {
		f.members(onStack("key"), s.Key, s.Pos)
	}
	args := "&key"
	if !copied(t) {
		f.stmt(s.Pos, "%s = find_%s(%s);", f.row(s.Row), ident(t.Name), args)
	} else {
		f.leased = true
		args += fmt.Sprintf(", lease, %s, &%s", place, f.row(s.Row))
		if t.Session != nil {
			f.usesNow()
			args += ", now"
		}
		f.stmt(s.Pos, "enum fr_found found = find_%s(%s);", ident(t.Name), args)
		if !s.Row.Optional && f.turn == nil {
			f.stopIf(s.Pos, "found != FR_FOUND", nil, f.upFor(fmt.Sprintf("fr_unfound(found, %s, %s)",
				f.prog.reasonName(s.Miss), f.prog.reasonName(s.Changing))))
			f.indent--
			f.line("}")
			return
		}
		f.unless(s.Pos, "unlikely(found == FR_CHANGING)", s.Changing)
		f.stmt(s.Pos, "if (found == FR_MISSING)")
		f.stmt(s.Pos, "\t%s = NULL;", f.row(s.Row))
	}
	f.indent--
	f.line("}")
	if !s.Row.Optional {
		f.unless(s.Pos, fmt.Sprintf("!%s", f.row(s.Row)), s.Miss)
	}
}

// learn inserts a row; where it can't, undo is given back.
func (f *function) learn(s *ir.Learn, undo []string) {
	f.quote(s.Pos)
	f.line("{")
	f.indent++
	f.stmt(s.Pos, "struct %s key __attribute__((aligned(8))) = {};", f.keys[s.Table])
	f.stmt(s.Pos, "struct %s val __attribute__((aligned(8))) = {};", f.vals[s.Table])
	f.line("")
	f.members(onStack("key"), s.Key, s.Pos)
	f.members(onStack("val"), s.Value, s.Pos)
	if i, ok := f.learned[s.Table]; ok {
		f.stmt(s.Pos, "fr_learning(%d);", i)
	}
	f.stopIf(s.Pos, fmt.Sprintf("bpf_map_update_elem(&tbl_%s, &key, &val, BPF_ANY)", ident(s.Table.Name)), undo,
		f.up(s.Full))
	f.indent--
	f.line("}")
}
