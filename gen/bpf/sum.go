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
	n      int
	leaves string // of a copy: what is stored
}

func (s *sum) name(what string) string { return fmt.Sprintf("%s%d", what, s.n) }

// summand is a scalar in a sum, at an even or an odd position of the covered bytes.
type summand struct {
	scalar
	odd  bool
	name string // where it has one already: it is a sum, and code is empty
}

// summands cuts terms into scalars. Regions are summed up at once.
func (w *writer) summands(ts []ir.Term) (out []summand) {
	for _, t := range ts {
		if t.New != nil {
			i := slices.IndexFunc(w.sums, func(s *sum) bool { return s.Sum == t.New })
			if i < 0 {
				w.fail("a checksum covers %s, which isn't computed before", t.New.Name)
				continue
			}
			out = append(out, w.turned(t, []summand{{scalar{size: 4}, t.Odd, w.sums[i].name("sum")}})...)
			continue
		}
		if t.Region {
			name := fmt.Sprintf("x%d", len(w.values))
			w.values["region "+name] = name
			w.line("__u64 %s = %s(skb, %s, %s);", name, w.sumOf(t.Max), w.offset(t.At), w.expr(t.Len))
			out = append(out, w.turned(t, []summand{{scalar{size: 4}, t.Odd, name}})...)
			continue
		}
		var parts []summand
		for _, s := range w.wire(t.Value, t.Size, false) {
			parts = append(parts, summand{scalar: s, odd: t.Odd})
		}
		out = append(out, w.turned(t, parts)...)
	}
	return out
}

// turned counts a term's summands at an odd position where the packet says so.
func (w *writer) turned(t ir.Term, parts []summand) []summand {
	if t.OddIf == nil {
		return parts
	}
	name := fmt.Sprintf("x%d", len(w.values))
	w.values["turned "+name] = name
	w.line("__u64 %s = %s;", name, w.add(parts))
	w.line("if (%s)", w.expr(t.OddIf))
	w.line("\t%s <<= 8;", name)
	return []summand{{scalar{size: 4}, false, name}}
}

// cancel takes out what is added and subtracted.
func cancel(a, b []summand) (restA, restB []summand) {
	for _, x := range a {
		i := slices.IndexFunc(b, func(y summand) bool {
			return x.code == y.code && x.code != "" && x.odd == y.odd && x.size == y.size
		})
		if i < 0 {
			restA = append(restA, x)
			continue
		}
		b = slices.Delete(slices.Clone(b), i, i+1)
	}
	return restA, b
}

