package gen

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass compares the packet that came with the packet that leaves. A rewriter starts with the headers of the path,
// the actions take some out, put some in and give fields values; from the two lists follow what the lengths become,
// which checksums change and by what (sums.go), which bytes have to be written (stores.go), and how room is made.

// outHeader is a header of the packet that leaves.
type outHeader struct {
	h     *spec.Header
	entry string
	old   *layer // the header that came; nil: pushed, or made in place of one of another family
	index int    // in the path, of the header that came or in whose place this one is; -1: pushed
	vals  map[string]ir.Expr
	sets  map[string]diag.Pos // where the spec gives fields values
	off   ir.Off
	end   ir.Off
	size  int  // bytes; -1: varies (kept, in its old place)
	blank bool // all bytes are 0
	whole wholeSum
	pos   diag.Pos
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
	if o.off == o.old.off {
		return off
	}
	if o.off.Base == o.old.off.Base {
		return plus(off, o.off.Const-o.old.off.Const)
	}
	return plus(o.off, off.Const-o.old.off.Const)
}

// rewriter makes a Forward from a rule's actions.
type rewriter struct {
	*scope
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
	fx       *effects
	computed map[*outHeader]*ir.Sum // the checksums that change, of the headers after the one at hand
}

func (s *scope) newRewriter(blk *[]ir.Stmt, pos diag.Pos) *rewriter {
	w := &rewriter{scope: s, blk: blk, pos: pos, fx: newEffects()}
	for i, in := range s.path {
		if in.meta {
			continue
		}
		w.hdrs = append(w.hdrs, &outHeader{
			h: in.h, entry: in.entry, old: in, index: i, vals: map[string]ir.Expr{}, sets: map[string]diag.Pos{},
			size: in.size, pos: pos,
		})
	}
	return w
}

// fork copies the rewriter for another branch.
func (w *rewriter) fork(blk *[]ir.Stmt) *rewriter {
	c := *w
	c.blk = blk
	c.guards = slices.Clone(w.guards)
	c.fx = w.fx.clone()
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
	case isTrue(cond):
	case reads(cond, w.fx.allocated):
		w.fail(codeAlloc, pos, undecidable)
	case reads(cond, w.fx.lateVars):
		w.fx.late = append(w.fx.late, g)
	default:
		w.guards = append(w.guards, g)
	}
}

// header returns what leaves of a header that came, or nil.
func (w *rewriter) header(in *layer) *outHeader {
	i := slices.IndexFunc(w.hdrs, func(o *outHeader) bool { return o.old != nil && o.old.entry == in.entry })
	if i < 0 {
		return nil
	}
	return w.hdrs[i]
}

// pop takes a header out.
func (w *rewriter) pop(a *spec.Action) {
	in, known := w.find(a.Header.Value)
	if in == nil {
		if !known {
			suggest(w.fail(codePush, a.Header.Pos, "no header %q in the stack", a.Header.Value), a.Header.Value,
				w.visible())
		}
		return // an optional header that isn't there
	}
	w.remove(in, a.ZeroChecksum, a.Header.Pos)
}

func (w *rewriter) remove(in *layer, zero bool, pos diag.Pos) {
	if in.meta {
		w.popTag = true
		return
	}
	i := slices.IndexFunc(w.hdrs, func(o *outHeader) bool { return o.old == in })
	if i < 0 {
		w.fail(codePush, pos, "header %q is popped twice", in.entry)
		return
	}
	for _, pl := range in.order {
		if k := pl.f.Checksum; k != nil && k.Offloaded {
			w.verifyWhole(in, pl, zero, pos)
		}
	}
	if w.summedUp(in) {
		w.summed++
	}
	for _, f := range in.h.Fields {
		if set, ok := w.hdrs[i].sets[f.Name.Value]; ok {
			w.fail(codeTarget, set, "field %q can't be set: its header is taken out", f.Name.Value).
				WithRelated(pos, "it is taken out here").
				WithHint("leave one of them out")
		}
	}
	w.hdrs = slices.Delete(slices.Clone(w.hdrs), i, i+1)
	if in.h.Metadata == "vlan" && i == 1 && in.off.Base == nil {
		w.popOuter(in, pos)
		return
	}
	w.resized = true
}

