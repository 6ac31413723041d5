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

// inMetadata returns parent as it looks if header h is in the packet's metadata: the name of the field that
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

// parse lays a header out at off and emits its checks. path is changed if the header is in the metadata.
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
		path[len(path)-1] = inMetadata(parent, a.h)
		tag(in, draft.Announcer(parent, a.h), end)
		fixedValues(p, s, in, 0, blk)
		return in
	}
	x := &parser{p: p, s: s, in: in, end: end, blk: blk, seg: off}
	for _, place := range a.h.Layout() {
		if !place.Field.Varies() {
			add(in, fixed(place, x.seg, in))
			x.bits = place.Bit + place.Field.Width()
		} else if !x.varying(place.Field) {
			return nil
		}
	}
	x.need(a.h.Name.Pos)
	in.End = x.at()
	lengths(p, in, end, blk)
	received(p, in, path, blk)
	return in
}

// tag lays out a header in the packet's metadata, which typ announces. It takes no bytes of the frame.
func tag(in *draft.Header, typ *draft.Field, end ir.Expr) {
	in.Size, in.End = 0, in.Off
	for _, at := range in.Decl.Layout() {
		f := at.Field
		pl := &draft.Field{Decl: f, Max: ranges.Max(f.Bits), Parent: in, Segment: -1}
		if at.Bit < 16 {
			pl.Load = bits16(&ir.Meta{Kind: ir.VLANTCI}, at.Bit, f.Bits)
		} else {
			pl.Load, pl.Off = typ.Load, typ.Off
		}
		add(in, pl)
	}
	in.Inner, in.Payload = end, end
}

// A parser lays one header out, field by field, and appends its checks to blk.
type parser struct {
	p   *draft.Program
	s   *expr.Scope
	in  *draft.Header
	end ir.Expr // of what encloses the header
	blk *[]ir.Stmt

	seg   ir.Off // where the segment begins
	bits  int    // of the segment that are laid out
	first int    // index of the first field whose value isn't checked yet
}

// at is where the next field begins, which has to be a byte boundary.
func (x *parser) at() ir.Off { return x.seg.Plus(x.bits / 8) }

// add gives a header a field.
func add(in *draft.Header, pl *draft.Field) {
	in.Fields[pl.Decl.Name.Value] = pl
	in.Order = append(in.Order, pl)
}

// need emits the checks of the segment so far: its bytes are there, and its fields have the values that they may have.
func (x *parser) need(pos diag.Pos) {
	if x.bits > 0 {
		x.reaches(x.at(), draft.Run(x.in.Decl, x.seg, x.in.Order[x.first:]), pos)
		x.values()
	}
}

// reaches emits the checks that the packet, and what encloses the header, have all bytes up to an offset.
func (x *parser) reaches(to ir.Off, run *ir.FieldRun, pos diag.Pos) {
	draft.Emit(x.blk, &ir.NeedBytes{End: to, Run: run, Reason: x.p.Truncated(pos), Pos: pos})
	x.p.Pull(to)
	if !fold.IsFrame(x.end) {
		draft.Emit(x.blk, &ir.Guard{Cond: fold.Bin(ir.Le, fold.Off(to), x.end), Reason: x.p.Truncated(pos), Pos: pos})
	}
}

// values emits the checks of the values of fields that were added since the last call.
func (x *parser) values() {
	fixedValues(x.p, x.s, x.in, x.first, x.blk)
	x.first = len(x.in.Order)
}

// varying lays out a field of variable length or presence, after which a new segment begins. It returns false after a
// mistake, which is reported.
func (x *parser) varying(f *spec.Field) bool {
	x.need(f.Name.Pos)
	at, name := x.at(), x.in.Entry+"_"+f.Name.Value
	pl := &draft.Field{Decl: f, Off: at, Segment: -1, Parent: x.in}
	here := x.blk
	var branch *ir.If
	if f.When != nil {
		cond, ok := x.s.Cond(f.When)
		if !ok {
			return false
		}
		pl.Present = &ir.VarRef{Var: x.p.Let(x.blk, name+"_present", cond, 1, f.When.Pos)}
		branch = &ir.If{Cond: pl.Present, Pos: f.When.Pos, Note: f.Name.Value}
		draft.Emit(x.blk, branch)
		here = &branch.Then
	}
	size := x.p.NewVar(name+"_size", ir.UintType(64), uint64(f.Max))
	if !x.present(pl, name, size, here) {
		return false
	}
	if branch != nil {
		draft.Emit(&branch.Else, &ir.Let{Var: size, Value: fold.Num(0), Pos: f.Name.Pos})
		if pl.Value != nil {
			draft.Emit(&branch.Else, &ir.Let{Var: pl.Value, Value: fold.Zero(pl.Value.Type), Pos: f.Name.Pos})
		}
	}
	pl.Size = &ir.VarRef{Var: size}
	if !x.follow(f, name, size) || f.SizedUint() && !x.sizedUint(pl, name, size) {
		return false
	}
	add(x.in, pl)
	x.values()
	return true
}