// add renders the sum of summands, in 64 bits.
func (w *writer) add(list []summand) string {
	list = w.joined(list)
	fixed := uint64(0)
	var parts []string
	for _, s := range list {
		if s.lit {
			fixed += constant(s)
			continue
		}
		name := s.name
		if name == "" {
			name = w.value(s.scalar, "", w.rw.Pos)
		}
		switch {
		case s.size == 8 && s.odd:
			name = fmt.Sprintf("fr_odd64(%s)", name)
		case s.size == 8:
			name = fmt.Sprintf("fr_add64(%s)", name)
		case s.odd:
			name = fmt.Sprintf("((__u64)%s << 8)", name)
		}
		parts = append(parts, name)
	}
	if fixed > 0 || len(parts) == 0 {
		parts = append(parts, number(fixed))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return "(__u64)" + strings.Join(parts, " + ")
}

// joined reads neighbours in the packet at once.
func (w *writer) joined(list []summand) []summand {
	list = slices.Clone(list)
	for i := 0; i < len(list); i++ {
		for j := 0; j < len(list); j++ {
			a, b := list[i], list[j]
			if i == j || a.size != 2 || a.odd || b.odd || w.named(a) || w.named(b) {
				continue
			}
			if both, ok := w.join(a.scalar, b.scalar); ok {
				list[i] = summand{scalar: both}
				list = slices.Delete(list, j, j+1)
				i = -1
				break
			}
		}
		if i < 0 {
			continue
		}
	}
	return list
}

// named reports whether a summand was read already.
func (w *writer) named(s summand) bool { return w.values[valueKey(s.scalar)] != "" }

// constant is a constant summand, folded.
func constant(s summand) uint64 {
	v := s.v
	switch {
	case s.odd && s.size == 8:
		v = v<<8 | v>>56
	case s.odd:
		v <<= 8
	}
	for v>>16 != 0 {
		v = v&0xffff + v>>16
	}
	return v
}

func (w *writer) checksums() {
	for i, s := range w.rw.Sums {
		w.checksum(&sum{Sum: s, n: i})
	}
}

func (w *writer) checksum(s *sum) {
	w.sums = append(w.sums, s)
	value := s.name("sum")
	w.line("")
	w.line("/* %s */", comment(s.Name))
	if s.Fresh {
		w.line("__u16 %s = fr_checksum(FR_ZERO + %s);", value, w.add(w.summands(slices.Concat(s.NewTerms, s.NewPseudo))))
		w.optional(s)
		return
	}
	w.stmt(s.Pos, "__u16 %s = ld16(%s);", s.name("old"), w.place(s.Old))
	was, now := w.summands(s.OldTerms), w.summands(s.NewTerms)
	wasPseudo, nowPseudo := w.summands(s.OldPseudo), w.summands(s.NewPseudo)
	if s.Swap == nil {
		was, now = cancel(was, now)
	}
	if s.Offloaded {
		w.line("__u64 %s = %s;", s.name("was"), w.add(wasPseudo))
		w.line("__u64 %s = %s;", s.name("now"), w.add(nowPseudo))
		w.partial()
		pending := fmt.Sprintf("fr_is_partial(partial, %s, %s, fr_fold(%s))", w.offset(s.Old), s.name("old"), s.name("was"))
		if w.rw.Resize == ir.InPlace && !w.known.plain {
			segmented := fmt.Sprintf("fr_is_segmented(skb, partial, %s)", w.offset(s.Old))
			if s.Absent { // nobody makes up a checksum of a tunnel that has none
				segmented = fmt.Sprintf("(%s && %s)", s.name("old"), segmented)
			}
			pending += " || " + segmented
		}
		w.line("int %s = %s;", s.name("pending"), pending)
		switch at := w.offset(s.New); {
		case s.New.Base != nil:
			w.line("/* bpf_l4_csum_replace takes even offsets only */")
			w.failIf(fmt.Sprintf("unlikely(%s) && !fr_facts && (%s & 1)", s.name("pending"), at))
		case s.New.Const&1 != 0:
			w.line("/* bpf_l4_csum_replace takes even offsets only */")
			w.failIf(fmt.Sprintf("unlikely(%s) && !fr_facts", s.name("pending")))
		}
		wasPseudo, nowPseudo = []summand{{scalar{size: 4}, false, s.name("was")}}, []summand{{scalar{size: 4}, false, s.name("now")}}
	} else if s.Swap == nil {
		wasPseudo, nowPseudo = cancel(wasPseudo, nowPseudo)
	}
	was, now = append(was, wasPseudo...), append(now, nowPseudo...)
	if s.Tail {
		was = append(was, w.tail(s))
	}
	rest := fmt.Sprintf("FR_ZERO + (__u16)~%s", s.name("old"))
	if len(was) > 0 {
		rest += fmt.Sprintf(" - (%s)", w.add(was))
	}
	switch {
	case s.Swap != nil:
		w.line("__u16 %s = fr_fold(%s);", s.name("body"), rest)
		w.line("if (%s)", w.expr(s.Swap))
		w.line("\t%s = __builtin_bswap16(%s);", s.name("body"), s.name("body"))
		w.line("__u16 %s = fr_checksum(%s + %s);", value, s.name("body"), w.add(now))
	case len(now) > 0:
		w.line("__u16 %s = fr_checksum(%s + %s);", value, rest, w.add(now))
	default:
		w.line("__u16 %s = fr_checksum(%s);", value, rest)
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

// tail renders the sum of the bytes that are cut off behind the payload.
func (w *writer) tail(s *sum) summand {
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
	return summand{scalar{size: 4}, false, name}
}

// partial asks once where a checksum is left to a device.
func (w *writer) partial() {
	if w.asked {
		return
	}
	w.asked, w.needs["facts"] = true, "yes"
	if v := w.known.partial; v != nil {
		w.line("__u32 partial = %s;", w.variable(v))
		return
	}
	w.line("__u32 partial = fr_partial(skb);")
}

// stored is what goes into a checksum's field. Where the kernel says that it is pending, that is the new pseudo-header's sum; where
// it doesn't say, the kernel finishes it.
func (s *sum) stored() string {
	if !s.Offloaded || s.Fresh {
		return s.name("sum")
	}
	old := s.name("old")
	return fmt.Sprintf("%s ? (fr_facts ? fr_fold(FR_ZERO + %s + %s - %s) : %s) : %s", s.name("pending"), old, s.name("now"), s.name("was"), old, s.name("sum"))
}

// finish has the kernel complete a checksum that seems to be pending.
func (w *writer) finish(s *sum) {
	flags := "0"
	if s.Optional {
		flags = "BPF_F_MARK_MANGLED_0"
	}
	w.failIf(fmt.Sprintf("unlikely(%s) && !fr_facts && fr_finish_sum(skb, %s, (__u32)%s << 16 | %s, FR_ZERO + %s - %s, %s)",
		s.name("pending"), w.offset(s.New), s.name("old"), s.name("sum"), s.name("now"), s.name("was"), flags))
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
