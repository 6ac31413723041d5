package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// If packets of several kinds (IPv4 and IPv6) leave as one kind, one function writes all of them. What has to be
// computed from the packet that came is read before, where its kind is known, and given to that function: headers_len,
// what is known of a checksum, and values, called what the fields are called. Since all is inlined, that costs nothing.

// commonWrite is what statements that send one kind of packet have in common.
type commonWrite struct {
	cells []sharedCell
	sums  []sharedSum
	texts []c.Key  // of functions that were written: one, unless the statements differ otherwise
	names []string // what these are called
}

// sharedCell is a part of the packet that leaves; given: the statements differ in its value, or it comes from the
// packet.
type sharedCell struct {
	off   ir.Off
	size  int
	given bool
	note  string
	want  string
}

// sharedSum is a checksum; own are its summands that the statements differ in.
type sharedSum struct {
	name string
	same []summand
}

// written is what one statement would write, for comparison with others.
type written struct {
	w     *writer
	cells []cell
	added [][]summand // of each checksum, what is added
}

// survey finds the statements that share a function.
func (p *program) survey() {
	p.shared, p.fits = map[*ir.Forward]*commonWrite{}, map[*ir.Forward]*ir.CheckHop{}
	p.pairs(p.ir.Body)
	var order []string
	kinds := map[string][]*written{}
	for s := range ir.Stmts(p.ir.Body) {
		s, ok := s.(*ir.Forward)
		if !ok || !p.canShareWrite(s) {
			continue
		}
		w := p.writer(s.Rewrite, &s.Effects)
		w.fwd = s
		one := w.written()
		kind := w.kind() + fmt.Sprint(" to ", slices.Max(append(cellEnds(one.cells), 0)))
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], one)
	}
	for _, kind := range order {
		list := kinds[kind]
		if len(list) < 2 {
			continue
		}
		if h := commonOf(list); h != nil {
			for _, one := range list {
				p.shared[one.w.fwd] = h
			}
		}
	}
}

// pairs finds the check in front of each packet that leaves.
func (p *program) pairs(block []ir.Stmt) {
	for i, s := range block {
		if fwd, ok := s.(*ir.Forward); ok && i > 0 {
			if check, ok := block[i-1].(*ir.CheckHop); ok && fwd.Hop != nil && *check.Hop == *fwd.Hop {
				p.fits[fwd] = check
			}
		}
		for inner := range ir.Blocks(s) {
			p.pairs(*inner)
		}
	}
}

// fitsLater reports whether the function that writes checks whether the packet can leave: rest follow the check.
func (p *program) fitsLater(s *ir.CheckHop, rest []ir.Stmt) bool {
	if len(rest) == 0 {
		return false
	}
	fwd, ok := rest[0].(*ir.Forward)
	return ok && p.shared[fwd] != nil && p.fits[fwd] == s
}

// canShareWrite reports whether what a statement writes can be told from what it reads.
func (p *program) canShareWrite(s *ir.Forward) bool {
	rw, fx := s.Rewrite, &s.Effects
	if rw == nil || !p.ir.L2 || s.Hop == nil || s.Hop.Row == nil || s.End != nil || rw.Resize == ir.InPlace ||
		rw.PopTag || rw.PopInner || rw.OldFront.Base != nil || rw.NewFront.Base != nil || len(rw.Filled) > 0 ||
		rw.Priority != nil || rw.Mark != nil || (rw.NewFront.Const-rw.OldFront.Const)%2 != 0 {
		return false
	}
	if len(fx.Emits)+len(fx.Admits)+len(fx.Learns)+len(fx.Allocs)+len(fx.Lets)+len(fx.Counts) > 0 {
		return false
	}
	for _, st := range rw.Stores {
		if st.Off.Base != nil || st.Width != nil || st.Plain || st.If != nil || st.Little {
			return false
		}
	}
	for _, s := range rw.Sums {
		if s.Swap != nil || s.New.Base != nil || s.New.Const%2 != 0 || s.Old.Base != nil ||
			s.Absent && !(s.Offloaded && s.Optional) {
			return false
		}
		for t := range s.Terms() {
			if t.New != nil || t.Region || t.OddIf != nil {
				return false
			}
		}
	}
	return true
}

