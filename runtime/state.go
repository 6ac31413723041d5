package runtime

import (
	"errors"
	"fmt"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// This file has what rows refer to by an index: counters, credits and translations, for rows of tables and of receivers
// alike.

// A handle is what a member of a row refers to, or one level of it: one of the pointers, of its kind, or none.
type handle struct {
	counter     *Counter
	credit      *Credit
	bucket      *Bucket
	translation *Translation

	first *first // if it is given by a caller who has no pointer
}

// first is what a counter, a credit or a bucket begins with, or is set to.
type first struct {
	n    uint64 // a counter's value, a credit's limit
	rate Rate
}

// handle returns what a level of a row's index stands for.
func (r *Relay) handle(m *abi.Member, index uint32, level int) handle {
	switch m.Kind {
	case abi.KindCounter:
		return handle{counter: r.counters.get(index)}
	case abi.KindTranslation:
		return handle{translation: r.spaces.get(index)}
	}
	return r.credits.get(m, index, level)
}

// handles returns what all levels of a row's index stand for.
func (r *Relay) handles(m *abi.Member, row []byte) []handle {
	all := make([]handle, m.Count())
	for level := range all {
		all[level] = r.handle(m, abi.Order.Uint32(row[m.Off:]), level)
	}
	return all
}

// refersTo finds what the members of a row refer to.
func (t *AnyTable) refersTo(row []byte) func(member, level int) handle {
	return func(member, level int) handle {
		m := &t.desc.Value[member]
		return t.relay.handle(m, abi.Order.Uint32(row[m.Off:]), level)
	}
}

// handlesOf reads what a caller without types gave for a member: nil for what it is; a pointer, or one for each level;
// a number or a [Rate] that it begins with, or one for each level. The result may be nil.
func handlesOf(m *abi.Member, v any) ([]handle, error) {
	all := make([]handle, m.Count())
	switch v := v.(type) {
	case nil:
		return nil, nil
	case []*Credit:
		return all, eachLevel(all, v, func(h *handle, c *Credit) error { h.credit = c; return nil })
	case []*Bucket:
		return all, eachLevel(all, v, func(h *handle, b *Bucket) error { h.bucket = b; return nil })
	case []any:
		if m.Levels > 0 {
			return all, eachLevel(all, v, func(h *handle, one any) (err error) {
				*h, err = handleOf(m, one)
				return err
			})
		}
	}
	one, err := handleOf(m, v)
	for level := range all {
		all[level] = one
	}
	return all, err
}

func eachLevel[T any](all []handle, given []T, set func(h *handle, v T) error) error {
	if given == nil {
		return nil
	}
	if len(given) != len(all) {
		return wrongLevels(len(given), len(all))
	}
	for level, v := range given {
		if err := set(&all[level], v); err != nil {
			return fmt.Errorf("%w (level %d)", err, level)
		}
	}
	return nil
}

func handleOf(m *abi.Member, v any) (handle, error) {
	switch v := v.(type) {
	case nil:
		return handle{}, nil
	case *Counter:
		return handle{counter: v}, nil
	case *Credit:
		return handle{credit: v}, nil
	case *Bucket:
		return handle{bucket: v}, nil
	case *Translation:
		return handle{translation: v}, nil
	}
	switch m.Kind {
	case abi.KindBucket:
		rate, ok := v.(Rate)
		if !ok {
			return handle{}, typeError(v, "runtime.Rate")
		}
		return handle{first: &first{rate: rate}}, nil
	case abi.KindTranslation:
		return handle{}, errors.New("can't be given a value")
	}
	n, err := toUint(v)
	return handle{first: &first{n: n}}, err
}

// anyState is what a member refers to, without a type: a pointer, or a slice of one for each level.
func anyState(m *abi.Member, refer func(level int) handle) any {
	switch {
	case m.Kind == abi.KindCounter:
		return refer(0).counter
	case m.Kind == abi.KindTranslation:
		return refer(0).translation
	case m.Kind == abi.KindCredit && m.Levels == 0:
		return refer(0).credit
	case m.Kind == abi.KindCredit:
		all := make([]*Credit, m.Levels)
		for level := range all {
			all[level] = refer(level).credit
		}
		return all
	case m.Levels == 0:
		return refer(0).bucket
	}
	all := make([]*Bucket, m.Levels)
	for level := range all {
		all[level] = refer(level).bucket
	}
	return all
}

// begins returns what a level of a member is to begin with, or to be set to, of what a caller gave for it; nil: it
// stays, or begins, as it is. What the row has already means that as well.
func (h handle) begins(m *abi.Member, have handle) (*first, error) {
	switch {
	case h.first != nil:
		return h.first, nil
	case h == handle{} || h == have:
		return nil, nil
	case m.Kind == abi.KindCredit && h.credit != nil && h.credit.begins() != nil:
		return h.credit.begins(), nil
	case m.Kind == abi.KindBucket && h.bucket != nil && h.bucket.begins() != nil:
		return h.bucket.begins(), nil
	}
	return nil, fmt.Errorf("is the %v of another row; give its first value", m.Kind)
}

// firsts is what the levels of a member are to begin with, or to be set to, of what a caller gave; have may be nil.
func firsts(m *abi.Member, given, have []handle) ([]*first, error) {
	var all []*first
	for level, h := range given {
		var was handle
		if have != nil {
			was = have[level]
		}
		one, err := h.begins(m, was)
		if err != nil && m.Levels > 0 {
			err = fmt.Errorf("%w (level %d)", err, level)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// setAll gives the levels of a member what they are to be set to; nothing if that is nil.
func setAll(handles []handle, to []*first) {
	for level, one := range to {
		handles[level].set(one)
	}
}

// set gives what a handle is of its first value.
func (h handle) set(to *first) {
	switch {
	case to == nil:
	case h.counter != nil:
		h.counter.Store(to.n)
	case h.credit != nil:
		h.credit.SetLimit(to.n)
	case h.bucket != nil:
		h.bucket.SetRate(to.rate)
	}
}

// allocState writes new indices into a row: a counter that reads what it is to begin with (of the starts by member,
// which may be nil), a credit of the block, an empty translation. After an error, all of it is free again, the block as
// well. r.mu is held.
func (r *Relay) allocState(members []abi.Member, row []byte, blocks *creditBlocks, block uint32,
	starts [][]*first) error {
	for i, m := range members {
		if !m.Kind.IsState() {
			continue
		}
		var index uint32
		switch m.Kind {
		case abi.KindCounter:
			n := uint64(0)
			if starts != nil && len(starts[i]) > 0 && starts[i][0] != nil {
				n = starts[i][0].n
			}
			c, err := r.newCounter(n, members[:i], row)
			if err == nil && c == nil {
				err = &FullError{What: "the array of shared counters", Size: r.desc.Shared - 1}
			}
			if err != nil {
				r.releaseIndices(members[:i], row)
				blocks.release(block)
				return err
			}
			index = c.index
		case abi.KindTranslation:
			index = r.spaces.alloc()
		default:
			index = blocks.index(block, i)
			r.credits.make(m, index)
		}
		abi.Order.PutUint32(row[m.Off:], index)
	}
	if blocks.size > 0 {
		blocks.clear(block)
	}
	return nil
}

// releaseState frees what a row refers to. r.mu is held, and no program sees the row any more.
func (r *Relay) releaseState(members []abi.Member, row []byte, blocks *creditBlocks) {
	r.releaseIndices(members, row)
	for i, m := range members {
		if m.Kind != abi.KindCredit && m.Kind != abi.KindBucket {
			continue
		}
		if block, ok := blocks.block(abi.Order.Uint32(row[m.Off:]), i); ok {
			blocks.release(block)
			return
		}
	}
}

// releaseIndices frees counters and translations.
func (r *Relay) releaseIndices(members []abi.Member, row []byte) {
	for _, m := range members {
		switch index := row[m.Off:]; m.Kind {
		case abi.KindCounter:
			r.counters.release(abi.Order.Uint32(index))
		case abi.KindTranslation:
			r.spaces.release(abi.Order.Uint32(index))
		}
	}
}

// newCounter allocates a counter, if need be after finding those of rows that the kernel has evicted; nil: none is
// free. The row is not in the kernel yet; its members have theirs. r.mu is held.
func (r *Relay) newCounter(first uint64, members []abi.Member, row []byte) (*Counter, error) {
	if c := r.counters.alloc(first); c != nil {
		return c, nil
	}
	used, err := r.countersInUse()
	if err != nil {
		return nil, err
	}
	noteCounters(used, members, row)
	r.counters.keep(used)
	return r.counters.alloc(first), nil
}

// countersInUse returns the indices found in rows.
func (r *Relay) countersInUse() (map[uint32]bool, error) {
	used := map[uint32]bool{}
	for _, t := range r.tables {
		if !t.state {
			continue
		}
		rows, err := t.scan()
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			noteCounters(used, t.desc.Value, row.value)
		}
	}
	for _, s := range r.sessions {
		noteCounters(used, s.of().members, s.state)
	}
	for _, k := range r.groups {
		k.eachLive(func(v *AnyReceiver) { noteCounters(used, k.desc.Receiver, v.state) })
	}
	return used, nil
}

func noteCounters(used map[uint32]bool, members []abi.Member, row []byte) {
	for _, m := range members {
		if m.Kind == abi.KindCounter {
			used[abi.Order.Uint32(row[m.Off:])] = true
		}
	}
}

// putState gives the row what the row that it replaces refers to, and what is new if there is none; given is what
// the caller gave, by member. What is new has it at once, before a packet finds the row; set gives it to what was
// there, when the kernel has taken the row. undo frees what is new. relay.mu is held.
func (t *AnyTable) putState(row *tableRow, given [][]handle) (set, undo func(), err error) {
	none := func() {}
	if !t.state {
		return none, none, nil
	}
	r := t.relay
	old, err := t.replaced(row.key)
	if err != nil {
		return nil, nil, t.explain(err)
	}
	starts := make([][]*first, len(t.desc.Value)) // by member
	fresh := old == nil
	for i := range t.desc.Value {
		m := &t.desc.Value[i]
		if !m.Kind.IsState() {
			continue
		}
		var have []handle
		if old != nil {
			copy(row.value[m.Off:m.Off+m.Size], old[m.Off:])
			have = r.handles(m, old)
			fresh = fresh || abi.Order.Uint32(old[m.Off:]) == 0 // a row of an array that was never written
		}
		if given == nil {
			continue
		}
		if starts[i], err = firsts(m, given[i], have); err != nil {
			return nil, nil, t.valueLayout().wrong(m, anyState(m, func(level int) handle { return given[i][level] }),
				err.Error())
		}
	}
	if fresh {
		block, ok := t.credits.take()
		if !ok {
			return nil, nil, &FullError{What: t.where(), Size: t.desc.Size}
		}
		if err := r.allocState(t.desc.Value, row.value, t.credits, block, starts); err != nil {
			return nil, nil, err
		}
	}
	set = func() {
		for i, all := range starts {
			if len(all) > 0 {
				setAll(r.handles(&t.desc.Value[i], row.value), all)
			}
		}
	}
	if fresh {
		set()
		return none, func() { r.releaseState(t.desc.Value, row.value, t.credits) }, nil
	}
	return set, none, nil
}
