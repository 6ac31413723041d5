package xdp

import (
	"cmp"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass makes expressions: facts that only an skb has are what they are of a frame.

// expr makes an expression.
func (x *maker) expr(e ir.Expr) ir.Expr {
	switch e := e.(type) {
	case nil:
		return nil
	case *ir.Meta:
		return x.fact(e)
	case *ir.VarRef:
		if value := x.fixed[e.Var]; value != nil {
			return value
		}
		return e
	case *ir.Bin:
		a, b := x.expr(e.X), x.expr(e.Y)
		switch {
		case a == e.X && b == e.Y:
			return e
		case e.Op == ir.Land:
			return fold.And(a, b)
		case e.Op == ir.Lor:
			return fold.Or(a, b)
		}
		return fold.Bin(e.Op, a, b)
	case *ir.Not:
		if a := x.expr(e.X); a != e.X {
			return fold.Not(a)
		}
		return e
	case *ir.Pick:
		cond, then, els := x.expr(e.If), x.expr(e.Then), x.expr(e.Else)
		switch {
		case fold.IsTrue(cond):
			return then
		case fold.IsFalse(cond):
			return els
		case cond == e.If && then == e.Then && els == e.Else:
			return e
		}
		return &ir.Pick{If: cond, Then: then, Else: els}
	case *ir.Word:
		return &ir.Word{X: x.expr(e.X), Width: e.Width, Plain: e.Plain}
	case *ir.SumOK:
		if e.Whole {
			x.lack("a checksum over a whole datagram")
		}
	}
	for inner := range ir.Exprs(e) { // of all others: what isn't the frame's own, they can't have
		if m, ok := inner.(*ir.Meta); ok && x.fact(m) != ir.Expr(m) {
			x.lack(ir.Facts[m.Kind].Text + " inside of an expression")
		}
	}
	return e
}

// fact is what a fact is of a frame at XDP. Tags are in the frame (see untagged), GSO comes later, a checksum that is
// left to a device isn't taken, and neither is a frame that isn't for this host.
func (x *maker) fact(e *ir.Meta) ir.Expr {
	switch e.Kind {
	case ir.FrameLen, ir.LeaseValid, ir.LinkType:
		return e
	case ir.VLANTag, ir.Encapsulated:
		return fold.Bool(false)
	case ir.VLANTCI, ir.VLANProto, ir.GSOSize, ir.Partial, ir.SegmentFront:
		return fold.Num(0)
	}
	x.lack(cmp.Or(ir.Facts[e.Kind].Word, ir.Facts[e.Kind].Text))
	return e
}
