package runtime

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A session is changed by new rows with another generation of its slot: those with new keys are added, those whose keys
// stay are overwritten. None of them counts until the slot has the new generation, and from that moment on none of the
// old ones does. So no packet finds old and new values. One that comes between the first row that is overwritten and
// the end finds no row, and passes to the stack; that takes some system calls. A process that dies in between leaves a
// session that isn't whole, which an adoption closes.

// Change gives the session other values of its fields, in the order of the spec, as a whole or not at all. The session
// keeps its ID, its counters and its end; and its counters, credits and buckets, of which nil and what
// [AnySession.Values] returned leave a field as it is. Rows with new keys are added before the old ones go: a table
// needs room for both. Errors are those of [Relay.Open]; the session's Err if it is over.
func (s *AnySession) Change(values ...any) error {
	fields, err := s.of().encodeAny(values)
	return s.changeTo(fields, err)
}

// changeTo is Change to fields that were laid out.
func (s *AnySession) changeTo(fields values, err error) error {
	if err != nil {
		return err
	}
	r := s.relay
	next := &AnySession{relay: r, desc: s.desc, kind: s.kind, slot: s.slot, state: s.state, refers: s.refers}
	given, err := next.take(fields)
	if err != nil {
		return err
	}
	if err := next.makeRows(); err != nil {
		return err
	}
	if r.hops != nil {
		r.hops.prepare(next.rows)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.over {
		return fmt.Errorf("change %v: %w", s, s.err)
	}
	if r.closed {
		return fmt.Errorf("change %v: relay: %w", s, ErrClosed)
	}
	if err := r.change(s, next); err != nil {
		return fmt.Errorf("change %v: %w", s, err)
	}
	s.setState(given)
	return nil
}

// place is what identifies a row.
type place struct {
	table *AnyTable
	key   string
}

func (row *tableRow) place() place { return place{row.table, string(row.key)} }

// change puts the rows of next in the place of those of s. r.mu is held.
func (r *Relay) change(s, next *AnySession) (err error) {
	old, places := map[place]*tableRow{}, map[place]bool{}
	for _, row := range s.rows {
		old[row.place()] = row
	}
	next.gen = r.slots.next(s.slot)
	for _, row := range next.rows {
		if places[row.place()] {
			return fmt.Errorf("table %q: two rows of the session have one key, %s", row.table.desc.Name,
				row.table.keyString(row.key))
		}
		places[row.place()] = true
		row.link(s.slot, next.gen)
	}
	var overwritten, added []*tableRow
	for _, row := range next.rows {
		if r.hops != nil {
			r.hops.use(row)
		}
		if was := old[row.place()]; was != nil {
			if err = r.overwrite(row); err == nil {
				overwritten = append(overwritten, row)
			}
		} else if err = r.insert(next, row); err == nil {
			added = append(added, row)
		}
		if err == nil {
			continue
		}
		if r.hops != nil {
			r.hops.drop(row)
		}
		// What can't be taken back is harmless: the slot never had this generation.
		err = errors.Join(err, errors.Join(r.remove(added...)...))
		for _, row := range overwritten {
			if r.hops != nil {
				r.hops.drop(row)
			}
		}
		for _, row := range overwritten {
			if back := r.overwrite(old[row.place()]); back != nil { // then half of it is gone, and all of it goes
				return errors.Join(err, back, r.end(ErrClosed, s))
			}
		}
		return err
	}
	r.slots.mem.Store32(s.slot, abi.SlotGen, next.gen)
	var gone []*tableRow
	for _, row := range s.rows {
		if !places[row.place()] {
			gone = append(gone, row)
		} else if r.hops != nil {
			r.hops.drop(row)
		}
	}
	s.gen, s.rows = next.gen, next.rows
	s.fields.Store(next.fields.Load())
	r.noteStale()
	if err := errors.Join(r.remove(gone...)...); err != nil {
		r.log.Warn("a row of before a change remains until its key is used again", "relay", r.desc.Name, "error", err)
	}
	return nil
}

// overwrite replaces the value of a row that is there. r.mu is held.
func (r *Relay) overwrite(row *tableRow) error {
	err := r.inject("update", row)
	if err == nil {
		err = row.table.update(row.key, row.value, ebpf.UpdateExist)
	}
	if err != nil {
		return row.table.explain(err)
	}
	return nil
}
