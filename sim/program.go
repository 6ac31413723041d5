package sim

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// program is a plan's program, prepared to run: variables and rows are numbered, and every statement has the point that
// counts how often it ran.
type program struct {
	ir      *ir.Program
	vars    map[*ir.Var]int
	rows    map[*ir.Row]int
	body    []*node
	points  []*Point
	tallies []int // where the relay counts its reasons
}

// node is a statement in its place. A plan may use one statement in several places; each is a node of its own.
type node struct {
	stmt ir.Stmt
	then []*node
	els  []*node
	ran  *Point
	// If: the branches taken; Guard: no if it fails; Lookup: yes if a row is found, no if not
	yes, no  *Point
	outcomes []*Point // CheckHop: by state, and after them the packet that is too big
	effects  *effects // Drop, Forward, FanOut, Copy

	// CheckHop: the rewrite that follows, if any. The kernel cuts a GSO packet into segments when it leaves, each with
	// the headers of the new front, and it is the segments that have to fit the MTU.
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
	for _, g := range plan.Groups {
		known[g.Receivers] = true
	}
	for i, row := range p.Rows {
		if !known[row.Table] {
			return nil, fmt.Errorf("row %q: its table is not in the plan", row.Name)
		}
		prog.rows[row] = i
	}
	b := builder{plan: plan, prog: prog}
	prog.body = b.block(p.Body)
	return prog, b.err
}

// builder makes nodes of statements, and checks that reasons are of the kind that their use needs.
type builder struct {
	plan *ir.Plan
	prog *program
	each bool // inside of a FanOut's Each
	stmt ir.Stmt
	err  error
}

func (b *builder) block(stmts []ir.Stmt) []*node {
	nodes := make([]*node, len(stmts))
	for i, s := range stmts {
		nodes[i] = b.node(s)
		if _, ok := s.(*ir.CheckHop); ok {
			nodes[i].segment = ir.NextRewrite(stmts[i+1:])
		}
	}
	return nodes
}

func (b *builder) node(s ir.Stmt) *node {
	n := &node{stmt: s}
	b.stmt = s
	switch s := s.(type) {
	case *ir.NeedBytes:
		n.ran, n.no = b.point(s.Pos, "need bytes"), b.fails(s.Pos, "need bytes: too short")
		b.stop(s.Reason)
	case *ir.Let:
		n.ran = b.point(s.Pos, "let "+s.Var.Name)
	case *ir.Guard:
		n.ran, n.no = b.point(s.Pos, "guard"), b.fails(s.Pos, "guard: "+b.stop(s.Reason))
	case *ir.If:
		n.ran = b.point(s.Pos, "if "+s.Note)
		n.yes, n.no = b.outcome(s.Pos, "if "+s.Note+": then"), b.fails(s.Pos, "if "+s.Note+": else")
		n.then, n.els = b.block(s.Then), b.block(s.Else)
	case *ir.ReadVarint:
		n.ran, n.no = b.point(s.Pos, "varint "+s.Value.Name),
			b.outcome(s.Pos, "varint "+s.Value.Name+": "+b.stop(s.Reason))
	case *ir.ReadUint:
		n.ran = b.point(s.Pos, "read "+s.Value.Name)
	case *ir.Lookup:
		n.ran = b.point(s.Pos, "lookup "+s.Row.Name)
		n.yes, n.no = b.outcome(s.Pos, "lookup "+s.Row.Name+": found"),
			b.outcome(s.Pos, "lookup "+s.Row.Name+": missing")
		if s.Miss >= 0 {
			b.stop(s.Miss)
		}
	case *ir.Count:
		n.ran = b.point(s.Pos, "count")
	case *ir.Learn:
		n.ran, n.no = b.point(s.Pos, "learn "+s.Table.Name), b.outcome(s.Pos, "learn "+s.Table.Name+": "+b.stop(s.Full))
	case *ir.CheckHop:
		n.ran = b.point(s.Pos, "hop")
		for state, reason := range s.Reasons {
			name := ""
			if !leaves(abi.HopState(state), b.each || s.Direct) {
				name = b.stop(reason)
			}
			n.outcomes = append(n.outcomes, b.outcome(s.Pos, fmt.Sprintf("hop: %s %s", stateNames[state], name)))
		}
		n.outcomes = append(n.outcomes, b.outcome(s.Pos, "hop: "+b.stop(s.TooBig)))
	case *ir.FindElement:
		n.ran = b.point(s.Pos, "find "+s.Found.Name)
		n.yes, n.no = b.outcome(s.Pos, "find "+s.Found.Name+": found"),
			b.outcome(s.Pos, "find "+s.Found.Name+": missing")
		for _, f := range s.Forms {
			if f.IDBits != f.LenBits || f.IDBits != 4 && f.IDBits != 8 || f.Bias < 0 {
				b.fail("elements of %d and %d bits, with a bias of %d", f.IDBits, f.LenBits, f.Bias)
			}
		}
	case *ir.Translate:
		n.ran = b.point(s.Pos, "translate "+s.Var.Name)
		for _, what := range []string{"known", "new", b.stop(s.Unfinished), b.stop(s.Full)} {
			n.outcomes = append(n.outcomes, b.outcome(s.Pos, "translate "+s.Var.Name+": "+what))
		}
	case *ir.Ask:
		n.ran = b.point(s.Pos, "ask")
		n.effects = b.effects(&s.Effects)
	case *ir.Copy:
		if !b.each {
			b.fail("a copy outside of a fan-out")
		}
		n.ran = b.point(s.Pos, "copy")
		n.effects = b.effects(&s.Effects)
		n.yes, n.no = b.outcome(s.Pos, "copy: "+b.reason(s.Reason, ir.Copied)),
			b.outcome(s.Pos, "copy: "+b.reason(s.Failed, ir.Declined))
	case *ir.Skip:
		if !b.each {
			b.fail("a skip outside of a fan-out")
		}
		n.ran = b.point(s.Pos, "skip: "+b.reason(s.Reason, ir.Declined))
	default:
		b.terminal(n)
	}
	return n
}

