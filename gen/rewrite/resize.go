package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass decides how room is made or closed in a packet whose headers change.

// resizeKind decides how room is made. The kernel remembers where a partial checksum begins (csum_start), and that
// doesn't follow a header that moves inside the packet; so a header whose checksum may be partial stays where it is.
func (w *Packet) resizeKind(rw *ir.Rewrite, first, kept int, pos diag.Pos) bool {
	grown := rw.NewFront.Const - rw.OldFront.Const
	switch {
	case w.family == 4:
		grown += 20
	case w.family == 6:
		grown -= 20
	}
	if w.popInner {
		grown += 4
	}
	if rw.NewFront.Base == rw.OldFront.Base && grown == 0 {
		if w.family != 0 {
			rw.Resize = ir.MoveHeaders
		}
		return true
	}
	// index of the first header that is not one of the packet that came, or that others in front of it left
	change := len(w.hdrs)
	last := -1
	for i, o := range w.hdrs {
		if w.skipsOnlyTags(last, o.index) {
			last = o.index - 1
		}
		if o.index != last+1 {
			change = i
			break
		}
		last = o.index
	}
	partial, static := false, true
	for _, o := range w.hdrs[:change] {
		if slices.ContainsFunc(o.h.Fields, func(f *spec.Field) bool {
			return f.Checksum != nil && f.Checksum.Offloaded
		}) {
			partial = true
		}
		static = static && o.size >= 0
	}
	for _, o := range w.hdrs[:kept] {
		static = static && o.size >= 0
	}
	if change > 0 && w.hdrs[change-1].old != nil {
		rw.Unmoved = w.hdrs[change-1].old.End
	}
	// all in front of the change stays where it is
	atEnd := !slices.ContainsFunc(w.hdrs[change:], func(o *Header) bool { return o.old != nil })
	stays := slices.ContainsFunc(w.hdrs, func(o *Header) bool { return isIP(o.h) })
	outer := w.outermost()
	headers := isIP(outer) && stays && static
	switch {
	case outer != nil && outer.Metadata == "vlan" && !(partial && w.family == 0 && change == len(w.hdrs)):
		draft.Emit(w.Blk, &ir.Punt{
			Reason: w.Program.Punted("tag_in_frame", "the kernel can't resize a packet with a VLAN tag in the frame",
				pos),
			Pos: pos,
		})
		return false
	case partial && headers:
		rw.Resize = ir.MoveEither
	case partial && w.family == 0 && !w.popInner && atEnd:
		rw.Resize = ir.MovePayload
	case !partial && headers:
		rw.Resize = ir.MoveHeaders
	default:
		why := "no transport header whose checksum the spec knows is in front of the change"
		if !static {
			why = "a header of variable length is in front of the change or after it"
		} else if !isIP(outer) || !stays {
			why = "the packet is not IP"
		}
		w.Scope.Fail(code.Resize, pos, "the packet can't be resized safely here: %s", why)
		return false
	}
	return true
}

// isIP reports whether a header is one after which the kernel resizes packets.
func isIP(h *spec.Header) bool {
	return h != nil && h.Std && (h.Name.Value == "ipv4" || h.Name.Value == "ipv4_any" || h.Name.Value == "ipv6")
}

// sameFamily reports whether two IP headers are of one version.
func sameFamily(a, b *spec.Header) bool {
	return Role(a, "destination").Bytes == Role(b, "destination").Bytes
}

// outermost is the header that the kernel takes a packet for when it resizes it: the first one in the frame after the
// link-layer header, once a tag that goes away has gone.
func (w *Packet) outermost() *spec.Header {
	for i, in := range w.Scope.Path {
		if in.Meta || i == 0 && w.Program.Out.L2 || w.popInner && in.Decl.Metadata == "vlan" {
			continue
		}
		return in.Decl
	}
	return nil
}

// otherFamily returns the IP version of the packet that leaves, where it isn't that of the packet that came: 4, 6, or
// 0. The kernel keeps a packet's version beside it, and its stack drops one whose header says otherwise.
func (w *Packet) otherFamily() int {
	i := slices.IndexFunc(w.hdrs, func(o *Header) bool { return isIP(o.h) })
	came := w.outermost()
	if i < 0 || !isIP(came) || sameFamily(came, w.hdrs[i].h) {
		return 0
	}
	if Role(w.hdrs[i].h, "destination").Bytes == 16 {
		return 6
	}
	return 4
}

// skipsOnlyTags reports whether all headers of the path between two indices are tags that have gone away by other
// means.
func (w *Packet) skipsOnlyTags(from, to int) bool {
	if from < 0 || to <= from+1 {
		return false
	}
	for _, in := range w.Scope.Path[from+1 : to] {
		if in.Decl.Metadata != "vlan" || !(in.Meta || w.popInner) {
			return false
		}
	}
	return true
}
