package c

import (
	"fmt"
	"slices"
)

// The statements of two functions are aligned: a longest common subsequence, by their shapes. Those that pair are
// unified, from the first to the last: a variable of one is a variable of the other, always the same one; a value that
// differs is chosen by the flag. What can't be unified is no pair.

// item is a statement, and comments and gaps in front of it.
type item struct {
	lead         []Stmt
	s            Stmt
	shape, frame string
	blocks       [][]item
}

// pairs is what it is worth to have one of two statements; 0: they don't pair.
func (x item) pairs(y item) int {
	switch {
	case x.shape == y.shape:
		return 2 + inBlocks(x.s, y.s)
	case x.frame == y.frame && x.frame != "":
		return 1 + inBlocks(x.s, y.s)
	}
	return 0
}

// shaper writes what statements that may be unified have in common.
type shaper struct{ constant func(Ident) bool }

func (h shaper) items(body []Stmt) (out []item) {
	var lead []Stmt
	for _, s := range flat(body) {
		switch s.(type) {
		case Gap, *Note:
			lead = append(lead, s)
		default:
			x := item{lead: lead, s: s, shape: h.shape(s), frame: h.frame(s)}
			for _, block := range s.blocks() {
				x.blocks = append(x.blocks, h.items(*block))
			}
			out = append(out, x)
			lead = nil
		}
	}
	return out
}

// shape is the same for statements that may be unified. The blocks of a branch make no difference.
func (h shaper) shape(s Stmt) string {
	e := encoder{local: func(*Local) string { return "l" }, constant: h.constant}
	switch s := s.(type) {
	case *Declare:
		e.WriteString("declare " + string(s.Type))
		for _, v := range s.Vars {
			if name, ok := v.Name.(Ident); ok {
				e.WriteString(" " + string(name))
			}
			e.WriteString(v.Tail)
		}
	case *Assign:
		e.WriteString(s.Op)
	case *Eval:
		e.WriteString("eval")
	case *Return:
		e.WriteString("return")
	case *If:
		e.WriteString("if " + s.Note)
	case *Block:
		e.WriteString("block")
	}
	for _, x := range s.exprs() {
		if init, ok := (*x).(Init); !ok || len(init) > 0 {
			e.WriteString(" ")
			e.expr(*x)
		}
	}
	return e.String()
}

// frame is the same for statements that are the same but for values; "": there is none.
func (h shaper) frame(s Stmt) string {
	e := encoder{local: func(x *Local) string { return x.Want }, constant: h.constant}
	switch s := s.(type) {
	case *Declare:
		if len(s.Vars) != 1 || s.Vars[0].Init == nil || zeroed(s.Vars[0]) {
			return ""
		}
		e.WriteString("declare " + string(s.Type) + s.Vars[0].Tail)
		e.expr(s.Vars[0].Name)
	case *Assign:
		e.WriteString(s.Op)
		e.expr(s.To)
	case *Eval:
		call, ok := s.X.(Call)
		if !ok || len(call.Args) < 2 {
			return ""
		}
		fmt.Fprint(&e, "call ", call.Name, len(call.Args))
		e.expr(call.Args[0])
	default:
		return ""
	}
	return e.String()
}

// align pairs statements of the two.
func (m *Meeting) align(a, b []item) (out []joint) {
	best := make([][]int, len(a)+1)
	for i := range best {
		best[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			best[i][j] = max(best[i+1][j], best[i][j+1])
			if n := a[i].pairs(b[j]); n > 0 {
				best[i][j] = max(best[i][j], best[i+1][j+1]+n)
			}
		}
	}
	var only [2][]item
	differ := func() {
		if len(only[0])+len(only[1]) > 0 {
			out = append(out, joint{only: only})
			only = [2][]item{}
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i].pairs(b[j]) > 0 && best[i][j] == best[i+1][j+1]+a[i].pairs(b[j]):
			if one, ok := m.unifyItem(a[i], b[j]); ok {
				differ()
				out = append(out, one)
			} else {
				only[0], only[1] = append(only[0], a[i]), append(only[1], b[j])
			}
			i, j = i+1, j+1
		case best[i][j] == best[i+1][j]:
			only[0] = append(only[0], a[i])
			i++
		default:
			only[1] = append(only[1], b[j])
			j++
		}
	}
	only[0], only[1] = append(only[0], a[i:]...), append(only[1], b[j:]...)
	differ()
	return out
}

// inBlocks is how many statements are saved in the blocks of two statements, at most.
func inBlocks(a, b Stmt) (n int) {
	for i, x := range a.blocks() {
		n += min(Statements(*x), Statements(*b.blocks()[i]))
	}
	return n
}

