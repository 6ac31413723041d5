package stack

import (
	"fmt"
	"maps"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/gen/rewrite"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass lays a header out on a path and emits what has to hold for it: enough bytes in the frame and inside the
// length that encloses it, fixed values, lengths that agree. A header is a list of segments: inside a segment all
// distances are fixed; a field of variable length or presence ends one. Where a segment begins is then a variable.

const maxVariable = 1024 // bytes that the variable parts of a stack may add up to

// fixed places a field of fixed size in a segment that begins at seg.
func fixed(at spec.Place, seg ir.Off, in *draft.Header) *draft.Field {
	f := at.Field
	pl := &draft.Field{Decl: f, Off: seg.Plus(at.Bit / 8), Bit: at.Bit % 8, Segment: at.Segment, Parent: in}
	name := in.Decl.Name.Value + "." + f.Name.Value
	if f.Kind == spec.FieldBytes {
		pl.Load = &ir.LoadBytes{Off: pl.Off, N: f.Bytes, T: draft.BytesType(f), Field: name}
		return pl
	}
	pl.Load = &ir.Load{Off: pl.Off, Bit: pl.Bit, Bits: f.Bits, Little: f.Little, Field: name}
	pl.Max = ranges.Max(f.Bits)
	return pl
}

// inMetadata returns parent as it looks where header h is in the packet's metadata: the name of the field that
// announces h is the tag's protocol there, while its place in the frame holds what announces the header after h.
func inMetadata(parent *draft.Header, h *spec.Header) *draft.Header {
	q := *parent
	q.Fields = maps.Clone(parent.Fields)
	if pl := draft.Announcer(parent, h); pl != nil {
		q.Fields[pl.Decl.Name.Value] = &draft.Field{
			Decl: pl.Decl, Load: &ir.Meta{Kind: ir.VLANProto}, Max: 0xFFFF, Parent: &q, Segment: -1,
		}
	}
	return &q
}

// parse lays a header out at off and emits its checks. path is changed where the header is in the metadata.
func parse(p *draft.Program, e *spec.StackEntry, a arm, path []*draft.Header, off ir.Off, end ir.Expr,
	blk *[]ir.Stmt) *draft.Header {
	in := &draft.Header{
		Entry: e.Var.Value, Decl: a.h, Meta: a.meta, Off: off, Size: draft.SizeOf(a.h), Limit: end,
		Fields: map[string]*draft.Field{},
	}
	if p.Starts[off.Base] {
		in.Far = draft.MaxStart
	} else if len(path) > 0 {
		in.Far = path[len(path)-1].Far
	}
	s := &expr.Scope{Program: p, Path: append(path[:len(path):len(path)], in), Self: in}
	if a.meta {
		parent := path[len(path)-1]
		typ := draft.Announcer(parent, a.h)
		path[len(path)-1] = inMetadata(parent, a.h)
		in.Size, in.End = 0, off
		for _, at := range a.h.Layout() {
			f := at.Field
			pl := &draft.Field{Decl: f, Max: ranges.Max(f.Bits), Parent: in, Segment: -1}
			if at.Bit < 16 {
				pl.Load = bits16(&ir.Meta{Kind: ir.VLANTCI}, at.Bit, f.Bits)
			} else {
				pl.Load, pl.Off = typ.Load, typ.Off
			}
			in.Fields[f.Name.Value] = pl
			in.Order = append(in.Order, pl)
		}
		in.Inner, in.Payload = end, end
		fixedValues(p, s, in, 0, blk)
		return in
	}
	seg, bits, first := off, 0, 0
	need := func(pos diag.Pos) { // the bytes of the segment so far are there
		if bits == 0 {
			return
		}
		to := seg.Plus(bits / 8)
		draft.Emit(blk, &ir.NeedBytes{End: to, Part: draft.Part(a.h, seg, in.Order[first:]), Reason: p.Truncated(pos),
			Pos: pos})
		p.Pull(to)
		if !fold.IsFrame(end) {
			draft.Emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, fold.Off(to), end), Reason: p.Truncated(pos), Pos: pos})
		}
		fixedValues(p, s, in, first, blk)
		first = len(in.Order)
	}
	for _, place := range a.h.Layout() {
		f := place.Field
		name := in.Entry + "_" + f.Name.Value
		var pl *draft.Field
		if !f.Varies() {
			pl = fixed(place, seg, in)
			bits = place.Bit + f.Width()
			in.Fields[f.Name.Value] = pl
			in.Order = append(in.Order, pl)
			continue
		}
		need(f.Name.Pos)
		at := seg.Plus(bits / 8)
		pl = &draft.Field{Decl: f, Off: at, Segment: -1, Parent: in}
		inner := blk
		var branch *ir.If
		if f.When != nil {
			cond, ok := s.Cond(f.When)
			if !ok {
				return nil
			}
			here := p.Let(blk, name+"_present", cond, 1, f.When.Pos)
			pl.Present = &ir.VarRef{Var: here}
			branch = &ir.If{Cond: pl.Present, Pos: f.When.Pos, Note: f.Name.Value}
			draft.Emit(blk, branch)
			inner = &branch.Then
		}
		size := p.NewVar(name+"_size", ir.UintType(64), uint64(f.Max))
		switch f.Kind {
		case spec.FieldVarint:
			size.Max = 8
			pl.Value, pl.Width, pl.Max = p.NewVar(name, ir.UintType(64), 1<<62-1), size, 1<<62-1
			draft.Emit(inner, &ir.ReadVarint{
				Value: pl.Value, Size: size, At: at, Reason: p.Truncated(f.Name.Pos), Pos: f.Name.Pos,
			})
			p.Pull(at.Plus(8))
			pl.Load = &ir.VarRef{Var: pl.Value}
		case spec.FieldSized:
			v, ok := s.Integer(f.Size)
			if !ok {
				return nil
			}
			draft.Emit(inner, &ir.Let{Var: size, Value: v.X, Pos: f.Size.Pos},
				&ir.Guard{
					Cond:   fold.Bin(ir.Le, &ir.VarRef{Var: size}, fold.Num(uint64(f.Max))),
					Reason: p.FieldReason(in.Decl, f, "is longer than the spec allows"), Pos: f.Name.Pos,
				})
		case spec.FieldUint, spec.FieldBytes:
			n := f.Width() / 8
			size.Max = uint64(n)
			fx := fixed(spec.Place{Field: f, Segment: -1}, at, in)
			to := at.Plus(n)
			p.Pull(to)
			draft.Emit(inner, &ir.NeedBytes{End: to, Reason: p.Truncated(f.Name.Pos), Pos: f.Name.Pos})
			pl.Value, pl.Max = p.NewVar(name, fx.Load.Type(), fx.Max), fx.Max
			draft.Emit(inner, &ir.Let{Var: size, Value: fold.Num(uint64(n)), Pos: f.Name.Pos},
				&ir.Let{Var: pl.Value, Value: fx.Load, Pos: f.Name.Pos})
			pl.Load = &ir.VarRef{Var: pl.Value}
		}
		if branch != nil {
			draft.Emit(&branch.Else, &ir.Let{Var: size, Value: fold.Num(0), Pos: f.Name.Pos})
			if pl.Value != nil {
				draft.Emit(&branch.Else, &ir.Let{Var: pl.Value, Value: fold.Zero(pl.Value.Type), Pos: f.Name.Pos})
			}
		}
		pl.Size = &ir.VarRef{Var: size}
		limit := size.Max + uint64(at.Const)
		if at.Base != nil {
			limit += at.Base.Max
		}
		if limit > maxVariable+uint64(in.Far) {
			p.Diags.Add(code.Variable, f.Name.Pos, "the headers up to field %q may take %d bytes; %d is the most",
				f.Name.Value, limit-uint64(in.Far), maxVariable)
			return nil
		}
		begins := p.AtLeast(at)
		next := p.Let(blk, name+"_end", fold.Bin(ir.Add, fold.Off(at), &ir.VarRef{Var: size}), limit, f.Name.Pos)
		p.Least[next] = begins
		seg, bits = ir.Off{Base: next}, 0
		draft.Emit(blk, &ir.NeedBytes{End: seg, Reason: p.Truncated(f.Name.Pos), Pos: f.Name.Pos})
		p.Pull(seg)
		if !fold.IsFrame(end) {
			draft.Emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, fold.Off(seg), end), Reason: p.Truncated(f.Name.Pos),
				Pos: f.Name.Pos})
		}
		if f.SizedUint() {
			if word := draft.PowerOf2(f.Max); p.AtLeast(at) < word {
				p.Diags.Add(code.Variable, f.Name.Pos, "field %q may begin %s after the start of the packet: an "+
					"integer of variable size has to have %d bytes in front of it", f.Name.Value,
					diag.Plural(p.AtLeast(at), "byte"), word)
				return nil
			}
			pl.Max = ranges.Max(8 * f.Max)
			pl.Value, pl.Width = p.NewVar(name, ir.UintType(64), pl.Max), size
			draft.Emit(blk, &ir.ReadUint{
				Value: pl.Value, Size: size, At: at, End: seg, Max: f.Max,
				Field: in.Decl.Name.Value + "." + f.Name.Value,
				Pos:   f.Name.Pos,
			})
			pl.Load = &ir.VarRef{Var: pl.Value}
		}
		in.Fields[f.Name.Value] = pl
		in.Order = append(in.Order, pl)
		fixedValues(p, s, in, first, blk)
		first = len(in.Order)
	}
	need(a.h.Name.Pos)
	in.End = seg.Plus(bits / 8)
	lengths(p, in, end, blk)
	received(p, in, path, blk)
	return in
}

