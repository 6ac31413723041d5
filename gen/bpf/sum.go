package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Checksums are computed in 64 bits without carries, from what is added and what is subtracted, and folded once. Values
// that stay are left out.

// sum is a checksum that is being computed.
type sum struct {
	*ir.Sum
	w      *writer
	names  map[string]string
	leaves string // of a copy: what is stored
}

// newSum is a checksum that w computes.
func (w *writer) newSum(s *ir.Sum) *sum { return &sum{Sum: s, w: w, names: map[string]string{}} }

// name is what a number is called that goes with the checksum: the new one (what is "") has the field's name.
func (s *sum) name(what string) string {
	if s.names[what] == "" {
		want := s.Name
		if header, _, ok := strings.Cut(s.Name, "."); ok && what != "" {
			want = header
		}
		if what != "" {
			want += "_" + what
		}
		s.names[what] = s.w.take(want)
	}
	return s.names[what]
}

// summand is a scalar in a sum, at an even or an odd position of the covered bytes.
type summand struct {
	scalar
	odd  bool
	name string // where it has one already: it is a sum, and code is empty
}

// protocols are the names of those that have a pseudo-header in their checksums.
var protocols = map[uint64]string{6: "IPPROTO_TCP", 17: "IPPROTO_UDP", 58: "IPPROTO_ICMPV6"}

// protocol names the protocol after IP.
func protocol(n uint64) string {
	if name := protocols[n]; name != "" {
		return name
	}
	return number(n)
}

