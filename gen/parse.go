package gen

import (
	"fmt"
	"maps"
	"math/bits"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass lays a header out on a path and emits what has to hold for it: enough bytes in the frame and inside the
// length that encloses it, fixed values, lengths that agree. A header is a list of segments: inside a segment all
// distances are fixed; a field of variable length or presence ends one. Where a segment begins is then a variable.

const maxVariable = 1024 // bytes that the variable parts of a stack may add up to

// fixed places a field of fixed size in a segment that begins at seg.
func fixed(at spec.Place, seg ir.Off, in *layer) *fieldRef {
	f := at.Field
	pl := &fieldRef{f: f, off: seg.Plus(at.Bit / 8), bit: at.Bit % 8, segment: at.Segment, parent: in}
	name := in.h.Name.Value + "." + f.Name.Value
	if f.Kind == spec.FieldBytes {
		pl.load = &ir.LoadBytes{Off: pl.off, N: f.Bytes, T: bytesType(f), Field: name}
		return pl
	}
	pl.load = &ir.Load{Off: pl.off, Bit: pl.bit, Bits: f.Bits, Little: f.Little, Field: name}
	pl.max = ranges.Max(f.Bits)
	return pl
}

func bytesType(f *spec.Field) ir.Type {
	switch f.Type {
	case "ip":
		return ir.AddrType
	case "mac":
		return ir.MacType
	}
	return ir.Type{Kind: ir.Bytes, Size: f.Bytes}
}

// sizeOf returns the size of a header in bytes, or -1 where it varies.
func sizeOf(h *spec.Header) int {
	if h.Varies() {
		return -1
	}
	return h.MaxBytes()
}

// inMetadata returns parent as it looks where header h is in the packet's metadata: the name of the field that
// announces h is the tag's protocol there, while its place in the frame holds what announces the header after h.
func inMetadata(parent *layer, h *spec.Header) *layer {
	q := *parent
	q.fields = maps.Clone(parent.fields)
	if pl := announcer(parent, h); pl != nil {
		q.fields[pl.f.Name.Value] = &fieldRef{
			f: pl.f, load: &ir.Meta{Kind: ir.VLANProto}, max: 0xFFFF, parent: &q, segment: -1,
		}
	}
	return &q
}

// announcer returns the field of parent that says that h follows, or nil.
func announcer(parent *layer, h *spec.Header) *fieldRef {
	for _, a := range h.After {
		if a.Parent.Value == parent.h.Name.Value {
			for _, m := range a.Match {
				if pl := parent.fields[m.Field.Path[0].Value]; pl != nil {
					return pl
				}
			}
		}
	}
	return nil
}

// parse lays a header out at off and emits its checks. path is changed where the header is in the metadata.
func (p *program) parse(e *spec.StackEntry, a arm, path []*layer, off ir.Off, end ir.Expr, blk *[]ir.Stmt) *layer {
	in := &layer{
		entry: e.Var.Value, h: a.h, meta: a.meta, off: off, size: sizeOf(a.h), limit: end,
		fields: map[string]*fieldRef{},
	}
	if p.starts[off.Base] {
		in.far = maxStart
	} else if len(path) > 0 {
		in.far = path[len(path)-1].far
	}
	s := &scope{p: p, path: append(path[:len(path):len(path)], in), self: in}
	if a.meta {
		parent := path[len(path)-1]
		typ := announcer(parent, a.h)
		path[len(path)-1] = inMetadata(parent, a.h)
		in.size, in.end = 0, off
		for _, at := range a.h.Layout() {
			f := at.Field
			pl := &fieldRef{f: f, max: ranges.Max(f.Bits), parent: in, segment: -1}
			if at.Bit < 16 {
				pl.load = bits16(&ir.Meta{Kind: ir.VLANTCI}, at.Bit, f.Bits)
			} else {
				pl.load, pl.off = typ.load, typ.off
			}
			in.fields[f.Name.Value] = pl
			in.order = append(in.order, pl)
		}
		in.inner, in.payload = end, end
		p.fixedValues(s, in, 0, blk)
		return in
	}
	seg, bits, first := off, 0, 0
	need := func(pos diag.Pos) { // the bytes of the segment so far are there
		if bits == 0 {
			return
		}
		to := seg.Plus(bits / 8)
		emit(blk, &ir.NeedBytes{End: to, Part: part(a.h, seg, in.order[first:]), Reason: p.truncated(pos), Pos: pos})
		p.pull(to)
		if !fold.IsFrame(end) {
			emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, fold.Off(to), end), Reason: p.truncated(pos), Pos: pos})
		}
		p.fixedValues(s, in, first, blk)
		first = len(in.order)
	}
	for _, place := range a.h.Layout() {
		f := place.Field
		name := in.entry + "_" + f.Name.Value
		var pl *fieldRef
		if !f.Varies() {
			pl = fixed(place, seg, in)
			bits = place.Bit + f.Width()
			in.fields[f.Name.Value] = pl
			in.order = append(in.order, pl)
			continue
		}
		need(f.Name.Pos)
		at := seg.Plus(bits / 8)
		pl = &fieldRef{f: f, off: at, segment: -1, parent: in}
		inner := blk
		var branch *ir.If
		if f.When != nil {
			cond, ok := s.cond(f.When)
			if !ok {
				return nil
			}
			here := p.let(blk, name+"_present", cond, 1, f.When.Pos)
			pl.present = &ir.VarRef{Var: here}
			branch = &ir.If{Cond: pl.present, Pos: f.When.Pos, Note: f.Name.Value}
			emit(blk, branch)
			inner = &branch.Then
		}
		size := p.newVar(name+"_size", ir.UintType(64), uint64(f.Max))
		switch f.Kind {
		case spec.FieldVarint:
			size.Max = 8
			pl.value, pl.width, pl.max = p.newVar(name, ir.UintType(64), 1<<62-1), size, 1<<62-1
			emit(inner, &ir.ReadVarint{
				Value: pl.value, Size: size, At: at, Reason: p.truncated(f.Name.Pos), Pos: f.Name.Pos,
			})
			p.pull(at.Plus(8))
			pl.load = &ir.VarRef{Var: pl.value}
		case spec.FieldSized:
			v, ok := s.integer(f.Size)
			if !ok {
				return nil
			}
			emit(inner, &ir.Let{Var: size, Value: v.x, Pos: f.Size.Pos},
				&ir.Guard{
					Cond:   fold.Bin(ir.Le, &ir.VarRef{Var: size}, fold.Num(uint64(f.Max))),
					Reason: p.fieldReason(in.h, f, "is longer than the spec allows"), Pos: f.Name.Pos,
				})
		case spec.FieldUint, spec.FieldBytes:
			n := f.Width() / 8
			size.Max = uint64(n)
			fx := fixed(spec.Place{Field: f, Segment: -1}, at, in)
			to := at.Plus(n)
			p.pull(to)
			emit(inner, &ir.NeedBytes{End: to, Reason: p.truncated(f.Name.Pos), Pos: f.Name.Pos})
			pl.value, pl.max = p.newVar(name, fx.load.Type(), fx.max), fx.max
			emit(inner, &ir.Let{Var: size, Value: fold.Num(uint64(n)), Pos: f.Name.Pos},
				&ir.Let{Var: pl.value, Value: fx.load, Pos: f.Name.Pos})
			pl.load = &ir.VarRef{Var: pl.value}
		}
		if branch != nil {
			emit(&branch.Else, &ir.Let{Var: size, Value: fold.Num(0), Pos: f.Name.Pos})
			if pl.value != nil {
				emit(&branch.Else, &ir.Let{Var: pl.value, Value: fold.Zero(pl.value.Type), Pos: f.Name.Pos})
			}
		}
		pl.size = &ir.VarRef{Var: size}
		limit := size.Max + uint64(at.Const)
		if at.Base != nil {
			limit += at.Base.Max
		}
		if limit > maxVariable+uint64(in.far) {
			p.diags.Add(code.Variable, f.Name.Pos, "the headers up to field %q may take %d bytes; %d is the most",
				f.Name.Value, limit-uint64(in.far), maxVariable)
			return nil
		}
		begins := p.atLeast(at)
		next := p.let(blk, name+"_end", fold.Bin(ir.Add, fold.Off(at), &ir.VarRef{Var: size}), limit, f.Name.Pos)
		p.least[next] = begins
		seg, bits = ir.Off{Base: next}, 0
		emit(blk, &ir.NeedBytes{End: seg, Reason: p.truncated(f.Name.Pos), Pos: f.Name.Pos})
		p.pull(seg)
		if !fold.IsFrame(end) {
			emit(blk, &ir.Guard{Cond: fold.Bin(ir.Le, fold.Off(seg), end), Reason: p.truncated(f.Name.Pos),
				Pos: f.Name.Pos})
		}
		if f.SizedUint() {
			if word := powerOf2(f.Max); p.atLeast(at) < word {
				p.diags.Add(code.Variable, f.Name.Pos, "field %q may begin %s after the start of the packet: an "+
					"integer of variable size has to have %d bytes in front of it", f.Name.Value,
					diag.Plural(p.atLeast(at), "byte"), word)
				return nil
			}
			pl.max = ranges.Max(8 * f.Max)
			pl.value, pl.width = p.newVar(name, ir.UintType(64), pl.max), size
			emit(blk, &ir.ReadUint{
				Value: pl.value, Size: size, At: at, End: seg, Max: f.Max, Field: in.h.Name.Value + "." + f.Name.Value,
				Pos: f.Name.Pos,
			})
			pl.load = &ir.VarRef{Var: pl.value}
		}
		in.fields[f.Name.Value] = pl
		in.order = append(in.order, pl)
		p.fixedValues(s, in, first, blk)
		first = len(in.order)
	}
	need(a.h.Name.Pos)
	in.end = seg.Plus(bits / 8)
	p.lengths(in, end, blk)
	p.received(in, path, blk)
	return in
}

