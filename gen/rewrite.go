package gen

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compares the packet that came with the packet that leaves. A rewriter starts with the headers of the path,
// the actions take some out, put some in and give fields values; from the two lists follow what the lengths become,
// which checksums change and by what (sums.go), which bytes have to be written (stores.go), and how room is made.

// outHeader is a header of the packet that leaves.
type outHeader struct {
	h       *spec.Header
	entry   string
	old     *draft.Header // the header that came; nil: pushed, or made in place of one of another family
	index   int           // in the path, of the header that came or in whose place this one is; -1: pushed
	vals    map[string]ir.Expr
	sets    map[string]diag.Pos // where the spec gives fields values
	off     ir.Off
	end     ir.Off
	size    int     // bytes; -1: varies (kept, in its old place)
	blank   bool    // all bytes are 0
	content ir.Expr // how many bytes after the front of the packet it encloses
	whole   wholeSum
	pos     diag.Pos
}

// at is where the value of a field comes from.
func (o *outHeader) at(f *spec.Field) diag.Pos {
	if pos, ok := o.sets[f.Name.Value]; ok {
		return pos
	}
	return f.Name.Pos
}

// isSet reports whether the spec gives a field a value.
func (o *outHeader) isSet(f *spec.Field) bool {
	_, set := o.sets[f.Name.Value]
	return set
}

// moved is where a place of the header that came is in the packet that leaves, at a fixed distance from its start. (Of
// a header of variable length that moves by a fixed distance, all places are known.)
func (o *outHeader) moved(off ir.Off) ir.Off {
	if o.off == o.old.Off {
		return off
	}
	if o.off.Base == o.old.Off.Base {
		return off.Plus(o.off.Const - o.old.Off.Const)
	}
	return o.off.Plus(off.Const - o.old.Off.Const)
}

// rewriter makes a Forward from a rule's actions.
type rewriter struct {
	p        *draft.Program
	s        *expr.Scope // of the rule's expressions
	blk      *[]ir.Stmt
	pos      diag.Pos
	hdrs     []*outHeader
	resized  bool // headers were taken out or put in
	summed   int  // ir.Rewrite.Summed
	popTag   bool
	popInner bool
	family   int
	priority ir.Expr
	skbMark  ir.Expr
	guards   []ir.Stmt
	fx       *expr.Effects
	ending   ending
	computed map[*outHeader]*ir.Sum // the checksums that change, of the headers after the one at hand
}

func newRewriter(s *expr.Scope, blk *[]ir.Stmt, pos diag.Pos) *rewriter {
	w := &rewriter{p: s.Program, s: s, blk: blk, pos: pos, fx: expr.NewEffects()}
	for i, in := range s.Path {
		if in.Meta {
			continue
		}
		w.hdrs = append(w.hdrs, &outHeader{
			h: in.Decl, entry: in.Entry, old: in, index: i, vals: map[string]ir.Expr{}, sets: map[string]diag.Pos{},
			size: in.Size, pos: pos,
		})
	}
	return w
}

// fork copies the rewriter for another branch.
func (w *rewriter) fork(blk *[]ir.Stmt) *rewriter {
	c := *w
	c.blk = blk
	c.guards = slices.Clone(w.guards)
	c.fx = w.fx.Clone()
	c.hdrs = make([]*outHeader, len(w.hdrs))
	for i, h := range w.hdrs {
		d := *h
		d.vals, d.sets = maps.Clone(h.vals), maps.Clone(h.sets)
		c.hdrs[i] = &d
	}
	return &c
}

// undecidable says why a value that is allocated can't be guarded.
const undecidable = "a number that is allocated can't decide whether the packet leaves, and this value doesn't " +
	"always fit"

// guard declines packets for which a condition doesn't hold.
func (w *rewriter) guard(cond ir.Expr, reason int, pos diag.Pos) {
	g := &ir.Guard{Cond: cond, Reason: reason, Pos: pos}
	switch {
	case fold.IsTrue(cond):
	case expr.Reads(cond, w.fx.Allocated):
		w.s.Fail(code.Alloc, pos, undecidable)
	case expr.Reads(cond, w.fx.LateVars):
		w.fx.Late = append(w.fx.Late, g)
	default:
		w.guards = append(w.guards, g)
	}
}

// header returns what leaves of a header that came, or nil.
func (w *rewriter) header(in *draft.Header) *outHeader {
	i := slices.IndexFunc(w.hdrs, func(o *outHeader) bool { return o.old != nil && o.old.Entry == in.Entry })
	if i < 0 {
		return nil
	}
	return w.hdrs[i]
}

