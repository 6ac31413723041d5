package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Statements go into the block of a function that is being written. pos is the line of the spec that they come from.

// noPos is no line of the spec.
var noPos diag.Pos

// add writes statements.
func (f *function) add(list ...c.Stmt) {
	*f.block = append(*f.block, list...)
	f.height += len(list)
}

// gap separates what follows.
func (f *function) gap() {
	if n := len(*f.block); n == 0 && f.block == &f.body || n > 0 && (*f.block)[n-1] != c.Stmt(c.Gap{}) {
		f.add(c.Gap{})
	}
}

// note writes a comment.
func (f *function) note(text string) { f.add(&c.Note{Text: text}) }

// define declares a variable with a value, or (nil) without one.
func (f *function) define(pos diag.Pos, typ c.Type, name c.Name, x c.Expr) {
	f.add(&c.Declare{Pos: pos, Type: typ, Vars: []c.Var{{Name: name, Init: x}}})
}

// assign gives something a value.
func (f *function) assign(pos diag.Pos, to, x c.Expr) {
	f.add(&c.Assign{Pos: pos, To: to, Op: "=", X: x})
}

// do calls a function.
func (f *function) do(pos diag.Pos, name string, args ...c.Expr) {
	f.add(&c.Eval{Pos: pos, X: c.Do(name, args...)})
}

// end returns.
func (f *function) end(pos diag.Pos, x c.Expr) { f.add(&c.Return{Pos: pos, X: x}) }

// when writes what is done under a condition.
func (f *function) when(pos diag.Pos, cond c.Expr, write func()) *c.If {
	s := &c.If{Pos: pos, Cond: cond}
	f.add(s)
	f.inside(&s.Then, write)
	return s
}

// scoped writes a block with a scope of its own.
func (f *function) scoped(write func()) {
	s := &c.Block{}
	f.add(s)
	f.inside(&s.Body, write)
	f.height++ // its end
}

// place is where statements may be put later.
func (f *function) place() *c.List {
	s := &c.List{}
	f.add(s)
	return s
}

// inside has what is written go into a block.
func (f *function) inside(block *[]c.Stmt, write func()) {
	outer := f.block
	f.block = block
	write()
	f.block = outer
}
