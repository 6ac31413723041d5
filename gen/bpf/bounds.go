package bpf

import (
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Bounds: the checks that the verifier wants in front of each access to the packet.

// exceeds compares two numbers, or two pointers.
func exceeds(x, y c.Expr) c.Expr { return c.Binary{Op: ">", X: x, Y: y} }

// pinned is a pointer to an offset of at most limit bytes after another one, which clang must not compute anew.
func pinned(from, off c.Expr, limit uint64) c.Expr {
	mask := c.Number{V: uint64(1)<<bits.Len64(limit) - 1, Form: c.Hex}
	return c.Do("fr_pin", c.Binary{Op: "+", X: from, Y: c.Do("fr_bound", off, mask)})
}

// need makes sure of the bytes up to an offset.
func (f *function) need(end ir.Off, reason int, pos diag.Pos) {
	if f.fan != nil {
		f.holds(end)
		return
	}
	if end.Base != nil && f.pointer(end.Base, reason, pos) {
		f.known.bytes[end.Base] = 0
	}
	if cond := f.missing(end); cond != nil {
		f.stopIf(pos, cond, nil, f.puntFor(reason))
	}
}

// missing is the condition that the packet ends before an offset; nil: it is known not to. From now on it is.
func (f *function) missing(end ir.Off) c.Expr {
	have, ok := f.known.bytes[end.Base]
	if ok && have >= end.Const && end.Const > 0 {
		return nil
	}
	at := f.after(end)
	if at == nil {
		at = f.raw(end)
	}
	f.known.bytes[end.Base] = max(end.Const, have)
	return exceeds(at, dataEnd)
}

// pointer makes the pointer to a variable offset, unless it is there; it reports whether it did.
func (f *function) pointer(v *ir.Var, reason int, pos diag.Pos) bool {
	if _, ok := f.known.bytes[v]; ok || f.fan != nil {
		return false
	}
	limit := v.Max
	if limit == 0 || limit > 0x7FFF {
		limit = 0x7FFF
		f.stopIf(pos, exceeds(f.variable(v), c.Num(0x7fff)), nil, f.puntFor(reason))
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
	f.pointerAt(v, limit, noPos)
}

func (f *function) pointerAt(v *ir.Var, limit uint64, pos diag.Pos) {
	off := c.Plus(f.variable(v), -f.lowered[v])
	f.assign(pos, f.base(v), pinned(data, off, limit))
	f.pointsTo(v, f.scope...)
}

// cover adds the checks that the verifier needs for the loads of what stands in a statement, if
// it can't follow the plan.
func (f *function) cover(pos diag.Pos, nodes ...ir.Node) {
	for _, n := range nodes {
		for e := range ir.Exprs(n) {
			switch e.(type) {
			case *ir.Load, *ir.LoadBytes, *ir.SumOK:
				for at, size := range ir.Offsets(e) {
					f.need(at.Plus(size), f.reason, pos)
				}
			}
		}
	}
}
