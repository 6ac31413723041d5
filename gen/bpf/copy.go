package bpf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A copy is made in place. The packet holds what the last copy made of it, so each writes all that any of them writes:
// if it has nothing of its own, what came.

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
	f.end(s.Pos, f.made(w, "long", "copy"))
}

// copies has a function make a copy, or a part of one, for f.
func (w *writer) copies(f *function, s *ir.Copy) {
	w.copy, w.linked, w.inPlace = s, f.prog.ir.L2, true
	w.scope, w.makes = f.scope, f.makes
	for _, other := range f.fan.all { // all that any of them writes
		if other.Rewrite != nil {
			w.leaves = append(w.leaves, other.Rewrite.Runs...)
		}
	}
	w.declared = maps.Clone(f.declared)
	w.fan, w.turn = f.fan, f.fan
	w.known.plain, w.reason = f.known.plain, f.reason
}

// made puts a function that makes a copy, or a part of one, in front of f. It returns the call.
func (f *function) made(w *writer, result c.Type, what string) c.Expr {
	name := f.prog.unique(fmt.Sprintf("%s_%s%d", f.prog.short, what, f.prog.copies))
	f.timed, w.timed = f.timed || w.timed, false
	made, args := w.assemble(result, name, []c.Param{f.fan.sameParam()})
	*f.makes = append(*f.makes, made)
	return c.Do(name, append(args, same)...)
}

// write renders the function. If something has to be given back when the kernel refuses, another function rewrites the
// packet, so that it is given back in one place.
func (n *fan) write(w *writer) {
	s := w.copy
	w.fx.before()
	var refused c.Expr
	if len(w.fx.undo) == 0 {
		refused = n.rewrite(w)
	} else {
		inner := w.prog.writer(s.Rewrite, &ir.Effects{})
		inner.copies(w.function, s)
		inner.inner = true
		inner.end(noPos, n.rewrite(inner))
		refused = w.made(inner, "int", "write")
	}
	w.gap()
	w.failIf(c.Unlikely(refused))
	i := slices.Index(n.tallies, s.Reason)
	if i < 0 {
		i = len(n.tallies)
		n.tallies = append(n.tallies, s.Reason)
	}
	w.add(&c.Assign{To: c.To(same, tally(i)), Op: "+=", X: c.Dec(1)})
	w.do(noPos, "fr_copied", w.identity(n.Row), ofSKB("len"))
	w.fx.after()
	w.end(noPos, c.Num(0))
}

// rewrite renders how the packet is rewritten. It returns the call that has it cloned and sent, and is true if the
// kernel refuses.
func (n *fan) rewrite(w *writer) c.Expr {
	s := w.copy
	w.cells = append(w.back(), w.stores()...)
	odd := n.copySums(w)
	w.metadata()
	index := w.ofHop(s.Hop, "ifindex")

	fills, sum := n.fill(w)
	w.fan = nil // what follows is about the packet
	if len(fills) > 0 {
		w.gap()
		for _, call := range fills {
			w.failIf(call)
		}
	}
	w.rederive()
	w.gap()
	w.newAt = w.place()
	w.gap()
	if w.linked {
		w.do(noPos, "fr_link", data, w.hop(s.Hop))
	}
	for _, x := range w.cells {
		w.put(x)
	}
	for _, s := range w.sums {
		w.do(s.Pos, "st16", w.newPtr(s.New), s.leaves)
	}
	w.completes(sum, n.sums(w.function))
	for _, m := range []struct {
		name string
		x    ir.Expr
	}{{"priority", w.rw.Priority}, {"mark", w.rw.Mark}} {
		switch {
		case m.x != nil:
			w.asReceived(m.name)
			w.assign(noPos, ofSKB(m.name), w.beside[m.name])
		case n.sets(m.name):
			w.assign(noPos, ofSKB(m.name), w.asReceived(m.name))
		}
	}
	w.newPointers()
	var here []c.Stmt
	if c.Count(w.body, data) > 0 {
		here = append(here, variable("void *", data))
	}
	here = append(here, w.pointersToSet()...)
	w.body = append(here, w.body...)
	w.fan = n

	var refused []c.Expr
	for _, kind := range slices.Backward(odd) {
		refused = append(refused, equals(kind, c.Ident("FR_SUM_ODD")))
	}
	return c.Join("||", append(refused, c.Do("bpf_clone_redirect", skb, index, c.Num(0)))...)
}

