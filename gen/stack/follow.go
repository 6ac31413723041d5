package stack

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A header is inside of the one in front of it, unless its entry of the stack says that it begins after the payload of
// another one (`after`): such as a second frame of a QUIC packet. Then that one has a length, and what follows its
// payload is the header, and all of it: either it has a length that fits, or it takes the rest.

// checkFollowers reports entries that can't begin where they say.
func checkFollowers(p *draft.Program) {
	for i, e := range p.Src.Stack {
		if e.After == nil {
			continue
		}
		n := slices.IndexFunc(p.Src.Stack[:i], func(o *spec.StackEntry) bool { return o.Var.Value == e.After.Value })
		if n < 0 {
			var names []string
			for _, o := range p.Src.Stack[:i] {
				names = append(names, o.Var.Value)
			}
			p.Diags.Add(code.UnknownName, e.After.Pos, "no entry %q in front of %q in the stack",
				e.After.Value,
				e.Var.Value).WithNames(e.After.Value, names)
			continue
		}
		if first := p.Follower(e.After.Value); first != e {
			p.Diags.Add(code.Stack, e.After.Pos, "%q and %q both begin after the payload of %q", first.Var.Value,
				e.Var.Value, e.After.Value).
				WithHint("alternatives are one entry: {%s: [\"…\", \"…\"], after: %q}; what comes after %s says "+
					"so: after: %q", first.Var.Value, e.After.Value, first.Var.Value, first.Var.Value)
			continue
		}
		for _, h := range p.Names.Choices(p.Src.Stack[n]) {
			ends(p, h, e)
		}
	}
}

// ends reports a header whose payload has no end, or not a certain one.
func ends(p *draft.Program, h *spec.Header, e *spec.StackEntry) {
	i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool { return f.Counts != nil && f.Counts.What != "header" })
	switch {
	case i < 0:
		p.Diags.Add(code.Stack, e.After.Pos, "nothing says where the payload of header %q ends", h.Name.Value).
			WithRelated(h.Name.Pos, "the header is declared here").
			WithHint("one of its fields has to be its length: counts: \"payload\"")
	case h.Fields[i].Counts.Slack != 0:
		p.Diags.Add(code.Stack, e.After.Pos, "header %q allows bytes after its payload that no length counts, so %q "+
			"can't begin there", h.Name.Value, e.Var.Value).
			WithRelated(h.Fields[i].Counts.Pos, "the length with slack is declared here")
	}
}

// begin returns where a header begins after the payload of another one.
func begin(p *draft.Program, e *spec.StackEntry, host *draft.Header, blk *[]ir.Stmt) ir.Off {
	far := p.Punted(e.Var.Value+"_far", "header "+e.Var.Value+" begins after the first 2,047 bytes", e.Pos)
	draft.Emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, host.Inner, fold.Num(draft.MaxStart)), Reason: far, Pos: e.Pos})
	start := p.Let(blk, e.Var.Value+"_start", host.Inner, draft.MaxStart, e.Pos)
	p.Least[start], p.Starts[start] = p.AtLeast(host.End), true
	return ir.Off{Base: start}
}
