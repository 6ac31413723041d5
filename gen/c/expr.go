// Package c is C as a tree: functions, statements and expressions, what passes over them, and the printer, which alone
// knows columns, parentheses and comments.
//
// A tree is data: two that are the same are [Equal], and what is in one is found by [All] and exchanged by [Replace].
// Nothing looks at printed text.
package c

import (
	"fmt"
	"strconv"
	"strings"
)

// Expr is an expression.
type Expr interface {
	fmt.Stringer
	// parts are the expressions in it, in the order of the text.
	parts() []Expr
	// with is the same expression of other parts.
	with(parts []Expr) Expr
	binds() binding
}

// Expressions. Pointers of packets and structures are [Ident] and [Field]; a string is never C.
type (
	// Ident is a name: of a variable, a constant, or a type if that is an argument.
	Ident string
	// Number is an integer constant.
	Number struct {
		V    uint64
		Form Form
	}
	// Call is a call of a function or a macro; also sizeof.
	Call struct {
		Name string
		Args []Expr
	}
	// Field is a member of a structure, or of what a pointer is of.
	Field struct {
		X       Expr
		Name    string
		Pointer bool
	}
	// Index is an element of an array.
	Index struct{ X, At Expr }
	// Unary is a prefix operator and its operand: ! - & *.
	Unary struct {
		Op string
		X  Expr
	}
	// Cast is a conversion.
	Cast struct {
		Type Type
		X    Expr
	}
	// Binary is an operator between its operands.
	Binary struct {
		Op   string
		X, Y Expr
	}
	// Choice is If ? Then : Else.
	Choice struct{ If, Then, Else Expr }
)

// Form is how a number is written.
type Form int

const (
	Plain  Form = iota // as a person would: small ones in decimal, others in hexadecimal
	Amount             // in decimal: an offset, a length, a count
	Wide               // Plain, of 64 bits
	Hex                // in hexadecimal: a mask
)

// Num is an integer constant.
func Num(v uint64) Number { return Number{V: v} }

// Dec is an offset, a length or a count; a negative one is in parentheses if it has to be.
func Dec(n int) Expr {
	if n < 0 {
		return Unary{"-", Number{uint64(-n), Amount}}
	}
	return Number{uint64(n), Amount}
}

// Do calls a function.
func Do(name string, args ...Expr) Call { return Call{name, args} }

// Bytes calls a function of a family that has one for each size: ld32, st64, be16.
func Bytes(family string, size int, args ...Expr) Call {
	return Call{family + strconv.Itoa(8*size), args}
}

// To is a member of what a pointer is of.
func To(pointer Expr, name string) Field {
	if x, ok := pointer.(Unary); ok && x.Op == "&" {
		return Field{x.X, name, false}
	}
	return Field{pointer, name, true}
}

// In is a member of a structure.
func In(structure Expr, name string) Field { return Field{structure, name, false} }

// Address is a pointer to something: of what a pointer is of, that pointer.
func Address(x Expr) Expr { return Unary{"&", x} }

// Not is the opposite of a condition.
func Not(x Expr) Expr { return Unary{"!", x} }

// Join puts an operator between expressions; of one it is that.
func Join(op string, list ...Expr) Expr {
	x := list[0]
	for _, y := range list[1:] {
		x = Binary{op, x, y}
	}
	return x
}

// Terms are the expressions that an operator stands between: of what Join makes, its list.
func Terms(op string, x Expr) []Expr {
	if b, ok := x.(Binary); ok && b.Op == op {
		return append(Terms(op, b.X), b.Y)
	}
	return []Expr{x}
}

// Plus is n bytes after a pointer or an offset.
func Plus(x Expr, n int) Expr {
	switch {
	case n == 0:
		return x
	case n < 0:
		return Binary{"-", x, Dec(-n)}
	}
	return Binary{"+", x, Dec(n)}
}

// Unlikely is a condition that clang takes for improbable.
func Unlikely(x Expr) Expr { return Do("unlikely", x) }

func (Ident) parts() []Expr    { return nil }
func (Number) parts() []Expr   { return nil }
func (x Call) parts() []Expr   { return x.Args }
func (x Field) parts() []Expr  { return []Expr{x.X} }
func (x Index) parts() []Expr  { return []Expr{x.X, x.At} }
func (x Unary) parts() []Expr  { return []Expr{x.X} }
func (x Cast) parts() []Expr   { return []Expr{x.X} }
func (x Binary) parts() []Expr { return []Expr{x.X, x.Y} }
func (x Choice) parts() []Expr { return []Expr{x.If, x.Then, x.Else} }

func (x Ident) with([]Expr) Expr    { return x }
func (x Number) with([]Expr) Expr   { return x }
func (x Call) with(p []Expr) Expr   { return Call{x.Name, p} }
func (x Field) with(p []Expr) Expr  { return Field{p[0], x.Name, x.Pointer} }
func (x Index) with(p []Expr) Expr  { return Index{p[0], p[1]} }
func (x Unary) with(p []Expr) Expr  { return Unary{x.Op, p[0]} }
func (x Cast) with(p []Expr) Expr   { return Cast{x.Type, p[0]} }
func (x Binary) with(p []Expr) Expr { return Binary{x.Op, p[0], p[1]} }
func (x Choice) with(p []Expr) Expr { return Choice{p[0], p[1], p[2]} }

