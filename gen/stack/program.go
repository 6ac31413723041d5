// Package stack turns a program's stack into the tree of its paths. If the stack leaves a choice (IPv4 or IPv6, a
// tag or none) the tree branches, and everything after the branch is compiled once for each branch, so that offsets and
// sizes are as fixed as they can be. A leaf of the tree is a path: one sequence of headers, on which package rules
// compiles what the program does. A program of the spec and the names that the spec declares go in, a draft comes out.
package stack

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/rewrite"
	"github.com/fastrelay/fastrelay-gen/gen/rules"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

const (
	maxPaths = 64
	maxOrder = 7 // entries of a stack whose right order is looked for
)

// Compile compiles a program; driver says that it runs on frames as the driver has them (package xdp makes the rest of
// the difference). It returns nil if something is wrong with it.
func Compile(src *spec.Program, names *declare.Names, protos map[*ir.Member]int, driver bool,
	diags *diag.List) *draft.Program {
	p := draft.New(src, names, protos, diags)
	p.Driver = driver
	p.Reason("sent", ir.Sent, "rewritten and sent", src.Name.Pos)
	p.Reason("pass", ir.Passed, "passed to the stack, as the spec says", src.Name.Pos)
	inactive := -1
	if !p.Asks(spec.Lapsed) {
		inactive = p.Punted("inactive", "the relay's lease has expired", src.Name.Pos)
	}
	errors := diags.Len()
	known := names.CheckStack(src.Stack, diags)
	rules.Check(p, src.Rules)
	checkFollowers(p)
	checkChoice(p)
	checkHook(p, known)
	rules.CheckLapsed(p)
	blk := &p.Out.Body
	if inactive >= 0 {
		draft.Emit(blk, &ir.Guard{Cond: &ir.Meta{Kind: ir.LeaseValid}, Reason: inactive, Pos: src.Name.Pos})
	}
	if !mayTag(p) && !p.Congestion() {
		draft.Emit(blk, untagged(p, src.HookPos))
	}
	walkStack(p, 0, nil, ir.Off{}, &ir.Meta{Kind: ir.FrameLen}, blk)
	if diags.Len() > errors {
		return nil
	}
	return p
}

func untagged(p *draft.Program, pos diag.Pos) ir.Stmt {
	return &ir.Guard{
		Cond: fold.Not(&ir.Meta{Kind: ir.VLANTag}), Reason: p.Punted("vlan_tag",
			"a VLAN tag that the stack doesn't have",
			pos), Pos: pos,
	}
}

// mayTag reports whether the stack has a place for a tag in the metadata.
func mayTag(p *draft.Program) bool {
	for _, e := range p.Src.Stack {
		for _, n := range e.Headers {
			if h := p.Names.Headers[n.Value]; h != nil && h.Metadata == "vlan" {
				return true
			}
		}
	}
	return false
}

// arm is one continuation from a place in the stack.
type arm struct {
	h    *spec.Header
	meta bool
	cond ir.Expr // nil: always
	// where the fields end that cond reads, which the packet may not have: without them it isn't this header
	reads *ir.Off
}

