package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// How room is made between the front and the payload: by fr_resize in templates/fastrelay.h, which has all cases. Here
// it is only said which one it is.

// shift is by how many bytes the front grows through means other than adjust_room and moving the payload.
func (w *writer) shift() (n int) {
	switch w.rw.Family {
	case 4:
		n -= 20
	case 6:
		n += 20
	}
	if w.rw.PopInner {
		n -= 4
	}
	return n
}

// delta is by how much the front grows after that, in bytes, and whether it is fixed.
func (w *writer) delta() (x c.Expr, n int, fixed bool) {
	rw := w.rw
	n = rw.NewFront.Const - rw.OldFront.Const - w.shift()
	switch {
	case rw.NewFront.Base == rw.OldFront.Base:
		return c.Dec(n), n, true
	case rw.NewFront.Base == nil:
		return c.Binary{Op: "-", X: c.Dec(n), Y: c.Cast{Type: "__s32", X: w.variable(rw.OldFront.Base)}}, n, false
	}
	w.fail("the front of a rewrite at %s begins to vary", rw.Pos)
	return c.Num(0), 0, true
}

// shifted is the condition (nil: never) under which an odd number of bytes was put in or taken out by adjust_room.
func (w *writer) shifted() c.Expr {
	switch w.rw.Resize {
	case ir.MoveHeaders, ir.MoveEither:
	default:
		return nil
	}
	odd, n, fixed := w.delta()
	switch {
	case fixed && n%2 == 0:
		return nil
	case fixed:
		odd = c.Num(1)
	default:
		odd = c.Binary{Op: "&", X: odd, Y: c.Num(1)}
	}
	if w.rw.Resize == ir.MoveEither {
		return c.Join("&&", c.Not(w.anyPartial()), odd)
	}
	return odd
}

// anyPartial is the condition under which a checksum of a header that stays where it is while the
// payload moves is partial.
func (w *writer) anyPartial() c.Expr {
	var partial []c.Expr
	for _, s := range w.sums {
		if s.Offloaded && !s.Fresh && s.Old.Base == w.rw.Unmoved.Base && s.Old.Const < w.rw.Unmoved.Const {
			partial = append(partial, c.In(s.name("csum"), "partial"))
		}
	}
	if len(partial) == 0 {
		w.fail("a rewrite at %s depends on a partial checksum, but has none", w.rw.Pos)
		return c.Num(0)
	}
	return c.Join("||", partial...)
}

// resizes reports whether room is made or closed, or the tail is cut off, by fr_resize.
func (w *writer) resizes() bool {
	rw := w.rw
	return rw.Resize != ir.InPlace || rw.PopInner || rw.Family != 0 || rw.Trim
}

// lengths declares how many bytes of headers the packet has before and after the rewrite, if these are fixed.
func (w *writer) lengths() {
	rw := w.rw
	if !w.resizes() || rw.OldFront.Base != nil || rw.NewFront.Base != nil {
		return
	}
	w.oldLen, w.newLen = own("headers_len", ""), own("new_headers_len", "")
	w.constant(w.oldLen, rw.OldFront.Const)
	w.constant(w.newLen, rw.NewFront.Const)
}

// oldFront is the number of bytes in front of the payload that came.
func (w *writer) oldFront() c.Expr {
	if w.oldLen != nil {
		return w.oldLen
	}
	return w.offset(w.rw.OldFront)
}

// newFront is the number of bytes in front of the payload that leaves.
func (w *writer) newFront() c.Expr {
	if w.newLen != nil {
		return w.newLen
	}
	return w.offset(w.rw.NewFront)
}

// endOf is an offset in the packet that leaves: that of the payload has a name.
func (w *writer) endOf(v *ir.Var, n int) c.Expr {
	if w.isEnd(v, n) {
		return w.newLen
	}
	return c.Dec(n)
}

// isEnd reports whether an offset is that of the payload, and has a name.
func (w *writer) isEnd(v *ir.Var, n int) bool {
	return v == nil && w.newLen != nil && n == w.rw.NewFront.Const
}

