package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Checksums are computed in 64 bits without carries, from what is added and what is subtracted, and folded once. Values that
// stay are left out.

// sum is a checksum that is being computed.
type sum struct {
	*ir.Sum
	n int
}

func (s *sum) name(what string) string { return fmt.Sprintf("%s%d", what, s.n) }

// total is a sum of terms: constants, and code.
type total struct {
	fixed uint64
	code  []string
}

func (t *total) String() string {
	parts := t.code
	if t.fixed > 0 || len(parts) == 0 {
		parts = append(parts[:len(parts):len(parts)], number(t.fixed))
	}
	s := strings.Join(parts, " + ")
	if len(t.code) > 1 || len(t.code) == 1 && t.fixed > 0 {
		return "(__u64)" + s
	}
	return s
}

// terms adds the summands up.
func (w *writer) terms(ts []ir.Term) *total {
	t := &total{}
	for _, term := range ts {
		if term.Region {
			name := fmt.Sprintf("x%d", len(w.values))
			w.values[name+" region"] = name
			w.line("__u64 %s = %s(skb, %s, %s);", name, w.sumOf(term.Max), w.offset(term.At), w.expr(term.Len))
			if term.Odd {
				name += " << 8"
			}
			t.add(0, w.oddIf(term, "("+name+")"))
			continue
		}
		for _, s := range w.wire(term.Value, term.Size, false) {
			fixed, code := w.summand(s, term.Odd)
			if term.OddIf != nil && code == "" {
				fixed, code = 0, number(fixed)
			}
			t.add(fixed, w.oddIf(term, code))
		}
	}
	return t
}

// oddIf swaps a summand's bytes where only the packet tells whether it stands at an odd position.
func (w *writer) oddIf(term ir.Term, code string) string {
	if term.OddIf == nil || code == "" {
		return code
	}
	return fmt.Sprintf("((__u64)%s << (%s ? 8 : 0))", code, w.expr(term.OddIf))
}

func (t *total) add(fixed uint64, code string) {
	t.fixed += fixed
	if code != "" {
		t.code = append(t.code, code)
	}
}

// summand is a scalar in a sum: a constant, or code.
func (w *writer) summand(s scalar, odd bool) (uint64, string) {
	if s.lit {
		v := s.v
		switch {
		case odd && s.size == 8:
			v = v<<8 | v>>56
		case odd:
			v <<= 8
		}
		for v>>16 != 0 {
			v = v&0xffff + v>>16
		}
		return v, ""
	}
	name := w.value(s, "", w.rw.Pos)
	switch {
	case s.size == 8 && odd:
		return 0, fmt.Sprintf("fr_odd64(%s)", name)
	case s.size == 8:
		return 0, fmt.Sprintf("fr_add64(%s)", name)
	case odd:
		return 0, fmt.Sprintf("((__u64)%s << 8)", name)
	}
	return 0, name
}

// cancel takes out what is added and subtracted.
func cancel(a, b *total) {
	for i := 0; i < len(a.code); {
		j := 0
		for j < len(b.code) && b.code[j] != a.code[i] {
			j++
		}
		if j == len(b.code) {
			i++
			continue
		}
		a.code = append(a.code[:i:i], a.code[i+1:]...)
		b.code = append(b.code[:j:j], b.code[j+1:]...)
	}
	n := min(a.fixed, b.fixed)
	a.fixed, b.fixed = a.fixed-n, b.fixed-n
}

func (w *writer) checksums() {
	for i, s := range w.rw.Sums {
		w.checksum(&sum{s, i})
	}
}

