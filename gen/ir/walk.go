package ir

import (
	"iter"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file is the only place that knows what statements and expressions consist of. Whoever looks for something in a plan asks
// for all of its kind (Stmts, Exprs, Places, Reads, Sets) and picks; so a construct that is added is found by all of them. A type of
// statement or expression needs the method parts (and at, a statement) to be one; walk_test.go holds each method to the fields
// of its type.

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
		for _, prog := range p.Programs {
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

// Exprs are all expressions of a node, from the outside in, without those of the statements in its blocks. An expression is one of
// its own; nil has none.
func Exprs(n Node) iter.Seq[Expr] {
	return func(yield func(Expr) bool) {
		v := visitor{onExpr: yield}
		v.node(n)
	}
}

// Places are the places of the packet that a node (or an expression of it) names, each with the number of bytes that it reads or
// writes there: 0 where the place is a bound, such as the end of the headers.
func Places(n Node) iter.Seq2[Off, int] {
	return func(yield func(Off, int) bool) {
		v := visitor{onPlace: yield}
		v.node(n)
	}
}

// Reads are the variables that a node or an expression of it reads, those included that places begin with. A variable may come
// several times.
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

func (e *Effects) effects() *Effects { return e }

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
	onExpr  func(Expr) bool
	onPlace func(Off, int) bool
	onRead  func(*Var) bool
	onSet   func(*Var) bool
	onBlock func(*[]Stmt) bool
	done    bool // a function has returned false
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

// bytes visits n bytes of the packet from a place on.
func (v *visitor) bytes(o Off, n int) {
	if !v.done && v.onPlace != nil {
		v.done = !v.onPlace(o, n)
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
		v.exprs(h.From, h.To)
	}
}

func (v *visitor) rewrite(w *Rewrite) {
	if w != nil {
		w.parts(v)
	}
}

func (s *NeedBytes) at() diag.Pos   { return s.Pos }
func (s *Let) at() diag.Pos         { return s.Pos }
func (s *Guard) at() diag.Pos       { return s.Pos }
func (s *If) at() diag.Pos          { return s.Pos }
func (s *ReadVarint) at() diag.Pos  { return s.Pos }
func (s *Lookup) at() diag.Pos      { return s.Pos }
func (s *Count) at() diag.Pos       { return s.Pos }
func (s *Learn) at() diag.Pos       { return s.Pos }
func (s *CheckHop) at() diag.Pos    { return s.Pos }
func (s *Up) at() diag.Pos          { return s.Pos }
func (s *Drop) at() diag.Pos        { return s.Pos }
func (s *Forward) at() diag.Pos     { return s.Pos }
func (s *Translate) at() diag.Pos   { return s.Pos }
func (s *FindElement) at() diag.Pos { return s.Pos }
func (s *FanOut) at() diag.Pos      { return s.Pos }
func (s *Copy) at() diag.Pos        { return s.Pos }
func (s *Skip) at() diag.Pos        { return s.Pos }

func (s *NeedBytes) parts(v *visitor) { v.bounds(s.End) }

func (s *Let) parts(v *visitor) {
	v.exprs(s.Value)
	v.sets(s.Var)
}

func (s *Guard) parts(v *visitor) { v.exprs(s.Cond) }

func (s *If) parts(v *visitor) {
	v.exprs(s.Cond)
	v.blocks(&s.Then, &s.Else)
}

func (s *ReadVarint) parts(v *visitor) {
	v.bytes(s.At, 8)
	v.sets(s.Value, s.Size)
}

func (s *Lookup) parts(v *visitor) { v.values(s.Key) }

func (s *Count) parts(v *visitor) { v.exprs(s.By) }

func (s *Learn) parts(v *visitor) {
	v.values(s.Key)
	v.values(s.Value)
}

func (s *CheckHop) parts(v *visitor) {
	v.exprs(s.Length)
	v.hop(s.Hop)
}

func (s *Up) parts(*visitor) {}

func (s *Drop) parts(v *visitor) { s.Effects.parts(v) }

func (s *Forward) parts(v *visitor) {
	s.Effects.parts(v)
	v.hop(s.Hop)
	v.exprs(s.End)
	v.rewrite(s.Rewrite)
}

func (s *Translate) parts(v *visitor) {
	v.exprs(s.Key, s.Value)
	for _, d := range s.Draws {
		v.sets(d.Var)
	}
	v.sets(s.Var)
}

func (s *FindElement) parts(v *visitor) {
	v.bytes(s.At, s.SizeMax)
	v.exprs(s.Size, s.ID)
	for _, f := range s.Forms {
		v.exprs(f.When)
	}
	v.sets(s.Found, s.Len, s.Value)
}

func (s *FanOut) parts(v *visitor) {
	v.values(s.Key)
	s.Effects.parts(v)
	v.exprs(s.End)
	v.bounds(s.Front)
	v.blocks(&s.Each)
}

func (s *Copy) parts(v *visitor) {
	s.Effects.parts(v)
	v.hop(s.Hop)
	v.rewrite(s.Rewrite)
}

func (s *Skip) parts(*visitor) {}

func (e *Effects) parts(v *visitor) {
	for _, s := range e.Emits {
		v.values(s.Values)
	}
	for _, s := range e.Admits {
		v.exprs(s.Level, s.Cost, s.Floor)
		if s.Count != nil {
			s.Count.parts(v)
		}
	}
	for _, s := range e.Draws {
		v.sets(s.Var)
	}
	for _, s := range e.Lets {
		s.parts(v)
	}
	for _, s := range e.Counts {
		s.parts(v)
	}
}

func (w *Rewrite) parts(v *visitor) {
	v.bounds(w.OldFront, w.NewFront, w.Unmoved)
	v.exprs(w.Payload, w.Priority, w.Mark)
	for _, s := range w.Stores {
		v.bytes(s.Off, s.Size)
		v.reads(s.Width)
		v.exprs(s.Value)
	}
	for _, s := range w.Sums {
		v.bytes(s.Old, 2)
		v.bytes(s.New, 2)
		v.bounds(s.TailEnd)
		v.exprs(s.TailOdd, s.Swap)
		for t := range s.Terms() {
			v.exprs(t.Value, t.Len, t.OddIf)
			if t.Region {
				v.bytes(t.At, t.Max)
			}
		}
	}
}

// Terms are all terms of a checksum.
func (s *Sum) Terms() iter.Seq[Term] {
	return func(yield func(Term) bool) {
		for _, list := range [][]Term{s.OldTerms, s.NewTerms, s.OldPseudo, s.NewPseudo} {
			for _, t := range list {
				if !yield(t) {
					return
				}
			}
		}
	}
}

func (e *Const) parts(*visitor)        {}
func (e *BytesConst) parts(*visitor)   {}
func (e *Load) parts(v *visitor)       { v.bytes(e.Off, (e.Bit+e.Bits+7)/8) }
func (e *LoadBytes) parts(v *visitor)  { v.bytes(e.Off, e.N) }
func (e *VarRef) parts(v *visitor)     { v.reads(e.Var) }
func (e *Meta) parts(*visitor)         {}
func (e *SettingRef) parts(*visitor)   {}
func (e *RowHas) parts(*visitor)       {}
func (e *RowMember) parts(*visitor)    {}
func (e *CounterValue) parts(*visitor) {}
func (e *Bin) parts(v *visitor)        { v.exprs(e.X, e.Y) }
func (e *Not) parts(v *visitor)        { v.exprs(e.X) }
func (e *BytesEq) parts(v *visitor)    { v.exprs(e.X, e.Y) }
func (e *InPrefix) parts(v *visitor)   { v.exprs(e.X) }
func (e *IsV4) parts(v *visitor)       { v.exprs(e.X) }
func (e *Unicast) parts(v *visitor)    { v.exprs(e.X) }
func (e *Multicast) parts(v *visitor)  { v.exprs(e.X) }
func (e *ByteAt) parts(v *visitor)     { v.exprs(e.X) }
func (e *SumOK) parts(v *visitor)      { v.bytes(e.Off, e.Len) }
func (e *Pick) parts(v *visitor)       { v.exprs(e.If, e.Then, e.Else) }
func (e *VarintWord) parts(v *visitor) { v.reads(e.Width); v.exprs(e.X) }
