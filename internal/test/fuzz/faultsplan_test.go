package fuzz_test

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Faults of the back end are planted in the plan that it renders: as if it had overlooked a guard, or misread a sum.

// each calls f for the statements of a plan until it returns true, and reports whether it did.
func each(plan *ir.Plan, f func(*ir.Program, *[]ir.Stmt, int) bool) bool {
	var block func(p *ir.Program, stmts *[]ir.Stmt) bool
	block = func(p *ir.Program, stmts *[]ir.Stmt) bool {
		for i := range *stmts {
			if f(p, stmts, i) {
				return true
			}
			for inner := range ir.Blocks((*stmts)[i]) {
				if block(p, inner) {
					return true
				}
			}
		}
		return false
	}
	return slices.ContainsFunc(plan.Programs, func(p *ir.Program) bool { return block(p, &p.Body) })
}

// stmt changes the first statement of a type that f accepts.
func stmt[S ir.Stmt](f func(*ir.Program, S) bool) func(*ir.Plan) bool {
	return func(plan *ir.Plan) bool {
		return each(plan, func(p *ir.Program, stmts *[]ir.Stmt, i int) bool {
			s, ok := (*stmts)[i].(S)
			return ok && f(p, s)
		})
	}
}

// noGuard takes the guards out that send packets up under a reason.
func noGuard(reason string) func(*ir.Plan) bool {
	return func(plan *ir.Plan) bool {
		found := false
		each(plan, func(p *ir.Program, stmts *[]ir.Stmt, i int) bool {
			if s, ok := (*stmts)[i].(*ir.Guard); ok && p.Reasons[s.Reason].Name == reason {
				s.Cond = &ir.Const{V: 1, T: ir.BoolType}
				found = true
			}
			return false
		})
		return found
	}
}

// rewritten changes the first rewrite that f accepts.
func rewritten(f func(*ir.Rewrite) bool) func(*ir.Plan) bool {
	return stmt(func(_ *ir.Program, s *ir.Forward) bool { return s.Rewrite != nil && f(s.Rewrite) })
}

// summed changes the first checksum of a name that f accepts.
func summed(name string, f func(*ir.Sum) bool) func(*ir.Plan) bool {
	return rewritten(func(w *ir.Rewrite) bool {
		return slices.ContainsFunc(w.Sums, func(s *ir.Sum) bool { return strings.HasSuffix(s.Name, name) && f(s) })
	})
}

// cell changes the value of the first cell with a field.
func cell(field string, f func(ir.Expr) ir.Expr) func(*ir.Plan) bool {
	return rewritten(func(w *ir.Rewrite) bool {
		for i, c := range w.Stores {
			if strings.Contains(c.Note, field) {
				w.Stores[i].Value = f(c.Value)
				return true
			}
		}
		return false
	})
}

func number(v uint64) *ir.Const { return &ir.Const{V: v, T: ir.UintType(64)} }

func plus(n uint64) func(ir.Expr) ir.Expr {
	return func(x ir.Expr) ir.Expr { return &ir.Bin{Op: ir.Add, X: x, Y: number(n)} }
}

// compared changes the first comparison in a guard or a condition that f accepts.
func compared(f func(*ir.Bin) bool) func(*ir.Plan) bool {
	in := func(e ir.Expr) bool {
		for e := range ir.Exprs(e) {
			if b, ok := e.(*ir.Bin); ok && f(b) {
				return true
			}
		}
		return false
	}
	return func(plan *ir.Plan) bool {
		return each(plan, func(_ *ir.Program, stmts *[]ir.Stmt, i int) bool {
			switch s := (*stmts)[i].(type) {
			case *ir.Guard:
				return in(s.Cond)
			case *ir.If:
				return in(s.Cond)
			}
			return false
		})
	}
}

func loads(e ir.Expr, field string) bool {
	l, ok := e.(*ir.Load)
	return ok && strings.HasSuffix(l.Field, field)
}

