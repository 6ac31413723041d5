// Package rewrite compares the packet that came with the packet that leaves, and finds how the one becomes the other:
// what the lengths become, which checksums change and by what (sums.go), which bytes have to be written (stores.go),
// and how room is made. Finish appends what comes of it to a block: checks, and the end of the rule.
package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// rewriter finds what has to be done to the packet that came for it to leave as p.
type rewriter struct {
	p       *edit.Packet
	headers []*header
	ending  ending
}

// header is a header of the packet that leaves, with its place.
type header struct {
	*edit.Header
	off     ir.Off
	end     ir.Off
	content ir.Expr // how many bytes after the front of the packet it encloses
	sum     *ir.Sum // its checksum, if that changes
}

func newRewriter(p *edit.Packet) *rewriter {
	r := &rewriter{p: p}
	for _, h := range p.Headers {
		r.headers = append(r.headers, &header{Header: h})
	}
	return r
}

// at is where the value of a field comes from.
func (o *header) at(f *spec.Field) diag.Pos {
	if pos, ok := o.SetAt[f.Name.Value]; ok {
		return pos
	}
	return f.Name.Pos
}

// moved is where a place of the header that came is in the packet that leaves, at a fixed distance from its start. (Of
// a header of variable length that moves by a fixed distance, all places are known.)
func (o *header) moved(off ir.Off) ir.Off {
	if o.off == o.Old.Off {
		return off
	}
	if o.off.Base == o.Old.Off.Base {
		return off.Plus(o.off.Const - o.Old.Off.Const)
	}
	return o.off.Plus(off.Const - o.Old.Off.Const)
}

// placeHeaders gives the headers that leave their offsets. It returns the index of the first one that is not where and
// what it was, and false if the packet can't be laid out.
func (r *rewriter) placeHeaders(kept int) (first int, ok bool) {
	first = len(r.headers)
	off := ir.Off{}
	for i, o := range r.headers {
		if o.Old != nil && r.p.Program.Starts[o.Old.Off.Base] && o.Old.Off.Const == 0 {
			off = o.Old.Off // after a payload
		}
		o.off = off
		same := o.Old != nil && o.Old.Off == off
		if !same && first == len(r.headers) {
			first = i
		}
		switch {
		case same:
			off = o.Old.End
		case i >= kept:
			if !r.moveKept(o, off) {
				return 0, false
			}
			off = o.end
		case o.Size < 0:
			r.p.Scope.Fail(code.Resize, r.p.Pos, "header %q has a variable length and would have to move", o.Entry)
			return 0, false
		case off.Base != nil && o.Old != nil:
			r.p.Scope.Fail(code.Resize, r.p.Pos, "header %q would have to move after one of variable length", o.Entry)
			return 0, false
		default:
			off = off.Plus(o.Size)
		}
		o.end = off
	}
	return first, true
}

// Finish emits the guards, the state changes and the Forward, or the Copy.
func Finish(d *edit.Departure, state []ir.Stmt) {
	p := d.Packet
	if len(p.Headers) == 0 {
		p.Scope.Fail(code.Push, d.Pos, "all headers of the packet are popped").
			WithHint("keep the one that says what the packet is")
		return
	}
	if draft.Role(p.Scope.Path[0].Decl, "link_destination") != nil &&
		draft.Role(p.Headers[0].Decl, "link_destination") == nil {
		p.Scope.Fail(code.Push, d.Pos, "the packet would begin with header %q: its link-layer header is popped",
			p.Headers[0].Entry)
		return
	}
	if !p.Complete() {
		return
	}
	r := newRewriter(p)
	if p.Family == 0 {
		p.Family = r.otherFamily()
	}
	var pads []*draft.Header
	if d.Hop != nil || r.changes() {
		pads = r.mayPad()
	}
	if pads == nil {
		r.leave(d, state, !r.resizes())
		return
	}
	draft.Emit(p.Blk, p.Guards...)
	p.Guards = nil
	branch := &ir.If{Cond: empty(pads), Pos: d.Pos, Note: "no padding"}
	newRewriter(p.Fork(&branch.Then)).leave(d, state, true)
	newRewriter(p.Fork(&branch.Else)).leave(d, state, false)
	Join(p, branch)
}

// Join emits a branch by which a packet leaves in either case, after what is common to both.
func Join(p *edit.Packet, branch *ir.If) {
	draft.Emit(p.Blk, common(p.Program, branch)...)
	draft.Emit(p.Blk, branch)
}

