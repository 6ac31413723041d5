package bpf

import "github.com/fastrelay/fastrelay-gen/gen/ir"

// A variable that nothing reads (a field that the spec only steps over) is left out. This pass finds those that are read.

type readers struct {
	vars   map[*ir.Var]bool
	places map[*ir.Var]bool // those among them that offsets begin with
}

func (r readers) expr(es ...ir.Expr) {
	for _, e := range es {
		ir.Walk(e, func(e ir.Expr) {
			switch e := e.(type) {
			case *ir.VarRef:
				r.vars[e.Var] = true
			case *ir.Load:
				r.off(e.Off)
			case *ir.LoadBytes:
				r.off(e.Off)
			case *ir.SumOK:
				r.off(e.Off)
			case *ir.VarintWord:
				r.vars[e.Width] = true
			}
		})
	}
}

func (r readers) off(o ir.Off) {
	if o.Base != nil {
		r.vars[o.Base], r.places[o.Base] = true, true
	}
}

func (r readers) hop(h *ir.HopRef) {
	if h != nil {
		r.expr(h.From, h.To)
	}
}

func (r readers) block(stmts []ir.Stmt) {
	for _, s := range stmts {
		switch s := s.(type) {
		case *ir.NeedBytes:
			r.off(s.End)
		case *ir.Let:
			r.expr(s.Value)
		case *ir.Guard:
			r.expr(s.Cond)
		case *ir.If:
			r.expr(s.Cond)
			r.block(s.Then)
			r.block(s.Else)
		case *ir.ReadVarint:
			r.off(s.At)
		case *ir.Lookup:
			r.expr(values(s.Key)...)
		case *ir.Count:
			r.expr(s.By)
		case *ir.Learn:
			r.expr(values(s.Key)...)
			r.expr(values(s.Value)...)
		case *ir.CheckHop:
			r.expr(s.Length)
			r.hop(s.Hop)
		case *ir.Translate:
			r.expr(s.Key, s.Value)
		case *ir.FindElement:
			r.off(s.At)
			r.expr(s.Size, s.ID)
			for _, form := range s.Forms {
				r.expr(form.When)
			}
		case *ir.Drop:
			r.expr(exprs(&s.Effects)...)
		case *ir.Forward:
			r.expr(exprs(&s.Effects)...)
			r.hop(s.Hop)
			r.expr(s.End)
			r.rewrite(s.Rewrite)
		case *ir.FanOut:
			r.expr(s.End)
			r.expr(exprs(&s.Effects)...)
			r.expr(values(s.Key)...)
			r.off(s.Front)
			r.block(s.Each)
		case *ir.Copy:
			r.expr(exprs(&s.Effects)...)
			r.hop(s.Hop)
			r.rewrite(s.Rewrite)
		}
	}
}

func (r readers) rewrite(w *ir.Rewrite) {
	if w == nil {
		return
	}
	r.off(w.OldFront)
	r.off(w.NewFront)
	r.expr(w.Payload, w.Priority, w.Mark)
	for _, c := range w.Stores {
		r.off(c.Off)
		r.expr(c.Value)
		if c.Width != nil {
			r.vars[c.Width] = true
		}
	}
	for _, s := range w.Sums {
		r.off(s.Old)
		r.off(s.New)
		r.off(s.TailEnd)
		r.expr(s.TailOdd, s.Swap)
		for _, t := range allTerms(s) {
			r.off(t.At)
			r.expr(t.Value, t.Len, t.OddIf)
		}
	}
}
