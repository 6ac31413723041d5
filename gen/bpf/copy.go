package bpf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A copy is made in place. The packet holds what the last copy made of it, so each writes all that any of them writes:
// where it has nothing of its own, what came.

// copy renders the call of a function that makes a copy, and the function.
func (f *function) copy(s *ir.Copy) {
	n := f.fan
	if n == nil {
		f.fail("a copy outside of a fan-out, at %s", s.Pos)
		return
	}
	f.quote(s.Pos)
	w := f.prog.writer(s.Rewrite, &s.Effects)
	if rw := w.rw; rw.Resize != ir.InPlace || rw.Trim || rw.PopTag || rw.PopInner || rw.Family != 0 || s.Hop == nil ||
		s.Hop.Row == nil {
		f.fail("the copy at %s is not made in place, for a hop of a row", s.Pos)
		return
	}
	f.prog.copies++
	w.copies(f, s)
	w.cover(s.Pos, &s.Effects)
	w.coverAll(w.function, s.Pos)
	n.write(w)
	f.stmt(s.Pos, "return %s;", f.made(w, "long", "copy"))
}

// copies has a function make a copy, or a part of one, for f.
func (w *writer) copies(f *function, s *ir.Copy) {
	w.copy, w.linked, w.inPlace = s, f.prog.ir.L2, true
	w.scope, w.makes = f.scope, f.makes
	for _, c := range f.fan.all { // all that any of them writes
		if c.Rewrite != nil {
			w.leaves = append(w.leaves, c.Rewrite.Parts...)
		}
	}
	w.sharesNames(f)
	w.declared = maps.Clone(f.declared)
	w.fan, w.turn = f.fan, f.fan
	w.known.plain, w.reason = f.known.plain, f.reason
}

// made puts a function that makes a copy, or a part of one, in front of f. It returns the call.
func (f *function) made(w *writer, result, what string) string {
	name := f.prog.unique(fmt.Sprintf("%s_%s%d", f.prog.short, what, f.prog.copies))
	f.timed, w.timed = f.timed || w.timed, false
	params, args := f.pass(w.function)
	params, args = append([]string{f.fan.same() + " *same"}, params...), append([]string{"same"}, args...)
	*f.makes = append(*f.makes,
		w.assemble(fmt.Sprintf("static __always_inline %s %s(%s)", result, name, strings.Join(params, ", "))))
	return fmt.Sprintf("%s(%s)", name, strings.Join(args, ", "))
}

// write renders the function. Where something has to be given back if the kernel refuses, another function rewrites the
// packet, so that it is given back in one place.
func (n *fan) write(w *writer) {
	s := w.copy
	w.fx.before()
	refused := ""
	if len(w.fx.undo) == 0 {
		refused = n.rewrite(w)
	} else {
		inner := w.prog.writer(s.Rewrite, &ir.Effects{})
		inner.copies(w.function, s)
		inner.inner = true
		inner.line("return %s;", n.rewrite(inner))
		refused = w.made(inner, "int", "write")
	}
	w.line("")
	w.failIf("unlikely(" + refused + ")")
	i := slices.Index(n.tallies, s.Reason)
	if i < 0 {
		i = len(n.tallies)
		n.tallies = append(n.tallies, s.Reason)
	}
	w.line("same->%s++;", tally(i))
	w.line("fr_copied(%s, skb->len);", w.identity(n.Row))
	w.fx.after()
	w.line("return 0;")
}