func (w *writer) checksum(s *sum) {
	w.sums = append(w.sums, s)
	value := s.name("sum")
	w.line("")
	w.line("/* %s */", comment(s.Name))
	if s.Fresh {
		all := w.terms(append(s.NewTerms[:len(s.NewTerms):len(s.NewTerms)], s.NewPseudo...))
		w.line("__u16 %s = ~fr_fold(FR_ZERO + %s);", value, all)
		w.optional(s)
		return
	}
	w.stmt(s.Pos, "__u16 %s = ld16(%s);", s.name("old"), w.place(s.Old))
	was, now := w.terms(s.OldTerms), w.terms(s.NewTerms)
	wasPseudo, nowPseudo := w.terms(s.OldPseudo), w.terms(s.NewPseudo)
	if s.Swap == nil {
		cancel(was, now)
	}
	if s.Offloaded {
		w.line("__u64 %s = %s;", s.name("was"), wasPseudo)
		w.line("__u64 %s = %s;", s.name("now"), nowPseudo)
		or := ""
		if w.rw.Resize == ir.InPlace && !w.known.plain {
			or = " || skb->gso_size" // the pseudo-header of a super-packet may have another length: the kernel knows
		}
		w.line("int %s = %s == fr_fold(%s)%s;", s.name("pending"), s.name("old"), s.name("was"), or)
		wasPseudo, nowPseudo = &total{code: []string{s.name("was")}}, &total{code: []string{s.name("now")}}
	} else if s.Swap == nil {
		cancel(wasPseudo, nowPseudo)
	}
	was.fixed, was.code = was.fixed+wasPseudo.fixed, append(was.code, wasPseudo.code...)
	now.fixed, now.code = now.fixed+nowPseudo.fixed, append(now.code, nowPseudo.code...)
	if s.Tail {
		w.tail(s, was)
	}
	rest := fmt.Sprintf("FR_ZERO + (__u16)~%s", s.name("old"))
	if len(was.code) > 0 || was.fixed > 0 {
		rest += fmt.Sprintf(" - (%s)", was)
	}
	if s.Swap == nil {
		if len(now.code) > 0 || now.fixed > 0 {
			rest += " + " + now.String()
		}
		w.line("__u16 %s = ~fr_fold(%s);", value, rest)
	} else {
		w.line("__u16 %s = fr_fold(%s);", s.name("body"), rest)
		w.line("if (%s)", w.expr(s.Swap))
		w.line("\t%s = __builtin_bswap16(%s);", s.name("body"), s.name("body"))
		w.line("__u16 %s = ~fr_fold(%s + %s);", value, s.name("body"), now)
	}
	w.optional(s)
	if s.Absent {
		w.line("if (!%s) /* no checksum came, none leaves */", s.name("old"))
		w.line("\t%s = 0;", value)
	}
}

// optional keeps 0 for "no checksum".
func (w *writer) optional(s *sum) {
	if s.Optional {
		w.line("if (!%s)", s.name("sum"))
		w.line("\t%s = 0xFFFF;", s.name("sum"))
	}
}

// tail subtracts the bytes that are cut off behind the payload.
func (w *writer) tail(s *sum, was *total) {
	name := s.name("tail")
	end := fmt.Sprintf("%s + %s", w.offset(w.rw.OldFront), w.operand(w.rw.Payload))
	w.line("__u64 %s = 0;", name)
	w.line("if (unlikely(%s > %s)) {", w.offset(s.TailEnd), end)
	w.line("\t%s = %s(skb, %s, %s - (%s));", name, w.sumOf(s.TailMax), end, w.offset(s.TailEnd), end)
	if s.TailOdd != nil {
		w.line("\tif (%s)", w.expr(s.TailOdd))
		w.line("\t\t%s <<= 8;", name)
	}
	w.line("}")
	was.code = append(was.code, name)
}

// finish has the kernel complete a checksum that may be pending.
func (w *writer) finish(s *sum) {
	flags := "0"
	if s.Optional {
		flags = "BPF_F_MARK_MANGLED_0"
	}
	w.line("if (unlikely(%s) && fr_finish_sum(skb, %s, (__u32)%s << 16 | %s, FR_ZERO + %s - %s, %s))",
		s.name("pending"), w.offset(s.New), s.name("old"), s.name("sum"), s.name("now"), s.name("was"), flags)
	w.line("\t%s", w.failed())
	w.moves = true
}

// sumOf is the function that sums up to so many bytes.
func (w *writer) sumOf(limit int) string {
	if limit <= 64 {
		return "fr_sum64"
	}
	if limit > 2048 {
		w.fail("a checksum over up to %d bytes of the packet", limit)
	}
	w.needs["scratch"] = "yes"
	return "fr_sum"
}

// allTerms returns the terms of a checksum, of whatever kind.
func allTerms(s *ir.Sum) []ir.Term {
	return slices.Concat(s.OldTerms, s.NewTerms, s.OldPseudo, s.NewPseudo)
}
