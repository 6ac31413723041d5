package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A header is inside of the one in front of it, unless its entry of the stack says that it begins after the payload of
// another one (`after`): such as a second frame of a QUIC packet. Then that one has a length, and what follows its
// payload is the header, and all of it: either it has a length that fits, or it takes the rest.

// maxStart is where such a header may begin at most.
const maxStart = 2047

// follower returns the entry that begins after the payload of another one, or nil.
func (p *program) follower(entry string) *spec.StackEntry {
	for _, e := range p.src.Stack {
		if e.After != nil && e.After.Value == entry {
			return e
		}
	}
	return nil
}

// hostOf returns the header of a path after whose payload an entry begins, or nil.
func hostOf(e *spec.StackEntry, path []*layer) *layer {
	i := slices.IndexFunc(path, func(in *layer) bool { return e.After != nil && in.entry == e.After.Value })
	if i < 0 {
		return nil
	}
	return path[i]
}

// encloses reports whether a header of a path is another one or inside of it, and so doesn't begin after its payload.
func (p *program) encloses(outer, in *layer, path []*layer) bool {
	for i := slices.Index(path, in); i >= 0; i-- {
		if path[i] == outer {
			return true
		}
		for host := p.host(path[i], path[:i]); host != nil; host = p.host(path[i], path[:i]) {
			if host == outer {
				return false
			}
			i = slices.Index(path, host) // what that one is inside of, this one is, too
		}
	}
	return false
}

// host returns the header after whose payload a header begins, of those in front of it, or nil.
func (p *program) host(in *layer, front []*layer) *layer {
	i := slices.IndexFunc(p.src.Stack, func(e *spec.StackEntry) bool { return e.Var.Value == in.entry })
	return hostOf(p.src.Stack[i], front)
}

// checkFollowers reports entries that can't begin where they say.
func (p *program) checkFollowers() {
	for i, e := range p.src.Stack {
		if e.After == nil {
			continue
		}
		n := slices.IndexFunc(p.src.Stack[:i], func(o *spec.StackEntry) bool { return o.Var.Value == e.After.Value })
		if n < 0 {
			var names []string
			for _, o := range p.src.Stack[:i] {
				names = append(names, o.Var.Value)
			}
			p.diags.Add(code.UnknownName, e.After.Pos, "no entry %q in front of %q in the stack",
				e.After.Value,
				e.Var.Value).WithNames(e.After.Value, names)
			continue
		}
		if first := p.follower(e.After.Value); first != e {
			p.diags.Add(code.Stack, e.After.Pos, "%q and %q both begin after the payload of %q", first.Var.Value,
				e.Var.Value, e.After.Value).
				WithHint("alternatives are one entry: {%s: [\"…\", \"…\"], after: %q}; what comes after %s says "+
					"so: after: %q", first.Var.Value, e.After.Value, first.Var.Value, first.Var.Value)
			continue
		}
		for _, h := range p.names.Choices(p.src.Stack[n]) {
			p.ends(h, e)
		}
	}
}

// ends reports a header whose payload has no end, or not a certain one.
func (p *program) ends(h *spec.Header, e *spec.StackEntry) {
	i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool { return f.Counts != nil && f.Counts.What != "header" })
	switch {
	case i < 0:
		p.diags.Add(code.Stack, e.After.Pos, "nothing says where the payload of header %q ends", h.Name.Value).
			WithRelated(h.Name.Pos, "the header is declared here").
			WithHint("one of its fields has to be its length: counts: \"payload\"")
	case h.Fields[i].Counts.Slack != 0:
		p.diags.Add(code.Stack, e.After.Pos, "header %q allows bytes after its payload that no length counts, so %q "+
			"can't begin there", h.Name.Value, e.Var.Value).
			WithRelated(h.Fields[i].Counts.Pos, "the length with slack is declared here")
	}
}

// begin returns where a header begins after the payload of another one.
func (p *program) begin(e *spec.StackEntry, host *layer, blk *[]ir.Stmt) ir.Off {
	far := p.punted(e.Var.Value+"_far", "header "+e.Var.Value+" begins after the first 2,047 bytes", e.Pos)
	emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, host.inner, fold.Num(maxStart)), Reason: far, Pos: e.Pos})
	start := p.let(blk, e.Var.Value+"_start", host.inner, maxStart, e.Pos)
	p.least[start], p.starts[start] = p.atLeast(host.end), true
	return ir.Off{Base: start}
}
