package rewrite

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass is about headers of variable size all bytes of which get other values. What the spec doesn't know the size
// of can't be stored field by field, and counts in checksums as a whole.

// filled reports whether a header's bytes are filled as a whole. One of fixed size has Values.
func (o *header) filled() bool { return o.Fill != nil && o.Size < 0 }

// fill adds the headers that are filled.
func (r *rewriter) fill(rw *ir.Rewrite) {
	for _, o := range r.headers {
		if o.filled() {
			rw.Filled = append(rw.Filled, ir.Filled{
				With: o.Fill, At: o.off, Len: fold.Distance(o.end, o.off), Max: o.Decl.MaxBytes(),
				Empty: mayBeEmpty(o.Decl), Header: o.Entry, Pos: o.Pos,
			})
		}
	}
}

// filledTerms sums up header n as it came and as it leaves, for the checksum of header c.
func filledTerms(n, c *header) (was, now []ir.Term) {
	odd, oddIf := oddness(n.Old.Off, c.Old.Off)
	return []ir.Term{{
		Region: true, At: n.Old.Off, Len: fold.Distance(n.Old.End, n.Old.Off), Max: n.Decl.MaxBytes(), Odd: odd,
		OddIf: oddIf,
	}}, nil // zeros add nothing
}

// agree reports whether no header is filled by one rule of a fan-out and set by another: the copies of the one would
// have to undo what those of the other do.
func (r *rewriter) agree() bool {
	each := r.p.Scope.Each
	for _, o := range r.headers {
		switch {
		case o.filled():
			each.Filled[o.Old] = ir.Filled{With: o.Fill, Pos: o.Pos}
		case o.Size < 0 && len(o.SetAt) > 0:
			each.Set[o.Old] = true
		}
		if fill, is := each.Filled[o.Old]; is && each.Set[o.Old] {
			r.p.Scope.Fail(code.FanOut, fill.Pos, "header %q can't be %s: another rule of the fan-out sets its fields",
				o.Entry, fill.With.Done)
			return false
		}
	}
	return true
}
