package draft

import (
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// impossible says why a value is unfit.
const Impossible = "would get a value that it can't have"

// WrongSum is the reason of packets with a wrong checksum in a header.
func WrongSum(p *Program, h *spec.Header, f *spec.Field) int {
	return p.Punted(h.Name.Value+"_"+f.Name.Value, h.Name.Value+": "+f.Name.Value+" is wrong", f.Name.Pos)
}

// MartianSource is the reason of packets whose source is no host.
func MartianSource(p *Program, pos diag.Pos) int {
	return p.Punted("martian_source", "a source that no other host has: unspecified, loopback, multicast or broadcast",
		pos)
}

// Multicast is the reason of packets for several hosts.
func Multicast(p *Program, pos diag.Pos) int {
	return p.Punted("multicast", "a multicast or broadcast destination", pos)
}

// MartianDestination is the reason of packets whose destination is no host.
func MartianDestination(p *Program, pos diag.Pos) int {
	return p.Punted("martian_destination", "a destination that no other host has: unspecified or loopback", pos)
}

// Ordinary declines GSO packets.
func Ordinary(p *Program, pos diag.Pos) ir.Stmt {
	return &ir.Guard{Cond: fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0)), Reason: p.SuperPacket(pos),
		Pos: pos}
}
