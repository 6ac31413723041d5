package bpf

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Checksums are computed in 64 bits without carries, from what is added and what is subtracted, and folded once. Values
// that stay are left out.

// sum is a checksum that is being computed.
type sum struct {
	*ir.Sum
	w      *writer
	names  map[string]*c.Local // of numbers that go with it
	leaves c.Expr              // of a copy: what is stored
}

// newSum is a checksum that w computes.
func (w *writer) newSum(s *ir.Sum) *sum { return &sum{Sum: s, w: w, names: map[string]*c.Local{}} }

// name is what a number is called that goes with the checksum: the new one (what is "") has the field's name.
func (s *sum) name(what string) *c.Local {
	if s.names[what] == nil {
		want := s.Name
		if header, _, ok := strings.Cut(s.Name, "."); ok && what != "" {
			want = header
		}
		if what != "" {
			want += "_" + what
		}
		s.names[what] = s.w.prog.local(want, "")
	}
	return s.names[what]
}

// summand is a scalar in a sum, at an even or an odd position of the covered bytes.
type summand struct {
	scalar
	odd  bool
	name c.Expr // if it has one already: it is a sum, and code is nil
}

// protocol names the protocol after IP.
func protocol(n uint64) c.Expr {
	if name := ipProtocols[n]; name != "" {
		return name
	}
	return c.Num(n)
}

// protocolOf renders the constant of a pseudo-header that is a protocol, or nothing.
func protocolOf(t ir.Term) c.Expr {
	if n, ok := t.Value.(*ir.Const); ok && t.Size == 2 {
		switch n.V {
		case 6, 17, 58: // those that have one
			return c.Do("bpf_htons", protocol(n.V))
		}
	}
	return nil
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
			name := w.prog.local("region_sum", "")
			w.define(noPos, "__u64", name, c.Do(w.sumOf(t.Max), w.prog.given(), w.offset(t.At), w.expr(t.Len)))
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
		if name := protocolOf(t); name != nil {
			list[0].protocol = name
		}
		out = append(out, list...)
	}
	return out
}

// turned counts a term's summands at an odd position if the packet says so.
func (w *writer) turned(t ir.Term, parts []summand) []summand {
	if t.OddIf == nil {
		return parts
	}
	name := w.prog.local("odd_sum", "")
	w.define(noPos, "__u64", name, w.total(parts))
	// a branch would have the verifier follow two ways from here
	w.add(&c.Assign{To: name, Op: "<<=", X: c.Binary{Op: "*", X: c.Dec(8), Y: w.expr(t.OddIf)}})
	return []summand{{scalar{size: 4}, false, name}}
}

// cancel takes out what is added and subtracted.
func cancel(a, b []summand) (restA, restB []summand) {
	for _, x := range a {
		i := slices.IndexFunc(b, func(y summand) bool {
			return x.is(y)
		})
		if i < 0 {
			restA = append(restA, x)
			continue
		}
		b = slices.Delete(slices.Clone(b), i, i+1)
	}
	return restA, b
}

// total renders the sum of summands, in 64 bits.
func (w *writer) total(list []summand) c.Expr {
	parts := w.parts(list)
	if len(parts) == 1 {
		return parts[0]
	}
	return sumIn64(parts)
}