// leave emits the guards, the state changes and the end for packets with padding, or without (clean).
func (r *rewriter) leave(d *edit.Departure, state []ir.Stmt, clean bool) {
	ending, ok := r.findEnd(clean, d.Pos)
	if !ok {
		draft.Emit(r.p.Blk, r.p.Guards...)
		draft.Emit(r.p.Blk, &ir.Punt{Reason: paddingHere(r.p.Scope, d.Pos), Pos: d.Pos})
		return
	}
	r.ending = ending
	first, ok := r.placeHeaders(r.kept())
	if !ok || r.resizes() && !r.mayResize(d.Pos) {
		return
	}
	rw, length, ok := r.plan(d.Hop, first, d.Pos)
	switch {
	case !ok:
	case r.p.Scope.Each != nil:
		r.copy(rw, d.Hop, length, state, d.Pos)
	default:
		r.forward(rw, d.Hop, length, state, d.Pos)
	}
}

// cuts reports whether the packet that leaves may end in front of where the one that came did.
func (r *rewriter) cuts() bool { return r.resizes() || r.ending.cut > 0 }

// mayResize reports headers whose place in the packet depends on the length of others.
func (r *rewriter) mayResize(pos diag.Pos) bool {
	for i, in := range r.p.Scope.Path[:len(r.p.Scope.Path)-1] {
		if in.Decl.Trailer > 0 {
			r.p.Scope.Fail(code.Resize, pos, "header %q has a trailer, and headers after it change", in.Entry).
				WithRelated(r.p.Scope.Path[i+1].Decl.Name.Pos, "after it")
			return false
		}
	}
	for _, e := range r.p.Program.Src.Stack {
		host := draft.HostOf(e, r.p.Scope.Path)
		if host != nil && slices.ContainsFunc(r.p.Scope.Path, func(in *draft.Header) bool {
			return in.Entry == e.Var.Value
		}) {
			r.p.Scope.Fail(code.Resize, pos, "the packet can't be resized: header %q begins after the payload of %q",
				e.Var.Value, host.Entry).WithRelated(e.Pos, "it is here in the stack")
			return false
		}
	}
	return true
}

// plan returns the rewrite, nil if nothing changes, and the length of the packet that leaves from the network header
// on. first is the index of the first header that is not where and what it was.
func (r *rewriter) plan(hop *ir.HopRef, first int, pos diag.Pos) (rw *ir.Rewrite, length ir.Expr, ok bool) {
	cut, kept := r.cuts(), r.kept()
	rw = &ir.Rewrite{
		Family: r.p.Family, PopTag: r.p.PopTag, PopInner: r.p.PopInner, Summed: r.p.Summed, Priority: r.p.Priority,
		Mark: r.p.SkbMark, OldFront: r.p.Scope.Path[len(r.p.Scope.Path)-1].End,
		NewFront: r.headers[len(r.headers)-1].end, Pos: pos,
	}
	net := slices.IndexFunc(r.headers, func(o *header) bool { return draft.Role(o.Decl, "destination") != nil })
	if net >= 0 {
		rw.L2 = r.headers[net].off.Const
	}
	for _, o := range r.headers {
		rw.Runs = append(rw.Runs, o.runs()...)
	}
	rw.Payload = r.payload(rw.OldFront, pos)
	if !cut && net >= 0 {
		n := r.headers[net].Old
		length = fold.Bin(ir.Sub, n.Inner, fold.Off(n.Off))
	} else {
		length = fold.Bin(ir.Add, fold.Num(uint64(rw.NewFront.Const-rw.L2)), rw.Payload)
		if rw.NewFront.Base != nil {
			length = fold.Bin(ir.Add, &ir.VarRef{Var: rw.NewFront.Base}, length)
		}
	}
	r.contents(rw.Payload, rw.OldFront)
	if cut {
		if segmentedOnly(r.p.Scope.Path) { // else GSO packets are declined already
			r.p.Guards = slices.Concat(r.superPacketsOut(rw, hop, r.ending.end), r.p.Guards)
		}
		rw.Trim = !fold.IsFrame(r.ending.end)
		r.newLengths(rw.NewFront, hop != nil, pos)
	}
	if r.resizes() && !r.resizeKind(rw, first, kept, pos) || !r.checksums(rw, pos) || !r.write(rw, kept, hop) {
		return nil, nil, false
	}
	if len(rw.Stores)+len(rw.Filled)+len(rw.Sums) == 0 && !cut && !rw.PopTag && rw.Priority == nil && rw.Mark == nil {
		rw = nil
	}
	return rw, length, true
}

// payload returns how many bytes of the packet that came follow its front and leave.
func (r *rewriter) payload(front ir.Off, pos diag.Pos) ir.Expr {
	end := r.ending.end
	payload := fold.Bin(ir.Sub, end, fold.Off(front))
	if _, fixed := fold.Constant(payload); fixed || !r.cuts() {
		return payload
	}
	if fold.IsFrame(end) {
		r.p.Guard(fold.Bin(ir.Le, end, fold.Num(0xFFFF)),
			r.p.Program.Punted("too_big", "larger than the MTU towards the destination", pos), pos)
	}
	return &ir.VarRef{Var: r.p.Program.Let(&r.p.Guards, "payload_len", payload, 0xFFFF, pos)}
}

