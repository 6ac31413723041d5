package expr

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compiles what expressions ask of lists of elements, such as those of RFC 8285: each list is searched once
// for each identifier.

// List is a list of elements that was searched for an identifier.
type List struct {
	found, value *ir.Var
}

// Searches emits the search of every list for every identifier that the program asks for.
func (s *Scope) Searches(blk *[]ir.Stmt) {
exprs:
	for e := range s.Program.Names.Spec.Exprs(s.Program.Src) {
		if e.Op != spec.OpCall || e.Fn.Value != "has" && e.Fn.Value != "element" || len(e.Args) < 2 {
			continue
		}
		pl := s.elements(e.Args[0])
		key := searchKey(e)
		if _, done := s.Lists[key]; done || pl == nil {
			continue
		}
		quiet := *s
		quiet.Diags = &diag.List{} // what is wrong with it is reported where it is used
		id, ok := quiet.Integer(e.Args[1])
		if !ok {
			continue
		}
		name := pl.Parent.Entry + "_" + pl.Decl.Name.Value
		l := &List{
			found: s.Program.NewVar(name+"_found", ir.BoolType, 1),
			value: s.Program.NewVar(name+"_element", ir.UintType(64), 0),
		}
		find := &ir.FindElement{
			Found: l.found, Value: l.value, Len: s.Program.NewVar(name+"_len", ir.UintType(64), uint64(pl.Decl.Max)),
			At: pl.Off, Size: pl.Size, SizeMax: pl.Decl.Max, ID: id.X, Pos: e.Pos,
		}
		inside := &Scope{Program: s.Program, Path: s.UpTo(pl.Parent), Self: pl.Parent}
		for _, el := range pl.Decl.Elements {
			form := ir.ElementForm{IDBits: el.ID, LenBits: el.Len, Bias: el.Bias, Pad: el.Pad, Stop: el.Stop}
			if el.When != nil {
				if form.When, ok = inside.Cond(el.When); !ok {
					continue exprs
				}
			}
			find.Forms = append(find.Forms, form)
		}
		s.Lists[key] = l
		draft.Emit(blk, find)
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

// elements returns the field with a list of elements that an expression names, if this path has it.
func (s *Scope) elements(e *spec.Expr) *draft.Field {
	if e.Op != spec.OpName || len(e.Path) != 2 {
		return nil
	}
	in, _ := s.Find(e.Path[0].Value)
	if in == nil {
		return nil
	}
	pl := in.Fields[e.Path[1].Value]
	if pl == nil || len(pl.Decl.Elements) == 0 {
		return nil
	}
	return pl
}

// has is has(HEADER.LIST, ID): whether the list has an element with the identifier.
func (s *Scope) has(e *spec.Expr) (Value, bool) {
	l, ok := s.searched(e)
	if !ok || l == nil {
		return Value{Type: ir.BoolType, X: fold.Bool(false), Pos: e.Pos}, ok
	}
	return Value{Type: ir.BoolType, X: &ir.VarRef{Var: l.found}, Pos: e.Pos}, true
}

// element is element(HEADER.LIST, ID, N): byte N of the element with the identifier, 0 if there is none.
func (s *Scope) element(e *spec.Expr) (Value, bool) {
	n := e.Args[2].Int
	if e.Args[2].Op != spec.OpInt || n > 7 {
		s.Fail(code.Elements, e.Args[2].Pos, "which byte of an element is a constant from 0 to 7")
		return Value{}, false
	}
	l, ok := s.searched(e)
	if !ok || l == nil {
		return Value{Type: ir.UintType(8), X: fold.Num(0), Max: 255, Pos: e.Pos}, ok
	}
	x := fold.Bin(ir.And, fold.Bin(ir.Shr, &ir.VarRef{Var: l.value}, fold.Num(56-8*n)), fold.Num(0xFF))
	return Value{Type: ir.UintType(8), X: x, Max: 255, Pos: e.Pos}, true
}

// searched is the list that a call asks; nil if this path has none.
func (s *Scope) searched(e *spec.Expr) (*List, bool) {
	if l := s.Lists[searchKey(e)]; l != nil {
		return l, true
	}
	if e.Args[0].Op == spec.OpName && len(e.Args[0].Path) == 2 {
		if in, known := s.Find(e.Args[0].Path[0].Value); in == nil && known { // not on this path
			return nil, true
		}
	}
	if s.elements(e.Args[0]) == nil {
		s.Fail(code.Elements, e.Args[0].Pos, "this is no field with elements")
	} else if _, ok := s.Integer(e.Args[1]); ok {
		s.Fail(code.Elements, e.Args[1].Pos, "the identifier can't come from a table or a name: lists are searched "+
			"before tables")
	}
	return nil, false
}
