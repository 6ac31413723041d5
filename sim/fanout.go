package sim

import (
	"bytes"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// fanOut runs Each for every receiver of a group, and then lets the packet go on as it came, or drops it.
func (r *run) fanOut(n *node, s *ir.FanOut) {
	key := r.layout(&s.Group.Key, s.Key)
	if r.err != nil {
		return
	}
	rows, known := r.relay.groups[s.Group.Name].Get(key)
	if !known {
		n.no.Hits++
		r.punt(s.Miss)
		return
	}
	if r.front = r.offset(s.Front); r.front > r.checked {
		r.fail("a fan-out works on %d bytes, but only %d were checked", r.front, r.checked)
		return
	}
	if _, ok := r.before(n.effects); !ok {
		return
	}
	r.after(n.effects)
	received := r.in
	if s.End != nil {
		if r.in = r.cut(r.in, s.End); r.front > len(r.in) {
			r.fail("a fan-out works on %d bytes, and cuts the packet off at %d", r.front, len(r.in))
		}
		whole := *r.packet
		whole.Data = r.in
		r.packet = &whole
	}
	if r.err != nil {
		return
	}

	index, declared := r.prog.rows[s.Row]
	if !declared {
		r.fail("row %q is not declared", s.Row.Name)
		return
	}
	// What one turn finds out, the next doesn't know.
	vars, set, found := slices.Clone(r.vars), slices.Clone(r.set), slices.Clone(r.rows)
	for _, row := range rows {
		copy(r.vars, vars)
		copy(r.set, set)
		copy(r.rows, found)
		r.checked = r.front
		r.rows[index] = rowState{looked: true, found: true, value: row}
		turn := Copy{Receiver: identity(s.Row.Table, row)}
		r.turn = &turn
		if !r.block(n.then) {
			r.fail("a receiver's turn ends without a copy and without a reason")
		}
		r.turn = nil
		if r.err != nil {
			return
		}
		r.result.Copies = append(r.result.Copies, turn)
	}
	r.in = received
	r.handOver()
	for _, row := range s.Usage {
		r.use(row)
	}
	verdict := VerdictPass
	out := *r.packet
	if s.Drop {
		verdict, out.Data = VerdictDrop, received
	}
	r.finish(verdict, s.Reason, out)
}

// copy sends a copy to the receiver whose turn it is.
func (r *run) copy(n *node, s *ir.Copy) {
	taken, ok := r.before(n.effects)
	if !ok {
		return
	}
	out := *r.packet
	if w := s.Rewrite; w != nil {
		if w.Resize != ir.InPlace || w.PopTag || w.PopInner || w.Trim {
			r.fail("a copy is not rewritten in place")
			return
		}
		out = r.rewrite(w, r.prog.ir.L2)
	}
	hop := r.hop(s.Hop)
	if r.err == nil && hop.State != ir.HopDirect {
		r.fail("a copy leaves through a hop whose link-layer addresses aren't known")
	}
	if r.err != nil {
		return
	}
	if r.prog.ir.L2 {
		out.Data = withLinkAddresses(out.Data, hop)
	}
	if !bytes.Equal(out.Data[r.front:], r.in[r.front:]) {
		r.fail("a copy changes bytes after the %d of the fan-out's front", r.front)
		return
	}
	if w := &r.relay.World; r.stuck(s.Rewrite) || w.Refuses != nil && w.Refuses(len(r.result.Copies), hop) {
		n.no.Hits++
		r.giveBack(taken)
		r.decline(s.Failed)
		if u := r.receiver(); u != nil {
			u.Failed++
		}
		return
	}
	n.yes.Hits++
	r.after(n.effects)
	r.took(s.Reason)
	if u := r.receiver(); u != nil {
		u.Packets++
		u.Bytes += uint64(len(out.Data))
	}
	r.turn.Sent, r.turn.Packet, r.turn.Hop = true, out, &hop
}

// decline ends the receiver's turn without a copy.
func (r *run) decline(reason int) {
	r.took(reason)
	if u := r.receiver(); u != nil {
		u.Declined++
	}
}

// took counts the turn under a reason.
func (r *run) took(reason int) {
	if r.err != nil {
		return
	}
	r.relay.Reasons[r.prog.tallies[reason]].add(len(r.in))
	r.turn.Reason = r.prog.ir.Reasons[reason].Name
}

// receiver returns the usage of the receiver whose turn it is; an identity that no receiver has counts nothing.
func (r *run) receiver() *ReceiverUsage {
	if r.err != nil || int64(r.turn.Receiver) >= int64(len(r.relay.Receivers)) {
		return nil
	}
	return &r.relay.Receivers[r.turn.Receiver]
}