// kind says what leaves, without its values.
func (w *writer) kind() string {
	s, rw := w.fwd, w.rw
	text := fmt.Sprint(rw.NewFront.Const, rw.L2, rw.Resize, rw.Summed, s.Reason, s.Fault, s.NoRoom,
		plain(s.Hop.Row.Name), s.Hop.Member.Name, s.Hop.Family)
	for _, p := range rw.Runs {
		text += fmt.Sprint(" ", p.Header, p.At.Const)
	}
	for _, r := range s.Usage {
		text += fmt.Sprint(" ", plain(r.Name), r.Table.Name, r.Table.Row)
	}
	for _, s := range rw.Sums {
		text += fmt.Sprint(" ", s.New.Const, s.Offloaded, s.Offloaded && s.Fresh, s.Optional)
	}
	if check := w.prog.fits[s]; check != nil {
		text += fmt.Sprint(" ", c.LikenessOf(w.expr(check.Length)), check.TooBig, check.Reasons)
	}
	return text
}

// written computes what is written, for comparison.
func (w *writer) written() *written {
	out := &written{w: w, cells: w.stores()}
	for _, s := range w.rw.Sums {
		out.added = append(out.added, w.added(s))
	}
	return out
}

// mayBePartial reports whether a checksum may be partial in the packet that came.
func mayBePartial(s *ir.Sum) bool { return s.Offloaded && !s.Fresh }

// added is what is added to a checksum, less what is subtracted as well. It is the same list in each function.
func (w *writer) added(s *ir.Sum) []summand {
	_, now := w.changes(s)
	if mayBePartial(s) {
		now = append(now, w.pseudoHeader(s.NewPseudo)...)
	}
	return now
}

// changes is what is subtracted from a checksum and what is added, less the pseudo-headers of one that may be partial.
func (w *writer) changes(s *ir.Sum) (was, now []summand) {
	was, now = w.summands(s.OldTerms), w.summands(s.NewTerms)
	if !mayBePartial(s) {
		was, now = append(was, w.pseudoHeader(s.OldPseudo)...), append(now, w.pseudoHeader(s.NewPseudo)...)
	}
	if s.Fresh {
		return nil, now
	}
	return cancel(was, now)
}

// lasts reports whether a scalar has the same value after the packet has changed.
func (s scalar) lasts() bool { return s.lit || s.row }

// is reports whether two summands are the same in C.
func (x summand) is(y summand) bool { return x.fits(y) && c.Equal(x.code, y.code) }

// like reports whether summands of two functions are the same, but for the variables.
func (x summand) like(y summand) bool { return x.fits(y) && c.Alike(x.code, y.code) }

func (x summand) fits(y summand) bool {
	return x.code != nil && y.code != nil && x.odd == y.odd && x.size == y.size
}

// commonOf finds what statements have in common; nil: too little.
func commonOf(list []*written) *commonWrite {
	h := &commonWrite{}
	first := list[0]
	from := 0
	for _, end := range cellEnds(first.cells) {
		if slices.ContainsFunc(list, func(o *written) bool { return !slices.Contains(cellEnds(o.cells), end) }) {
			continue // in another one it is a part of a larger cell
		}
		var parts [][]cell
		for _, o := range list {
			parts = append(parts, between(o.cells, from, end))
		}
		from = end
		if len(parts[0]) == 0 {
			return nil
		}
		start := parts[0][0].off
		shared := sharedCell{off: start, size: end - start.Const, note: parts[0][0].note, want: parts[0][0].want}
		for _, p := range parts {
			if len(p) == 0 || p[0].off != start || len(p) > 1 && join(p) == nil {
				return nil
			}
			x, y := p[0], parts[0][0]
			shared.given = shared.given || len(p) > 1 || len(parts[0]) > 1 || !c.Alike(x.code, y.code) || !x.lasts()
			if len(p) == 1 && len(noted(p[0].note)) > len(noted(shared.note)) && len(parts[0]) > 1 {
				shared.note = p[0].note
			}
		}
		h.cells = append(h.cells, shared)
	}
	for i, s := range first.w.rw.Sums {
		sum := sharedSum{name: s.Name}
		for _, x := range first.added[i] {
			if x.lasts() && !slices.ContainsFunc(list, func(o *written) bool {
				return !slices.ContainsFunc(o.added[i], x.like)
			}) {
				sum.same = append(sum.same, x)
			}
		}
		for _, o := range list {
			if mayBePartial(s) && len(o.added[i]) != len(sum.same) {
				return nil
			}
		}
		h.sums = append(h.sums, sum)
	}
	return h
}

