package bpf

import (
	"maps"
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// The statements that decide. Each is one line of C if it can be, so that one #line attributes it.

// statements renders statements, and reports whether they end the packet's way.
func (f *function) statements(stmts []ir.Stmt) bool {
	for i := 0; i < len(stmts); i++ {
		s := stmts[i]
		if i > 0 && f.long(stmts[i:]) {
			f.gap()
			name, path := f.topic(s)
			f.end(ir.Pos(s), f.goOn(name, path, stmts[i:]))
			return true
		}
		if n := f.check(stmts[i:]); n > 0 {
			i += n - 1
			continue
		}
		if n := f.together(stmts[i:]); n > 1 {
			i += n - 1
			continue
		}
		if f.statement(s, stmts[i+1:]) {
			return true
		}
	}
	return false
}

// statement renders one statement; rest are those after it in the block. It reports whether it is a terminal.
func (f *function) statement(s ir.Stmt, rest []ir.Stmt) bool {
	switch s := s.(type) {
	case *ir.NeedBytes:
		f.quote(s.Pos)
		f.begins(s)
		f.need(s.End, f.reason, s.Pos)
	case *ir.Let:
		if !f.prog.read.vars[s.Var] {
			return false
		}
		f.quote(s.Pos)
		f.let(s)
	case *ir.Guard:
		f.guard([]ir.Stmt{s}, nil)
	case *ir.If:
		return f.branch(s)
	case *ir.ReadVarint:
		f.quote(s.Pos)
		if s.At.Base != nil {
			f.pointer(s.At.Base, s.Reason, s.Pos)
			if _, ok := f.known.bytes[s.At.Base]; !ok {
				f.known.bytes[s.At.Base] = 0
			}
		}
		f.declare(s.Pos, s.Value)
		f.set(s.Pos, s.Size, c.Do("fr_varint", f.ptr(s.At), dataEnd, c.Address(f.variable(s.Value))))
		f.unless(s.Pos, c.Not(f.variable(s.Size)), s.Reason)
	case *ir.ReadUint:
		f.readUint(s)
	case *ir.Lookup:
		f.lookup(s)
	case *ir.Count:
		f.quote(s.Pos)
		f.cover(s.Pos, s.By)
		f.counter(s)
	case *ir.Learn:
		f.cover(s.Pos, s)
		f.learn(s, nil)
	case *ir.CheckHop:
		f.checkHop(s, rest)
	case *ir.Ask:
		f.cover(s.Pos, &s.Effects)
		f.effects(&s.Effects).ask(0)
	case *ir.Punt:
		f.quote(s.Pos)
		f.end(s.Pos, f.punt(s.Reason))
		return true
	case *ir.Translate:
		f.translate(s)
	case *ir.FindElement:
		f.findElement(s)
	case *ir.Drop:
		f.drop(s)
		return true
	case *ir.Forward:
		f.forward(s)
		return true
	case *ir.FanOut:
		f.fanOut(s)
		return true
	case *ir.Copy:
		f.copy(s)
		return true
	case *ir.Skip:
		f.quote(s.Pos)
		f.end(s.Pos, f.punt(s.Reason))
		return true
	default:
		f.fail("no C for statement %T", s)
	}
	return false
}

// begins notes that a header's bytes are there from now on.
func (f *function) begins(s *ir.NeedBytes) {
	f.reason = s.Reason
	if s.Run == nil {
		return
	}
	f.scope = append(f.scope[:len(f.scope):len(f.scope)], s.Run)
	if v := s.Run.At.Base; v != nil && !f.pointer(v, f.reason, s.Pos) {
		f.pointsTo(v, s.Run)
	} else if v != nil {
		f.known.bytes[v] = 0
	}
}

// readUint reads an integer of variable size: the lower part of the word that ends where it does, so that the verifier
// has one way to follow, whatever the size.
func (f *function) readUint(s *ir.ReadUint) {
	f.quote(s.Pos)
	f.declare(s.Pos, s.Value)
	n := wordSize(s.Max)
	read := c.Do("fr_uint", f.word(f.offset(s.End.Plus(-n)), s.End.Base.Max), dataEnd, c.Dec(n),
		f.variable(s.Size), c.Address(f.variable(s.Value)))
	f.stopIf(s.Pos, c.Not(read), nil, f.puntFor(f.reason))
}

// word is an offset in the packet, of at most limit, as a pointer.
func (f *function) word(off c.Expr, limit uint64) c.Expr { return pinned(f.front(), off, limit) }

// wordSize is the size of the word that has room for n bytes.
func wordSize(n int) int { return 1 << bits.Len(uint(n-1)) }

// counter adds to a counter.
func (f *function) counter(s *ir.Count) {
	if s.Counter != nil {
		f.do(s.Pos, "fr_named_add", c.Dec(s.Counter.Index), f.expr(s.By))
	} else {
		f.do(s.Pos, "fr_shared_add", c.To(f.row(s.Row), member(s.Member)), f.expr(s.By))
	}
}

func (f *function) drop(s *ir.Drop) {
	f.quote(s.Pos)
	f.cover(s.Pos, &s.Effects)
	e := f.effects(&s.Effects)
	e.before()
	e.after()
	f.end(s.Pos, f.dropped(s.Reason))
}

func isMeta(e ir.Expr, k ir.MetaKind) bool {
	m, ok := e.(*ir.Meta)
	return ok && m.Kind == k
}

func isZero(e ir.Expr) bool {
	c, ok := e.(*ir.Const)
	return ok && c.V == 0
}

func (f *function) let(s *ir.Let) {
	f.cover(s.Pos, s.Value)
	if isMeta(s.Value, ir.Partial) {
		f.known.partial = s.Var
		f.prog.partials[s.Var] = true
	}
	if s.Var.Type.IsBytes() {
		f.declare(s.Pos, s.Var)
		f.store(untyped(f.variable(s.Var)), 0, f.bytes(s.Value), s.Pos)
		return
	}
	value := f.expr(s.Value)
	if f.prog.read.bases[s.Var] && s.Var.Max > 0 && s.Var.Max <= maxForgotten {
		value = c.Do(f.prog.helper("forget"), f.prog.given(), value)
	}
	f.set(s.Pos, s.Var, value)
}

// maxForgotten is the largest offset that fr_forget takes.
const maxForgotten = 0xFFF

// store writes a byte string to the stack at off bytes after an aligned address.
func (f *function) store(p c.Expr, off int, b byteString, pos diag.Pos) {
	done := 0
	for _, n := range pieces(off, b.size) {
		f.add(&c.Eval{Pos: pos, X: c.Bytes("st", n, c.Plus(p, off+done), b.load(done, n))})
		done += n
	}
}

func (f *function) branch(s *ir.If) bool {
	f.quote(s.Pos)
	f.cover(s.Pos, s.Cond)
	if f.sumsBeforeBranch(s) {
		f.whole = true
		defer func() { f.whole = false }()
	}
	last, declared := f.last, maps.Clone(f.declared)
	rows, scope := maps.Clone(f.rowsDeclared), f.scope
	defer func() { f.last = last }()
	thenEnds := ends(s.Then)
	before := f.known.clone()
	if f.last = thenEnds; thenEnds && size(s.Then) >= branchSize {
		f.when(s.Pos, f.expr(s.Cond), func() {
			name := s.Note
			if name == "" {
				name = "branch"
			}
			f.end(s.Pos, f.goOn(name, true, s.Then))
		})
		f.known = before
		if len(s.Else) == 0 {
			return false
		}
		f.last = last || ends(s.Else)
		return f.statements(s.Else)
	}
	if !thenEnds {
		f.declares(s.Then, s.Else)
		declared, rows = maps.Clone(f.declared), maps.Clone(f.rowsDeclared)
	}
	branch := f.when(s.Pos, f.expr(s.Cond), func() { f.statements(s.Then) })
	f.height++ // its end
	if s.Note != ruleNote {
		branch.Note = comment(s.Note)
	}
	then := f.known
	f.known, f.declared, f.rowsDeclared, f.scope = before, declared, rows, scope
	f.last = last
	if len(s.Else) == 0 {
		if !thenEnds {
			f.known = before.both(then)
		}
		return false
	}
	if thenEnds { // no else after a return
		return f.statements(s.Else)
	}
	f.last = ends(s.Else)
	elseEnds := false
	f.height++
	f.inside(&branch.Else, func() { elseEnds = f.statements(s.Else) })
	f.scope = scope
	if elseEnds {
		f.known = then
	} else {
		f.known = f.known.both(then)
	}
	return false
}

// ruleNote is the note of a branch that is a rule of the spec: the line in front of it shows which.
const ruleNote = "rule"
