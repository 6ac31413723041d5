package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
)

// unit is what the functions of all programs are until they are printed, and the passes over them.
type unit struct {
	*renderer
	programs  []*program
	functions []*c.Func
	structs   []*c.Struct
	entries   map[*c.Func]bool // functions that the kernel calls with a packet
	owner     map[*c.Func]*program
	roots     [][]*c.Func // of each program, what isn't called

	shared   []c.Top   // what several programs use
	sections [][]c.Top // what each uses alone
}

// add adds what was made of a program.
func (u *unit) add(p *program, entry *c.Func, list []c.Top) {
	if u.entries == nil {
		u.entries, u.owner = map[*c.Func]bool{}, map[*c.Func]*program{}
	}
	u.programs = append(u.programs, p)
	u.entries[entry] = !p.flow
	for _, top := range list {
		switch top := top.(type) {
		case *c.Func:
			u.functions = append(u.functions, top)
			u.owner[top] = p
		case *c.Struct:
			u.structs = append(u.structs, top)
		}
	}
}

// passes are what is done with functions when all are there.
func (u *unit) passes() {
	u.roots = make([][]*c.Func, len(u.programs))
	called := mentions(u.functions)
	for _, f := range u.functions {
		if !called[f.Name] {
			i := slices.Index(u.programs, u.owner[f])
			u.roots[i] = append(u.roots[i], f)
		}
	}
	u.giveBases()
	u.shareStructures()
	users := u.meet()
	for _, f := range u.functions {
		u.askProgram(f, users[f])
		f.Simplify(isFlag)
	}
	if packet := u.inContext(u.given()); packet != nil {
		u.structs = append([]*c.Struct{packet}, u.structs...)
	}
	u.sort()
	for _, f := range u.functions {
		f.NameLocals()
	}
}

// given are the functions that are given what is known of a packet.
func (u *unit) given() []*c.Func {
	return slices.DeleteFunc(slices.Clone(u.functions), func(f *c.Func) bool { return u.apart[f] })
}

// mentions are the names that functions call or mention.
func mentions(functions []*c.Func) map[string]bool {
	out := map[string]bool{}
	for _, f := range functions {
		c.Exprs(f.Body, func(x c.Expr) {
			switch x := x.(type) {
			case c.Call:
				out[x.Name] = true
			case c.Ident:
				out[string(x)] = true
			}
		})
	}
	return out
}

// base is where the program counts.
var base = c.NewLocal("prog", "__u32")

// giveBases gives functions where their program counts: then functions of two programs may be the same. The ones that
// the kernel calls know it.
func (u *unit) giveBases() {
	if len(u.bases) == 0 {
		return
	}
	all := slices.Collect(maps.Values(u.bases))
	isBase := func(x c.Expr) bool {
		name, ok := x.(c.Ident)
		return ok && slices.Contains(all, name)
	}
	called := map[string]bool{} // by functions that know it
	for _, f := range u.functions {
		maps.Copy(called, mentions([]*c.Func{f}))
	}
	for f := range u.entries {
		called[f.Name] = false
	}
	needs := map[string]bool{}
	isNeeded := func(x c.Expr) bool {
		call, ok := x.(c.Call)
		return ok && needs[call.Name]
	}
	for more := true; more; {
		more = false
		for _, f := range u.functions {
			if !called[f.Name] || needs[f.Name] {
				continue
			}
			c.Exprs(f.Body, func(x c.Expr) { needs[f.Name] = needs[f.Name] || isBase(x) || isNeeded(x) })
			more = more || needs[f.Name]
		}
	}
	for _, f := range u.functions {
		u.giveBase(f, called[f.Name], needs, isBase)
	}
}

// giveBase gives a function where its program counts, and those that it calls.
func (u *unit) giveBase(f *c.Func, called bool, needs map[string]bool, isBase func(c.Expr) bool) {
	_, entry := u.entries[f]
	used := false
	var replaced func(x c.Expr) c.Expr
	replaced = func(x c.Expr) c.Expr {
		if isBase(x) && !entry {
			used = true
			return base
		}
		call, ok := x.(c.Call)
		if !ok || !needs[call.Name] {
			return nil
		}
		used = true
		args := make([]c.Expr, len(call.Args))
		for i, arg := range call.Args {
			args[i] = c.Replace(arg, replaced)
		}
		return c.Do(call.Name, append(args, base)...)
	}
	c.ReplaceIn(f.Body, replaced)
	switch {
	case !used:
	case !called || u.isPassed(f):
		f.Body = slices.Insert(f.Body, 0, define(base.Type, base, u.bases[u.owner[f].ir]))
	case u.apart[f]:
		f.Params = append(f.Params, c.Param{Type: base.Type.Const(), Name: base})
	default:
		f.Params = append(f.Params, c.Param{Type: base.Type, Name: base})
	}
}

