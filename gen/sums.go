package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds the checksums that a rewrite changes. A checksum over a payload is never computed from the payload: what
// doesn't change of the covered bytes follows from the old checksum (RFC 1624), so only what changes is summed up, as it was
// and as it is. Bytes that move to a position of the other parity count with their bytes swapped.

// maxTail is how many bytes behind the payload a checksum can be freed of.
const maxTail = 64

// sums come from the inside out: one that covers another counts what becomes of that.
func (w *rewriter) sums(rw *ir.Rewrite, end ir.Expr) ([]*ir.Sum, bool) {
	var out []*ir.Sum
	w.computed = map[*outHeader]*ir.Sum{}
	for i, o := range slices.Backward(w.hdrs) {
		for _, f := range o.h.Fields {
			if f.Checksum == nil {
				continue
			}
			var sum *ir.Sum
			ok := true
			if o.old == nil {
				sum, ok = w.freshSum(i, o, f)
			} else {
				sum, ok = w.changedSum(i, o, f, rw, end)
			}
			if !ok {
				return nil, false
			}
			if sum != nil {
				out = append(out, sum)
				w.computed[o] = sum
			}
		}
	}
	return out, true
}

func (o *outHeader) fieldOff(f *spec.Field) ir.Off {
	bits := 0
	for _, g := range o.h.Fields {
		if g == f {
			break
		}
		if g.Kind == spec.FieldBytes {
			bits += g.Bytes * 8
		} else {
			bits += g.Bits
		}
	}
	return plus(o.off, bits/8)
}

// freshSum is the checksum of a header that is new. One that covers the payload would have to be computed from all of it, so
// it is left out (0) where that is allowed.
func (w *rewriter) freshSum(i int, o *outHeader, f *spec.Field) (*ir.Sum, bool) {
	if f.Checksum.Covers != "header" {
		if i > 0 && absentOver(f, w.hdrs[i-1].h) {
			o.vals[f.Name.Value] = num(0)
			return nil, true
		}
		w.fail(codePush, o.pos, "header %q can't be pushed here: its checksum covers the whole payload", o.h.Name.Value).
			WithRelated(f.Name.Pos, "the checksum is declared here").WithHint("UDP over IPv4 may go without a checksum")
		return nil, false
	}
	s := &ir.Sum{Name: o.h.Name.Value + "." + f.Name.Value, New: o.fieldOff(f), Fresh: true, Optional: f.Checksum.Optional, Pos: f.Name.Pos}
	for _, p := range w.pieces(o) {
		if p.now != nil {
			s.NewTerms = append(s.NewTerms, terms(p, p.now, p.off, o.off)...)
		}
	}
	return s, true
}

func absentOver(f *spec.Field, parent *spec.Header) bool {
	return slices.ContainsFunc(f.Checksum.Absent, func(n spec.Name) bool { return n.Value == parent.Name.Value })
}

// changedSum is the checksum of a header that came; nil where the rewrite leaves it as it is.
func (w *rewriter) changedSum(i int, o *outHeader, f *spec.Field, rw *ir.Rewrite, end ir.Expr) (*ir.Sum, bool) {
	k := f.Checksum
	at := o.old.fields[f.Name.Value]
	s := &ir.Sum{Name: o.entry + "." + f.Name.Value, Old: at.off, New: plus(at.off, o.off.Const-o.old.off.Const), Optional: k.Optional, Offloaded: k.Offloaded, Pos: f.Name.Pos}
	first := slices.Index(w.path, o.old)
	oldParentAbsent := first > 0 && absentOver(f, w.path[first-1].h)
	newParentAbsent := i > 0 && absentOver(f, w.hdrs[i-1].h)
	s.Absent = oldParentAbsent && newParentAbsent
	ok := true
	if k.Covers == "header" {
		s.OldTerms, s.NewTerms, ok = w.keptTerms(o, o)
	} else {
		ok = w.coveredTerms(s, i, o, first)
	}
	changed := len(s.OldTerms)+len(s.NewTerms) > 0
	if !ok {
		return nil, false
	}
	for _, e := range k.Pseudo {
		was, now, ok := w.pseudo(e, i, o, rw)
		if !ok {
			return nil, false
		}
		s.OldPseudo = append(s.OldPseudo, was)
		s.NewPseudo = append(s.NewPseudo, now)
		changed = changed || !sameTerm(was, now)
	}
	if k.Covers == "all" && rw.Trim {
		if tail, odd, slack := w.tail(o, end); tail != nil {
			s.Tail, s.TailEnd, s.TailOdd, s.TailMax = true, *tail, odd, slack
			changed = true
		}
	}
	if !changed {
		return nil, true
	}
	if k.Covers == "all" {
		s.Swap = swap(rw, o)
	}
	if !s.Absent && k.Optional {
		w.guard(bin(ir.Ne, at.load, num(0)), w.fieldReason(o.old, f), f.Name.Pos)
	}
	return s, true
}