// atLeast is how many bytes of the packet are in front of an offset at least.
func (p *program) atLeast(o ir.Off) int {
	if o.Base == nil {
		return o.Const
	}
	return p.least[o.Base] + o.Const
}

// powerOf2 is the smallest power of two that isn't below n.
func powerOf2(n int) int { return 1 << bits.Len(uint(n-1)) }

// part names fields that begin at off.
func part(h *spec.Header, off ir.Off, fields []*fieldRef) *ir.HeaderPart {
	out := &ir.HeaderPart{Header: h.Name.Value, At: off}
	for _, pl := range fields {
		if pl.segment >= 0 {
			out.Fields = append(out.Fields, partField(pl.f))
		}
	}
	return out
}

func partField(f *spec.Field) ir.HeaderField {
	return ir.HeaderField{Name: f.Name.Value, Bits: f.Width(), Bytes: f.Kind == spec.FieldBytes}
}

// fixedValues emits the checks of the fields from index first on that have to have certain values.
func (p *program) fixedValues(s *scope, in *layer, first int, blk *[]ir.Stmt) {
	for _, pl := range in.order[first:] {
		f := pl.f
		if f.Type == "ip" && f.Bytes == 16 && pl.segment >= 0 && !p.congestion() {
			// In tables an IPv4 address is a mapped one; on the wire it would pass for it.
			emit(blk, &ir.Guard{
				Cond:   fold.Not(&ir.IsV4{X: pl.load}),
				Reason: p.punted("mapped_address", "an IPv4-mapped address in an IPv6 header", f.Name.Pos),
				Pos:    f.Name.Pos,
			})
		}
		if f.Is == nil {
			continue
		}
		cond := s.constraint(pl.val(), f.Is)
		if cond == nil {
			continue
		}
		if pl.present != nil {
			cond = fold.Or(fold.Not(pl.present), cond)
		}
		emit(blk, &ir.Guard{Cond: cond, Reason: p.fieldReason(in.h, f, isNot(f)), Pos: f.Is.Pos})
	}
}

