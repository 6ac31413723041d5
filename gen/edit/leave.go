package edit

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass looks at what a packet leaves with: addresses that must be a host's, and the protocol that a route is for.

// carries notes the protocol of packets that leave through a hop of a row. Of several, none is known when the row is
// written.
func (w *Packet) carries(m *ir.Member, proto int) {
	if was, has := w.Program.Protos[m]; has && was != proto {
		proto = 0
	}
	w.Program.Protos[m], m.Proto = proto, proto
}

// canLeave makes sure of the addresses of a packet that is sent, as far as no one has: user space looks at the
// addresses that it finds the hop of, but what the packet itself says, or another row or setting, may be anything.
func (w *Packet) canLeave(src, dst ir.Expr, hop *ir.HopRef, pos diag.Pos) {
	if x := w.unknown(src, hop, pos); x != nil {
		w.Guard(&ir.Unicast{X: x}, draft.MartianSource(w.Program, pos), pos)
	}
	if x := w.unknown(dst, hop, pos); x != nil {
		w.Guard(fold.Not(&ir.Multicast{X: x}), draft.Multicast(w.Program, pos), pos)
		w.Guard(&ir.Unicast{X: x}, draft.MartianDestination(w.Program, pos), pos)
	}
}

// unknown returns an address that may be no host's, or nil if it is one's.
func (w *Packet) unknown(x ir.Expr, hop *ir.HopRef, pos diag.Pos) ir.Expr {
	switch x := x.(type) {
	case *ir.LoadBytes:
		if knownUnicast(w.Scope, x) {
			return nil
		}
	case *ir.RowMember:
		if hop.Row == x.Row && (hop.Member.From == x.Member || hop.Member.To == x.Member) {
			return nil
		}
	case *ir.BytesConst:
		return nil
	case *ir.SettingRef:
		return &ir.VarRef{Var: w.Program.Let(&w.Guards, x.Setting.Name, x, 0, pos)}
	}
	return x
}

// knownUnicast reports whether an expression is an address of the packet that is known to be a host's.
func knownUnicast(s *expr.Scope, x ir.Expr) bool {
	l, ok := x.(*ir.LoadBytes)
	return ok && slices.ContainsFunc(s.Path, func(in *draft.Header) bool {
		return slices.ContainsFunc(in.Unicast, func(pl *draft.Field) bool { return pl.Off == l.Off })
	})
}