// walkStack compiles the stack from entry i on, after the headers in path; end is where the enclosing header says that
// its content ends.
func walkStack(p *draft.Program, i int, path []*draft.Header, off ir.Off, end ir.Expr, blk *[]ir.Stmt) {
	if p.Dead {
		return
	}
	if i == len(p.Src.Stack) {
		leaf(p, path, blk)
		return
	}
	e := p.Src.Stack[i]
	var parent *draft.Header
	if len(path) > 0 {
		parent = path[len(path)-1]
	} else {
		p.Out.L2 = isLink(p, e)
		forHost(p, blk)
	}
	if host := draft.HostOf(e, path); host != nil {
		if n := slices.Index(path, host); n > 0 {
			parent = path[n-1]
		}
		must := *e
		must.Optional = false
		more := fold.Bin(ir.Lt, host.Inner, host.Limit)
		if e.Optional { // nothing follows, or this header
			s := &ir.If{Cond: fold.Not(more), Pos: e.Pos, Note: "no " + e.Var.Value}
			draft.Emit(blk, s)
			walkStack(p, i+1, path, off, end, &s.Then)
			blk = &s.Else
		} else {
			draft.Emit(blk, &ir.Guard{Cond: more, Reason: notThis(p, e), Pos: e.Pos})
		}
		e, off, end = &must, begin(p, e, host, blk), host.Limit
	}
	if e.ByLookup {
		choose(p, i, e, path, parent, off, end, blk)
		return
	}
	arms, tagged, deciding := arms(p, e, path, parent, off, end, blk)
	if len(arms) == 0 {
		return // reported
	}
	missing := func(blk *[]ir.Stmt) {
		if e.Optional {
			if tagged {
				draft.Emit(blk, untagged(p, e.Pos))
			}
			walkStack(p, i+1, path, off, end, blk)
			return
		}
		if deciding != nil {
			whole := fold.Bin(ir.Le, fold.Off(*deciding), end)
			draft.Emit(blk, &ir.Guard{Cond: whole, Reason: p.Truncated(e.Pos), Pos: e.Pos})
		}
		draft.Emit(blk, &ir.Punt{Reason: notThis(p, e), Pos: e.Pos})
	}
	if len(arms) == 1 && !e.Optional {
		a := arms[0]
		if a.cond != nil {
			draft.Emit(blk, &ir.Guard{Cond: a.cond, Reason: notThis(p, e), Pos: e.Pos})
		}
		enter(p, i, a, path, off, end, blk)
		return
	}
	for n, a := range arms {
		if a.cond == nil {
			enter(p, i, a, path, off, end, blk)
			return
		}
		s := &ir.If{Cond: a.cond, Pos: e.Pos, Note: note(a)}
		if a.reads != nil { // what isn't this header goes on after it
			there := &ir.If{Cond: fold.Bin(ir.Le, fold.Off(*a.reads), end), Pos: e.Pos, Note: note(a)}
			draft.Emit(&there.Then, &ir.NeedBytes{End: *a.reads, Reason: p.Truncated(e.Pos), Pos: e.Pos}, s)
			draft.Emit(blk, there)
			enter(p, i, a, path, off, end, &s.Then)
		} else {
			draft.Emit(blk, s)
			enter(p, i, a, path, off, end, &s.Then)
			blk = &s.Else
		}
		if n == len(arms)-1 {
			missing(blk)
		}
	}
}

func note(a arm) string {
	if a.meta {
		return a.h.Name.Value + " in the metadata"
	}
	return a.h.Name.Value
}

func notThis(p *draft.Program, e *spec.StackEntry) int {
	return p.Punted("not_"+e.Var.Value, "no "+e.Var.Value+" header here", e.Pos)
}

func isLink(p *draft.Program, e *spec.StackEntry) bool {
	hs := p.Names.Choices(e)
	return len(hs) > 0 && slices.ContainsFunc(hs[0].Fields, func(f *spec.Field) bool {
		return f.Role.Value == "link_destination"
	})
}

func enter(p *draft.Program, i int, a arm, path []*draft.Header, off ir.Off, end ir.Expr, blk *[]ir.Stmt) {
	path = slices.Clone(path)
	before := len(*blk)
	in := parse(p, p.Src.Stack[i], a, path, off, end, blk)
	if in == nil {
		return
	}
	walkStack(p, i+1, append(path, in), in.End, in.Payload, blk)
	p.Trace.Found(p.Src.Stack[i], a.h, (*blk)[before:])
}

