package bpf

import (
	"maps"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// If both sides of a branch send packets, of two kinds, and each calls a function that writes (sharedwrite.go), what
// both have to know of the checksums that came is computed once, in front of the branch.

// receivedSums is that, for one side.
type receivedSums struct {
	oldLen *c.Local              // the bytes of headers that came
	values map[valueKey]*c.Local // as in a function
	csums  map[string]*c.Local   // checksums that may be partial, by the field
}

// sumsBeforeBranch renders what both sides of a branch know of the packet that came; it reports whether there is
// something.
func (f *function) sumsBeforeBranch(s *ir.If) bool {
	then, other := f.sharedWriteIn(s.Then), f.sharedWriteIn(s.Else)
	if then == nil || other == nil || f.received[then] != nil {
		return false
	}
	for _, side := range []*ir.Forward{then, other} {
		f.prog.writer(side.Rewrite, &ir.Effects{}).coverAll(f, side.Pos)
	}
	mine, both := f.sumReceived(then)
	theirs, _ := f.sumReceived(other)
	if len(both.csums) == 0 || c.KeyOfBody(mine.body) != c.KeyOfBody(theirs.body) {
		return false
	}
	f.absorb(mine.function)
	f.received[then], f.received[other] = both, both
	return true
}

// sharedWriteIn is the packet that leaves in the end, if nothing but checks comes before.
func (f *function) sharedWriteIn(block []ir.Stmt) *ir.Forward {
	for i, s := range block {
		switch s := s.(type) {
		case *ir.Guard, *ir.CheckHop:
			continue
		case *ir.Forward:
			if i == len(block)-1 && f.prog.shared[s] != nil {
				return s
			}
		}
		break
	}
	return nil
}

// sumReceived renders what is known of the checksums of a packet that came.
func (f *function) sumReceived(s *ir.Forward) (*writer, *receivedSums) {
	o := f.reads(s)
	out := &receivedSums{oldLen: o.oldLen, csums: map[string]*c.Local{}}
	for _, sum := range s.Rewrite.Sums {
		if mayBePartial(sum) {
			mine := o.newSum(sum)
			was, _ := o.changes(sum)
			o.receivedSum(mine, was)
			out.csums[sum.Name] = mine.name("csum")
		}
	}
	o.once()
	o.declareConstants()
	maps.DeleteFunc(o.values, func(_ valueKey, x *c.Local) bool { return c.Count(o.body, x) == 0 })
	out.values = o.values
	return o, out
}
