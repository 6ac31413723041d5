package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// What a program is given by the kernel: an skb, at XDP the frame as the driver has it, or nothing but a record. The
// helpers for frames are in templates/xdp.h. A frame that isn't taken comes to the program at tc/ingress, and isn't
// counted before.

// xdp is the frame.
const xdp = c.Ident("xdp")

// ctx is what the program is given.
func (p *program) ctx() c.Param {
	if p.frame() {
		return c.Param{Type: "struct xdp_md *", Name: xdp}
	}
	return skbParam
}

// frame reports whether the program runs at XDP.
func (p *program) frame() bool { return p.ir.Hook == ir.XDP }

// helper is the name of a helper for what the program is given.
func (p *program) helper(name string) string {
	if p.frame() {
		return "fr_xdp_" + name
	}
	return "fr_" + name
}

// given is what helpers are given.
func (p *program) given() c.Expr { return p.ctx().Name.(c.Ident) }

// device is the index of the device that the packet came in by.
func (p *program) device() c.Expr {
	if p.frame() {
		return c.To(xdp, "ingress_ifindex")
	}
	return ofSKB("ifindex")
}

// bounds are pointers to the packet's first byte, and to the one after its last, as they are now.
func (p *program) bounds() (begin, end c.Expr) {
	of := func(member string) c.Expr { return untyped(c.Cast{Type: "long", X: c.To(p.given(), member)}) }
	return of("data"), of("data_end")
}

// frames reports whether a program runs at XDP.
func (r *renderer) frames() bool {
	for p := range r.plan.Flow() {
		if p.Hook == ir.XDP {
			return true
		}
	}
	return false
}

// untaken is what is returned for a frame that isn't taken, by its reason.
var untaken = [...]c.Expr{ir.IsLeft: c.Ident("FR_XDP_LEFT"), ir.IsOthers: c.Ident("XDP_PASS")}

// verdict is the type of what is returned of a packet.
func (p *program) verdict() c.Type {
	if p.frame() {
		return "__u64"
	}
	return "int"
}

// roomForFrame renders the call that makes and closes room: wherever the frame then begins, all of its front is
// written.
func (w *writer) roomForFrame() {
	w.gap()
	args := []c.Expr{xdp, frameLen, w.oldFront(), w.newFront(), w.expr(w.rw.Payload), c.Address(data)}
	w.checked = w.rw.NewFront.Const
	w.define(w.rw.Pos, "int", c.Ident("err"), c.Do("fr_xdp_resize", args...))
	fault := w.reasonOf(w.fwd.Fault)
	w.fails(c.Unlikely(c.Ident("err")), c.Choice{
		If:   equals(c.Ident("err"), c.Ident("FR_BROKEN")),
		Then: c.Do("fr_xdp_drop", frameLen, fault), Else: w.stop(w.reasonOf(w.fwd.NoRoom)),
	})
	w.changed, w.moves = true, true
}
