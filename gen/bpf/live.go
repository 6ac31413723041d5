package bpf

import (
	"maps"

	"github.com/fastrelay/fastrelay-gen/gen/c"
)

// This pass finds which variables hold values at the same time: they can't share a member of struct packet. It follows
// each function from its end to its beginning, and notes at each value that is given which others are still read. A
// function that serves several callers is followed as each of them runs it: a branch on a flag is taken in one way.

// mostFlagsFollowed is how many flags a function may have of which all combinations are followed. If it has more, each
// branch is taken in both ways.
const mostFlagsFollowed = 6

// interference are the pairs of variables that hold values at the same time.
type interference map[[2]*c.Local]bool

func (i interference) add(a, b *c.Local) {
	if a != b {
		i[[2]*c.Local{a, b}], i[[2]*c.Local{b, a}] = true, true
	}
}

// live are the variables whose values are read later.
type live map[*c.Local]bool

// follower follows a function.
type follower struct {
	found  interference
	flags  map[*c.Local]bool    // with their values
	params map[string][]c.Param // of the functions that are called
}

// interferences finds the pairs of a program's functions.
func (x *context) interferences() interference {
	found := interference{}
	for _, f := range x.functions {
		var flags []*c.Local
		for _, p := range f.Params {
			if local, ok := p.Name.(*c.Local); ok && isFlag(local) {
				flags = append(flags, local)
			}
		}
		c.Each(f.Body, func(s c.Stmt) {
			if d, ok := s.(*c.Declare); ok {
				for _, v := range d.Vars {
					if local, ok := v.Name.(*c.Local); ok && isFlag(local) {
						flags = append(flags, local)
					}
				}
			}
		})
		if len(flags) > mostFlagsFollowed {
			flags = nil
		}
		for values := range 1 << len(flags) {
			w := &follower{found: found, flags: map[*c.Local]bool{}, params: x.params}
			for i, flag := range flags {
				w.flags[flag] = values>>i&1 != 0
			}
			w.block(f.Body, live{})
		}
	}
	return found
}

// block returns what is read of what was there before statements, if after is read afterwards.
func (w *follower) block(body []c.Stmt, after live) live {
	for i := len(body) - 1; i >= 0; i-- {
		switch s := body[i].(type) {
		case *c.Return:
			after = live{}
			w.read(s.X, after)
		case *c.If:
			if yes, known := w.truth(s.Cond); known && yes {
				after = w.block(s.Then, after)
			} else if known {
				after = w.block(s.Else, after)
			} else {
				both := w.block(s.Then, maps.Clone(after))
				maps.Copy(both, w.block(s.Else, maps.Clone(after)))
				after = both
				w.read(s.Cond, after)
			}
		case *c.Block:
			after = w.block(s.Body, after)
		case *c.List:
			after = w.block(s.Body, after)
		case *c.Assign:
			if local, ok := s.To.(*c.Local); ok && s.Op == "=" {
				w.write(local, after)
				delete(after, local)
			} else {
				w.read(s.To, after)
			}
			w.read(s.X, after)
		case *c.Declare:
			for j := len(s.Vars) - 1; j >= 0; j-- {
				v := s.Vars[j]
				if local, ok := v.Name.(*c.Local); ok {
					if v.Init != nil && !v.Idle {
						w.write(local, after)
					}
					delete(after, local)
				}
				w.read(v.Init, after)
			}
		case *c.Eval:
			w.read(s.X, after)
		}
	}
	return after
}

// truth is the value of a condition, if it is a flag's.
func (w *follower) truth(cond c.Expr) (yes, known bool) {
	switch x := cond.(type) {
	case *c.Local:
		yes, known = w.flags[x]
	case c.Unary:
		if yes, known = w.truth(x.X); x.Op == "!" {
			return !yes, known
		}
		known = false
	}
	return yes, known
}

// write notes what is still read when a variable gets a value.
func (w *follower) write(local *c.Local, after live) {
	for other := range after {
		w.found.add(local, other)
	}
}

// read adds the variables that an expression reads. One whose address is taken gets a value, too; so do the parameters
// of a function that is called.
func (w *follower) read(x c.Expr, after live) {
	if x == nil {
		return
	}
	if choice, ok := x.(c.Choice); ok {
		if yes, known := w.truth(choice.If); known && yes {
			w.read(choice.Then, after)
			return
		} else if known {
			w.read(choice.Else, after)
			return
		}
	}
	switch x := x.(type) {
	case *c.Local:
		after[x] = true
		return
	case c.Unary:
		if local, ok := x.X.(*c.Local); ok && x.Op == "&" {
			w.write(local, after)
		}
	case c.Call:
		for i, p := range w.params[x.Name] {
			param, ok := p.Name.(*c.Local)
			if !ok {
				continue
			}
			for other := range after {
				if i < len(x.Args) && x.Args[i] != c.Expr(other) {
					w.found.add(param, other)
				}
			}
		}
	}
	for _, part := range c.Operands(x) {
		w.read(part, after)
	}
}