// back returns stores that undo what only other copies change.
func (w *writer) back() (out []cell) {
	own, widths := map[ir.Off]bool{}, map[ir.Off]bool{}
	for _, o := range bytesOf(w.rw) {
		own[o] = true
	}
	for _, st := range w.rw.Stores {
		if st.Width != nil {
			widths[st.Off] = true
		}
	}
	var missing []ir.Off
	for _, made := range w.turn.all {
		if made.Rewrite == nil {
			continue
		}
		for _, o := range bytesOf(made.Rewrite) {
			if !own[o] {
				own[o] = true
				missing = append(missing, o)
			}
		}
		for _, x := range made.Rewrite.Stores {
			if x.Width != nil && !widths[x.Off] {
				widths[x.Off] = true
				out = append(out, w.backVariable(x))
			}
		}
	}
	return append(out, w.backBytes(missing)...)
}

// bytesOf are the bytes that a rewrite stores at constant places: all but integers of variable size.
func bytesOf(rw *ir.Rewrite) (all []ir.Off) {
	for _, st := range rw.Stores {
		if st.Width == nil {
			for i := range st.Size {
				all = append(all, st.Off.Plus(i))
			}
		}
	}
	for _, s := range rw.Sums {
		all = append(all, s.New, s.New.Plus(1))
	}
	return all
}

// backVariable undoes the store of an integer of variable size.
func (w *writer) backVariable(x ir.Store) cell {
	w.holds(x.Off.Plus(8))
	back := cell{scalar: w.packet(x.Off, 8), off: x.Off, width: x.Width}
	if x.Plain {
		w.more = true
		back.code = c.Do("fr_first", c.Bytes("be", 8, w.ptr(x.Off)), w.variable(x.Width))
		back.le, back.load, back.word = true, nil, x.Size
	}
	return back
}

// backBytes undoes stores of bytes, of which those that follow each other take one store.
func (w *writer) backBytes(missing []ir.Off) (out []cell) {
	order := w.prog.ir.Vars
	slices.SortFunc(missing, func(a, b ir.Off) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Base), slices.Index(order, b.Base)),
			cmp.Compare(a.Const, b.Const))
	})
	for i := 0; i < len(missing); {
		n := 1
		for i+n < len(missing) && missing[i+n] == missing[i].Plus(n) {
			n++
		}
		at := missing[i]
		i += n
		for _, size := range pieces(0, n) {
			w.holds(at.Plus(size))
			out = append(out, cell{scalar: w.packet(at, size), off: at})
			at = at.Plus(size)
		}
	}
	return out
}

// copySums computes the checksums of a copy. What doesn't depend on the receiver is computed in front of the loop. It
// returns how a turn gets at the kinds of those that the kernel may be unable to finish.
func (n *fan) copySums(w *writer) (odd []c.Expr) {
	for _, s := range w.rw.Sums {
		s := w.newSum(s)
		w.sums = append(w.sums, s)
		if kind := n.copySum(w, s); kind != nil && (s.New.Base != nil || s.New.Const&1 != 0) {
			odd = append(odd, kind)
		}
	}
	return odd
}

