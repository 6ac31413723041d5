package bpf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

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

const (
	atPlace = "at"   // where the header begins
	whyMark = "\x02" // around the name of a reason, while functions are compared
)

var whys = regexp.MustCompile(whyMark + `(\w+)` + whyMark)

// findChecks renders all programs to see what is checked more than once.
func (r *renderer) findChecks() {
	names, marks := maps.Clone(r.names), len(r.marks)
	r.checks, r.dry = map[string]*check{}, true
	for _, p := range r.plan.Programs {
		r.program(p)
	}
	r.names, r.marks, r.dry = names, r.marks[:marks], false
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
	g.block(stmts)
	end, ok := f.found(stmts)
	text := strings.Join(append(g.headerPointers(packetCame, fixed), g.text()...), "\n")
	for _, v := range f.prog.ir.Vars { // parameters
		if contains(g.varsUsed, v) && !g.own[v] {
			text += fmt.Sprint("\n", g.nameOf(v), v.Type.IsBytes())
		}
	}
	if end != nil {
		text += "\n*" + g.nameOf(end)
	}
	if !ok || strings.Count(text, "fr_up(") != len(whys.FindAllString(text, -1)) ||
		strings.Contains(text, "fr_drop(") || len(g.rowsUsed) > 0 || len(g.hopsUsed) > 0 || len(g.ptrsUsed) > 0 ||
		g.now || g.leased || !g.dataEnd {
		return 0
	}
	use := checkUse{f.prog, map[string]int{}}
	text = marked.ReplaceAllString(whys.ReplaceAllStringFunc(text, func(s string) string {
		i := slices.Index(f.prog.reasons, strings.Trim(s, whyMark))
		name := f.prog.ir.Reasons[i].Name
		use.numbers[name] = f.prog.ir.Base + i
		return name
	}), "")
	if f.dry {
		c := f.checks[text]
		if c == nil {
			c = &check{}
			f.checks[text] = c
		}
		c.uses = append(c.uses, use)
		for _, s := range stmts {
			f.prog.inCheck[s] = true
		}
		return 0
	}
	c := f.checks[text]
	if c == nil || len(c.uses) < 2 {
		return 0
	}
	groups := c.groups()
	if len(groups) > 2 {
		return 0
	}
	f.callCheck(c, g, stmts, end, use, groups)
	return n
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
func (c *check) groups() (first map[string]string) {
	first = map[string]string{}
	var heads []string
	names := slices.SortedFunc(maps.Keys(c.uses[0].numbers), func(a, b string) int {
		return c.uses[0].numbers[a] - c.uses[0].numbers[b]
	})
	for _, name := range names {
		i := slices.IndexFunc(heads, func(head string) bool {
			return !slices.ContainsFunc(c.uses, func(u checkUse) bool { return c.moved(u, head) != c.moved(u, name) })
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
func (c *check) moved(u checkUse, name string) int { return u.numbers[name] - c.uses[0].numbers[name] }

// callCheck renders the call of a function that checks, and the function, unless it is there.
func (f *function) callCheck(
	c *check, g *function, stmts []ir.Stmt, end *ir.Var, use checkUse, groups map[string]string,
) {
	part := g.checking.part
	f.quote(ir.Pos(stmts[0]))
	own := func(name string) string { return f.prog.reasons[use.numbers[name]-f.prog.ir.Base] }
	their := func(name string) string {
		p := c.uses[0].prog
		return p.reasons[c.uses[0].numbers[name]-p.ir.Base]
	}
	f.known, f.reason, f.scope = g.known.clone(), g.reason, g.scope
	result := ""
	if end != nil {
		f.variable(end)
		f.declare(end)
		f.outs = append(f.outs, f.nameOf(end))
		result = "&" + f.nameOf(end)
	}
	w := f.prog.function() // what the call needs
	w.varsUsed, w.own, w.varNames, w.dataEnd, w.data = g.varsUsed, g.own, g.varNames, true, true
	params, args := f.pass(w)
	if part.At.Const > 0 {
		params, args = append(params, "const __u32 "+atPlace), append(args, fmt.Sprint(part.At.Const))
	}
	if end != nil {
		params, args = append(params, "__u64 *end"), append(args, result)
	}
	heads := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return c.uses[0].numbers[a] - c.uses[0].numbers[b]
	})
	of := map[string]string{} // what is added to a reason
	next := "of"
	for _, head := range heads {
		if !slices.ContainsFunc(c.uses, func(u checkUse) bool { return c.moved(u, head) != 0 }) {
			continue
		}
		for _, name := range strings.Fields(groups[head]) {
			of[name] = " + " + next
		}
		arg := "0"
		if own(head) != their(head) {
			arg = f.apart(c.uses[0].prog, their(head), own(head), head)
		}
		params, args = append(params, "const __u32 "+next), append(args, arg)
		next = "of_2"
	}
	if c.name == "" {
		c.name = f.prog.unique("check_" + ident(part.Header))
		g.lines = append(g.lines, "")
		if end != nil {
			g.line("*end = %s;", g.nameOf(end))
		}
		g.line("return 0;")
		lines := g.assemble("static __always_inline int " + c.name + "(" + strings.Join(params, ", ") + ")")
		for i, line := range lines {
			lines[i] = whys.ReplaceAllStringFunc(line, func(s string) string {
				name := f.prog.ir.Reasons[slices.Index(f.prog.reasons, strings.Trim(s, whyMark))].Name
				return their(name) + of[name]
			})
		}
		f.prog.writes = append(f.prog.writes, lines)
	}
	call := fmt.Sprintf("%s(%s)", c.name, strings.Join(args, ", "))
	if n := len(f.lines); n > 1 && [2]string(f.lines[n-2:]) == f.lastCheck { // nothing came in between
		last := strings.Trim(unmarked(f.lines[n-2:n-1]), "\t")
		f.lines = f.lines[:n-2]
		f.stmt(ir.Pos(stmts[0]), "%s || %s)", strings.TrimSuffix(last, ")"), call)
	} else {
		f.stmt(ir.Pos(stmts[0]), "if (%s)", call)
	}
	f.stmt(ir.Pos(stmts[0]), "\treturn TC_ACT_UNSPEC;")
	f.lastCheck = [2]string(f.lines[len(f.lines)-2:])
}

// apart is how far a reason is from one of another program.
func (f *function) apart(other *program, their, own, reason string) string {
	theirs, ours, name := ident(other.ir.Name), ident(f.prog.ir.Name), ident(reason)
	if their == "reason_"+theirs+"_"+name && own == "reason_"+ours+"_"+name {
		return fmt.Sprintf("FR_APART(%s, %s, %s)", theirs, ours, name)
	}
	return own + " - " + their
}

// constant is an integer in C: where a header begins or ends that is checked has a name.
func (f *function) constantOf(v uint64, suffix string) string {
	if c := f.checking; c != nil && c.part.At.Const > 0 {
		switch int(v) {
		case c.part.At.Const:
			return atPlace
		case c.part.At.Const + c.size:
			return fmt.Sprintf("(%s + sizeof(*%s))", atPlace, f.to(c.part, packetCame))
		}
	}
	return number(v) + suffix
}
