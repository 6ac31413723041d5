package fuzz_test

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Faults of one-to-many relays.

// effects changes the first effects of a packet or a copy that f accepts.
func effects(f func(*ir.Effects) bool) func(*ir.Plan) bool {
	return func(plan *ir.Plan) bool {
		return each(plan, func(_ *ir.Program, stmts *[]ir.Stmt, i int) bool {
			fx := ir.EffectsOf((*stmts)[i])
			return fx != nil && f(fx)
		})
	}
}

// admitted changes the first admission that f accepts.
func admitted(f func(*ir.Admit) bool) func(*ir.Plan) bool {
	return effects(func(fx *ir.Effects) bool { return slices.ContainsFunc(fx.Admits, f) })
}

// emitted changes the first record that f accepts.
func emitted(f func(*ir.Emit) bool) func(*ir.Plan) bool {
	return effects(func(fx *ir.Effects) bool { return slices.ContainsFunc(fx.Emits, f) })
}

// excerpted changes what the first record has of the packet.
func excerpted(f func(*ir.Excerpt) bool) func(*ir.Plan) bool {
	return emitted(func(s *ir.Emit) bool { return s.Data != nil && f(s.Data) })
}

// leveled changes all reads of a value for a level of priority.
func leveled(f func(*ir.RowMember)) func(*ir.Plan) bool {
	return func(p *ir.Plan) (was bool) {
		for s := range ir.AllStmts(p) {
			for e := range ir.Exprs(s) {
				if e, ok := e.(*ir.RowMember); ok && e.Level != nil {
					f(e)
					was = true
				}
			}
		}
		return was
	}
}

// copied changes the first copy that f accepts.
func copied(f func(*ir.Copy) bool) func(*ir.Plan) bool {
	return stmt(func(_ *ir.Program, s *ir.Copy) bool { return f(s) })
}

// copySum changes the first checksum of a copy that f accepts.
func copySum(f func(*ir.Sum) bool) func(*ir.Plan) bool {
	return copied(func(s *ir.Copy) bool { return s.Rewrite != nil && slices.ContainsFunc(s.Rewrite.Sums, f) })
}

// searched changes the first search of a list of elements that f accepts.
func searched(f func(*ir.FindElement) bool) func(*ir.Plan) bool {
	return stmt(func(_ *ir.Program, s *ir.FindElement) bool { return f(s) })
}

// form changes the first form of elements that f accepts.
func form(f func(*ir.ElementForm) bool) func(*ir.Plan) bool {
	return searched(func(s *ir.FindElement) bool {
		return slices.ContainsFunc([]int{0, 1}, func(i int) bool { return i < len(s.Forms) && f(&s.Forms[i]) })
	})
}

