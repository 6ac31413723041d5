package fuzz_test

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// congestionFaults are faults in programs that run on a socket. Those of what the kernel makes of their decisions are
// planted by TestCongestionFaults of package gen/bpf.
var congestionFaults = []fault{
	{where: "back end", spec: "congestion", what: "a window is written with its highest byte first",
		plan: rewritten(func(w *ir.Rewrite) bool {
			was := len(w.Stores) > 0 && w.Stores[0].Little
			if was {
				w.Stores[0].Little = false
			}
			return was
		})},
	{where: "back end", spec: "congestion", what: "the window is a packet more", plan: cell("ack: cwnd", plus(1))},
	{where: "back end", spec: "congestion", what: "the pacing rate is the window",
		plan: rewritten(func(w *ir.Rewrite) bool {
			if len(w.Stores) < 2 {
				return false
			}
			w.Stores[1].Value = w.Stores[0].Value
			return true
		})},
	{where: "back end", spec: "congestion", what: "a packet more remains after a loss",
		plan: cell("loss: ssthresh", plus(1))},
	{where: "back end", spec: "congestion", what: "an answer counts for a round more",
		plan: compared(func(b *ir.Bin) bool {
			c, ok := b.Y.(*ir.Const)
			if !ok || b.Op != ir.Le || c.V != 4 {
				return false
			}
			b.Y = number(5)
			return true
		})},
	{where: "back end", spec: "congestion", what: "another flow's row decides",
		plan: stmt(func(_ *ir.Program, s *ir.Lookup) bool {
			if len(s.Key) == 0 {
				return false
			}
			s.Key[0].Value = &ir.Bin{Op: ir.Xor, X: s.Key[0].Value, Y: number(1)}
			return true
		})},
	{where: "back end", spec: "congestion", what: "a signal has another flow",
		plan: emitted(func(s *ir.Emit) bool {
			s.Values[0].Value = plus(1)(s.Values[0].Value)
			return true
		})},
	{where: "code", spec: "congestion", what: "the delivery rate is the pacing rate",
		old: `ld64\(&socket->rate\)`, new: `ld64(&socket->pacing)`},
	{where: "code", spec: "congestion", what: "the addresses of an event are exchanged",
		old: `ld64\(socket->local_addr\)`, new: `ld64(socket->remote_addr)`},
}
