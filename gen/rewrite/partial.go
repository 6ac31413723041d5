package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// A checksum that is left to a device (CHECKSUM_PARTIAL) is completed at a place of the buffer that the kernel
// remembers, over all that follows it. The plan follows the checksums that the stack names. One of a header that it
// doesn't name would end up wrong if what its field holds (the pseudo-header's sum) changes, or in another header's
// bytes where its own header moves. It makes up for what changes after its header, and a complete one in front of it
// must not follow that. Such packets pass to the stack. One that begins after all headers of the stack, as in a tunnel,
// stays where it is while headers move; unless it is cut off with bytes that belong to nothing, or a complete one in
// front of it is freed of such bytes, which it covers, too: then its value makes up for them.

// unknownPartial lets packets pass to the stack that have such a checksum, which a rewrite would spoil.
func (r *rewriter) unknownPartial(blk *[]ir.Stmt, rw *ir.Rewrite, pos diag.Pos) {
	partial := &ir.VarRef{Var: r.p.Program.Let(blk, "partial", &ir.Meta{Kind: ir.Partial}, 0, pos)}
	ok := fold.Bin(ir.Eq, partial, fold.Num(0))
	for _, in := range r.p.Scope.Path {
		if r.p.Header(in) == nil {
			continue // nothing is left to complete it in
		}
		for _, pl := range in.Order {
			if k := pl.Decl.Checksum; k != nil && k.Offloaded {
				ok = fold.Or(ok, fold.Bin(ir.Eq, partial, fold.Bin(ir.Or, fold.Bin(ir.Shl, fold.Off(in.Off),
					fold.Num(16)), fold.Off(pl.Off))))
			}
		}
	}
	if rw.Resize != ir.MovePayload && !slices.ContainsFunc(rw.Sums, func(s *ir.Sum) bool { return s.Tail }) {
		after := fold.Bin(ir.Ge, fold.Bin(ir.Shr, partial, fold.Num(16)), fold.Off(rw.OldFront))
		if rw.Trim {
			end := fold.Bin(ir.Add, fold.Off(rw.OldFront), rw.Payload)
			after = fold.And(after, fold.Bin(ir.Lt, fold.Bin(ir.And, partial, fold.Num(0xFFFF)), fold.Bin(ir.Sub, end,
				fold.Num(1))))
		}
		ok = fold.Or(ok, after)
	}
	draft.Emit(blk, &ir.Guard{Cond: ok, Reason: partialChecksum(r.p.Scope, pos), Pos: pos})
}

// cutsAt lets packets pass to the stack that can't be cut off at end, the datagram's: they would lose the field of a
// checksum that is left to a device, or bytes that a header in front of the datagram counts.
func (r *rewriter) cutsAt(end ir.Expr, pos diag.Pos) {
	if end == nil {
		return
	}
	datagram, _ := r.datagram()
	r.counted(r.p.Scope.Path[:datagram], end, pos)
	field := fold.Bin(ir.And, &ir.Meta{Kind: ir.Partial}, fold.Num(0xFFFF))
	whole := fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, end)
	stays := fold.Bin(ir.Lt, field, fold.Bin(ir.Sub, end, fold.Num(1)))
	r.p.Guard(fold.Or(whole, stays), partialChecksum(r.p.Scope, pos), pos)
}

// counted lets packets pass to the stack in which one of these headers, in front of the datagram, counts bytes after
// its end, or has them in its checksum.
func (r *rewriter) counted(ins []*draft.Header, end ir.Expr, pos diag.Pos) {
	for _, in := range ins {
		counts := slices.ContainsFunc(in.Order, func(pl *draft.Field) bool {
			return pl.Decl.Counts != nil && pl.Decl.Counts.What != "header"
		})
		if counts || !fold.IsFrame(in.Inner) || edit.SumOver(in.Decl) != nil {
			r.p.Guard(fold.Bin(ir.Le, in.Inner, end), paddingHere(r.p.Scope, pos), pos)
		}
	}
}

func partialChecksum(s *expr.Scope, pos diag.Pos) int {
	return s.Program.Punted("partial_checksum", "a partial checksum in a header that the stack doesn't name", pos)
}

// readdressed reports whether the packet's addresses change.
func (r *rewriter) readdressed() bool {
	return slices.ContainsFunc(r.headers, func(o *header) bool {
		for _, name := range []string{"source", "destination"} {
			if f := draft.Role(o.Decl, name); f != nil && o.Values[f.Name.Value] != nil {
				return true
			}
		}
		return false
	})
}

// SuperPackets returns the guard against GSO packets that the path can't take: nil if it takes all. The kernel cuts
// them into segments, and repeats in front of each the headers up to the transport header; of a tunnel, up to the inner
// one's.
func SuperPackets(s *expr.Scope, pos diag.Pos) ir.Stmt {
	transports, own := 0, false
	for _, in := range s.Path {
		switch {
		case !in.Decl.Segmented || transports > 1:
			return draft.Ordinary(s.Program, pos)
		case !in.Decl.Std:
			own = true
		case slices.ContainsFunc(in.Order, func(pl *draft.Field) bool {
			return pl.Decl.Checksum != nil && pl.Decl.Checksum.Offloaded
		}):
			transports++
		}
	}
	if !own && transports < 2 {
		return nil
	}
	g := draft.Ordinary(s.Program, pos).(*ir.Guard)
	g.Cond = fold.Or(g.Cond, &ir.Meta{Kind: ir.Encapsulated})
	return g
}