// popOuter has the kernel take the outermost tag out of the frame. It would move a tag after it into the packet's
// metadata, and all that follows with it, so there must not be one.
func (w *rewriter) popOuter(in *layer, pos diag.Pos) {
	at := slices.Index(w.path, in)
	var next *spec.Header
	if at+1 < len(w.path) {
		next = w.path[at+1].h
	}
	if w.popInner || next != nil && next.Metadata == "vlan" {
		w.fail(codePush, pos, "header %q can't be taken out: another tag is in front of it or after it", in.entry).
			WithHint("of two tags in the frame none can be taken out")
		return
	}
	w.popInner = true
	if next != nil && len(next.After) > 0 {
		return // the tag says that something else follows
	}
	typ := &ir.Load{Off: plus(in.off, 2), Bits: 16, Field: in.h.Name.Value + ".type"}
	other := w.went("vlan_tag", "a VLAN tag that the stack doesn't have", pos)
	w.guard(bin(ir.Ne, typ, num(0x8100)), other, pos)
	w.guard(bin(ir.Ne, typ, num(0x88A8)), other, pos)
}

// push puts a header in.
func (w *rewriter) push(a *spec.Action) {
	h := w.headers[a.Header.Value]
	if h == nil {
		suggest(w.fail(codeUnknownName, a.Header.Pos, "no header %q", a.Header.Value), a.Header.Value, w.headerNames())
		return
	}
	if fixedSize(h) < 0 {
		w.fail(codeVariable, a.Header.Pos, "header %q can't be pushed: its size varies", h.Name.Value).
			WithRelated(h.Name.Pos, "the header is declared here")
		return
	}
	if h.Trailer > 0 {
		w.fail(codePush, a.Header.Pos, "header %q can't be pushed: it has a trailer, which nothing fills",
			h.Name.Value).WithRelated(h.Name.Pos, "the header is declared here")
		return
	}
	o := &outHeader{
		h: h, entry: h.Name.Value, index: -1, vals: map[string]ir.Expr{}, sets: map[string]diag.Pos{},
		size: fixedSize(h), pos: a.Header.Pos,
	}
	at := len(w.hdrs)
	if a.Before != nil {
		in, _ := w.find(a.Before.Value)
		at = slices.IndexFunc(w.hdrs, func(o *outHeader) bool { return in != nil && o.old == in })
		if at < 0 || at == 0 && w.out.L2 {
			suggest(w.fail(codePush, a.Before.Pos, "no header %q in the stack to push in front of", a.Before.Value),
				a.Before.Value, w.visible())
			return
		}
	}
	for _, as := range a.Set {
		name := as.Target.Path[0].Value
		i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool { return f.Name.Value == name })
		if i < 0 {
			var names []string
			for _, f := range h.Fields {
				names = append(names, f.Name.Value)
			}
			suggest(w.fail(codeUnknownName, as.Target.Pos, "no field %q in header %q", name, h.Name.Value),
				name, names).
				WithRelated(h.Name.Pos, "the header is declared here")
			continue
		}
		w.pushed(o, h.Fields[i], as)
	}
	w.hdrs = slices.Insert(slices.Clone(w.hdrs), at, o)
	w.resized = true
}

// pushed gives a field of a pushed header the value that the spec gives.
func (w *rewriter) pushed(o *outHeader, f *spec.Field, as *spec.Assign) {
	if f.Checksum != nil && w.chooses(o, f, as) {
		return
	}
	v, ok := w.withEffects(as.Value)
	if !ok {
		return
	}
	if f.Counts != nil || f.Checksum != nil {
		w.fail(codeTarget, as.Target.Pos, "field %q follows from the packet", f.Name.Value).
			WithHint("leave it out: lengths and checksums are always right")
		return
	}
	if !w.takes(f, v, as) {
		return
	}
	if f.Is != nil && f.Kind == spec.FieldUint {
		rs := ranges(f.Is, maxOf(f.Bits))
		if c, fixed := constant(v.x); fixed {
			if !slices.ContainsFunc(rs, func(r ir.Range) bool { return c >= r.Min && c <= r.Max }) {
				w.fail(codeConstraint, as.Value.Pos, "field %q can't be %d", f.Name.Value, c).
					WithRelated(f.Is.Pos, "its values are declared here")
			}
		} else if cond := w.constraint(val{t: ir.UintType(f.Bits), x: v.x, max: maxOf(f.Bits), pos: v.pos},
			f.Is); cond != nil {
			w.guard(cond, w.unfit(o.h, f, impossible), as.Value.Pos)
		}
	}
	o.vals[f.Name.Value], o.sets[f.Name.Value] = v.x, as.Target.Pos
}

