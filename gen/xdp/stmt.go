package xdp

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass makes statements: each becomes one of its kind, or what the program at tc/ingress gets.

// stmt makes a statement.
func (x *maker) stmt(s ir.Stmt) []ir.Stmt {
	var out ir.Stmt
	switch s := s.(type) {
	case *ir.NeedBytes:
		c := *s
		c.Reason, out = x.reason(s.Reason), &c
	case *ir.Let:
		c := *s
		c.Value, out = x.expr(s.Value), &c
	case *ir.Guard:
		return x.guard(s)
	case *ir.If:
		return x.branch(s)
	case *ir.ReadVarint:
		c := *s
		c.Reason, out = x.reason(s.Reason), &c
	case *ir.ReadUint:
		out = s
	case *ir.Lookup:
		c := *s
		c.Key, c.Miss, c.Changing, out = x.values(s.Key), x.miss(s), x.reason(s.Changing), &c
	case *ir.Count:
		out = x.count(s)
	case *ir.Learn:
		out = x.learn(s)
	case *ir.CheckHop:
		out = x.checkHop(s)
	case *ir.Punt:
		c := *s
		c.Reason, out = x.others(s.Reason, s.Pos), &c
	case *ir.Drop:
		c := *s
		c.Effects, c.Reason, out = x.effects(&s.Effects), x.reason(s.Reason), &c
	case *ir.Forward:
		out = x.forward(s)
	case *ir.FanOut:
		return x.leave("a fan-out", s.Pos)
	case *ir.Translate:
		return x.leave("a translation", s.Pos)
	case *ir.FindElement:
		return x.leave("a list of elements", s.Pos)
	default:
		return x.leave("this", ir.Pos(s))
	}
	if x.lacks != "" {
		left := x.leave(x.lacks, ir.Pos(s))
		return append(x.ask(s), left...)
	}
	return []ir.Stmt{out}
}

// ask drops what a statement that is left would drop for want of a credit: floods of that are what XDP is for. Credits
// are spent at tc/ingress.
func (x *maker) ask(s ir.Stmt) []ir.Stmt {
	f, ok := s.(*ir.Forward)
	if !ok || !slices.ContainsFunc(f.Admits, x.drops) || slices.ContainsFunc(f.Admits, counts) ||
		slices.ContainsFunc(f.Emits, reserves) {
		return nil
	}
	fx := x.effects(&ir.Effects{Admits: f.Admits})
	if x.lacks != "" {
		x.lacks = ""
		return nil
	}
	for _, a := range fx.Admits {
		a.Asked, a.Contended = true, a.Refused
	}
	return []ir.Stmt{&ir.Ask{Effects: fx, Pos: f.Pos}}
}

func (x *maker) drops(a *ir.Admit) bool {
	return !a.Overdraft && x.from.Reasons[a.Refused].Kind == ir.Dropped
}

// counts reports whether an admission counts, and refuses nothing.
func counts(a *ir.Admit) bool { return a.Overdraft }

// reserves reports whether a record that finds no room has the packet go on before credits are asked.
func reserves(e *ir.Emit) bool { return e.Event.Required }

func (x *maker) guard(s *ir.Guard) []ir.Stmt {
	cond := x.expr(s.Cond)
	switch {
	case x.lacks != "":
		return x.leave(x.lacks, s.Pos)
	case fold.IsTrue(cond):
		return nil
	case fold.IsFalse(cond):
		return x.leave("what may have "+x.from.Reasons[s.Reason].Doc, s.Pos)
	}
	c := *s
	c.Cond, c.Reason = cond, x.others(s.Reason, s.Pos, s.Cond)
	return []ir.Stmt{&c}
}

// miss is the reason of a packet that has no row.
func (x *maker) miss(s *ir.Lookup) int {
	var key []ir.Expr
	for _, v := range s.Key {
		key = append(key, v.Value)
	}
	return x.others(s.Miss, s.Pos, key...)
}

// branch makes a branch. One whose packets aren't taken is a check.
func (x *maker) branch(s *ir.If) []ir.Stmt {
	cond := x.expr(s.Cond)
	defer func(doubt bool) { x.doubt = doubt }(x.doubt)
	x.doubt = x.doubt || x.isUnsure(s.Cond)
	switch {
	case x.lacks != "":
		out := x.leave(x.lacks, s.Pos)
		if !x.out.ToTC {
			out = append(x.block(s.Then), x.block(s.Else)...)
		}
		return out
	case fold.IsTrue(cond):
		return x.block(s.Then)
	case fold.IsFalse(cond):
		return x.block(s.Else)
	}
	then, els := x.block(s.Then), x.block(s.Else)
	if !x.out.ToTC {
		return []ir.Stmt{&ir.If{Cond: cond, Then: then, Else: els, Pos: s.Pos, Note: s.Note}}
	}
	if end := punts(then); end != nil {
		return append([]ir.Stmt{&ir.Guard{Cond: fold.Not(cond), Reason: end.Reason, Pos: s.Pos}}, els...)
	}
	if end := punts(els); end != nil {
		return append([]ir.Stmt{&ir.Guard{Cond: cond, Reason: end.Reason, Pos: s.Pos}}, then...)
	}
	return []ir.Stmt{&ir.If{Cond: cond, Then: then, Else: els, Pos: s.Pos, Note: s.Note}}
}

// punts returns the end of a block that takes no packets.
func punts(blk []ir.Stmt) *ir.Punt {
	if len(blk) != 1 {
		return nil
	}
	end, _ := blk[0].(*ir.Punt)
	return end
}

func (x *maker) count(s *ir.Count) *ir.Count {
	if s == nil {
		return nil
	}
	c := *s
	c.By = x.expr(s.By)
	return &c
}

