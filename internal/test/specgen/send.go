package specgen

import (
	"fmt"
	"slices"
	"strings"
)

// send sends the packet in one of the ways that are possible here, or returns "".
func (w *rewriting) send() string {
	net := w.net()
	if net < 0 {
		return w.sendPushed()
	}
	after := w.now[net+1:]
	if inner := slices.IndexFunc(after, (*entry).isIP); inner >= 0 {
		after = after[:inner]
	}
	hasPorts := slices.ContainsFunc(after, func(e *entry) bool {
		return !e.optional && e.all(func(h *header) bool { return h == stdUDP || h == stdTCP })
	})
	// With from and to the family may change, and then everything after has to move.
	rigid := len(w.now[net].alts) > 1 && w.rigid(w.now) && !w.one(20)
	tagged := slices.ContainsFunc(w.now, func(e *entry) bool { return e.alts[0] == stdVLAN })
	if tagged && w.rigid(w.now) && !w.one(4) {
		return "" // without its tag all after would have to move
	}
	rigid = rigid || len(w.now[net].alts) > 1 && size(firsts(w.now)) > mostBytes-15 && !w.one(20)
	any := func(kind kind) (string, bool) {
		r, ok := w.choose(func(r ref) bool { return r.t.kind == kind })
		return r.text, ok
	}
	row := func(kind kind) (string, bool) {
		r, ok := w.choose(func(r ref) bool {
			return r.t.kind == kind && r.at == nil && len(r.flds) == 0 && w.isRow(r.text)
		})
		return r.text, ok
	}
	var actions []string
	both := []string{"src", "dst"}
	ends := append(both, "src_port", "dst_port")
	add := func(action string, fields ...string) {
		if !w.clash(fields...) {
			actions = append(actions, action)
		}
	}
	if via, ok := any(nextHopKind); ok {
		actions = append(actions, fmt.Sprintf("{send: {via: %q}}", via), fmt.Sprintf("{send: via: %q}", via))
	}
	if !w.inFan && w.one(4) {
		actions = append(actions, `{send: via: "route"}`)
	}
	if w.inFan && hasPorts {
		receivers := func(r ref) bool { return r.t.kind == endpointKind && strings.HasPrefix(r.text, "r.") }
		if to, ok := w.choose(func(r ref) bool { return receivers(r) && !strings.Contains(r.text, "[") }); ok {
			from, _ := w.choose(receivers)
			// A source that isn't the receiver's. It isn't drawn, so that what is drawn after it stays the same.
			other := slices.IndexFunc(w.refs, func(r ref) bool {
				return r.t.kind == endpointKind && w.isRow(r.text) &&
					!receivers(r) && w.known(r.need) && !r.t.levels
			})
			if other >= 0 && len(to.text)%2 == 0 {
				from = w.refs[other]
			}
			add(fmt.Sprintf("{send: {from: %q, to: %q}}", from.text, to.text), ends...)
		}
	} else if hasPorts && !rigid {
		if from, ok := row(endpointKind); ok {
			if to, ok := row(endpointKind); ok {
				one := fmt.Sprintf("{send: {from: %q, to: %q}}", from, to)
				add(one, ends...)
				add(one, ends...)
			}
			if to, ok := any(endpointKind); ok {
				add(fmt.Sprintf("{send: {from: %q, to: %q}}", from, to), ends...)
			}
		}
		if from, ok := any(endpointKind); ok && w.one(3) {
			if to, ok := any(endpointKind); ok {
				add(fmt.Sprintf("{send: {from: %q, to: %q}}", from, to), ends...)
			}
		}
	}
	if w.inFan {
		if len(actions) == 0 {
			return ""
		}
		return pick(w.generator, actions)
	}
	if to, ok := row(addrKind); ok {
		add(fmt.Sprintf("{send: to: %q}", to), "dst")
		if from, ok := any(addrKind); ok && !rigid {
			add(fmt.Sprintf("{send: {from: %q, to: %q}}", from, to), both...)
		}
	}
	if to, ok := any(addrKind); ok && w.one(3) && !rigid {
		if from, ok := any(addrKind); ok && !rigid {
			add(fmt.Sprintf("{send: {from: %q, to: %q}}", from, to), both...)
		}
	}
	if len(actions) == 0 {
		return ""
	}
	return pick(w.generator, actions)
}

// sendPushed sends a packet that was put into another one, which says where it goes, or returns "".
func (w *rewriting) sendPushed() string {
	net := slices.IndexFunc(w.now, (*entry).isIP)
	if net < 0 || slices.Contains(w.stack, w.now[net]) {
		return ""
	}
	hop, ok := w.choose(func(r ref) bool { return r.t.kind == nextHopKind })
	if !ok || w.one(2) {
		return `{send: via: "route"}`
	}
	return fmt.Sprintf("{send: via: %q}", hop.text)
}

// clash reports whether a field of a header that leaves, which send is to give a value, has one.
func (w *rewriting) clash(fields ...string) bool {
	return slices.ContainsFunc(w.now, func(e *entry) bool {
		return slices.ContainsFunc(fields, func(name string) bool { return w.sets[e.name+"."+name] })
	})
}

// net is the place of the network header that a packet is sent by, or -1.
func (w *rewriting) net() int {
	net := slices.IndexFunc(w.now, (*entry).isIP)
	if net >= 0 && (w.now[net].optional || w.gone[w.now[net]]) { // one that is put in says itself where the packet goes
		return -1
	}
	return net
}

// isRow reports whether a name is one of a row's members.
func (w *rewriting) isRow(text string) bool {
	first, _, _ := strings.Cut(text, ".")
	return first != "setting" && !slices.ContainsFunc(w.stack, func(e *entry) bool {
		return e.name == first || slices.ContainsFunc(e.alts, func(h *header) bool { return h.name == first })
	})
}