// fixedValues emits the checks of the fields from index first on that have to have certain values.
func fixedValues(p *draft.Program, s *expr.Scope, in *draft.Header, first int, blk *[]ir.Stmt) {
	for _, pl := range in.Order[first:] {
		f := pl.Decl
		if f.Type == "ip" && f.Bytes == 16 && pl.Segment >= 0 && !p.Congestion() {
			// In tables an IPv4 address is a mapped one; on the wire it would pass for it.
			draft.Emit(blk, &ir.Guard{
				Cond:   fold.Not(&ir.IsV4{X: pl.Load}),
				Reason: p.Punted("mapped_address", "an IPv4-mapped address in an IPv6 header", f.Name.Pos),
				Pos:    f.Name.Pos,
			})
		}
		if f.Is == nil {
			continue
		}
		cond := s.Constraint(expr.ValueOf(pl), f.Is)
		if cond == nil {
			continue
		}
		if pl.Present != nil {
			cond = fold.Or(fold.Not(pl.Present), cond)
		}
		draft.Emit(blk, &ir.Guard{Cond: cond, Reason: p.FieldReason(in.Decl, f, isNot(f)), Pos: f.Is.Pos})
	}
}

// maxNamed is how many values a reason's text lists.
const maxNamed = 4

// isNot says that a field doesn't have a value that it may have.
func isNot(f *spec.Field) string {
	const other = "has a value that the spec doesn't allow"
	if f.MaxBits() == 0 {
		return other
	}
	limit := ranges.Max(f.MaxBits())
	rs := ranges.Of(f.Is, limit).Ranges()
	if len(rs) == 0 || len(rs) > maxNamed {
		return other
	}
	word := func(v uint64) string {
		if v > 255 {
			return fmt.Sprintf("0x%X", v)
		}
		return fmt.Sprint(v)
	}
	var values []string
	for _, r := range rs {
		switch {
		case r.Min == r.Max:
			values = append(values, word(r.Min))
		case r.Max == limit:
			values = append(values, word(r.Min)+" or more")
		case r.Max == r.Min+1:
			values = append(values, word(r.Min), word(r.Max))
		default:
			values = append(values, word(r.Min)+" to "+word(r.Max))
		}
	}
	return "is not " + strings.Join(values, " or ")
}

