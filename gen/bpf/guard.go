package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Checks under which a packet passes to the stack. What has one reason is one condition in C.

// guards is the number of guards that a block begins with which are one condition in C: they have one reason, and come
// from one line of the spec, or from the standard headers.
func (f *function) guards(stmts []ir.Stmt) (n int) {
	for _, s := range stmts {
		g, ok := s.(*ir.Guard)
		if !ok {
			break
		}
		if first := stmts[0].(*ir.Guard); !f.sameWhy(first.Reason, first.Pos, g) {
			break
		}
		n++
	}
	return n
}

// sameWhy reports whether a guard belongs to what was checked before, for a reason, at a line of the spec.
func (f *function) sameWhy(reason int, pos diag.Pos, g *ir.Guard) bool {
	return g.Reason == reason && g.Pos.File == pos.File && (g.Pos.Line == pos.Line || g.Pos.File != f.plan.Pos.File)
}

// together renders statements that a block begins with and that are one condition in C. It returns how many these are.
func (f *function) together(stmts []ir.Stmt) int {
	switch first := stmts[0].(type) {
	case *ir.NeedBytes: // of a header, the end of which others know
		if n := f.guards(stmts[1:]); n > 0 && f.fan == nil && first.Run != nil && first.Run.At.Base == nil &&
			first.End.Base == nil && f.sameWhy(first.Reason, first.Pos, stmts[1].(*ir.Guard)) {
			f.quote(first.Pos)
			f.begins(first)
			f.guard(stmts[1:1+n], f.missing(first.End))
			return 1 + n
		}
	case *ir.Guard:
		n := f.guards(stmts)
		if n == 1 && len(stmts) > 2 {
			let, ok := stmts[1].(*ir.Let)
			next, ok2 := stmts[2].(*ir.Guard)
			if ok && ok2 && f.sameWhy(first.Reason, first.Pos, next) && f.simple(let) {
				f.quote(first.Pos)
				f.let(let)
				f.guard([]ir.Stmt{first, next}, nil)
				return 3
			}
		}
		if n > 1 {
			f.guard(stmts[:n], nil)
		}
		return n
	}
	return 1
}

// simple reports whether a variable gets a number which can be computed at any place that knows the packet's bytes.
func (f *function) simple(s *ir.Let) bool {
	if s.Var.Type.IsBytes() || !f.prog.read.vars[s.Var] || f.prog.read.bases[s.Var] {
		return false
	}
	for e := range ir.Exprs(s.Value) {
		switch e := e.(type) {
		case *ir.Const, *ir.Bin, *ir.VarRef:
		case *ir.Load:
			for at, size := range ir.Offsets(e) {
				if at.Base != nil || f.known.bytes[nil] < at.Const+size {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}

// guard renders guards that have one reason; cond is what stops the packet under it as well, or nil.
func (f *function) guard(guards []ir.Stmt, cond c.Expr) {
	first := guards[0].(*ir.Guard)
	f.quote(first.Pos)
	for _, s := range guards {
		f.cover(first.Pos, s.(*ir.Guard).Cond)
	}
	var conds []c.Expr
	if cond != nil {
		conds = append(conds, cond)
	}
	for _, s := range guards {
		g := s.(*ir.Guard)
		conds = append(conds, f.negated(g.Cond))
		if b, ok := g.Cond.(*ir.Bin); ok && b.Op == ir.Eq && isMeta(b.X, ir.GSOSize) && isZero(b.Y) {
			f.known.plain = true
		}
	}
	f.unless(first.Pos, c.Join("||", conds...), first.Reason)
}

var opposite = map[ir.BinOp]ir.BinOp{ir.Eq: ir.Ne, ir.Ne: ir.Eq, ir.Lt: ir.Ge, ir.Ge: ir.Lt, ir.Gt: ir.Le, ir.Le: ir.Gt}

// negated renders the opposite of a condition.
func (f *function) negated(e ir.Expr) c.Expr {
	switch e := e.(type) {
	case *ir.Not:
		return f.expr(e.X)
	case *ir.Bin:
		if op, ok := opposite[e.Op]; ok {
			return f.expr(&ir.Bin{Op: op, X: e.X, Y: e.Y})
		}
	}
	return c.Not(f.expr(e))
}