// arms returns the continuations at a stack entry: each header with the condition under which it is the one that
// follows. deciding is where the fields end, of all of them, that a packet may be without and still have one of them.
func arms(p *draft.Program, e *spec.StackEntry, path []*draft.Header, parent *draft.Header, off ir.Off, end ir.Expr,
	blk *[]ir.Stmt) (out []arm, tagged bool, deciding *ir.Off) {
	hs := p.Names.Choices(e)
	firstTag := !slices.ContainsFunc(path, func(in *draft.Header) bool { return in.Decl.Metadata == "vlan" })
	choice := len(hs) > 1 || e.Optional
	least := shortest(p, e)
	var sure, unsure int
	for i, h := range hs {
		var cond ir.Expr
		var reads *ir.Off
		if parent != nil {
			c, ok := follows(p, h, parent)
			if !ok {
				cantFollow(p, e, h, parent.Decl)
				return nil, false, nil
			}
			cond = c
		}
		if h.Metadata == "vlan" && firstTag && parent != nil {
			tagged = true
			tag := &ir.Meta{Kind: ir.VLANTag}
			mc, _ := follows(p, h, inMetadata(parent, h))
			out = append(out, arm{h: h, meta: true, cond: fold.And(tag, mc)})
			cond = fold.And(fold.Not(tag), cond)
		}
		if cond == nil && choice {
			c, bytes := discriminator(p, h, parent, off, end)
			if c == nil && (i < len(hs)-1 || e.Optional) {
				p.Diags.Add(code.Stack, e.Pos, "nothing distinguishes header %q from the alternatives", h.Name.Value).
					WithRelated(h.Name.Pos, "the header is declared here").
					WithHint("give one of its first fields a value (is), or declare what it comes after; or let the "+
						"program's lookups choose: {%s: […], by: \"lookup\"}", e.Var.Value)
				return nil, false, nil
			}
			cond = c
			if bytes > least {
				unsure = max(unsure, bytes)
				at := off.Plus(bytes)
				reads = &at
			} else {
				sure = max(sure, bytes)
			}
		}
		out = append(out, arm{h: h, cond: cond, reads: reads})
	}
	if sure > 0 {
		draft.Emit(blk, &ir.NeedBytes{End: off.Plus(sure), Reason: p.Truncated(e.Pos), Pos: e.Pos})
	}
	if unsure > 0 {
		at := off.Plus(unsure)
		deciding = &at
	}
	if most := max(sure, unsure); most > 0 {
		p.Pull(off.Plus(most))
	}
	return out, tagged, deciding
}

// shortest is how many bytes each of the headers has in the frame that a stack entry stands for.
func shortest(p *draft.Program, e *spec.StackEntry) int {
	if e.Optional {
		return 0
	}
	n := math.MaxInt
	for _, h := range p.Names.Choices(e) {
		if h.Metadata != "" {
			return 0
		}
		n = min(n, h.MinBytes())
	}
	return n
}

// cantFollow reports a header that nothing announces in the one in front of it. If another order of the stack would
// do, that is what was meant.
func cantFollow(p *draft.Program, e *spec.StackEntry, h, parent *spec.Header) {
	d := p.Diags.Add(code.Stack, e.Pos, "header %q can't follow %q: nothing says how it is recognised there",
		h.Name.Value, parent.Name.Value).
		WithRelated(h.Name.Pos, "the header is declared here")
	var parents []string
	for _, a := range h.After {
		parents = append(parents, a.Parent.Value)
	}
	switch order := order(p, nil, p.Src.Stack); {
	case order != nil:
		d.WithHint("a stack begins with the outermost header: [%s]", strings.Join(order, ", "))
	case h.Std:
		d.WithHint("it comes after %s", strings.Join(parents, " or "))
	default:
		d.WithHint("declare it: after: %s: FIELD: VALUE", parent.Name.Value)
	}
}

// order returns the entries of a stack, quoted, such that each can follow the one in front of it, or nil.
func order(p *draft.Program, front, rest []*spec.StackEntry) []string {
	if len(rest) == 0 {
		var names []string
		for _, e := range front {
			names = append(names, strconv.Quote(e.Var.Value))
		}
		return names
	}
	for i, e := range rest {
		hs := p.Names.Choices(e)
		if len(hs) == 0 || len(front)+len(rest) > maxOrder {
			return nil
		}
		ok := !hs[0].Std || len(hs[0].After) > 0 // a link-layer header is the first one
		if len(front) == 0 {
			ok = !ok
		} else if parents := p.Names.Choices(front[len(front)-1]); ok && len(hs[0].After) > 0 {
			ok = slices.ContainsFunc(hs[0].After, func(a *spec.After) bool {
				return slices.ContainsFunc(parents, func(h *spec.Header) bool { return h.Name.Value == a.Parent.Value })
			})
		}
		if !ok {
			continue
		}
		if found := order(p, append(slices.Clone(front), e), slices.Delete(slices.Clone(rest), i, i+1)); found != nil {
			return found
		}
	}
	return nil
}

