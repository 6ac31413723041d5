package sim

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// linkAddresses is where the two link-layer addresses of a frame end, and tagSize what a VLAN tag after them takes.
const (
	linkAddresses = 12
	tagSize       = 4
)

// moved says where a checksum that is left to a device is in the packet that leaves.
func (r *run) moved(w *ir.Rewrite, oldFront, newFront int) Partial {
	p := r.packet.Partial
	for _, s := range w.Sums {
		if r.partial(s) {
			by := r.offset(s.New) - r.offset(s.Old)
			return Partial{p.Start + by, p.Field + by}
		}
	}
	if p != (Partial{}) && (w.Resize != ir.InPlace || w.PopInner) && p.Start >= r.offset(w.Unmoved) {
		return Partial{p.Start + newFront - oldFront, p.Field + newFront - oldFront}
	}
	return p
}

// segmentFront is where the payload of the first segment begins, of a GSO packet that the kernel can cut with a
// tunnel's headers in front; else 0.
func (p *Packet) segmentFront() int {
	start := p.Partial.Start
	switch {
	case start == 0 || p.GSO == 0:
	case p.Segments == 17:
		return start + 8
	case p.Segments == 6 && start+12 < len(p.Data):
		if size := int(p.Data[start+12]>>4) * 4; size >= 20 {
			return start + size
		}
	}
	return 0
}

// segmentFront is how many bytes from the network header on are in front of each segment's payload of the GSO packet
// that leaves.
func (r *run) segmentFront(w *ir.Rewrite) uint64 {
	if w.Encap != nil {
		return r.uint(w.Encap.Front)
	}
	return uint64(r.offset(w.NewFront) - w.L2)
}

// movesHeaders reports whether a rewrite moves headers inside the packet: then the whole front is written again.
func movesHeaders(w *ir.Rewrite) bool {
	return w.Family != 0 || w.PopInner || w.Resize == ir.MoveHeaders || w.Resize == ir.MoveEither
}

// rewrite returns the packet that leaves. All values come from the packet that came. Addressed says that the link-layer
// addresses will be those of the packet's hop: no cell covers them.
func (r *run) rewrite(w *ir.Rewrite, addressed bool) Packet {
	out := *r.packet
	oldFront, newFront := r.offset(w.OldFront), r.offset(w.NewFront)
	payload := int(r.uint(w.Payload))
	if w.PopTag {
		out.VLAN = nil
	}
	if w.Priority != nil {
		out.Priority = uint32(r.uint(w.Priority))
	}
	if w.Mark != nil {
		out.Mark = uint32(r.uint(w.Mark))
	}
	kept, ok := r.kept(w, oldFront, newFront, payload, addressed)
	if !ok {
		return out
	}
	data := make([]byte, newFront, newFront+len(r.in))
	copy(data, r.in[:kept])
	data = append(data, r.in[oldFront:oldFront+payload]...)
	if w.Resize == ir.InPlace && !w.Trim {
		data = append(data, r.in[oldFront+payload:]...)
	}
	limit := newFront // a rewrite that moves what it keeps may change that, too
	if w.Resize != ir.InPlace || w.PopInner {
		limit = len(data)
	}
	to := writing{r, data, make([]bool, limit), newFront}
	if addressed {
		for i := range min(linkAddresses, newFront) {
			to.written[i] = true
		}
	}
	if !to.fill(w.Filled) || !to.stores(w.Stores) {
		return out
	}
	r.end = oldFront + payload
	partial := r.moved(w, oldFront, newFront)
	for _, s := range w.Sums {
		var sum uint16
		if s.Whole != nil { // what it covers has its other checksums already: those inside come first
			sum = r.whole(s, data, partial)
		} else {
			sum = r.sum(s)
		}
		to.put(r.offset(s.New), []byte{byte(sum >> 8), byte(sum)}, s.Name)
	}
	if i := slices.Index(to.written[kept:newFront], false); i >= 0 {
		r.fail("byte %d of the new front is not written", kept+i)
	}
	switch {
	case out.GSO == 0 || w.Resize == ir.InPlace && w.Family == 0:
	case w.Encap == nil || out.Tunnel:
		r.fail("a GSO packet gets other headers, which the kernel doesn't know of")
	default:
		out.Tunnel, out.Segments = true, 0
	}
	out.Data = data
	out.Partial = partial
	out.Verified = max(out.Verified-w.Summed, 0)
	out.Proto = 0 // what the kernel finds in the new frame
	return out
}

// kept returns how many bytes of the new front are those of the old one unless a cell changes them. It fails if the
// fronts and the payload aren't those of a rewrite of this packet.
func (r *run) kept(w *ir.Rewrite, oldFront, newFront, payload int, addressed bool) (kept int, ok bool) {
	switch {
	case r.err != nil:
		return 0, false
	case oldFront < 0 || newFront < 0 || payload < 0 || oldFront+payload > len(r.in):
		r.fail("a payload of %d bytes after %d, in a frame of %d", payload, oldFront, len(r.in))
		return 0, false
	case w.PopInner && oldFront < linkAddresses+tagSize:
		r.fail("a tag is taken out of a front of %d bytes", oldFront)
		return 0, false
	case movesHeaders(w):
		if addressed {
			kept = min(linkAddresses, oldFront, newFront)
		}
		return kept, true
	case w.Resize == ir.InPlace && oldFront != newFront:
		r.fail("a front of %d bytes becomes %d in place", oldFront, newFront)
		return 0, false
	}
	return min(oldFront, newFront), true
}

// writing is a packet that leaves while it is written. Each byte may be written once.
type writing struct {
	*run
	data    []byte
	written []bool // of the bytes that may be written
	front   int    // bytes in front of the payload
}

func (x writing) put(at int, b []byte, what string) {
	if at < 0 || at+len(b) > len(x.written) {
		x.fail("%s: bytes %d to %d are written, the front has %d", what, at, at+len(b), x.front)
		return
	}
	copy(x.data[at:], b)
	for i := range b {
		if x.written[at+i] {
			x.fail("%s: byte %d is written twice", what, at+i)
		}
		x.written[at+i] = true
	}
}

func (x writing) fill(filled []ir.Filled) (ok bool) {
	for _, f := range filled {
		n := int(x.uint(f.Len))
		if n < 0 || n > f.Max {
			x.fail("header %q: %d bytes become %s, at most %d", f.Header, n, f.With.Text, f.Max)
			return false
		}
		x.put(x.offset(f.At), make([]byte, n), f.Header)
	}
	return true
}

func (x writing) stores(stores []ir.Store) (ok bool) {
	for _, c := range stores {
		if c.If != nil && !x.bool(c.If) {
			continue
		}
		switch {
		case c.Width == nil:
			x.put(x.offset(c.Off), x.wire(c.Value, c.Size, c.Little, c.Note), c.Note)
		case !c.Plain:
			x.put(x.offset(c.Off), x.varintBytes(c.Value, c.Width), c.Note)
		default:
			if width := x.variable(c.Width).u; width <= uint64(c.Size) {
				x.put(x.offset(c.Off), x.wire(c.Value, int(width), false, c.Note), c.Note)
			} else {
				x.fail("%s: an integer of %d bytes, over its bound of %d", c.Note, width, c.Size)
			}
		}
		if x.err != nil {
			return false
		}
	}
	return true
}