// swap holds where the payload's position behind the header changes its parity.
func swap(rw *ir.Rewrite, o *outHeader) ir.Expr {
	was := bin(ir.Sub, offExpr(rw.OldFront), offExpr(o.old.off))
	now := bin(ir.Sub, offExpr(rw.NewFront), offExpr(o.off))
	odd := bin(ir.And, bin(ir.Xor, was, now), num(1))
	if v, fixed := constant(odd); fixed {
		if v == 0 {
			return nil
		}
		return boolean(true)
	}
	if rw.Resize == ir.InPlace {
		return nil
	}
	return bin(ir.Ne, odd, num(0))
}

// tail returns where the bytes that the header covered behind the payload ended, whether the payload's end was at an odd
// position, and how many bytes of tail there may be. It returns nil where there are none.
func (w *rewriter) tail(o *outHeader, end ir.Expr) (*ir.Off, ir.Expr, int) {
	limit := o.old.inner
	if v, e := varOf(limit), varOf(end); v == e && (v != nil || isFrame(limit) && isFrame(end)) {
		return nil, nil, 0
	}
	slack, open := 0, false // how many bytes there may be, and whether the spec leaves that open
	for _, in := range w.path[slices.Index(w.path, o.old)+1:] {
		for _, pl := range in.order {
			if k := pl.f.Counts; k != nil && k.What != "header" {
				open = open || k.Slack < 0
				slack += max(0, k.Slack)
			}
		}
		if w.header(in) == nil {
			slack += in.h.Trailer
		}
	}
	if open {
		slack = maxTail
		w.guard(bin(ir.Le, bin(ir.Sub, limit, end), num(maxTail)), w.went("padding", "more padding than can be taken off", w.pos), w.pos)
	}
	if slack == 0 {
		return nil, nil, 0
	}
	v := varOf(limit)
	if v == nil {
		v = w.let(&w.guards, o.entry+"_limit", limit, 0xFFFF, w.pos)
	}
	odd := bin(ir.And, bin(ir.Sub, end, offExpr(o.old.off)), num(1))
	return &ir.Off{Base: v}, bin(ir.Ne, odd, num(0)), slack
}

func varOf(x ir.Expr) *ir.Var {
	if v, ok := x.(*ir.VarRef); ok {
		return v.Var
	}
	return nil
}

// coveredTerms sums up what changes from a header on: fields of headers that stay, headers that go and headers that come.
func (w *rewriter) coveredTerms(s *ir.Sum, i int, o *outHeader, first int) bool {
	for _, n := range w.hdrs[i:] {
		if n.old == nil {
			for _, p := range w.pieces(n) {
				if p.now != nil {
					s.NewTerms = append(s.NewTerms, terms(p, p.now, p.off, o.off)...)
				} else if n != o {
					s.NewTerms = append(s.NewTerms, newSum(w.computed[n], p, o.off))
				}
			}
			continue
		}
		was, now, ok := w.keptTerms(n, o)
		if !ok {
			return false
		}
		s.OldTerms = append(s.OldTerms, was...)
		s.NewTerms = append(s.NewTerms, now...)
	}
	for j, in := range w.path {
		if j <= first || w.header(in) != nil || in.meta {
			continue
		}
		odd, oddIf := oddness(in.off, o.old.off)
		if in.size < 0 {
			bound := int(in.end.Const)
			if in.end.Base != nil {
				bound += int(in.end.Base.Max)
			}
			s.OldTerms = append(s.OldTerms, ir.Term{Region: true, At: in.off, Len: distance(in.end, in.off), Max: bound - in.off.Const, Odd: odd, OddIf: oddIf})
			continue
		}
		for done := 0; done < in.size; {
			n := 8
			for n > in.size-done {
				n /= 2
			}
			at := plus(in.off, done)
			load := &ir.Load{Off: at, Bits: n * 8, Field: in.h.Name.Value}
			odd, oddIf := oddness(at, o.old.off)
			s.OldTerms = append(s.OldTerms, ir.Term{Value: load, Size: n, Odd: odd, OddIf: oddIf})
			done += n
		}
	}
	return true
}

func (w *rewriter) parity(o *outHeader) bool {
	w.fail(codeVariable, w.pos, "the checksum can't follow: header %q stands behind one of variable length", o.entry)
	return false
}

// keptTerms sums up what changes in a header that stays, for the checksum of header c. Where it moved by an odd number of
// bytes, all of it counts.
func (w *rewriter) keptTerms(n, c *outHeader) (was, now []ir.Term, ok bool) {
	odd := false
	if n.off != n.old.off || c.off != c.old.off {
		if n.off.Base != c.off.Base || n.old.off.Base != c.old.off.Base {
			return nil, nil, w.parity(n)
		}
		odd = (n.off.Const-c.off.Const-(n.old.off.Const-c.old.off.Const))&1 != 0
	}
	for _, p := range w.pieces(n) {
		sum := w.computed[n]
		switch {
		case p.field.Checksum == nil:
			if !p.changed && !odd {
				continue
			}
		case n == c || sum == nil && !p.changed && !odd:
			continue
		}
		was = append(was, oldTerms(p, c.old.off)...)
		switch {
		case p.now != nil:
			now = append(now, terms(p, p.now, p.off, c.off)...)
		case sum != nil:
			now = append(now, newSum(sum, p, c.off))
		default:
			now = append(now, terms(p, p.old, p.off, c.off)...)
		}
	}
	return was, now, true
}

