package sim

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// rewrite returns the packet that leaves. All values come from the packet that came.
func (r *run) rewrite(w *ir.Rewrite) Packet {
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
	switch {
	case r.err != nil:
		return out
	case oldFront < 0 || newFront < 0 || payload < 0 || oldFront+payload > len(r.in):
		r.fail("a payload of %d bytes behind %d, in a frame of %d", payload, oldFront, len(r.in))
		return out
	case w.Resize == ir.InPlace && oldFront != newFront:
		r.fail("a front of %d bytes becomes %d in place", oldFront, newFront)
		return out
	}

	keeps := w.Resize == ir.InPlace && !w.Trim
	var data []byte
	if keeps {
		data = slices.Clone(r.in)
	} else {
		data = append(make([]byte, newFront), r.in[oldFront:oldFront+payload]...)
	}
	written := make([]bool, newFront)
	put := func(at int, b []byte, what string) {
		if at < 0 || at+len(b) > newFront {
			r.fail("%s: bytes %d to %d are written, the front has %d", what, at, at+len(b), newFront)
			return
		}
		copy(data[at:], b)
		for i := range b {
			if written[at+i] {
				r.fail("%s: byte %d is written twice", what, at+i)
			}
			written[at+i] = true
		}
	}
	for _, c := range w.Cells {
		put(r.offset(c.Off), r.wire(c.Value, c.Size, c.Little, c.Note), c.Note)
		if r.err != nil {
			return out
		}
	}
	for _, s := range w.Sums {
		sum := r.sum(s, oldFront+payload)
		put(r.offset(s.New), []byte{byte(sum >> 8), byte(sum)}, s.Name)
	}
	if i := slices.Index(written, false); i >= 0 && !keeps {
		r.fail("byte %d of the new front is not written", i)
	}
	out.Data = data
	if w.Family != 0 || w.PopTag {
		out.Proto = 0
	}
	return out
}
