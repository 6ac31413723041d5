package rewrite

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass cuts headers into pieces: runs of 1, 2, 4 or 8 bytes that a processor reads or writes at once, or a field
// made of bytes. Bit fields that share bytes come together in one piece. The pieces that change are the cells of the
// rewrite, and the summands by which checksums change.

// piece is a part of a header, before and after.
type piece struct {
	off     ir.Off // in the packet that leaves
	was     ir.Off // in the packet that came; only where old is not nil
	size    int
	little  bool
	now     ir.Expr // nil: a checksum, which is computed last
	old     ir.Expr // nil: there was nothing
	changed bool
	link    bool // the link-layer's addresses
	field   *spec.Field
	note    string
	pos     diag.Pos
	width   *ir.Var // an integer of variable size: now and old are what it adds to a checksum, and
	value   ir.Expr // its value
	there   ir.Expr // whether it is there; nil: it is
}

// unit is a field with its place: bits from the start of its base.
type unit struct {
	f        *spec.Field
	pl       *draft.Field // nil: pushed
	from, to int          // bits, in the packet that leaves
	now      ir.Expr
	changed  bool
	pos      diag.Pos
}

// atomic units are not put together with others.
func (u *unit) atomic() bool {
	return u.f.Kind == spec.FieldBytes || u.f.Checksum != nil || u.f.Little
}

// pieces cuts a header that leaves.
func (r *rewriter) pieces(o *header) []piece {
	var out []piece
	runs := map[int][]*unit{}
	if o.Old == nil {
		for _, at := range o.Decl.Layout() {
			f, from := at.Field, o.off.Const*8+at.Bit
			runs[0] = append(runs[0], &unit{
				f: f, from: from, to: from + f.Width(), now: o.Values[f.Name.Value], changed: true, pos: o.at(f),
			})
		}
		return cut(runs[0], o.off.Base, nil, ir.Off{})
	}
	var segments []int
	bases := map[int]ir.Off{} // of the packet that leaves, less the constant of the one that came
	received := map[int]*ir.Var{}
	for _, pl := range o.Old.Order {
		if v := o.Values[pl.Decl.Name.Value]; v != nil && pl.Width != nil {
			now, old := pl.Word(v), pl.Word(pl.Load)
			var there ir.Expr
			if pl.Present != nil && pl.Decl.Counts != nil { // what sets another field declines packets without it
				there = pl.Present
				now, old = &ir.Pick{If: there, Then: now, Else: fold.Num(0)}, &ir.Pick{If: there, Then: old,
					Else: fold.Num(0)}
			}
			out = append(out, piece{
				off: o.moved(pl.Off), was: pl.Off, size: 8, changed: true, field: pl.Decl, note: pl.Decl.Name.Value,
				pos: o.at(pl.Decl), width: pl.Width, value: v, there: there,
				now: now, old: old,
			})
		}
		if pl.Segment < 0 {
			continue
		}
		to := o.moved(pl.Off)
		u := &unit{f: pl.Decl, pl: pl, from: to.Const*8 + pl.Bit, now: pl.Load, pos: o.at(pl.Decl)}
		u.to = u.from + pl.Decl.Width()
		if k := pl.Decl.Is; k != nil && k.Op == spec.IsEq && pl.Decl.Kind == spec.FieldUint &&
			k.Value.Kind == spec.LitInt {
			u.now = fold.Num(k.Value.Int) // checked when it came
		}
		if v := o.Values[pl.Decl.Name.Value]; v != nil {
			u.now, u.changed = v, true
		}
		if runs[pl.Segment] == nil {
			segments = append(segments, pl.Segment)
			bases[pl.Segment] = to.Plus(-pl.Off.Const)
			received[pl.Segment] = pl.Off.Base
		}
		runs[pl.Segment] = append(runs[pl.Segment], u)
	}
	for _, s := range segments {
		out = append(out, cut(runs[s], bases[s].Base, o.Old, ir.Off{Base: received[s], Const: -bases[s].Const})...)
	}
	return out
}

// cut makes pieces of a run of fields. Where they came, they were at the same distances: after another base, perhaps,
// and came.Const bytes further on.
func cut(run []*unit, base *ir.Var, old *draft.Header, received ir.Off) []piece {
	var out []piece
	for i := 0; i < len(run); {
		u := run[i]
		at := ir.Off{Base: base, Const: u.from / 8}
		if u.atomic() {
			out = append(out, whole(u, at, old, received)...)
			i++
			continue
		}
		stop := len(run)
		if j := slices.IndexFunc(run[i:], (*unit).atomic); j >= 0 {
			stop = i + j
		}
		end := run[stop-1].to / 8
		for b := u.from / 8; b < end; {
			size := pieceSize(run[i:stop], b, end)
			out = append(out, together(run[i:stop], ir.Off{Base: base, Const: b}, size, old, received))
			b += size
		}
		i = stop
	}
	return out
}

// pieceSize returns how many bytes from byte b on make the next piece: two where a field ends there, since a store of
// two costs as much as one of one; else the fewest that end with a field; else one.
func pieceSize(run []*unit, b, end int) int {
	for _, size := range []int{2, 4, 8, 1} {
		if b+size > end {
			continue
		}
		if slices.ContainsFunc(run, func(u *unit) bool { return u.to == (b+size)*8 }) {
			return size
		}
	}
	return 1
}

