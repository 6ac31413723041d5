package ir

import (
	"iter"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file is the only place that knows what statements and expressions consist of. Whoever looks for something in a
// plan asks for all of its kind (Stmts, Exprs, Offsets, Reads, Sets) and picks; so a construct that is added is found
// by all of them. A type of statement or expression needs the method parts (and at, a statement) to be one;
// walk_test.go holds each method to the fields of its type.

// Node is a statement or an expression, or what statements share: Effects, a Rewrite.
type Node interface{ parts(v *visitor) }

// Stmt is a statement.
type Stmt interface {
	Node
	at() diag.Pos
}

// Expr is an expression.
type Expr interface {
	Node
	Type() Type
}

// Pos is where a statement comes from.
func Pos(s Stmt) diag.Pos { return s.at() }

// Stmts are all statements of a block in their order, each followed by those in its own blocks.
func Stmts(block []Stmt) iter.Seq[Stmt] {
	return func(yield func(Stmt) bool) { stmts(block, yield) }
}

func stmts(block []Stmt, yield func(Stmt) bool) bool {
	for _, s := range block {
		if !yield(s) {
			return false
		}
		for inner := range Blocks(s) {
			if !stmts(*inner, yield) {
				return false
			}
		}
	}
	return true
}

// AllStmts are the statements of all programs of a plan.
func AllStmts(p *Plan) iter.Seq[Stmt] {
	return func(yield func(Stmt) bool) {
		for prog := range p.Flow() {
			if !stmts(prog.Body, yield) {
				return
			}
		}
	}
}

// Blocks are the blocks of a statement: those of an If, and of a FanOut.
func Blocks(s Stmt) iter.Seq[*[]Stmt] {
	return func(yield func(*[]Stmt) bool) {
		v := visitor{onBlock: yield}
		s.parts(&v)
	}
}

// Exprs are all expressions of a node, from the outside in, without those of the statements in its blocks. An
// expression is one of its own; nil has none.
func Exprs(n Node) iter.Seq[Expr] {
	return func(yield func(Expr) bool) {
		v := visitor{onExpr: yield}
		v.node(n)
	}
}

// Offsets are those in the packet that a node (or an expression of it) names, each with the number of bytes that it
// reads or writes there: 0 if the offset is a bound, such as the end of the headers.
func Offsets(n Node) iter.Seq2[Off, int] {
	return func(yield func(Off, int) bool) {
		v := visitor{onOffset: yield}
		v.node(n)
	}
}

// Reads are the variables that a node or an expression of it reads, those included that offsets begin with. A variable
// may come several times.
func Reads(n Node) iter.Seq[*Var] {
	return func(yield func(*Var) bool) {
		v := visitor{onRead: yield}
		v.node(n)
	}
}

// Sets are the variables that a node sets, without those that the statements in its blocks set.
func Sets(n Node) iter.Seq[*Var] {
	return func(yield func(*Var) bool) {
		v := visitor{onSet: yield}
		v.node(n)
	}
}

// EffectsOf are the effects of a statement that has any, else nil.
func EffectsOf(s Stmt) *Effects {
	if h, ok := s.(interface{ effects() *Effects }); ok {
		return h.effects()
	}
	return nil
}

// RewriteOf is the rewrite of a statement that has one, else nil.
func RewriteOf(s Stmt) *Rewrite {
	switch s := s.(type) {
	case *Forward:
		return s.Rewrite
	case *Copy:
		return s.Rewrite
	}
	return nil
}

// NextRewrite is the first rewrite in statements, or nil: what a packet becomes that gets there.
func NextRewrite(rest []Stmt) *Rewrite {
	for s := range Stmts(rest) {
		if w := RewriteOf(s); w != nil {
			return w
		}
	}
	return nil
}

// visitor is called for what a node consists of. What it has no function for is passed over.
type visitor struct {
	onExpr   func(Expr) bool
	onOffset func(Off, int) bool
	onRead   func(*Var) bool
	onSet    func(*Var) bool
	onBlock  func(*[]Stmt) bool
	done     bool // a function has returned false
}

func (v *visitor) node(n Node) {
	switch n := n.(type) {
	case nil:
	case Expr:
		v.exprs(n)
	default:
		n.parts(v)
	}
}

// exprs visits expressions and what they consist of.
func (v *visitor) exprs(es ...Expr) {
	for _, e := range es {
		if e == nil || v.done {
			continue
		}
		v.done = v.onExpr != nil && !v.onExpr(e)
		e.parts(v)
	}
}

// bytes visits n bytes of the packet from an offset on.
func (v *visitor) bytes(o Off, n int) {
	if !v.done && v.onOffset != nil {
		v.done = !v.onOffset(o, n)
	}
	v.reads(o.Base)
}

func (v *visitor) bounds(os ...Off) {
	for _, o := range os {
		v.bytes(o, 0)
	}
}

func (v *visitor) reads(x *Var) {
	if x != nil && !v.done && v.onRead != nil {
		v.done = !v.onRead(x)
	}
}

func (v *visitor) sets(vars ...*Var) {
	for _, x := range vars {
		if !v.done && v.onSet != nil {
			v.done = !v.onSet(x)
		}
	}
}

func (v *visitor) blocks(bs ...*[]Stmt) {
	for _, b := range bs {
		if !v.done && v.onBlock != nil {
			v.done = !v.onBlock(b)
		}
	}
}

func (v *visitor) values(mvs []MemberValue) {
	for _, mv := range mvs {
		v.exprs(mv.Value)
	}
}

func (v *visitor) hop(h *HopRef) {
	if h != nil {
		v.exprs(h.From, h.To, h.FromPort, h.ToPort)
	}
}

func (v *visitor) rewrite(w *Rewrite) {
	if w != nil {
		w.parts(v)
	}
}