// most is an upper bound of where something ends; 0: none is known.
func most(end ir.Expr) uint64 {
	if v := fold.Var(end); v != nil {
		return v.Max
	}
	return 0
}

// lengths emits the checks of the length fields, and finds where what the header encloses ends.
func lengths(p *draft.Program, in *draft.Header, end ir.Expr, blk *[]ir.Stmt) {
	in.Inner = end
	follower := p.Follower(in.Entry)
	for _, pl := range in.Order {
		f, k := pl.Decl, pl.Decl.Counts
		if k == nil {
			continue
		}
		reason := p.FieldReason(in.Decl, f, "disagrees with the packet")
		guard := func(cond ir.Expr) {
			draft.Emit(blk, &ir.Guard{Cond: pl.UnlessAbsent(cond), Reason: reason, Pos: f.Name.Pos})
		}
		ends := func(cond ir.Expr) { // the length of a GSO packet may be that of a segment
			if rewrite.Role(in.Decl, "destination") == nil {
				ordinary := pl.UnlessAbsent(fold.Or(cond, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))))
				draft.Emit(blk, &ir.Guard{Cond: ordinary, Reason: p.SuperPacket(f.Name.Pos), Pos: f.Name.Pos})
			}
			guard(cond)
		}
		bytes := pl.Load
		limit := pl.Max
		if limit > ranges.Max(62) || k.Unit > 1 && limit > ranges.Max(48) { // the sum below could wrap around
			limit = ranges.Max(32)
			guard(fold.Bin(ir.Le, bytes, fold.Num(limit)))
		}
		if k.Bias > 0 {
			guard(fold.Bin(ir.Ge, pl.Load, fold.Num(uint64(k.Bias))))
			bytes = fold.Bin(ir.Sub, bytes, fold.Num(uint64(k.Bias)))
		} else if k.Bias < 0 {
			bytes = fold.Bin(ir.Add, bytes, fold.Num(uint64(-k.Bias)))
			limit += uint64(-k.Bias)
		}
		if k.Unit > 1 {
			bytes = fold.Bin(ir.Mul, bytes, fold.Num(uint64(k.Unit)))
			limit *= uint64(k.Unit)
		}
		headerSize := fold.Bin(ir.Sub, fold.Off(in.End), fold.Off(in.Off))
		if k.What == "header" {
			guard(fold.Bin(ir.Eq, bytes, headerSize))
			continue
		}
		from := in.End
		if k.What == "all" {
			guard(fold.Bin(ir.Ge, bytes, headerSize))
			from = in.Off
		}
		stops := fold.Bin(ir.Add, fold.Off(from), bytes)
		if pl.Width != nil && k.Slack == 0 && follower == nil { // it ends where the enclosing header's content does
			ends(fold.Bin(ir.Eq, stops, end))
			continue
		}
		limit += uint64(from.Const)
		if from.Base != nil {
			limit += from.Base.Max
		}
		if pl.Present != nil {
			stops = &ir.Pick{If: pl.Present, Then: stops, Else: end}
		}
		if pl.Present != nil || limit > ranges.Max(32) {
			limit = most(end)
		}
		stop := p.Let(blk, in.Entry+"_end", stops, limit, f.Name.Pos)
		at := &ir.VarRef{Var: stop}
		switch {
		case follower != nil:
			ends(fold.Bin(ir.Le, at, end))
		case k.Slack == 0:
			ends(fold.Bin(ir.Eq, at, end))
		case k.Slack < 0:
			ends(fold.Bin(ir.Le, at, end))
		default:
			ends(fold.And(fold.Bin(ir.Le, at, end), fold.Bin(ir.Le, fold.Bin(ir.Sub, end, at),
				fold.Num(uint64(k.Slack)))))
		}
		in.Inner, in.Slack = at, nil
		if k.Slack != 0 {
			in.Slack = k
		}
	}
	in.Payload = in.Inner
	if t := in.Decl.Trailer; t > 0 {
		draft.Emit(blk, &ir.Guard{
			Cond:   fold.Bin(ir.Ge, in.Inner, fold.Bin(ir.Add, fold.Off(in.End), fold.Num(uint64(t)))),
			Reason: p.Truncated(in.Decl.Name.Pos), Pos: in.Decl.Name.Pos,
		})
		ends := fold.Bin(ir.Sub, in.Inner, fold.Num(uint64(t)))
		in.Payload = &ir.VarRef{Var: p.Let(blk, in.Entry+"_payload_end", ends, most(in.Inner), in.Decl.Name.Pos)}
	}
}

// bits16 takes bits of a 16-bit value, counted from its most significant one.
func bits16(x ir.Expr, from, n int) ir.Expr {
	if shift := 16 - from - n; shift > 0 {
		x = fold.Bin(ir.Shr, x, fold.Num(uint64(shift)))
	}
	return fold.Bin(ir.And, x, fold.Num(ranges.Max(n)))
}