var backEndFaults = []fault{
	{where: "back end", spec: "trailing", what: "bytes after the datagram are sent",
		plan: stmt(func(_ *ir.Program, s *ir.Forward) bool { found := s.End != nil; s.End = nil; return found })},
	{where: "back end", spec: "trailing", what: "copies have the bytes after the datagram",
		plan: stmt(func(_ *ir.Program, s *ir.FanOut) bool { found := s.End != nil; s.End = nil; return found })},
	{where: "back end", spec: "rule-lookups", what: "a rule applies without its row", plan: stmt(func(_ *ir.Program,
		s *ir.If) bool {
		_, has := s.Cond.(*ir.RowHas)
		if has {
			s.Cond, s.Then = &ir.Not{X: s.Cond}, nil
		}
		return has
	})},
	{where: "back end", spec: "rule-lookups", what: "the row that is missing isn't why", plan: stmt(func(p *ir.Program,
		s *ir.Lookup) bool {
		if s.Miss < 0 {
			return false
		}
		s.Miss = slices.IndexFunc(p.Reasons, func(r *ir.Reason) bool { return r.Name == "no_rule" })
		return s.Miss >= 0
	})},
	{where: "back end", spec: "pop-variable", what: "payloads of checksums keep the order of their bytes",
		plan: summed("checksum", func(s *ir.Sum) bool { found := s.Swap != nil; s.Swap = nil; return found })},
	{where: "back end", spec: "pop-variable", what: "what moves by an odd number of bytes counts as if it didn't",
		plan: summed("checksum", func(s *ir.Sum) bool {
			for i := range s.OldTerms {
				if t := &s.OldTerms[i]; t.OddIf != nil {
					t.OddIf = nil
					return true
				}
			}
			return false
		})},
	{where: "back end", spec: "turn", what: "the IPv4 length is 4 too large", plan: cell("total_length", plus(4))},
	{where: "back end", spec: "turn", what: "the UDP length keeps the popped header", plan: cell("length", plus(4))},
	{where: "back end", spec: "turn", what: "the hop limit is one more", plan: cell("ttl", plus(0x100))},
	{where: "back end", spec: "turn", what: "the destination's port is one more", plan: cell("dst_port", plus(1))},
	{where: "back end", spec: "turn", what: "a checksum of 0 is written as 0",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { s.Optional = false; return true })},
	{where: "back end", spec: "turn", what: "a checksum is made of none",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { was := s.Absent; s.Absent = false; return was })},
	{where: "back end", spec: "turn", what: "padding stays in the checksum",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { was := s.Tail; s.Tail = false; return was })},
	{where: "back end", spec: "turn", what: "padding at an odd place counts as at an even one",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { was := s.TailOdd != nil; s.TailOdd = nil; return was })},
	{where: "back end", spec: "odd", what: "bytes are not swapped where the payload moves",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { was := s.Swap != nil; s.Swap = nil; return was })},
	{where: "back end", spec: "turn", what: "what was is taken out twice",
		plan: summed("udp.checksum", func(s *ir.Sum) bool {
			s.OldTerms = append(s.OldTerms, s.OldTerms[0])
			return true
		})},
	{where: "back end", spec: "turn", what: "the pseudo-header's addresses don't count",
		plan: summed("udp.checksum", func(s *ir.Sum) bool { s.NewPseudo = s.NewPseudo[1:]; return true })},
	{where: "back end", spec: "odd", what: "a byte counts at a place of the other parity", plan: summed("udp.checksum",
		func(s *ir.Sum) bool {
			i := slices.IndexFunc(s.NewTerms, func(t ir.Term) bool { return t.Size%2 == 1 && !t.Region })
			if i >= 0 {
				s.NewTerms[i].Odd = !s.NewTerms[i].Odd
			}
			return i >= 0
		})},
	{where: "back end", spec: "turn", what: "the IPv4 checksum forgets the hop limit",
		plan: summed("ip.checksum", func(s *ir.Sum) bool { s.NewTerms = s.NewTerms[1:]; return !s.Fresh })},
	{where: "back end", spec: "turn", what: "rows are found by half of the key",
		plan: stmt(func(_ *ir.Program, s *ir.Lookup) bool { s.Key = s.Key[:len(s.Key)-1]; return true })},
	{where: "back end", spec: "turn", what: "fragments are relayed", plan: noGuard("fragment")},
	{where: "back end", spec: "turn", what: "IP options are relayed", plan: noGuard("ip_options")},
	{where: "back end", spec: "turn", what: "a UDP length that disagrees is relayed", plan: noGuard("udp_length")},
	{where: "back end", spec: "turn", what: "GSO packets are rewritten", plan: noGuard("gso_packet")},
	{where: "back end", spec: "turn", what: "mapped addresses on the wire are relayed",
		plan: noGuard("mapped_address")},
	{where: "back end", spec: "turn", what: "a wrong IPv4 checksum is relayed", plan: noGuard("ipv4_checksum")},
	{where: "back end", spec: "turn", what: "a checksum that is none is made one by a change of family",
		plan: noGuard("udp_checksum")},
	{where: "back end", spec: "turn", what: "channels of any number", plan: noGuard("channel_data_number")},
	{where: "back end", spec: "turn", what: "4 bytes of padding are allowed", plan: compared(func(b *ir.Bin) bool {
		c, ok := b.Y.(*ir.Const)
		if !ok || c.V != 3 || b.Op != ir.Le {
			return false
		}
		b.Y = number(4)
		return true
	})},
	{where: "back end", spec: "turn", what: "a packet of exactly the MTU is too big",
		plan: stmt(func(_ *ir.Program, s *ir.CheckHop) bool { s.Length = plus(1)(s.Length); return true })},
	{where: "back end", spec: "sized-uint", what: "a number that doesn't fit is cut", plan: noGuard("unfit_short_pn")},
	{where: "back end", spec: "length-varint", what: "an absent length is written",
		plan: rewritten(func(w *ir.Rewrite) bool {
			i := slices.IndexFunc(w.Stores, func(s ir.Store) bool { return s.If != nil })
			if i >= 0 {
				w.Stores[i].If = nil
			}
			return i >= 0
		})},
	{where: "back end", spec: "length-varint", what: "a length is one more", plan: cell("outer: length", plus(1))},
	{where: "back end", spec: "length-varint", what: "a length that doesn't fit is written", plan: noGuard("length")},
	{where: "back end", spec: "frames", what: "a frame that begins too far in is taken",
		plan: noGuard("second_far")},
	{where: "back end", spec: "frames", what: "bytes after the second frame are relayed",
		plan: noGuard("stream_length")},
	{where: "back end", spec: "turn", what: "the use is not counted",
		plan: stmt(func(_ *ir.Program, s *ir.Forward) bool { s.Usage = nil; return true })},
	{where: "back end", spec: "quota", what: "one connection over the quota", plan: compared(func(b *ir.Bin) bool {
		_, ok := b.X.(*ir.CounterValue)
		if ok {
			b.Op = ir.Gt
		}
		return ok
	})},
	{where: "back end", spec: "gate", what: "the source's port is compared, not the destination's",
		plan: compared(func(b *ir.Bin) bool {
			if !loads(b.X, "dst_port") {
				return false
			}
			l := *b.X.(*ir.Load)
			l.Off.Const -= 2
			b.X = &l
			return true
		})},
	{where: "back end", spec: "gate", what: "refused packets count twice",
		plan: stmt(func(_ *ir.Program, s *ir.Count) bool { s.By = plus(1)(s.By); return true })},
	{where: "back end", spec: "learn", what: "the wrong port is learned", plan: stmt(func(_ *ir.Program,
		s *ir.Learn) bool {
		s.Value[len(s.Value)-1].Value = &ir.Bin{Op: ir.Xor, X: s.Value[len(s.Value)-1].Value, Y: number(1)}
		return true
	})},
	{where: "back end", spec: "paths", what: "the last hop is taken", plan: noGuard("hop_limit")},
	{
		where: "back end", spec: "paths", what: "DSCP loses a bit",
		plan: cell("dscp", func(x ir.Expr) ir.Expr { return &ir.Bin{Op: ir.And, X: x, Y: number(^uint64(0x80))} }),
	},
	{where: "back end", spec: "little", what: "a little-endian integer is written as a big one",
		plan: rewritten(func(w *ir.Rewrite) bool {
			i := slices.IndexFunc(w.Stores, func(c ir.Store) bool { return c.Little })
			if i >= 0 {
				w.Stores[i].Little = false
			}
			return i >= 0
		})},
	{where: "back end", spec: "little", what: "the priority is forgotten",
		plan: rewritten(func(w *ir.Rewrite) bool { was := w.Priority != nil; w.Priority = nil; return was })},
	{where: "back end", spec: "little", what: "the mark is one more", plan: rewritten(func(w *ir.Rewrite) bool {
		if w.Mark == nil {
			return false
		}
		w.Mark = plus(1)(w.Mark)
		return true
	})},
	{where: "back end", spec: "learn-with", what: "a row is learned with another generation",
		plan: stmt(func(_ *ir.Program, s *ir.Learn) bool {
			last := &s.Value[len(s.Value)-1]
			last.Value = plus(1)(last.Value)
			return true
		})},
	{where: "code", spec: "learn-with", what: "a row that was learned stays after its session",
		old: `return found == FR_FOUND && !fr_alive\(.*`, new: `return found;`},
}