// cellEnds are the ends of cells, which are in order.
func cellEnds(cells []cell) (out []int) {
	for _, x := range cells {
		out = append(out, x.off.Const+x.size)
	}
	return out
}

// between are the cells from an offset to another one.
func between(cells []cell, from, to int) (out []cell) {
	for _, x := range cells {
		if x.off.Const >= from && x.off.Const < to {
			out = append(out, x)
		}
	}
	return out
}

// join is the value of neighbouring cells as one; nil: there is none.
func join(cells []cell) c.Expr {
	if len(cells) == 1 {
		return cells[0].code
	}
	size, fixed := 0, uint64(0)
	for _, x := range cells {
		size += x.size
	}
	if size != 2 && size != 4 && size != 8 {
		return nil
	}
	left := size
	var parts []c.Expr
	for _, x := range cells {
		left -= x.size
		if x.lit {
			fixed |= reverse(x.v, x.size) << (8 * left)
			continue
		}
		part := x.code // in the order of bytes that the CPU has
		if x.size > 1 {
			swap, ok := part.(c.Call)
			if !ok || swap.Name != swaps[x.size] {
				return nil
			}
			part = swap.Args[0]
		}
		if left > 0 {
			parts = append(parts, shifted("<<", in64(part), 8*left))
			continue
		}
		for _, term := range c.Terms("|", part) {
			if n, ok := term.(c.Number); ok {
				fixed |= n.V
			} else {
				parts = append(parts, term)
			}
		}
	}
	all := append([]c.Expr{c.Number{V: fixed, Form: c.Wide}}, parts...)
	return c.Do(swaps[size], c.Join("|", all...))
}

// forwardShared renders a statement that shares the function that writes: what is read in f, and that function.
func (f *function) forwardShared(s *ir.Forward, h *commonWrite) {
	w := f.prog.writer(s.Rewrite, &s.Effects)
	w.fwd, w.linked, w.common = s, true, h
	w.known, w.reason = f.known, f.reason
	w.coverAll(f, s.Pos)
	o := f.reads(s)

	w.oldLen, w.newLen = own("headers_len", ""), own("new_headers_len", "")
	w.constant(w.newLen, s.Rewrite.NewFront.Const)
	var params []c.Param
	var args []c.Expr
	give := func(typ c.Type, name c.Name, arg c.Expr) {
		params, args = append(params, c.Param{Type: typ, Name: name}), append(args, arg)
	}
	give("const __u32", w.oldLen, o.oldLen)
	give("const int", c.Ident("how"), family(s.Rewrite))

	w.define(noPos, data.Type, data, nil)
	w.define(noPos, "__u32", frameLen, w.length())
	w.constantsAt = w.place()
	if check := f.prog.fits[s]; check != nil {
		w.gap()
		w.hopFits(check, []ir.Stmt{s})
	}
	type argument struct {
		typ  c.Type
		name *c.Local
		x    c.Expr
	}
	given := map[int]argument{}
	received, leaves := o.stores(), w.stores()
	for i, shared := range h.cells {
		from, to := shared.off.Const, shared.off.Const+shared.size
		mine, theirs := between(received, from, to), between(leaves, from, to)
		out := theirs[0]
		out.size = shared.size
		if shared.given {
			want := noted(shared.note)
			if want == "" {
				want = shared.want
			}
			x := mine[0].scalar
			if len(mine) > 1 {
				x = scalar{size: shared.size, code: join(mine)}
			}
			x.want = want
			out.scalar = scalar{size: shared.size}
			name := w.prog.local(want, "")
			out.code = name
			given[i] = argument{wireType(out.scalar), name, o.value(x, "", mine[0].pos)}
			if len(mine) == 2 && mine[0].lit && shared.size == 4 {
				o.within[keyOf(mine[1].scalar)] = []summand{
					{scalar{size: 4}, false, given[i].x}, {scalar: literal(0xffff&^reverse(mine[0].v, 2), 2, false)}}
			}
		} else {
			out.code = w.value(out.scalar, out.note, out.pos)
		}
		w.cells = append(w.cells, out)
	}
	for i, s := range s.Rewrite.Sums {
		w.shareSum(o, s, h.sums[i], give)
	}
	for i := range h.cells {
		if g, ok := given[i]; ok {
			give(g.typ, g.name, g.x)
		}
	}
	o.once()
	o.declareConstants()
	w.goes()
	w.newPointers()
	w.declareConstants()
	if slices.ContainsFunc(w.headersUsed, func(p pointer) bool { return p.packet == packetReceived }) {
		w.fail("the function that writes for %s reads the packet that came", s.Pos)
	}
	f.absorb(o.function)
	f.end(s.Pos, w.shared(params, args))
}