// present emits to blk how the size and the value of a field that is there are found.
func (x *parser) present(pl *draft.Field, name string, size *ir.Var, blk *[]ir.Stmt) bool {
	p, f, at := x.p, pl.Decl, pl.Off
	switch f.Kind {
	case spec.FieldVarint:
		size.Max = 8
		pl.Value, pl.Width, pl.Max = p.NewVar(name, ir.UintType(64), 1<<62-1), size, 1<<62-1
		draft.Emit(blk, &ir.ReadVarint{
			Value: pl.Value, Size: size, At: at, Reason: p.Truncated(f.Name.Pos), Pos: f.Name.Pos,
		})
		p.Pull(at.Plus(8))
		pl.Load = &ir.VarRef{Var: pl.Value}
	case spec.FieldSized:
		v, ok := x.s.Integer(f.Size)
		if !ok {
			return false
		}
		draft.Emit(blk, &ir.Let{Var: size, Value: v.X, Pos: f.Size.Pos},
			&ir.Guard{
				Cond:   fold.Bin(ir.Le, &ir.VarRef{Var: size}, fold.Num(uint64(f.Max))),
				Reason: p.FieldReason(x.in.Decl, f, "is longer than the spec allows"), Pos: f.Name.Pos,
			})
	case spec.FieldUint, spec.FieldBytes:
		n := f.Width() / 8
		size.Max = uint64(n)
		fx := fixed(spec.Place{Field: f, Segment: -1}, at, x.in)
		to := at.Plus(n)
		p.Pull(to)
		draft.Emit(blk, &ir.NeedBytes{End: to, Reason: p.Truncated(f.Name.Pos), Pos: f.Name.Pos})
		pl.Value, pl.Max = p.NewVar(name, fx.Load.Type(), fx.Max), fx.Max
		draft.Emit(blk, &ir.Let{Var: size, Value: fold.Num(uint64(n)), Pos: f.Name.Pos},
			&ir.Let{Var: pl.Value, Value: fx.Load, Pos: f.Name.Pos})
		pl.Load = &ir.VarRef{Var: pl.Value}
	}
	return true
}

// follow begins the segment after field f, which has the given size.
func (x *parser) follow(f *spec.Field, name string, size *ir.Var) bool {
	p, at := x.p, x.at()
	limit := size.Max + uint64(at.Const)
	if at.Base != nil {
		limit += at.Base.Max
	}
	if limit > maxVariable+uint64(x.in.Far) {
		p.Diags.Add(code.Variable, f.Name.Pos, "the headers up to field %q may take %d bytes; %d is the most",
			f.Name.Value, limit-uint64(x.in.Far), maxVariable)
		return false
	}
	begins := p.AtLeast(at)
	next := p.Let(x.blk, name+"_end", fold.Bin(ir.Add, fold.Off(at), &ir.VarRef{Var: size}), limit, f.Name.Pos)
	p.Least[next] = begins
	x.seg, x.bits = ir.Off{Base: next}, 0
	x.reaches(x.seg, nil, f.Name.Pos)
	return true
}