// parts renders what is added, the constants last.
func (w *writer) parts(list []summand) (parts []c.Expr) {
	list = w.joined(list)
	fixed := uint64(0)
	var named []c.Expr
	for _, s := range list {
		switch {
		case s.protocol != nil:
			named = append(named, s.protocol)
			continue
		case s.lit:
			fixed += constant(s)
			continue
		}
		name := s.name
		if name == nil {
			name = w.term(s.scalar, w.rw.Pos)
		}
		switch {
		case s.size >= 8 && s.odd:
			name = c.Bytes("fr_odd", s.size, name)
		case s.size >= 8:
			name = c.Bytes("fr_add", s.size, name)
		case s.odd:
			name = shifted("<<", in64(name), 8)
		}
		parts = append(parts, name)
	}
	if parts = append(parts, named...); fixed > 0 || len(parts) == 0 {
		for fixed>>16 != 0 {
			fixed = fixed&0xffff + fixed>>16
		}
		parts = append(parts, c.Num(fixed))
	}
	return parts
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
func (w *writer) named(s summand) bool {
	if s.code == nil {
		return false
	}
	_, ok := w.values[keyOf(s.scalar)]
	return ok
}

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
	w.gap()
	w.note(comment(s.Name))
	if s.Fresh {
		sum := w.plus(zero, slices.Concat(w.summands(s.NewTerms), w.pseudoHeader(s.NewPseudo)))
		w.define(noPos, "__be16", s.name(""), c.Do(s.function(), sum))
		return
	}
	old := c.Expr(c.Bytes("ld", 2, w.ptr(s.Old)))
	if s.Absent && !s.Offloaded {
		w.define(s.Pos, "__be16", s.name("old_checksum"), old)
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
	rest := w.minus(c.Do("fr_sum_of", old), was)
	result := func(x c.Expr) {
		if s.Offloaded {
			w.assign(noPos, value, x)
		} else {
			w.define(noPos, "__be16", s.name(""), x)
		}
	}
	if s.Offloaded {
		w.received(s, old, wasPseudo, was)
		w.optional(s)
		old, rest = c.In(s.name("csum"), "old"), c.In(s.name("csum"), "rest")
		w.define(noPos, "__u64", s.name("new_pseudo"), w.total(nowPseudo))
	}
	absent := s.Absent
	switch {
	case s.Swap != nil:
		if s.Offloaded {
			w.assign(noPos, c.In(s.name("csum"), "new_pseudo"), s.name("new_pseudo"))
			now = append(now, summand{scalar{size: 4}, false, s.name("new_pseudo")})
		}
		payload := s.name("payload")
		w.define(noPos, "__u16", payload, c.Do("fr_fold", rest))
		w.when(noPos, w.expr(s.Swap), func() {
			w.assign(noPos, payload, c.Do("__builtin_bswap16", payload))
		})
		result(c.Do(s.function(), w.plus(in64(payload), now)))
	case s.Offloaded:
		absent = s.Absent && !s.Optional
		w.leave(s, s.name("new_pseudo"), w.total(now))
	default:
		result(c.Do(s.function(), w.plus(rest, now)))
	}
	if absent {
		w.absent(c.Not(old), s.value())
	}
}

// zero is what a sum begins with that may not be 0 in the end.
const zero = c.Ident("FR_ZERO")

// plus adds summands to a sum of 64 bits.
func (w *writer) plus(sum c.Expr, list []summand) c.Expr {
	if len(list) == 0 {
		return sum
	}
	return c.Join("+", append([]c.Expr{sum}, w.parts(list)...)...)
}

// minus subtracts summands from a sum.
func (w *writer) minus(sum c.Expr, list []summand) c.Expr {
	if len(list) == 0 {
		return sum
	}
	return c.Binary{Op: "-", X: sum, Y: w.total(list)}
}

// absent has a packet that came without a checksum leave without one.
func (w *writer) absent(cond, value c.Expr) {
	none := w.when(noPos, cond, func() { w.assign(noPos, value, c.Num(0)) })
	none.Note = "no checksum came, none leaves"
}

// value is the checksum that leaves, if it isn't partial.
func (s *sum) value() c.Expr {
	if s.Offloaded && !s.Fresh && s.w.fwd != nil {
		return c.In(s.name("csum"), "new")
	}
	return s.name("")
}

// leave gives a checksum that may be partial what leaves.
func (w *writer) leave(s *sum, pseudo, now c.Expr) {
	set := "fr_csum_set"
	if s.Optional {
		set = "fr_csum_set_not_0"
	}
	w.do(noPos, set, c.Address(s.name("csum")), pseudo, now)
}

// received renders what is known of a checksum that came and may be partial.
func (w *writer) received(s *sum, old c.Expr, wasPseudo, was []summand) {
	gone := w.total(was)
	w.define(noPos, "__u64", s.name("old_pseudo"), w.total(wasPseudo))
	w.partial()
	field, csum := s.at(s.Old), s.name("csum")
	partial := c.In(csum, "partial")
	w.define(noPos, "struct fr_csum", csum, c.Do("fr_csum", w.asked, field, old, s.name("old_pseudo"), gone))
	if w.rw.Resize == ir.InPlace && !w.known.plain {
		segmented := c.Expr(c.Do("fr_is_segmented", skb, w.asked, field))
		if s.Absent { // the kernel makes up no checksum of a tunnel that has none
			segmented = c.Join("&&", c.In(csum, "old"), segmented)
		}
		w.assign(noPos, partial, c.Join("||", partial, segmented))
	}
	unfinished := []c.Expr{c.Unlikely(partial), c.Not(facts)}
	if s.New.Base != nil {
		unfinished = append(unfinished, c.Binary{Op: "&", X: w.offset(s.New), Y: c.Num(1)})
	}
	if s.New.Base != nil || s.New.Const&1 != 0 {
		w.note("bpf_l4_csum_replace takes even offsets only")
		w.failIf(c.Join("&&", unfinished...))
	}
}

// facts is whether programs can read what the kernel knows of the packet.
const facts = c.Ident("fr_facts")

// receivedSum renders what is known of a checksum that came; was is what doesn't leave.
func (w *writer) receivedSum(s *sum, was []summand) {
	if s.Tail {
		was = append(was, w.tail(s))
	}
	w.received(s, c.Bytes("ld", 2, w.ptr(s.Old)), w.pseudoHeader(s.OldPseudo), was)
}

// optional renders that a packet which came without a checksum leaves without one.
func (w *writer) optional(s *sum) {
	if s.Absent && s.Optional && s.Swap == nil {
		w.assign(noPos, c.In(s.name("csum"), "optional"), c.Num(1))
	}
}

// at is the offset of the field. If it is fixed it has a name, and another one in the
// packet that leaves if it moves.
func (s *sum) at(o ir.Off) c.Expr {
	if o.Base != nil {
		return s.w.offset(o)
	}
	what := "checksum_at"
	if o == s.New && o != s.Old && s.w.common == nil {
		what = "new_checksum_at"
	}
	if s.names[what] == nil {
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
	end := c.Binary{Op: "+", X: w.oldFront(), Y: w.expr(w.rw.Payload)}
	odd, cut := c.Expr(c.Num(0)), w.prog.helper("sum_cut64")
	if s.TailOdd != nil {
		odd = w.expr(s.TailOdd)
	}
	if w.sumOf(s.TailMax) != w.prog.helper("sum64") {
		cut = "fr_sum_cut"
	}
	w.define(noPos, "__u64", name, c.Do(cut, w.prog.given(), end, w.offset(s.TailEnd), odd))
	return summand{scalar{size: 4}, false, name}
}

// partial asks once where a checksum is left to a device.
func (w *writer) partial() {
	if w.asked != nil {
		return
	}
	w.needs["facts"] = "yes"
	if v := w.known.partial; v != nil {
		w.asked = w.variable(v)
		return
	}
	w.asked = w.prog.local("partial_at", "")
	w.define(noPos, "__u32", w.asked, c.Do("fr_partial", skb))
}

// stored is what goes into a checksum's field. If the kernel says that it is partial, that is the new
// pseudo-header's sum; if it doesn't say, the kernel finishes it.
func (s *sum) stored() c.Expr {
	if s.Whole != nil {
		return c.Num(0)
	}
	if !s.Offloaded || s.Fresh {
		return s.name("")
	}
	return c.Do("fr_csum_field", c.Address(s.name("csum")))
}

// finish has the kernel complete a checksum that seems to be partial.
func (w *writer) finish(s *sum) {
	flags := c.Expr(c.Num(0))
	if s.Optional {
		flags = c.Ident("BPF_F_MARK_MANGLED_0")
	}
	w.failIf(c.Do("fr_finish", skb, s.at(s.New), c.Address(s.name("csum")), flags))
	w.moves = true
}

// sumOf is the function that sums up to so many bytes.
func (f *function) sumOf(limit int) string {
	if limit <= 64 {
		return f.prog.helper("sum64")
	}
	if limit > 2048 || f.prog.frame() {
		f.fail("a checksum over up to %d bytes of the packet", limit)
	}
	f.needs["scratch"] = "yes"
	if limit <= 512 {
		return "fr_sum512"
	}
	return "fr_sum"
}

// allTerms returns the terms of a checksum, of whatever kind.
