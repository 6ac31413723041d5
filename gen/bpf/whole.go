package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Checksums over whole datagrams: of a header that is taken out, where it came, and of one that is put in, over the
// packet that leaves, when all else in it is written.

// wholeSum renders whether the checksum over a datagram is right.
func (f *function) wholeSum(e *ir.SumOK) c.Expr {
	f.prog.needs["scratch"], f.prog.needs["facts"] = "yes", "yes"
	whole := c.Do("fr_sum_whole", skb, f.offset(e.Off), f.expr(e.Size), c.Do("fr_partial", skb))
	return c.Do("fr_sum_ok", sumIn64(append(f.pseudo(e.Pseudo), whole)))
}

// pseudo renders the parts of a pseudo-header that are added.
func (f *function) pseudo(terms []ir.Term) (parts []c.Expr) {
	for _, t := range terms {
		switch {
		case t.Value.Type().IsBytes():
			b := f.bytes(t.Value)
			if t.Value.Type().Kind == ir.Addr && t.Size == 4 {
				parts = append(parts, b.ipv4())
				continue
			}
			for done := 0; done < t.Size; done += 4 {
				parts = append(parts, b.load(done, 4))
			}
		case t.Size == 2 || t.Size == 4 || t.Size == 8:
			x := c.Expr(c.Do(swaps[t.Size], f.expr(t.Value)))
			if name := protocolOf(t); name != nil {
				x = name
			}
			if t.Size == 8 {
				x = c.Do("fr_add64", x)
			}
			parts = append(parts, x)
		default:
			f.fail("%d bytes of a pseudo-header", t.Size)
		}
	}
	return parts
}

// whole declares what a checksum over the packet that leaves begins with.
func (w *writer) whole(s *sum) {
	w.needs["scratch"], w.needs["facts"] = "yes", "yes"
	w.gap()
	w.note(comment(s.Name) + ", without what the kernel may have left to a device")
	w.failIf(c.Not(facts))
	w.define(noPos, "__u64", s.name("pseudo"), w.total(w.pseudoHeader(s.NewPseudo)))
}

// wholes stores the checksums over the packet that leaves, the innermost one first.
func (w *writer) wholes() {
	for _, s := range w.sums {
		if s.Whole == nil {
			continue
		}
		from := w.offset(*s.Whole)
		size := c.Binary{Op: "-", X: ofSKB("len"), Y: from}
		whole := c.Do("fr_sum_whole", skb, from, size, c.Do("fr_partial", skb))
		w.add(&c.Assign{To: s.name("pseudo"), Op: "+=", X: whole})
		w.do(s.Pos, "st16", w.newPtr(s.New), c.Do("fr_checksum_not_0", s.name("pseudo")))
	}
}