// protocolOf renders the constant of a pseudo-header that is a protocol, or nothing.
func protocolOf(t ir.Term) string {
	if c, ok := t.Value.(*ir.Const); ok && t.Size == 2 && protocols[c.V] != "" {
		return fmt.Sprintf("bpf_htons(%s)", protocols[c.V])
	}
	return ""
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
			out = append(out, w.turned(t, []summand{{scalar{size: 4}, t.Odd, w.sums[i].value()}})...)
			continue
		}
		if t.Region {
			name := w.take("region_sum")
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

// pseudoHeader cuts the terms of a pseudo-header into scalars.
func (w *writer) pseudoHeader(ts []ir.Term) (out []summand) {
	for _, t := range ts {
		list := w.summands([]ir.Term{t})
		if name := protocolOf(t); name != "" {
			list[0].protocol = name
		}
		out = append(out, list...)
	}
	return out
}

// turned counts a term's summands at an odd position where the packet says so.
func (w *writer) turned(t ir.Term, parts []summand) []summand {
	if t.OddIf == nil {
		return parts
	}
	name := w.take("odd_sum")
	w.line("__u64 %s = %s;", name, w.add(parts))
	w.line("%s <<= 8 * (%s);", name, w.expr(t.OddIf)) // a branch would have the verifier follow two ways from here
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
	var named []string
	for _, s := range list {
		switch {
		case s.protocol != "":
			named = append(named, s.protocol)
			continue
		case s.lit:
			fixed += constant(s)
			continue
		}
		name := s.name
		if name == "" {
			name = w.term(s.scalar, w.rw.Pos)
		}
		switch {
		case s.size >= 8 && s.odd:
			name = fmt.Sprintf("fr_odd%d(%s)", 8*s.size, name)
		case s.size >= 8:
			name = fmt.Sprintf("fr_add%d(%s)", 8*s.size, name)
		case s.odd:
			name = fmt.Sprintf("((__u64)%s << 8)", name)
		}
		parts = append(parts, name)
	}
	if parts = append(parts, named...); fixed > 0 || len(parts) == 0 {
		for fixed>>16 != 0 {
			fixed = fixed&0xffff + fixed>>16
		}
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
			if i == j || a.lit || a.size != 2 || a.odd || b.odd || w.named(a) || w.named(b) {
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
	for _, s := range w.rw.Sums {
		w.checksum(w.newSum(s))
	}
}

func (w *writer) checksum(s *sum) {
	w.sums = append(w.sums, s)
	if s.Whole != nil {
		w.whole(s)
		return
	}
	value := s.value()
	w.line("")
	w.line("/* %s */", comment(s.Name))
	if s.Fresh {
		w.line("__be16 %s = %s(FR_ZERO + %s);", value, s.function(),
			w.add(slices.Concat(w.summands(s.NewTerms), w.pseudoHeader(s.NewPseudo))))
		return
	}
	old := fmt.Sprintf("ld16(%s)", w.ptr(s.Old))
	if s.Absent && !s.Offloaded {
		w.stmt(s.Pos, "__be16 %s = %s;", s.name("old_checksum"), old)
		old = s.name("old_checksum")
	}
	was, now := w.summands(s.OldTerms), w.summands(s.NewTerms)
	if s.Swap == nil {
		was, now = cancel(was, now)
	}
	wasPseudo, nowPseudo := w.pseudoHeader(s.OldPseudo), w.pseudoHeader(s.NewPseudo)
	if !s.Offloaded {
		if s.Swap == nil {
			wasPseudo, nowPseudo = cancel(wasPseudo, nowPseudo)
		}
		was, now = append(was, wasPseudo...), append(now, nowPseudo...)
	}
	if s.Tail {
		was = append(was, w.tail(s))
	}
	rest := fmt.Sprintf("fr_sum_of(%s)%s", old, minusSum(w.add, was))
	if s.Offloaded {
		w.came(s, old, wasPseudo, was)
		w.optional(s)
		old, rest = s.name("csum")+".old", s.name("csum")+".rest"
		w.line("__u64 %s = %s;", s.name("new_pseudo"), w.add(nowPseudo))
	} else {
		value = "__be16 " + value
	}
	absent := s.Absent
	switch {
	case s.Swap != nil:
		if s.Offloaded {
			w.line("%s.new_pseudo = %s;", s.name("csum"), s.name("new_pseudo"))
			now = append(now, summand{scalar{size: 4}, false, s.name("new_pseudo")})
		}
		w.line("__u16 %s = fr_fold(%s);", s.name("payload"), rest)
		w.line("if (%s)", w.expr(s.Swap))
		w.line("\t%s = __builtin_bswap16(%s);", s.name("payload"), s.name("payload"))
		w.line("%s = %s(%s + %s);", value, s.function(), s.name("payload"), w.add(now))
	case s.Offloaded:
		absent = s.Absent && !s.Optional
		w.leave(s, s.name("new_pseudo"), w.add(now))
	default:
		w.line("%s = %s(%s%s);", value, s.function(), rest, plusSum(w.add, now))
	}
	if absent {
		w.line("if (!%s) /* no checksum came, none leaves */", old)
		w.line("\t%s = 0;", s.value())
	}
}

// value is the checksum that leaves, if it isn't partial.
func (s *sum) value() string {
	if s.Offloaded && !s.Fresh && s.w.fwd != nil {
		return s.name("csum") + ".new"
	}
	return s.name("")
}

// leave gives a checksum that may be partial what leaves.
func (w *writer) leave(s *sum, pseudo, now string) {
	set := strings.Replace(s.function(), "fr_checksum", "fr_csum_set", 1)
	w.line("%s(&%s, %s, %s);", set, s.name("csum"), pseudo, now)
}

// came renders what is known of a checksum that came and may be partial.
func (w *writer) came(s *sum, old string, wasPseudo, was []summand) {
	gone := w.add(was)
	w.line("__u64 %s = %s;", s.name("old_pseudo"), w.add(wasPseudo))
	w.partial()
	field := s.at(s.Old)
	w.line("struct fr_csum %s = fr_csum(%s, %s, %s, %s, %s);", s.name("csum"), w.asked, field, old,
		s.name("old_pseudo"), gone)
	if w.rw.Resize == ir.InPlace && !w.known.plain {
		segmented := fmt.Sprintf("fr_is_segmented(skb, %s, %s)", w.asked, field)
		if s.Absent { // nobody makes up a checksum of a tunnel that has none
			segmented = fmt.Sprintf("(%s.old && %s)", s.name("csum"), segmented)
		}
		w.line("%s.partial = %s.partial || %s;", s.name("csum"), s.name("csum"), segmented)
	}
	switch at := w.offset(s.New); {
	case s.New.Base != nil:
		w.line("/* bpf_l4_csum_replace takes even offsets only */")
		w.failIf(fmt.Sprintf("unlikely(%s.partial) && !fr_facts && (%s & 1)", s.name("csum"), at))
	case s.New.Const&1 != 0:
		w.line("/* bpf_l4_csum_replace takes even offsets only */")
		w.failIf(fmt.Sprintf("unlikely(%s.partial) && !fr_facts", s.name("csum")))
	}
}

// sumCame renders what is known of a checksum that came; was is what doesn't leave.
func (w *writer) sumCame(s *sum, was []summand) {
	if s.Tail {
		was = append(was, w.tail(s))
	}
	w.came(s, fmt.Sprintf("ld16(%s)", w.ptr(s.Old)), w.pseudoHeader(s.OldPseudo), was)
}

// optional renders that a packet which came without a checksum leaves without one.
func (w *writer) optional(s *sum) {
	if s.Absent && s.Optional && s.Swap == nil {
		w.line("%s.optional = 1;", s.name("csum"))
	}
}

// at is the offset of the field. Where it is fixed it has a name, and another one in the
// packet that leaves if it moves.
func (s *sum) at(o ir.Off) string {
	if o.Base != nil {
		return s.w.offset(o)
	}
	what := "checksum_at"
	if o == s.New && o != s.Old && s.w.half == nil {
		what = "new_checksum_at"
	}
	if s.names[what] == "" {
		s.w.constant(s.name(what), o.Const)
	}
	return s.name(what)
}

// function is the function that makes a checksum of a sum.
func (s *sum) function() string {
	if s.Optional {
		return "fr_checksum_not_0"
	}
	return "fr_checksum"
}

// tail renders the sum of the bytes that are cut off after the payload.
func (w *writer) tail(s *sum) summand {
	name := s.name("cut_off")
	end := fmt.Sprintf("%s + %s", w.oldFront(), w.operand(w.rw.Payload))
	odd, cut := "0", "fr_sum_cut64"
	if s.TailOdd != nil {
		odd = w.expr(s.TailOdd)
	}
	if w.sumOf(s.TailMax) != "fr_sum64" {
		cut = "fr_sum_cut"
	}
	w.line("__u64 %s = %s(skb, %s, %s, %s);", name, cut, end, w.offset(s.TailEnd), odd)
	return summand{scalar{size: 4}, false, name}
}

// partial asks once where a checksum is left to a device.
func (w *writer) partial() {
	if w.asked != "" {
		return
	}
	w.needs["facts"] = "yes"
	if v := w.known.partial; v != nil {
		w.asked = w.variable(v)
		return
	}
	w.asked = w.take("partial_at")
	w.line("__u32 %s = fr_partial(skb);", w.asked)
}

// stored is what goes into a checksum's field. Where the kernel says that it is partial, that is the new
// pseudo-header's sum; where it doesn't say, the kernel finishes it.
func (s *sum) stored() string {
	if s.Whole != nil {
		return "0"
	}
	if !s.Offloaded || s.Fresh {
		return s.name("")
	}
	return fmt.Sprintf("fr_csum_field(&%s)", s.name("csum"))
}

// finish has the kernel complete a checksum that seems to be partial.
func (w *writer) finish(s *sum) {
	flags := "0"
	if s.Optional {
		flags = "BPF_F_MARK_MANGLED_0"
	}
	w.failIf(fmt.Sprintf("fr_finish(skb, %s, &%s, %s)", s.at(s.New), s.name("csum"), flags))
	w.moves = true
}

// sumOf is the function that sums up to so many bytes.
func (f *function) sumOf(limit int) string {
	if limit <= 64 {
		return "fr_sum64"
	}
	if limit > 2048 {
		f.fail("a checksum over up to %d bytes of the packet", limit)
	}
	f.needs["scratch"] = "yes"
	if limit <= 512 {
		return "fr_sum512"
	}
	return "fr_sum"
}

// allTerms returns the terms of a checksum, of whatever kind.