// Faults in the C: what is undone, and in which order, is the back end's own business.
var fanOutCodeFaults = []fault{
	{where: "code", spec: "fan-out", what: "receivers are served from the last to the first",
		old: `receiver_of_viewers\(fan->list, i\)`, new: `receiver_of_viewers(fan->list, fan->list->count - 1 - i)`},
	{where: "code", spec: "fan-out", what: "the last receiver is forgotten", old: `bpf_loop\(list->count, `,
		new: `bpf_loop(list->count - 1, `},
	{where: "code", spec: "fan-out", what: "copies are made of the copy before",
		old: `(spread_copy\(struct __sk_buff \*skb[^{]*\{\n)`, new: `${1}fr_save_front(skb, 48);`},
	{where: "code", spec: "fan-out", what: "the packet that came isn't restored",
		old: `if \(bpf_skb_store_bytes\(skb, 0, front, \d+, 0\)\)\s[^;]*;`, new: ``},
	{where: "code", spec: "fan-out", what: "one byte of the packet that came isn't restored",
		old: `bpf_skb_store_bytes\(skb, 0, front, \d+, 0\)`, new: `bpf_skb_store_bytes(skb, 0, front, 47, 0)`},
	{where: "code", spec: "fan-out", what: "only the first copy has its own checksum",
		old: `st16\(&new_udp->checksum, udp_checksum\);`,
		new: `if (!same->copies0) st16(&new_udp->checksum, udp_checksum);`},
	{where: "code", spec: "fan-out", what: "a checksum of 0 is made one",
		old: `if \((!v6 && )?same->kind0 == FR_SUM_ABSENT\)[^;]*;`, new: ``},
	{where: "code", spec: "fan-out", what: "copies count once", old: `same->copies0\+\+;`, new: `same->copies0 = 1;`},
	{where: "code", spec: "fan-out", what: "copies leave through the first device",
		old: `bpf_clone_redirect\(skb, r->hop_remote.ifindex, 0\)`, new: `bpf_clone_redirect(skb, 1, 0)`},
	{where: "code", spec: "fan-out", what: "a clone that is refused counts as sent",
		old: `if \(unlikely\(bpf_clone_redirect`, new: `if (0 > (int)(bpf_clone_redirect`},
	{where: "code", spec: "fan-out", what: "what another copy wrote stays",
		old: `st32\(new_tag->stream, ld32\(saved_tag->stream\)\);`, new: ``},
	{where: "code", spec: "then-drop", what: "a copy keeps the priority that came", old: `skb->priority = [^;]*;`,
		new: ``},
	{where: "code", spec: "blank", what: "what another copy made zeros of stays", old: `fr_put_back\(skb, [^)]*\)`,
		new: `0`},
	{where: "code", spec: "blank", what: "the last byte of a header stays", old: `fr_blank\(skb, (\w+), ([^)]*)\)`,
		new: `fr_blank(skb, $1, $2 - 1)`},
	{where: "code", spec: "levels", what: "a value of another level is sent", old: `r->base\[fr_level\(priority, 3\)\]`,
		new: `r->base[1]`},
	{where: "code", spec: "levels", what: "the bytes of the other choice are told",
		old: `(event0 \+ 16,[^;]*)ld64\(r->id\[fr_level\(priority, 3\)\]\) :`, new: `${1}ld64(r->other) :`},
	{where: "code", spec: "credits", what: "what is refused gets nothing back",
		old: `(_write\d*\(skb, [^{]*\{\n[^\n]*\n)\s*fr_refund\(credit0, spent0\);`, new: `$1`},
	{where: "code", spec: "credits", what: "the first of two credits isn't given back",
		old: `(admitted1 == FR_REFUSED\) \{[^}]*?)fr_refund\(credit0, spent0\);`, new: `$1`},
	{where: "code", spec: "credits", what: "a record is handed over for a clone that is refused",
		old: `(_write\d*\(skb, [^{]*\{\n\s*)bpf_ringbuf_discard\(event0, 0\);`,
		new: `${1}bpf_ringbuf_submit(event0, 0);`},
	{where: "code", spec: "credits", what: "a record has the number that came", old: `event0->number = number;`,
		new: `event0->number = be32(front + 51);`},
	{where: "code", spec: "excerpts", what: "a record says that it has nothing of the packet",
		old: `\d+ \+ fr_data\(([^)]*)\)`, new: `16 + 0 * fr_data($1)`},
	{where: "code", spec: "excerpts", what: "a record has room for one byte less than the spec says",
		old: `(fr_data\(skb,[^;]*, )6\)`, new: `${1}5)`},
	{where: "code", spec: "copies", what: "a record has one copy less", old: `(same->entries1 = entry_at1) \+ 1;`,
		new: `$1 + (entry_at1 != 1);`},
	{where: "code", spec: "copies", what: "each copy takes the place of the one before",
		old: `(same->entries1 = entry_at1 \+ 1;)`, new: `$1 copies_of_sent->copies[0] = *entry1;`},
	{where: "code", spec: "copies", what: "a copy names the place of its receiver",
		old: `entry1->receiver = r->receiver;`, new: `entry1->receiver = r->receiver & 3;`},
	{where: "helper", spec: "copies", what: "a record without copies is handed over",
		old: `if \(copies\)(\s*bpf_ringbuf_submit)`, new: `if (1)$1`},
	{where: "helper", spec: "copies", what: "a record outside of the ring is handed over without copies",
		old: `if \(!copies\)\n\t\treturn;\n(\tif \(copies > room\))`, new: `$1`},
	{where: "helper", spec: "copies", what: "the room of copies counts as copies",
		old: `e->time = time;\n\te->size = size;`, new: `e->time = time;`},
	{where: "code", spec: "credits", what: "a record names the place of its receiver",
		old: `fr_head\(&event0->head, r->receiver,`, new: `fr_head(&event0->head, r->receiver & 3,`},
}

