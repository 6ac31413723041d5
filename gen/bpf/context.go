package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// What functions know of a packet stands in a structure, struct packet, which each is given a pointer to.
// Since all is inlined, clang keeps its members in registers.
//
// This pass finds the variables that functions are given, and has all functions of the program use a member for each.
// Variables that are called the same, and that no function has at the same time, share one.

// pkt is the pointer to the structure; in the function that the kernel calls it is the structure.
const pkt = c.Ident("pkt")

// context is the structure.
type context struct {
	*unit
	functions []*c.Func
	params    map[string][]c.Param // of functions, before the pass
	member    map[*c.Local]string
	list      []c.Param
}

func (u *unit) context(functions []*c.Func) *context {
	x := &context{unit: u, functions: functions, params: map[string][]c.Param{}, member: map[*c.Local]string{}}
	for _, f := range functions {
		x.params[f.Name] = f.Params
	}
	return x
}

// inContext has functions use members of the structure. It returns the structure, or nil: nothing is given.
func (u *unit) inContext(functions []*c.Func) *c.Struct {
	x := u.context(functions)
	x.members()
	if len(x.list) == 0 {
		return nil
	}
	for _, f := range functions {
		x.rewrite(f, u.entries[f])
	}
	return &c.Struct{Doc: "What is known of a packet.", Name: packetType, Members: x.list}
}

const packetType = "packet"

// isMember reports whether a variable is a member.
func (x *context) isMember(name c.Name) bool {
	local, ok := name.(*c.Local)
	return ok && x.member[local] != ""
}

// canBeMember reports whether a variable can be one: a structure or a string of bytes on the stack can't, since it is
// given to functions of the kernel.
func (r *renderer) canBeMember(x *c.Local) bool {
	switch of := r.of[x].(type) {
	case *ir.Var:
		return !of.Type.IsBytes()
	case *ir.Row, pointerTo:
		return true
	}
	return x == data || x == dataEnd || x == lease || x == now || x == whole || x == base
}

// members gives the variables that functions are given members.
func (x *context) members() {
	together := x.interferences()
	classes := x.classes(together)
	meet := x.meet()
	taken := map[string][]*c.Local{}
	clash := func(name string, class []*c.Local) bool {
		return slices.ContainsFunc(taken[name], func(other *c.Local) bool {
			return slices.ContainsFunc(class, func(one *c.Local) bool {
				pair := [2]*c.Local{one, other}
				return one.Type != other.Type || meet[pair] || together[pair]
			})
		})
	}
	for _, class := range classes {
		want := class[0].Want
		name := want
		for i := 2; clash(name, class); i++ {
			name = fmt.Sprintf("%s_%d", want, i)
		}
		if taken[name] == nil {
			x.list = append(x.list, c.Param{Type: class[0].Type, Name: c.Ident(name)})
		}
		taken[name] = append(taken[name], class...)
		for _, local := range class {
			x.member[local] = name
		}
	}
}

// classes are the variables that functions are given; those that one parameter has are one class, unless two of them
// hold values at the same time: then the parameter gets its value where the function is called.
func (x *context) classes(together interference) (out [][]*c.Local) {
	of := map[*c.Local]int{}
	var order []*c.Local
	add := func(local *c.Local) {
		if _, ok := of[local]; !ok {
			of[local] = len(of)
			order = append(order, local)
		}
	}
	for _, f := range x.functions {
		for _, p := range f.Params {
			if local, ok := p.Name.(*c.Local); ok && x.canBeMember(local) {
				add(local)
			}
		}
	}
	for _, f := range x.functions {
		c.Exprs(f.Body, func(y c.Expr) {
			call, ok := y.(c.Call)
			if !ok {
				return
			}
			for i, p := range x.params[call.Name] {
				param, ok1 := p.Name.(*c.Local)
				given, ok2 := call.Args[i].(*c.Local)
				if !ok1 || !ok2 || !x.canBeMember(param) || param == given {
					continue
				}
				add(given)
				unite(of, given, param, together)
			}
		})
	}
	at := map[int]int{}
	for _, local := range x.inOrder(order) {
		i, ok := at[of[local]]
		if !ok {
			i = len(out)
			at[of[local]] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], local)
	}
	return out
}

// unite makes one class of those of two variables, unless variables of the two hold values at the same time.
func unite(of map[*c.Local]int, given, param *c.Local, together interference) {
	from, to := of[given], of[param]
	for one, class := range of {
		for other, with := range of {
			if from != to && class == from && with == to && together[[2]*c.Local{one, other}] {
				return
			}
		}
	}
	for local, class := range of {
		if class == from {
			of[local] = to
		}
	}
}

// meet are the pairs of variables that a function has both of on one path through it.
func (x *context) meet() map[[2]*c.Local]bool {
	out := map[[2]*c.Local]bool{}
	for _, f := range x.functions {
		has := map[*c.Local]bool{}
		for _, p := range f.Params {
			if local, ok := p.Name.(*c.Local); ok {
				has[local] = true
			}
		}
		eachPath(f.Body, has, func(has map[*c.Local]bool) {
			for one := range has {
				for other := range has {
					out[[2]*c.Local{one, other}] = one != other
				}
			}
		})
	}
	return out
}

