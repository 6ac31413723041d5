package bpf

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Headers of variable size all bytes of which get other values: helpers of the kernel write them, since only they take
// a size that packets give.

// zeros is how many of them a program puts in place of a header at most, as a power of two.
func zeros(p *ir.Plan) (n int) {
	for s := range ir.AllStmts(p) {
		if rw := ir.RewriteOf(s); rw != nil {
			for _, f := range rw.Filled {
				n = max(n, roomOf(f.Max))
			}
		}
	}
	return n
}

// roomOf is the smallest power of two that is at least n.
func roomOf(n int) int { return 1 << bits.Len(uint(n-1)) }

// unlessEmpty renders a call for a header that has bytes.
func (w *writer) unlessEmpty(f ir.Filled, call c.Expr) c.Expr {
	if !f.Empty {
		return call
	}
	return c.Join("&&", w.expr(f.Len), call)
}

// filling is the call that fills a header.
func (w *writer) filling(f ir.Filled) c.Expr {
	return w.unlessEmpty(f, c.Do("fr_blank", skb, w.offset(f.At), w.expr(f.Len)))
}

// unshift puts the sum of the device right after room of an odd size was made or closed, in front of helpers that
// change it.
func (w *writer) unshift(shifted c.Expr) {
	w.gap()
	w.define(noPos, "__s64", deviceSum, c.Do("bpf_csum_update", skb, c.Num(0)))
	w.when(noPos, c.Join("&&", isSummed(deviceSum), shifted), func() {
		w.do(noPos, "fr_complete", skb, c.Do("fr_complete_shifted", deviceSum), c.Num(0), c.Num(0))
	})
}

// deviceSum is the sum of the device before headers are filled.
const deviceSum = c.Ident("device_csum")

// fill renders how headers are filled.
func (w *writer) fill() {
	for i, f := range w.rw.Filled {
		if i == 0 {
			w.gap()
		}
		w.failIf(w.filling(f))
		w.changed, w.moves, w.checked = true, true, 0
	}
}

// fill returns the calls that fill headers of a copy, and those that put back what only other copies fill; and the sum
// of the device without the bytes that copies change, and without what the copy fills.
func (n *fan) fill(w *writer) (calls []c.Expr, sum c.Expr) {
	for _, made := range n.all {
		if made.Rewrite == nil {
			continue
		}
		for _, f := range made.Rewrite.Filled {
			if !slices.ContainsFunc(n.filled, func(k ir.Filled) bool { return k.At == f.At }) {
				n.filled = append(n.filled, f)
			}
		}
	}
	sum = c.To(same, "csum")
	without := c.Expr(c.Binary{Op: "+", X: zero, Y: sum})
	for i, f := range n.filled {
		if slices.ContainsFunc(w.rw.Filled, func(own ir.Filled) bool { return own.At == f.At }) {
			calls = append(calls, w.filling(f))
			without = c.Binary{Op: "-", X: without, Y: n.keep("__u32", filledSum(i), c.Num(0))}
			sum = c.Do("fr_fold", without)
			continue
		}
		room := roomOf(f.Max)
		w.holds(f.At.Plus(room))
		call := c.Do("fr_put_back", skb, w.offset(f.At), w.ptr(f.At), w.expr(f.Len), c.Dec(room))
		calls = append(calls, w.unlessEmpty(f, call))
	}
	return calls, sum
}

// filledSum is the name of what the bytes of the i-th header that copies fill add to the sum of the device.
func filledSum(i int) string { return fmt.Sprint("zeroed", i) }

// countFilled computes these sums in front of the loop.
func (n *fan) countFilled() {
	w := n.pre
	for i, f := range n.filled {
		at := w.offset(f.At)
		counted := c.Do("fr_counted", at, c.Do(w.sumOf(f.Max), skb, at, w.expr(f.Len)))
		w.assign(noPos, c.To(same, filledSum(i)), counted)
	}
}
