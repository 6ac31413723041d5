package gen

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass turns a program's stack into a tree. Where the stack leaves a choice (IPv4 or IPv6, a tag or none) the tree
// branches, and everything after the branch is compiled once for each branch, so that offsets and sizes are as fixed as
// they can be. A leaf of the tree is a path: one sequence of headers, and the rules compiled for it.

const (
	maxPaths = 64
	maxOrder = 7 // entries of a stack whose right order is looked for
)

// program is one program being compiled.
type program struct {
	names  *declare.Names
	diags  *diag.List
	src    *spec.Program
	out    *ir.Program
	taken  map[string]int     // how often a name of a variable or row was taken
	dead   bool               // too many paths: stop
	lost   map[string]bool    // lookups that are reported: what reads their rows isn't
	least  map[*ir.Var]int    // how much of the packet is in front of a variable place at least
	starts map[*ir.Var]bool   // where headers begin after the payload of another one
	each   bool               // the rules of a fan-out are compiled: what stops a packet there ends a receiver's turn
	trying bool               // an alternative is tried: what would stop a packet leads to the next one
	trace  *trace.Program     // where in the plan the spec's rules and headers are
	protos map[*ir.Member]int // of hops of rows: the IP protocol of the packets, see carries
}

// layer is a header on a path.
type layer struct {
	entry string // what the stack calls it
	h     *spec.Header
	meta  bool // it is in the packet's metadata
	off   ir.Off
	end   ir.Off // after its last field
	size  int    // of the header in the frame in bytes; -1 where it varies
	limit ir.Expr
	far   int // how much of its offset the payloads in front of it may be
	// inner is the offset at which what the header encloses ends (a trailer included), from
	// its length where it has one.
	inner    ir.Expr
	slack    *spec.Counts // the length by which inner may be in front of limit; nil: it isn't
	payload  ir.Expr      // where the payload ends: inner without the trailer
	unicast  []*fieldRef  // addresses that are known to be a host's
	verified bool         // its checksum is known to be right
	fields   map[string]*fieldRef
	order    []*fieldRef
}

// fieldRef is a field on a path.
type fieldRef struct {
	f       *spec.Field
	off     ir.Off  // of its first byte
	bit     int     // of its first bit in that byte
	segment int     // fields of one segment have fixed distances
	present ir.Expr // nil: always
	size    ir.Expr // bytes of a field of variable length; nil: fixed
	load    ir.Expr // its value; nil for bytes of variable length
	max     uint64  // upper bound of an integer
	width   *ir.Var // an integer of variable size: its bytes
	value   *ir.Var // an integer of variable size, conditional: its value
	parent  *layer
}

// compileProgram compiles a program. It returns nil where something is wrong with it.
func compileProgram(src *spec.Program, names *declare.Names, protos map[*ir.Member]int, diags *diag.List) *program {
	p := &program{
		names: names, diags: diags, src: src, taken: map[string]int{}, lost: map[string]bool{},
		least: map[*ir.Var]int{}, starts: map[*ir.Var]bool{}, protos: protos,
		out: &ir.Program{Name: src.Name.Value, Hook: src.Hook, Pos: src.Name.Pos},
	}
	p.trace = trace.New(src, p.out)
	p.reason("sent", ir.Sent, "rewritten and sent", src.Name.Pos)
	p.reason("pass", ir.Passed, "passed to the stack, as the spec says", src.Name.Pos)
	inactive := -1
	if !p.asks(lapsedName) {
		inactive = p.punted("inactive", "the relay's lease has expired", src.Name.Pos)
	}
	errors := diags.Len()
	known := names.CheckStack(src.Stack, diags)
	p.checkRules(src.Rules)
	p.checkFollowers()
	p.checkChoice()
	p.checkHook(known)
	p.checkLapsed()
	blk := &p.out.Body
	if inactive >= 0 {
		emit(blk, &ir.Guard{Cond: &ir.Meta{Kind: ir.LeaseValid}, Reason: inactive, Pos: src.Name.Pos})
	}
	if !p.mayTag() && !p.congestion() {
		emit(blk, p.untagged(src.HookPos))
	}
	p.walkStack(0, nil, ir.Off{}, &ir.Meta{Kind: ir.FrameLen}, blk)
	if diags.Len() > errors {
		return nil
	}
	return p
}

