package c

import "slices"

// Branches that joining functions leaves, in fewer words. A flag is a variable that is 0 or 1.
//
//	if (flag) { if (x) s; }                becomes  if (flag && x) s;
//	if (!flag) s; else t;                  becomes  if (flag) t; else s;
//	!flag ? x : y                          becomes  flag ? y : x
//	if (flag) return f(1); return f(0);    becomes  return f(flag);

// Simplify does so in a function.
func (f *Func) Simplify(isFlag func(*Local) bool) {
	s := simplifier{isFlag}
	f.Body = s.body(f.Body)
	ReplaceIn(f.Body, s.choice)
}

type simplifier struct{ isFlag func(*Local) bool }

// body simplifies statements from the last to the first, and those in them before.
func (s simplifier) body(list []Stmt) []Stmt {
	var out []Stmt // backwards
	for i := len(list) - 1; i >= 0; i-- {
		for _, b := range list[i].blocks() {
			*b = s.body(*b)
		}
		branch, ok := list[i].(*If)
		if !ok {
			out = append(out, list[i])
			continue
		}
		s.turn(branch)
		merge(branch)
		last := only(out)
		if x, ok := s.returns(branch, last); ok {
			out = []Stmt{x}
			continue
		}
		out = append(out, branch)
	}
	slices.Reverse(out)
	return out
}

// only is the one statement of a list, beside gaps; nil: there are more, or none.
func only(list []Stmt) (out Stmt) {
	for _, s := range flat(list) {
		if _, ok := s.(Gap); ok {
			continue
		}
		if out != nil {
			return nil
		}
		out = s
	}
	return out
}

// flag reports whether an expression is a flag, or the opposite of one.
func (s simplifier) flag(x Expr) bool {
	x, _ = opposite(x)
	local, ok := x.(*Local)
	return ok && s.isFlag(local)
}

// opposite is x of !x.
func opposite(x Expr) (Expr, bool) {
	if u, ok := x.(Unary); ok && u.Op == "!" {
		return u.X, true
	}
	return x, false
}

// turn exchanges the sides of a branch on the opposite of a flag.
func (s simplifier) turn(branch *If) {
	if x, not := opposite(branch.Cond); not && s.flag(x) && Statements(branch.Else) > 0 {
		branch.Cond, branch.Then, branch.Else = x, branch.Else, branch.Then
	}
}

func (s simplifier) choice(x Expr) Expr {
	c, ok := x.(Choice)
	if !ok {
		return nil
	}
	if y, not := opposite(c.If); not && s.flag(y) {
		c = Choice{y, c.Else, c.Then}
	}
	return Choice{Replace(c.If, s.choice), Replace(c.Then, s.choice), Replace(c.Else, s.choice)}
}

// merge has a branch be one with the only one in it.
func merge(branch *If) {
	inner, ok := only(branch.Then).(*If)
	if !ok || len(branch.Else)+len(inner.Else) > 0 || branch.Note != "" ||
		branch.Pos != inner.Pos && branch.Pos.IsValid() {
		return
	}
	*branch = If{Pos: inner.Pos, Cond: Binary{"&&", branch.Cond, inner.Cond}, Note: inner.Note, Then: inner.Then}
}

// returns is a branch on a flag, and what is returned else, if both call the same function with the flag or its
// opposite.
func (s simplifier) returns(branch *If, last Stmt) (Stmt, bool) {
	if len(branch.Else) > 0 {
		if last != nil {
			return nil, false
		}
		last = only(branch.Else)
	}
	one, ok1 := only(branch.Then).(*Return)
	other, ok2 := last.(*Return)
	if !ok1 || !ok2 || !s.flag(branch.Cond) {
		return nil, false
	}
	x, ok1 := one.X.(Call)
	y, ok2 := other.X.(Call)
	if !ok1 || !ok2 || x.Name != y.Name || len(x.Args) != len(y.Args) {
		return nil, false
	}
	args := make([]Expr, len(x.Args))
	for i := range args {
		switch a, b := x.Args[i], y.Args[i]; {
		case Equal(a, b):
			args[i] = a
		case Equal(a, Num(1)) && Equal(b, Num(0)):
			args[i] = branch.Cond
		case Equal(a, Num(0)) && Equal(b, Num(1)):
			args[i] = Not(branch.Cond)
			if c, not := opposite(branch.Cond); not {
				args[i] = c
			}
		default:
			return nil, false
		}
	}
	return &Return{Pos: other.Pos, X: Call{x.Name, args}}, true
}
