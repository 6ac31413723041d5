package bpf

import (
	"fmt"
	"strings"

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
func (w *writer) delta() (text string, n int, fixed bool) {
	rw := w.rw
	n = rw.NewFront.Const - rw.OldFront.Const - w.shift()
	switch {
	case rw.NewFront.Base == rw.OldFront.Base:
		return fmt.Sprint(n), n, true
	case rw.NewFront.Base == nil:
		return fmt.Sprintf("%d - (__s32)%s", n, w.variable(rw.OldFront.Base)), n, false
	}
	w.fail("the front of a rewrite at %s begins to vary", rw.Pos)
	return "0", 0, true
}

// shifted is the condition (none: never) under which an odd number of bytes was put in or taken out by adjust_room.
func (w *writer) shifted() string {
	switch w.rw.Resize {
	case ir.MoveHeaders, ir.MoveEither:
	default:
		return ""
	}
	text, n, fixed := w.delta()
	switch {
	case fixed && n%2 == 0:
		return ""
	case fixed:
		text = "1"
	default:
		text = "(" + text + ") & 1"
	}
	if w.rw.Resize == ir.MoveEither {
		text = fmt.Sprintf("!%s && %s", w.anyPartial(), text)
	}
	return text
}

// anyPartial is the condition under which a checksum of a header that stays where it is while the
// payload moves is partial.
func (w *writer) anyPartial() string {
	var names []string
	for _, s := range w.sums {
		if s.Offloaded && !s.Fresh && s.Old.Base == w.rw.Unmoved.Base && s.Old.Const < w.rw.Unmoved.Const {
			names = append(names, s.name("csum")+".partial")
		}
	}
	switch len(names) {
	case 0:
		w.fail("a rewrite at %s depends on a partial checksum, but has none", w.rw.Pos)
		return "0"
	case 1:
		return names[0]
	}
	return "(" + strings.Join(names, " || ") + ")"
}

// resizes reports whether room is made or closed, or the tail is cut off, by fr_resize.
func (w *writer) resizes() bool {
	rw := w.rw
	return rw.Resize != ir.InPlace || rw.PopInner || rw.Family != 0 || rw.Trim
}

// lengths declares how many bytes of headers the packet has before and after the rewrite, where these are fixed.
func (w *writer) lengths() {
	rw := w.rw
	if !w.resizes() || rw.OldFront.Base != nil || rw.NewFront.Base != nil {
		return
	}
	w.oldLen, w.newLen = w.names.own("headers_len"), w.names.own("new_headers_len")
	w.constant(w.oldLen, rw.OldFront.Const)
	w.constant(w.newLen, rw.NewFront.Const)
}

// oldFront is the number of bytes in front of the payload that came.
func (w *writer) oldFront() string {
	if w.oldLen != "" {
		return w.oldLen
	}
	return w.offset(w.rw.OldFront)
}

// newFront is the number of bytes in front of the payload that leaves.
func (w *writer) newFront() string {
	if w.newLen != "" {
		return w.newLen
	}
	return w.offset(w.rw.NewFront)
}

// end is an offset in the packet that leaves: that of the payload has a name.
func (w *writer) end(v *ir.Var, n int) string {
	if v == nil && w.newLen != "" && n == w.rw.NewFront.Const {
		return w.newLen
	}
	return fmt.Sprint(n)
}

// room renders the call that makes and closes room.
func (w *writer) room() {
	rw := w.rw
	var how []string
	if rw.PopInner {
		how = append(how, "FR_POP_INNER")
		if rw.PopTag {
			how = append(how, "FR_POP_TAG")
		}
	}
	switch {
	case w.half != nil:
		how = append(how, "how")
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
		how = append(how, "FR_PAYLOAD")
	case ir.MoveEither:
		w.needs["scratch"] = "yes"
		how = append(how, fmt.Sprintf("%s ? FR_PAYLOAD : 0", w.anyPartial()))
	}
	if len(how) == 0 {
		how = []string{"0"}
	}
	if last := len(how) - 1; last > 0 && strings.Contains(how[last], "?") {
		how[last] = "(" + how[last] + ")"
	}
	w.line("")
	resize, data := "fr_move", ""
	if w.newLen != "" && w.stored() {
		w.usesData()
		resize, data, w.checked = "fr_resize", ", &data", rw.NewFront.Const
	}
	w.stmt(rw.Pos, "int err = %s(skb, %s, %s, %s, %s%s);", resize, w.oldFront(), w.newFront(), w.expr(rw.Payload),
		strings.Join(how, " | "), data)
	w.fails("unlikely(err)", fmt.Sprintf("return fr_failed(skb, len, err, %s, %s);", w.reasonOf(w.fwd.Fault),
		w.reasonOf(w.fwd.NoRoom)))
	w.changed, w.moves = true, true
}

// family says how the kernel learns which IP version the packet gets, and of a GSO packet, which tunnel.
func family(rw *ir.Rewrite) string {
	change := "0"
	if rw.Family != 0 {
		change = fmt.Sprintf("FR_TO_IPV%d", rw.Family)
	}
	e := rw.Encap
	if e == nil {
		return change
	}
	tunnel := fmt.Sprintf("FR_IN_IPV%d", e.Family)
	if e.UDP {
		tunnel += " | FR_IN_UDP"
	}
	if e.Ethernet {
		tunnel += " | FR_IN_ETHERNET"
	}
	return fmt.Sprintf("skb->gso_size ? %s : %s", tunnel, change)
}

// cutOff renders what is done where bytes follow what is sent: the only time that the packet may move here.
func (w *writer) cutOff() {
	if w.fwd.End == nil {
		return
	}
	end := w.expr(w.fwd.End)
	w.line("")
	w.stmt(w.fwd.Pos, "if (unlikely(len > %s)) { /* bytes after the IP datagram */", end)
	w.indent++
	w.failIf(fmt.Sprintf("bpf_skb_change_tail(skb, %s, 0)", end))
	w.changed = true
	w.rederive()
	w.changed = false
	w.indent--
	w.line("}")
}

// reasonOf names a reason that a rewrite which can fail has to have.
func (w *writer) reasonOf(i int) string {
	if i < 0 {
		w.fail("a rewrite at %s can fail, but has no reason for it", w.fwd.Pos)
		return "0"
	}
	return w.prog.reasonName(i)
}
