package c

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Stmt is a statement. Pos in it is the line of the spec that it comes from, or zero.
type Stmt interface {
	// exprs are the expressions in it, without those of its blocks.
	exprs() []*Expr
	blocks() []*[]Stmt
}

// Statements.
type (
	// Declare declares variables of one type.
	Declare struct {
		Pos  diag.Pos
		Type Type
		Vars []Var
	}
	// Assign gives something a value. Op is "=", or another operator of assignment.
	Assign struct {
		Pos diag.Pos
		To  Expr
		Op  string
		X   Expr
	}
	// Eval is an expression for its effects.
	Eval struct {
		Pos diag.Pos
		X   Expr
	}
	// Return ends the function.
	Return struct {
		Pos diag.Pos
		X   Expr
	}
	// If is a branch. Note is a comment after the condition.
	If struct {
		Pos        diag.Pos
		Cond       Expr
		Note       string
		Then, Else []Stmt
	}
	// Block has a scope of its own.
	Block struct{ Body []Stmt }
	// List are statements without a scope of their own: a place where some may be put later.
	List struct{ Body []Stmt }
	// Note is a comment on lines of its own; Short: cut off where the line ends.
	Note struct {
		Pos   diag.Pos
		Text  string
		Short bool
	}
	// Gap is an empty line, except where a block begins or ends, or another one is.
	Gap struct{}
)

// Var is a variable that is declared. Tail is what stands after its name: [4], an attribute.
type Var struct {
	Name Name
	Tail string
	Init Expr // or nil
	Idle bool // nothing uses Init: it is there because C wants a variable to have a value
}

func (s *Declare) exprs() (out []*Expr) {
	for i := range s.Vars {
		if s.Vars[i].Init != nil {
			out = append(out, &s.Vars[i].Init)
		}
	}
	return out
}

func (s *Assign) exprs() []*Expr { return []*Expr{&s.To, &s.X} }
func (s *Eval) exprs() []*Expr   { return []*Expr{&s.X} }
func (s *Return) exprs() []*Expr { return []*Expr{&s.X} }
func (s *If) exprs() []*Expr     { return []*Expr{&s.Cond} }
func (*Block) exprs() []*Expr    { return nil }
func (*List) exprs() []*Expr     { return nil }
func (*Note) exprs() []*Expr     { return nil }
func (Gap) exprs() []*Expr       { return nil }

func (*Declare) blocks() []*[]Stmt { return nil }
func (*Assign) blocks() []*[]Stmt  { return nil }
func (*Eval) blocks() []*[]Stmt    { return nil }
func (*Return) blocks() []*[]Stmt  { return nil }
func (s *If) blocks() []*[]Stmt    { return []*[]Stmt{&s.Then, &s.Else} }
func (s *Block) blocks() []*[]Stmt { return []*[]Stmt{&s.Body} }
func (s *List) blocks() []*[]Stmt  { return []*[]Stmt{&s.Body} }
func (*Note) blocks() []*[]Stmt    { return nil }
func (Gap) blocks() []*[]Stmt      { return nil }

// Each visits statements and all in them, the outer ones first.
func Each(body []Stmt, visit func(Stmt)) {
	for _, s := range body {
		visit(s)
		for _, b := range s.blocks() {
			Each(*b, visit)
		}
	}
}

// Exprs visits all expressions in statements, and all in these.
func Exprs(body []Stmt, visit func(Expr)) {
	Each(body, func(s Stmt) {
		for _, x := range s.exprs() {
			for y := range All(*x) {
				visit(y)
			}
		}
	})
}

// Count is how often statements mention a name, declarations included.
func Count(body []Stmt, name Name) (n int) {
	Each(body, func(s Stmt) {
		if d, ok := s.(*Declare); ok {
			for _, v := range d.Vars {
				if v.Name == name {
					n++
				}
			}
		}
	})
	Exprs(body, func(x Expr) {
		if x == Expr(name) {
			n++
		}
	})
	return n
}

// ReplaceIn is [Replace] in all expressions of statements, in place.
func ReplaceIn(body []Stmt, f func(Expr) Expr) {
	Each(body, func(s Stmt) {
		for _, x := range s.exprs() {
			*x = Replace(*x, f)
		}
	})
}