func emit(blk *[]ir.Stmt, s ...ir.Stmt) { *blk = append(*blk, s...) }

// orElse separates the causes that are counted under one reason.
const orElse = "; or: "

// reason returns the index of a reason, which is added when it is new. Its kind and its name say what happened, and
// nothing else: neither depends on what other rules there are. docs/operate.md lists them all. What it says of
// itself is all that it is counted for.
func (p *program) reason(name string, kind ir.ReasonKind, doc string, pos diag.Pos) int {
	for i, r := range p.out.Reasons {
		if r.Name == name && r.Kind == kind {
			if doc != "" && !slices.Contains(strings.Split(r.Doc, orElse), doc) {
				r.Doc += orElse + doc
			}
			return i
		}
	}
	p.out.Reasons = append(p.out.Reasons, &ir.Reason{Name: name, Kind: kind, Doc: doc, Pos: pos})
	return len(p.out.Reasons) - 1
}

// punted is the reason for a packet to pass to the stack, or for a receiver to get no copy.
func (p *program) punted(name, doc string, pos diag.Pos) int {
	if p.trying {
		return next
	}
	return p.reason(name, p.stopped(), doc, pos)
}

// stopped is what happens to what a reason of punted stops.
func (p *program) stopped() ir.ReasonKind {
	if p.each {
		return ir.Declined
	}
	return ir.Punted
}

// unique makes a name for a variable or a row that no other has.
func (p *program) unique(name string) string {
	p.taken[name]++
	if n := p.taken[name]; n > 1 {
		return p.unique(fmt.Sprintf("%s_%d", name, n))
	}
	return name
}

func (p *program) newVar(name string, t ir.Type, limit uint64) *ir.Var {
	v := &ir.Var{Name: p.unique(name), Type: t, Max: limit}
	p.out.Vars = append(p.out.Vars, v)
	return v
}

// let gives a name to a value.
func (p *program) let(blk *[]ir.Stmt, name string, x ir.Expr, limit uint64, pos diag.Pos) *ir.Var {
	v := p.newVar(name, x.Type(), limit)
	emit(blk, &ir.Let{Var: v, Value: x, Pos: pos})
	return v
}

func (p *program) untagged(pos diag.Pos) ir.Stmt {
	return &ir.Guard{
		Cond: fold.Not(&ir.Meta{Kind: ir.VLANTag}), Reason: p.punted("vlan_tag",
			"a VLAN tag that the stack doesn't have",
			pos), Pos: pos,
	}
}

