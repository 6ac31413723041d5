package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds out which GSO packets may get other headers. The kernel repeats headers in front of each segment up
// to the transport header, and up to the inner one where it knows that they are a tunnel's: then it fits the lengths of
// the outer IP header and of UDP, and computes what the inner headers have. So a rule may put in front of all that came
// an IP header; or IP, UDP without a checksum, and headers that are the same in front of each segment (segmented) and
// count nothing. A checksum of UDP would be the kernel's business, too, but a program can't tell it to make one.

// superPacketsOut returns the checks that a rewrite of another size needs in front of all others, and notes in it which
// tunnel the GSO packets enter that pass them.
func (w *Packet) superPacketsOut(rw *ir.Rewrite, hop *ir.HopRef, end ir.Expr) (guards []ir.Stmt) {
	pos, single := rw.Pos, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))
	rw.Encap = w.encap()
	if rw.Encap == nil || hop == nil {
		rw.Encap = nil
		return []ir.Stmt{draft.Ordinary(w.Program, pos)}
	}
	front := &ir.VarRef{Var: w.Program.Let(&guards, "segment_front", &ir.Meta{Kind: ir.SegmentFront}, 0, pos)}
	grows := uint64(rw.NewFront.Const - rw.OldFront.Const)
	largest := 0xFFFF + uint64(rw.L2) - grows // the headers in front say how long all of it is, in 16 bits
	cond := fold.And(fold.Bin(ir.Ne, front, fold.Num(0)), fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen},
		fold.Num(largest)))
	if !fold.IsFrame(end) { // to cut something off a GSO packet would make it an ordinary one
		cond = fold.And(cond, fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, end))
	}
	draft.Emit(&guards, &ir.Guard{Cond: fold.Or(single, cond), Reason: w.Program.SuperPacket(pos), Pos: pos})
	rw.Encap.Front = fold.Bin(ir.Add, front, fold.Num(grows-uint64(rw.L2)))
	return guards
}

// encap is the tunnel whose headers are put in front of all that came, where the kernel can cut such packets; or nil.
func (w *Packet) encap() *ir.Encap {
	at := slices.IndexFunc(w.hdrs, func(o *Header) bool { return o.index < 0 })
	switch {
	case at < 0 || w.popInner || w.Scope.Each != nil || SuperPackets(w.Scope, w.pos) != nil:
		return nil
	case len(w.Effects.Allocs) > 0: // a number is for one packet
		return nil
	}
	n := at + slices.IndexFunc(w.hdrs[at:], func(o *Header) bool { return o.index >= 0 })
	if n < at || !w.unchanged(slices.Concat(w.hdrs[:at], w.hdrs[n:])) {
		return nil
	}
	outside, inside := w.hdrs[at:n], w.hdrs[n]
	ip := outside[0]
	if !isIP(ip.h) || !isIP(inside.h) || w.Program.Out.L2 != (at == 1) {
		return nil
	}
	e := &ir.Encap{Family: 4}
	if Role(ip.h, "destination").Bytes == 16 {
		e.Family = 6
	}
	if len(outside) == 1 {
		if !says(ip, inside) {
			return nil
		}
		return e
	}
	udp := outside[1]
	sum := SumOver(udp.h)
	if !udp.h.Std || udp.h.Name.Value != "udp" || !says(ip, udp) || !w.noSum(at+1, udp, sum) {
		return nil
	}
	e.UDP = true
	for _, o := range outside[2:] {
		if !o.h.Segmented || slices.ContainsFunc(o.h.Fields, func(f *spec.Field) bool {
			return f.Counts != nil || f.Checksum != nil
		}) {
			return nil
		}
	}
	last := outside[len(outside)-1]
	e.Ethernet = last.h.Std && last.h.Name.Value == "eth" && says(last, inside)
	return e
}

// unchanged reports whether headers are those that came, all of them.
func (w *Packet) unchanged(hdrs []*Header) bool {
	came := slices.DeleteFunc(slices.Clone(w.Scope.Path), func(in *draft.Header) bool { return in.Meta })
	return slices.EqualFunc(hdrs, came, func(o *Header, in *draft.Header) bool { return o.old == in })
}

// says reports whether a header that is put in says what is after it: the kernel goes by that.
func says(o, next *Header) bool {
	found := false
	for _, f := range o.h.Fields {
		want := announced(o.h, next.h, f)
		if want == nil {
			continue
		}
		is, known := fold.Constant(o.vals[f.Name.Value])
		if x, _ := fold.Constant(want); !known || is != x {
			return false
		}
		found = true
	}
	return found
}
