// Package rewrite compares the packet that came with the packet that leaves. A Packet starts with the headers of a
// path; the actions of a rule take some out, put some in and give fields values. From the two lists follow what the
// lengths become, which checksums change and by what (sums.go), which bytes have to be written (stores.go), and how
// room is made. Send and Finish append what comes of it to a block: checks, and the end of the rule.
package rewrite

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

// Header is a header of the packet that leaves.
type Header struct {
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
func (o *Header) at(f *spec.Field) diag.Pos {
	if pos, ok := o.sets[f.Name.Value]; ok {
		return pos
	}
	return f.Name.Pos
}

// isSet reports whether the spec gives a field a value.
func (o *Header) isSet(f *spec.Field) bool {
	_, set := o.sets[f.Name.Value]
	return set
}

// moved is where a place of the header that came is in the packet that leaves, at a fixed distance from its start. (Of
// a header of variable length that moves by a fixed distance, all places are known.)
func (o *Header) moved(off ir.Off) ir.Off {
	if o.off == o.old.Off {
		return off
	}
	if o.off.Base == o.old.Off.Base {
		return off.Plus(o.off.Const - o.old.Off.Const)
	}
	return o.off.Plus(off.Const - o.old.Off.Const)
}

// Packet is the packet that leaves by a rule, which the rule's actions make.
type Packet struct {
	Program  *draft.Program
	Scope    *expr.Scope // of the rule's expressions
	Blk      *[]ir.Stmt  // where the rule is compiled
	pos      diag.Pos
	hdrs     []*Header
	resized  bool // headers were taken out or put in
	summed   int  // ir.Rewrite.Summed
	popTag   bool
	popInner bool
	family   int
	priority ir.Expr
	skbMark  ir.Expr
	Guards   []ir.Stmt // checks in front of the rewrite
	Effects  *expr.Effects
	ending   ending
	computed map[*Header]*ir.Sum // the checksums that change, of the headers after the one at hand
}

// New returns the packet of a path as it came.
func New(s *expr.Scope, blk *[]ir.Stmt, pos diag.Pos) *Packet {
	w := &Packet{Program: s.Program, Scope: s, Blk: blk, pos: pos, Effects: expr.NewEffects()}
	for i, in := range s.Path {
		if in.Meta {
			continue
		}
		w.hdrs = append(w.hdrs, &Header{
			h: in.Decl, entry: in.Entry, old: in, index: i, vals: map[string]ir.Expr{}, sets: map[string]diag.Pos{},
			size: in.Size, pos: pos,
		})
	}
	return w
}

// fork copies the packet for another branch.
func (w *Packet) fork(blk *[]ir.Stmt) *Packet {
	c := *w
	c.Blk = blk
	c.Guards = slices.Clone(w.Guards)
	c.Effects = w.Effects.Clone()
	c.hdrs = make([]*Header, len(w.hdrs))
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

// Guard declines packets for which a condition doesn't hold.
func (w *Packet) Guard(cond ir.Expr, reason int, pos diag.Pos) {
	g := &ir.Guard{Cond: cond, Reason: reason, Pos: pos}
	switch {
	case fold.IsTrue(cond):
	case expr.Reads(cond, w.Effects.Allocated):
		w.Scope.Fail(code.Alloc, pos, undecidable)
	case expr.Reads(cond, w.Effects.LateVars):
		w.Effects.Late = append(w.Effects.Late, g)
	default:
		w.Guards = append(w.Guards, g)
	}
}

// header returns what leaves of a header that came, or nil.
func (w *Packet) header(in *draft.Header) *Header {
	i := slices.IndexFunc(w.hdrs, func(o *Header) bool { return o.old != nil && o.old.Entry == in.Entry })
	if i < 0 {
		return nil
	}
	return w.hdrs[i]
}

// placeHeaders gives the headers that leave their offsets. It returns the index of the first one that is not where and
// what it was, and false where the packet can't be laid out.
func (w *Packet) placeHeaders(kept int) (first int, ok bool) {
	first = len(w.hdrs)
	off := ir.Off{}
	for i, o := range w.hdrs {
		if o.old != nil && w.Program.Starts[o.old.Off.Base] && o.old.Off.Const == 0 {
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
			w.Scope.Fail(code.Resize, w.pos, "header %q has a variable length and would have to move", o.entry)
			return 0, false
		case off.Base != nil && o.old != nil:
			w.Scope.Fail(code.Resize, w.pos, "header %q would have to move after one of variable length", o.entry)
			return 0, false
		default:
			off = off.Plus(o.size)
		}
		o.end = off
	}
	return first, true
}

// Finish emits the guards, the state changes and the Forward. hop is nil where the packet goes on.
func (w *Packet) Finish(hop *ir.HopRef, state []ir.Stmt, pos diag.Pos) {
	if len(w.hdrs) == 0 {
		w.Scope.Fail(code.Push, pos, "all headers of the packet are popped").
			WithHint("keep the one that says what the packet is")
		return
	}
	if Role(w.Scope.Path[0].Decl, "link_destination") != nil && Role(w.hdrs[0].h, "link_destination") == nil {
		w.Scope.Fail(code.Push, pos, "the packet would begin with header %q: its link-layer header is popped",
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
	draft.Emit(w.Blk, w.Guards...)
	w.Guards = nil
	branch := &ir.If{Cond: Empty(pads), Pos: pos, Note: "no padding"}
	w.fork(&branch.Then).leave(hop, state, true, pos)
	w.fork(&branch.Else).leave(hop, state, false, pos)
	draft.Emit(w.Blk, common(w.Program, branch)...)
	draft.Emit(w.Blk, branch)
}

// leave emits the guards, the state changes and the Forward of packets with padding, or without (clean).
func (w *Packet) leave(hop *ir.HopRef, state []ir.Stmt, clean bool, pos diag.Pos) {
	ending, ok := w.findEnd(clean, pos)
	if !ok {
		draft.Emit(w.Blk, w.Guards...)
		draft.Emit(w.Blk, &ir.Punt{Reason: PaddingHere(w.Scope, pos), Pos: pos})
		return
	}
	w.ending = ending
	first, ok := w.placeHeaders(w.kept())
	if !ok || w.resizes() && !w.mayResize(pos) {
		return
	}
	rw, length, ok := w.plan(hop, first, pos)
	switch {
	case !ok:
	case w.Scope.Each != nil:
		w.copy(rw, hop, length, state, pos)
	default:
		w.forward(rw, hop, length, state, pos)
	}
}

// cuts reports whether the packet that leaves may end in front of where the one that came did.
func (w *Packet) cuts() bool { return w.resizes() || w.ending.cut > 0 }

// mayResize reports headers whose place in the packet depends on the length of others.
func (w *Packet) mayResize(pos diag.Pos) bool {
	for i, in := range w.Scope.Path[:len(w.Scope.Path)-1] {
		if in.Decl.Trailer > 0 {
			w.Scope.Fail(code.Resize, pos, "header %q has a trailer, and headers after it change", in.Entry).
				WithRelated(w.Scope.Path[i+1].Decl.Name.Pos, "after it")
			return false
		}
	}
	for _, e := range w.Program.Src.Stack {
		host := draft.HostOf(e, w.Scope.Path)
		if host != nil && slices.ContainsFunc(w.Scope.Path, func(in *draft.Header) bool {
			return in.Entry == e.Var.Value
		}) {
			w.Scope.Fail(code.Resize, pos, "the packet can't be resized: header %q begins after the payload of %q",
				e.Var.Value, host.Entry).WithRelated(e.Pos, "it is here in the stack")
			return false
		}
	}
	return true
}

// plan returns the rewrite, nil where nothing changes, and the length of the packet that leaves from the network header
// on. first is the index of the first header that is not where and what it was.
func (w *Packet) plan(hop *ir.HopRef, first int, pos diag.Pos) (rw *ir.Rewrite, length ir.Expr, ok bool) {
	cut, kept := w.cuts(), w.kept()
	rw = &ir.Rewrite{
		Family: w.family, PopTag: w.popTag, PopInner: w.popInner, Summed: w.summed, Priority: w.priority,
		Mark: w.skbMark, OldFront: w.Scope.Path[len(w.Scope.Path)-1].End, NewFront: w.hdrs[len(w.hdrs)-1].end, Pos: pos,
	}
	net := slices.IndexFunc(w.hdrs, func(o *Header) bool { return Role(o.h, "destination") != nil })
	if net >= 0 {
		rw.L2 = w.hdrs[net].off.Const
	}
	for _, o := range w.hdrs {
		rw.Runs = append(rw.Runs, o.runs()...)
	}
	rw.Payload = w.payload(rw.OldFront, pos)
	if !cut && net >= 0 {
		n := w.hdrs[net].old
		length = fold.Bin(ir.Sub, n.Inner, fold.Off(n.Off))
	} else {
		length = fold.Bin(ir.Add, fold.Num(uint64(rw.NewFront.Const-rw.L2)), rw.Payload)
		if rw.NewFront.Base != nil {
			length = fold.Bin(ir.Add, &ir.VarRef{Var: rw.NewFront.Base}, length)
		}
	}
	w.contents(rw.Payload, rw.OldFront)
	if cut {
		if SegmentedOnly(w.Scope.Path) { // else GSO packets are declined already
			w.Guards = slices.Concat(w.superPacketsOut(rw, hop, w.ending.end), w.Guards)
		}
		rw.Trim = !fold.IsFrame(w.ending.end)
		w.newLengths(rw.NewFront, hop != nil, pos)
	}
	if w.resizes() && !w.resizeKind(rw, first, kept, pos) || !w.checksums(rw, pos) || !w.write(rw, kept, hop) {
		return nil, nil, false
	}
	if len(rw.Stores)+len(rw.Blanks)+len(rw.Sums) == 0 && !cut && !rw.PopTag && rw.Priority == nil && rw.Mark == nil {
		rw = nil
	}
	return rw, length, true
}

// payload returns how many bytes of the packet that came follow its front and leave.
func (w *Packet) payload(front ir.Off, pos diag.Pos) ir.Expr {
	end := w.ending.end
	payload := fold.Bin(ir.Sub, end, fold.Off(front))
	if _, fixed := fold.Constant(payload); fixed || !w.cuts() {
		return payload
	}
	if fold.IsFrame(end) {
		w.Guard(fold.Bin(ir.Le, end, fold.Num(0xFFFF)),
			w.Program.Punted("too_big", "larger than the MTU towards the destination", pos), pos)
	}
	return &ir.VarRef{Var: w.Program.Let(&w.Guards, "payload_len", payload, 0xFFFF, pos)}
}

// checksums adds the checksums that change, and declines packets of which one may be partial in a way that the rewrite
// doesn't know.
func (w *Packet) checksums(rw *ir.Rewrite, pos diag.Pos) (ok bool) {
	unknown := w.Scope.Each == nil && (w.cuts() || w.readdressed())
	if unknown {
		w.UnknownPartial(&w.Guards, rw, pos)
	}
	rw.Sums, ok = w.sums(rw, w.ending.end)
	if !ok {
		return false
	}
	offloaded := func(s *ir.Sum) bool { return s.Offloaded && !s.Fresh }
	if w.Scope.Each == nil && !unknown && slices.ContainsFunc(rw.Sums, offloaded) {
		w.UnknownPartial(&w.Guards, rw, pos)
	}
	return true
}

// write adds what is written to headers, of which those from index kept on move with the payload where any do.
func (w *Packet) write(rw *ir.Rewrite, kept int, hop *ir.HopRef) (ok bool) {
	full := rw.Resize == ir.MoveHeaders || rw.Resize == ir.MoveEither || w.family != 0 || w.popInner
	if rw.Resize != ir.InPlace || w.popInner {
		w.keep(rw, kept)
	} else {
		kept = len(w.hdrs)
	}
	rw.Stores, ok = w.cells(full, kept, hop)
	if !ok {
		return false
	}
	for _, o := range w.hdrs {
		if o.blank && o.size < 0 {
			rw.Blanks = append(rw.Blanks, ir.Blank{
				At: o.off, Len: fold.Distance(o.end, o.off), Max: o.h.MaxBytes(), Empty: mayBeEmpty(o.h),
				Header: o.entry,
				Pos:    o.pos,
			})
		}
	}
	return true
}

// forward emits the guards, the state changes and the Forward.
func (w *Packet) forward(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	f := &ir.Forward{Effects: w.Effects.Effects, Rewrite: rw, Hop: hop, Fault: -1, NoRoom: -1, Usage: w.Used(),
		Pos: pos}
	if hop != nil && !w.cuts() {
		f.End = DatagramEnd(w.Scope)
	}
	if f.End != nil && SegmentedOnly(w.Scope.Path) { // to cut something off a GSO packet would make it an ordinary one
		whole := fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, f.End)
		w.Guard(fold.Or(whole, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))), w.Program.SuperPacket(pos),
			pos)
	}
	w.CutsAt(f.End, pos)
	if rw != nil || f.End != nil || hop != nil && !w.Program.Out.L2 {
		f.NoRoom = w.Program.Punted("no_memory", "the kernel has no memory to change the packet",
			w.Program.Src.Name.Pos)
		f.Fault = w.Program.Reason("fault", ir.Fault, "dropped: the kernel failed after the first change",
			w.Program.Src.Name.Pos)
	}
	f.Reason = w.Program.Reason("pass", ir.Passed, "", pos)
	draft.Emit(w.Blk, w.Guards...)
	if hop != nil {
		f.Reason = w.Program.Reason("sent", ir.Sent, "", pos)
		draft.Emit(w.Blk, w.checkHop(hop, length, pos))
	}
	draft.Emit(w.Blk, w.Effects.Late...)
	if len(f.Admits) > 0 {
		f.After(state)
	} else {
		draft.Emit(w.Blk, state...)
	}
	draft.Emit(w.Blk, f)
}

// DatagramEnd is where the outermost IP datagram of the packet that came ends, or nil where nothing can follow it.
func DatagramEnd(s *expr.Scope) ir.Expr {
	for _, in := range s.Path {
		if Role(in.Decl, "destination") != nil && !fold.IsFrame(in.Inner) {
			return in.Inner
		}
	}
	return nil
}

// SegmentedOnly reports whether the kernel repeats all headers of a path in front of each segment of a GSO packet.
func SegmentedOnly(path []*draft.Header) bool {
	return !slices.ContainsFunc(path, func(in *draft.Header) bool { return !in.Decl.Segmented })
}

func (w *Packet) checkHop(hop *ir.HopRef, length ir.Expr, pos diag.Pos) *ir.CheckHop {
	c := &ir.CheckHop{
		Hop: hop, Length: length, Pos: pos,
		TooBig: w.Program.Punted("too_big", "larger than the MTU towards the destination", pos),
	}
	// The kernel's lookup gives one answer for a destination without a route and for this host itself
	// (BPF_FIB_LKUP_RET_NOT_FWDED), and none at all where forwarding is off (BPF_FIB_LKUP_RET_FWD_DISABLED).
	var none, local, off int
	if hop.Row == nil {
		none = w.Program.Punted("not_forwarded", "the kernel forwards nothing to the destination: it is this host, "+
			"or there "+
			"is no route", pos)
		local = none
		off = w.Program.Punted("forwarding_off", "forwarding is off on the interface that the packet came in by", pos)
	} else {
		none = w.Program.Punted("no_route", "no route to the destination, or the row has no next hop", pos)
		local = w.Program.Punted("local", "the destination is this host", pos)
		off = none
	}
	c.Reasons = [ir.HopStates]int{
		ir.HopNone: none, ir.HopDirect: -1, ir.HopNeighbour: -1, ir.HopLocal: local,
		ir.HopUnreachable: w.Program.Punted("unreachable", "the route's type is unreachable", pos),
		ir.HopBlackhole:   w.Program.Punted("blackhole", "the route's type is blackhole", pos),
		ir.HopProhibit:    w.Program.Punted("prohibit", "the route's type is prohibit", pos),
		ir.HopXfrm:        w.Program.Punted("xfrm", "an xfrm (IPsec) policy is for the packet", pos),
		ir.HopRule: w.Program.Punted("rule",
			"a routing rule asks for a protocol or ports that aren't known when the next hop is found", pos),
		ir.HopEncap: w.Program.Punted("encap", "the route encapsulates packets, which is the stack's work",
			pos),
		ir.HopForwardingOff: off,
	}
	return c
}

// newLengths gives the length fields of headers that leave their values.
func (w *Packet) newLengths(front ir.Off, sent bool, pos diag.Pos) {
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
				w.Guard(cond, w.Program.Punted("length", "a length that doesn't fit its field", f.Name.Pos), pos)
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

// runs names the fields of a header that leaves.
func (o *Header) runs() (out []*ir.FieldRun) {
	if o.old == nil {
		p := &ir.FieldRun{Header: o.h.Name.Value, At: o.off}
		for _, f := range o.h.Fields {
			p.Fields = append(p.Fields, draft.RunField(f))
		}
		return []*ir.FieldRun{p}
	}
	for i, pl := range o.old.Order {
		if pl.Segment >= 0 && (i == 0 || o.old.Order[i-1].Segment != pl.Segment) {
			run := o.old.Order[i:]
			if n := slices.IndexFunc(run, func(next *draft.Field) bool { return next.Segment != pl.Segment }); n >= 0 {
				run = run[:n]
			}
			out = append(out, draft.Run(o.h, o.moved(pl.Off), run))
		}
	}
	return out
}

// Role returns the field of a header that has a role, or nil.
func Role(h *spec.Header, name string) *spec.Field {
	for _, f := range h.Fields {
		if f.Role.Value == name {
			return f
		}
	}
	return nil
}

// copy ends a receiver's turn with a copy.
func (w *Packet) copy(rw *ir.Rewrite, hop *ir.HopRef, length ir.Expr, state []ir.Stmt, pos diag.Pos) {
	if hop.Row == nil {
		w.Scope.Fail(code.FanOut, pos, "a copy is sent to an endpoint of a row, such as r.remote, or via a next hop "+
			"of "+
			"one").
			WithHint("the next hop is found when the row is written, not for every copy")
		return
	}
	for _, o := range w.hdrs {
		switch {
		case o.size >= 0:
		case o.blank:
			w.Scope.Each.Blanked[o.old] = o.pos
		case len(o.sets) > 0:
			w.Scope.Each.Set[o.old] = pos
		}
		blanked, is := w.Scope.Each.Blanked[o.old]
		if _, too := w.Scope.Each.Set[o.old]; is && too {
			w.Scope.Fail(code.FanOut, blanked, "header %q can't be blanked: another rule of the fan-out sets its "+
				"fields",
				o.entry)
			return
		}
	}
	draft.Emit(w.Blk, w.Guards...)
	check := w.checkHop(hop, length, pos)
	check.Reasons[ir.HopNeighbour] = w.Program.Punted("no_neighbour", "the neighbour's link-layer address isn't "+
		"resolved yet",
		pos)
	draft.Emit(w.Blk, check)
	draft.Emit(w.Blk, w.Effects.Late...)
	out := &ir.Copy{
		Effects: w.Effects.Effects, Rewrite: rw, Hop: hop, Pos: pos,
		Reason: w.Program.Reason("copy", ir.Copied, "a copy was sent", pos),
		Failed: w.Program.Punted("refused_by_device", "the device refused the copy", pos),
	}
	for _, s := range state {
		out.Counts = append(out.Counts, s.(*ir.Count))
	}
	draft.Emit(w.Blk, out)
}

// Used returns the rows of sessions that this packet uses.
func (w *Packet) Used() (rows []*ir.Row) {
	for _, r := range w.Program.Out.Rows {
		for _, mine := range w.Scope.Rows {
			if mine == r && r.Table.Session != nil && (!r.Optional || w.Scope.Facts[r]) && !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// WithEffects lowers an expression that may have effects.
func (w *Packet) WithEffects(e *spec.Expr) (expr.Value, bool) {
	w.Scope.Fx = w.Effects
	defer func() { w.Scope.Fx = nil }()
	return w.Scope.Value(e)
}

// EmitLet puts a Let where its value is known.
func (w *Packet) EmitLet(l *ir.Let) {
	switch {
	case expr.Reads(l.Value, w.Effects.Allocated):
		w.Effects.Allocated[l.Var] = true
		w.Effects.Lets = append(w.Effects.Lets, l)
	case expr.Reads(l.Value, w.Effects.LateVars):
		w.Effects.LateVars[l.Var] = true
		w.Effects.Late = append(w.Effects.Late, l)
	default:
		w.Guards = append(w.Guards, l)
	}
}