// sizedUint emits how the value of an integer of variable size is read, which ends where the segment begins.
func (x *parser) sizedUint(pl *draft.Field, name string, size *ir.Var) bool {
	p, f := x.p, pl.Decl
	if word := draft.PowerOf2(f.Max); p.AtLeast(pl.Off) < word {
		p.Diags.Add(code.Variable, f.Name.Pos, "field %q may begin %s after the start of the packet: an "+
			"integer of variable size has to have %d bytes in front of it", f.Name.Value,
			diag.Plural(p.AtLeast(pl.Off), "byte"), word)
		return false
	}
	pl.Max = ranges.Max(8 * f.Max)
	pl.Value, pl.Width = p.NewVar(name, ir.UintType(64), pl.Max), size
	draft.Emit(x.blk, &ir.ReadUint{
		Value: pl.Value, Size: size, At: pl.Off, End: x.seg, Max: f.Max,
		Field: x.in.Decl.Name.Value + "." + f.Name.Value,
		Pos:   f.Name.Pos,
	})
	pl.Load = &ir.VarRef{Var: pl.Value}
	return true
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
	for _, pl := range in.Order {
		if pl.Decl.Counts != nil {
			l := length{p, pl, p.FieldReason(in.Decl, pl.Decl, "disagrees with the packet"), blk}
			l.encloses(end)
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

// A length is a field that counts bytes. Its checks are appended to blk.
type length struct {
	p      *draft.Program
	pl     *draft.Field
	reason int
	blk    *[]ir.Stmt
}

func (l length) guard(cond ir.Expr) {
	draft.Emit(l.blk, &ir.Guard{Cond: l.pl.UnlessAbsent(cond), Reason: l.reason, Pos: l.pl.Decl.Name.Pos})
}

// ends emits the check of where something ends. The length of a GSO packet may be that of a segment.
func (l length) ends(cond ir.Expr) {
	if pos := l.pl.Decl.Name.Pos; draft.Role(l.pl.Parent.Decl, "destination") == nil {
		ordinary := l.pl.UnlessAbsent(fold.Or(cond, fold.Bin(ir.Eq, &ir.Meta{Kind: ir.GSOSize}, fold.Num(0))))
		draft.Emit(l.blk, &ir.Guard{Cond: ordinary, Reason: l.p.SuperPacket(pos), Pos: pos})
	}
	l.guard(cond)
}

// bytes returns how many bytes the field counts, and an upper bound.
func (l length) bytes() (n ir.Expr, limit uint64) {
	k := l.pl.Decl.Counts
	n, limit = l.pl.Load, l.pl.Max
	if limit > ranges.Max(62) || k.Unit > 1 && limit > ranges.Max(48) { // the sum below could wrap around
		limit = ranges.Max(32)
		l.guard(fold.Bin(ir.Le, n, fold.Num(limit)))
	}
	if k.Bias > 0 {
		l.guard(fold.Bin(ir.Ge, l.pl.Load, fold.Num(uint64(k.Bias))))
		n = fold.Bin(ir.Sub, n, fold.Num(uint64(k.Bias)))
	} else if k.Bias < 0 {
		n = fold.Bin(ir.Add, n, fold.Num(uint64(-k.Bias)))
		limit += uint64(-k.Bias)
	}
	if k.Unit > 1 {
		n = fold.Bin(ir.Mul, n, fold.Num(uint64(k.Unit)))
		limit *= uint64(k.Unit)
	}
	return n, limit
}

// encloses emits the checks of the field. If it counts more than its header, it says where what the header encloses
// ends, which isn't after end.
func (l length) encloses(end ir.Expr) {
	pl, in, k := l.pl, l.pl.Parent, l.pl.Decl.Counts
	bytes, limit := l.bytes()
	headerSize := fold.Bin(ir.Sub, fold.Off(in.End), fold.Off(in.Off))
	if k.What == "header" {
		l.guard(fold.Bin(ir.Eq, bytes, headerSize))
		return
	}
	from := in.End
	if k.What == "all" {
		l.guard(fold.Bin(ir.Ge, bytes, headerSize))
		from = in.Off
	}
	stops, follower := fold.Bin(ir.Add, fold.Off(from), bytes), l.p.Follower(in.Entry)
	if pl.Width != nil && k.Slack == 0 && follower == nil { // it ends where the enclosing header's content does
		l.ends(fold.Bin(ir.Eq, stops, end))
		return
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
	at := &ir.VarRef{Var: l.p.Let(l.blk, in.Entry+"_end", stops, limit, pl.Decl.Name.Pos)}
	switch {
	case follower != nil || k.Slack < 0:
		l.ends(fold.Bin(ir.Le, at, end))
	case k.Slack == 0:
		l.ends(fold.Bin(ir.Eq, at, end))
	default:
		l.ends(fold.And(fold.Bin(ir.Le, at, end), fold.Bin(ir.Le, fold.Bin(ir.Sub, end, at),
			fold.Num(uint64(k.Slack)))))
	}
	in.Inner, in.Slack = at, nil
	if k.Slack != 0 {
		in.Slack = k
	}
}

// bits16 takes bits of a 16-bit value, counted from its most significant one.
func bits16(x ir.Expr, from, n int) ir.Expr {
	if shift := 16 - from - n; shift > 0 {
		x = fold.Bin(ir.Shr, x, fold.Num(uint64(shift)))
	}
	return fold.Bin(ir.And, x, fold.Num(ranges.Max(n)))
}