func (n *fan) copySum(w *writer, s *sum) (kind c.Expr) {
	if s.Swap != nil || s.Tail {
		w.fail("%s of the copy at %s follows a payload that moves", s.Name, w.copy.Pos)
		return nil
	}
	pre, value := n.pre, s.name("")
	s.leaves = value
	sameNow, now := n.split(s.NewTerms)
	samePseudo, nowPseudo := n.split(s.NewPseudo)
	w.gap()
	w.note(comment(s.Name))
	own, ownPseudo := w.summands(now), w.pseudoHeader(nowPseudo)

	// In front of the loop.
	if !s.Fresh {
		pre.cover(s.Pos, &ir.Load{Off: s.Old, Bits: 16})
	}
	for t := range s.Terms() {
		pre.cover(s.Pos, t.Value, t.Len, t.OddIf)
	}
	same, pseudo := pre.summands(sameNow), pre.pseudoHeader(samePseudo)
	full, partial := pre.plus(zero, slices.Concat(same, pseudo)), c.Expr(nil)
	if !s.Fresh {
		old := pre.value(scalar{size: 2, code: c.Bytes("ld", 2, pre.ptr(s.Old))}, s.Name, s.Pos)
		was, wasPseudo := pre.summands(s.OldTerms), pre.pseudoHeader(s.OldPseudo)
		minus, add := cancel(slices.Concat(was, wasPseudo), slices.Concat(same, pseudo))
		full = pre.plus(pre.minus(c.Do("fr_sum_of", old), minus), add)
		minus, add = cancel(wasPseudo, pseudo)
		partial = pre.plus(pre.minus(c.Binary{Op: "+", X: zero, Y: old}, minus), add)
		if mayBePartial(s.Sum) {
			kind = c.Do("fr_sum_kind", skb, pre.offset(s.Old), old, c.Do("fr_fold", pre.total(wasPseudo)))
			if s.Absent {
				kind = c.Choice{If: old, Then: kind, Else: c.Ident("FR_SUM_ABSENT")}
			}
		}
	}
	key := [3]c.Key{c.KeyOf(kind), c.KeyOf(full), c.KeyOf(partial)}
	i, known := n.rests[key]
	if !known {
		i = len(n.rests)
		n.rests[key] = i
		pre.gap()
		pre.note(comment(s.Name) + ", without what depends on the receiver")
	}
	name, whole := func(what string) string { return fmt.Sprint(what, i) }, full
	if kind != nil {
		kind = n.keep("__u32", name("kind"), kind)
		if !known {
			pre.stopIf(s.Pos, equals(kind, c.Ident("FR_SUM_FAULT")), pre.fx.undo, pre.punt(n.NoRoom))
		}
		full = c.Choice{If: equals(kind, sumPartial), Then: partial, Else: full}
	}
	rest := n.keep("__u64", name("rest"), full)

	// For each receiver.
	if kind == nil {
		w.define(noPos, "__be16", value, c.Do(s.function(), w.plus(rest, slices.Concat(own, ownPseudo))))
		if s.Absent {
			received := w.value(scalar{size: 2, code: c.Bytes("ld", 2, w.ptr(s.Old))}, "", s.Pos)
			w.absent(c.Not(received), value)
		}
		return nil
	}
	newPseudo := s.name("new_pseudo")
	w.define(noPos, "__u64", newPseudo, w.total(ownPseudo))
	withPseudo := func(x c.Expr) c.Expr { return c.Binary{Op: "+", X: x, Y: newPseudo} }
	folded := c.Do("fr_fold", withPseudo(rest))
	if covered(w.rw, s.Sum) { // another checksum wants to know what it will be
		whole := n.keep("__u64", name("full"), whole)
		w.define(noPos, "__be16", value, c.Do(s.function(), w.plus(withPseudo(whole), own)))
		s.leaves = c.Choice{If: equals(kind, sumPartial), Then: folded, Else: value}
	} else {
		w.define(noPos, "__be16", value, nil)
		branch := w.when(noPos, equals(kind, sumPartial), func() { w.assign(noPos, value, folded) })
		w.inside(&branch.Else, func() {
			w.assign(noPos, value, c.Do(s.function(), w.plus(withPseudo(rest), own)))
		})
	}
	if s.Absent {
		w.absent(equals(kind, c.Ident("FR_SUM_ABSENT")), value)
	}
	return kind
}

// sumPartial is the kind of a checksum that is left to a device.
const sumPartial = c.Ident("FR_SUM_PARTIAL")

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
// that may be missing is read only if a receiver's rule knows that it is there.
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