// eachPath calls end with the variables that each path through statements mentions, those of has included. A branch
// that returns is a path of its own.
func eachPath(body []c.Stmt, has map[*c.Local]bool, end func(map[*c.Local]bool)) {
	mention := func(x c.Expr) {
		if local, ok := x.(*c.Local); ok {
			has[local] = true
		}
	}
	for _, s := range body {
		if branch, ok := s.(*c.If); ok && len(branch.Else) == 0 && c.Returns(branch.Then) {
			for x := range c.All(branch.Cond) {
				mention(x)
			}
			eachPath(branch.Then, maps.Clone(has), end)
		} else {
			c.Exprs([]c.Stmt{s}, mention)
		}
	}
	end(has)
}

// rewrite has a function use members.
func (x *context) rewrite(f *c.Func, entry bool) {
	shares := x.shares(f)
	f.Body = c.Rewrite(f.Body, func(s c.Stmt) []c.Stmt { return append(x.handed(s), x.assigned(s, shares)...) })
	c.ReplaceIn(f.Body, func(y c.Expr) c.Expr { return x.replaced(y, entry) })
	if entry {
		f.Body = slices.Insert(f.Body, 0, variable(c.StructType(packetType), pkt))
		return
	}
	f.Params = slices.DeleteFunc(slices.Clone(f.Params), func(p c.Param) bool { return x.isMember(p.Name) })
	own := c.Param{Type: c.Pointer(c.StructType(packetType)), Name: pkt}
	f.Params = slices.Insert(f.Params, min(1, len(f.Params)), own)
}

// handed are the values of a call's parameters that are other members than what it is given, or a choice of some. A
// number is given where nothing reads the parameter.
func (x *context) handed(s c.Stmt) (out []c.Stmt) {
	own := []c.Stmt{s}
	switch branch := s.(type) {
	case *c.If: // what is in its blocks comes by itself
		own = []c.Stmt{&c.Eval{X: branch.Cond}}
	case *c.Block, *c.List:
		return nil
	}
	type value struct {
		of c.Param
		x  c.Expr
	}
	var values []value
	c.Exprs(own, func(y c.Expr) {
		call, ok := y.(c.Call)
		if !ok {
			return
		}
		for i, p := range x.params[call.Name] {
			if !x.isMember(p.Name) {
				continue
			}
			switch given := call.Args[i].(type) {
			case c.Number:
				continue
			case *c.Local:
				if x.member[given] == x.member[p.Name.(*c.Local)] {
					continue
				}
			}
			values = append(values, value{p, call.Args[i]})
		}
	})
	var last []c.Stmt
	for _, v := range values {
		var from c.Expr = v.x
		if len(values) > 1 { // two may change places
			saved := c.NewLocal(v.of.Name.(*c.Local).Want, v.of.Type)
			out, from = append(out, define(v.of.Type, saved, v.x)), saved
		}
		last = append(last, &c.Assign{To: v.of.Name, Op: "=", X: from})
	}
	return append(out, last...)
}

// shares are the members that several variables of a function have. In a function that serves two callers they are
// variables of one caller each.
func (x *context) shares(f *c.Func) map[string]bool {
	one, several := map[string]*c.Local{}, map[string]bool{}
	see := func(name c.Expr) {
		local, ok := name.(*c.Local)
		if !ok || x.member[local] == "" {
			return
		}
		m := x.member[local]
		several[m] = several[m] || one[m] != nil && one[m] != local
		one[m] = local
	}
	for _, p := range f.Params {
		see(p.Name)
	}
	c.Exprs(f.Body, see)
	c.Each(f.Body, func(s c.Stmt) {
		if d, ok := s.(*c.Declare); ok {
			for _, v := range d.Vars {
				see(v.Name)
			}
		}
	})
	return several
}

// assigned is what declares a variable, if it is a member: a value is assigned. One that nothing reads would overwrite
// what another caller has in the member.
func (x *context) assigned(s c.Stmt, shares map[string]bool) (out []c.Stmt) {
	d, ok := s.(*c.Declare)
	if !ok {
		return []c.Stmt{s}
	}
	rest := *d
	rest.Vars = nil
	for _, v := range d.Vars {
		if !x.isMember(v.Name) {
			rest.Vars = append(rest.Vars, v)
		} else if v.Init != nil && !(v.Idle && shares[x.member[v.Name.(*c.Local)]]) {
			out = append(out, &c.Assign{Pos: d.Pos, To: v.Name, Op: "=", X: v.Init})
		}
	}
	if len(rest.Vars) > 0 {
		out = append(out, &rest)
	}
	return out
}

// replaced is an expression that has a member for a variable, and calls that give the structure; nil: it stays.
func (x *context) replaced(y c.Expr, entry bool) c.Expr {
	switch y := y.(type) {
	case *c.Local:
		switch {
		case !x.isMember(y):
		case entry:
			return c.In(pkt, x.member[y])
		default:
			return c.To(pkt, x.member[y])
		}
	case c.Call:
		params, ok := x.params[y.Name]
		if !ok {
			return nil
		}
		var args []c.Expr
		for i, p := range params {
			if !x.isMember(p.Name) {
				args = append(args, c.Replace(y.Args[i], func(z c.Expr) c.Expr { return x.replaced(z, entry) }))
			}
		}
		at := c.Expr(pkt)
		if entry {
			at = c.Address(pkt)
		}
		return c.Do(y.Name, slices.Insert(args, min(1, len(args)), at)...)
	}
	return nil
}