// All are an expression and all in it, the outer ones first.
func All(x Expr) func(yield func(Expr) bool) {
	return func(yield func(Expr) bool) { visit(x, yield) }
}

func visit(x Expr, yield func(Expr) bool) bool {
	if !yield(x) {
		return false
	}
	for _, p := range x.parts() {
		if !visit(p, yield) {
			return false
		}
	}
	return true
}

// Replace exchanges what f has something else for, from the outside in; f returns nil for what stays.
func Replace(x Expr, f func(Expr) Expr) Expr {
	if y := f(x); y != nil {
		return y
	}
	old := x.parts()
	if len(old) == 0 {
		return x
	}
	parts := make([]Expr, len(old))
	for i, p := range old {
		parts[i] = Replace(p, f)
	}
	return x.with(parts)
}

// Equal reports whether two expressions are the same.
func Equal(x, y Expr) bool { return KeyOf(x) == KeyOf(y) }

// Alike reports whether they are the same but for variables, which want to be called the same.
func Alike(x, y Expr) bool { return LikenessOf(x) == LikenessOf(y) }

// Key tells expressions apart: those that are the same have the same key.
type Key struct{ tree string }

// KeyOf is the key of an expression.
func KeyOf(x Expr) Key {
	e := encoder{local: func(x *Local) string { return fmt.Sprint("l", x.id) }}
	e.expr(x)
	return Key{e.String()}
}

// LikenessOf is the key of all expressions that are alike.
func LikenessOf(x Expr) Key {
	e := encoder{local: func(x *Local) string { return fmt.Sprintf("l%q", x.Want) }}
	e.expr(x)
	return Key{e.String()}
}

// encoder writes what tells trees apart.
type encoder struct {
	strings.Builder
	local func(*Local) string
	// constant, if there is one: numbers, and names of numbers, make no difference.
	constant func(Ident) bool
}

func (e *encoder) expr(x Expr) {
	switch x := x.(type) {
	case nil:
		e.WriteString("nil")
		return
	case Ident:
		if e.constant != nil && e.constant(x) {
			e.WriteString("k")
			break
		}
		fmt.Fprintf(e, "i%q", string(x))
	case *Local:
		e.WriteString(e.local(x))
	case Number:
		if e.constant != nil {
			fmt.Fprint(e, "n", x.Form == Wide)
			break
		}
		fmt.Fprintf(e, "n%d", x.V)
	case Call:
		fmt.Fprintf(e, "c%q", x.Name)
	case Field:
		fmt.Fprintf(e, "f%q%v", x.Name, x.Pointer)
	case Index:
		e.WriteString("x")
	case Unary:
		e.WriteString("u" + x.Op)
	case Cast:
		fmt.Fprintf(e, "t%q", x.Type)
	case Binary:
		e.WriteString("b" + x.Op)
	case Choice:
		if one := e.constantOf(x); one != "" {
			e.WriteString(one)
			return
		}
		e.WriteString("?")
	case Init:
		for _, m := range x {
			fmt.Fprintf(e, "m%q", m.Name)
		}
	}
	e.WriteString("(")
	for _, p := range x.parts() {
		e.expr(p)
		e.WriteString(",")
	}
	e.WriteString(")")
}

// constantOf is what is written for a constant that is chosen, if constants make no difference; "": it is none.
func (e *encoder) constantOf(x Expr) string {
	if e.constant == nil {
		return ""
	}
	switch x := x.(type) {
	case Choice:
		if one := e.constantOf(x.Then); one == e.constantOf(x.Else) {
			return one
		}
	case Number, Ident:
		if name, ok := x.(Ident); ok && !e.constant(name) {
			return ""
		}
		of := encoder{local: e.local, constant: e.constant}
		of.expr(x)
		return of.String()
	}
	return ""
}

// Init is a structure whose other members are 0.
type Init []Member

// Member is the value of a member.
type Member struct {
	Name string
	X    Expr
}

func (x Init) parts() (out []Expr) {
	for _, m := range x {
		out = append(out, m.X)
	}
	return out
}

func (x Init) with(parts []Expr) Expr {
	out := make(Init, len(x))
	for i, m := range x {
		out[i] = Member{m.Name, parts[i]}
	}
	return out
}

func (Init) binds() binding { return postfix }

func (x Init) String() string {
	if len(x) == 0 {
		return "{}"
	}
	members := make([]string, len(x))
	for i, m := range x {
		members[i] = x.member(m)
	}
	return "{ " + strings.Join(members, ", ") + " }"
}

func (Init) member(m Member) string { return "." + m.Name + " = " + m.X.String() }

// Operands are the expressions that an expression consists of.
func Operands(x Expr) []Expr { return x.parts() }