// KeyOfBody is the key of statements. Where they come from, comments and empty lines make no difference; nor does which
// variables they declare, if they do the same with them.
func KeyOfBody(body []Stmt) Key {
	bound := map[*Local]int{}
	e := encoder{}
	e.local = func(x *Local) string {
		if i, ok := bound[x]; ok {
			return fmt.Sprint("v", i)
		}
		return fmt.Sprint("l", x.id)
	}
	e.body(body, func(x *Local) {
		if _, again := bound[x]; !again {
			bound[x] = len(bound)
		}
	})
	return Key{e.String()}
}

func (e *encoder) body(body []Stmt, declare func(*Local)) {
	for _, s := range body {
		switch s := s.(type) {
		case *Note, Gap:
			continue
		case *List:
			e.body(s.Body, declare)
			continue
		case *Declare:
			fmt.Fprintf(e, "d%q", s.Type)
			for _, v := range s.Vars {
				if x, ok := v.Name.(*Local); ok {
					declare(x)
				}
				e.expr(v.Name)
				fmt.Fprintf(e, "%q%v", v.Tail, v.Init != nil)
			}
		case *Assign:
			e.WriteString(s.Op)
		default:
			fmt.Fprintf(e, "%T", s)
		}
		for _, x := range s.exprs() {
			e.expr(*x)
		}
		for _, inner := range s.blocks() {
			e.WriteString("{")
			e.body(*inner, declare)
			e.WriteString("}")
		}
		e.WriteString(";")
	}
}

// Param is a parameter of a function, or a member of a structure.
type Param struct {
	Type Type
	Name Name
	Tail string
}

// Top is what a file has: a function or a structure.
type Top interface{ print(p *Printer) }

// Func is a function.
type Func struct {
	Linkage Linkage
	Result  Type
	Name    string
	Params  []Param
	Body    []Stmt
}

// Struct is a structure.
type Struct struct {
	Doc     string
	Name    string
	Members []Param
}

// Enum are constants. One without a value is one more than the one in front of it.
type Enum struct {
	Doc       string
	Constants []Constant
}

// Constant is a constant; Value: nil if it has none of its own.
type Constant struct {
	Name  Ident
	Value Expr
}

// Rewrite puts what f returns in the place of each statement, from the outside in.
func Rewrite(body []Stmt, f func(Stmt) []Stmt) (out []Stmt) {
	for _, s := range body {
		for _, t := range f(s) {
			for _, b := range t.blocks() {
				*b = Rewrite(*b, f)
			}
			out = append(out, t)
		}
	}
	return out
}

// Returns reports whether the last one of statements ends the function.
func Returns(body []Stmt) bool {
	if len(body) == 0 {
		return false
	}
	_, ok := body[len(body)-1].(*Return)
	return ok
}

// Statements is how many statements there are, those in blocks included.
func Statements(body []Stmt) (n int) {
	Each(body, func(s Stmt) {
		switch s.(type) {
		case *Note, Gap, *List, *Block:
		default:
			n++
		}
	})
	return n
}

// copied are statements that can be changed without changing others.
func copied(body []Stmt) (out []Stmt) {
	for _, s := range body {
		switch t := s.(type) {
		case *Declare:
			d := *t
			d.Vars = slices.Clone(t.Vars)
			s = &d
		case *Assign:
			d := *t
			s = &d
		case *Eval:
			d := *t
			s = &d
		case *Return:
			d := *t
			s = &d
		case *If:
			d := *t
			d.Then, d.Else = copied(t.Then), copied(t.Else)
			s = &d
		case *Block:
			s = &Block{copied(t.Body)}
		case *List:
			s = &List{copied(t.Body)}
		}
		out = append(out, s)
	}
	return out
}

// Retype has a function use a type in the place of another one, and pointers to it.
func (f *Func) Retype(was, is Type) {
	change := func(t Type) Type {
		switch t {
		case was:
			return is
		case Pointer(was):
			return Pointer(is)
		}
		return t
	}
	for i := range f.Params {
		f.Params[i].Type = change(f.Params[i].Type)
	}
	Each(f.Body, func(s Stmt) {
		if d, ok := s.(*Declare); ok {
			d.Type = change(d.Type)
		}
	})
	ReplaceIn(f.Body, func(x Expr) Expr {
		if cast, ok := x.(Cast); ok && change(cast.Type) != cast.Type {
			return Cast{change(cast.Type), cast.X}
		}
		return nil
	})
}
