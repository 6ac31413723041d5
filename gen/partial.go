package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// A checksum that is left to a device (CHECKSUM_PARTIAL) is completed at a place of the buffer that the kernel
// remembers, over all that follows it. The plan follows the checksums that the stack names. One of a header that it
// doesn't name would end up wrong where what its field holds (the pseudo-header's sum) changes, or in another header's
// bytes where its own header moves. It makes up for what changes after its header, and a complete one in front of it
// must not follow that. Such packets pass to the stack. One that begins after all headers of the stack, as in a tunnel,
// stays where it is while headers move; unless it is cut off with bytes that belong to nothing.

// unknownPartial lets packets pass to the stack that have such a checksum, which a rewrite would spoil.
func (w *rewriter) unknownPartial(blk *[]ir.Stmt, rw *ir.Rewrite, pos diag.Pos) {
	partial := &ir.VarRef{Var: w.p.let(blk, "partial", &ir.Meta{Kind: ir.Partial}, 0, pos)}
	ok := fold.Bin(ir.Eq, partial, fold.Num(0))
	for _, in := range w.s.path {
		if w.header(in) == nil {
			continue // nothing is left to complete it in
		}
		for _, pl := range in.order {
			if k := pl.f.Checksum; k != nil && k.Offloaded {
				ok = fold.Or(ok, fold.Bin(ir.Eq, partial, fold.Bin(ir.Or, fold.Bin(ir.Shl, fold.Off(in.off),
					fold.Num(16)), fold.Off(pl.off))))
			}
		}
	}
	if rw.Resize != ir.MovePayload {
		after := fold.Bin(ir.Ge, fold.Bin(ir.Shr, partial, fold.Num(16)), fold.Off(rw.OldFront))
		if rw.Trim {
			end := fold.Bin(ir.Add, fold.Off(rw.OldFront), rw.Payload)
			after = fold.And(after, fold.Bin(ir.Lt, fold.Bin(ir.And, partial, fold.Num(0xFFFF)), fold.Bin(ir.Sub, end,
				fold.Num(1))))
		}
		ok = fold.Or(ok, after)
	}
	emit(blk, &ir.Guard{Cond: ok, Reason: w.s.partialChecksum(pos), Pos: pos})
}

// cutsAt lets packets pass to the stack that can't be cut off at end, the datagram's: they would lose the field of a
// checksum that is left to a device, or bytes that a header in front of the datagram counts.
func (w *rewriter) cutsAt(end ir.Expr, pos diag.Pos) {
	if end == nil {
		return
	}
	datagram, _ := w.datagram()
	w.counted(w.s.path[:datagram], end, pos)
	field := fold.Bin(ir.And, &ir.Meta{Kind: ir.Partial}, fold.Num(0xFFFF))
	whole := fold.Bin(ir.Le, &ir.Meta{Kind: ir.FrameLen}, end)
	w.guard(fold.Or(whole, fold.Bin(ir.Lt, field, fold.Bin(ir.Sub, end, fold.Num(1)))), w.s.partialChecksum(pos), pos)
}

// counted lets packets pass to the stack in which one of these headers, in front of the datagram, counts bytes after
// its end.
func (w *rewriter) counted(ins []*layer, end ir.Expr, pos diag.Pos) {
	for _, in := range ins {
		if !fold.IsFrame(in.inner) {
			w.guard(fold.Bin(ir.Le, in.inner, end), w.s.paddingHere(pos), pos)
		}
	}
}

func (s *scope) partialChecksum(pos diag.Pos) int {
	return s.p.punted("partial_checksum", "a partial checksum in a header that the stack doesn't name", pos)
}

// readdressed reports whether the packet's addresses change.
func (w *rewriter) readdressed() bool {
	return slices.ContainsFunc(w.hdrs, func(o *outHeader) bool {
		for _, name := range []string{"source", "destination"} {
			if f := role(o.h, name); f != nil && o.vals[f.Name.Value] != nil {
				return true
			}
		}
		return false
	})
}

// superPackets returns the guard against GSO packets that the path can't take: nil where it takes all. The kernel cuts
// them into segments, and repeats in front of each the headers up to the transport header; of a tunnel, up to the inner
// one's.
func (s *scope) superPackets(pos diag.Pos) ir.Stmt {
	transports, own := 0, false
	for _, in := range s.path {
		switch {
		case !in.h.Segmented || transports > 1:
			return s.ordinary(pos)
		case !in.h.Std:
			own = true
		case slices.ContainsFunc(in.order, func(pl *fieldRef) bool {
			return pl.f.Checksum != nil && pl.f.Checksum.Offloaded
		}):
			transports++
		}
	}
	if !own && transports < 2 {
		return nil
	}
	g := s.ordinary(pos).(*ir.Guard)
	g.Cond = fold.Or(g.Cond, &ir.Meta{Kind: ir.Encapsulated})
	return g
}
