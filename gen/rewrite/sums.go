package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds the checksums that a rewrite changes. A checksum over a payload is never computed from the payload:
// what doesn't change of the covered bytes follows from the old checksum (RFC 1624), so only what changes is summed up,
// as it was and as it is. Bytes that move to a position of the other parity count with their bytes swapped.

// maxTail is how many bytes after the payload a checksum can be freed of.
const maxTail = 64

// sums come innermost first: one that covers another counts what that changes to.
func (r *rewriter) sums(rw *ir.Rewrite, end ir.Expr) ([]*ir.Sum, bool) {
	var out []*ir.Sum
	for i, o := range slices.Backward(r.headers) {
		for _, f := range o.Decl.Fields {
			if f.Checksum == nil {
				continue
			}
			var sum *ir.Sum
			var ok bool
			if o.Old == nil {
				sum, ok = r.freshSum(i, o, f, rw)
			} else {
				sum, ok = r.changedSum(i, o, f, rw, end)
			}
			if !ok {
				return nil, false
			}
			if sum != nil {
				out = append(out, sum)
				o.sum = sum
			}
		}
	}
	return out, true
}

// fieldOff is where a field of a header of fixed size is.
func (o *header) fieldOff(f *spec.Field) ir.Off {
	places := o.Decl.Layout()
	i := slices.IndexFunc(places, func(at spec.Place) bool { return at.Field == f })
	return o.off.Plus(places[i].Bit / 8)
}

// freshSum is the checksum of a header that is new.
func (r *rewriter) freshSum(i int, o *header, f *spec.Field, rw *ir.Rewrite) (*ir.Sum, bool) {
	if f.Checksum.Covers != "header" {
		return r.wholeSum(i, o, f, rw)
	}
	s := &ir.Sum{
		Name: o.Decl.Name.Value + "." + f.Name.Value, New: o.fieldOff(f), Fresh: true, Optional: f.Checksum.Optional,
		Pos: f.Name.Pos,
	}
	for _, p := range r.pieces(o) {
		if p.now != nil {
			s.NewTerms = append(s.NewTerms, terms(p, p.now, p.off, o.off)...)
		}
	}
	return s, r.freshPseudo(s, i, o, f, rw)
}

// freshPseudo gives the checksum of a header that is new its pseudo-header.
func (r *rewriter) freshPseudo(s *ir.Sum, i int, o *header, f *spec.Field, rw *ir.Rewrite) bool {
	for _, e := range f.Checksum.Pseudo {
		t, ok := r.pseudoNow(e, i, o, rw)
		if !ok {
			r.p.Scope.Fail(code.Push, o.Pos, "header %q can't be pushed here: its checksum needs what no header in "+
				"front of it has", o.Decl.Name.Value).
				WithRelated(f.Name.Pos, "the checksum is declared here")
			return false
		}
		s.NewPseudo = append(s.NewPseudo, t)
	}
	return true
}

// changedSum is the checksum of a header that came; nil if the rewrite leaves it as it is.
func (r *rewriter) changedSum(i int, o *header, f *spec.Field, rw *ir.Rewrite, end ir.Expr) (*ir.Sum, bool) {
	k := f.Checksum
	at := o.Old.Fields[f.Name.Value]
	s := &ir.Sum{
		Name: o.Entry + "." + f.Name.Value, Old: at.Off, New: o.moved(at.Off), Optional: k.Optional,
		Offloaded: k.Offloaded, Pos: f.Name.Pos,
	}
	first := slices.Index(r.p.Scope.Path, o.Old)
	oldParentAbsent := first > 0 && edit.AbsentOver(f, r.p.Scope.Path[first-1].Decl)
	newParentAbsent := i > 0 && edit.AbsentOver(f, r.headers[i-1].Decl)
	s.Absent = oldParentAbsent && newParentAbsent
	if k.Covers == "header" {
		s.OldTerms, s.NewTerms = r.keptTerms(o, o, false)
	} else {
		s.Swap = swap(rw, o)
		r.coveredTerms(s, i, o, first)
	}
	changed := len(s.OldTerms)+len(s.NewTerms) > 0
	for _, e := range k.Pseudo {
		was, now, ok := r.pseudo(e, i, o, rw)
		if !ok {
			return nil, false
		}
		s.OldPseudo = append(s.OldPseudo, was)
		s.NewPseudo = append(s.NewPseudo, now)
		changed = changed || !sameTerm(was, now)
	}
	if k.Covers == "all" && rw.Trim && !r.asReceived(i) && o.Index < r.ending.data {
		if tail, odd, slack := r.tail(o, end); tail != nil {
			s.Tail, s.TailEnd, s.TailOdd, s.TailMax = true, *tail, odd, slack
			changed = true
		}
	}
	if !s.Absent && k.Optional && (changed || i >= r.kept()) { // moved or changed: the packet isn't the one that came
		r.p.Present(at, o.Old.Decl, f.Name.Pos)
	}
	if !changed {
		return nil, true
	}
	return s, true
}

