package stack

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass emits what the network stack would look at in a packet that comes in: whom the frame is for (ip_rcv drops
// PACKET_OTHERHOST), whether the header's checksum is right, and whether the addresses can be those of two hosts
// (martians). At tc/egress the stack itself made the packet. Of several IP headers the addresses of the outermost one
// count; those of another one do when it becomes the outermost of a packet that is sent.

// forHost lets frames pass to the stack that are not for this host. Of a program that takes multicast, broadcasts and
// multicasts are looked at again when the destination in the IP header is known.
func forHost(p *draft.Program, blk *[]ir.Stmt) {
	if !p.Ingress() || !p.Out.L2 {
		return
	}
	pos := p.Src.HookPos
	if p.Src.Multicast {
		draft.Emit(blk, notOther(p, pos))
		return
	}
	branch := &ir.If{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToHost)), Pos: pos,
		Note: "not for this host"}
	draft.Emit(&branch.Then, notOther(p, pos))
	groupFrame(p, &branch.Then, pos)
	draft.Emit(blk, branch)
}

func notOther(p *draft.Program, pos diag.Pos) ir.Stmt {
	other := p.Punted("other_host", "a frame for another host", pos)
	return &ir.Guard{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToOther)), Reason: other, Pos: pos}
}

// groupFrame lets a broadcast or multicast pass to the stack.
func groupFrame(p *draft.Program, blk *[]ir.Stmt, pos diag.Pos) {
	broadcast := p.Punted("link_broadcast", "a link-layer broadcast", pos)
	draft.Emit(blk, &ir.Guard{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToBroadcast)),
		Reason: broadcast,
		Pos:    pos},
		&ir.Punt{Reason: p.Punted("link_multicast", "a link-layer multicast", pos), Pos: pos})
}

// received looks at a header as the stack would that receives it. path has the headers in front of it.
func received(p *draft.Program, in *draft.Header, path []*draft.Header, blk *[]ir.Stmt) {
	if !p.Ingress() {
		return
	}
	verified(p, in, blk)
	outer := !slices.ContainsFunc(path, func(in *draft.Header) bool { return in.Address("destination") != nil })
	src, dst := in.Address("source"), in.Address("destination")
	if !outer || dst == nil {
		return
	}
	if src != nil {
		draft.Emit(blk, &ir.Guard{
			Cond: &ir.Unicast{X: src.Load}, Reason: draft.MartianSource(p, src.Decl.Name.Pos), Pos: src.Decl.Name.Pos,
		})
		in.Unicast = append(in.Unicast, src)
	}
	pos := dst.Decl.Name.Pos
	if !p.Src.Multicast {
		unicastTo(p, dst.Load, blk, pos)
		in.Unicast = append(in.Unicast, dst)
		return
	}
	branch := &ir.If{Cond: &ir.Unicast{X: dst.Load}, Pos: pos, Note: "a unicast destination"}
	if p.Out.L2 {
		link := &ir.If{
			Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToHost)), Pos: pos,
			Note: "in a broadcast or multicast frame",
		}
		groupFrame(p, &link.Then, pos)
		draft.Emit(&branch.Then, link)
	}
	draft.Emit(&branch.Else, &ir.Guard{Cond: &ir.Multicast{X: dst.Load}, Reason: draft.MartianDestination(p, pos),
		Pos: pos})
	draft.Emit(blk, branch)
}

// verified looks at the checksums that ask for it.
func verified(p *draft.Program, in *draft.Header, blk *[]ir.Stmt) {
	for _, pl := range in.Order {
		if k := pl.Decl.Checksum; k != nil && k.Verify {
			draft.Emit(blk, &ir.Guard{
				Cond: in.SumOK(), Reason: draft.WrongSum(p, in.Decl, pl.Decl), Pos: pl.Decl.Name.Pos,
			})
			in.Verified = true
		}
	}
}

// unicastTo lets packets pass to the stack whose destination isn't a single host.
func unicastTo(p *draft.Program, dst ir.Expr, blk *[]ir.Stmt, pos diag.Pos) {
	branch := &ir.If{Cond: fold.Not(&ir.Unicast{X: dst}), Pos: pos, Note: "not a host's"}
	draft.Emit(&branch.Then, &ir.Guard{Cond: fold.Not(&ir.Multicast{X: dst}), Reason: draft.Multicast(p, pos),
		Pos: pos},
		&ir.Punt{Reason: draft.MartianDestination(p, pos), Pos: pos})
	draft.Emit(blk, branch)
}
