package bpf

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Checksums over whole datagrams: of a header that is taken out, where it came, and of one that is put in, over the
// packet that leaves, when all else in it is written.

// wholeSum renders whether the checksum over a datagram is right.
func (f *function) wholeSum(e *ir.SumOK) string {
	f.prog.needs["scratch"], f.prog.needs["facts"] = "yes", "yes"
	return fmt.Sprintf("fr_sum_ok(%s + fr_sum_whole(skb, %s, %s, fr_partial(skb)))", f.pseudo(e.Pseudo),
		f.offset(e.Off), f.expr(e.Size))
}

// pseudo renders the sum of a pseudo-header.
func (f *function) pseudo(terms []ir.Term) string {
	var parts []string
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
			s := fmt.Sprintf("%s(%s)", swaps[t.Size], f.expr(t.Value))
			if name := protocolOf(t); name != "" {
				s = name
			}
			if t.Size == 8 {
				s = "fr_add64(" + s + ")"
			}
			parts = append(parts, s)
		default:
			f.fail("%d bytes of a pseudo-header", t.Size)
		}
	}
	return "(__u64)" + strings.Join(parts, " + ")
}

// whole declares what a checksum over the packet that leaves begins with.
func (w *writer) whole(s *sum) {
	w.needs["scratch"], w.needs["facts"] = "yes", "yes"
	w.line("")
	w.line("/* %s, without what the kernel may have left to a device */", comment(s.Name))
	w.failIf("!fr_facts")
	w.line("__u64 %s = %s;", s.name("pseudo"), w.add(w.pseudoHeader(s.NewPseudo)))
}

// wholes stores the checksums over the packet that leaves, the innermost one first.
func (w *writer) wholes() {
	for _, s := range w.sums {
		if s.Whole == nil {
			continue
		}
		from := w.offset(*s.Whole)
		w.line("%s += fr_sum_whole(skb, %s, skb->len - %s, fr_partial(skb));", s.name("pseudo"), from, from)
		w.stmt(s.Pos, "st16(%s, fr_checksum_not_0(%s));", w.newPtr(s.New), s.name("pseudo"))
	}
}