// complete gives the fields of pushed headers that the spec gives no value the one that their declarations determine:
// fixed values, and what the next header announces. It reports a field that has none.
func (w *rewriter) complete() bool {
	ok := true
	for _, o := range w.hdrs {
		if o.index >= 0 {
			continue
		}
		for _, f := range o.h.Fields {
			_, given := o.vals[f.Name.Value]
			switch {
			case given || f.Counts != nil || f.Checksum != nil:
			case f.Is != nil && f.Is.Op == spec.IsEq && f.Kind == spec.FieldUint && f.Is.Value.Kind == spec.LitInt:
				o.vals[f.Name.Value] = num(f.Is.Value.Int)
			case f.Origin != nil && f.Kind == spec.FieldUint:
				o.vals[f.Name.Value] = num(*f.Origin)
			default:
				w.fail(codePush, o.pos, "field %q of the pushed header %q needs a value", f.Name.Value, o.h.Name.Value).
					WithRelated(f.Name.Pos, "the field is declared here")
				ok = false
			}
		}
	}
	return ok
}

// announced returns the value that field f of parent has where next follows, or nil.
func announced(parent, next *spec.Header, f *spec.Field) ir.Expr {
	for _, a := range next.After {
		if a.Parent.Value != parent.Name.Value {
			continue
		}
		for _, m := range a.Match {
			if m.Field.Path[0].Value == f.Name.Value && m.Is.Op == spec.IsEq && m.Is.Value.Kind == spec.LitInt {
				return num(m.Is.Value.Int)
			}
			if m.Field.Path[0].Value == f.Name.Value && m.Is.Op == spec.IsOr && m.Is.Args[0].Op == spec.IsEq {
				return num(m.Is.Args[0].Value.Int) // the first of several
			}
		}
	}
	return nil
}

// announce makes neighbours that are new to each other fit: the field in front says what follows. Where nothing in the
// spec says what that is, the header that was taken out between them may have said so: a VLAN tag has the EtherType of
// what it is in front of. (A port may stay: what it stands for is a matter of the endpoints.)
func (w *rewriter) announce() bool {
	for i, a := range w.hdrs {
		known := i+1 < len(w.hdrs) && (len(w.hdrs[i+1].h.After) > 0 || w.hdrs[i+1].old == nil)
		if gone := w.takenOut(i); gone != nil && !known {
			if pl := announcer(a.old, w.path[a.index+1].h); pl != nil {
				same := gone.fields[pl.f.Name.Value]
				switch {
				case a.vals[pl.f.Name.Value] != nil || isPort(a.h, pl.f):
				case same != nil && same.f.Kind == spec.FieldUint && same.f.Bits == pl.f.Bits:
					a.vals[pl.f.Name.Value] = same.load
				default:
					w.fail(codePush, w.pos, "header %q can't be popped: %s.%s would still say that it follows",
						gone.entry, a.entry, pl.f.Name.Value).
						WithRelated(gone.h.Name.Pos, "the header is declared here").
						WithHint("set it after the pop, if it is known what follows then")
					return false
				}
			}
		}
	}
	for i := 1; i < len(w.hdrs); i++ {
		a, b := w.hdrs[i-1], w.hdrs[i]
		if a.old != nil && b.old != nil && b.index == a.index+1 {
			continue
		}
		if len(b.h.After) == 0 {
			continue
		}
		found := !a.h.Std || slices.ContainsFunc(b.h.After, func(e *spec.After) bool {
			return e.Parent.Value == a.h.Name.Value && len(e.Match) == 0 // nothing announces it
		})
		for _, f := range a.h.Fields {
			if x := announced(a.h, b.h, f); x != nil {
				if set, given := a.sets[f.Name.Value]; given && a.old != nil {
					w.fail(codeTarget, set, "field %q can't be set: it says which header follows, which is %q",
						f.Name.Value, b.entry).
						WithHint("leave it out: it follows from the headers that are pushed and popped")
				}
				if _, set := a.vals[f.Name.Value]; !set || a.old != nil {
					a.vals[f.Name.Value] = x
				}
				found = true
			}
		}
		if !found {
			w.fail(codePush, b.pos, "header %q can't follow %q", b.h.Name.Value, a.h.Name.Value).
				WithRelated(b.h.Name.Pos, "what it comes after is declared here")
			return false
		}
	}
	return true
}

