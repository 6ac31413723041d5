package bpf

import (
	"fmt"
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Bounds: the checks that the verifier wants in front of each access to the packet.

// need makes sure of the bytes up to an offset.
func (f *function) need(end ir.Off, reason string, pos diag.Pos) {
	if f.fan != nil {
		f.holds(end)
		return
	}
	if end.Base != nil && f.pointer(end.Base, reason, pos) {
		f.known.bytes[end.Base] = 0
	}
	if cond := f.missing(end); cond != "" {
		f.stopIf(pos, cond, nil, f.upFor(reason))
	}
}

// missing is the condition that the packet ends before an offset; "": it is known not to. From now on it is.
func (f *function) missing(end ir.Off) string {
	have, ok := f.known.bytes[end.Base]
	if ok && have >= end.Const && end.Const > 0 {
		return ""
	}
	f.usesData()
	f.dataEnd = true
	at := f.after(end)
	if at == "" {
		at = f.raw(end)
	}
	f.known.bytes[end.Base] = max(end.Const, have)
	return at + " > data_end"
}

// pointer makes the pointer to a variable offset, unless it is there; it reports whether it did.
func (f *function) pointer(v *ir.Var, reason string, pos diag.Pos) bool {
	if _, ok := f.known.bytes[v]; ok || f.fan != nil {
		return false
	}
	limit := v.Max
	if limit == 0 || limit > 0x7FFF {
		limit = 0x7FFF
		f.stopIf(pos, f.variable(v)+" > 0x7fff", nil, fmt.Sprintf("return fr_up(skb, %s);", reason))
	}
	f.pointerAt(v, limit, pos)
	return true
}

// pointerTo makes the pointer to a variable offset that was in bounds before.
func (f *function) pointerTo(v *ir.Var) {
	limit := v.Max
	if limit == 0 || limit > 0x7FFF {
		limit = 0x7FFF
	}
	f.pointerAt(v, limit, diag.Pos{})
}

func (f *function) pointerAt(v *ir.Var, limit uint64, pos diag.Pos) {
	f.usesData()
	at := f.variable(v)
	if n := f.lowered[v]; n > 0 {
		at += fmt.Sprintf(" - %d", n)
	}
	f.stmt(pos, "%s = fr_pin(data + fr_bound(%s, 0x%x));", f.base(v), at, uint64(1)<<bits.Len64(limit)-1)
	f.pointsTo(v, f.scope...)
}

// cover adds the checks that the verifier needs for the loads of what stands in a statement, where
// it can't follow the plan.
func (f *function) cover(pos diag.Pos, nodes ...ir.Node) {
	for _, n := range nodes {
		for e := range ir.Exprs(n) {
			switch e.(type) {
			case *ir.Load, *ir.LoadBytes, *ir.SumOK:
				for at, size := range ir.Offsets(e) {
					f.need(plus(at, size), f.reason, pos)
				}
			}
		}
	}
}
