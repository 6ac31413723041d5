package rewrite

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass is about checksums of transport headers that are put in or taken out: from nothing follows what the bytes
// after such a header add up to, so all of them are summed up. Those from the first byte on that a partial checksum
// covers add up, when it is completed, to the complement of what its field holds (local checksum offload).

// noSum reports whether a header that is put in goes without its checksum.
func (r *rewriter) noSum(i int, o *header, f *spec.Field) bool {
	return o.Sum == edit.SumNone || o.Sum == edit.SumByDefault && i > 0 && edit.AbsentOver(f, r.headers[i-1].Decl)
}

// wholeSum is the checksum of a header that is put in, over all that follows it; nil: it is left out.
func (r *rewriter) wholeSum(i int, o *header, f *spec.Field, rw *ir.Rewrite) (*ir.Sum, bool) {
	k := f.Checksum
	if r.noSum(i, o, f) {
		o.Values[f.Name.Value] = fold.Num(0)
		return nil, true
	}
	if !k.Optional || r.p.Scope.Each != nil {
		r.p.Scope.Fail(code.Push, o.Pos, "header %q can't be pushed here: its checksum covers the whole payload",
			o.Decl.Name.Value).
			WithRelated(f.Name.Pos, "the checksum is declared here").WithHint("UDP over IPv4 may go without a checksum")
		return nil, false
	}
	for _, c := range r.headers[:i] {
		if g := edit.SumOver(c.Decl); g != nil && c.Old != nil {
			r.p.Scope.Fail(code.Push, o.Pos, "header %q can't be pushed here: its checksum is computed last, and the "+
				"one of %q covers it", o.Decl.Name.Value, c.Entry).
				WithRelated(g.Name.Pos, "the checksum in front is declared here").
				WithHint("a header without a checksum can be pushed: checksum: 0")
			return nil, false
		}
	}
	if o.content != rw.Payload { // all up to the end of the packet is summed up
		r.p.Guard(fold.Bin(ir.Eq, o.content, rw.Payload), paddingHere(r.p.Scope, o.Pos), o.Pos)
	}
	size := fold.Bin(ir.Add, rw.Payload, fold.Distance(rw.NewFront, o.off))
	r.p.Summable(size, o.Pos)
	whole := o.off
	s := &ir.Sum{
		Name: o.Decl.Name.Value + "." + f.Name.Value, New: o.fieldOff(f), Fresh: true, Whole: &whole, Optional: true,
		Pos: f.Name.Pos,
	}
	return s, r.freshPseudo(s, i, o, f, rw)
}
