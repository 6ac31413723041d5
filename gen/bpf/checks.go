package bpf

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// What is checked about a header stands in a function, check_HEADER, which returns the reason for which the packet
// passes to the stack, or 0; who calls it counts that. Several programs, or several ways through one, that check the
// same call the same function: it is found by its tree. Since it is inlined, that costs nothing.

// checking is what a function has that makes checks for others.
type checking struct {
	run   *ir.FieldRun
	size  int
	drops bool // it does something else than to say why
}

// Parameters of functions that check.
const (
	atPlace = c.Ident("at")  // where the header begins
	endAt   = c.Ident("end") // a pointer to what is found
)

// why is the reason that such a function has returned.
const why = c.Ident("why")

// lastCheck are the statements of the last call of functions that check.
type lastCheck struct {
	call   *c.Expr
	counts *c.If
}

// minChecks is how many lines are worth a function.
const minChecks = 4

// checksOf is the number of statements that a block begins with which only check a header at a fixed offset, or what is
// known of a packet and its first header.
func (f *function) checksOf(stmts []ir.Stmt) (n int, header *ir.NeedBytes) {
	if f.fan != nil || f.turn != nil || f.prog.flow || f.checking != nil {
		return 0, nil
	}
	n = slices.IndexFunc(stmts, func(s ir.Stmt) bool {
		switch s := s.(type) {
		case *ir.NeedBytes:
			if header == nil && s.Run != nil && s.Run.At.Base == nil && s.End.Base == nil &&
				(s == stmts[0]) == (s.Run.At.Const > 0) {
				header = s
				return false
			}
		case *ir.Guard:
			return s.Rule
		case *ir.Let:
			return s.Var.Type.IsBytes() || isMeta(s.Value, ir.Partial)
		case *ir.If:
			return s.Note == ruleNote || len(s.Else) > 0 || !ends(s.Then) || size(s.Then) >= branchSize ||
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
	case *ir.Guard, *ir.Punt:
		return false
	}
	return true
}

// check renders the checks of a header that a block begins with as a call. It returns how many statements these are.
func (f *function) check(stmts []ir.Stmt) int {
	n, need := f.checksOf(stmts)
	if n == 0 {
		return 0
	}
	stmts = stmts[:n]
	g := f.prog.function()
	g.checking = &checking{run: need.Run, size: f.header(need.Run).size}
	g.scope, g.known, g.reason = f.scope, f.known.clone(), f.reason
	g.statements(stmts)
	end, ok := f.found(stmts)
	body := slices.Concat(g.headerPointers(packetReceived, fixed), g.text())
	free := f.prog.inOrder(c.Free(body))
	if !ok || g.checking.drops || !slices.Contains(free, dataEnd) || slices.ContainsFunc(free, f.prog.isNotGiven) {
		return 0
	}
	if end != nil {
		g.gap()
		g.assign(noPos, c.Unary{Op: "*", X: endAt}, f.variable(end))
		f.declared[end] = true
		use(&f.outs, f.variable(end))
	}
	f.quote(ir.Pos(stmts[0]))
	f.known, f.reason, f.scope = g.known.clone(), g.reason, g.scope
	f.callCheck(g, f.checkFunction(g, need.Run, free, end), free, end, ir.Pos(stmts[0]))
	return n
}

// checkFunction is the name of the function that checks.
func (f *function) checkFunction(g *function, run *ir.FieldRun, free []*c.Local, end *ir.Var) string {
	g.end(noPos, c.Num(0))
	made := &c.Func{Result: f.prog.whyType(), Params: []c.Param{f.prog.ctx()}}
	for _, x := range free {
		made.Params = append(made.Params, c.Param{Type: x.Type, Name: x})
	}
	if run.At.Const > 0 {
		made.Params = append(made.Params, c.Param{Type: "const __u32", Name: atPlace})
	}
	if end != nil {
		made.Params = append(made.Params, c.Param{Type: "__u64 *", Name: endAt})
	}
	made.Body = slices.Concat(g.headerPointers(packetReceived, fixed), g.text())
	key := c.KeyOfBody(append(parameters(made.Params), made.Body...))
	if f.checks[key] == "" {
		made.Name = f.prog.unique("check_" + ident(run.Header))
		f.checks[key] = made.Name
		f.prog.functions, f.apart[made] = append(f.prog.functions, made), true
	}
	return f.checks[key]
}

// callCheck calls a function that checks. Calls that follow each other are one expression.
func (f *function) callCheck(g *function, name string, free []*c.Local, end *ir.Var, pos diag.Pos) {
	args := f.prog.arguments(free)
	if at := g.checking.run.At.Const; at > 0 {
		args = append(args, c.Dec(at))
	}
	if end != nil {
		args = append(args, c.Address(f.variable(end)))
	}
	call := c.Do(name, args...)
	if body := *f.block; len(body) > 0 && f.lastCheck != nil && body[len(body)-1] == c.Stmt(f.lastCheck.counts) {
		*f.lastCheck.call = c.Join("?:", *f.lastCheck.call, call)
		return
	}
	first := f.lastCheck == nil
	f.lastCheck = &lastCheck{}
	if first && f.block == &f.body {
		s := &c.Declare{Pos: pos, Type: f.prog.whyType(), Vars: []c.Var{{Name: why, Init: call}}}
		f.add(s)
		f.lastCheck.call = &s.Vars[0].Init
	} else {
		s := &c.Assign{Pos: pos, To: why, Op: "=", X: call}
		f.add(s)
		f.lastCheck.call, f.asksWhy = &s.X, f.asksWhy || first
	}
	f.lastCheck.counts = f.when(pos, why, func() {
		if f.prog.ir.ToTC {
			f.end(pos, why)
			return
		}
		f.end(pos, f.stop(f.prog.counted(why)))
	})
}

// whyType is the type of what functions that check return; at XDP that is what is returned to the kernel.
func (p *program) whyType() c.Type {
	if p.ir.ToTC {
		return p.verdict()
	}
	return "__u32"
}

// isNotGiven reports whether a variable is none of those that functions which check are given.
func (p *program) isNotGiven(x *c.Local) bool {
	_, ok := p.renderer.of[x].(*ir.Var)
	return !ok && x != data && x != dataEnd
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

// constantOf is an integer: where a header begins or ends that is checked has a name.
func (f *function) constantOf(v uint64, form c.Form) c.Expr {
	if x := f.checking; x != nil && x.run.At.Const > 0 {
		at := atPlace
		switch int(v) {
		case x.run.At.Const:
			return at
		case x.run.At.Const + x.size:
			header := c.Unary{Op: "*", X: f.to(x.run, packetReceived)}
			return c.Binary{Op: "+", X: at, Y: c.Do("sizeof", header)}
		}
	}
	return c.Number{V: v, Form: form}
}