// follows returns the condition under which h follows parent (nil: none is needed), and whether it can.
func follows(p *draft.Program, h *spec.Header, parent *draft.Header) (ir.Expr, bool) {
	if len(h.After) == 0 {
		return nil, true
	}
	var cond ir.Expr
	found := false
	for _, a := range h.After {
		if a.Parent.Value != parent.Decl.Name.Value {
			continue
		}
		s := &expr.Scope{Program: p, Path: []*draft.Header{parent}, Self: parent}
		var all ir.Expr
		for _, m := range a.Match {
			all = fold.And(all, s.Match(m))
		}
		if !found || cond == nil || all == nil {
			cond, found = all, true
			continue
		}
		cond = fold.Or(cond, all)
	}
	// What follows a user's header is the user's word: no header of the standard ones can name it.
	return cond, found || !parent.Decl.Std
}

// discriminator is the condition that the fixed fields at the start of h make, for headers that nothing in front of
// them identifies. It reads the packet in front of the header's own checks; the caller makes sure of the bytes.
func discriminator(p *draft.Program, h *spec.Header, parent *draft.Header, off ir.Off, end ir.Expr) (ir.Expr, int) {
	var cond ir.Expr
	needed := 0
	probe := &draft.Header{Decl: h, Fields: map[string]*draft.Field{}}
	for _, at := range h.Layout() {
		f := at.Field
		if f.Varies() {
			break
		}
		pl := fixed(at, off, probe)
		probe.Fields[f.Name.Value] = pl
		if f.Is != nil {
			s := &expr.Scope{Program: p, Self: probe}
			cond = fold.And(cond, s.Constraint(expr.ValueOf(pl), f.Is))
			needed = (at.Bit + f.Width() + 7) / 8
		}
	}
	return cond, needed
}

// leaf compiles the rules for one path.
func leaf(p *draft.Program, path []*draft.Header, blk *[]ir.Stmt) {
	if len(p.Out.Paths) == maxPaths {
		p.Dead = true
		p.Diags.Add(code.Paths, p.Src.Name.Pos, "program %q has more than %d sequences of headers", p.Out.Name,
			maxPaths)
		return
	}
	var names []string
	segmented := true
	unsegmented := p.Src.HookPos
	for _, in := range path {
		n := in.Decl.Name.Value
		if in.Meta {
			n += "(metadata)"
		}
		names = append(names, n)
		if segmented && !in.Decl.Segmented {
			segmented = false
			for _, e := range p.Src.Stack {
				if e.Var.Value == in.Entry {
					unsegmented = e.Pos
				}
			}
		}
	}
	p.Out.Paths = append(p.Out.Paths, strings.Join(names, " "))
	s := &expr.Scope{
		Program: p, Path: path, Rows: map[string]*ir.Row{}, Facts: map[*ir.Row]bool{}, Named: map[string]expr.Value{},
		Lists: map[string]*expr.List{},
	}
	if !p.Congestion() {
		if guard := rewrite.SuperPackets(s, unsegmented); guard != nil {
			draft.Emit(blk, guard)
		}
	}
	if len(path) == 0 {
		p.Diags.Add(code.Stack, p.Src.Name.Pos, "program %q has an empty stack", p.Out.Name).
			WithHint("a stack begins with the link layer: [\"eth\", …]")
		return
	}
	if last := path[len(path)-1]; last.Decl.Closed {
		draft.Emit(blk, &ir.Guard{
			Cond:   fold.Bin(ir.Eq, fold.Off(last.End), last.Payload),
			Reason: p.Punted(last.Decl.Name.Value+"_trailing", "bytes follow where none may", last.Decl.Name.Pos),
			Pos:    last.Decl.Name.Pos,
		})
	}
	rules.Compile(s, blk)
}
