package bpf

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Keys and values on the stack, and the rows that they are of.

// inMemory is how a structure is accessed that is aligned to 8 bytes.
type inMemory struct {
	members func(name string) c.Expr // each by its name
	address c.Expr                   // a pointer to its first byte
	dirty   bool                     // it isn't zeroed
}

// onStack is a structure on the stack, which was declared zeroed.
func onStack(at c.Name) inMemory {
	return inMemory{func(member string) c.Expr { return c.In(at, member) }, untyped(c.Address(at)), false}
}

// members fills in a key, a value or a record.
func (f *function) members(p inMemory, values []ir.MemberValue, pos diag.Pos) {
	for i, mv := range values {
		m := mv.Member
		off, at := m.Off, p.members(member(m))
		if i+1 < len(values) && f.endpoint(p, mv, values[i+1], pos) || i > 0 && f.isEndpoint(p, values[i-1], mv) {
			continue
		}
		switch {
		case mv.Component == ir.PortOf:
			f.assign(pos, c.In(at, "port"), f.expr(mv.Value))
			continue
		case m.Type.Kind == ir.Prefix:
			f.assign(pos, c.In(at, "len"), c.Dec(128))
			off, at = off+4, c.In(at, "addr")
		case mv.Component == ir.AddrOf:
			at = c.In(at, "addr")
		}
		if !mv.Value.Type().IsBytes() {
			f.assign(pos, at, f.expr(mv.Value))
			continue
		}
		b := f.bytes(mv.Value)
		switch {
		case b.size == 16 && b.mem != nil && !b.ro && !p.dirty:
			f.do(pos, "fr_put_v6", at, b.mem, c.Dec(off%8))
		case b.v4 != nil:
			if p.dirty {
				f.zero(p, off, 10, pos)
			}
			f.do(pos, "fr_put_v4", at, c.Bytes("ld", 4, b.v4))
		default:
			f.store(p.address, off, b, pos)
		}
	}
}

// isEndpoint reports whether two values are the address and the port of one member, which is filled in at once.
func (f *function) isEndpoint(p inMemory, addr, port ir.MemberValue) bool {
	if p.dirty || addr.Member != port.Member || addr.Component != ir.AddrOf || port.Component != ir.PortOf {
		return false
	}
	b := f.bytes(addr.Value)
	return b.v4 != nil || b.size == 16 && b.mem != nil && !b.ro
}

// endpoint fills in a member by an address and a port, and reports whether it did.
func (f *function) endpoint(p inMemory, addr, port ir.MemberValue, pos diag.Pos) bool {
	if !f.isEndpoint(p, addr, port) {
		return false
	}
	at, b := c.Address(p.members(member(addr.Member))), f.bytes(addr.Value)
	if b.v4 != nil {
		f.do(pos, "fr_put_endpoint_v4", at, c.Bytes("ld", 4, b.v4), f.expr(port.Value))
	} else {
		f.do(pos, "fr_put_endpoint_v6", at, b.mem, f.expr(port.Value), c.Dec(addr.Member.Off%8))
	}
	return true
}

// fills reports whether values leave no byte of a large structure as it was, but those between its members: zeros in
// front of the values would be stores that have no effect. If the stack is used for several keys, they save the
// verifier from telling apart what was there before.
func (f *function) fills(s *ir.Struct, values []ir.MemberValue) bool {
	return f.prog.lookups == 1 && s.Size > 16 && !slices.ContainsFunc(values, func(mv ir.MemberValue) bool {
		return mv.Value.Type().IsBytes() && f.bytes(mv.Value).v4 != nil // what is zero of such an address isn't written
	})
}

// pad clears what is between the members of a structure.
func (f *function) pad(p inMemory, s *ir.Struct, pos diag.Pos) {
	end, pads := 0, 0
	for _, m := range append(slices.Clone(s.Members), &ir.Member{Off: s.Size}) {
		if m.Off > end {
			at := p.members(fmt.Sprint("pad", pads))
			f.do(pos, "__builtin_memset", at, c.Num(0), c.Do("sizeof", at))
			pads++
		}
		end = m.Off + m.Type.Size
	}
}

// zero clears n bytes.
func (f *function) zero(p inMemory, off, n int, pos diag.Pos) {
	for _, size := range pieces(off, n) {
		f.add(&c.Eval{Pos: pos, X: c.Bytes("st", size, c.Plus(p.address, off), c.Num(0))})
		off += size
	}
}

// keyName is the name of a key on the stack.
const keyName = c.Ident("key")

