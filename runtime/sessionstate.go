package runtime

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// What the fields of a session refer to by an index: counters, credits and buckets. A session has one of each such
// field, whichever and however many of its rows name it.

// sessionKind is what the sessions of a kind have in common.
type sessionKind struct {
	layout               // of the fields, and of the indices of those that refer to something
	refers bool          // some do
	blocks *creditBlocks // of credits
}

func newSessionKind(d *abi.Session, blocks *creditBlocks) sessionKind {
	k := sessionKind{layout: fieldLayout(d), blocks: blocks}
	for _, m := range k.members {
		k.refers = k.refers || m.Kind.IsState()
	}
	return k
}

func fieldLayout(d *abi.Session) layout {
	l := layout{where: fmt.Sprintf("session %q", d.Name)}
	for _, f := range d.Fields {
		m := abi.Member{Name: f.Name, Kind: f.Kind, Bits: f.Bits, Levels: f.Levels, Size: f.Size, Off: l.size}
		if f.Kind.IsState() {
			m.Size = 4
		}
		l.size += m.Size
		l.members = append(l.members, m)
	}
	return l
}

// of is the session's kind.
func (s *AnySession) of() *sessionKind { return &s.relay.sessionKinds[s.kind] }

// setState gives what fields refer to what they begin with, or are set to.
func (s *AnySession) setState(starts [][]*first) {
	for i, to := range starts {
		if len(to) > 0 {
			setAll(s.refers[i], to)
		}
	}
}

// newState gives a session that is being opened what its fields refer to, and its rows the indices. r.mu is held.
func (r *Relay) newState(s *AnySession, starts [][]*first) error {
	k := s.of()
	if !k.refers {
		return nil
	}
	block, ok := k.blocks.take()
	if !ok {
		return &FullError{What: k.where, Size: s.desc.Size}
	}
	s.state = make([]byte, k.size)
	if err := r.allocState(k.members, s.state, k.blocks, block, starts); err != nil {
		s.state = nil
		return err
	}
	s.takeState()
	s.setState(starts)
	for i, row := range s.rows {
		s.fill(row.value, row.table.desc.Value, s.desc.Rows[i].Value)
	}
	return nil
}

// takeState finds what the session's indices stand for.
func (s *AnySession) takeState() {
	members := s.of().members
	s.refers = make([][]handle, len(members))
	for i := range members {
		if m := &members[i]; m.Kind.IsState() {
			s.refers[i] = s.relay.handles(m, s.state)
		}
	}
}

// endState frees what the session refers to. r.mu is held, and no program finds the session any more.
func (r *Relay) endState(s *AnySession) {
	if s.state != nil {
		k := s.of()
		r.releaseState(k.members, s.state, k.blocks)
	}
}

// adoptState takes over what a session of the process before refers to; false if that isn't what a relay writes.
// used are the blocks of credits that are taken, by kind. Counters are found by countersInUse.
func (s *AnySession) adoptState(used map[uint32]bool) bool {
	k, r := s.of(), s.relay
	first := true
	var mine uint32
	for i, m := range k.members {
		if !m.Kind.IsState() {
			continue
		}
		index := abi.Order.Uint32(s.state[m.Off:])
		switch m.Kind {
		case abi.KindCounter:
			if index == 0 || int(index) >= r.desc.Shared {
				return false
			}
		case abi.KindCredit, abi.KindBucket:
			block, ok := k.blocks.block(index, i)
			if !ok || int(block) >= s.desc.Size || first && used[block] || !first && block != mine {
				return false
			}
			first, mine = false, block
		}
	}
	if !first {
		used[mine] = true
	}
	for _, m := range k.members {
		if m.Kind == abi.KindCredit || m.Kind == abi.KindBucket {
			r.credits.make(m, abi.Order.Uint32(s.state[m.Off:]))
		}
	}
	return true
}