// reads computes what is needed of the packet that came.
func (f *function) reads(s *ir.Forward) *writer {
	o := f.prog.writer(s.Rewrite, &ir.Effects{})
	o.fwd, o.writes, o.within = s, false, map[valueKey][]summand{}
	o.known, o.reason, o.declared, o.scope = f.known, f.reason, f.declared, f.scope
	o.constantsAt = o.place()
	if c := f.received[s]; c != nil {
		o.oldLen, o.values, o.both = c.oldLen, maps.Clone(c.values), c
		return o
	}
	o.oldLen = own("headers_len", "")
	o.constant(o.oldLen, s.Rewrite.OldFront.Const)
	return o
}

// shared puts the function that writes in front of those that call it, unless it stands there already. It returns the
// call.
func (w *writer) shared(params []c.Param, args []c.Expr) c.Expr {
	made, values := w.assemble(w.prog.verdict(), "", params)
	args = append(values, args...)
	text := c.KeyOfBody(append(parameters(made.Params), w.body...))
	if i := slices.Index(w.common.texts, text); i >= 0 {
		return c.Do(w.common.names[i], args...)
	}
	name := fmt.Sprintf("%s_send_ipv%d", w.prog.short, w.fwd.Hop.Family)
	if w.fwd.Hop.Family == 0 {
		name = w.prog.short + "_send"
	}
	name = w.prog.unique(name)
	w.common.texts, w.common.names = append(w.common.texts, text), append(w.common.names, name)
	made.Name = name
	w.prog.functions = append(w.prog.functions, made)
	return c.Do(name, args...)
}

// parameters are the declarations of parameters, for comparison.
func parameters(params []c.Param) (out []c.Stmt) {
	for _, p := range params {
		out = append(out, variable(p.Type, p.Name))
	}
	return out
}

// absorb appends what another function has.
func (f *function) absorb(o *function) {
	f.add(o.body...)
	for _, p := range o.headersUsed {
		use(&f.headersUsed, p)
	}
}

// shareSum renders a checksum: what is read, and what is written.
func (w *writer) shareSum(
	o *writer, s *ir.Sum, shared sharedSum, give func(typ c.Type, name c.Name, arg c.Expr),
) {
	renamed := *s
	renamed.Name = shared.name
	mine, leaves := o.newSum(s), w.newSum(&renamed)
	w.sums = append(w.sums, leaves)
	was, now := o.changes(s)
	var same, own []summand
	_, there := w.changes(s)
	for i, x := range now {
		if slices.ContainsFunc(shared.same, x.like) {
			same = append(same, there[i])
		} else if word := o.pieceOf(x); word != nil {
			own = append(own, word...)
		} else {
			own = append(own, x)
		}
	}
	w.gap()
	w.note(comment(shared.name))
	if mayBePartial(s) {
		if o.both != nil {
			mine.names["csum"] = o.both.csums[s.Name]
		} else {
			o.receivedSum(mine, was)
		}
		o.optional(mine)
		give("struct fr_csum", leaves.name("csum"), mine.name("csum"))
		w.leave(leaves, w.total(w.pseudoHeader(s.NewPseudo)), w.total(same))
		return
	}
	rest := c.Expr(zero)
	if !s.Fresh {
		if rest = c.Do("fr_sum_of", c.Bytes("ld", 2, o.ptr(s.Old))); s.Tail {
			was = append(was, o.tail(mine))
		}
	}
	name := mine.name("sum")
	o.define(noPos, "__u64", name, o.plus(o.minus(rest, was), own))
	give("__u64", leaves.name("sum"), name)
	w.define(noPos, "__be16", leaves.name(""), c.Do(leaves.function(), w.plus(leaves.name("sum"), same)))
}

// pieceOf is what adds up to a summand that is a part of a value which was computed, or nil.
func (w *writer) pieceOf(x summand) []summand {
	if x.code == nil || x.odd {
		return nil
	}
	return w.within[keyOf(x.scalar)]
}