// zeroed declares a structure on the stack, all bytes of which are 0, or (init: nil) aren't.
func (f *function) zeroed(pos diag.Pos, typ string, name c.Name, init c.Expr) {
	f.add(&c.Declare{Pos: pos, Type: c.StructType(typ), Vars: []c.Var{
		{Name: name, Tail: " __attribute__((aligned(8)))", Init: init},
	}})
}

func (f *function) lookup(s *ir.Lookup) {
	f.quote(s.Pos)
	f.cover(s.Pos, s)
	t, row := s.Row.Table, f.row(s.Row)
	f.declareRow(s.Row)
	rowAt := c.Dec(f.rowsAt[s.Row])
	if f.prog.flow && copied(t) {
		at := own("here_"+row.Want, "")
		var init c.Expr
		if s.Row.Optional { // if there is no row, clang may keep what was never written, which the verifier refuses
			init = c.Init{}
		}
		f.define(noPos, c.StructType(f.vals[t]), at, init)
		f.assign(noPos, row, c.Address(at))
		rowAt = c.Ident("FR_ON_STACK")
	}
	find := func() { f.lookupRow(s, row, rowAt) }
	if f.prog.lookups > 1 || f.turn != nil { // the stack is used again after it
		f.scoped(find)
	} else {
		find()
	}
	if !s.Row.Optional && (!copied(t) || f.turn != nil) {
		f.unless(s.Pos, c.Not(row), s.Miss)
	}
}

// lookupRow renders the key, and the call that looks the row up.
func (f *function) lookupRow(s *ir.Lookup, row *c.Local, rowAt c.Expr) {
	t := s.Row.Table
	if t.Kind == "array" {
		key := c.Expr(c.Num(0))
		for _, mv := range s.Key {
			key = f.expr(mv.Value)
		}
		f.define(s.Pos, "__u32", keyName, key)
		f.gap()
	} else {
		fills := f.fills(&t.Key, s.Key)
		var init c.Expr
		if !fills {
			init = c.Init{}
		}
		f.zeroed(s.Pos, f.keys[t], keyName, init)
		f.gap()
		f.members(onStack(keyName), s.Key, s.Pos)
		if fills {
			f.pad(onStack(keyName), &t.Key, s.Pos)
		}
	}
	find := "find_" + ident(t.Name)
	if !copied(t) {
		f.assign(s.Pos, row, c.Do(find, c.Address(keyName)))
		return
	}
	args := []c.Expr{c.Address(keyName), lease, rowAt, c.Address(row)}
	if t.Bound() {
		args = append(args, now)
	}
	found := c.Ident("found")
	f.define(s.Pos, "enum fr_found", found, c.Do(find, args...))
	if !s.Row.Optional && f.turn == nil {
		f.stopIf(s.Pos, c.Binary{Op: "!=", X: found, Y: c.Ident("FR_FOUND")}, nil,
			f.missed(found, f.prog.reasonName(s.Miss), f.prog.reasonName(s.Changing)))
		return
	}
	f.unless(s.Pos, c.Unlikely(equals(found, c.Ident("FR_CHANGING"))), s.Changing)
	f.when(s.Pos, equals(found, c.Ident("FR_MISSING")), func() { f.assign(s.Pos, row, c.Ident("NULL")) })
}

// missed is what is returned if a packet passes to the stack because there is no row.
func (f *function) missed(found, missing, changing c.Expr) c.Expr {
	switch {
	case f.prog.ir.ToTC:
		return c.Choice{If: equals(found, c.Ident("FR_MISSING")), Then: missing, Else: changing}
	case f.prog.flow || f.prog.frame():
		return f.stop(c.Do("fr_unfound", found, missing, changing))
	}
	return c.Do("fr_missed", skb, found, missing, changing)
}

// learn inserts a row; if it can't, undo is given back.
func (f *function) learn(s *ir.Learn, undo []c.Expr) {
	f.quote(s.Pos)
	f.scoped(func() {
		val := c.Ident("val")
		f.zeroed(s.Pos, f.keys[s.Table], keyName, c.Init{})
		f.zeroed(s.Pos, f.vals[s.Table], val, c.Init{})
		f.gap()
		f.members(onStack(keyName), s.Key, s.Pos)
		f.members(onStack(val), s.Value, s.Pos)
		if i, ok := f.learned[s.Table]; ok {
			f.do(s.Pos, "fr_learning", c.Dec(i))
		}
		table := c.Ident(abi.TablePrefix + ident(s.Table.Name))
		f.stopIf(s.Pos, c.Do("bpf_map_update_elem", c.Address(table), c.Address(keyName), c.Address(val),
			c.Ident("BPF_ANY")), undo, f.punt(s.Full))
	})
}