// mayTag reports whether the stack has a place for a tag in the metadata.
func (p *program) mayTag() bool {
	for _, e := range p.src.Stack {
		for _, n := range e.Headers {
			if h := p.names.Headers[n.Value]; h != nil && h.Metadata == "vlan" {
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
func (p *program) walkStack(i int, path []*layer, off ir.Off, end ir.Expr, blk *[]ir.Stmt) {
	if p.dead {
		return
	}
	if i == len(p.src.Stack) {
		p.leaf(path, blk)
		return
	}
	e := p.src.Stack[i]
	var parent *layer
	if len(path) > 0 {
		parent = path[len(path)-1]
	} else {
		p.out.L2 = p.isLink(e)
		p.forHost(blk)
	}
	if host := hostOf(e, path); host != nil {
		if n := slices.Index(path, host); n > 0 {
			parent = path[n-1]
		}
		must := *e
		must.Optional = false
		more := fold.Bin(ir.Lt, host.inner, host.limit)
		if e.Optional { // nothing follows, or this header
			s := &ir.If{Cond: fold.Not(more), Pos: e.Pos, Note: "no " + e.Var.Value}
			emit(blk, s)
			p.walkStack(i+1, path, off, end, &s.Then)
			blk = &s.Else
		} else {
			emit(blk, &ir.Guard{Cond: more, Reason: p.notThis(e), Pos: e.Pos})
		}
		e, off, end = &must, p.begin(e, host, blk), host.limit
	}
	if e.ByLookup {
		p.choose(i, e, path, parent, off, end, blk)
		return
	}
	arms, tagged, deciding := p.arms(e, path, parent, off, end, blk)
	if len(arms) == 0 {
		return // reported
	}
	missing := func(blk *[]ir.Stmt) {
		if e.Optional {
			if tagged {
				emit(blk, p.untagged(e.Pos))
			}
			p.walkStack(i+1, path, off, end, blk)
			return
		}
		if deciding != nil {
			whole := fold.Bin(ir.Le, fold.Off(*deciding), end)
			emit(blk, &ir.Guard{Cond: whole, Reason: p.truncated(e.Pos), Pos: e.Pos})
		}
		emit(blk, &ir.Up{Reason: p.notThis(e), Pos: e.Pos})
	}
	if len(arms) == 1 && !e.Optional {
		a := arms[0]
		if a.cond != nil {
			emit(blk, &ir.Guard{Cond: a.cond, Reason: p.notThis(e), Pos: e.Pos})
		}
		p.enter(i, a, path, off, end, blk)
		return
	}
	for n, a := range arms {
		if a.cond == nil {
			p.enter(i, a, path, off, end, blk)
			return
		}
		s := &ir.If{Cond: a.cond, Pos: e.Pos, Note: note(a)}
		if a.reads != nil { // what isn't this header goes on after it
			there := &ir.If{Cond: fold.Bin(ir.Le, fold.Off(*a.reads), end), Pos: e.Pos, Note: note(a)}
			emit(&there.Then, &ir.NeedBytes{End: *a.reads, Reason: p.truncated(e.Pos), Pos: e.Pos}, s)
			emit(blk, there)
			p.enter(i, a, path, off, end, &s.Then)
		} else {
			emit(blk, s)
			p.enter(i, a, path, off, end, &s.Then)
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

func (p *program) notThis(e *spec.StackEntry) int {
	return p.punted("not_"+e.Var.Value, "no "+e.Var.Value+" header here", e.Pos)
}

func (p *program) isLink(e *spec.StackEntry) bool {
	hs := p.names.Choices(e)
	return len(hs) > 0 && slices.ContainsFunc(hs[0].Fields, func(f *spec.Field) bool {
		return f.Role.Value == "link_destination"
	})
}

func (p *program) enter(i int, a arm, path []*layer, off ir.Off, end ir.Expr, blk *[]ir.Stmt) {
	path = slices.Clone(path)
	before := len(*blk)
	in := p.parse(p.src.Stack[i], a, path, off, end, blk)
	if in == nil {
		return
	}
	p.walkStack(i+1, append(path, in), in.end, in.payload, blk)
	p.trace.Found(p.src.Stack[i], a.h, (*blk)[before:])
}

// arms returns the continuations at a stack entry: each header with the condition under which it is the one that
// follows. deciding is where the fields end, of all of them, that a packet may be without and still have one of them.
func (p *program) arms(e *spec.StackEntry, path []*layer, parent *layer, off ir.Off, end ir.Expr,
	blk *[]ir.Stmt) (out []arm, tagged bool, deciding *ir.Off) {
	hs := p.names.Choices(e)
	firstTag := !slices.ContainsFunc(path, func(in *layer) bool { return in.h.Metadata == "vlan" })
	choice := len(hs) > 1 || e.Optional
	least := p.shortest(e)
	var sure, unsure int
	for i, h := range hs {
		var cond ir.Expr
		var reads *ir.Off
		if parent != nil {
			c, ok := p.follows(h, parent)
			if !ok {
				p.cantFollow(e, h, parent.h)
				return nil, false, nil
			}
			cond = c
		}
		if h.Metadata == "vlan" && firstTag && parent != nil {
			tagged = true
			tag := &ir.Meta{Kind: ir.VLANTag}
			mc, _ := p.follows(h, inMetadata(parent, h))
			out = append(out, arm{h: h, meta: true, cond: fold.And(tag, mc)})
			cond = fold.And(fold.Not(tag), cond)
		}
		if cond == nil && choice {
			c, bytes := p.discriminator(h, parent, off, end)
			if c == nil && (i < len(hs)-1 || e.Optional) {
				p.diags.Add(code.Stack, e.Pos, "nothing distinguishes header %q from the alternatives", h.Name.Value).
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
		emit(blk, &ir.NeedBytes{End: off.Plus(sure), Reason: p.truncated(e.Pos), Pos: e.Pos})
	}
	if unsure > 0 {
		at := off.Plus(unsure)
		deciding = &at
	}
	if most := max(sure, unsure); most > 0 {
		p.pull(off.Plus(most))
	}
	return out, tagged, deciding
}

// shortest is how many bytes each of the headers has in the frame that a stack entry stands for.
func (p *program) shortest(e *spec.StackEntry) int {
	if e.Optional {
		return 0
	}
	n := math.MaxInt
	for _, h := range p.names.Choices(e) {
		if h.Metadata != "" {
			return 0
		}
		n = min(n, h.MinBytes())
	}
	return n
}

// cantFollow reports a header that nothing announces in the one in front of it. Where another order of the stack would
// do, that is what was meant.
func (p *program) cantFollow(e *spec.StackEntry, h, parent *spec.Header) {
	d := p.diags.Add(code.Stack, e.Pos, "header %q can't follow %q: nothing says how it is recognised there",
		h.Name.Value, parent.Name.Value).
		WithRelated(h.Name.Pos, "the header is declared here")
	var parents []string
	for _, a := range h.After {
		parents = append(parents, a.Parent.Value)
	}
	switch order := p.order(nil, p.src.Stack); {
	case order != nil:
		d.WithHint("a stack begins with the outermost header: [%s]", strings.Join(order, ", "))
	case h.Std:
		d.WithHint("it comes after %s", strings.Join(parents, " or "))
	default:
		d.WithHint("declare it: after: %s: FIELD: VALUE", parent.Name.Value)
	}
}

// order returns the entries of a stack, quoted, such that each can follow the one in front of it, or nil.
func (p *program) order(front, rest []*spec.StackEntry) []string {
	if len(rest) == 0 {
		var names []string
		for _, e := range front {
			names = append(names, strconv.Quote(e.Var.Value))
		}
		return names
	}
	for i, e := range rest {
		hs := p.names.Choices(e)
		if len(hs) == 0 || len(front)+len(rest) > maxOrder {
			return nil
		}
		ok := !hs[0].Std || len(hs[0].After) > 0 // a link-layer header is the first one
		if len(front) == 0 {
			ok = !ok
		} else if parents := p.names.Choices(front[len(front)-1]); ok && len(hs[0].After) > 0 {
			ok = slices.ContainsFunc(hs[0].After, func(a *spec.After) bool {
				return slices.ContainsFunc(parents, func(h *spec.Header) bool { return h.Name.Value == a.Parent.Value })
			})
		}
		if !ok {
			continue
		}
		if found := p.order(append(slices.Clone(front), e), slices.Delete(slices.Clone(rest), i, i+1)); found != nil {
			return found
		}
	}
	return nil
}

// tooShort is what reason truncated says.
const tooShort = "the packet ends inside a header"

func (p *program) truncated(pos diag.Pos) int { return p.punted("truncated", tooShort, pos) }

// follows returns the condition under which h follows parent (nil: none is needed), and whether it can.
func (p *program) follows(h *spec.Header, parent *layer) (ir.Expr, bool) {
	if len(h.After) == 0 {
		return nil, true
	}
	var cond ir.Expr
	found := false
	for _, a := range h.After {
		if a.Parent.Value != parent.h.Name.Value {
			continue
		}
		s := &scope{p: p, path: []*layer{parent}, self: parent}
		var all ir.Expr
		for _, m := range a.Match {
			all = fold.And(all, s.match(m))
		}
		if !found || cond == nil || all == nil {
			cond, found = all, true
			continue
		}
		cond = fold.Or(cond, all)
	}
	// What follows a user's header is the user's word: no header of the standard ones can name it.
	return cond, found || !parent.h.Std
}

// discriminator is the condition that the fixed fields at the start of h make, for headers that nothing in front of
// them identifies. It reads the packet in front of the header's own checks; the caller makes sure of the bytes.
func (p *program) discriminator(h *spec.Header, parent *layer, off ir.Off, end ir.Expr) (ir.Expr, int) {
	var cond ir.Expr
	needed := 0
	probe := &layer{h: h, fields: map[string]*fieldRef{}}
	for _, at := range h.Layout() {
		f := at.Field
		if f.Varies() {
			break
		}
		pl := fixed(at, off, probe)
		probe.fields[f.Name.Value] = pl
		if f.Is != nil {
			s := &scope{p: p, self: probe}
			cond = fold.And(cond, s.constraint(pl.val(), f.Is))
			needed = (at.Bit + f.Width() + 7) / 8
		}
	}
	return cond, needed
}

// leaf compiles the rules for one path.
func (p *program) leaf(path []*layer, blk *[]ir.Stmt) {
	if len(p.out.Paths) == maxPaths {
		p.dead = true
		p.diags.Add(code.Paths, p.src.Name.Pos, "program %q has more than %d sequences of headers", p.out.Name,
			maxPaths)
		return
	}
	var names []string
	segmented := true
	unsegmented := p.src.HookPos
	for _, in := range path {
		n := in.h.Name.Value
		if in.meta {
			n += "(metadata)"
		}
		names = append(names, n)
		if segmented && !in.h.Segmented {
			segmented = false
			for _, e := range p.src.Stack {
				if e.Var.Value == in.entry {
					unsegmented = e.Pos
				}
			}
		}
	}
	p.out.Paths = append(p.out.Paths, strings.Join(names, " "))
	s := &scope{
		p: p, path: path, rows: map[string]*ir.Row{}, facts: map[*ir.Row]bool{}, named: map[string]val{},
		lists: map[string]*list{},
	}
	if !p.congestion() {
		if guard := s.superPackets(unsegmented); guard != nil {
			emit(blk, guard)
		}
	}
	if len(path) == 0 {
		p.diags.Add(code.Stack, p.src.Name.Pos, "program %q has an empty stack", p.out.Name).
			WithHint("a stack begins with the link layer: [\"eth\", …]")
		return
	}
	if last := path[len(path)-1]; last.h.Closed {
		emit(blk, &ir.Guard{
			Cond:   fold.Bin(ir.Eq, fold.Off(last.end), last.payload),
			Reason: p.punted(last.h.Name.Value+"_trailing", "bytes follow where none may", last.h.Name.Pos),
			Pos:    last.h.Name.Pos,
		})
	}
	s.rules(blk)
}

// ordinary declines GSO packets.
func (s *scope) ordinary(pos diag.Pos) ir.Stmt {
	return &ir.Guard{Cond: fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0)), Reason: s.p.superPacket(pos),
		Pos: pos}
}

func (p *program) superPacket(pos diag.Pos) int {
	return p.reason("gso_packet", p.stopped(), "a GSO packet: several datagrams in one buffer", pos)
}

// pull notes how many bytes from the start of the frame the program reads.
func (p *program) pull(end ir.Off) {
	n := end.Const
	if end.Base != nil {
		n += int(end.Base.Max)
	}
	p.out.Pull = max(p.out.Pull, n)
}