// isPort reports whether a field is the port of one of its header's endpoints.
func isPort(h *spec.Header, f *spec.Field) bool {
	return slices.ContainsFunc(h.Parts, func(p *spec.Part) bool {
		return p.Port != nil && p.Port.Path[0].Value == f.Name.Value
	})
}

// takenOut returns the last header of the frame that was taken out between the i-th one that leaves and what follows
// it, or nil.
func (w *rewriter) takenOut(i int) *layer {
	a := w.hdrs[i]
	if a.old == nil {
		return nil
	}
	end := len(w.path)
	if i+1 < len(w.hdrs) && w.hdrs[i+1].index >= 0 {
		end = w.hdrs[i+1].index
	}
	for _, in := range slices.Backward(w.path[a.index+1 : max(end, a.index+1)]) {
		if !in.meta {
			return in
		}
	}
	return nil
}

// place gives the headers that leave their offsets. It returns the index of the first one that is not where and what it
// was, and false where the packet can't be laid out.
func (w *rewriter) placeHeaders(kept int) (first int, ok bool) {
	first = len(w.hdrs)
	off := ir.Off{}
	for i, o := range w.hdrs {
		if o.old != nil && w.starts[o.old.off.Base] && o.old.off.Const == 0 {
			off = o.old.off // after a payload
		}
		o.off = off
		same := o.old != nil && o.old.off == off
		if !same && first == len(w.hdrs) {
			first = i
		}
		switch {
		case same:
			off = o.old.end
		case i >= kept:
			if !w.moveKept(o, off) {
				return 0, false
			}
			off = o.end
		case o.size < 0:
			w.fail(codeResize, w.pos, "header %q has a variable length and would have to move", o.entry)
			return 0, false
		case off.Base != nil && o.old != nil:
			w.fail(codeResize, w.pos, "header %q would have to move after one of variable length", o.entry)
			return 0, false
		default:
			off = plus(off, o.size)
		}
		o.end = off
	}
	return first, true
}

