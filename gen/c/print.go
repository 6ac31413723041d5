package c

import (
	"fmt"
	"strconv"
	"strings"
)

// Parentheses stand where C wants them, and where clang and the kernel's style want them besides: around an operator in
// another one that readers mix up with it (&& in ||, & in |, + in <<).

// binding is how strongly the parts of an expression hold together (the C standard's grammar).
type binding int

const (
	choice binding = iota + 1
	or
	and
	bitOr
	bitXor
	bitAnd
	equality
	relation
	shift
	sum
	product
	prefix
	postfix
)

var operators = map[string]binding{
	"?:": choice, "||": or, "&&": and, "|": bitOr, "^": bitXor, "&": bitAnd, "==": equality, "!=": equality,
	"<":  relation,
	"<=": relation, ">": relation, ">=": relation, "<<": shift, ">>": shift, "+": sum, "-": sum, "*": product,
	"/": product, "%": product,
}

func (Ident) binds() binding    { return postfix }
func (Number) binds() binding   { return postfix }
func (Call) binds() binding     { return postfix }
func (Field) binds() binding    { return postfix }
func (Index) binds() binding    { return postfix }
func (Unary) binds() binding    { return prefix }
func (Cast) binds() binding     { return prefix }
func (x Binary) binds() binding { return operators[x.Op] }
func (Choice) binds() binding   { return choice }

func (x Ident) String() string { return string(x) }

func (x Number) String() string {
	s := fmt.Sprintf("0x%x", x.V)
	if x.Form == Amount || x.Form != Hex && x.V < 256 {
		s = strconv.FormatUint(x.V, 10)
	}
	if x.Form == Wide || x.V > 0x7FFFFFFF {
		s += "ULL"
	}
	return s
}

func (x Call) String() string {
	args := make([]string, len(x.Args))
	for i, a := range x.Args {
		args[i] = a.String()
	}
	return x.Name + "(" + strings.Join(args, ", ") + ")"
}

func (x Field) String() string {
	by := "."
	if x.Pointer {
		by = "->"
	}
	return inside(x.X, postfix) + by + x.Name
}

func (x Index) String() string { return inside(x.X, postfix) + "[" + x.At.String() + "]" }

func (x Unary) String() string {
	if _, again := x.X.(Unary); again && x.Op != "!" { // never -- or &&
		return x.Op + "(" + x.X.String() + ")"
	}
	return x.Op + inside(x.X, prefix)
}

func (x Cast) String() string { return "(" + string(x.Type) + ")" + inside(x.X, prefix) }

func (x Choice) String() string {
	return inside(x.If, bitOr) + " ? " + inside(x.Then, or) + " : " + inside(x.Else, choice)
}

func (x Binary) String() string {
	return x.side(x.X, true) + " " + x.Op + " " + x.side(x.Y, false)
}

// inside prints an expression in another one that wants its parts to hold together so strongly.
func inside(x Expr, least binding) string {
	if x.binds() < least {
		return "(" + x.String() + ")"
	}
	return x.String()
}

// side prints an operand.
func (x Binary) side(y Expr, left bool) string {
	inner, ok := y.(Binary)
	if !ok {
		return inside(y, prefix)
	}
	if x.joins(inner, left) {
		return y.String()
	}
	return "(" + y.String() + ")"
}

// joins reports whether an operator needs no parentheses in another one.
func (x Binary) joins(y Binary, left bool) bool {
	outer, inner := x.binds(), y.binds()
	switch {
	case outer == choice:
		return x.Op == y.Op
	case outer == or || outer == and:
		return x.Op == y.Op || inner == equality || inner == relation
	case outer == equality || outer == relation:
		return inner >= sum
	case x.Op == y.Op:
		return left && x.Op != "/" && x.Op != "%" && x.Op != "<<" && x.Op != ">>"
	case outer == sum:
		return inner == product || left && inner == sum
	}
	return false
}