// isPassed reports whether the kernel calls a function that others pass on.
func (u *unit) isPassed(f *c.Func) bool { return f.Linkage != c.Inline }

// sort puts functions behind those that they call, and each into the section of the program that alone uses it.
func (u *unit) sort() {
	byName := map[string]*c.Func{}
	for _, f := range u.functions {
		byName[f.Name] = f
	}
	var order []*c.Func
	const several = -1
	section := map[*c.Func]int{}
	for i, roots := range u.roots {
		seen := map[*c.Func]bool{}
		var visit func(f *c.Func)
		visit = func(f *c.Func) {
			if f == nil || seen[f] {
				return
			}
			seen[f] = true
			c.Exprs(f.Body, func(x c.Expr) {
				switch x := x.(type) {
				case c.Call:
					visit(byName[x.Name])
				case c.Ident:
					visit(byName[string(x)])
				}
			})
			if _, again := section[f]; again {
				section[f] = several
				return
			}
			section[f] = i
			order = append(order, f)
		}
		for _, f := range roots {
			visit(f)
		}
	}
	for _, s := range u.structs {
		u.shared = append(u.shared, s)
	}
	u.sections = make([][]c.Top, len(u.programs))
	for _, f := range order {
		if i := section[f]; i == several {
			u.shared = append(u.shared, f)
		} else {
			u.sections[i] = append(u.sections[i], f)
		}
	}
	u.functions = order
}

// shareStructures has fan-outs use the same two structures: all of them, or else those of each program.
func (u *unit) shareStructures() {
	for _, kind := range []string{"same", "fan"} {
		var all []*c.Struct
		of := map[*program][]*c.Struct{}
		for _, s := range u.structs {
			for _, p := range u.programs {
				if name := p.short + "_" + kind; unnumbered(s.Name) == name && s.Name != name {
					all, of[p] = append(all, s), append(of[p], s)
				}
			}
		}
		if !u.share(all, kind) {
			for _, p := range u.programs {
				u.share(of[p], p.short+"_"+kind)
			}
		}
	}
}

// share has one structure be in the place of several, if what is called the same in them is the same.
func (u *unit) share(old []*c.Struct, name string) bool {
	if len(old) < 2 {
		return true
	}
	whole := &c.Struct{Name: name, Doc: old[0].Doc}
	words := 0
	for _, s := range old {
		for _, x := range s.Members {
			i := slices.IndexFunc(whole.Members, func(y c.Param) bool { return x.Name == y.Name })
			if i < 0 {
				whole.Members = append(whole.Members, x)
				words += wordsOf(x)
			} else if whole.Members[i] != x {
				return false
			}
		}
	}
	u.sameSize = max(u.sameSize, words)
	for i, s := range old {
		at := slices.Index(u.structs, s)
		if i == 0 {
			u.structs[at] = whole
		} else {
			u.structs = slices.Delete(u.structs, at, at+1)
		}
		for _, f := range u.functions {
			f.Retype(c.StructType(s.Name), c.StructType(whole.Name))
		}
	}
	return true
}

// wordsOf is how many words of 8 bytes a member takes at most.
func wordsOf(x c.Param) (n int) {
	if _, err := fmt.Sscanf(x.Tail, "[%d]", &n); err == nil {
		return n
	}
	return 1
}

// inOrder sorts variables in the order of the plan.
func (u *unit) inOrder(list []*c.Local) []*c.Local {
	rank := map[*c.Local]int{}
	for _, p := range u.programs {
		for _, x := range p.order() {
			if _, known := rank[x]; !known {
				rank[x] = len(rank)
			}
		}
	}
	at := func(x *c.Local) int {
		if i, ok := rank[x]; ok {
			return i
		}
		return len(rank)
	}
	slices.SortStableFunc(list, func(x, y *c.Local) int { return at(x) - at(y) })
	return list
}
