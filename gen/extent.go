package gen

import "github.com/fastrelay/fastrelay-gen/gen/ir"

// This pass finds how much of a packet the rules of a fan-out read or write: so much of it is kept aside while copies are made.

// extent returns the offset behind the last byte of the packet that Each touches. all is behind the last header; where something
// stands behind a field of variable length, it is all.
func extent(each []ir.Stmt, all ir.Off) ir.Off {
	f := frontier{}
	walk(each, f.stmt)
	if f.variable {
		return all
	}
	return ir.Off{Const: f.end}
}

type frontier struct {
	end      int
	variable bool
}

func (f *frontier) touch(off ir.Off, n int) {
	f.variable = f.variable || off.Base != nil
	f.end = max(f.end, off.Const+n)
}

func (f *frontier) stmt(s ir.Stmt) {
	switch s := s.(type) {
	case *ir.Let:
		f.expr(s.Value)
	case *ir.Guard:
		f.expr(s.Cond)
	case *ir.If:
		f.expr(s.Cond)
	case *ir.Lookup:
		f.values(s.Key)
	case *ir.Count:
		f.expr(s.By)
	case *ir.CheckHop:
		f.expr(s.Length)
	case *ir.Translate:
		f.expr(s.Key)
		f.expr(s.Value)
	case *ir.Copy:
		f.copy(s)
	}
}

func (f *frontier) values(mvs []ir.MemberValue) {
	for _, mv := range mvs {
		f.expr(mv.Value)
	}
}

func (f *frontier) copy(c *ir.Copy) {
	for _, e := range c.Emits {
		f.values(e.Values)
	}
	for _, a := range c.Admits {
		f.expr(a.Level)
		f.expr(a.Cost)
		f.expr(a.Floor)
		if a.Count != nil {
			f.stmt(a.Count)
		}
	}
	for _, l := range c.Lets {
		f.stmt(l)
	}
	for _, n := range c.Counts {
		f.stmt(n)
	}
	rw := c.Rewrite
	if rw == nil {
		return
	}
	for _, e := range []ir.Expr{rw.Payload, rw.Priority, rw.Mark} {
		f.expr(e)
	}
	f.touch(ir.Off{}, rw.L2)
	for _, c := range rw.Stores {
		f.touch(c.Off, c.Size)
		f.variable = f.variable || c.Width != nil
		f.expr(c.Value)
	}
	for _, s := range rw.Sums {
		f.touch(s.Old, 2)
		f.touch(s.New, 2)
		f.expr(s.Swap)
		f.expr(s.TailOdd)
		for _, ts := range [][]ir.Term{s.OldTerms, s.NewTerms, s.OldPseudo, s.NewPseudo} {
			for _, t := range ts {
				f.expr(t.Value)
				f.expr(t.OddIf)
				f.expr(t.Len)
				if t.Region {
					f.touch(t.At, t.Max)
				}
			}
		}
	}
}

func (f *frontier) expr(x ir.Expr) {
	ir.Walk(x, func(x ir.Expr) {
		switch x := x.(type) {
		case *ir.Load:
			f.touch(x.Off, (x.Bit+x.Bits+7)/8)
		case *ir.LoadBytes:
			f.touch(x.Off, x.N)
		case *ir.SumOK:
			f.touch(x.Off, x.Len)
		}
	})
}