// unifyItem makes one statement of two.
func (m *Meeting) unifyItem(a, b item) (joint, bool) {
	start := len(m.trail)
	s, ok := m.unifyStmt(a.s, b.s)
	if !ok {
		m.forget(start)
		return joint{}, false
	}
	out := joint{lead: joinLeads(a.lead, b.lead), both: s, after: m.zeroOne(a.s, b.s)}
	for i, block := range a.blocks {
		out.blocks = append(out.blocks, m.align(block, b.blocks[i]))
	}
	return out, true
}

// zeroOne has a variable be zeros if only one of the two functions declares it so.
func (m *Meeting) zeroOne(a, b Stmt) (out []Stmt) {
	d, ok := a.(*Declare)
	if !ok {
		return nil
	}
	for i, v := range d.Vars {
		w := b.(*Declare).Vars[i]
		if zeroed(v) == zeroed(w) {
			continue
		}
		only := Expr(m.flag)
		if zeroed(v) {
			only = Not(m.flag)
		}
		size := Do("sizeof", v.Name)
		zero := &Eval{X: Do("__builtin_memset", Address(v.Name), Num(0), size)}
		out = append(out, &If{Cond: only, Then: []Stmt{zero}})
	}
	return out
}

// joinLeads are the comments of both.
func joinLeads(a, b []Stmt) []Stmt {
	out := slices.Clone(a)
	for _, s := range b {
		note, ok := s.(*Note)
		if ok && !slices.ContainsFunc(a, func(t Stmt) bool { n, ok := t.(*Note); return ok && n.Text == note.Text }) {
			out = append(out, note)
		}
	}
	return out
}

// unifyStmt unifies all but the blocks, which the result has none of.
func (m *Meeting) unifyStmt(a, b Stmt) (Stmt, bool) {
	switch a := a.(type) {
	case *Declare:
		return m.unifyDeclare(a, b.(*Declare))
	case *Assign:
		b := b.(*Assign)
		to, ok1 := m.unify(a.To, b.To, false)
		x, ok2 := m.unify(a.X, b.X, true)
		return &Assign{Pos: a.Pos, To: to, Op: a.Op, X: x}, ok1 && ok2
	case *Eval:
		x, ok := m.unify(a.X, b.(*Eval).X, true)
		return &Eval{Pos: a.Pos, X: x}, ok
	case *Return:
		x, ok := m.unify(a.X, b.(*Return).X, true)
		return &Return{Pos: a.Pos, X: x}, ok
	case *If:
		x, ok := m.unify(a.Cond, b.(*If).Cond, true)
		return &If{Pos: a.Pos, Cond: x, Note: a.Note}, ok
	case *Block:
		return &Block{}, true
	}
	return nil, false
}

func (m *Meeting) unifyDeclare(a, b *Declare) (Stmt, bool) {
	out := &Declare{Pos: a.Pos, Type: a.Type}
	if len(a.Vars) != len(b.Vars) {
		return nil, false
	}
	for i, v := range a.Vars {
		w := b.Vars[i]
		if zeroed(v) != zeroed(w) && (v.Init == nil || w.Init == nil) {
			v.Init, w.Init = nil, nil
		}
		if v.Tail != w.Tail || (v.Init == nil) != (w.Init == nil) {
			return nil, false
		}
		if v.Init != nil {
			x, ok := m.unify(v.Init, w.Init, true)
			if !ok {
				return nil, false
			}
			v.Init = x
		}
		if _, ok := m.unify(v.Name, w.Name, false); !ok {
			return nil, false
		}
		out.Vars = append(out.Vars, v)
	}
	return out, true
}

// zeroed reports whether a variable is declared as all zeros.
func zeroed(v Var) bool {
	init, ok := v.Init.(Init)
	return ok && len(init) == 0
}

// unify makes one expression of two. Values may differ.
func (m *Meeting) unify(a, b Expr, value bool) (Expr, bool) {
	start := len(m.trail)
	x, ok := m.unifyOperands(a, b, value)
	if !ok && value && m.scalar(a, m.a) && m.scalar(b, m.b) && nodes(a)+nodes(b) <= mostNodes {
		m.forget(start)
		if y, ok := m.known(b); ok {
			return m.choose(a, y), true
		}
	}
	return x, ok
}

// mostNodes is how large two values are that stand in one expression, at most.
const mostNodes = 24

func nodes(x Expr) (n int) {
	for range All(x) {
		n++
	}
	return n
}

// known is an expression of the second function with the variables of the first one, if all have partners.
func (m *Meeting) known(b Expr) (Expr, bool) {
	ok := true
	x := Replace(b, func(x Expr) Expr {
		y, is := x.(*Local)
		if !is {
			return nil
		}
		if m.partner[1][y] != nil {
			return m.partner[1][y]
		}
		ok = ok && !m.a.has(y) && m.b.declared[y].Type == ""
		return y
	})
	return x, ok
}