// swap holds if the payload's position after the header changes its parity.
func swap(rw *ir.Rewrite, o *header) ir.Expr {
	was := fold.Bin(ir.Sub, fold.Off(rw.OldFront), fold.Off(o.Old.Off))
	now := fold.Bin(ir.Sub, fold.Off(rw.NewFront), fold.Off(o.off))
	odd := fold.Bin(ir.And, fold.Bin(ir.Xor, was, now), fold.Num(1))
	if v, fixed := fold.Constant(odd); fixed {
		if v == 0 {
			return nil
		}
		return fold.Bool(true)
	}
	if rw.Resize == ir.InPlace {
		return nil
	}
	return fold.Bin(ir.Ne, odd, fold.Num(0))
}

// tail returns where the bytes that the header covered after the payload ended, whether the payload's end was at an odd
// position, and how many bytes of tail there may be. It returns nil if there are none.
func (r *rewriter) tail(o *header, end ir.Expr) (at *ir.Off, odd ir.Expr, most int) {
	limit := o.Old.Inner
	if v, e := fold.Var(limit), fold.Var(end); v == e && (v != nil || fold.IsFrame(limit) && fold.IsFrame(end)) {
		return nil, nil, 0
	}
	_, net := r.datagram()
	slack, open := 0, false // how many bytes there may be, and whether the spec leaves that open
	for _, in := range r.p.Scope.Path[slices.Index(r.p.Scope.Path, o.Old)+1:] {
		if k := in.Slack; k != nil && (!k.Data || r.index(in) <= net) { // data is cut off with the datagram around it
			open = open || k.Slack < 0
			slack += max(0, k.Slack)
		}
		if r.p.Header(in) == nil {
			slack += in.Decl.Trailer
		}
	}
	if open {
		slack = maxTail
		few := fold.Bin(ir.Le, fold.Bin(ir.Sub, limit, end), fold.Num(maxTail))
		r.p.Guard(few, paddingHere(r.p.Scope, r.p.Pos), r.p.Pos)
	}
	if slack == 0 {
		return nil, nil, 0
	}
	v := fold.Var(limit)
	if v == nil {
		v = r.p.Program.Let(&r.p.Guards, o.Entry+"_limit", limit, 0xFFFF, r.p.Pos)
	}
	odd = fold.Bin(ir.And, fold.Bin(ir.Sub, end, fold.Off(o.Old.Off)), fold.Num(1))
	return &ir.Off{Base: v}, fold.Bin(ir.Ne, odd, fold.Num(0)), slack
}