// rewrite renders how the packet is rewritten. It returns the call that has it cloned and sent, and is true where the
// kernel refuses.
func (n *fan) rewrite(w *writer) string {
	s := w.copy
	w.cells = append(w.back(), w.stores()...)
	odd := n.copySums(w)
	w.metadata()
	hop := w.hop(s.Hop)

	blanks, csum := n.blanks(w)
	w.fan = nil // what follows is about the packet
	if len(blanks) > 0 {
		w.line("")
		for _, b := range blanks {
			w.failIf(b)
		}
	}
	w.rederive()
	w.line("")
	w.newAt = len(w.lines)
	w.line("")
	if w.linked {
		w.line("fr_link(data, %s);", w.hopPointer(s.Hop))
	}
	for _, c := range w.cells {
		w.put(c)
	}
	for _, s := range w.sums {
		w.stmt(s.Pos, "st16(%s, %s);", w.newPtr(s.New), s.leaves)
	}
	w.completes(csum, n.sums(w.function))
	for _, m := range []struct {
		name string
		x    ir.Expr
	}{{"priority", w.rw.Priority}, {"mark", w.rw.Mark}} {
		switch {
		case m.x != nil:
			w.asItCame(m.name)
			w.line("skb->%s = %s;", m.name, w.beside[m.name])
		case n.sets(m.name):
			w.line("skb->%s = %s;", m.name, w.asItCame(m.name))
		}
	}
	w.newPointers()
	var here []string
	if w.data {
		here = append(here, "\tvoid *data;")
	}
	for _, v := range w.prog.ir.Vars {
		if contains(w.ptrsUsed, v) {
			here = append(here, "\tvoid *"+w.pointerName(v)+";")
		}
	}
	w.lines = append(here, w.lines...)
	w.data, w.ptrsUsed, w.fan = false, nil, n

	refused := fmt.Sprintf("bpf_clone_redirect(skb, %sifindex, 0)", hop)
	for _, kind := range odd {
		refused = fmt.Sprintf("%s == FR_SUM_ODD || %s", kind, refused)
	}
	return refused
}

// blanks are the calls that make zeros of headers, and those that put back what only other copies make zeros of; and
// the sum of the device without the bytes that copies change, and without what is zero.
func (n *fan) blanks(w *writer) (calls []string, csum string) {
	for _, c := range n.all {
		if c.Rewrite == nil {
			continue
		}
		for _, b := range c.Rewrite.Blanks {
			if !slices.ContainsFunc(n.zeroed, func(k ir.Blank) bool { return k.At == b.At }) {
				n.zeroed = append(n.zeroed, b)
			}
		}
	}
	without := ""
	for i, b := range n.zeroed {
		at, size := w.offset(b.At), w.expr(b.Len)
		if slices.ContainsFunc(w.rw.Blanks, func(own ir.Blank) bool { return own.At == b.At }) {
			calls = append(calls, w.unlessEmpty(b, fmt.Sprintf("fr_blank(skb, %s, %s)", at, size)))
			without += " - " + n.keep("__u32", fmt.Sprint("zeroed", i), "0")
			continue
		}
		room := roomOf(b.Max)
		w.holds(plus(b.At, room))
		call := fmt.Sprintf("fr_put_back(skb, %s, %s, %s, %d)", at, w.ptr(b.At), size, room)
		calls = append(calls, w.unlessEmpty(b, call))
	}
	if csum = "same->csum"; without != "" {
		csum = fmt.Sprintf("fr_fold(FR_ZERO + %s%s)", csum, without)
	}
	return calls, csum
}

