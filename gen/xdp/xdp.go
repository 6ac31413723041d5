// Package xdp makes of a program on received packets the one that takes them first, at XDP: the same decisions on
// frames as the driver has them, before there is an skb. What differs is here and nowhere else: facts that only an skb
// has are constants; headers move where the frame begins, of whatever family they are; and what a driver can't do isn't
// done there. A finished program goes in, and a program comes out.
//
// Of a program that runs there alone it makes that one (Alone); what a driver can't do is a mistake of the spec then.
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

// Of returns a program as it runs at XDP, in front of itself at tc/ingress, and nil if it would leave all packets to
// that one; and what it leaves. p was compiled for the driver (draft.Program.Driver).
func Of(p *ir.Program) (*ir.Program, []ir.Left) {
	if !p.L2 { // frames have a header in front that its stack doesn't
		return nil, []ir.Left{{What: "a packet without its link-layer header", Pos: p.Pos}}
	}
	x := of(p)
	out := x.out
	out.ToTC = true
	out.Reasons = []*ir.Reason{
		ir.IsLeft:   {Name: "left", Doc: "for the program at tc/ingress, which counts it", Kind: ir.Punted, Pos: p.Pos},
		ir.IsOthers: {Name: "others", Doc: "likewise; the next one at XDP may take it", Kind: ir.Punted, Pos: p.Pos},
	}
	x.doubts(p.Body)
	x.make()
	if all(out.Body, takesNone) {
		return nil, x.left
	}
	return out, x.left
}

// Reasons that only a program at XDP alone has.
var own = []ir.Reason{
	{Name: "vlan_tag", Doc: "a VLAN tag that the device has taken out of the frame"},
	{Name: "no_neighbour", Doc: "the neighbour's link-layer address isn't known"},
	{Name: "no_frames", Doc: "the device takes no frames that come from XDP"},
}

// Alone returns a program as it runs at XDP alone, and what a driver can't do of it.
func Alone(p *ir.Program) (*ir.Program, []ir.Left) {
	if !p.L2 {
		_, left := Of(p)
		return p, left
	}
	from := *p
	from.Reasons = slices.Clone(p.Reasons)
	for _, r := range own {
		r.Kind, r.Pos = ir.Punted, p.Pos
		if from.IndexOf(&r) < 0 {
			from.Reasons = append(from.Reasons, &r)
		}
	}
	all := of(&from) // to see which reasons there are
	all.make()
	x := of(&from)
	for i, r := range from.Reasons {
		if _, used := all.reasons[i]; used {
			x.reasons[i] = len(x.out.Reasons)
			x.out.Reasons = append(x.out.Reasons, r)
		}
	}
	x.make()
	return x.out, x.left
}

// of begins with a program.
func of(p *ir.Program) *maker {
	out := *p
	out.Hook, out.Pull, out.Reasons = ir.XDP, 0, nil
	return &maker{
		from: p, out: &out, reasons: map[int]int{}, fixed: map[*ir.Var]ir.Expr{}, sums: map[*ir.Sum]*ir.Sum{},
		unsure: map[*ir.Var]bool{}, short: map[int]bool{},
	}
}

// make makes the body. A frame that the device has taken a tag out of isn't taken, by the next program neither: it
// would leave without.
func (x *maker) make() {
	x.constants(x.from.Body)
	untagged := &ir.Guard{Cond: fold.Not(&ir.Meta{Kind: ir.VLANTag}), Reason: ir.IsOthers, Pos: x.from.Pos}
	if !x.out.ToTC {
		untagged.Reason = x.own("vlan_tag")
	}
	x.out.Body = slices.Insert(x.block(x.from.Body), 0, ir.Stmt(untagged))
	x.drop()
}

// own is the reason of a packet that isn't taken for what only frames have, or haven't.
func (x *maker) own(name string) int {
	if x.out.ToTC {
		return ir.IsLeft
	}
	return x.reason(x.from.IndexOf(&ir.Reason{Name: name, Kind: ir.Punted}))
}

// maker makes the program.
type maker struct {
	from, out *ir.Program
	reasons   map[int]int         // of the old program, in the new one
	fixed     map[*ir.Var]ir.Expr // variables that have one value at XDP
	sums      map[*ir.Sum]*ir.Sum // checksums that others cover
	short     map[int]bool        // reasons of packets that end too early
	unsure    map[*ir.Var]bool    // variables that may be something else at tc/ingress
	doubt     bool                // the packet at hand may go another way there, or has changed something there
	lacks     string              // what the expression or the statement at hand needs that there isn't
	left      []ir.Left
}

// leave ends a packet's way here: the program at tc/ingress gets it. If there is none, the rest is looked at as well,
// for mistakes.
func (x *maker) leave(what string, pos diag.Pos) []ir.Stmt {
	x.lacks = ""
	if l := (ir.Left{What: what, Pos: pos}); !slices.Contains(x.left, l) {
		x.left = append(x.left, l)
	}
	if !x.out.ToTC {
		return nil
	}
	return []ir.Stmt{&ir.Punt{Reason: ir.IsLeft, Pos: pos}}
}

