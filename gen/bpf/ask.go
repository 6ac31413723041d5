package bpf

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
)

// A function of several programs asks which one it runs for, and often more than once. This pass finds the largest
// conditions that depend on nothing else, and has equal ones be one variable, that says for which programs it is 1:
//
//	const int is_a_or_b = prog == PROG_A || prog == PROG_B;
//
// Of a set of programs and its complement, the smaller one is asked for.

// asks is how often a condition is asked for if it has a variable.
const asks = 2

// asking are the conditions on the program in a function.
type asking struct {
	*unit
	users []*program // of the function
	times map[uint64]int
	names map[uint64]*c.Local
}

// askProgram is the pass, for a function of such programs.
func (u *unit) askProgram(f *c.Func, users []*program) {
	if len(users) < 2 || len(users) > 64 {
		return
	}
	a := &asking{unit: u, users: users, times: map[uint64]int{}, names: map[uint64]*c.Local{}}
	at := func(p *program) int { return slices.Index(u.programs, p) }
	slices.SortFunc(a.users, func(p, q *program) int { return at(p) - at(q) })
	c.ReplaceIn(f.Body, func(x c.Expr) c.Expr {
		if set, ok := a.programs(x); ok {
			set, _ = a.smaller(set)
			a.times[set]++
			return x
		}
		return nil
	})
	var front []c.Stmt
	c.ReplaceIn(f.Body, func(x c.Expr) c.Expr {
		set, ok := a.programs(x)
		if !ok {
			return nil
		}
		set, not := a.smaller(set)
		if a.times[set] < asks || set == 0 {
			return a.condition(set, not)
		}
		if a.names[set] == nil {
			a.names[set] = c.NewLocal(a.name(set), flagType)
			front = append(front, define(flagType, a.names[set], a.condition(set, false)))
		}
		if not {
			return c.Not(a.names[set])
		}
		return a.names[set]
	})
	f.Body = append(front, f.Body...)
}

// programs are those for which a condition holds, as bits; false: it depends on something else.
func (a *asking) programs(x c.Expr) (uint64, bool) {
	switch x := x.(type) {
	case c.Unary:
		set, ok := a.programs(x.X)
		return a.all() &^ set, ok && x.Op == "!"
	case c.Binary:
		if x.Op == "==" && x.X == c.Expr(base) {
			i := slices.IndexFunc(a.users, func(p *program) bool { return x.Y == c.Expr(a.bases[p.ir]) })
			return 1 << max(i, 0), i >= 0
		}
		if x.Op == "||" {
			one, ok1 := a.programs(x.X)
			other, ok2 := a.programs(x.Y)
			return one | other, ok1 && ok2
		}
	}
	return 0, false
}

func (a *asking) all() uint64 { return 1<<len(a.users) - 1 }

// smaller is a set or its complement; of two that are as large, the one without the first program.
func (a *asking) smaller(set uint64) (_ uint64, not bool) {
	other := a.all() &^ set
	n, m := bits.OnesCount64(set), bits.OnesCount64(other)
	if n < m || n == m && set&1 == 0 {
		return set, false
	}
	return other, true
}

// condition asks for the programs of a set, or for all but these.
func (a *asking) condition(set uint64, not bool) c.Expr {
	is, op, list := "==", "||", []c.Expr(nil)
	if not {
		is, op = "!=", "&&"
	}
	for i, p := range a.users {
		if set&(1<<i) != 0 {
			list = append(list, c.Binary{Op: is, X: base, Y: a.bases[p.ir]})
		}
	}
	switch {
	case len(list) > 0:
		return c.Join(op, list...)
	case not:
		return c.Num(1)
	}
	return c.Num(0)
}

// name says which programs are in a set.
func (a *asking) name(set uint64) string {
	var names []string
	for i, p := range a.users {
		if set&(1<<i) != 0 {
			names = append(names, p.short)
		}
	}
	return "is_" + strings.Join(names, "_or_")
}
