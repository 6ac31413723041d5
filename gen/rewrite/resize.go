package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/edit"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass decides how room is made or closed in a packet whose headers change.

// resizeKind decides how room is made. The kernel remembers where a partial checksum begins (csum_start), and that
// doesn't follow a header that moves inside the packet; so a header whose checksum may be partial stays where it is.
func (r *rewriter) resizeKind(rw *ir.Rewrite, first, kept int, pos diag.Pos) bool {
	grown := rw.NewFront.Const - rw.OldFront.Const
	switch {
	case r.p.Family == 4:
		grown += 20
	case r.p.Family == 6:
		grown -= 20
	}
	if r.p.PopInner {
		grown += 4
	}
	if rw.NewFront.Base == rw.OldFront.Base && grown == 0 {
		if r.p.Family != 0 {
			rw.Resize = ir.MoveHeaders
		}
		return true
	}
	// index of the first header that is not one of the packet that came, or that others in front of it left
	change := len(r.headers)
	last := -1
	for i, o := range r.headers {
		if r.skipsOnlyTags(last, o.Index) {
			last = o.Index - 1
		}
		if o.Index != last+1 {
			change = i
			break
		}
		last = o.Index
	}
	partial, static := false, true
	for _, o := range r.headers[:change] {
		if slices.ContainsFunc(o.Decl.Fields, func(f *spec.Field) bool {
			return f.Checksum != nil && f.Checksum.Offloaded
		}) {
			partial = true
		}
		static = static && o.Size >= 0
	}
	for _, o := range r.headers[:kept] {
		static = static && o.Size >= 0
	}
	if change > 0 && r.headers[change-1].Old != nil {
		rw.Unmoved = r.headers[change-1].Old.End
	}
	// all in front of the change stays where it is
	atEnd := !slices.ContainsFunc(r.headers[change:], func(o *header) bool { return o.Old != nil })
	stays := slices.ContainsFunc(r.headers, func(o *header) bool { return edit.IsIP(o.Decl) })
	outer := r.p.Outermost()
	headers := edit.IsIP(outer) && stays && static
	switch {
	case outer != nil && outer.Metadata == "vlan" && !(partial && r.p.Family == 0 && change == len(r.headers)):
		draft.Emit(r.p.Blk, &ir.Punt{
			Reason: r.p.Program.Punted("tag_in_frame", "the kernel can't resize a packet with a VLAN tag in the frame",
				pos),
			Pos: pos,
		})
		return false
	case partial && headers:
		rw.Resize = ir.MoveEither
	case partial && r.p.Family == 0 && !r.p.PopInner && atEnd:
		rw.Resize = ir.MovePayload
	case !partial && headers:
		rw.Resize = ir.MoveHeaders
	default:
		why := "no transport header whose checksum the spec knows is in front of the change"
		if !static {
			why = "a header of variable length is in front of the change or after it"
		} else if !edit.IsIP(outer) || !stays {
			why = "the packet is not IP"
		}
		r.p.Scope.Fail(code.Resize, pos, "the packet can't be resized safely here: %s", why)
		return false
	}
	return true
}

// otherFamily returns the IP version of the packet that leaves, if it isn't that of the packet that came: 4, 6, or
// 0. The kernel keeps a packet's version beside it, and its stack drops one whose header says otherwise.
func (r *rewriter) otherFamily() int {
	i := slices.IndexFunc(r.headers, func(o *header) bool { return edit.IsIP(o.Decl) })
	received := r.p.Outermost()
	if i < 0 || !edit.IsIP(received) || edit.SameFamily(received, r.headers[i].Decl) {
		return 0
	}
	if draft.Role(r.headers[i].Decl, "destination").Bytes == 16 {
		return 6
	}
	return 4
}

// skipsOnlyTags reports whether all headers of the path between two indices are tags that have gone away by other
// means.
func (r *rewriter) skipsOnlyTags(from, to int) bool {
	if from < 0 || to <= from+1 {
		return false
	}
	for _, in := range r.p.Scope.Path[from+1 : to] {
		if in.Decl.Metadata != "vlan" || !(in.Meta || r.p.PopInner) {
			return false
		}
	}
	return true
}
