// Package fold makes expressions of a plan, and computes what is constant in them: a plan says what happens, and not
// how that was derived.
package fold

import (
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Num is an integer.
func Num(v uint64) *ir.Const { return &ir.Const{V: v, T: ir.UintType(64)} }

// Bool is a condition that is always true, or never.
func Bool(b bool) *ir.Const {
	c := &ir.Const{T: ir.BoolType}
	if b {
		c.V = 1
	}
	return c
}

// Zero is the value of a type that is 0, or all whose bytes are.
func Zero(t ir.Type) ir.Expr {
	switch t.Kind {
	case ir.Uint, ir.Bool:
		return &ir.Const{T: t}
	}
	return &ir.BytesConst{B: make([]byte, t.Size), T: t}
}

// Constant returns the value of an expression that is an integer or a condition with a fixed value.
func Constant(x ir.Expr) (uint64, bool) {
	c, ok := x.(*ir.Const)
	if !ok {
		return 0, false
	}
	return c.V, true
}

// IsTrue reports whether a condition always holds, IsFalse whether it never does.
func IsTrue(x ir.Expr) bool  { v, ok := Constant(x); return ok && v != 0 }
func IsFalse(x ir.Expr) bool { v, ok := Constant(x); return ok && v == 0 }

// And holds if both conditions do; nil stands for one that always holds.
func And(x, y ir.Expr) ir.Expr {
	switch {
	case x == nil || IsTrue(x):
		return y
	case y == nil || IsTrue(y):
		return x
	case IsFalse(x):
		return x
	case IsFalse(y):
		return y
	}
	return &ir.Bin{Op: ir.Land, X: x, Y: y}
}

// Or holds if one of two conditions does; nil stands for one that always holds.
func Or(x, y ir.Expr) ir.Expr {
	switch {
	case x == nil || y == nil || IsTrue(x) || IsTrue(y):
		return Bool(true)
	case IsFalse(x):
		return y
	case IsFalse(y):
		return x
	}
	return &ir.Bin{Op: ir.Lor, X: x, Y: y}
}

// Not is the opposite of a condition.
func Not(x ir.Expr) ir.Expr {
	if v, ok := Constant(x); ok {
		return Bool(v == 0)
	}
	if n, ok := x.(*ir.Not); ok {
		return n.X
	}
	return &ir.Not{X: x}
}

// IsV4 holds if an address is an IPv4 one. For an address on the wire its header decides: mapped ones have passed to
// the stack.
func IsV4(x ir.Expr) ir.Expr {
	if l, ok := x.(*ir.LoadBytes); ok {
		return Bool(l.N == 4)
	}
	if c, ok := x.(*ir.BytesConst); ok {
		return Bool(netip.AddrFrom16([16]byte(c.B)).Is4In6())
	}
	return &ir.IsV4{X: x}
}

// Bin applies an operator, folding constants and neutral elements.
func Bin(op ir.BinOp, x, y ir.Expr) ir.Expr {
	a, xc := Constant(x)
	b, yc := Constant(y)
	if xc && yc {
		if v, ok := compute(op, a, b); ok {
			if op >= ir.Eq {
				return Bool(v != 0)
			}
			return Num(v)
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
		return Num(xa - ya)
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
		if _, c := Constant(b.Y); c {
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
		v, _ := Constant(b.Y)
		return v
	}
	return 0
}

func compute(op ir.BinOp, a, b uint64) (uint64, bool) {
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

// Off is an offset as a value.
func Off(o ir.Off) ir.Expr {
	if o.Base == nil {
		return Num(uint64(o.Const))
	}
	return Bin(ir.Add, &ir.VarRef{Var: o.Base}, Num(uint64(o.Const)))
}

// IsFrame reports whether an expression is the length of the frame.
func IsFrame(x ir.Expr) bool {
	m, ok := x.(*ir.Meta)
	return ok && m.Kind == ir.FrameLen
}

// Distance is to - from in bytes.
func Distance(to, from ir.Off) ir.Expr { return Bin(ir.Sub, Off(to), Off(from)) }

// Var returns the variable that an expression is, or nil.
func Var(x ir.Expr) *ir.Var {
	if v, ok := x.(*ir.VarRef); ok {
		return v.Var
	}
	return nil
}
