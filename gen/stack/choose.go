package stack

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// If nothing in a packet says which of several headers it has (a QUIC connection ID, whose length only the endpoint
// that chose it knows), a table lookup selects it: {id: ["id20", "id8"], by: "lookup"}. The alternatives are tried in
// order, and the first is taken with which the packet comes as far as the program's rules: it has the header, match and
// when are true, and the lookups find their rows. In the plan, what would pass the packet to the stack while an
// alternative is tried is a condition, and the next alternative follows it. The last one passes packets to the stack,
// as a header without a choice.

// choose compiles the alternatives of the last entry of a stack, which rows choose from.
func choose(p *draft.Program, i int, e *spec.StackEntry, path []*draft.Header, parent *draft.Header, off ir.Off,
	end ir.Expr,
	blk *[]ir.Stmt) {
	hs := p.Names.Choices(e)
	for n, h := range hs {
		a := arm{h: h}
		if parent != nil {
			cond, ok := follows(p, h, parent)
			if !ok {
				cantFollow(p, e, h, parent.Decl)
				return
			}
			a.cond = cond
		}
		if n < len(hs)-1 {
			p.Stop = draft.TryNext
			var try []ir.Stmt
			alone(p, i, e, a, path, off, end, &try)
			draft.Emit(blk, orNext(p, try, h.Name.Value)...)
			continue
		}
		p.Stop = draft.PassToStack
		alone(p, i, e, a, path, off, end, blk)
	}
}

// alone compiles an alternative as if it was the only one.
func alone(p *draft.Program, i int, e *spec.StackEntry, a arm, path []*draft.Header, off ir.Off, end ir.Expr,
	blk *[]ir.Stmt) {
	if a.cond != nil {
		draft.Emit(blk, &ir.Guard{Cond: a.cond, Reason: notThis(p, e), Pos: e.Pos})
	}
	enter(p, i, a, path, off, end, blk)
}

// orNext turns what leads from a header to the next alternative into conditions of what follows.
func orNext(p *draft.Program, blk []ir.Stmt, header string) []ir.Stmt {
	nest := func(i int, cond ir.Expr, first ...ir.Stmt) []ir.Stmt {
		return append(blk[:i:i], &ir.If{
			Cond: cond, Then: append(first, orNext(p, blk[i+1:], header)...), Pos: ir.Pos(blk[i]), Note: header,
		})
	}
	for i, s := range blk {
		switch s := s.(type) {
		case *ir.Guard:
			if s.Reason == draft.Next {
				return nest(i, s.Cond)
			}
		case *ir.NeedBytes:
			if s.Reason == draft.Next {
				s.Reason = p.Reason("truncated", ir.Punted, draft.TooShort, s.Pos)
				return nest(i, fold.Bin(ir.Le, fold.Off(s.End), &ir.Meta{Kind: ir.FrameLen}), s)
			}
		case *ir.Punt:
			if s.Reason == draft.Next {
				return blk[:i]
			}
		case *ir.If:
			if i == len(blk)-1 {
				s.Then, s.Else = orNext(p, s.Then, header), orNext(p, s.Else, header)
			}
		}
	}
	return blk
}

// checkChoice reports a choice that rows can't make.
func checkChoice(p *draft.Program) {
	for i, e := range p.Src.Stack {
		if !e.ByLookup {
			continue
		}
		fail := func(format string, args ...any) *diag.Diagnostic {
			return p.Diags.Add(code.Stack, e.Pos, format, args...)
		}
		switch {
		case p.Congestion():
			fail("rows can't choose here: the event says which header follows")
		case i < len(p.Src.Stack)-1:
			fail("rows choose among the last headers of a stack, and %q follows", p.Src.Stack[i+1].Var.Value)
		case e.Optional:
			fail("rows choose one of these headers: none is no choice").
				WithHint("a header with the fields that all of them begin with stands for none")
		case !slices.ContainsFunc(p.Src.Lookups, func(l *spec.Lookup) bool { return !l.Optional }):
			fail("nothing chooses among these headers: the program has no lookup that has to find a row").
				WithHint("look up a row by the fields of %s: lookup: NAME: TABLE: […]", e.Var.Value)
		default:
			if h, f, what := unfitToChoose(p.Names.Choices(e)); h != nil {
				fail("rows can't choose header %q: its field %q %s", h.Name.Value, f.Name.Value, what).
					WithRelated(f.Name.Pos, "the field is declared here").
					WithHint("a header up to the fields that the lookup reads is enough; the rest is payload")
			}
		}
	}
}

// unfitToChoose returns a header that can't be tried, with the field because of which: what stops a packet inside of a
// condition can't lead on to what comes after it, and who a packet is for is decided once.
func unfitToChoose(hs []*spec.Header) (unfit *spec.Header, because *spec.Field, why string) {
	for _, h := range hs {
		for _, f := range h.Fields {
			switch {
			case h.Metadata != "":
				return h, f, "may be in the packet's metadata"
			case f.When != nil:
				return h, f, "may be absent"
			case f.Kind == spec.FieldVarint:
				return h, f, "is a varint"
			case f.Role.Value != "":
				return h, f, "has a role in the network"
			}
		}
	}
	return nil, nil, ""
}
