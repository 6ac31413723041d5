package bpf

import (
	"maps"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Where ways part by the kind of packet that leaves, and each calls a function that writes (halves.go), what both have
// to know of the checksums that came is computed once, in front of where they part.

// came is that, for a way.
type came struct {
	oldLen *c.Local              // the bytes of headers that came
	values map[valueKey]*c.Local // as in a function
	csums  map[string]*c.Local   // checksums that may be partial, by the field
}

// beforeParting renders what both ways of a branch know of the packet that came; it reports whether there is something.
func (f *function) beforeParting(s *ir.If) bool {
	then, other := f.writesInHalves(s.Then), f.writesInHalves(s.Else)
	if then == nil || other == nil || f.came[then] != nil {
		return false
	}
	for _, way := range []*ir.Forward{then, other} {
		f.prog.writer(way.Rewrite, &ir.Effects{}).coverAll(f, way.Pos)
	}
	mine, both := f.sumsCame(then)
	theirs, _ := f.sumsCame(other)
	if len(both.csums) == 0 || c.KeyOfBody(mine.body) != c.KeyOfBody(theirs.body) {
		return false
	}
	f.absorb(mine.function)
	f.came[then], f.came[other] = both, both
	return true
}

// writesInHalves is the packet that leaves in the end, where nothing but checks comes before.
func (f *function) writesInHalves(block []ir.Stmt) *ir.Forward {
	for i, s := range block {
		switch s := s.(type) {
		case *ir.Guard, *ir.CheckHop:
			continue
		case *ir.Forward:
			if i == len(block)-1 && f.prog.halves[s] != nil {
				return s
			}
		}
		break
	}
	return nil
}

// sumsCame renders what is known of the checksums of a packet that came.
func (f *function) sumsCame(s *ir.Forward) (*writer, *came) {
	o := f.firstHalf(s)
	out := &came{oldLen: o.oldLen, csums: map[string]*c.Local{}}
	for _, sum := range s.Rewrite.Sums {
		if mayBePartial(sum) {
			mine := o.newSum(sum)
			was, _ := o.changes(sum)
			o.sumCame(mine, was)
			out.csums[sum.Name] = mine.name("csum")
		}
	}
	o.once()
	o.declareConstants()
	maps.DeleteFunc(o.values, func(_ valueKey, x *c.Local) bool { return c.Count(o.body, x) == 0 })
	out.values = o.values
	return o, out
}