// back returns stores that undo what only other copies change.
func (w *writer) back() (out []cell) {
	own, widths := map[ir.Off]bool{}, map[ir.Off]bool{}
	each := func(rw *ir.Rewrite, visit func(o ir.Off)) {
		for _, c := range rw.Stores {
			if c.Width == nil {
				for i := range c.Size {
					visit(plus(c.Off, i))
				}
			}
		}
		for _, s := range rw.Sums {
			visit(s.New)
			visit(plus(s.New, 1))
		}
	}
	each(w.rw, func(o ir.Off) { own[o] = true })
	for _, c := range w.rw.Stores {
		if c.Width != nil {
			widths[c.Off] = true
		}
	}
	var missing []ir.Off
	for _, c := range w.turn.all {
		if c.Rewrite == nil {
			continue
		}
		each(c.Rewrite, func(o ir.Off) {
			if !own[o] {
				own[o] = true
				missing = append(missing, o)
			}
		})
		for _, x := range c.Rewrite.Stores {
			if x.Width != nil && !widths[x.Off] {
				widths[x.Off] = true
				w.holds(plus(x.Off, 8))
				c := cell{scalar: w.packet(x.Off, 8), off: x.Off, width: x.Width}
				if x.Plain {
					w.more = true
					c.code = fmt.Sprintf("fr_first(be64(%s), %s)", w.ptr(x.Off), w.variable(x.Width))
					c.le, c.load, c.word = true, nil, x.Size
				}
				out = append(out, c)
			}
		}
	}
	order := w.prog.ir.Vars
	slices.SortFunc(missing, func(a, b ir.Off) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Base), slices.Index(order, b.Base)),
			cmp.Compare(a.Const, b.Const))
	})
	for i := 0; i < len(missing); {
		n := 1
		for i+n < len(missing) && missing[i+n] == plus(missing[i], n) {
			n++
		}
		at := missing[i]
		i += n
		for _, size := range pieces(0, n) {
			w.holds(plus(at, size))
			out = append(out, cell{scalar: w.packet(at, size), off: at})
			at = plus(at, size)
		}
	}
	return out
}

// copySums computes the checksums of a copy. What doesn't depend on the receiver is computed in front of the loop. It
// returns how a turn gets at the kinds of those that the kernel may be unable to finish.
func (n *fan) copySums(w *writer) (odd []string) {
	for _, s := range w.rw.Sums {
		s := w.newSum(s)
		w.sums = append(w.sums, s)
		if kind := n.copySum(w, s); kind != "" && (s.New.Base != nil || s.New.Const&1 != 0) {
			odd = append(odd, kind)
		}
	}
	return odd
}

func (n *fan) copySum(w *writer, s *sum) (kind string) {
	if s.Swap != nil || s.Tail {
		w.fail("%s of the copy at %s follows a payload that moves", s.Name, w.copy.Pos)
		return ""
	}
	pre, value := n.pre, s.name("")
	s.leaves = value
	if s.Offloaded && !s.Fresh {
		kind = "yes"
	}
	sameNow, now := n.split(s.NewTerms)
	samePseudo, nowPseudo := n.split(s.NewPseudo)
	w.line("")
	w.line("/* %s */", comment(s.Name))
	own, ownPseudo := w.summands(now), w.pseudoHeader(nowPseudo)

	// In front of the loop.
	if !s.Fresh {
		pre.cover(s.Pos, &ir.Load{Off: s.Old, Bits: 16})
	}
	for t := range s.Terms() {
		pre.cover(s.Pos, t.Value, t.Len, t.OddIf)
	}
	same, pseudo := pre.summands(sameNow), pre.pseudoHeader(samePseudo)
	full, partial := "FR_ZERO"+plusSum(pre.add, slices.Concat(same, pseudo)), ""
	old := ""
	if !s.Fresh {
		old = pre.value(scalar{size: 2, code: fmt.Sprintf("ld16(%s)", pre.ptr(s.Old))}, s.Name, s.Pos)
		was, wasPseudo := pre.summands(s.OldTerms), pre.pseudoHeader(s.OldPseudo)
		minus, add := cancel(slices.Concat(was, wasPseudo), slices.Concat(same, pseudo))
		full = fmt.Sprintf("fr_sum_of(%s)%s%s", old, minusSum(pre.add, minus), plusSum(pre.add, add))
		minus, add = cancel(wasPseudo, pseudo)
		partial = fmt.Sprintf("FR_ZERO + %s%s%s", old, minusSum(pre.add, minus), plusSum(pre.add, add))
		if kind != "" {
			kind = fmt.Sprintf("fr_sum_kind(skb, %s, %s, fr_fold(%s))", pre.offset(s.Old), old, pre.add(wasPseudo))
			if s.Absent {
				kind = fmt.Sprintf("%s ? %s : FR_SUM_ABSENT", old, kind)
			}
		}
	}
	key := kind + "\n" + full + "\n" + partial
	i, known := n.rests[key]
	if !known {
		i = len(n.rests)
		n.rests[key] = i
		pre.line("")
		pre.line("/* %s, without what depends on the receiver */", comment(s.Name))
	}
	name, whole := func(what string) string { return fmt.Sprint(what, i) }, full
	if kind != "" {
		kind = n.keep("__u32", name("kind"), kind)
		if !known {
			pre.stopIf(s.Pos, kind+" == FR_SUM_FAULT", pre.fx.undo, pre.up(n.NoRoom))
		}
		full = fmt.Sprintf("%s == FR_SUM_PARTIAL ? %s : %s", kind, partial, full)
	}
	rest := n.keep("__u64", name("rest"), full)

	// For each receiver.
	if kind == "" {
		w.line("__be16 %s = %s(%s%s);", value, s.function(), rest, plusSum(w.add, slices.Concat(own, ownPseudo)))
		if s.Absent {
			w.line("if (!%s) /* no checksum came, none leaves */",
				w.value(scalar{size: 2, code: fmt.Sprintf("ld16(%s)", w.ptr(s.Old))}, "", s.Pos))
			w.line("\t%s = 0;", value)
		}
		return ""
	}
	w.line("__u64 %s = %s;", s.name("new_pseudo"), w.add(ownPseudo))
	if covered(w.rw, s.Sum) { // another checksum wants to know what it will be
		whole := n.keep("__u64", name("full"), whole)
		w.line("__be16 %s = %s(%s + %s%s);", value, s.function(), whole, s.name("new_pseudo"), plusSum(w.add, own))
		s.leaves = fmt.Sprintf("%s == FR_SUM_PARTIAL ? fr_fold(%s + %s) : %s", kind, rest, s.name("new_pseudo"), value)
	} else {
		w.line("__be16 %s;", value)
		w.line("if (%s == FR_SUM_PARTIAL)", kind)
		w.line("\t%s = fr_fold(%s + %s);", value, rest, s.name("new_pseudo"))
		w.line("else")
		w.line("\t%s = %s(%s + %s%s);", value, s.function(), rest, s.name("new_pseudo"), plusSum(w.add, own))
	}
	if s.Absent {
		w.line("if (%s == FR_SUM_ABSENT) /* no checksum came, none leaves */", kind)
		w.line("\t%s = 0;", value)
	}
	return kind
}