// place gives the headers that leave their offsets. It returns the index of the first one that is not where and what it
// was, and false where the packet can't be laid out.
func (w *rewriter) placeHeaders(kept int) (first int, ok bool) {
	first = len(w.hdrs)
	off := ir.Off{}
	for i, o := range w.hdrs {
		if o.old != nil && w.p.Starts[o.old.Off.Base] && o.old.Off.Const == 0 {
			off = o.old.Off // after a payload
		}
		o.off = off
		same := o.old != nil && o.old.Off == off
		if !same && first == len(w.hdrs) {
			first = i
		}
		switch {
		case same:
			off = o.old.End
		case i >= kept:
			if !w.moveKept(o, off) {
				return 0, false
			}
			off = o.end
		case o.size < 0:
			w.s.Fail(code.Resize, w.pos, "header %q has a variable length and would have to move", o.entry)
			return 0, false
		case off.Base != nil && o.old != nil:
			w.s.Fail(code.Resize, w.pos, "header %q would have to move after one of variable length", o.entry)
			return 0, false
		default:
			off = off.Plus(o.size)
		}
		o.end = off
	}
	return first, true
}

// finish emits the guards, the state changes and the Forward. hop is nil where the packet goes on.
func (w *rewriter) finish(hop *ir.HopRef, state []ir.Stmt, pos diag.Pos) {
	if len(w.hdrs) == 0 {
		w.s.Fail(code.Push, pos, "all headers of the packet are popped").
			WithHint("keep the one that says what the packet is")
		return
	}
	if role(w.s.Path[0].Decl, "link_destination") != nil && role(w.hdrs[0].h, "link_destination") == nil {
		w.s.Fail(code.Push, pos, "the packet would begin with header %q: its link-layer header is popped",
			w.hdrs[0].entry)
		return
	}
	if !w.announce() || !w.complete() {
		return
	}
	if w.family == 0 {
		w.family = w.otherFamily()
	}
	var pads []*draft.Header
	if hop != nil || w.changes() {
		pads = w.mayPad()
	}
	if pads == nil {
		w.leave(hop, state, !w.resizes(), pos)
		return
	}
	draft.Emit(w.blk, w.guards...)
	w.guards = nil
	branch := &ir.If{Cond: empty(pads), Pos: pos, Note: "no padding"}
	w.fork(&branch.Then).leave(hop, state, true, pos)
	w.fork(&branch.Else).leave(hop, state, false, pos)
	draft.Emit(w.blk, common(w.p, branch)...)
	draft.Emit(w.blk, branch)
}