// coveredTerms sums up what changes in a header and in what it encloses: fields of headers that stay, headers that go
// and headers that come.
func (r *rewriter) coveredTerms(s *ir.Sum, i int, o *header, first int) {
	for _, n := range r.headers[i:] {
		if n.Old == nil {
			for _, p := range r.pieces(n) {
				if p.now != nil {
					s.NewTerms = append(s.NewTerms, terms(p, p.now, p.off, o.off)...)
				} else if n != o {
					s.NewTerms = append(s.NewTerms, newSum(n.sum, p, o.off))
				}
			}
			continue
		}
		if !r.p.Program.Encloses(o.Old, n.Old, r.p.Scope.Path) {
			continue
		}
		was, now := r.keptTerms(n, o, s.Swap != nil)
		s.OldTerms = append(s.OldTerms, was...)
		s.NewTerms = append(s.NewTerms, now...)
	}
	for j, in := range r.p.Scope.Path {
		if j <= first || r.p.Header(in) != nil || in.Meta {
			continue
		}
		odd, oddIf := oddness(in.Off, o.Old.Off)
		if in.Size < 0 {
			bound := int(in.End.Const)
			if in.End.Base != nil {
				bound += int(in.End.Base.Max)
			}
			s.OldTerms = append(s.OldTerms, ir.Term{
				Region: true, At: in.Off, Len: fold.Distance(in.End, in.Off), Max: bound - in.Off.Const, Odd: odd,
				OddIf: oddIf,
			})
			continue
		}
		for done := 0; done < in.Size; {
			n := 8
			for n > in.Size-done {
				n /= 2
			}
			at := in.Off.Plus(done)
			load := &ir.Load{Off: at, Bits: n * 8, Field: in.Decl.Name.Value}
			odd, oddIf := oddness(at, o.Old.Off)
			s.OldTerms = append(s.OldTerms, ir.Term{Value: load, Size: n, Odd: odd, OddIf: oddIf})
			done += n
		}
	}
}

// keptTerms sums up what changes in a header that stays, for the checksum of header c. If it moved by an odd number
// of bytes, or may have, all of it counts; so it does (all) if what follows moved so, since the bytes of everything
// that doesn't count are swapped then.
func (r *rewriter) keptTerms(n, c *header, all bool) (was, now []ir.Term) {
	if n.filled() {
		return filledTerms(n, c)
	}
	odd := false
	if n.off != n.Old.Off || c.off != c.Old.Off {
		moved := fold.Bin(ir.And, fold.Bin(ir.Xor, fold.Distance(n.off, c.off), fold.Distance(n.Old.Off, c.Old.Off)),
			fold.Num(1))
		by, fixed := fold.Constant(moved)
		odd = !fixed || by != 0
	}
	if all {
		was, now = variableTerms(n, n.Old.Off, c.Old.Off), variableTerms(n, n.off, c.off)
	}
	for _, p := range r.pieces(n) {
		sum := n.sum
		counts := p.changed || odd || all
		if p.field.Checksum != nil && n != c {
			counts = counts || sum != nil
		}
		if !counts || p.field.Checksum != nil && n == c {
			continue
		}
		was = append(was, oldTerms(p, c.Old.Off)...)
		switch {
		case p.now != nil:
			now = append(now, terms(p, p.now, p.off, c.off)...)
		case sum != nil:
			now = append(now, newSum(sum, p, c.off))
		default:
			now = append(now, terms(p, p.old, p.off, c.off)...)
		}
	}
	return was, now
}

// variableTerms are a header's fields of variable length or presence, which stay as they are, where the header is at
// off, in a sum that begins at start. Those that change are pieces.
func variableTerms(o *header, off, start ir.Off) []ir.Term {
	var out []ir.Term
	for _, pl := range o.Old.Order {
		if pl.Segment < 0 && pl.Size != nil && o.Values[pl.Decl.Name.Value] == nil {
			odd, oddIf := oddness(pl.Off, start)
			if off != o.Old.Off {
				odd, oddIf = parity(fold.Bin(ir.Add, fold.Distance(pl.Off, o.Old.Off), fold.Distance(off, start)))
			}
			out = append(out, ir.Term{
				Region: true, At: pl.Off, Len: pl.Size, Max: pl.Decl.MaxBytes(), Odd: odd, OddIf: oddIf,
			})
		}
	}
	return out
}

// newSum is the field of a checksum that changes, as a summand of one that covers it and begins at start.
func newSum(sum *ir.Sum, p piece, start ir.Off) ir.Term {
	odd, oddIf := oddness(p.off, start)
	return ir.Term{New: sum, Size: 2, Odd: odd, OddIf: oddIf}
}

// oddness says whether a byte at off is at an odd position of a sum that begins at start: always, or if a
// condition holds.
func oddness(off, start ir.Off) (bool, ir.Expr) {
	return parity(fold.Distance(off, start))
}