// together makes one piece of all that lies in size bytes at off.
func together(run []*unit, off ir.Off, size int, old *draft.Header, received ir.Off) piece {
	p := piece{off: off, was: received.Plus(off.Const), size: size}
	from, to := off.Const*8, (off.Const+size)*8
	var names []string
	var now ir.Expr = fold.Num(0)
	for _, u := range run {
		lo, hi := max(u.from, from), min(u.to, to)
		if lo >= hi {
			continue
		}
		names = append(names, u.f.Name.Value)
		if p.field == nil || u.changed && !p.changed {
			p.pos = u.pos
		}
		p.changed = p.changed || u.changed
		p.field = u.f
		if u.now == nil {
			continue
		}
		v := u.now
		if s := u.to - hi; s > 0 {
			v = fold.Bin(ir.Shr, v, fold.Num(uint64(s)))
		}
		if lo > u.from {
			v = fold.Bin(ir.And, v, fold.Num(ranges.Max(hi-lo)))
		}
		if s := to - hi; s > 0 {
			v = fold.Bin(ir.Shl, v, fold.Num(uint64(s)))
		}
		now = fold.Bin(ir.Or, now, v)
	}
	p.note = strings.Join(names, " ")
	if old != nil {
		p.old = &ir.Load{Off: p.was, Bits: size * 8, Field: old.Decl.Name.Value + "." + strings.Join(names, "+")}
		if !p.changed {
			now = p.old
		}
	}
	p.now = now
	return p
}

// whole makes pieces of one atomic field.
func whole(u *unit, off ir.Off, old *draft.Header, received ir.Off) []piece {
	p := piece{
		off: off, was: received.Plus(off.Const), size: (u.to - u.from) / 8, now: u.now, changed: u.changed, field: u.f,
		note: u.f.Name.Value, pos: u.pos,
	}
	p.link = strings.HasPrefix(u.f.Role.Value, "link_")
	if old != nil {
		p.old = u.pl.Load
	}
	switch {
	case u.f.Checksum != nil:
		if !u.changed || u.now == nil {
			p.now = nil
		}
		return []piece{p}
	case u.f.Kind == spec.FieldBytes && u.changed:
		return []piece{p}
	}
	var out []piece
	for done := 0; done < p.size; {
		n := 8
		for n > p.size-done {
			n /= 2
		}
		q := p
		q.off, q.was, q.size = p.off.Plus(done), p.was.Plus(done), n
		if old != nil {
			q.old = &ir.Load{Off: q.was, Bits: n * 8, Field: old.Decl.Name.Value + "." + u.f.Name.Value}
			q.now = q.old
		}
		if u.f.Little && u.changed {
			q.little = true
			q.now = u.now
			if done > 0 {
				q.now = fold.Bin(ir.Shr, q.now, fold.Num(uint64(done*8)))
			}
			if done+n < p.size {
				q.now = fold.Bin(ir.And, q.now, fold.Num(ranges.Max(n*8)))
			}
		}
		out = append(out, q)
		done += n
	}
	return out
}

// maxFront is how many bytes may be written again as they came: twice the stack of a program, which holds them before
// the first one is written. How much of the stack there is for them isn't known before clang has compiled it (FR0904).
const maxFront = 2 * 512

// cells returns what has to be written: all of the front, or what changes.
func (r *rewriter) cells(full bool, kept int, hop *ir.HopRef) ([]ir.Store, bool) {
	var out []ir.Store
	again := 0 // bytes that are written as they came
	for i, o := range r.headers {
		full := full && i < kept
		if full && o.Size < 0 {
			r.p.Scope.Fail(code.Resize, r.p.Pos, "header %q has a variable length and would have to be written again",
				o.Entry)
			return nil, false
		}
		for _, p := range r.pieces(o) {
			moved := o.Old != nil && p.off != p.was && i < kept
			if full && p.now != nil && !p.changed {
				again += p.size
			}
			if i >= kept && p.changed && o.off.Base != o.Old.Off.Base && p.was.Base != o.Old.Off.Base {
				r.p.Scope.Fail(code.Resize, p.pos, "header %q has a variable length and would have to move", o.Entry)
				return nil, false
			}
			if p.now == nil && o.Old != nil && o.sum == nil {
				p.now = p.old // a checksum that stays
			}
			switch {
			case p.now == nil || !(full || p.changed || moved):
				continue
			case hop != nil && p.link && p.off.Base == nil && p.off.Const < 12:
				continue
			}
			c := ir.Store{
				Off: p.off, Size: p.size, Little: p.little, Width: p.width, Value: p.now,
				Note: o.Decl.Name.Value + ": " + p.note, Pos: p.pos,
			}
			if p.width != nil {
				c.Value, c.If = p.value, p.there
			}
			if p.field.SizedUint() {
				c.Plain, c.Size = true, draft.PowerOf2(p.field.Max)
			}
			out = append(out, c)
		}
	}
	if again > maxFront {
		r.p.Scope.Fail(code.Resize, r.p.Pos, "this rule writes %d bytes of headers again, and a program's stack has "+
			"512", again).
			WithHint("fewer or smaller headers fit, or a rule that doesn't change the packet's size")
		return nil, false
	}
	if full {
		slices.SortFunc(out, func(a, b ir.Store) int { return cmp.Compare(a.Off.Const, b.Off.Const) })
	}
	return out, true
}