// leave emits the guards, the state changes and the Forward of packets with padding, or without (clean).
func (w *rewriter) leave(hop *ir.HopRef, state []ir.Stmt, clean bool, pos diag.Pos) {
	ending, ok := w.findEnd(clean, pos)
	if !ok {
		draft.Emit(w.blk, w.guards...)
		draft.Emit(w.blk, &ir.Up{Reason: paddingHere(w.s, pos), Pos: pos})
		return
	}
	w.ending = ending
	kept, end := w.kept(), ending.end
	first, ok := w.placeHeaders(kept)
	if !ok {
		return
	}
	last := w.s.Path[len(w.s.Path)-1]
	oldFront, newFront := last.End, w.hdrs[len(w.hdrs)-1].end
	moved := w.resizes()
	cut := moved || ending.cut > 0 // it may end in front of where the packet that came did
	for i, in := range w.s.Path[:len(w.s.Path)-1] {
		if in.Decl.Trailer > 0 && moved {
			w.s.Fail(code.Resize, pos, "header %q has a trailer, and headers after it change", in.Entry).
				WithRelated(w.s.Path[i+1].Decl.Name.Pos, "after it")
			return
		}
	}
	for _, e := range w.p.Src.Stack {
		if host := draft.HostOf(e, w.s.Path); host != nil && moved && slices.ContainsFunc(w.s.Path,
			func(in *draft.Header) bool {
				return in.Entry == e.Var.Value
			}) {
			w.s.Fail(code.Resize, pos, "the packet can't be resized: header %q begins after the payload of %q",
				e.Var.Value, host.Entry).WithRelated(e.Pos, "it is here in the stack")
			return
		}
	}
	rw := &ir.Rewrite{
		Family: w.family, PopTag: w.popTag, PopInner: w.popInner, OldFront: oldFront, NewFront: newFront,
		Summed: w.summed, Priority: w.priority, Mark: w.skbMark, Pos: pos,
	}
	net := slices.IndexFunc(w.hdrs, func(o *outHeader) bool { return role(o.h, "destination") != nil })
	l2 := 0
	if net >= 0 {
		l2 = w.hdrs[net].off.Const
	}
	rw.L2 = l2
	for _, o := range w.hdrs {
		rw.Parts = append(rw.Parts, o.parts()...)
	}
	payload := fold.Bin(ir.Sub, end, fold.Off(oldFront))
	if _, fixed := fold.Constant(payload); cut && !fixed {
		if fold.IsFrame(end) {
			w.guard(fold.Bin(ir.Le, end, fold.Num(0xFFFF)),
				w.p.Punted("too_big", "larger than the MTU towards the destination", pos), pos)
		}
		payload = &ir.VarRef{Var: w.p.Let(&w.guards, "payload_len", payload, 0xFFFF, pos)}
	}
	rw.Payload = payload
	w.contents(payload, oldFront)
	if !segmentedOnly(w.s.Path) {
		// declined already
	} else if cut {
		w.guards = slices.Concat(w.superPacketsOut(rw, hop, end), w.guards)
	}
	if cut {
		rw.Trim = !fold.IsFrame(end)
		w.newLengths(newFront, hop != nil, pos)
	}
	if moved && !w.resizeKind(rw, first, kept, pos) {
		return
	}
	unknown := w.s.Each == nil && (cut || w.readdressed())
	if unknown {
		w.unknownPartial(&w.guards, rw, pos)
	}
	sums, ok := w.sums(rw, end)
	if !ok {
		return
	}
	if w.s.Each == nil && !unknown && slices.ContainsFunc(sums, func(s *ir.Sum) bool {
		return s.Offloaded &&
			!s.Fresh
	}) {
		w.unknownPartial(&w.guards, rw, pos)
	}
	rw.Sums = sums
	full := rw.Resize == ir.MoveHeaders || rw.Resize == ir.MoveEither || w.family != 0 || w.popInner
	if rw.Resize != ir.InPlace || w.popInner {
		w.keep(rw, kept)
	} else {
		kept = len(w.hdrs)
	}
	cells, ok := w.cells(full, kept, hop)
	if !ok {
		return
	}
	rw.Stores = cells
	for _, o := range w.hdrs {
		if o.blank && o.size < 0 {
			rw.Blanks = append(rw.Blanks, ir.Blank{
				At: o.off, Len: fold.Distance(o.end, o.off), Max: o.h.MaxBytes(), Empty: mayBeEmpty(o.h),
				Header: o.entry,
				Pos:    o.pos,
			})
		}
	}
	if len(rw.Stores)+len(rw.Blanks)+len(rw.Sums) == 0 && !cut && !rw.PopTag && rw.Priority == nil && rw.Mark == nil {
		rw = nil
	}
	length := fold.Bin(ir.Add, fold.Num(uint64(newFront.Const-l2)), payload)
	if newFront.Base != nil {
		length = fold.Bin(ir.Add, &ir.VarRef{Var: newFront.Base}, length)
	}
	if !cut && net >= 0 {
		n := w.hdrs[net].old
		length = fold.Bin(ir.Sub, n.Inner, fold.Off(n.Off))
	}
	if w.s.Each != nil {
		w.copy(rw, hop, length, state, pos)
		return
	}
	f := &ir.Forward{Effects: w.fx.Effects, Rewrite: rw, Hop: hop, Fault: -1, NoRoom: -1, Usage: w.used(), Pos: pos}
	if hop != nil && !cut {
		f.End = datagramEnd(w.s)
	}
	if f.End != nil && segmentedOnly(w.s.Path) { // to cut something off a GSO packet would make it an ordinary one
		whole := fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, f.End)
		w.guard(fold.Or(whole, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))), w.p.SuperPacket(pos), pos)
	}
	w.cutsAt(f.End, pos)
	if rw != nil || f.End != nil || hop != nil && !w.p.Out.L2 {
		f.NoRoom = w.p.Punted("no_memory", "the kernel has no memory to change the packet", w.p.Src.Name.Pos)
		f.Fault = w.p.Reason("fault", ir.Fault, "dropped: the kernel failed after the first change", w.p.Src.Name.Pos)
	}
	f.Reason = w.p.Reason("pass", ir.Passed, "", pos)
	draft.Emit(w.blk, w.guards...)
	if hop != nil {
		f.Reason = w.p.Reason("sent", ir.Sent, "", pos)
		draft.Emit(w.blk, w.checkHop(hop, length, pos))
	}
	draft.Emit(w.blk, w.fx.Late...)
	if len(f.Admits) > 0 {
		f.After(state)
	} else {
		draft.Emit(w.blk, state...)
	}
	draft.Emit(w.blk, f)
}

// datagramEnd is where the outermost IP datagram of the packet that came ends, or nil where nothing can follow it.
func datagramEnd(s *expr.Scope) ir.Expr {
	for _, in := range s.Path {
		if role(in.Decl, "destination") != nil && !fold.IsFrame(in.Inner) {
			return in.Inner
		}
	}
	return nil
}

func segmentedOnly(path []*draft.Header) bool {
	return !slices.ContainsFunc(path, func(in *draft.Header) bool { return !in.Decl.Segmented })
}