// finish emits the guards, the state changes and the Forward. hop is nil where the packet goes on.
func (w *rewriter) finish(hop *ir.HopRef, state []ir.Stmt, pos diag.Pos) {
	if len(w.hdrs) == 0 {
		w.fail(codePush, pos, "all headers of the packet are popped").
			WithHint("keep the one that says what the packet is")
		return
	}
	if role(w.path[0].h, "link_destination") != nil && role(w.hdrs[0].h, "link_destination") == nil {
		w.fail(codePush, pos, "the packet would begin with header %q: its link-layer header is popped", w.hdrs[0].entry)
		return
	}
	if !w.announce() || !w.complete() {
		return
	}
	kept := w.kept()
	first, ok := w.placeHeaders(kept)
	if !ok {
		return
	}
	if w.family == 0 {
		w.family = w.otherFamily()
	}
	last := w.path[len(w.path)-1]
	oldFront, newFront := last.end, w.hdrs[len(w.hdrs)-1].end
	moved := w.resized || w.family != 0 || w.popInner
	end := last.payload
	if last.h.Trailer > 0 && w.header(last) != nil {
		end = last.inner
	}
	if kept < len(w.hdrs) && moved { // what isn't written keeps its lengths, and all that they cover
		end = w.hdrs[kept].old.inner
	}
	for i, in := range w.path[:len(w.path)-1] {
		if in.h.Trailer > 0 && moved {
			w.fail(codeResize, pos, "header %q has a trailer, and headers after it change", in.entry).
				WithRelated(w.path[i+1].h.Name.Pos, "after it")
			return
		}
	}
	for _, e := range w.src.Stack {
		if host := hostOf(e, w.path); host != nil && moved && slices.ContainsFunc(w.path, func(in *layer) bool {
			return in.entry == e.Var.Value
		}) {
			w.fail(codeResize, pos, "the packet can't be resized: header %q begins after the payload of %q",
				e.Var.Value, host.entry).WithRelated(e.Pos, "it is here in the stack")
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
	payload := bin(ir.Sub, end, offExpr(oldFront))
	if _, fixed := constant(payload); moved && !fixed {
		if isFrame(end) {
			w.guard(bin(ir.Le, end, num(0xFFFF)), w.went("too_big", "larger than the MTU towards the destination", pos),
				pos)
		}
		payload = &ir.VarRef{Var: w.let(&w.guards, "payload_len", payload, 0xFFFF, pos)}
	}
	rw.Payload = payload
	if !segmentedOnly(w.path) {
		// declined already
	} else if moved {
		w.guards = slices.Concat(w.superPacketsOut(rw, hop, end), w.guards)
	}
	if moved {
		rw.Trim = !isFrame(end)
		w.newLengths(w.hdrs[:kept], newFront, payload, hop != nil, pos)
		if !w.resizeKind(rw, first, kept, pos) {
			return
		}
	}
	unknown := w.each == nil && (moved || w.readdressed())
	if unknown {
		w.unknownPartial(&w.guards, rw, pos)
	}
	sums, ok := w.sums(rw, end)
	if !ok {
		return
	}
	if w.each == nil && !unknown && slices.ContainsFunc(sums, func(s *ir.Sum) bool { return s.Offloaded && !s.Fresh }) {
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
				At: o.off, Len: distance(o.end, o.off), Max: o.old.bytesAtMost(), Empty: mayBeEmpty(o.h),
				Header: o.entry,
				Pos:    o.pos,
			})
		}
	}
	if len(rw.Stores)+len(rw.Blanks)+len(rw.Sums) == 0 && !moved && !rw.PopTag && rw.Priority == nil && rw.Mark == nil {
		rw = nil
	}
	length := bin(ir.Add, num(uint64(newFront.Const-l2)), payload)
	if newFront.Base != nil {
		length = bin(ir.Add, &ir.VarRef{Var: newFront.Base}, length)
	}
	if !moved && net >= 0 {
		n := w.hdrs[net].old
		length = bin(ir.Sub, n.inner, offExpr(n.off))
	}
	if w.each != nil {
		w.copy(rw, hop, length, state, pos)
		return
	}
	f := &ir.Forward{Effects: w.fx.Effects, Rewrite: rw, Hop: hop, Fault: -1, NoRoom: -1, Usage: w.used(), Pos: pos}
	if hop != nil && !moved {
		f.End = w.datagramEnd()
	}
	if f.End != nil && segmentedOnly(w.path) { // to cut something off a GSO packet would make it an ordinary one
		whole := bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, f.End)
		w.guard(or(whole, bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, num(0))), w.superPacket(pos), pos)
	}
	w.keepsField(f.End, pos)
	if rw != nil || f.End != nil || hop != nil && !w.out.L2 {
		f.NoRoom = w.went("no_memory", "the kernel has no memory to change the packet", w.src.Name.Pos)
		f.Fault = w.reason("fault", ir.Fault, "dropped: the kernel failed after the first change", w.src.Name.Pos)
	}
	f.Reason = w.reason("pass", ir.Passed, "", pos)
	emit(w.blk, w.guards...)
	if hop != nil {
		f.Reason = w.reason("sent", ir.Sent, "", pos)
		emit(w.blk, w.checkHop(hop, length, pos))
	}
	emit(w.blk, w.fx.late...)
	if len(f.Admits) > 0 {
		f.After(state)
	} else {
		emit(w.blk, state...)
	}
	emit(w.blk, f)
}

// datagramEnd is where the outermost IP datagram of the packet that came ends, or nil where nothing can follow it.
func (s *scope) datagramEnd() ir.Expr {
	for _, in := range s.path {
		if role(in.h, "destination") != nil && !isFrame(in.inner) {
			return in.inner
		}
	}
	return nil
}