var fanOutFaults = []fault{
	{where: "back end", spec: "fan-out", what: "groups are found by half of the key",
		plan: stmt(func(_ *ir.Program, s *ir.FanOut) bool { s.Key = s.Key[:len(s.Key)-1]; return true })},
	{where: "back end", spec: "fan-out", what: "the packet that came is dropped",
		plan: stmt(func(_ *ir.Program, s *ir.FanOut) bool { s.Drop = !s.Drop; return true })},
	{where: "back end", spec: "then-drop", what: "the packet that came goes on",
		plan: stmt(func(_ *ir.Program, s *ir.FanOut) bool { s.Drop = !s.Drop; return true })},
	{where: "back end", spec: "fan-out", what: "a copy's checksum forgets what was",
		plan: copySum(func(s *ir.Sum) bool { was := len(s.OldTerms) > 0; s.OldTerms = nil; return was })},
	{where: "back end", spec: "fan-out", what: "a copy's checksum forgets its addresses",
		plan: copySum(func(s *ir.Sum) bool { was := len(s.NewPseudo) > 0; s.NewPseudo = nil; return was })},
	{where: "back end", spec: "fan-out", what: "a checksum is made of none",
		plan: copySum(func(s *ir.Sum) bool { was := s.Absent; s.Absent = false; return was })},
	{where: "back end", spec: "fan-out", what: "a copy over the MTU is sent",
		plan: stmt(func(_ *ir.Program, s *ir.CheckHop) bool { s.Length = number(0); return true })},
	{where: "back end", spec: "fan-out", what: "a number is one more", plan: copied(func(s *ir.Copy) bool {
		c := &s.Rewrite.Stores[len(s.Rewrite.Stores)-1]
		c.Value = &ir.Bin{Op: ir.Xor, X: c.Value, Y: number(1)}
		return true
	})},
	{where: "back end", spec: "then-drop", what: "the mark stays on what is sent next",
		plan: copied(func(s *ir.Copy) bool { was := s.Rewrite.Mark != nil; s.Rewrite.Mark = nil; return was })},
	{where: "back end", spec: "then-drop", what: "a receiver that a rule leaves out gets a copy",
		plan: stmt(func(_ *ir.Program, s *ir.If) bool {
			if len(s.Then) == 0 {
				return false
			}
			_, skips := s.Then[len(s.Then)-1].(*ir.Skip)
			if skips {
				s.Cond = &ir.Const{V: 0, T: ir.BoolType}
			}
			return skips
		})},
	{where: "back end", spec: "credits", what: "the floor is ignored",
		plan: admitted(func(s *ir.Admit) bool { was := s.Floor != nil; s.Floor = nil; return was })},
	{where: "back end", spec: "credits", what: "the cost is one more",
		plan: admitted(func(s *ir.Admit) bool { s.Cost = plus(1)(s.Cost); return true })},
	{where: "back end", spec: "credits", what: "the credit of another level is spent",
		plan: admitted(func(s *ir.Admit) bool {
			was := s.Member.Type.Levels > 0
			s.Level = number(0)
			return was
		})},
	{where: "back end", spec: "blank", what: "a header stays", plan: copied(func(s *ir.Copy) bool {
		was := len(s.Rewrite.Filled) > 0
		s.Rewrite.Filled = nil
		return was
	})},
	{where: "back end", spec: "blank", what: "a checksum keeps a header that is zeros",
		plan: copySum(func(s *ir.Sum) bool {
			terms := len(s.OldTerms)
			s.OldTerms = slices.DeleteFunc(s.OldTerms, func(t ir.Term) bool { return t.Region })
			return len(s.OldTerms) < terms
		})},
	{where: "back end", spec: "levels", what: "the value of another level is read",
		plan: leveled(func(e *ir.RowMember) { e.Level = number(0) })},
	{where: "back end", spec: "credits", what: "refused packets count for another level",
		plan: admitted(func(s *ir.Admit) bool {
			was := s.Level != nil
			s.Level = nil
			return was && s.Member.Type.Levels == 0
		})},
	{where: "back end", spec: "credits", what: "refused packets don't count for the receiver",
		plan: admitted(func(s *ir.Admit) bool { was := s.Count != nil; s.Count = nil; return was })},
	{where: "back end", spec: "credits", what: "only one of two credits is spent",
		plan: effects(func(fx *ir.Effects) bool {
			was := len(fx.Admits) > 1
			fx.Admits = fx.Admits[:min(1, len(fx.Admits))]
			return was
		})},
	{where: "back end", spec: "credits", what: "what can't be reported is sent", plan: emitted(func(s *ir.Emit) bool {
		was := s.Event.Required
		e := *s.Event
		e.Required, s.Full, s.Event = false, -1, &e
		return was
	})},
	{where: "back end", spec: "credits", what: "a number is allocated twice", plan: effects(func(fx *ir.Effects) bool {
		was := len(fx.Allocs) > 0
		fx.Allocs = append(fx.Allocs, fx.Allocs...)
		return was
	})},
	{where: "back end", spec: "credits", what: "a record has another value",
		plan: emitted(func(s *ir.Emit) bool { s.Values[0].Value = number(0); return true })},
	{where: "back end", spec: "credits", what: "a record names no receiver",
		plan: emitted(func(s *ir.Emit) bool { was := s.Row != nil; s.Row = nil; return was })},
	{where: "back end", spec: "bucket", what: "the floor is ignored",
		plan: admitted(func(s *ir.Admit) bool { was := s.Floor != nil; s.Floor = nil; return was })},
	{where: "back end", spec: "bucket", what: "the bucket of another level is spent",
		plan: admitted(func(s *ir.Admit) bool { was := s.Level != nil; s.Level = number(1); return was })},
	{where: "code", spec: "admit-else", what: "what is refused passes", old: `return fr_drop\(skb->len, `,
		new: `return fr_punt(skb, `},
	{where: "back end", spec: "overdraft", what: "what is overdrawn isn't counted",
		plan: admitted(func(s *ir.Admit) bool { was := s.Overdraft && s.Count != nil; s.Count = nil; return was })},
	{where: "back end", spec: "numbers", what: "a step of one more", plan: effects(func(fx *ir.Effects) bool {
		was := len(fx.Allocs) > 0
		if was {
			fx.Allocs[0].Step++
		}
		return was
	})},
	{where: "back end", spec: "numbers", what: "a translation of another key",
		plan: stmt(func(_ *ir.Program, s *ir.Translate) bool { s.Key = plus(1)(s.Key); return true })},
	{where: "back end", spec: "numbers", what: "new translations take no number",
		plan: stmt(func(_ *ir.Program, s *ir.Translate) bool { s.Value = number(5); return true })},
	{where: "back end", spec: "numbers", what: "a translation that is being made counts as one too many",
		plan: stmt(func(_ *ir.Program, s *ir.Translate) bool { s.Unfinished = s.Full; return true })},
	{where: "back end", spec: "elements", what: "elements are one byte too short",
		plan: form(func(f *ir.ElementForm) bool { f.Bias--; return true })},
	{where: "back end", spec: "elements", what: "padding is an element",
		plan: form(func(f *ir.ElementForm) bool { was := f.Pad >= 0; f.Pad = -1; return was })},
	{where: "back end", spec: "elements", what: "nothing ends a list",
		plan: form(func(f *ir.ElementForm) bool { was := f.Stop >= 0; f.Stop = -1; return was })},
	{where: "back end", spec: "elements", what: "the second form is the first one",
		plan: searched(func(s *ir.FindElement) bool { s.Forms[0].When = nil; return len(s.Forms) > 1 })},
	{where: "back end", spec: "elements", what: "another identifier is searched for",
		plan: searched(func(s *ir.FindElement) bool { s.ID = plus(1)(s.ID); return true })},
	{where: "back end", spec: "effects", what: "what is dropped isn't reported",
		plan: stmt(func(_ *ir.Program, s *ir.Drop) bool { was := len(s.Emits) > 0; s.Emits = nil; return was })},
	{where: "back end", spec: "excerpts", what: "the packet's bytes in a record begin one later",
		plan: excerpted(func(x *ir.Excerpt) bool { x.At.Const++; return true })},
	{where: "back end", spec: "excerpts", what: "a record has one byte of the packet too few",
		plan: excerpted(func(x *ir.Excerpt) bool { x.Size = fold.Bin(ir.Sub, x.Size, fold.Num(1)); return true })},
	{where: "back end", spec: "excerpts", what: "the packet's bytes in a record are those that leave",
		plan: stmt(func(_ *ir.Program, s *ir.Forward) bool {
			was := len(s.Emits) > 0
			for _, x := range s.Emits {
				event := *x.Event
				x.Event, event.Required, x.Full = &event, false, -1
			}
			return was
		})},
	{where: "back end", spec: "copies", what: "a copy isn't in the record of its packet",
		plan: effects(func(fx *ir.Effects) bool { was := len(fx.Entries) > 0; fx.Entries = nil; return was })},
	{where: "back end", spec: "copies", what: "a record has another value of each copy",
		plan: effects(func(fx *ir.Effects) bool {
			return slices.ContainsFunc(fx.Entries, func(s *ir.Entry) bool {
				was := len(s.Values) > 0
				if was {
					s.Values[0].Value = number(5)
				}
				return was
			})
		})},
	{where: "back end", spec: "effects", what: "the other one is picked", plan: admitted(func(s *ir.Admit) bool {
		p, ok := s.Cost.(*ir.Pick)
		if ok {
			p.Then, p.Else = p.Else, p.Then
		}
		return ok
	})},
}
