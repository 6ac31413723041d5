// Package edit makes the packet that leaves by a rule. A Packet starts with the headers of a path as they came; the
// actions of a rule take some out, put some in and give fields values, and send gives addresses and a next hop. What
// has to be true of a packet for that is a guard. Complete then gives headers that are new to each other what they say
// of each other. Nothing has a place yet: package rewrite finds what has to be written.
package edit

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Header is a header of the packet that leaves.
type Header struct {
	Decl   *spec.Header
	Entry  string
	Old    *draft.Header // the header that came; nil: pushed, or made in place of one of another family
	Index  int           // in the path, of the header that came or in whose place this one is; -1: pushed
	Values map[string]ir.Expr
	SetAt  map[string]diag.Pos // where the spec gives fields values
	Size   int                 // bytes; -1: varies (kept, in its old place)
	Fill   *ir.Fill            // of all bytes; nil: they stay, but for Values
	Sum    SumChoice           // of a header that is put in
	Pos    diag.Pos
}

// Packet is the packet that leaves by a rule, which the rule's actions make.
type Packet struct {
	Program  *draft.Program
	Scope    *expr.Scope // of the rule's expressions
	Blk      *[]ir.Stmt  // where the rule is compiled
	Pos      diag.Pos
	Headers  []*Header
	Resized  bool // headers were taken out or put in
	Summed   int  // ir.Rewrite.Summed
	PopTag   bool
	PopInner bool
	Family   int
	Priority ir.Expr
	SkbMark  ir.Expr
	Guards   []ir.Stmt // checks in front of the rewrite
	Effects  *expr.Effects
}

// Departure is a packet that leaves, and how.
type Departure struct {
	Packet *Packet
	Hop    *ir.HopRef // nil: it goes on
	Pos    diag.Pos
}

// New returns the packet of a path as it came.
func New(s *expr.Scope, blk *[]ir.Stmt, pos diag.Pos) *Packet {
	w := &Packet{Program: s.Program, Scope: s, Blk: blk, Pos: pos, Effects: expr.NewEffects()}
	for i, in := range s.Path {
		if in.Meta {
			continue
		}
		w.Headers = append(w.Headers, &Header{
			Decl: in.Decl, Entry: in.Entry, Old: in, Index: i, Values: map[string]ir.Expr{},
			SetAt: map[string]diag.Pos{}, Size: in.Size, Pos: pos,
		})
	}
	return w
}

// Fork copies the packet for another branch.
func (w *Packet) Fork(blk *[]ir.Stmt) *Packet {
	c := *w
	c.Blk = blk
	c.Guards = slices.Clone(w.Guards)
	c.Effects = w.Effects.Clone()
	c.Headers = make([]*Header, len(w.Headers))
	for i, h := range w.Headers {
		d := *h
		d.Values, d.SetAt = maps.Clone(h.Values), maps.Clone(h.SetAt)
		c.Headers[i] = &d
	}
	return &c
}

// undecidable says why a value that is allocated can't be guarded.
const undecidable = "a number that is allocated can't decide whether the packet leaves, and this value doesn't " +
	"always fit"

// Guard declines packets for which a condition doesn't hold.
func (w *Packet) Guard(cond ir.Expr, reason int, pos diag.Pos) {
	g := &ir.Guard{Cond: cond, Reason: reason, Pos: pos}
	switch {
	case fold.IsTrue(cond):
	case expr.Reads(cond, w.Effects.Allocated):
		w.Scope.Fail(code.Alloc, pos, undecidable)
	case expr.Reads(cond, w.Effects.LateVars):
		w.Effects.Late = append(w.Effects.Late, g)
	default:
		w.Guards = append(w.Guards, g)
	}
}

// Header returns what leaves of a header that came, or nil.
func (w *Packet) Header(in *draft.Header) *Header {
	i := slices.IndexFunc(w.Headers, func(o *Header) bool { return o.Old != nil && o.Old.Entry == in.Entry })
	if i < 0 {
		return nil
	}
	return w.Headers[i]
}

// received returns the header that came of a name: nil if it is an optional one that isn't there, or none of the stack,
// which is reported.
func (w *Packet) received(n spec.Name) *draft.Header {
	in, known := w.Scope.Find(n.Value)
	if !known {
		w.Scope.Fail(code.Push, n.Pos, "no header %q in the stack", n.Value).WithNames(n.Value, w.Scope.Visible())
	}
	return in
}

// IsSet reports whether the spec gives a field a value.
func (o *Header) IsSet(f *spec.Field) bool {
	_, set := o.SetAt[f.Name.Value]
	return set
}

// WithEffects lowers an expression that may have effects.
func (w *Packet) WithEffects(e *spec.Expr) (expr.Value, bool) {
	w.Scope.Fx = w.Effects
	defer func() { w.Scope.Fx = nil }()
	return w.Scope.Value(e)
}

// EmitLet puts a Let where its value is known.
func (w *Packet) EmitLet(l *ir.Let) {
	switch {
	case expr.Reads(l.Value, w.Effects.Allocated):
		w.Effects.Allocated[l.Var] = true
		w.Effects.Lets = append(w.Effects.Lets, l)
	case expr.Reads(l.Value, w.Effects.LateVars):
		w.Effects.LateVars[l.Var] = true
		w.Effects.Late = append(w.Effects.Late, l)
	default:
		w.Guards = append(w.Guards, l)
	}
}

// Used returns the rows of sessions that this packet uses.
func (w *Packet) Used() (rows []*ir.Row) {
	for _, r := range w.Program.Out.Rows {
		for _, mine := range w.Scope.Rows {
			if mine == r && r.Table.Session != nil && (!r.Optional || w.Scope.Facts[r]) && !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// IsIP reports whether a header is one after which the kernel resizes packets.
func IsIP(h *spec.Header) bool {
	return h != nil && h.Std && (h.Name.Value == "ipv4" || h.Name.Value == "ipv4_any" || h.Name.Value == "ipv6")
}

// SameFamily reports whether two IP headers are of one version.
func SameFamily(a, b *spec.Header) bool {
	return draft.Role(a, "destination").Bytes == draft.Role(b, "destination").Bytes
}

// Outermost is the header that the kernel takes a packet for when it resizes it: the first one in the frame after the
// link-layer header, once a tag that goes away has gone.
func (w *Packet) Outermost() *spec.Header {
	for i, in := range w.Scope.Path {
		if in.Meta || i == 0 && w.Program.Out.L2 || w.PopInner && in.Decl.Metadata == "vlan" {
			continue
		}
		return in.Decl
	}
	return nil
}