func (x *maker) learn(s *ir.Learn) *ir.Learn {
	c := *s
	c.Key, c.Value, c.Full = x.values(s.Key), x.values(s.Value), x.reason(s.Full)
	return &c
}

// checkHop makes the check of a hop: a driver gets whole frames, so the neighbour has to be known.
func (x *maker) checkHop(s *ir.CheckHop) ir.Stmt {
	c := *s
	c.Hop, c.Length, c.TooBig, c.Direct = x.hop(s.Hop), x.expr(s.Length), x.reason(s.TooBig), true
	for i, r := range s.Reasons {
		c.Reasons[i] = x.reason(r)
	}
	c.Reasons[ir.HopNeighbour], c.Reasons[ir.HopDirect] = x.own("no_neighbour"), x.own("no_frames")
	return &c
}

func (x *maker) effects(e *ir.Effects) (out ir.Effects) {
	for _, s := range e.Emits {
		c := *s
		c.Values, c.Full = x.values(s.Values), x.reason(s.Full)
		if s.Data != nil {
			x.lack("bytes of the packet in a record")
		}
		out.Emits = append(out.Emits, &c)
	}
	for _, s := range e.Admits {
		c := *s
		c.Level, c.Cost, c.Floor, c.Count = x.expr(s.Level), x.expr(s.Cost), x.expr(s.Floor), x.count(s.Count)
		c.Refused, c.Contended = x.reason(s.Refused), x.reason(s.Contended)
		if c.Again = x.out.ToTC && c.Refused == ir.IsLeft; c.Again {
			c.Count = nil
		}
		out.Admits = append(out.Admits, &c)
	}
	for _, s := range e.Learns {
		out.Learns = append(out.Learns, x.learn(s))
	}
	out.Allocs = e.Allocs
	for _, s := range e.Lets {
		c := *s
		c.Value = x.expr(s.Value)
		out.Lets = append(out.Lets, &c)
	}
	for _, s := range e.Counts {
		out.Counts = append(out.Counts, x.count(s))
	}
	return out
}

// forward makes the end of a packet that is sent.
func (x *maker) forward(s *ir.Forward) ir.Stmt {
	c := *s
	if s.Hop == nil && x.out.ToTC {
		x.lack("a packet that goes on")
		return s
	}
	c.Effects, c.Hop, c.End = x.effects(&s.Effects), x.hop(s.Hop), x.expr(s.End)
	c.Rewrite = x.rewrite(s.Rewrite)
	c.Reason, c.Fault, c.NoRoom = x.reason(s.Reason), x.reason(s.Fault), x.reason(s.NoRoom)
	return &c
}

func (x *maker) hop(h *ir.HopRef) *ir.HopRef {
	if h == nil {
		return nil
	}
	c := *h
	c.From, c.To = x.expr(h.From), x.expr(h.To)
	c.FromPort, c.ToPort = x.expr(h.FromPort), x.expr(h.ToPort)
	return &c
}

func (x *maker) values(list []ir.MemberValue) []ir.MemberValue {
	out := make([]ir.MemberValue, len(list))
	for i, v := range list {
		v.Value = x.expr(v.Value)
		out[i] = v
	}
	return out
}

// rewrite makes a rewrite. Where the front has another size all of it is written, wherever the frame then begins.
func (x *maker) rewrite(w *ir.Rewrite) *ir.Rewrite {
	if w == nil {
		return nil
	}
	c := *w
	switch {
	case w.PopTag:
		x.lack("a VLAN tag beside the packet")
	case w.Resize == ir.MovePayload:
		x.lack("a front that isn't written anew, and changes its size")
	case w.Priority != nil:
		x.lack("skb.priority")
	case w.Mark != nil:
		x.lack("skb.mark")
	case len(w.Filled) > 0:
		x.lack("a header of variable size that is filled")
	case w.Resize != ir.InPlace || w.Family != 0 || w.PopInner:
		c.Resize = ir.MoveHeaders
	}
	c.Family, c.PopInner, c.Encap, c.Summed, c.Unmoved = 0, false, nil, 0, ir.Off{}
	c.Payload = x.expr(w.Payload)
	c.Stores = make([]ir.Store, len(w.Stores))
	for i, s := range w.Stores {
		s.Value, s.If = x.expr(s.Value), x.expr(s.If)
		c.Stores[i] = s
	}
	c.Sums = nil
	for _, s := range w.Sums {
		c.Sums = append(c.Sums, x.sum(s))
	}
	return &c
}

// sum makes a checksum: it is complete, since a packet whose own seems to be left to a device isn't taken.
func (x *maker) sum(s *ir.Sum) *ir.Sum {
	c := *s
	if s.Whole != nil {
		x.lack("a checksum over a whole datagram")
	}
	c.Offloaded = false
	c.OldTerms, c.NewTerms = x.terms(s.OldTerms), x.terms(s.NewTerms)
	c.OldPseudo, c.NewPseudo = x.terms(s.OldPseudo), x.terms(s.NewPseudo)
	c.TailOdd, c.Swap = x.expr(s.TailOdd), x.expr(s.Swap)
	x.sums[s] = &c
	return &c
}

func (x *maker) terms(list []ir.Term) (out []ir.Term) {
	for _, t := range list {
		t.Value, t.Len, t.OddIf = x.expr(t.Value), x.expr(t.Len), x.expr(t.OddIf)
		if t.New != nil {
			t.New = x.sums[t.New] // inner ones come first
		}
		out = append(out, t)
	}
	return out
}

// lack notes what the statement at hand needs that there isn't; the first word counts.
func (x *maker) lack(what string) {
	if x.lacks == "" {
		x.lacks = what
	}
}
