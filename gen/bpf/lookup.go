package bpf

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Keys and values on the stack, and the rows that they are of.

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
	for i, mv := range values {
		m := mv.Member
		off, name := m.Off, p.access+member(m)
		if i+1 < len(values) && f.endpoint(p, mv, values[i+1], pos) || i > 0 && f.isEndpoint(p, values[i-1], mv) {
			continue
		}
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

// isEndpoint reports whether two values are the address and the port of one member, which is filled in at once.
func (f *function) isEndpoint(p inMemory, addr, port ir.MemberValue) bool {
	if p.dirty || addr.Member != port.Member || addr.Part != ir.PartAddr || port.Part != ir.PartPort {
		return false
	}
	b := f.bytes(addr.Value)
	return b.v4 != "" || b.size == 16 && b.mem != "" && !b.ro
}

// endpoint fills in a member by an address and a port, and reports whether it did.
func (f *function) endpoint(p inMemory, addr, port ir.MemberValue, pos diag.Pos) bool {
	if !f.isEndpoint(p, addr, port) {
		return false
	}
	name, b := "&"+p.access+member(addr.Member), f.bytes(addr.Value)
	if b.v4 != "" {
		f.stmt(pos, "fr_put_endpoint_v4(%s, ld32(%s), %s);", name, b.v4, f.expr(port.Value))
	} else {
		f.stmt(pos, "fr_put_endpoint_v6(%s, %s, %s, %d);", name, b.mem, f.expr(port.Value), addr.Member.Off%8)
	}
	return true
}

// fills reports whether values leave no byte of a large structure as it was, but those between its members: zeros in
// front of the values would be stores that have no effect. Where the stack is used for several keys, they save the
// verifier from telling apart what was there before.
func (f *function) fills(s *ir.Struct, values []ir.MemberValue) bool {
	return f.prog.lookups == 1 && s.Size > 16 && !slices.ContainsFunc(values, func(mv ir.MemberValue) bool {
		return mv.Value.Type().IsBytes() && f.bytes(mv.Value).v4 != "" // what is zero of such an address isn't written
	})
}

// pad clears what is between the members of a structure.
func (f *function) pad(p inMemory, s *ir.Struct, pos diag.Pos) {
	end, pads := 0, 0
	for _, m := range append(slices.Clone(s.Members), &ir.Member{Off: s.Size}) {
		if m.Off > end {
			name := fmt.Sprintf("%spad%d", p.access, pads)
			f.stmt(pos, "__builtin_memset(%s, 0, sizeof(%s));", name, name)
			pads++
		}
		end = m.Off + m.Type.Size
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
	rowAt := strconv.Itoa(f.rowsAt[s.Row])
	if f.prog.flow && copied(t) {
		at := f.names.own("here_" + f.row(s.Row))
		init := ""
		if s.Row.Optional { // where there is no row, clang may keep what was never written, which the verifier refuses
			init = " = {}"
		}
		f.line("struct %s %s%s;", f.vals[t], at, init)
		f.line("%s = &%s;", f.row(s.Row), at)
		rowAt = "FR_ON_STACK"
	}
	scope := f.prog.lookups > 1 || f.turn != nil // the stack is used again after it
	if scope {
		f.line("{")
		f.indent++
	}
	if t.Kind == "array" {
		key := "0"
		for _, mv := range s.Key {
			key = f.expr(mv.Value)
		}
		f.stmt(s.Pos, "__u32 key = %s;", key)
		f.line("")
	} else {
		zeroed := " = {}"
		if f.fills(&t.Key, s.Key) {
			zeroed = ""
		}
		f.stmt(s.Pos, "struct %s key __attribute__((aligned(8)))%s;", f.keys[t], zeroed)
		f.line("")
		f.members(onStack("key"), s.Key, s.Pos)
		if zeroed == "" {
			f.pad(onStack("key"), &t.Key, s.Pos)
		}
	}
	args := "&key"
	if !copied(t) {
		f.stmt(s.Pos, "%s = find_%s(%s);", f.row(s.Row), ident(t.Name), args)
	} else {
		f.leased = true
		args += fmt.Sprintf(", lease, %s, &%s", rowAt, f.row(s.Row))
		if t.Bound() {
			f.usesNow()
			args += ", now"
		}
		f.stmt(s.Pos, "enum fr_found found = find_%s(%s);", ident(t.Name), args)
		if !s.Row.Optional && f.turn == nil {
			f.stopIf(s.Pos, "found != FR_FOUND", nil, f.missed(f.prog.reasonName(s.Miss),
				f.prog.reasonName(s.Changing)))
			if scope {
				f.indent--
				f.line("}")
			}
			return
		}
		f.unless(s.Pos, "unlikely(found == FR_CHANGING)", s.Changing)
		f.stmt(s.Pos, "if (found == FR_MISSING)")
		f.stmt(s.Pos, "\t%s = NULL;", f.row(s.Row))
	}
	if scope {
		f.indent--
		f.line("}")
	}
	if !s.Row.Optional {
		f.unless(s.Pos, fmt.Sprintf("!%s", f.row(s.Row)), s.Miss)
	}
}

// missed is the statement by which a packet passes to the stack because there is no row.
func (f *function) missed(missing, changing string) string {
	if f.prog.flow {
		return f.stop(fmt.Sprintf("fr_unfound(found, %s, %s)", missing, changing))
	}
	return fmt.Sprintf("return fr_missed(skb, found, %s, %s);", missing, changing)
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
