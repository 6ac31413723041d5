package gen

import (
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Small constructors for expressions. They fold what is constant, so that the plan says what happens and not how it was
// derived.

func num(v uint64) *ir.Const { return &ir.Const{V: v, T: ir.UintType(64)} }

func boolean(b bool) *ir.Const {
	c := &ir.Const{T: ir.BoolType}
	if b {
		c.V = 1
	}
	return c
}

func zero(t ir.Type) ir.Expr {
	switch t.Kind {
	case ir.Uint, ir.Bool:
		return &ir.Const{T: t}
	}
	return &ir.BytesConst{B: make([]byte, t.Size), T: t}
}

func constant(x ir.Expr) (uint64, bool) {
	c, ok := x.(*ir.Const)
	if !ok {
		return 0, false
	}
	return c.V, true
}

func isTrue(x ir.Expr) bool  { v, ok := constant(x); return ok && v != 0 }
func isFalse(x ir.Expr) bool { v, ok := constant(x); return ok && v == 0 }

// and joins conditions; nil stands for "holds".
func and(x, y ir.Expr) ir.Expr {
	switch {
	case x == nil || isTrue(x):
		return y
	case y == nil || isTrue(y):
		return x
	case isFalse(x):
		return x
	case isFalse(y):
		return y
	}
	return &ir.Bin{Op: ir.Land, X: x, Y: y}
}

func or(x, y ir.Expr) ir.Expr {
	switch {
	case x == nil || y == nil || isTrue(x) || isTrue(y):
		return boolean(true)
	case isFalse(x):
		return y
	case isFalse(y):
		return x
	}
	return &ir.Bin{Op: ir.Lor, X: x, Y: y}
}

func not(x ir.Expr) ir.Expr {
	if v, ok := constant(x); ok {
		return boolean(v == 0)
	}
	if n, ok := x.(*ir.Not); ok {
		return n.X
	}
	return &ir.Not{X: x}
}

// isV4 holds where an address is an IPv4 one. For an address on the wire its header decides: mapped ones have passed to
// the stack.
func isV4(x ir.Expr) ir.Expr {
	if l, ok := x.(*ir.LoadBytes); ok {
		return boolean(l.N == 4)
	}
	if c, ok := x.(*ir.BytesConst); ok {
		return boolean(netip.AddrFrom16([16]byte(c.B)).Is4In6())
	}
	return &ir.IsV4{X: x}
}

// bin applies an operator, folding constants and neutral elements.
func bin(op ir.BinOp, x, y ir.Expr) ir.Expr {
	a, xc := constant(x)
	b, yc := constant(y)
	if xc && yc {
		if v, ok := fold(op, a, b); ok {
			if op >= ir.Eq {
				return boolean(v != 0)
			}
			return num(v)
		}
	}
	switch op {
	case ir.Add, ir.Or, ir.Xor:
		if xc && a == 0 {
			return y
		}
		if yc && b == 0 {
			return x
		}
	case ir.Sub, ir.Shl, ir.Shr:
		if yc && b == 0 {
			return x
		}
	case ir.Mul, ir.Div:
		if yc && b == 1 {
			return x
		}
	}
	if op == ir.Sub && sameVar(x, y) { // (v + a) - (v + b)
		xa, ya := split(x), split(y)
		return num(xa - ya)
	}
	return &ir.Bin{Op: op, X: x, Y: y}
}

// sameVar reports whether x and y are the same variable plus constants.
func sameVar(x, y ir.Expr) bool {
	v, w := base(x), base(y)
	return v != nil && v == w
}

func base(x ir.Expr) *ir.Var {
	if b, ok := x.(*ir.Bin); ok && b.Op == ir.Add {
		if _, c := constant(b.Y); c {
			x = b.X
		}
	}
	if v, ok := x.(*ir.VarRef); ok {
		return v.Var
	}
	return nil
}

func split(x ir.Expr) uint64 {
	if b, ok := x.(*ir.Bin); ok {
		v, _ := constant(b.Y)
		return v
	}
	return 0
}

func fold(op ir.BinOp, a, b uint64) (uint64, bool) {
	truth := func(t bool) (uint64, bool) {
		if t {
			return 1, true
		}
		return 0, true
	}
	switch op {
	case ir.Add:
		return a + b, true
	case ir.Sub:
		return a - b, true
	case ir.Mul:
		return a * b, true
	case ir.Div:
		if b == 0 {
			return 0, false
		}
		return a / b, true
	case ir.Rem:
		if b == 0 {
			return 0, false
		}
		return a % b, true
	case ir.And:
		return a & b, true
	case ir.Or:
		return a | b, true
	case ir.Xor:
		return a ^ b, true
	case ir.Shl:
		return a << b, b < 64
	case ir.Shr:
		return a >> b, b < 64
	case ir.Eq:
		return truth(a == b)
	case ir.Ne:
		return truth(a != b)
	case ir.Lt:
		return truth(a < b)
	case ir.Le:
		return truth(a <= b)
	case ir.Gt:
		return truth(a > b)
	case ir.Ge:
		return truth(a >= b)
	case ir.Land:
		return truth(a != 0 && b != 0)
	case ir.Lor:
		return truth(a != 0 || b != 0)
	}
	return 0, false
}

func plus(o ir.Off, n int) ir.Off {
	o.Const += n
	return o
}

// offExpr is an offset as a value.
func offExpr(o ir.Off) ir.Expr {
	if o.Base == nil {
		return num(uint64(o.Const))
	}
	return bin(ir.Add, &ir.VarRef{Var: o.Base}, num(uint64(o.Const)))
}

func isFrame(x ir.Expr) bool {
	m, ok := x.(*ir.Meta)
	return ok && m.Kind == ir.FrameLen
}