// parity says whether a distance is odd: always, or if a condition holds.
func parity(distance ir.Expr) (bool, ir.Expr) {
	odd := fold.Bin(ir.And, distance, fold.Num(1))
	if v, fixed := fold.Constant(odd); fixed {
		return v != 0, nil
	}
	return false, fold.Bin(ir.Ne, odd, fold.Num(0))
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
			v = fold.Bin(ir.Shr, v, fold.Num(uint64(8*b)))
		}
		odd, oddIf := oddness(off.Plus(b), start)
		out = append(out, ir.Term{Value: fold.Bin(ir.And, v, fold.Num(0xFF)), Size: 1, Odd: odd, OddIf: oddIf})
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
func (r *rewriter) pseudo(e *spec.Expr, i int, o *header, rw *ir.Rewrite) (was, now ir.Term, ok bool) {
	inside := &expr.Scope{Program: r.p.Program, Path: r.p.Scope.UpTo(o.Old), Self: o.Old}
	v, ok := inside.Value(e)
	if !ok {
		return was, now, false
	}
	was = v.Term()
	switch {
	case e.Op == spec.OpInt, e.Op == spec.OpCall && !rw.Trim && rw.NewFront == rw.OldFront:
		return was, was, true
	case e.Op == spec.OpCall: // what is kept has as many bytes as before, whatever follows it
		h := r.meant(o, i, e.Args[0].Path[0].Value)
		if h != nil && r.asReceived(slices.Index(r.headers, h)) {
			return was, was, true
		}
	}
	now, ok = r.pseudoNow(e, i, o, rw)
	if !ok {
		r.p.Scope.Fail(code.Push, r.p.Pos, "the checksum of %q needs a header that is popped", o.Entry).
			WithRelated(e.Pos, "needed here")
		return was, now, false
	}
	if e.Op == spec.OpName && now.Value == v.X {
		now = was
	}
	return was, now, true
}

// pseudoNow gives one summand of the pseudo-header of the i-th header, in the packet that leaves. checkHeaders has made
// sure of its form.
func (r *rewriter) pseudoNow(e *spec.Expr, i int, o *header, rw *ir.Rewrite) (ir.Term, bool) {
	switch e.Op {
	case spec.OpInt:
		return expr.Value{Type: ir.UintType(64), X: fold.Num(e.Int), Max: e.Int}.Term(), true
	case spec.OpCall:
		h := r.meant(o, i, e.Args[0].Path[0].Value)
		if h == nil {
			return ir.Term{}, false
		}
		return ir.Term{Value: fold.Bin(ir.Add, h.content, fold.Distance(rw.NewFront, h.off)), Size: 4}, true
	}
	h, name := o, e.Path[len(e.Path)-1].Value
	if len(e.Path) == 2 {
		h = r.meant(o, i, e.Path[0].Value)
	}
	if h == nil {
		return ir.Term{}, false
	}
	j := slices.IndexFunc(h.Decl.Fields, func(f *spec.Field) bool { return f.Name.Value == name })
	if j < 0 {
		return ir.Term{}, false
	}
	f, x := h.Decl.Fields[j], h.Values[name]
	switch {
	case x != nil:
	case h.Fill != nil:
		x = edit.Filled(f, h.Fill)
	case h.Old != nil:
		x = h.Old.Fields[name].Load
	}
	if x == nil {
		return ir.Term{}, false
	}
	if f.Kind == spec.FieldBytes {
		return ir.Term{Value: x, Size: f.Bytes}, true
	}
	limit := uint64(1)<<62 - 1
	if f.Kind == spec.FieldUint {
		limit = ranges.Max(f.Bits)
	}
	return expr.Value{Type: ir.UintType(64), X: x, Max: limit}.Term(), true
}

// meant returns the i-th header, o, if a name stands for it, or the nearest one around it that the name stands for.
func (r *rewriter) meant(o *header, i int, name string) *header {
	if name == o.Decl.Name.Value {
		return o
	}
	return r.enclosing(i, name)
}

// enclosing returns the nearest header in front of the i-th that a name stands for.
func (r *rewriter) enclosing(i int, name string) *header {
	for j := i - 1; j >= 0; j-- {
		if o := r.headers[j]; o.Decl.Name.Value == name || r.p.Program.Names.InGroup(o.Decl, name) {
			return o
		}
	}
	return nil
}

func sameTerm(a, b ir.Term) bool { return a.Value == b.Value && a.Size == b.Size }