// terminal completes the node of a statement that ends the packet's processing, which no receiver's turn may do.
func (b *builder) terminal(n *node) {
	if b.each {
		b.fail("a statement of type %T in a fan-out's Each", n.stmt)
	}
	switch s := n.stmt.(type) {
	case *ir.Punt:
		n.ran = b.point(s.Pos, "up: "+b.reason(s.Reason, ir.Punted))
	case *ir.Drop:
		n.ran = b.point(s.Pos, "drop: "+b.reason(s.Reason, ir.Dropped))
		n.effects = b.effects(&s.Effects)
	case *ir.Forward:
		kind := ir.Passed
		if s.Hop != nil {
			kind = ir.Sent
		}
		n.ran = b.point(s.Pos, "forward: "+b.reason(s.Reason, kind))
		n.effects = b.effects(&s.Effects)
	case *ir.FanOut:
		kind := ir.Passed
		if s.Drop {
			kind = ir.Dropped
		}
		n.ran, n.no = b.point(s.Pos, "fan out: "+b.reason(s.Reason, kind)),
			b.outcome(s.Pos, "fan out: "+b.reason(s.Miss, ir.Punted))
		b.reason(s.NoRoom, ir.Punted)
		b.reason(s.Fault, ir.Fault)
		if !slices.Contains(b.plan.Groups, s.Group) || s.Row.Table != s.Group.Receivers {
			b.fail("a fan-out to a group that is not in the plan, or with a row that is not its receivers'")
		}
		n.effects = b.effects(&s.Effects)
		b.each = true
		n.then = b.block(s.Each)
		b.each = false
	default:
		b.fail("a statement of type %T", s)
	}
}

// stop checks the reason of a statement that may stop the packet, or in a fan-out the receiver's turn.
func (b *builder) stop(reason int) string {
	if b.each {
		return b.reason(reason, ir.Declined)
	}
	return b.reason(reason, ir.Punted)
}

// stopOrDrop checks the reason of a statement that may also drop the packet.
func (b *builder) stopOrDrop(reason int) string {
	if all := b.prog.ir.Reasons; !b.each && reason >= 0 && reason < len(all) && all[reason].Kind == ir.Dropped {
		return "dropped, " + all[reason].Name
	}
	return b.stop(reason)
}

// leaves reports whether a packet can leave through a hop of a state. The kernel doesn't resolve neighbours for clones.
func leaves(state abi.HopState, clone bool) bool {
	return state == ir.HopDirect || state == ir.HopNeighbour && !clone
}

var stateNames = [ir.HopStates]string{
	"none", "direct", "neighbour", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule", "encap",
	"forwarding_off",
}

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
