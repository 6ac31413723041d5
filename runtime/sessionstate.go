package runtime

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// What the fields of a session refer to by an index: counters, credits and buckets. A session has one of each such
// field, whichever and however many of its rows name it.

// stateKind is what the sessions of a kind refer to, as if it stood in a row of its own, with an index for each field.
type stateKind struct {
	members []abi.Member // by field; nil: the sessions refer to nothing
	blocks  *creditBlocks
}

func stateMembers(d *abi.Session) (members []abi.Member) {
	refers := false
	for i, f := range d.Fields {
		refers = refers || f.Kind.IsState()
		members = append(members, abi.Member{Name: f.Name, Kind: f.Kind, Levels: f.Levels, Size: 4, Off: 4 * i})
	}
	if !refers {
		return nil
	}
	return members
}

// stateKind is that of the session's kind.
func (s *Session) stateKind() *stateKind { return &s.relay.sessionState[s.kind] }

// givenState reads the values that a caller gave for what fields refer to, by field; nil for those that stay, or begin,
// as they are.
func (s *Session) givenState(values []any) ([]any, error) {
	given := make([]any, len(values))
	for i, m := range s.stateKind().members {
		if !m.Kind.IsState() {
			continue
		}
		var have any
		if s.handles != nil {
			have = s.handles[i]
		}
		v, err := checkState(m, values[i], have)
		if err != nil {
			return nil, &ValueError{
				Where: fmt.Sprintf("session %q, %q", s.desc.Name, m.Name), Value: values[i], Reason: err.Error(),
			}
		}
		given[i] = v
	}
	return given, nil
}

// setState gives what fields refer to the values that a caller gave.
func (s *Session) setState(given []any) {
	for i, v := range given {
		if v != nil {
			setState(s.handles[i], v)
		}
	}
}

// newState gives a session that is being opened what its fields refer to, and its rows the indices. r.mu is held.
func (r *Relay) newState(s *Session, given []any) error {
	k := s.stateKind()
	if k.members == nil {
		return nil
	}
	block, ok := k.blocks.take()
	if !ok {
		return &FullError{What: fmt.Sprintf("session %q", s.desc.Name), Size: s.desc.Size}
	}
	s.state = make([]byte, 4*len(k.members))
	if err := r.allocState(k.members, s.state, k.blocks, block, func(i int) uint64 {
		n, _ := given[i].(uint64)
		return n
	}); err != nil {
		s.state = nil
		return err
	}
	s.takeState()
	s.setState(given)
	for i, row := range s.rows {
		s.fill(row.value, row.table.desc.Value, s.desc.Rows[i].Value)
	}
	return nil
}

// takeState finds what the session's indices stand for.
func (s *Session) takeState() {
	members := s.stateKind().members
	s.handles = make([]any, len(members))
	for i, m := range members {
		if m.Kind.IsState() {
			s.handles[i] = s.relay.state(m, abi.Order.Uint32(s.state[m.Off:]))
		}
	}
}

// endState frees what the session refers to. r.mu is held, and no program finds the session any more.
func (r *Relay) endState(s *Session) {
	if s.state != nil {
		k := s.stateKind()
		r.releaseState(k.members, s.state, k.blocks)
	}
}

// adoptState takes over what a session of the process before refers to; false where that isn't what a relay writes.
// used are the blocks of credits that are taken, by kind. Counters are found by countersInUse.
func (s *Session) adoptState(used map[uint32]bool) bool {
	k, r := s.stateKind(), s.relay
	first := true
	var mine uint32
	for i, m := range k.members {
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