// checksums adds the checksums that change, and declines packets of which one may be partial in a way that the rewrite
// doesn't know.
func (r *rewriter) checksums(rw *ir.Rewrite, pos diag.Pos) (ok bool) {
	unknown := r.p.Scope.Each == nil && (r.cuts() || r.readdressed())
	front := len(r.p.Guards)
	if unknown {
		partialChecksum(r.p.Scope, pos) // the first reason of these, as its guard is the first one
	}
	rw.Sums, ok = r.sums(rw, r.ending.end)
	if !ok {
		return false
	}
	if unknown {
		var guards []ir.Stmt
		r.unknownPartial(&guards, rw, pos)
		r.p.Guards = slices.Insert(r.p.Guards, front, guards...)
	}
	offloaded := func(s *ir.Sum) bool { return s.Offloaded && !s.Fresh }
	if r.p.Scope.Each == nil && !unknown && slices.ContainsFunc(rw.Sums, offloaded) {
		r.unknownPartial(&r.p.Guards, rw, pos)
	}
	return true
}

// write adds what is written to headers, of which those from index kept on move with the payload if any do.
func (r *rewriter) write(rw *ir.Rewrite, kept int, hop *ir.HopRef) (ok bool) {
	full := rw.Resize == ir.MoveHeaders || rw.Resize == ir.MoveEither || r.p.Family != 0 || r.p.PopInner
	if rw.Resize != ir.InPlace || r.p.PopInner {
		r.keep(rw, kept)
	} else {
		kept = len(r.headers)
	}
	rw.Stores, ok = r.cells(full, kept, hop)
	if !ok {
		return false
	}
	r.fill(rw)
	return true
}

// forward emits the guards, the state changes and the Forward.
func (r *rewriter) forward(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	f := &ir.Forward{Effects: r.p.Effects.Effects, Rewrite: rw, Hop: hop, Fault: -1, NoRoom: -1, Usage: r.p.Used(),
		Pos: pos}
	if hop != nil && !r.cuts() {
		f.End = r.leavesUntil(pos)
	}
	if f.End != nil && segmentedOnly(r.p.Scope.Path) { // cut, a GSO packet would be an ordinary one
		whole := fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, f.End)
		single := fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))
		r.p.Guard(fold.Or(whole, single), r.p.Program.SuperPacket(pos), pos)
	}
	r.cutsAt(f.End, pos)
	if r.p.Program.Driver && (hop != nil || rw != nil && r.p.Program.Src.Hook == ir.XDP) {
		r.p.Finished(r.p.Program.Punted("partial_checksum", "left to a device by its sender", pos), pos)
	}
	if rw != nil || f.End != nil || hop != nil && !r.p.Program.Out.L2 {
		f.NoRoom = r.p.Program.Punted("no_memory", "the kernel has no memory to change the packet",
			r.p.Program.Src.Name.Pos)
		f.Fault = r.p.Program.Reason("fault", ir.Fault, "dropped: the kernel failed after the first change",
			r.p.Program.Src.Name.Pos)
	}
	f.Reason = r.p.Program.Reason("pass", ir.Passed, "", pos)
	draft.Emit(r.p.Blk, r.p.Guards...)
	if hop != nil {
		f.Reason = r.p.Program.Reason("sent", ir.Sent, "", pos)
		draft.Emit(r.p.Blk, r.checkHop(hop, length, pos))
	}
	draft.Emit(r.p.Blk, r.p.Effects.Late...)
	if len(f.Admits) > 0 {
		f.After(state)
	} else {
		draft.Emit(r.p.Blk, state...)
	}
	draft.Emit(r.p.Blk, f)
}

// leavesUntil is where a packet is cut off of which no rewrite changes the length: at the end of its outermost IP
// datagram, or of the trailer of a header in front of that; nil if nothing can follow. Padding isn't taken out in front
// of a trailer.
func (r *rewriter) leavesUntil(pos diag.Pos) ir.Expr {
	received, _ := r.datagram()
	if received < 0 {
		return nil
	}
	datagram := r.p.Scope.Path[received].Inner
	end := datagram
	for _, in := range slices.Backward(r.p.Scope.Path[:received]) {
		if in.Decl.Trailer > 0 {
			r.p.Guard(fold.Bin(ir.Le, in.Payload, end), paddingHere(r.p.Scope, pos), pos)
			end = in.Inner
		}
	}
	if fold.IsFrame(end) {
		return nil
	}
	return end
}

