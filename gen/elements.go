package gen

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what expressions ask of lists of elements, such as those of RFC 8285: each list is searched once
// for each identifier.

// list is a list of elements that was searched for an identifier.
type list struct {
	found, value *ir.Var
}

// searches emits the search of every list for every identifier that the program asks for.
func (s *scope) searches(blk *[]ir.Stmt) {
exprs:
	for e := range s.p.names.Spec.Exprs(s.p.src) {
		if e.Op != spec.OpCall || e.Fn.Value != "has" && e.Fn.Value != "element" || len(e.Args) < 2 {
			continue
		}
		pl := s.elements(e.Args[0])
		key := searchKey(e)
		if _, done := s.lists[key]; done || pl == nil {
			continue
		}
		quiet := *s
		quiet.quiet = true // what is wrong with it is reported where it is used
		id, ok := quiet.integer(e.Args[1])
		if !ok {
			continue
		}
		name := pl.parent.entry + "_" + pl.f.Name.Value
		l := &list{
			found: s.p.newVar(name+"_found", ir.BoolType, 1),
			value: s.p.newVar(name+"_element", ir.UintType(64), 0),
		}
		find := &ir.FindElement{
			Found: l.found, Value: l.value, Len: s.p.newVar(name+"_len", ir.UintType(64), uint64(pl.f.Max)),
			At: pl.off, Size: pl.size, SizeMax: pl.f.Max, ID: id.x, Pos: e.Pos,
		}
		inside := &scope{p: s.p, path: s.upTo(pl.parent), self: pl.parent}
		for _, el := range pl.f.Elements {
			form := ir.ElementForm{IDBits: el.ID, LenBits: el.Len, Bias: el.Bias, Pad: el.Pad, Stop: el.Stop}
			if el.When != nil {
				if form.When, ok = inside.cond(el.When); !ok {
					continue exprs
				}
			}
			find.Forms = append(find.Forms, form)
		}
		s.lists[key] = l
		emit(blk, find)
	}
}

func searchKey(e *spec.Expr) string { return exprKey(e.Args[0]) + " " + exprKey(e.Args[1]) }

// exprKey is the same for expressions that say the same.
func exprKey(e *spec.Expr) string {
	key := fmt.Sprint(e.Op, e.Int, e.Fn.Value)
	for _, n := range e.Path {
		key += "." + n.Value
	}
	for _, a := range e.Args {
		key += "(" + exprKey(a) + ")"
	}
	return key
}

// elements returns the field with a list of elements that an expression names, where this path has it.
func (s *scope) elements(e *spec.Expr) *fieldRef {
	if e.Op != spec.OpName || len(e.Path) != 2 {
		return nil
	}
	in, _ := s.find(e.Path[0].Value)
	if in == nil {
		return nil
	}
	pl := in.fields[e.Path[1].Value]
	if pl == nil || len(pl.f.Elements) == 0 {
		return nil
	}
	return pl
}

// has is has(HEADER.LIST, ID): whether the list has an element with the identifier.
func (s *scope) has(e *spec.Expr) (val, bool) {
	l, ok := s.searched(e)
	if !ok || l == nil {
		return val{t: ir.BoolType, x: fold.Bool(false), pos: e.Pos}, ok
	}
	return val{t: ir.BoolType, x: &ir.VarRef{Var: l.found}, pos: e.Pos}, true
}

// element is element(HEADER.LIST, ID, N): byte N of the element with the identifier, 0 where there is none.
func (s *scope) element(e *spec.Expr) (val, bool) {
	n := e.Args[2].Int
	if e.Args[2].Op != spec.OpInt || n > 7 {
		s.fail(code.Elements, e.Args[2].Pos, "which byte of an element is a constant from 0 to 7")
		return val{}, false
	}
	l, ok := s.searched(e)
	if !ok || l == nil {
		return val{t: ir.UintType(8), x: fold.Num(0), max: 255, pos: e.Pos}, ok
	}
	x := fold.Bin(ir.And, fold.Bin(ir.Shr, &ir.VarRef{Var: l.value}, fold.Num(56-8*n)), fold.Num(0xFF))
	return val{t: ir.UintType(8), x: x, max: 255, pos: e.Pos}, true
}

// searched is the list that a call asks; nil where this path has none.
func (s *scope) searched(e *spec.Expr) (*list, bool) {
	if l := s.lists[searchKey(e)]; l != nil {
		return l, true
	}
	if e.Args[0].Op == spec.OpName && len(e.Args[0].Path) == 2 {
		if in, known := s.find(e.Args[0].Path[0].Value); in == nil && known { // not on this path
			return nil, true
		}
	}
	if s.elements(e.Args[0]) == nil {
		s.fail(code.Elements, e.Args[0].Pos, "this is no field with elements")
	} else if _, ok := s.integer(e.Args[1]); ok {
		s.fail(code.Elements, e.Args[1].Pos, "the identifier can't come from a table or a name: lists are searched "+
			"before tables")
	}
	return nil, false
}