// newSum is the field of a checksum that changes, as a summand of one that covers it and begins at start.
func newSum(sum *ir.Sum, p piece, start ir.Off) ir.Term {
	odd, oddIf := oddness(p.off, start)
	return ir.Term{New: sum, Size: 2, Odd: odd, OddIf: oddIf}
}

// oddness says whether a byte at off stands at an odd position of a sum that begins at start: always, or where a condition
// holds.
func oddness(off, start ir.Off) (bool, ir.Expr) {
	odd := bin(ir.And, distance(off, start), num(1))
	if v, fixed := constant(odd); fixed {
		return v != 0, nil
	}
	return false, bin(ir.Ne, odd, num(0))
}

// terms makes the summands of a piece's value at off, for a sum that begins at start.
func terms(p piece, x ir.Expr, off, start ir.Off) []ir.Term {
	if !p.little {
		odd, oddIf := oddness(off, start)
		return []ir.Term{{Value: x, Size: p.size, Odd: odd, OddIf: oddIf}}
	}
	var out []ir.Term
	for b := range p.size {
		v := x
		if b > 0 {
			v = bin(ir.Shr, v, num(uint64(8*b)))
		}
		odd, oddIf := oddness(plus(off, b), start)
		out = append(out, ir.Term{Value: bin(ir.And, v, num(0xFF)), Size: 1, Odd: odd, OddIf: oddIf})
	}
	return out
}

func oldTerms(p piece, start ir.Off) []ir.Term {
	x := p.old
	if l, ok := x.(*ir.Load); ok && l.Little { // as the wire has it
		raw := *l
		raw.Little = false
		x = &raw
	}
	p.little = false
	return terms(p, x, p.was, start)
}

// pseudo gives one summand of the pseudo-header, before and after.
func (w *rewriter) pseudo(e *spec.Expr, i int, o *outHeader, rw *ir.Rewrite) (was, now ir.Term, ok bool) {
	inside := &scope{program: w.program, path: w.upTo(o.old), self: o.old}
	v, ok := inside.value(e)
	if !ok {
		return was, now, false
	}
	was = pseudoTerm(v)
	if e.Op == spec.OpName {
		h, name := o, e.Path[len(e.Path)-1].Value
		if len(e.Path) == 2 {
			h = w.enclosing(i, e.Path[0].Value)
		}
		if h == nil {
			w.fail(codePush, w.pos, "the checksum of %q needs header %q, which is popped", o.entry, e.Path[0].Value)
			return was, now, false
		}
		if x := h.vals[name]; x != nil {
			now = ir.Term{Value: x, Size: was.Size}
			if f := slices.IndexFunc(h.h.Fields, func(f *spec.Field) bool { return f.Name.Value == name }); f >= 0 && h.h.Fields[f].Kind == spec.FieldBytes {
				now.Size = h.h.Fields[f].Bytes
			}
			return was, now, true
		}
		return was, was, true
	}
	if e.Op == spec.OpCall && rw.NewFront != rw.OldFront {
		h := o
		if n := e.Args[0].Path[0].Value; n != o.h.Name.Value {
			h = w.enclosing(i, n)
		}
		if h != nil && len(e.Args[0].Path) == 1 {
			return was, ir.Term{Value: bin(ir.Add, rw.Payload, distance(rw.NewFront, h.off)), Size: 4}, true
		}
	}
	return was, was, true
}

func pseudoTerm(v val) ir.Term {
	switch v.t.Kind {
	case ir.Uint:
		if v.max <= 0xFFFF {
			return ir.Term{Value: v.x, Size: 2}
		}
		return ir.Term{Value: v.x, Size: 4}
	}
	size := v.t.Size
	if v.place != nil && v.place.f.Kind == spec.FieldBytes {
		size = v.place.f.Bytes
	}
	return ir.Term{Value: v.x, Size: size}
}

// enclosing returns the nearest header in front of the i-th that a name stands for.
func (w *rewriter) enclosing(i int, name string) *outHeader {
	for j := i - 1; j >= 0; j-- {
		if o := w.hdrs[j]; o.entry == name || o.h.Name.Value == name || w.inGroup(o.h, name) {
			return o
		}
	}
	return nil
}

// inGroup reports whether a header is one of a group's.
func (c *compiler) inGroup(h *spec.Header, name string) bool {
	g := c.groups[name]
	return g != nil && slices.ContainsFunc(g.Headers, func(n spec.Name) bool { return n.Value == h.Name.Value })
}

func sameTerm(a, b ir.Term) bool { return a.Value == b.Value && a.Size == b.Size }
