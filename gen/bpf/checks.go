package bpf

import (
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// What several programs, or several ways through one, check about a header in the same way stands once, in a function,
// check_HEADER, which passes the packet to the stack, or returns 0. Since it is inlined, that costs nothing.
//
// Where such functions are is known after all programs have been rendered once: then they are rendered again. In a
// function of several programs, reasons are the first one's; of says how far those of another one are from there.

// check is what is checked in one place or several.
type check struct {
	name string // of the function; empty until it is written
	uses []checkUse
}

// checkUse is one place: by which number its program counts a reason.
type checkUse struct {
	prog    *program
	numbers map[string]int
}

// checking is what a function has that makes checks for others.
type checking struct {
	part *ir.HeaderPart
	size int
}

// atPlace is where the header begins.
const atPlace = "at"

// findChecks renders all programs to see what is checked more than once.
func (r *renderer) findChecks() {
	names := maps.Clone(r.names)
	r.checks, r.dry = map[c.Key]*check{}, true
	for _, p := range r.plan.Programs {
		r.program(p)
	}
	r.names, r.dry = names, false
}

// minChecks is how many lines are worth a function.
const minChecks = 4

// checksOf is the number of statements that a block begins with which only check a header at a fixed offset, or what is
// known of a packet and its first header.
func (f *function) checksOf(stmts []ir.Stmt) (n int, header *ir.NeedBytes) {
	if f.fan != nil || f.turn != nil || f.prog.flow || f.checking != nil || f.prog.inCheck[stmts[0]] {
		return 0, nil
	}
	n = slices.IndexFunc(stmts, func(s ir.Stmt) bool {
		switch s := s.(type) {
		case *ir.NeedBytes:
			if header == nil && s.Part != nil && s.Part.At.Base == nil && s.End.Base == nil &&
				(s == stmts[0]) == (s.Part.At.Const > 0) {
				header = s
				return false
			}
		case *ir.Guard:
			return false
		case *ir.Let:
			return s.Var.Type.IsBytes() || isMeta(s.Value, ir.Partial)
		case *ir.If:
			return len(s.Else) > 0 || !ends(s.Then) || size(s.Then) >= branchSize ||
				slices.ContainsFunc(s.Then, notACheck)
		}
		return true
	})
	if n < 0 || header == nil || size(stmts[:n]) < minChecks {
		return 0, nil
	}
	return n, header
}

func notACheck(s ir.Stmt) bool {
	switch s.(type) {
	case *ir.Guard, *ir.Up:
		return false
	}
	return true
}

// check renders the checks of a header that a block begins with as a call, where they are made elsewhere as well. It
// returns how many statements these are.
func (f *function) check(stmts []ir.Stmt) int {
	n, need := f.checksOf(stmts)
	if n == 0 {
		return 0
	}
	stmts = stmts[:n]
	g := f.prog.function()
	g.checking = &checking{need.Part, f.header(need.Part).size}
	g.scope, g.known, g.reason = f.scope, f.known.clone(), f.reason
	g.names[atPlace], g.names["end"], g.names["of"] = true, true, true
	g.names["of_2"] = true
	g.statements(stmts)
	end, ok := f.found(stmts)
	text := append(g.headerPointers(packetCame, fixed), g.text()...)
	if !ok || !onlyChecks(text) || len(g.rowsUsed) > 0 || len(g.hopsUsed) > 0 || len(g.ptrsUsed) > 0 || g.now ||
		g.leased || !g.dataEnd {
		return 0
	}
	use := checkUse{f.prog, map[string]int{}}
	c.Exprs(text, func(x c.Expr) {
		if why, ok := x.(c.Alias); ok {
			use.numbers[why.As] = f.prog.ir.Base + slices.Index(f.prog.reasons, why.Name)
		}
	})
	for _, v := range f.prog.ir.Vars { // parameters
		if contains(g.varsUsed, v) && !g.own[v] {
			text = append(text, variable(paramType(v), c.Ident(g.nameOf(v))))
		}
	}
	if end != nil {
		text = append(text, variable("__u64 *", c.Ident(g.nameOf(end))))
	}
	key := c.KeyOfBody(text)
	if f.dry {
		found := f.checks[key]
		if found == nil {
			found = &check{}
			f.checks[key] = found
		}
		found.uses = append(found.uses, use)
		for _, s := range stmts {
			f.prog.inCheck[s] = true
		}
		return 0
	}
	found := f.checks[key]
	if found == nil || len(found.uses) < 2 {
		return 0
	}
	groups := found.groups()
	if len(groups) > 2 {
		return 0
	}
	f.callCheck(found, g, stmts, end, use, groups)
	return n
}

// onlyChecks reports whether what statements return is only that a packet passes to the stack, for a reason of its own.
func onlyChecks(body []c.Stmt) (ok bool) {
	ok = true
	c.Exprs(body, func(x c.Expr) {
		call, isCall := x.(c.Call)
		if !isCall || call.Name != "fr_up" && call.Name != "fr_drop" {
			return
		}
		_, named := call.Args[len(call.Args)-1].(c.Alias)
		ok = ok && call.Name == "fr_up" && named
	})
	return ok
}

// found is the variable that checks give a value which others read; false: there are several, or they are declared.
func (f *function) found(stmts []ir.Stmt) (end *ir.Var, ok bool) {
	inside, sets := map[ir.Stmt]bool{}, map[*ir.Var]bool{}
	for s := range ir.Stmts(stmts) {
		inside[s] = true
		for v := range ir.Sets(s) {
			if sets[v] = true; f.declared[v] {
				return nil, false
			}
		}
	}
	for s := range ir.Stmts(f.prog.ir.Body) {
		if inside[s] {
			continue
		}
		for v := range ir.Reads(s) {
			if sets[v] && end != nil && v != end {
				return nil, false
			}
			if sets[v] {
				end = v
			}
		}
	}
	return end, true
}

// groups are reasons that are at the same distance from each other wherever the checks are made: the first one of each.
func (k *check) groups() (first map[string]string) {
	first = map[string]string{}
	var heads []string
	names := slices.SortedFunc(maps.Keys(k.uses[0].numbers), func(a, b string) int {
		return k.uses[0].numbers[a] - k.uses[0].numbers[b]
	})
	for _, name := range names {
		i := slices.IndexFunc(heads, func(head string) bool {
			return !slices.ContainsFunc(k.uses, func(u checkUse) bool { return k.moved(u, head) != k.moved(u, name) })
		})
		if i < 0 {
			i = len(heads)
			heads = append(heads, name)
		}
		first[heads[i]] += " " + name
	}
	return first
}

// moved is how far a reason is in a place from where it is in the first one.
func (k *check) moved(u checkUse, name string) int { return u.numbers[name] - k.uses[0].numbers[name] }

// callCheck renders the call of a function that checks, and the function, unless it is there.
func (f *function) callCheck(
	k *check, g *function, stmts []ir.Stmt, end *ir.Var, use checkUse, groups map[string]string,
) {
	part, pos := g.checking.part, ir.Pos(stmts[0])
	f.quote(pos)
	own := func(name string) c.Ident { return f.prog.reasons[use.numbers[name]-f.prog.ir.Base] }
	their := func(name string) c.Ident {
		p := k.uses[0].prog
		return p.reasons[k.uses[0].numbers[name]-p.ir.Base]
	}
	f.known, f.reason, f.scope = g.known.clone(), g.reason, g.scope
	w := f.prog.function() // what the call needs
	w.varsUsed, w.own, w.varNames, w.dataEnd, w.data = g.varsUsed, g.own, g.varNames, true, true
	if end != nil {
		f.declared[end], f.own[end] = true, true
		f.outs = append(f.outs, f.variable(end))
	}
	params, args := f.pass(w)
	give := func(typ string, name c.Ident, arg c.Expr) {
		params, args = append(params, c.Param{Type: typ, Name: name}), append(args, arg)
	}
	if part.At.Const > 0 {
		give("const __u32", atPlace, c.Dec(part.At.Const))
	}
	if end != nil {
		give("__u64 *", "end", c.Address(f.variable(end)))
	}
	heads := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return k.uses[0].numbers[a] - k.uses[0].numbers[b]
	})
	of := map[string]c.Ident{} // what is added to a reason
	next := c.Ident("of")
	for _, head := range heads {
		if !slices.ContainsFunc(k.uses, func(u checkUse) bool { return k.moved(u, head) != 0 }) {
			continue
		}
		for _, name := range strings.Fields(groups[head]) {
			of[name] = next
		}
		arg := c.Expr(c.Num(0))
		if own(head) != their(head) {
			arg = f.apart(k.uses[0].prog, their(head), own(head), head)
		}
		give("const __u32", next, arg)
		next = "of_2"
	}
	if k.name == "" {
		k.name = f.prog.unique("check_" + ident(part.Header))
		g.gap()
		if end != nil {
			g.assign(noPos, c.Unary{Op: "*", X: c.Ident("end")}, c.Ident(g.nameOf(end)))
		}
		g.end(noPos, c.Num(0))
		out := g.assemble("int", k.name, params)
		c.ReplaceIn(out.Body, func(x c.Expr) c.Expr {
			why, ok := x.(c.Alias)
			if !ok {
				return nil
			}
			if by := of[why.As]; by != "" {
				return c.Binary{Op: "+", X: their(why.As), Y: by}
			}
			return their(why.As)
		})
		f.prog.functions = append(f.prog.functions, out)
	}
	call := c.Do(k.name, args...)
	if body := *f.block; len(body) > 0 && f.lastCheck != nil && body[len(body)-1] == c.Stmt(f.lastCheck) {
		f.lastCheck.Cond = c.Join("||", f.lastCheck.Cond, call) // nothing came in between
		return
	}
	f.lastCheck = f.when(pos, call, func() { f.end(pos, c.Ident("TC_ACT_UNSPEC")) })
}

// apart is how far a reason is from one of another program.
func (f *function) apart(other *program, their, own c.Ident, reason string) c.Expr {
	theirs, ours, name := c.Ident(ident(other.ir.Name)), c.Ident(ident(f.prog.ir.Name)), c.Ident(ident(reason))
	if their == "reason_"+theirs+"_"+name && own == "reason_"+ours+"_"+name {
		return c.Do("FR_APART", theirs, ours, name)
	}
	return c.Binary{Op: "-", X: own, Y: their}
}

// constantOf is an integer: where a header begins or ends that is checked has a name.
func (f *function) constantOf(v uint64, form c.Form) c.Expr {
	if x := f.checking; x != nil && x.part.At.Const > 0 {
		at := c.Ident(atPlace)
		switch int(v) {
		case x.part.At.Const:
			return at
		case x.part.At.Const + x.size:
			header := c.Unary{Op: "*", X: f.to(x.part, packetCame)}
			return c.Binary{Op: "+", X: at, Y: c.Do("sizeof", header)}
		}
	}
	return c.Number{V: v, Form: form}
}