// scalar reports whether an expression is that of an integer.
func (m *Meeting) scalar(x Expr, of *Prepared) bool {
	switch x := x.(type) {
	case Number:
		return true
	case Ident:
		return m.rules.Constant(x)
	case *Local:
		typ := of.declared[x].Type
		if typ == "" {
			typ = x.Type
		}
		return integers[typ]
	case Binary:
		return x.Op != "||" && x.Op != "&&" && m.scalar(x.X, of) && m.scalar(x.Y, of)
	case Choice:
		return m.scalar(x.Then, of) && m.scalar(x.Else, of)
	case Call:
		return m.rules.Integer(x.Name)
	case Cast:
		return integers[x.Type]
	}
	return false
}

var integers = map[Type]bool{
	"__u64": true, "__u32": true, "__be32": true, "__be16": true, "__s64": true, "int": true,
}

// unifyOperands makes one expression of two that are the same but for values in them.
func (m *Meeting) unifyOperands(a, b Expr, value bool) (Expr, bool) {
	switch x := a.(type) {
	case *Local:
		y, ok := b.(*Local)
		return x, ok && m.bind(x, y)
	case Number:
		if y, ok := b.(Number); ok && x.V == y.V && x.Form == y.Form {
			return x, true
		} else if ok && value && (x.Form == Wide) == (y.Form == Wide) {
			return m.choose(x, y), true
		}
		return nil, false
	case Ident:
		y, ok := b.(Ident)
		if !ok || x != y && !(value && m.rules.Constant(x) && m.rules.Constant(y)) {
			return nil, false
		} else if x != y {
			return m.choose(x, y), true
		}
		return x, true
	}
	if !sameNode(a, b) {
		return nil, false
	}
	old, other := a.parts(), b.parts()
	parts := make([]Expr, len(old))
	for i := range old {
		var ok bool
		if parts[i], ok = m.unify(old[i], other[i], value && mayChoose(a, i)); !ok {
			return nil, false
		}
	}
	return a.with(parts), true
}

// mayChoose reports whether a part of an expression may be chosen by the flag. What & is in front of is no value. What
// is computed only if another condition asks for it may not: clang folds such conditions before it inlines the
// function, and otherwise than those of constants; then the verifier meets branches in another order, and looks at up
// to half as many instructions more.
func mayChoose(x Expr, part int) bool {
	switch x := x.(type) {
	case Unary:
		return x.Op != "&"
	case Binary:
		return part == 0 || x.Op != "||" && x.Op != "&&"
	}
	return true
}

// sameNode reports whether two expressions are the same but for their parts.
func sameNode(a, b Expr) bool {
	if len(a.parts()) != len(b.parts()) {
		return false
	}
	switch x := a.(type) {
	case Call:
		y, ok := b.(Call)
		return ok && x.Name == y.Name
	case Field:
		y, ok := b.(Field)
		return ok && x.Name == y.Name && x.Pointer == y.Pointer
	case Index:
		_, ok := b.(Index)
		return ok
	case Unary:
		y, ok := b.(Unary)
		return ok && x.Op == y.Op
	case Cast:
		y, ok := b.(Cast)
		return ok && x.Type == y.Type
	case Binary:
		y, ok := b.(Binary)
		return ok && x.Op == y.Op
	case Choice:
		_, ok := b.(Choice)
		return ok
	case Init:
		y, ok := b.(Init)
		return ok && slices.EqualFunc(x, y, func(v, w Member) bool { return v.Name == w.Name })
	}
	return false
}

// choose is one value or the other, by the flag.
func (m *Meeting) choose(x, y Expr) Expr {
	if Equal(x, Num(0)) && Equal(y, Num(1)) {
		return m.flag
	}
	return Choice{m.flag, y, x}
}

// bind has a variable of the second function be one of the first.
func (m *Meeting) bind(x, y *Local) bool {
	if m.partner[0][x] != nil || m.partner[1][y] != nil {
		return m.partner[0][x] == y && m.partner[1][y] == x
	}
	if x != y && (m.b.has(x) || m.a.has(y)) {
		return false
	}
	dx, declared := m.a.declared[x]
	dy, alike := m.b.declared[y]
	switch {
	case declared != alike:
		return false
	case declared && (dx.Type != dy.Type || dx.Vars[0].Tail != dy.Vars[0].Tail):
		return false
	case !declared && x != y && (x.Type != y.Type || !m.rules.SameParam(x, y)):
		return false
	}
	m.partner[0][x], m.partner[1][y] = y, x
	m.trail = append(m.trail, x)
	return true
}

// forget undoes what was bound since.
func (m *Meeting) forget(start int) {
	for _, x := range m.trail[start:] {
		delete(m.partner[1], m.partner[0][x])
		delete(m.partner[0], x)
	}
	m.trail = m.trail[:start]
}