// reason is a reason of the old program in the new one.
func (x *maker) reason(i int) int {
	if i < 0 {
		return i
	}
	r := x.from.Reasons[i]
	if x.out.ToTC && r.Kind == ir.Punted {
		return ir.IsLeft
	}
	n, known := x.reasons[i]
	if !known {
		n = len(x.out.Reasons)
		x.reasons[i] = n
		x.out.Reasons = append(x.out.Reasons, r)
	}
	return n
}

// others is a reason of the old program in the new one, of a packet that has it under a condition. If that is the same
// at tc/ingress, and the packet has changed nothing there, it isn't the program's. A standard header that is wrong may
// be that of any program, and one that ends too early may go on in another buffer.
func (x *maker) others(i int, pos diag.Pos, conds ...ir.Expr) int {
	n := x.reason(i)
	if x.out.ToTC && n == ir.IsLeft && !x.doubt && !slices.ContainsFunc(conds, x.isUnsure) &&
		pos.File == x.from.Pos.File && !x.short[i] {
		return ir.IsOthers
	}
	return n
}

// isUnsure reports whether an expression may have another value at tc/ingress: that of a checksum that is left to a
// device.
func (x *maker) isUnsure(e ir.Expr) bool {
	for e := range ir.Exprs(e) {
		switch e := e.(type) {
		case *ir.Meta:
			if e.Kind == ir.Partial || e.Kind == ir.SegmentFront {
				return true
			}
		case *ir.VarRef:
			if x.unsure[e.Var] {
				return true
			}
		case *ir.SumOK, *ir.PseudoSum:
			return true
		}
	}
	return false
}

// doubts finds the variables that may be something else at tc/ingress.
func (x *maker) doubts(body []ir.Stmt) {
	for known := -1; known < len(x.unsure); {
		known = len(x.unsure)
		for s := range ir.Stmts(body) {
			if need, ok := s.(*ir.NeedBytes); ok {
				x.short[need.Reason] = true
			}
			if let, ok := s.(*ir.Let); ok && x.isUnsure(let.Value) {
				x.unsure[let.Var] = true
			}
			if branch, ok := s.(*ir.If); ok && x.isUnsure(branch.Cond) {
				for inner := range ir.Stmts([]ir.Stmt{s}) {
					for v := range ir.Sets(inner) {
						x.unsure[v] = true
					}
				}
			}
		}
	}
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
	defer func(doubt bool) { x.doubt = doubt }(x.doubt)
	for _, s := range stmts {
		x.doubt = x.doubt || changesState(s)
		out = append(out, x.stmt(s)...)
		switch {
		case !ended(out):
		case x.out.ToTC:
			return shorten(x.together(out))
		case len(x.left) == 0: // else all mistakes are looked for
			return out
		}
	}
	return out
}

// together has a packet make its changes of state with its end: one that may still be left there has changed nothing.
// There they come after numbers are allocated, so what counts by a counter of a row before that is left.
func (x *maker) together(blk []ir.Stmt) []ir.Stmt {
	end := blk[len(blk)-1]
	effects := ir.EffectsOf(end)
	if effects == nil {
		return blk
	}
	n := len(blk) - 1
	for n > 0 && changesState(blk[n-1]) {
		n--
	}
	state := blk[n : len(blk)-1]
	if len(effects.Allocs) > 0 && slices.ContainsFunc(state, countsInRow) {
		return append(blk[:n:n], x.leave("a number of a counter, after a counter has counted", ir.Pos(end))...)
	}
	effects.After(state)
	return append(blk[:n:n], end)
}

// countsInRow reports whether a statement adds to a counter that other rows may share.
func countsInRow(s ir.Stmt) bool {
	c, is := s.(*ir.Count)
	return is && c.Counter == nil
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
	for n := len(blk) - 1; ok && n > 0 && leavesAtMost(blk[n-1], end.Reason); n-- {
		blk = append(blk[:n-1:n-1], end)
	}
	return blk
}

// takesNone reports whether a statement is the end of no packet.
func takesNone(s ir.Stmt) bool {
	switch s.(type) {
	case *ir.Ask, *ir.Drop, *ir.Forward:
		return false
	}
	for blk := range ir.Blocks(s) {
		if !all(*blk, takesNone) {
			return false
		}
	}
	return true
}

// leavesAtMost reports whether a statement does nothing to a packet that is left for a reason, but to leave it; where
// the packet is another program's, for that reason alone.
func leavesAtMost(s ir.Stmt, reason int) bool {
	if !takesNone(s) {
		return false
	}
	own := reason
	switch s := s.(type) {
	case *ir.Guard:
		own = s.Reason
	case *ir.Punt:
		own = s.Reason
	case *ir.Lookup:
		if s.Miss >= 0 {
			own = s.Miss
		}
	case *ir.NeedBytes, *ir.ReadVarint, *ir.CheckHop:
		own = ir.IsLeft
	}
	if own != reason && reason == ir.IsOthers {
		return false
	}
	for blk := range ir.Blocks(s) {
		if !all(*blk, func(s ir.Stmt) bool { return leavesAtMost(s, reason) }) {
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
