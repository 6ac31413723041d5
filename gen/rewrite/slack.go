package rewrite

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds where the packet that leaves ends, where lengths allow bytes after what they count (slack). Data goes
// along with the headers around it. Padding doesn't leave: it is cut off, and the headers around it are shorter. Where
// a rule would otherwise leave these headers alone, there are two rewrites, and packets without padding take the one
// that doesn't look for any. What surrounds the outermost IP datagram is the link's padding, and never leaves.

// ending is where the packet that leaves ends.
type ending struct {
	end  ir.Expr // in the packet that came
	data int     // the headers of the path from this one on have data after them: they end where they did
	cut  int     // the headers in front of this one have padding cut off, or the trailer of one that is popped
}

// Slacks are the headers inside of the path's n-th whose lengths allow bytes after what they count.
func (w *Packet) Slacks(n int, data bool) (out []*draft.Header) {
	for _, in := range w.Scope.Path[n+1:] {
		if in.Slack != nil && in.Slack.Data == data {
			out = append(out, in)
		}
	}
	return out
}

// Datagram is the index of the header of the path that is the outermost IP datagram of the packet that came, and of
// the one that leaves if that came inside of it; -1: there is none.
func (w *Packet) Datagram() (came, leaves int) {
	isNet := func(in *draft.Header) bool { return Role(in.Decl, "destination") != nil }
	came = slices.IndexFunc(w.Scope.Path, isNet)
	net := slices.IndexFunc(w.hdrs, func(o *Header) bool { return Role(o.h, "destination") != nil })
	if net < 0 {
		return came, came
	}
	return came, max(came, w.hdrs[net].index)
}

// Empty holds where nothing follows what headers count.
func Empty(ins []*draft.Header) ir.Expr {
	var cond ir.Expr = fold.Bool(true)
	for _, in := range ins {
		cond = fold.And(cond, fold.Bin(ir.Eq, in.Inner, in.Limit))
	}
	return cond
}

// PaddingHere is the reason of packets whose padding can't be cut off.
func PaddingHere(s *expr.Scope, pos diag.Pos) int {
	return s.Program.Punted("padding", "padding that can't be cut off", pos)
}

// resizes reports whether a rewrite gives headers new lengths.
func (w *Packet) resizes() bool { return w.resized || w.family != 0 || w.popInner }

// changes reports whether a rewrite writes anything.
func (w *Packet) changes() bool {
	return w.resizes() || slices.ContainsFunc(w.hdrs, func(o *Header) bool { return len(o.vals) > 0 || o.blank })
}

// asCame reports whether the i-th header encloses as many bytes as when it came.
func (w *Packet) asCame(i int) bool {
	return w.hdrs[i].index >= w.ending.cut && (!w.resizes() || i >= w.kept())
}

// mayPad returns the headers whose padding decides between two rewrites; none where one does for all packets, since it
// gives all headers around the padding new lengths.
func (w *Packet) mayPad() []*draft.Header {
	_, net := w.Datagram()
	pads := w.Slacks(net, false)
	if len(pads) == 0 || w.Scope.Each != nil {
		return nil
	}
	if innermost := pads[len(pads)-1]; !w.resizes() || w.index(innermost) >= w.firstKept() {
		return pads
	}
	for _, in := range w.Slacks(net, true) {
		if w.header(in) != nil && w.index(in) < w.index(pads[len(pads)-1]) {
			return pads
		}
	}
	return nil
}

func (w *Packet) index(in *draft.Header) int { return slices.Index(w.Scope.Path, in) }

// firstKept is the index in the path of the first header that is kept.
func (w *Packet) firstKept() int {
	if k := w.kept(); k < len(w.hdrs) {
		return w.hdrs[k].index
	}
	return len(w.Scope.Path)
}

// findEnd finds where the packet that leaves ends. Clean says that it came without padding. It returns false where
// padding would have to be taken out of the middle.
func (w *Packet) findEnd(clean bool, pos diag.Pos) (ending, bool) {
	x := ending{data: len(w.Scope.Path)}
	came, net := w.Datagram()
	for _, in := range w.Slacks(came, true) {
		if w.header(in) == nil {
			more := w.Program.Punted("more_data", "data after the payload of a header that is popped", pos)
			w.Guard(Empty([]*draft.Header{in}), more, pos)
		}
	}
	from := len(w.Scope.Path) - 1
	last := w.Scope.Path[from]
	x.end = last.Payload
	if last.Decl.Trailer > 0 && w.header(last) != nil {
		x.end = last.Inner
	} else if last.Decl.Trailer > 0 {
		x.cut = from
	}
	if clean && !w.resizes() {
		return x, true
	}
	pads := w.Slacks(net, false)
	follows := func(e *spec.StackEntry) bool { return draft.HostOf(e, w.Scope.Path) != nil }
	if !clean && !w.resizes() && len(pads) > 0 && slices.ContainsFunc(w.Program.Src.Stack, follows) {
		return x, false
	}
	if k := w.firstKept(); w.resizes() && k < len(w.Scope.Path) &&
		(clean || len(pads) == 0 || w.index(pads[len(pads)-1]) < k) {
		from, x.end = k, w.Scope.Path[k].Inner // what isn't written keeps its lengths, and all that they cover
		if k < came {
			x.end = w.Scope.Path[came].Inner
			w.counted(w.Scope.Path[k:came], x.end, pos)
		}
	}
	for i := from; i >= 0; i-- {
		in := w.Scope.Path[i]
		switch {
		case x.cut > 0 && in.Decl.Trailer > 0:
			return x, false
		case i <= net || !w.Program.Encloses(in, last, w.Scope.Path):
			continue
		case in.Decl.Trailer > 0 && i < from:
			x.end = in.Inner
		}
		switch k := in.Slack; {
		case k == nil || k.Data && w.header(in) == nil:
		case !k.Data && !clean:
			x.cut = max(x.cut, i)
		case x.cut == 0:
			x.end = in.Limit
			if k.Data {
				x.data = i
			}
		default:
			w.Guard(Empty([]*draft.Header{in}), PaddingHere(w.Scope, pos), pos)
		}
	}
	return x, true
}

// contents finds how many bytes after the front each header that leaves encloses.
func (w *Packet) contents(payload ir.Expr, front ir.Off) {
	for _, o := range w.hdrs {
		if o.old != nil && o.index >= w.ending.data {
			payload = fold.Bin(ir.Sub, o.old.Inner, fold.Off(front))
		}
		o.content = payload
		// what is put in after it ends in front of its trailer
		if o.old != nil && o.old == w.Scope.Path[len(w.Scope.Path)-1] && o.h.Trailer > 0 {
			payload = fold.Bin(ir.Sub, payload, fold.Num(uint64(o.h.Trailer)))
		}
	}
}
