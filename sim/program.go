package sim

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// program is a plan's program, prepared to run: variables and rows are numbered, and every statement has the point that
// counts how often it ran.
type program struct {
	ir     *ir.Program
	vars   map[*ir.Var]int
	rows   map[*ir.Row]int
	body   []*node
	points []*Point
}

// node is a statement in its place. A plan may use one statement in several places; each is a node of its own.
type node struct {
	stmt     ir.Stmt
	then     []*node
	els      []*node
	ran      *Point
	yes, no  *Point   // If: the branches taken; Guard: no where it fails; Lookup: yes where a row is found, no where not
	outcomes []*Point // CheckHop: by state, and behind them the packet that is too big

	// CheckHop: the rewrite that follows, if any. The kernel cuts a super-packet into segments on its way out, each with the
	// headers of the new front, and it is the segments that have to fit the MTU.
	segment *ir.Rewrite
}

func prepare(plan *ir.Plan, p *ir.Program) (*program, error) {
	prog := &program{ir: p, vars: map[*ir.Var]int{}, rows: map[*ir.Row]int{}}
	for i, v := range p.Vars {
		prog.vars[v] = i
	}
	known := map[*ir.Table]bool{}
	for _, t := range plan.Tables {
		known[t] = true
	}
	for i, row := range p.Rows {
		if !known[row.Table] {
			return nil, fmt.Errorf("row %q: its table is not in the plan", row.Name)
		}
		prog.rows[row] = i
	}
	b := builder{prog: prog}
	prog.body = b.block(p.Body)
	return prog, b.err
}

// builder makes nodes of statements, and checks that reasons are of the kind that their use needs.
type builder struct {
	prog *program
	err  error
}

func (b *builder) block(stmts []ir.Stmt) []*node {
	nodes := make([]*node, len(stmts))
	for i, s := range stmts {
		nodes[i] = b.node(s)
		if _, ok := s.(*ir.CheckHop); ok {
			nodes[i].segment = rewriteOf(stmts[i+1:])
		}
	}
	return nodes
}

// rewriteOf returns the first rewrite in statements.
func rewriteOf(stmts []ir.Stmt) *ir.Rewrite {
	for _, s := range stmts {
		switch s := s.(type) {
		case *ir.Forward:
			return s.Rewrite
		case *ir.If:
			if w := rewriteOf(s.Then); w != nil {
				return w
			}
			return rewriteOf(s.Else)
		}
	}
	return nil
}

func (b *builder) node(s ir.Stmt) *node {
	n := &node{stmt: s}
	switch s := s.(type) {
	case *ir.NeedBytes:
		n.ran, n.no = b.point(s.Pos, "need bytes"), b.outcome(s.Pos, "need bytes: too short")
		b.reason(s.Reason, ir.Went)
	case *ir.Let:
		n.ran = b.point(s.Pos, "let "+s.Var.Name)
	case *ir.Guard:
		n.ran, n.no = b.point(s.Pos, "guard"), b.outcome(s.Pos, "guard: "+b.reason(s.Reason, ir.Went))
	case *ir.If:
		n.ran = b.point(s.Pos, "if "+s.Note)
		n.yes, n.no = b.outcome(s.Pos, "if "+s.Note+": then"), b.outcome(s.Pos, "if "+s.Note+": else")
		n.then, n.els = b.block(s.Then), b.block(s.Else)
	case *ir.ReadVarint:
		n.ran, n.no = b.point(s.Pos, "varint "+s.Value.Name), b.outcome(s.Pos, "varint "+s.Value.Name+": "+b.reason(s.Reason, ir.Went))
	case *ir.Lookup:
		n.ran = b.point(s.Pos, "lookup "+s.Row.Name)
		n.yes, n.no = b.outcome(s.Pos, "lookup "+s.Row.Name+": found"), b.outcome(s.Pos, "lookup "+s.Row.Name+": missing")
		if s.Miss >= 0 {
			b.reason(s.Miss, ir.Went)
		}
	case *ir.Count:
		n.ran = b.point(s.Pos, "count")
	case *ir.Learn:
		n.ran, n.no = b.point(s.Pos, "learn "+s.Table.Name), b.outcome(s.Pos, "learn "+s.Table.Name+": "+b.reason(s.Full, ir.Went))
	case *ir.CheckHop:
		n.ran = b.point(s.Pos, "hop")
		for state, reason := range s.Reasons {
			name := ""
			if state != ir.HopDirect && state != ir.HopNeighbour {
				name = b.reason(reason, ir.Went)
			}
			n.outcomes = append(n.outcomes, b.outcome(s.Pos, fmt.Sprintf("hop: %s %s", stateNames[state], name)))
		}
		n.outcomes = append(n.outcomes, b.outcome(s.Pos, "hop: "+b.reason(s.TooBig, ir.Went)))
	case *ir.Up:
		n.ran = b.point(s.Pos, "up: "+b.reason(s.Reason, ir.Went))
	case *ir.Drop:
		n.ran = b.point(s.Pos, "drop: "+b.reason(s.Reason, ir.Dropped))
	case *ir.Forward:
		kind := ir.Passed
		if s.Hop != nil {
			kind = ir.Sent
		}
		n.ran = b.point(s.Pos, "forward: "+b.reason(s.Reason, kind))
	default:
		b.fail("a statement of type %T", s)
	}
	return n
}

var stateNames = [ir.HopStates]string{"none", "direct", "neighbour", "local", "unreachable", "blackhole", "prohibit"}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// reason checks that a reason is there and of the kind that its use needs, and returns its name.
func (b *builder) reason(i int, kind ir.ReasonKind) string {
	if i < 0 || i >= len(b.prog.ir.Reasons) {
		b.fail("reason %d: there are %d", i, len(b.prog.ir.Reasons))
		return ""
	}
	r := b.prog.ir.Reasons[i]
	if r.Kind != kind {
		b.fail("reason %q is of kind %d, its use needs %d", r.Name, r.Kind, kind)
	}
	return r.Name
}
