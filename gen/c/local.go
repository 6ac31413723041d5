package c

import (
	"fmt"
	"sync/atomic"
)

// Name is what a variable is called: an [Ident], or a [Local], which gets one.
type Name interface {
	Expr
	isName()
}

// Local is a variable of functions. Two are the same if they are one, whatever they are called; in each function
// [Func.NameLocals] gives it a name.
type Local struct {
	// Want is what it is called if that isn't taken.
	Want string
	// Type is that of a parameter which is given it; "": none is.
	Type Type
	id   uint64
}

var locals atomic.Uint64

// NewLocal is a variable.
func NewLocal(want string, typ Type) *Local { return &Local{want, typ, locals.Add(1)} }

func (Ident) isName()  {}
func (*Local) isName() {}

func (*Local) parts() []Expr      { return nil }
func (x *Local) with([]Expr) Expr { return x }
func (*Local) binds() binding     { return postfix }
func (x *Local) String() string   { return x.Want }

// Free are the variables that statements mention without declaring them first, in the order of the text: what a
// function has to be given.
func Free(body []Stmt) (out []*Local) {
	seen := map[*Local]bool{}
	mention := func(x Expr) {
		if local, ok := x.(*Local); ok && !seen[local] {
			seen[local] = true
			out = append(out, local)
		}
	}
	var visit func(body []Stmt)
	visit = func(body []Stmt) {
		for _, s := range body {
			for _, x := range s.exprs() {
				for y := range All(*x) {
					mention(y)
				}
			}
			if d, ok := s.(*Declare); ok {
				for _, v := range d.Vars {
					if local, ok := v.Name.(*Local); ok {
						seen[local] = true
					}
				}
			}
			for _, inner := range s.blocks() {
				visit(*inner)
			}
		}
	}
	visit(body)
	return out
}

// NameLocals gives the variables of a function names: in the order of the text, each gets what it wants to be called,
// or, if that is taken, that with a number. Taken is what the function mentions besides: what has a name already,
// and what it calls. The names of what a block declares are free after it.
func (f *Func) NameLocals() {
	n := &naming{names: map[*Local]Ident{}, taken: map[Ident]bool{}}
	Exprs(f.Body, func(x Expr) {
		switch x := x.(type) {
		case Ident:
			n.taken[x] = true
		case Call:
			n.taken[Ident(x.Name)] = true
		}
	})
	for _, p := range f.Params {
		n.take(p.Name)
	}
	Each(f.Body, func(s Stmt) {
		if d, ok := s.(*Declare); ok {
			for _, v := range d.Vars {
				n.take(v.Name)
			}
		}
	})
	for i := range f.Params {
		f.Params[i].Name = n.name(f.Params[i].Name)
	}
	n.block(f.Body)
}

type naming struct {
	names    map[*Local]Ident
	taken    map[Ident]bool
	declared []*Local // in blocks that aren't left
}

func (n *naming) take(x Name) {
	if name, ok := x.(Ident); ok {
		n.taken[name] = true
	}
}

// name is what a variable is called.
func (n *naming) name(x Name) Ident {
	local, ok := x.(*Local)
	if !ok {
		return x.(Ident)
	}
	if name, ok := n.names[local]; ok {
		return name
	}
	name := Ident(local.Want)
	for i := 2; n.taken[name]; i++ {
		name = Ident(fmt.Sprintf("%s_%d", local.Want, i))
	}
	n.names[local], n.taken[name] = name, true
	return name
}

// block names what statements with a scope of their own mention.
func (n *naming) block(body []Stmt) {
	outer := len(n.declared)
	n.statements(body)
	for _, x := range n.declared[outer:] {
		delete(n.taken, n.names[x])
		delete(n.names, x)
	}
	n.declared = n.declared[:outer]
}

func (n *naming) statements(body []Stmt) {
	for _, s := range body {
		if l, ok := s.(*List); ok {
			n.statements(l.Body)
			continue
		}
		if d, ok := s.(*Declare); ok {
			for i, v := range d.Vars {
				if local, ok := v.Name.(*Local); ok {
					n.declared = append(n.declared, local)
				}
				d.Vars[i].Name = n.name(v.Name)
			}
		}
		for _, x := range s.exprs() {
			*x = Replace(*x, func(x Expr) Expr {
				if local, ok := x.(*Local); ok {
					return n.name(local)
				}
				return nil
			})
		}
		for _, inner := range s.blocks() {
			n.block(*inner)
		}
	}
}
