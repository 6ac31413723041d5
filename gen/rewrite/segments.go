package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds out which GSO packets may get other headers. The kernel repeats headers in front of each segment up
// to the transport header, and up to the inner one if it knows that they are a tunnel's: then it fits the lengths of
// the outer IP header and of UDP, and computes what the inner headers have. So a rule may put in front of all that came
// an IP header; or IP, UDP without a checksum, and headers that are the same in front of each segment (segmented) and
// count nothing. A checksum of UDP would be the kernel's business, too, but a program can't tell it to make one.

// superPacketsOut returns the checks that a rewrite of another size needs in front of all others, and notes in it which
// tunnel the GSO packets enter that pass them.
func (r *rewriter) superPacketsOut(rw *ir.Rewrite, hop *ir.HopRef, end ir.Expr) (guards []ir.Stmt) {
	pos, single := rw.Pos, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))
	rw.Encap = r.encap()
	if rw.Encap == nil || hop == nil {
		rw.Encap = nil
		return []ir.Stmt{draft.Ordinary(r.p.Program, pos)}
	}
	front := &ir.VarRef{Var: r.p.Program.Let(&guards, "segment_front", &ir.Meta{Kind: ir.SegmentFront}, 0, pos)}
	grows := uint64(rw.NewFront.Const - rw.OldFront.Const)
	largest := 0xFFFF + uint64(rw.L2) - grows // the headers in front say how long all of it is, in 16 bits
	cond := fold.And(fold.Bin(ir.Ne, front, fold.Num(0)), fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen},
		fold.Num(largest)))
	if !fold.IsFrame(end) { // to cut something off a GSO packet would make it an ordinary one
		cond = fold.And(cond, fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, end))
	}
	draft.Emit(&guards, &ir.Guard{Cond: fold.Or(single, cond), Reason: r.p.Program.SuperPacket(pos), Pos: pos})
	rw.Encap.Front = fold.Bin(ir.Add, front, fold.Num(grows-uint64(rw.L2)))
	return guards
}

// encap is the tunnel whose headers are put in front of all that came, if the kernel can cut such packets; or nil.
func (r *rewriter) encap() *ir.Encap {
	at := slices.IndexFunc(r.headers, func(o *header) bool { return o.Index < 0 })
	switch {
	case at < 0 || r.p.PopInner || r.p.Scope.Each != nil || SuperPackets(r.p.Scope, r.p.Pos) != nil:
		return nil
	case len(r.p.Effects.Allocs) > 0: // a number is for one packet
		return nil
	}
	n := at + slices.IndexFunc(r.headers[at:], func(o *header) bool { return o.Index >= 0 })
	if n < at || !r.unchanged(slices.Concat(r.headers[:at], r.headers[n:])) {
		return nil
	}
	outside, inside := r.headers[at:n], r.headers[n]
	ip := outside[0]
	if !edit.IsIP(ip.Decl) || !edit.IsIP(inside.Decl) || r.p.Program.Out.L2 != (at == 1) {
		return nil
	}
	e := &ir.Encap{Family: 4}
	if draft.Role(ip.Decl, "destination").Bytes == 16 {
		e.Family = 6
	}
	if len(outside) == 1 {
		if !says(ip, inside) {
			return nil
		}
		return e
	}
	udp := outside[1]
	sum := edit.SumOver(udp.Decl)
	if !udp.Decl.Std || udp.Decl.Name.Value != "udp" || !says(ip, udp) || !r.noSum(at+1, udp, sum) {
		return nil
	}
	e.UDP = true
	for _, o := range outside[2:] {
		if !o.Decl.Segmented || slices.ContainsFunc(o.Decl.Fields, func(f *spec.Field) bool {
			return f.Counts != nil || f.Checksum != nil
		}) {
			return nil
		}
	}
	last := outside[len(outside)-1]
	e.Ethernet = last.Decl.Std && last.Decl.Name.Value == "eth" && says(last, inside)
	return e
}

// unchanged reports whether headers are those that came, all of them.
func (r *rewriter) unchanged(hdrs []*header) bool {
	received := slices.DeleteFunc(slices.Clone(r.p.Scope.Path), func(in *draft.Header) bool { return in.Meta })
	return slices.EqualFunc(hdrs, received, func(o *header, in *draft.Header) bool { return o.Old == in })
}

// says reports whether a header that is put in says what is after it: the kernel goes by that.
func says(o, next *header) bool {
	found := false
	for _, f := range o.Decl.Fields {
		want := edit.Announced(o.Decl, next.Decl, f)
		if want == nil {
			continue
		}
		is, known := fold.Constant(o.Values[f.Name.Value])
		if x, _ := fold.Constant(want); !known || is != x {
			return false
		}
		found = true
	}
	return found
}
