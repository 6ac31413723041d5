package diagram

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

var exprOps = map[spec.ExprOp]string{
	spec.OpMul: "*", spec.OpDiv: "/", spec.OpRem: "%", spec.OpShl: "<<", spec.OpShr: ">>", spec.OpAnd: "&",
	spec.OpAndNot: "&^", spec.OpAdd: "+", spec.OpSub: "-", spec.OpOr: "|", spec.OpXor: "^", spec.OpEq: "==",
	spec.OpNe: "!=", spec.OpLt: "<", spec.OpLe: "<=", spec.OpGt: ">", spec.OpGe: ">=", spec.OpLand: "&&",
	spec.OpLor: "||",
}

var unaryOps = map[spec.ExprOp]string{spec.OpNot: "!", spec.OpInv: "^", spec.OpNeg: "-"}

// expression writes an expression as a person would.
func expression(e *spec.Expr) string {
	switch e.Op {
	case spec.OpInt:
		return Literal(spec.Literal{Int: e.Int})
	case spec.OpBool:
		return pick(e.Int != 0, "true", "false")
	case spec.OpName:
		var path []string
		for _, n := range e.Path {
			path = append(path, n.Value)
		}
		return strings.Join(path, ".")
	case spec.OpIndex:
		return inner(e.Args[0]) + "[" + expression(e.Args[1]) + "]"
	case spec.OpMember:
		return expression(e.Args[0]) + "." + e.Path[0].Value
	case spec.OpCall:
		var args []string
		for _, a := range e.Args {
			args = append(args, expression(a))
		}
		return e.Fn.Value + "(" + strings.Join(args, ", ") + ")"
	}
	if op, ok := unaryOps[e.Op]; ok {
		return op + inner(e.Args[0])
	}
	return inner(e.Args[0]) + " " + exprOps[e.Op] + " " + inner(e.Args[1])
}

func inner(e *spec.Expr) string {
	if _, binary := exprOps[e.Op]; binary {
		return "(" + expression(e) + ")"
	}
	return expression(e)
}

var constraintOps = map[spec.ConstraintOp]string{
	spec.IsNe: "not ", spec.IsLt: "below ", spec.IsLe: "at most ", spec.IsGt: "above ", spec.IsGe: "at least ",
}

// constraint writes what a field has to be.
func constraint(c *spec.Constraint) string {
	switch c.Op {
	case spec.IsAnd, spec.IsOr:
		if low, high, ok := interval(c); ok {
			return Literal(low) + " to " + Literal(high)
		}
		var args []string
		for _, a := range c.Args {
			args = append(args, constraint(a))
		}
		return strings.Join(args, pick(c.Op == spec.IsAnd, " and ", " or "))
	}
	return constraintOps[c.Op] + Literal(c.Value)
}

// interval recognises >=a & <=b.
func interval(c *spec.Constraint) (low, high spec.Literal, ok bool) {
	if c.Op != spec.IsAnd || len(c.Args) != 2 {
		return
	}
	a, b := c.Args[0], c.Args[1]
	if a.Op == spec.IsLe && b.Op == spec.IsGe {
		a, b = b, a
	}
	return a.Value, b.Value, a.Op == spec.IsGe && b.Op == spec.IsLe
}

// Literal writes a literal as a person would.
func Literal(l spec.Literal) string {
	switch l.Kind {
	case spec.LitInt:
		if l.Int < 256 {
			return fmt.Sprint(l.Int)
		}
		return fmt.Sprintf("%#x", l.Int)
	case spec.LitBool:
		return pick(l.Bool, "true", "false")
	}
	return l.Text
}