// fieldReason is the reason for a packet to be declined because of a field, counted under the field's name or what the
// header says instead. doc is what happened; a field may be reached by several paths.
func (p *program) fieldReason(h *spec.Header, f *spec.Field, doc string) int {
	name := h.Name.Value + "_" + f.Name.Value
	if f.Reason != nil {
		name = f.Reason.Value
	}
	return p.punted(name, h.Name.Value+"."+f.Name.Value+" "+doc, f.Name.Pos)
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

// impossible says why a value is unfit.
const impossible = "would get a value that it can't have"

// unfit is the reason where a rule gives a field a value that it can't take.
func (p *program) unfit(h *spec.Header, f *spec.Field, why string) int {
	return p.punted("unfit_"+h.Name.Value+"_"+f.Name.Value, h.Name.Value+"."+f.Name.Value+" "+why, f.Name.Pos)
}

// unlessAbsent is a condition on a field, which a packet without it meets.
func (pl *fieldRef) unlessAbsent(cond ir.Expr) ir.Expr {
	if pl.present == nil {
		return cond
	}
	return fold.Or(fold.Not(pl.present), cond)
}

// most is an upper bound of where something ends; 0: none is known.
func most(end ir.Expr) uint64 {
	if v := fold.Var(end); v != nil {
		return v.Max
	}
	return 0
}

// lengths emits the checks of the length fields, and finds where what the header encloses ends.
func (p *program) lengths(in *layer, end ir.Expr, blk *[]ir.Stmt) {
	in.inner = end
	follower := p.follower(in.entry)
	for _, pl := range in.order {
		f, k := pl.f, pl.f.Counts
		if k == nil {
			continue
		}
		reason := p.fieldReason(in.h, f, "disagrees with the packet")
		guard := func(cond ir.Expr) {
			emit(blk, &ir.Guard{Cond: pl.unlessAbsent(cond), Reason: reason, Pos: f.Name.Pos})
		}
		ends := func(cond ir.Expr) { // the length of a GSO packet may be that of a segment
			if role(in.h, "destination") == nil {
				ordinary := pl.unlessAbsent(fold.Or(cond, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))))
				emit(blk, &ir.Guard{Cond: ordinary, Reason: p.superPacket(f.Name.Pos), Pos: f.Name.Pos})
			}
			guard(cond)
		}
		bytes := pl.load
		limit := pl.max
		if limit > ranges.Max(62) || k.Unit > 1 && limit > ranges.Max(48) { // the sum below could wrap around
			limit = ranges.Max(32)
			guard(fold.Bin(ir.Le, bytes, fold.Num(limit)))
		}
		if k.Bias > 0 {
			guard(fold.Bin(ir.Ge, pl.load, fold.Num(uint64(k.Bias))))
			bytes = fold.Bin(ir.Sub, bytes, fold.Num(uint64(k.Bias)))
		} else if k.Bias < 0 {
			bytes = fold.Bin(ir.Add, bytes, fold.Num(uint64(-k.Bias)))
			limit += uint64(-k.Bias)
		}
		if k.Unit > 1 {
			bytes = fold.Bin(ir.Mul, bytes, fold.Num(uint64(k.Unit)))
			limit *= uint64(k.Unit)
		}
		headerSize := fold.Bin(ir.Sub, fold.Off(in.end), fold.Off(in.off))
		if k.What == "header" {
			guard(fold.Bin(ir.Eq, bytes, headerSize))
			continue
		}
		from := in.end
		if k.What == "all" {
			guard(fold.Bin(ir.Ge, bytes, headerSize))
			from = in.off
		}
		stops := fold.Bin(ir.Add, fold.Off(from), bytes)
		if pl.width != nil && k.Slack == 0 && follower == nil { // it ends where the enclosing header's content does
			ends(fold.Bin(ir.Eq, stops, end))
			continue
		}
		limit += uint64(from.Const)
		if from.Base != nil {
			limit += from.Base.Max
		}
		if pl.present != nil {
			stops = &ir.Pick{If: pl.present, Then: stops, Else: end}
		}
		if pl.present != nil || limit > ranges.Max(32) {
			limit = most(end)
		}
		stop := p.let(blk, in.entry+"_end", stops, limit, f.Name.Pos)
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
		in.inner, in.slack = at, nil
		if k.Slack != 0 {
			in.slack = k
		}
	}
	in.payload = in.inner
	if t := in.h.Trailer; t > 0 {
		emit(blk, &ir.Guard{
			Cond:   fold.Bin(ir.Ge, in.inner, fold.Bin(ir.Add, fold.Off(in.end), fold.Num(uint64(t)))),
			Reason: p.truncated(in.h.Name.Pos), Pos: in.h.Name.Pos,
		})
		ends := fold.Bin(ir.Sub, in.inner, fold.Num(uint64(t)))
		in.payload = &ir.VarRef{Var: p.let(blk, in.entry+"_payload_end", ends, most(in.inner), in.h.Name.Pos)}
	}
}

// bits16 takes bits of a 16-bit value, counted from its most significant one.
func bits16(x ir.Expr, from, n int) ir.Expr {
	if shift := 16 - from - n; shift > 0 {
		x = fold.Bin(ir.Shr, x, fold.Num(uint64(shift)))
	}
	return fold.Bin(ir.And, x, fold.Num(ranges.Max(n)))
}