func plusSum(add func([]summand) string, list []summand) string {
	if len(list) == 0 {
		return ""
	}
	return " + " + add(list)
}

func minusSum(add func([]summand) string, list []summand) string {
	if len(list) == 0 {
		return ""
	}
	if len(list) == 1 {
		return " - " + add(list)
	}
	return " - (" + add(list) + ")"
}

func covered(rw *ir.Rewrite, s *ir.Sum) bool {
	return slices.ContainsFunc(rw.Sums, func(t *ir.Sum) bool {
		for t := range t.Terms() {
			if t.New == s {
				return true
			}
		}
		return false
	})
}

// split tells terms that are the same for all receivers from others.
func (n *fan) split(terms []ir.Term) (same, own []ir.Term) {
	for _, t := range terms {
		if t.New == nil && n.shared(t.Value) && n.shared(t.Len) && n.shared(t.OddIf) &&
			(t.At.Base == nil || !n.local[t.At.Base]) {
			same = append(same, t)
		} else {
			own = append(own, t)
		}
	}
	return same, own
}

// shared reports whether an expression has the same value for all receivers, and has it before the first one: a row
// that may be missing is read only where a receiver's rule knows that it is there.
func (n *fan) shared(e ir.Expr) bool {
	for e := range ir.Exprs(e) {
		switch e := e.(type) {
		case *ir.RowMember:
			if e.Row == n.Row || n.found[e.Row] || e.Row.Optional {
				return false
			}
		case *ir.RowHas:
			if e.Row == n.Row || n.found[e.Row] {
				return false
			}
		case *ir.CounterValue:
			return false
		}
	}
	for v := range ir.Reads(e) {
		if n.local[v] {
			return false
		}
	}
	return true
}