func segmentedOnly(path []*layer) bool {
	return !slices.ContainsFunc(path, func(in *layer) bool { return !in.h.Segmented })
}

func (w *rewriter) checkHop(hop *ir.HopRef, length ir.Expr, pos diag.Pos) *ir.CheckHop {
	c := &ir.CheckHop{
		Hop: hop, Length: length, Pos: pos,
		TooBig: w.went("too_big", "larger than the MTU towards the destination", pos),
	}
	none := w.went("no_route", "no route to the destination", pos)
	c.Reasons = [ir.HopStates]int{
		ir.HopNone: none, ir.HopDirect: -1, ir.HopNeighbour: -1,
		ir.HopLocal:       w.went("local", "the destination is this host", pos),
		ir.HopUnreachable: w.went("unreachable", "the route's type is unreachable", pos),
		ir.HopBlackhole:   w.went("blackhole", "the route's type is blackhole", pos),
		ir.HopProhibit:    w.went("prohibit", "the route's type is prohibit", pos),
		ir.HopXfrm:        w.went("xfrm", "an xfrm (IPsec) policy is for the packet", pos),
		ir.HopRule: w.went("rule",
			"a routing rule asks for a protocol or ports that aren't known when the next hop is found", pos),
	}
	return c
}

// newLengths gives the length fields of headers that leave their values.
func (w *rewriter) newLengths(hdrs []*outHeader, front ir.Off, payload ir.Expr, sent bool, pos diag.Pos) {
	for _, o := range hdrs {
		for _, f := range o.h.Fields {
			k := f.Counts
			if k == nil || (k.What == "header" && o.old != nil) {
				continue
			}
			var bytes ir.Expr
			switch k.What {
			case "header":
				bytes = num(uint64(o.size))
			case "payload":
				bytes = bin(ir.Add, payload, distance(front, o.end))
			default:
				bytes = bin(ir.Add, payload, distance(front, o.off))
			}
			var pl *fieldRef
			if o.old != nil {
				pl = o.old.fields[f.Name.Value]
			}
			fits := func(cond ir.Expr) {
				if pl != nil {
					cond = pl.unlessAbsent(cond)
				}
				w.guard(cond, w.went("length", "a length that doesn't fit its field", f.Name.Pos), pos)
			}
			if k.Unit > 1 {
				fits(bin(ir.Eq, bin(ir.Rem, bytes, num(uint64(k.Unit))), num(0)))
				bytes = bin(ir.Div, bytes, num(uint64(k.Unit)))
			}
			if k.Bias < 0 {
				fits(bin(ir.Ge, bytes, num(uint64(-k.Bias))))
			}
			bytes = bin(ir.Add, bytes, num(uint64(k.Bias)))
			if pl != nil && pl.width != nil {
				fits(bin(ir.Le, bytes, pl.room()))
			} else if !sent || f.Bits < 16 {
				fits(bin(ir.Le, bytes, num(maxOf(f.Bits))))
			}
			o.vals[f.Name.Value] = bytes
		}
		// what is put in after it ends in front of its trailer
		if o.old != nil && o.old == w.path[len(w.path)-1] && o.h.Trailer > 0 {
			payload = bin(ir.Sub, payload, num(uint64(o.h.Trailer)))
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
	for i, pl := range o.old.order {
		if pl.segment >= 0 && (i == 0 || o.old.order[i-1].segment != pl.segment) {
			run := o.old.order[i:]
			if n := slices.IndexFunc(run, func(next *fieldRef) bool { return next.segment != pl.segment }); n >= 0 {
				run = run[:n]
			}
			out = append(out, part(o.h, o.moved(pl.off), run))
		}
	}
	return out
}

// distance is to - from in bytes.
func distance(to, from ir.Off) ir.Expr { return bin(ir.Sub, offExpr(to), offExpr(from)) }

// role returns the field of a header that has a role, or nil.
func role(h *spec.Header, name string) *spec.Field {
	for _, f := range h.Fields {
		if f.Role.Value == name {
			return f
		}
	}
	return nil
}
