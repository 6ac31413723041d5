package gen

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass emits what the network stack would look at in a packet that comes in: whom the frame is for (ip_rcv drops
// PACKET_OTHERHOST), whether the header's checksum is right, and whether the addresses can be those of two hosts
// (martians). At tc/egress the stack itself made the packet. Of several IP headers the addresses of the outermost one
// count; those of another one do when it becomes the outermost of a packet that is sent.

func (p *program) ingress() bool { return p.src.Hook == "tc/ingress" }

// forHost lets frames pass to the stack that are not for this host. Of a program that takes multicast, broadcasts and
// multicasts are looked at again when the destination in the IP header is known.
func (p *program) forHost(blk *[]ir.Stmt) {
	if !p.ingress() || !p.out.L2 {
		return
	}
	pos := p.src.HookPos
	if p.src.Multicast {
		emit(blk, p.notOther(pos))
		return
	}
	branch := &ir.If{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToHost)), Pos: pos,
		Note: "not for this host"}
	emit(&branch.Then, p.notOther(pos))
	p.group(&branch.Then, pos)
	emit(blk, branch)
}

func (p *program) notOther(pos diag.Pos) ir.Stmt {
	other := p.punted("other_host", "a frame for another host", pos)
	return &ir.Guard{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToOther)), Reason: other, Pos: pos}
}

// group lets a broadcast or multicast pass to the stack.
func (p *program) group(blk *[]ir.Stmt, pos diag.Pos) {
	broadcast := p.punted("link_broadcast", "a link-layer broadcast", pos)
	emit(blk, &ir.Guard{Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToBroadcast)), Reason: broadcast,
		Pos: pos},
		&ir.Up{Reason: p.punted("link_multicast", "a link-layer multicast", pos), Pos: pos})
}

// received looks at a header as the stack would that receives it. path has the headers in front of it.
func (p *program) received(in *layer, path []*layer, blk *[]ir.Stmt) {
	if !p.ingress() {
		return
	}
	p.verified(in, blk)
	outer := !slices.ContainsFunc(path, func(in *layer) bool { return in.address("destination") != nil })
	src, dst := in.address("source"), in.address("destination")
	if !outer || dst == nil {
		return
	}
	if src != nil {
		emit(blk, &ir.Guard{
			Cond: &ir.Unicast{X: src.load}, Reason: p.martianSource(src.f.Name.Pos), Pos: src.f.Name.Pos,
		})
		in.unicast = append(in.unicast, src)
	}
	pos := dst.f.Name.Pos
	if !p.src.Multicast {
		p.unicastTo(dst.load, blk, pos)
		in.unicast = append(in.unicast, dst)
		return
	}
	branch := &ir.If{Cond: &ir.Unicast{X: dst.load}, Pos: pos, Note: "a unicast destination"}
	if p.out.L2 {
		link := &ir.If{
			Cond: fold.Bin(ir.Ne, &ir.Meta{Kind: ir.LinkType}, fold.Num(ir.ToHost)), Pos: pos,
			Note: "in a broadcast or multicast frame",
		}
		p.group(&link.Then, pos)
		emit(&branch.Then, link)
	}
	emit(&branch.Else, &ir.Guard{Cond: &ir.Multicast{X: dst.load}, Reason: p.martianDestination(pos), Pos: pos})
	emit(blk, branch)
}

// verified looks at the checksums that ask for it.
func (p *program) verified(in *layer, blk *[]ir.Stmt) {
	for _, pl := range in.order {
		if k := pl.f.Checksum; k != nil && k.Verify {
			emit(blk, &ir.Guard{
				Cond: in.sumOK(), Reason: p.wrongSum(in.h, pl.f), Pos: pl.f.Name.Pos,
			})
			in.verified = true
		}
	}
}

// sumOK holds where the checksum of a header, which covers nothing else, is right.
func (in *layer) sumOK() *ir.SumOK {
	if in.size >= 0 {
		return &ir.SumOK{Off: in.off, Len: in.size}
	}
	return &ir.SumOK{Off: in.off, Len: in.h.MaxBytes(), Size: fold.Distance(in.end, in.off)}
}

func (p *program) wrongSum(h *spec.Header, f *spec.Field) int {
	return p.punted(h.Name.Value+"_"+f.Name.Value, h.Name.Value+": "+f.Name.Value+" is wrong", f.Name.Pos)
}

func (p *program) martianSource(pos diag.Pos) int {
	return p.punted("martian_source", "a source that no other host has: unspecified, loopback, multicast or broadcast",
		pos)
}

func (p *program) multicast(pos diag.Pos) int {
	return p.punted("multicast", "a multicast or broadcast destination", pos)
}

func (p *program) martianDestination(pos diag.Pos) int {
	return p.punted("martian_destination", "a destination that no other host has: unspecified or loopback", pos)
}

// unicastTo lets packets pass to the stack whose destination isn't a single host.
func (p *program) unicastTo(dst ir.Expr, blk *[]ir.Stmt, pos diag.Pos) {
	branch := &ir.If{Cond: fold.Not(&ir.Unicast{X: dst}), Pos: pos, Note: "not a host's"}
	emit(&branch.Then, &ir.Guard{Cond: fold.Not(&ir.Multicast{X: dst}), Reason: p.multicast(pos), Pos: pos},
		&ir.Up{Reason: p.martianDestination(pos), Pos: pos})
	emit(blk, branch)
}

// address returns the address of an IP header that has a role, or nil.
func (in *layer) address(role string) *fieldRef {
	for _, pl := range in.order {
		if pl.f.Role.Value == role && pl.f.Type == "ip" {
			return pl
		}
	}
	return nil
}

// knownUnicast reports whether an expression is an address of the packet that is known to be a host's.
func (s *scope) knownUnicast(x ir.Expr) bool {
	l, ok := x.(*ir.LoadBytes)
	return ok && slices.ContainsFunc(s.path, func(in *layer) bool {
		return slices.ContainsFunc(in.unicast, func(pl *fieldRef) bool { return pl.off == l.Off })
	})
}

// canLeave makes sure of the addresses of a packet that is sent, as far as no one has: user space looks at the
// addresses that it finds the hop of, but what the packet itself says, or another row or setting, may be anything.
func (w *rewriter) canLeave(src, dst ir.Expr, hop *ir.HopRef, pos diag.Pos) {
	if x := w.unknown(src, hop, pos); x != nil {
		w.guard(&ir.Unicast{X: x}, w.p.martianSource(pos), pos)
	}
	if x := w.unknown(dst, hop, pos); x != nil {
		w.guard(fold.Not(&ir.Multicast{X: x}), w.p.multicast(pos), pos)
		w.guard(&ir.Unicast{X: x}, w.p.martianDestination(pos), pos)
	}
}

// unknown returns an address that may be no host's, or nil where it is one's.
func (w *rewriter) unknown(x ir.Expr, hop *ir.HopRef, pos diag.Pos) ir.Expr {
	switch x := x.(type) {
	case *ir.LoadBytes:
		if w.s.knownUnicast(x) {
			return nil
		}
	case *ir.RowMember:
		if hop.Row == x.Row && (hop.Member.From == x.Member || hop.Member.To == x.Member) {
			return nil
		}
	case *ir.BytesConst:
		return nil
	case *ir.SettingRef:
		return &ir.VarRef{Var: w.p.let(&w.guards, x.Setting.Name, x, 0, pos)}
	}
	return x
}