func (w *rewriter) checkHop(hop *ir.HopRef, length ir.Expr, pos diag.Pos) *ir.CheckHop {
	c := &ir.CheckHop{
		Hop: hop, Length: length, Pos: pos,
		TooBig: w.p.Punted("too_big", "larger than the MTU towards the destination", pos),
	}
	// The kernel's lookup gives one answer for a destination without a route and for this host itself
	// (BPF_FIB_LKUP_RET_NOT_FWDED), and none at all where forwarding is off (BPF_FIB_LKUP_RET_FWD_DISABLED).
	var none, local, off int
	if hop.Row == nil {
		none = w.p.Punted("not_forwarded", "the kernel forwards nothing to the destination: it is this host, or there "+
			"is no route", pos)
		local = none
		off = w.p.Punted("forwarding_off", "forwarding is off on the interface that the packet came in by", pos)
	} else {
		none = w.p.Punted("no_route", "no route to the destination, or the row has no next hop", pos)
		local = w.p.Punted("local", "the destination is this host", pos)
		off = none
	}
	c.Reasons = [ir.HopStates]int{
		ir.HopNone: none, ir.HopDirect: -1, ir.HopNeighbour: -1, ir.HopLocal: local,
		ir.HopUnreachable: w.p.Punted("unreachable", "the route's type is unreachable", pos),
		ir.HopBlackhole:   w.p.Punted("blackhole", "the route's type is blackhole", pos),
		ir.HopProhibit:    w.p.Punted("prohibit", "the route's type is prohibit", pos),
		ir.HopXfrm:        w.p.Punted("xfrm", "an xfrm (IPsec) policy is for the packet", pos),
		ir.HopRule: w.p.Punted("rule",
			"a routing rule asks for a protocol or ports that aren't known when the next hop is found", pos),
		ir.HopEncap:         w.p.Punted("encap", "the route encapsulates packets, which is the stack's work", pos),
		ir.HopForwardingOff: off,
	}
	return c
}

// newLengths gives the length fields of headers that leave their values.
func (w *rewriter) newLengths(front ir.Off, sent bool, pos diag.Pos) {
	for i, o := range w.hdrs {
		if w.asCame(i) {
			continue
		}
		for _, f := range o.h.Fields {
			k := f.Counts
			if k == nil || (k.What == "header" && o.old != nil) {
				continue
			}
			var bytes ir.Expr
			switch k.What {
			case "header":
				bytes = fold.Num(uint64(o.size))
			case "payload":
				bytes = fold.Bin(ir.Add, o.content, fold.Distance(front, o.end))
			default:
				bytes = fold.Bin(ir.Add, o.content, fold.Distance(front, o.off))
			}
			var pl *draft.Field
			if o.old != nil {
				pl = o.old.Fields[f.Name.Value]
			}
			fits := func(cond ir.Expr) {
				if pl != nil {
					cond = pl.UnlessAbsent(cond)
				}
				w.guard(cond, w.p.Punted("length", "a length that doesn't fit its field", f.Name.Pos), pos)
			}
			if k.Unit > 1 {
				fits(fold.Bin(ir.Eq, fold.Bin(ir.Rem, bytes, fold.Num(uint64(k.Unit))), fold.Num(0)))
				bytes = fold.Bin(ir.Div, bytes, fold.Num(uint64(k.Unit)))
			}
			if k.Bias < 0 {
				fits(fold.Bin(ir.Ge, bytes, fold.Num(uint64(-k.Bias))))
			}
			bytes = fold.Bin(ir.Add, bytes, fold.Num(uint64(k.Bias)))
			if pl != nil && pl.Width != nil {
				fits(fold.Bin(ir.Le, bytes, pl.Room()))
			} else if !sent || f.Bits < 16 {
				fits(fold.Bin(ir.Le, bytes, fold.Num(ranges.Max(f.Bits))))
			}
			o.vals[f.Name.Value] = bytes
		}
	}
}

// parts names the fields of a header that leaves.
func (o *outHeader) parts() (out []*ir.HeaderPart) {
	if o.old == nil {
		p := &ir.HeaderPart{Header: o.h.Name.Value, At: o.off}
		for _, f := range o.h.Fields {
			p.Fields = append(p.Fields, partField(f))
		}
		return []*ir.HeaderPart{p}
	}
	for i, pl := range o.old.Order {
		if pl.Segment >= 0 && (i == 0 || o.old.Order[i-1].Segment != pl.Segment) {
			run := o.old.Order[i:]
			if n := slices.IndexFunc(run, func(next *draft.Field) bool { return next.Segment != pl.Segment }); n >= 0 {
				run = run[:n]
			}
			out = append(out, part(o.h, o.moved(pl.Off), run))
		}
	}
	return out
}

// role returns the field of a header that has a role, or nil.
func role(h *spec.Header, name string) *spec.Field {
	for _, f := range h.Fields {
		if f.Role.Value == name {
			return f
		}
	}
	return nil
}
