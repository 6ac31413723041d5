// Package xdp makes of a program on received packets the one that takes them first, at XDP: the same decisions on
// frames as the driver has them, before there is an skb. What differs is here and nowhere else: facts that only an skb
// has are constants; headers move where the frame begins, of whatever family they are; and what a driver can't do isn't
// done there. A finished program goes in, and a program comes out.
//
// Packets that aren't taken come to the program at tc/ingress as they came, and are counted there. So all that a path
// changes, it changes at its end, when nothing can fail any more but what leaves the packet as it came.
package xdp

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// left is the name of the one reason of packets that come to the program at tc/ingress.
const left = "left"

// Of returns a program as it runs at XDP, in front of itself at tc/ingress, and nil if it would leave all packets to
// that one; and what it leaves. p was compiled for the driver (draft.Program.Driver).
func Of(p *ir.Program) (*ir.Program, []ir.Left) {
	if !p.L2 { // frames have a header in front that its stack doesn't
		return nil, []ir.Left{{What: "a packet without its link-layer header", Pos: p.Pos}}
	}
	out := *p
	out.Hook, out.ToTC, out.Pull, out.Body = ir.XDP, true, 0, nil
	out.Reasons = []*ir.Reason{{
		Name: left, Kind: ir.Punted, Doc: "for the program at tc/ingress, which counts it", Pos: p.Pos,
	}}
	x := &maker{
		from: p, out: &out, reasons: map[int]int{}, fixed: map[*ir.Var]ir.Expr{}, sums: map[*ir.Sum]*ir.Sum{},
	}
	x.constants(p.Body)
	out.Body = x.block(p.Body)
	if punts(out.Body) {
		return nil, x.left
	}
	out.Body = slices.Insert(out.Body, 0, untagged(p))
	x.drop()
	return &out, x.left
}

// untagged leaves a frame that the device has taken a tag out of: it would leave without.
func untagged(p *ir.Program) ir.Stmt {
	return &ir.Guard{Cond: fold.Not(&ir.Meta{Kind: ir.VLANTag}), Reason: isLeft, Pos: p.Pos}
}

// maker makes the program.
type maker struct {
	from, out *ir.Program
	reasons   map[int]int         // of the old program, in the new one
	fixed     map[*ir.Var]ir.Expr // variables that have one value at XDP
	sums      map[*ir.Sum]*ir.Sum // checksums that others cover
	lacks     string              // what the expression or the statement at hand needs that there isn't
	left      []ir.Left
}

// isLeft is the reason of packets that come to the program at tc/ingress.
const isLeft = 0

// leave ends a packet's way here: the program at tc/ingress gets it.
func (x *maker) leave(what string, pos diag.Pos) []ir.Stmt {
	x.lacks = ""
	if l := (ir.Left{What: what, Pos: pos}); !slices.Contains(x.left, l) {
		x.left = append(x.left, l)
	}
	return []ir.Stmt{&ir.Punt{Reason: isLeft, Pos: pos}}
}

// reason is a reason of the old program in the new one.
func (x *maker) reason(i int) int {
	if i < 0 {
		return i
	}
	r := x.from.Reasons[i]
	if r.Kind == ir.Punted {
		return isLeft
	}
	n, known := x.reasons[i]
	if !known {
		n = len(x.out.Reasons)
		x.reasons[i] = n
		x.out.Reasons = append(x.out.Reasons, r)
	}
	return n
}

// constants finds the variables that are set once, to a fact that is a constant here.
func (x *maker) constants(body []ir.Stmt) {
	sets := map[*ir.Var]int{}
	for s := range ir.Stmts(body) {
		for v := range ir.Sets(s) {
			sets[v]++
		}
	}
	for s := range ir.Stmts(body) {
		if let, ok := s.(*ir.Let); ok && sets[let.Var] == 1 {
			value := x.expr(let.Value)
			if _, is := fold.Constant(value); is && x.lacks == "" {
				x.fixed[let.Var] = value
			}
			x.lacks = ""
		}
	}
}

// block makes a block: what follows the end of a packet's way isn't there any more.
func (x *maker) block(stmts []ir.Stmt) (out []ir.Stmt) {
	for _, s := range stmts {
		out = append(out, x.stmt(s)...)
		if ended(out) {
			return shorten(together(out))
		}
	}
	return out
}

// together has a packet make its changes of state with its end: one that may still be left there has changed nothing.
func together(blk []ir.Stmt) []ir.Stmt {
	end := blk[len(blk)-1]
	effects := ir.EffectsOf(end)
	if effects == nil {
		return blk
	}
	n := len(blk) - 1
	for n > 0 && changesState(blk[n-1]) {
		n--
	}
	effects.After(blk[n : len(blk)-1])
	return append(blk[:n:n], end)
}

func changesState(s ir.Stmt) bool {
	switch s.(type) {
	case *ir.Learn, *ir.Count:
		return true
	}
	return false
}

// ended reports whether a block ends the packet's way on all paths.
func ended(blk []ir.Stmt) bool {
	if len(blk) == 0 {
		return false
	}
	switch s := blk[len(blk)-1].(type) {
	case *ir.Punt, *ir.Drop, *ir.Forward:
		return true
	case *ir.If:
		return ended(s.Then) && ended(s.Else)
	}
	return false
}

// shorten takes out what a packet needn't be asked that comes to tc/ingress in the end. What it would have changed is
// changed there.
func shorten(blk []ir.Stmt) []ir.Stmt {
	end, ok := blk[len(blk)-1].(*ir.Punt)
	for n := len(blk) - 1; ok && n > 0 && leavesAtMost(blk[n-1]); n-- {
		blk = append(blk[:n-1:n-1], end)
	}
	return blk
}

// leavesAtMost reports whether a statement does nothing to a packet that is left, but to leave it.
func leavesAtMost(s ir.Stmt) bool {
	switch s.(type) {
	case *ir.Ask, *ir.Drop, *ir.Forward:
		return false
	}
	for blk := range ir.Blocks(s) {
		if !all(*blk, leavesAtMost) {
			return false
		}
	}
	return true
}

func all(blk []ir.Stmt, is func(ir.Stmt) bool) bool {
	return !slices.ContainsFunc(blk, func(s ir.Stmt) bool { return !is(s) })
}

// drop takes variables and rows out that nothing has any more.
func (x *maker) drop() {
	vars, rows := map[*ir.Var]bool{}, map[*ir.Row]bool{}
	for s := range ir.Stmts(x.out.Body) {
		for v := range ir.Reads(s) {
			vars[v] = true
		}
		for v := range ir.Sets(s) {
			vars[v] = true
		}
		if l, ok := s.(*ir.Lookup); ok {
			rows[l.Row] = true
		}
	}
	x.out.Vars = slices.DeleteFunc(slices.Clone(x.out.Vars), func(v *ir.Var) bool { return !vars[v] })
	x.out.Rows = slices.DeleteFunc(slices.Clone(x.out.Rows), func(r *ir.Row) bool { return !rows[r] })
}