// segmentedOnly reports whether the kernel repeats all headers of a path in front of each segment of a GSO packet.
func segmentedOnly(path []*draft.Header) bool {
	return !slices.ContainsFunc(path, func(in *draft.Header) bool { return !in.Decl.Segmented })
}

func (r *rewriter) checkHop(hop *ir.HopRef, length ir.Expr, pos diag.Pos) *ir.CheckHop {
	c := &ir.CheckHop{
		Hop: hop, Length: length, Pos: pos,
		TooBig: r.p.Program.Punted("too_big", "larger than the MTU towards the destination", pos),
	}
	// The kernel's lookup gives one answer for a destination without a route and for this host itself
	// (BPF_FIB_LKUP_RET_NOT_FWDED), and none at all if forwarding is off (BPF_FIB_LKUP_RET_FWD_DISABLED).
	var none, local, off int
	if hop.Row == nil {
		none = r.p.Program.Punted("not_forwarded", "the kernel forwards nothing to the destination: it is this host, "+
			"or there is no route", pos)
		local = none
		off = r.p.Program.Punted("forwarding_off", "forwarding is off on the interface that the packet came in by", pos)
	} else {
		none = r.p.Program.Punted("no_route", "no route to the destination, or the row has no next hop", pos)
		local = r.p.Program.Punted("local", "the destination is this host", pos)
		off = none
	}
	c.Reasons = [ir.HopStates]int{
		ir.HopNone: none, ir.HopDirect: -1, ir.HopNeighbour: -1, ir.HopLocal: local,
		ir.HopUnreachable: r.p.Program.Punted("unreachable", "the route's type is unreachable", pos),
		ir.HopBlackhole:   r.p.Program.Punted("blackhole", "the route's type is blackhole", pos),
		ir.HopProhibit:    r.p.Program.Punted("prohibit", "the route's type is prohibit", pos),
		ir.HopXfrm:        r.p.Program.Punted("xfrm", "an xfrm (IPsec) policy is for the packet", pos),
		ir.HopRule: r.p.Program.Punted("rule",
			"a routing rule asks for a protocol or ports that aren't known when the next hop is found", pos),
		ir.HopEncap: r.p.Program.Punted("encap", "the route encapsulates packets, which is the stack's work",
			pos),
		ir.HopForwardingOff: off,
	}
	return c
}

// newLengths gives the length fields of headers that leave their values.
func (r *rewriter) newLengths(front ir.Off, sent bool, pos diag.Pos) {
	for i, o := range r.headers {
		if r.asReceived(i) {
			continue
		}
		for _, f := range o.Decl.Fields {
			k := f.Counts
			if k == nil || (k.What == "header" && o.Old != nil) {
				continue
			}
			var bytes ir.Expr
			switch k.What {
			case "header":
				bytes = fold.Num(uint64(o.Size))
			case "payload":
				bytes = fold.Bin(ir.Add, o.content, fold.Distance(front, o.end))
			default:
				bytes = fold.Bin(ir.Add, o.content, fold.Distance(front, o.off))
			}
			var pl *draft.Field
			if o.Old != nil {
				pl = o.Old.Fields[f.Name.Value]
			}
			fits := func(cond ir.Expr) {
				if pl != nil {
					cond = pl.UnlessAbsent(cond)
				}
				r.p.Guard(cond, r.p.Program.Punted("length", "a length that doesn't fit its field", f.Name.Pos), pos)
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
			o.Values[f.Name.Value] = bytes
		}
	}
}

// runs names the fields of a header that leaves.
func (o *header) runs() (out []*ir.FieldRun) {
	if o.Old == nil {
		p := &ir.FieldRun{Header: o.Decl.Name.Value, At: o.off}
		for _, f := range o.Decl.Fields {
			p.Fields = append(p.Fields, draft.RunField(f))
		}
		return []*ir.FieldRun{p}
	}
	for i, pl := range o.Old.Order {
		if pl.Segment >= 0 && (i == 0 || o.Old.Order[i-1].Segment != pl.Segment) {
			run := o.Old.Order[i:]
			if n := slices.IndexFunc(run, func(next *draft.Field) bool { return next.Segment != pl.Segment }); n >= 0 {
				run = run[:n]
			}
			out = append(out, draft.Run(o.Decl, o.moved(pl.Off), run))
		}
	}
	return out
}

// mayBeEmpty reports whether a header may have no bytes: each of its fields may be absent or empty.
func mayBeEmpty(h *spec.Header) bool {
	return !slices.ContainsFunc(h.Fields, func(f *spec.Field) bool { return f.When == nil && f.Size == nil })
}