// room renders the call that makes and closes room.
func (w *writer) room() {
	rw := w.rw
	if w.prog.frame() && w.resizes() {
		w.roomForFrame()
		return
	}
	var how []c.Expr
	if rw.PopInner {
		how = append(how, c.Ident("FR_POP_INNER"))
		if rw.PopTag {
			how = append(how, c.Ident("FR_POP_TAG"))
		}
	}
	switch {
	case w.common != nil:
		how = append(how, c.Ident("how"))
	case rw.Encap != nil || rw.Family != 0:
		how = append(how, family(rw))
	}
	switch rw.Resize {
	case ir.InPlace:
		if !w.resizes() {
			w.cutOff()
			return
		}
	case ir.MovePayload:
		w.needs["scratch"] = "yes"
		how = append(how, c.Ident("FR_PAYLOAD"))
	case ir.MoveEither:
		w.needs["scratch"] = "yes"
		how = append(how, c.Choice{If: w.anyPartial(), Then: c.Ident("FR_PAYLOAD"), Else: c.Num(0)})
	}
	if len(how) == 0 {
		how = []c.Expr{c.Num(0)}
	}
	w.gap()
	resize := "fr_move"
	args := []c.Expr{skb, w.oldFront(), w.newFront(), w.expr(rw.Payload), c.Join("|", how...)}
	if w.newLen != nil && w.stored() {
		resize, args, w.checked = "fr_resize", append(args, c.Address(data)), rw.NewFront.Const
	}
	w.define(rw.Pos, "int", c.Ident("err"), c.Do(resize, args...))
	fault := w.reasonOf(w.fwd.Fault)
	w.fails(c.Unlikely(c.Ident("err")), c.Do("fr_failed", skb, frameLen, c.Ident("err"), fault))
	if w.reasonOf(w.fwd.NoRoom); w.prog.number(w.fwd.NoRoom) != w.prog.number(w.fwd.Fault)+1 {
		w.fail("the reasons of what fails at %s don't follow each other", w.rw.Pos)
	}
	w.changed, w.moves = true, true
}

// family says how the kernel learns which IP version the packet gets, and of a GSO packet, which tunnel.
func family(rw *ir.Rewrite) c.Expr {
	change := c.Expr(c.Num(0))
	if rw.Family != 0 {
		change = c.Ident(fmt.Sprintf("FR_TO_IPV%d", rw.Family))
	}
	e := rw.Encap
	if e == nil {
		return change
	}
	tunnel := []c.Expr{c.Ident(fmt.Sprintf("FR_IN_IPV%d", e.Family))}
	if e.UDP {
		tunnel = append(tunnel, c.Ident("FR_IN_UDP"))
	}
	if e.Ethernet {
		tunnel = append(tunnel, c.Ident("FR_IN_ETHERNET"))
	}
	return c.Choice{If: ofSKB("gso_size"), Then: c.Join("|", tunnel...), Else: change}
}

// cutOff renders what is done if bytes follow what is sent: the only time that the packet may move here.
func (w *writer) cutOff() {
	if w.fwd.End == nil {
		return
	}
	end := w.expr(w.fwd.End)
	w.gap()
	cut := w.when(w.fwd.Pos, c.Unlikely(exceeds(frameLen, end)), func() {
		if w.prog.frame() {
			w.failIf(c.Do("bpf_xdp_adjust_tail", xdp, c.Binary{Op: "-", X: end, Y: frameLen}))
		} else {
			w.failIf(c.Do("bpf_skb_change_tail", skb, end, c.Num(0)))
		}
		w.changed = true
		w.rederive()
		w.changed = false
	})
	cut.Note = "bytes after the IP datagram"
}

// reasonOf names a reason that a rewrite which can fail has to have.
func (w *writer) reasonOf(i int) c.Expr {
	if i < 0 {
		w.fail("a rewrite at %s can fail, but has no reason for it", w.fwd.Pos)
		return c.Num(0)
	}
	return w.prog.reasonName(i)
}
