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

// This pass finds where the packet that leaves ends, if lengths allow bytes after what they count (slack). Data goes
// along with the headers around it. Padding doesn't leave: it is cut off, and the headers around it are shorter. If
// a rule would otherwise leave these headers alone, there are two rewrites, and packets without padding take the one
// that doesn't look for any. What surrounds the outermost IP datagram is the link's padding, and never leaves.

// ending is where the packet that leaves ends.
type ending struct {
	end  ir.Expr // in the packet that came
	data int     // the headers of the path from this one on have data after them: they end where they did
	cut  int     // the headers in front of this one have padding cut off, or the trailer of one that is popped
}

// slacks are the headers inside of the path's n-th whose lengths allow bytes after what they count.
func (r *rewriter) slacks(n int, data bool) (out []*draft.Header) {
	for _, in := range r.p.Scope.Path[n+1:] {
		if in.Slack != nil && in.Slack.Data == data {
			out = append(out, in)
		}
	}
	return out
}

// datagram is the index of the header of the path that is the outermost IP datagram of the packet that came, and of
// the one that leaves if that came inside of it; -1: there is none.
func (r *rewriter) datagram() (received, leaves int) {
	isNet := func(in *draft.Header) bool { return draft.Role(in.Decl, "destination") != nil }
	received = slices.IndexFunc(r.p.Scope.Path, isNet)
	net := slices.IndexFunc(r.headers, func(o *header) bool { return draft.Role(o.Decl, "destination") != nil })
	if net < 0 {
		return received, received
	}
	return received, max(received, r.headers[net].Index)
}

// empty holds if nothing follows what headers count.
func empty(ins []*draft.Header) ir.Expr {
	var cond ir.Expr = fold.Bool(true)
	for _, in := range ins {
		cond = fold.And(cond, fold.Bin(ir.Eq, in.Inner, in.Limit))
	}
	return cond
}

// paddingHere is the reason of packets whose padding can't be cut off.
func paddingHere(s *expr.Scope, pos diag.Pos) int {
	return s.Program.Punted("padding", "padding that can't be cut off", pos)
}

// resizes reports whether a rewrite gives headers new lengths.
func (r *rewriter) resizes() bool { return r.p.Resized || r.p.Family != 0 || r.p.PopInner }

// changes reports whether a rewrite writes anything.
func (r *rewriter) changes() bool {
	return r.resizes() || slices.ContainsFunc(r.headers, func(o *header) bool {
		return len(o.Values) > 0 || o.Fill != nil
	})
}

// asReceived reports whether the i-th header encloses as many bytes as when it came.
func (r *rewriter) asReceived(i int) bool {
	return r.headers[i].Index >= r.ending.cut && (!r.resizes() || i >= r.kept())
}

// mayPad returns the headers whose padding decides between two rewrites; none if one does for all packets, since it
// gives all headers around the padding new lengths.
func (r *rewriter) mayPad() []*draft.Header {
	_, net := r.datagram()
	pads := r.slacks(net, false)
	if len(pads) == 0 || r.p.Scope.Each != nil {
		return nil
	}
	if innermost := pads[len(pads)-1]; !r.resizes() || r.index(innermost) >= r.firstKept() {
		return pads
	}
	for _, in := range r.slacks(net, true) {
		if r.p.Header(in) != nil && r.index(in) < r.index(pads[len(pads)-1]) {
			return pads
		}
	}
	return nil
}

func (r *rewriter) index(in *draft.Header) int { return slices.Index(r.p.Scope.Path, in) }

// firstKept is the index in the path of the first header that is kept.
func (r *rewriter) firstKept() int {
	if k := r.kept(); k < len(r.headers) {
		return r.headers[k].Index
	}
	return len(r.p.Scope.Path)
}

// findEnd finds where the packet that leaves ends. Clean says that it came without padding. It returns false if
// padding would have to be taken out of the middle.
func (r *rewriter) findEnd(clean bool, pos diag.Pos) (ending, bool) {
	x := ending{data: len(r.p.Scope.Path)}
	received, net := r.datagram()
	for _, in := range r.slacks(received, true) {
		if r.p.Header(in) == nil {
			more := r.p.Program.Punted("more_data", "data after the payload of a header that is popped", pos)
			r.p.Guard(empty([]*draft.Header{in}), more, pos)
		}
	}
	from := len(r.p.Scope.Path) - 1
	last := r.p.Scope.Path[from]
	x.end = last.Payload
	if last.Decl.Trailer > 0 && r.p.Header(last) != nil {
		x.end = last.Inner
	} else if last.Decl.Trailer > 0 {
		x.cut = from
	}
	if clean && !r.resizes() {
		return x, true
	}
	pads := r.slacks(net, false)
	follows := func(e *spec.StackEntry) bool { return draft.HostOf(e, r.p.Scope.Path) != nil }
	if !clean && !r.resizes() && len(pads) > 0 && slices.ContainsFunc(r.p.Program.Src.Stack, follows) {
		return x, false
	}
	if k := r.firstKept(); r.resizes() && k < len(r.p.Scope.Path) &&
		(clean || len(pads) == 0 || r.index(pads[len(pads)-1]) < k) {
		from, x.end = k, r.p.Scope.Path[k].Inner // what isn't written keeps its lengths, and all that they cover
		if k < received {
			x.end = r.p.Scope.Path[received].Inner
			r.counted(r.p.Scope.Path[k:received], x.end, pos)
		}
	}
	for i := from; i >= 0; i-- {
		in := r.p.Scope.Path[i]
		switch {
		case x.cut > 0 && in.Decl.Trailer > 0:
			return x, false
		case i <= net || !r.p.Program.Encloses(in, last, r.p.Scope.Path):
			continue
		case in.Decl.Trailer > 0 && i < from:
			x.end = in.Inner
		}
		switch k := in.Slack; {
		case k == nil || k.Data && r.p.Header(in) == nil:
		case !k.Data && !clean:
			x.cut = max(x.cut, i)
		case x.cut == 0:
			x.end = in.Limit
			if k.Data {
				x.data = i
			}
		default:
			r.p.Guard(empty([]*draft.Header{in}), paddingHere(r.p.Scope, pos), pos)
		}
	}
	return x, true
}

// contents finds how many bytes after the front each header that leaves encloses.
func (r *rewriter) contents(payload ir.Expr, front ir.Off) {
	for _, o := range r.headers {
		if o.Old != nil && o.Index >= r.ending.data {
			payload = fold.Bin(ir.Sub, o.Old.Inner, fold.Off(front))
		}
		o.content = payload
		// what is put in after it ends in front of its trailer
		if o.Old != nil && o.Old == r.p.Scope.Path[len(r.p.Scope.Path)-1] && o.Decl.Trailer > 0 {
			payload = fold.Bin(ir.Sub, payload, fold.Num(uint64(o.Decl.Trailer)))
		}
	}
}
