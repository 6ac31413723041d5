package runtime

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// This file has what rows refer to by an index: counters, credits and translations, for rows of tables and of receivers
// alike.

// state returns what a row's index stands for.
func (r *Relay) state(m abi.Member, index uint32) any {
	switch m.Kind {
	case abi.KindCounter:
		return r.counters.get(index)
	case abi.KindTranslation:
		return r.spaces.get(index)
	}
	return r.credits.get(m, index)
}

// allocState writes new indices into a row: a counter that reads first(i) for the i-th member, a credit of the block,
// an empty translation. After an error, all of it is free again, the block as well. r.mu is held.
func (r *Relay) allocState(members []abi.Member, row []byte, blocks *creditBlocks, block uint32,
	first func(member int) uint64) error {
	for i, m := range members {
		if !m.Kind.IsState() {
			continue
		}
		var index uint32
		switch m.Kind {
		case abi.KindCounter:
			c, err := r.newCounter(first(i), members[:i], row)
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
		noteCounters(used, s.stateKind().members, s.state)
	}
	for _, k := range r.groups {
		k.eachLive(func(v *Receiver) { noteCounters(used, k.desc.Receiver, v.state) })
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

// putState gives the row what the row that it replaces refers to, and what is new where there is none; values are those
// that the caller gave. What is new has them at once, before a packet finds the row; set gives them to what was there,
// when the kernel has taken the row. undo frees what is new. relay.mu is held.
func (t *Table) putState(row *tableRow, values []any) (set, undo func(), err error) {
	none := func() {}
	if !t.state {
		return none, none, nil
	}
	r := t.relay
	old, err := t.replaced(row.key)
	if err != nil {
		return nil, nil, t.explain(err)
	}
	given := make([]any, len(t.desc.Value)) // by member
	next := 0
	for i, m := range t.desc.Value {
		if !m.Hidden {
			given[i] = values[next]
			next++
		}
	}
	var sets []func()
	firsts := make([]uint64, len(t.desc.Value))
	fresh := old == nil
	for i, m := range t.desc.Value {
		if !m.Kind.IsState() {
			continue
		}
		var have any
		if old != nil {
			index := abi.Order.Uint32(old[m.Off:])
			abi.Order.PutUint32(row.value[m.Off:], index)
			have = r.state(m, index)
			fresh = fresh || index == 0 // a row of an array that was never written
		}
		v, err := checkState(m, given[i], have)
		if err != nil {
			return nil, nil, &ValueError{
				Where: fmt.Sprintf("%s, value, %q", t.where(), m.Name), Value: given[i], Reason: err.Error(),
			}
		}
		if n, ok := v.(uint64); ok && m.Kind == abi.KindCounter {
			firsts[i] = n
		}
		if v != nil {
			sets = append(sets, func() { setState(r.state(m, abi.Order.Uint32(row.value[m.Off:])), v) })
		}
	}
	if fresh {
		block, ok := t.credits.take()
		if !ok {
			return nil, nil, &FullError{What: t.where(), Size: t.desc.Size}
		}
		if err := r.allocState(t.desc.Value, row.value, t.credits, block, func(i int) uint64 {
			return firsts[i]
		}); err != nil {
			return nil, nil, err
		}
	}
	set = func() {
		for _, f := range sets {
			f()
		}
	}
	if fresh {
		set()
		return none, func() { r.releaseState(t.desc.Value, row.value, t.credits) }, nil
	}
	return set, none, nil
}

// checkState reads what a caller gave for a member that refers to state: a uint64, a Rate, or nil for what it is. What
// the row has already means that as well.
func checkState(m abi.Member, v, have any) (any, error) {
	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Invalid:
		return nil, nil
	case reflect.Array: // the generated package has those of all levels in one
		list := reflect.MakeSlice(reflect.SliceOf(rv.Type().Elem()), rv.Len(), rv.Len())
		reflect.Copy(list, rv)
		return checkState(m, list.Interface(), have)
	case reflect.Pointer, reflect.Slice:
		if rv.IsNil() || sameState(rv, reflect.ValueOf(have)) || noState(rv) {
			return nil, nil
		}
		if first := firstOf(v); first != nil {
			return checkState(m, first, have)
		}
		if list, ok := v.([]any); ok && m.Levels > 0 {
			return checkLevels(m, list)
		}
		return nil, fmt.Errorf("is the %v of another row; give its first value", m.Kind)
	}
	switch m.Kind {
	case abi.KindBucket:
		rate, ok := v.(Rate)
		if !ok {
			return nil, typeError(v, "runtime.Rate")
		}
		return rate, nil
	case abi.KindTranslation:
		return nil, errors.New("can't be given a value")
	}
	return toUint(v, 64)
}

// firstOf is what NewCredit and NewBucket were given, as a list where v has one for each level; nil: v isn't theirs.
func firstOf(v any) any {
	switch v := v.(type) {
	case *Credit:
		return v.begins()
	case *Bucket:
		return v.begins()
	case []*Credit:
		return firstOfEach(v)
	case []*Bucket:
		return firstOfEach(v)
	}
	return nil
}

func firstOfEach[T *Credit | *Bucket](list []T) any {
	firsts := make([]any, len(list))
	given := false
	for i, v := range list {
		if v == nil {
			continue
		}
		if firsts[i] = firstOf(v); firsts[i] == nil {
			return nil
		}
		given = true
	}
	if !given {
		return nil
	}
	return firsts
}

// noState says whether a slice has nothing but nil pointers.
func noState(v reflect.Value) bool {
	if v.Kind() != reflect.Slice || v.Type().Elem().Kind() != reflect.Pointer {
		return false
	}
	for i := range v.Len() {
		if !v.Index(i).IsNil() {
			return false
		}
	}
	return true
}

// checkLevels reads a value for each level of priority.
func checkLevels(m abi.Member, list []any) (any, error) {
	if len(list) != m.Levels {
		return nil, fmt.Errorf("has %d values, must have %d: one for each level of priority", len(list), m.Levels)
	}
	one := m
	one.Levels = 0
	out := make([]any, len(list))
	for i, v := range list {
		var err error
		if out[i], err = checkState(one, v, nil); err != nil {
			return nil, fmt.Errorf("%w (level %d)", err, i)
		}
	}
	return out, nil
}

// sameState says whether two pointers, or two slices of them, are to the same state.
func sameState(a, b reflect.Value) bool {
	switch {
	case !b.IsValid() || a.Type() != b.Type():
		return false
	case a.Kind() == reflect.Pointer:
		return a.Pointer() == b.Pointer()
	}
	return a.Len() == b.Len() && (a.Len() == 0 || a.Index(0).Kind() == reflect.Pointer &&
		a.Index(0).Pointer() == b.Index(0).Pointer())
}

func setState(have, v any) {
	if list, ok := v.([]any); ok {
		for i, one := range list {
			if all := reflect.ValueOf(have); one != nil && i < all.Len() {
				setState(all.Index(i).Interface(), one)
			}
		}
		return
	}
	switch have := have.(type) {
	case *Counter:
		have.Store(v.(uint64))
	case *Credit:
		have.SetLimit(v.(uint64))
	case []*Credit:
		for _, c := range have {
			c.SetLimit(v.(uint64))
		}
	case *Bucket:
		have.SetRate(v.(Rate).PerSecond, v.(Rate).Burst)
	case []*Bucket:
		for _, b := range have {
			b.SetRate(v.(Rate).PerSecond, v.(Rate).Burst)
		}
	}
}
