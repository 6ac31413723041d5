package runtime

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// The rows of sessions in the kernel, and the slots that open them all at once.

// slots hands out the entries of fr_slots. Freed ones are reused last.
type slots struct {
	mem   *mapmem.Array
	usage *ebpf.Map
	free  []uint32
	zero  [][]byte // a usage entry for all processors
}

func newSlots(m, usage *ebpf.Map) (*slots, error) {
	mem, err := mapmem.Map(m)
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	s := &slots{mem: mem, usage: usage, zero: make([][]byte, cpus)}
	for i := range s.zero {
		s.zero[i] = make([]byte, usage.ValueSize())
	}
	for i := range m.MaxEntries() {
		s.free = append(s.free, i)
	}
	return s, nil
}

// take returns a free slot and a generation for its session.
func (s *slots) take() (slot, gen uint32, ok bool) {
	if len(s.free) == 0 {
		return 0, 0, false
	}
	slot = s.free[0]
	s.free = s.free[1:]
	return slot, s.next(slot), true
}

// next returns a generation that the slot never had (but for 2³² in between).
func (s *slots) next(slot uint32) uint32 {
	gen := s.mem.Load32(slot, abi.SlotLast) + 1
	if gen == 0 {
		gen = 1
	}
	s.mem.Store32(slot, abi.SlotLast, gen)
	return gen
}

func (s *slots) put(slot uint32) { s.free = append(s.free, slot) }

// makeRows lays the fields out as keys and values. Slot, generation and hops are still missing.
func (s *AnySession) makeRows() error {
	for i, rd := range s.desc.Rows {
		t := s.relay.tables[rd.Table]
		row := &tableRow{table: t, index: i, key: make([]byte, t.desc.KeySize), value: make([]byte, t.desc.ValueSize)}
		s.fill(row.key, t.desc.Key, rd.Key)
		s.fill(row.value, t.desc.Value, rd.Value)
		if err := row.findHops(); err != nil {
			return fmt.Errorf("session %q: %w", s.desc.Name, err)
		}
		s.rows = append(s.rows, row)
	}
	return nil
}

func (s *AnySession) fill(buf []byte, members []abi.Member, fields []int) {
	k := s.of()
	for i, m := range visible(members) {
		at, field := buf[m.Off:m.Off+m.Size], k.part(*s.fields.Load(), fields[i])
		switch {
		case m.Kind.IsState():
			if s.state != nil {
				copy(at, k.part(s.state, fields[i]))
			}
		case m.Kind == abi.KindUint && m.Levels == 0:
			putUint(at, getUint(field)) // the member may be wider than the field
		default:
			copy(at, field)
		}
	}
}

// register puts the rows into the kernel, and then opens the slot: until then each of them is a miss. r.mu is held.
func (r *Relay) register(s *AnySession, starts [][]*first) (err error) {
	if r.open[s.kind] >= s.desc.Size {
		for _, row := range s.rows {
			if other, err := r.owner(row); err == nil && other != nil {
				return row.collision(other) // which says more
			}
		}
		return &FullError{What: fmt.Sprintf("session %q", s.desc.Name), Size: s.desc.Size}
	}
	var ok bool
	if s.slot, s.gen, ok = r.slots.take(); !ok {
		return &FullError{What: "the array of sessions", Size: r.desc.Slots}
	}
	s.firstGen = s.gen
	if err := r.slots.usage.Put(s.slot, r.slots.zero); err != nil {
		r.slots.put(s.slot)
		return fmt.Errorf("reset the session's counters: %w", err)
	}
	if err := r.newState(s, starts); err != nil {
		r.slots.put(s.slot)
		return err
	}
	for i, row := range s.rows {
		row.link(s.slot, s.gen)
		if r.hops != nil {
			r.hops.use(row)
		}
		if err = r.insert(s, row); err == nil {
			continue
		}
		// What can't be taken back is harmless: the slot never had this generation.
		if r.hops != nil {
			r.hops.drop(row)
		}
		err = errors.Join(err, errors.Join(r.remove(s.rows[:i]...)...))
		r.endState(s)
		r.slots.put(s.slot)
		return err
	}
	now := time.Now()
	if d := s.desc.Lifetime; d > 0 {
		s.expires = now.Add(d)
	}
	if d := s.desc.Idle; d > 0 {
		s.idle = now.Add(d)
	}
	r.slots.mem.Store64(s.slot, abi.SlotDeadline, s.deadline())
	r.slots.mem.Store32(s.slot, abi.SlotGen, s.gen)
	r.enter(s)
	return nil
}

// enter adds an open session to the books. r.mu is held.
func (r *Relay) enter(s *AnySession) {
	r.sessions[s.slot] = s
	r.open[s.kind]++
	r.enqueue(s)
}

// insert adds a row, unless its key is another session's. A row that belongs to no session, left by a process that died
// or by a failed removal, gives way.
func (r *Relay) insert(s *AnySession, row *tableRow) error {
	for try := 0; ; try++ {
		err := r.inject("insert", row)
		if err == nil {
			err = row.table.update(row.key, row.value, ebpf.UpdateNoExist)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, ebpf.ErrKeyExist) || try > 0:
			return row.table.explain(err)
		}
		other, err := r.owner(row)
		if err != nil {
			return err
		}
		if other != nil {
			return row.collision(other)
		}
		for _, mine := range s.rows {
			if mine != row && mine.table == row.table && string(mine.key) == string(row.key) {
				return fmt.Errorf("table %q: two rows of the session have one key, %s", row.table.desc.Name,
					row.table.keyString(row.key))
			}
		}
		if err := row.table.remove(row.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return row.table.explain(err)
		}
	}
}

// owner returns the open session that has the row's key; nil if there is none. r.mu is held.
func (r *Relay) owner(row *tableRow) (*AnySession, error) {
	value, err := row.table.m.LookupBytes(row.key)
	if err != nil {
		return nil, row.table.explain(err)
	}
	if value == nil {
		return nil, nil
	}
	return r.holder(row.table.slotOf(value)), nil
}

// holder returns the open session whose rows have a slot and a generation; nil if there is none. r.mu is held.
func (r *Relay) holder(slot, gen uint32) *AnySession {
	if s := r.sessions[slot]; s != nil && s.gen == gen {
		return s
	}
	return nil
}

func (row *tableRow) collision(other *AnySession) error {
	return &CollisionError{Table: row.table.desc.Name, Key: row.table.keyString(row.key), Other: other}
}

// remove deletes rows, those of a table together, and stops following their hops. It returns an error for each row, nil
// if it isn't there any more. r.mu is held.
func (r *Relay) remove(rows ...*tableRow) []error {
	errs := make([]error, len(rows))
	of := map[*AnyTable][]int{}
	for i, row := range rows {
		if r.hops != nil {
			r.hops.drop(row)
		}
		if errs[i] = r.inject("delete", row); errs[i] == nil {
			of[row.table] = append(of[row.table], i)
		}
	}
	for table, those := range of {
		var keys [][]byte
		for _, i := range those {
			keys = append(keys, rows[i].key)
		}
		gone, err := table.removeAll(keys)
		for n, i := range those {
			if err != nil && !gone[n] {
				errs[i] = fmt.Errorf("remove a row: %w", table.explain(err))
			}
		}
	}
	return errs
}

func (r *Relay) inject(op string, row *tableRow) error {
	if r.fault == nil {
		return nil
	}
	return r.fault(op, row.table.desc.Name)
}
