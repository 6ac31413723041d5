package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// How room is made. adjust_room moves what stands in front of the room (the link-layer header) and is the fast way. It is wrong
// where the transport checksum is pending: the kernel remembers where that begins (csum_start) and the place doesn't move along
// with the header. Then the payload moves instead, through memory of this processor.
//
// Everything is in the order: what can fail before the first change; the changes that can fail; the ones that can't, because
// the packet is linear and ours (fr_linear) and only gets shorter.

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

// delta is by how much the front grows behind that, in bytes, and whether it is fixed.
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

// shifted holds where an odd number of bytes was put in or taken out by adjust_room.
func (w *writer) shifted() string {
	switch w.rw.Resize {
	case ir.MoveHeaders, ir.MoveEither:
	default:
		return "0"
	}
	text, n, fixed := w.delta()
	switch {
	case fixed && n%2 == 0:
		return "0"
	case fixed:
		text = "1"
	default:
		text = "(" + text + ") & 1"
	}
	if w.rw.Resize == ir.MoveEither {
		text = fmt.Sprintf("%s ? 0 : %s", w.anyPending(), text)
	}
	return text
}

func (w *writer) anyPending() string {
	for _, s := range w.sums {
		if s.Offloaded {
			return s.name("pending")
		}
	}
	w.fail("a rewrite at %s depends on a pending checksum, but has none", w.rw.Pos)
	return "0"
}

// room renders the helpers that make and close room.
func (w *writer) room() {
	rw := w.rw
	cut := rw.Trim
	steps := 0
	for _, step := range []bool{rw.PopInner, rw.PopInner && rw.PopTag, rw.Family != 0, rw.Resize != ir.InPlace, cut} {
		if step {
			steps++
		}
	}
	if steps == 0 {
		return
	}
	w.line("")
	switch rw.Resize {
	case ir.InPlace:
		w.moveHeaders(steps)
	case ir.MoveHeaders:
		w.moveHeaders(steps)
	case ir.MovePayload:
		w.movePayload()
	case ir.MoveEither:
		w.line("if (unlikely(%s)) {", w.anyPending())
		w.indent++
		w.movePayload()
		w.indent--
		changed := w.changed
		w.changed = false
		w.line("} else {")
		w.indent++
		w.moveHeaders(steps)
		w.indent--
		w.line("}")
		w.changed = w.changed || changed
	}
}

// before renders the changes of the link-layer header and the network header's family.
func (w *writer) before() {
	if w.rw.PopInner {
		if w.rw.PopTag {
			w.check(true, "bpf_skb_vlan_pop(skb)")
		}
		w.check(true, "bpf_skb_vlan_pop(skb)")
	}
	switch w.rw.Family {
	case 4:
		w.check(true, "bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0)")
	case 6:
		w.check(true, "bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0)")
	}
}

// size is the size of the packet that leaves.
func (w *writer) size() string {
	return fmt.Sprintf("%s + %s", w.offset(w.rw.NewFront), w.operand(w.rw.Payload))
}

func (w *writer) moveHeaders(steps int) {
	rw := w.rw
	if steps > 1 {
		w.check(false, "fr_linear(skb)")
	}
	w.before()
	if rw.Resize != ir.InPlace {
		if text, n, fixed := w.delta(); !fixed || n != 0 {
			w.check(true, "bpf_skb_adjust_room(skb, %s, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_NO_CSUM_RESET)", text)
		}
	}
	if rw.Trim {
		w.check(true, "len > %s + %s && bpf_skb_change_tail(skb, %s, 0)", w.offset(rw.OldFront), w.operand(rw.Payload), w.size())
	}
}

func (w *writer) movePayload() {
	rw := w.rw
	w.needs["scratch"] = "yes"
	w.check(false, "fr_linear(skb) || fr_take(skb, %s, %s)", w.offset(rw.OldFront), w.expr(rw.Payload))
	w.before()
	_, n, fixed := w.delta()
	tail := func() { w.check(true, "bpf_skb_change_tail(skb, %s, 0)", w.size()) }
	give := func() { w.check(true, "fr_give(skb, %s, %s)", w.offset(rw.NewFront), w.expr(rw.Payload)) }
	switch {
	case fixed && n < 0:
		give()
		tail()
	case fixed:
		tail()
		give()
	default: // it may grow or shrink
		w.check(true, "skb->len < %s && bpf_skb_change_tail(skb, %s, 0)", w.size(), w.size())
		give()
		tail()
	}
}
