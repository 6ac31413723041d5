package runtime

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// AnyTable is kernel state that user space reads and, unless it holds the rows of sessions, writes. Keys and values are
// slices of the values of their members, in the order of the spec.
//
// A member of kind next_hop is given as an address; the runtime finds how to reach it, and follows changes. A counter
// is given as its first value, or as nil for 0 in a new row and for what it is in a row that exists; it is read as a
// *[Counter]. Likewise a credit is given as its limit and read as a *[Credit], a bucket as a [Rate] and as a *[Bucket];
// those that there are for each level of priority get the same value, and are read as a slice. A translation is given
// as nil and read as a *[Translation].
//
// In a table per processor, integers are the sum over all processors; Put gives the first processor the value and the
// others 0, and other members are the same on all.
type AnyTable struct {
	relay   *Relay
	desc    *abi.Table
	m       *ebpf.Map
	cpus    int  // per-CPU tables: how many values a row has; else 1
	state   bool // rows have counters, credits or translations of their own
	credits *creditBlocks

	rows map[string]*tableRow // rows that hold hops, by key; guarded by relay.mu

	// prefixes are the keys of the rows of an lpm table with state: the kernel finds only the longest match, and a row
	// must not share the state of one that covers it. nil: not read yet; guarded by relay.mu.
	prefixes map[string]bool
}

func newTable(r *Relay, d *abi.Table, m *ebpf.Map, credits *creditBlocks) *AnyTable {
	t := &AnyTable{relay: r, credits: credits, desc: d, m: m, cpus: 1, rows: map[string]*tableRow{}}
	if d.PerCPU {
		t.cpus = ebpf.MustPossibleCPU()
	}
	for _, m := range d.Value {
		t.state = t.state || m.Kind.IsState() && d.Session == ""
	}
	return t
}

// Desc returns the table's description.
func (t *AnyTable) Desc() *abi.Table { return t.desc }

// Map returns the kernel's map, for tools that measure. It is closed with the relay.
func (t *AnyTable) Map() *ebpf.Map { return t.m }

func (t *AnyTable) where() string { return fmt.Sprintf("table %q", t.desc.Name) }

// Put inserts a row, or replaces the one with that key. Packets see the old row or the new one, never a mixture, except
// in an array, which the kernel writes in place. Errors are a [*ValueError] or a [*FullError].
func (t *AnyTable) Put(key, value []any) error {
	if err := t.writable(); err != nil {
		return err
	}
	k, err := t.anyKey(key)
	if err != nil {
		return err
	}
	v, err := t.valueLayout().encodeAny(value)
	if err != nil {
		return err
	}
	return t.put(k, v)
}

func (t *AnyTable) keyLayout() layout { return layout{t.where() + ", key", t.desc.Key, t.desc.KeySize} }

func (t *AnyTable) valueLayout() layout {
	return layout{t.where() + ", value", t.desc.Value, t.desc.ValueSize}
}

// put is Put of a row as bytes.
func (t *AnyTable) put(k []byte, v values) error {
	row := &tableRow{table: t, key: k, value: v.data}
	if err := row.findHops(); err != nil {
		return fmt.Errorf("%s: %w", t.where(), err)
	}
	r := t.relay
	if len(row.hops) > 0 {
		r.hops.prepare([]*tableRow{row})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("%s: relay: %w", t.where(), ErrClosed)
	}
	set, undo, err := t.putState(row, v.given)
	if err != nil {
		return err
	}
	if len(row.hops) > 0 {
		r.hops.use(row)
	}
	if err := t.update(row.key, row.value, ebpf.UpdateAny); err != nil {
		undo()
		if r.hops != nil {
			r.hops.drop(row)
		}
		return t.explain(err)
	}
	if t.prefixes != nil {
		t.prefixes[string(k)] = true
	}
	if old := t.rows[string(k)]; old != nil {
		r.hops.drop(old)
		delete(t.rows, string(k))
	}
	if len(row.hops) > 0 {
		t.rows[string(k)] = row
	}
	set()
	return nil
}

// Get returns the value of a row; an error that wraps [ErrNotFound] if there is none.
func (t *AnyTable) Get(key ...any) ([]any, error) {
	k, err := t.anyKey(key)
	if err != nil {
		return nil, err
	}
	b, err := t.find(k)
	if err != nil {
		return nil, err
	}
	return t.anyValue(b), nil
}

// find reads a row as bytes.
func (t *AnyTable) find(key []byte) (value []byte, err error) {
	err = t.relay.using(func() error {
		if value, err = t.m.LookupBytes(key); err != nil {
			return t.explain(err)
		}
		return nil
	})
	if err == nil && value == nil {
		err = fmt.Errorf("%s, %s: %w", t.where(), t.keyString(key), ErrNotFound)
	}
	return value, err
}

// GetPerCPU returns the value of a row on each processor, of a table per processor.
func (t *AnyTable) GetPerCPU(key ...any) ([][]any, error) {
	k, err := t.anyKey(key)
	if err != nil {
		return nil, err
	}
	b, err := t.find(k)
	if err != nil {
		return nil, err
	}
	var out [][]any
	for range t.cpus {
		out = append(out, t.valueLayout().decodeAny(b, t.refersTo(b)))
		b = b[min(len(b), mapmem.Stride(t.desc.ValueSize)):]
	}
	return out, nil
}

// Delete removes a row and frees its counters, credits and translations; an error that wraps [ErrNotFound] if there
// is none. In an array, the row becomes zero. Delete doesn't wait for programs that still have the row: for them its
// translations stay in the kernel's table for a grace period of RCU, some milliseconds.
func (t *AnyTable) Delete(key ...any) error {
	if err := t.writable(); err != nil {
		return err
	}
	k, err := t.anyKey(key)
	if err != nil {
		return err
	}
	return t.deleteOne(k)
}

// deleteOne is Delete of a key as bytes.
func (t *AnyTable) deleteOne(key []byte) error {
	n, err := t.deleteAll([][]byte{key})
	if err == nil && n == 0 {
		err = fmt.Errorf("%s, %s: %w", t.where(), t.keyString(key), ErrNotFound)
	}
	return err
}

// DeleteMany removes rows as Delete does, thousands with one system call, and returns how many there were: it is no
// error if a row isn't there. If a key is wrong, it removes none; if the kernel refuses one, those before it are
// removed.
func (t *AnyTable) DeleteMany(keys ...[]any) (deleted int, err error) {
	if err := t.writable(); err != nil {
		return 0, err
	}
	encoded := make([][]byte, len(keys))
	for i, key := range keys {
		if encoded[i], err = t.anyKey(key); err != nil {
			return 0, err
		}
	}
	return t.deleteAll(encoded)
}

// deleteAll is DeleteMany of keys as bytes.
func (t *AnyTable) deleteAll(encoded [][]byte) (deleted int, err error) {
	r := t.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, fmt.Errorf("%s: relay: %w", t.where(), ErrClosed)
	}
	old, err := t.states(encoded)
	if err != nil {
		return 0, t.explain(err)
	}
	gone, err := t.removeAll(encoded)
	for i, k := range encoded {
		if !gone[i] {
			continue
		}
		deleted++
		delete(t.prefixes, string(k))
		if was, ok := old[string(k)]; ok {
			r.spaces.retire(t.desc.Value, was)
			r.releaseState(t.desc.Value, was, t.credits)
			delete(old, string(k)) // an array has the row for a key that was given twice, too
		}
		if row := t.rows[string(k)]; row != nil {
			r.hops.drop(row)
			delete(t.rows, string(k))
		}
	}
	if err != nil {
		return deleted, t.explain(err)
	}
	return deleted, nil
}

// states reads some rows, and others as it may be, by key; nil if rows refer to nothing that has to be freed. Only
// user space writes such rows, so that they stay as they are while relay.mu is held.
func (t *AnyTable) states(keys [][]byte) (map[string][]byte, error) {
	if !t.state {
		return nil, nil
	}
	old := make(map[string][]byte, len(keys))
	if len(keys) > 16+t.desc.Size/64 { // then it takes less time to read all rows
		if all, ok := t.readBatches(); ok {
			for _, row := range all {
				old[string(row.key)] = row.value
			}
			return old, nil
		}
	}
	for _, k := range keys {
		value, err := t.m.LookupBytes(k)
		if err != nil {
			return nil, err
		}
		old[string(k)] = value
	}
	return old, nil
}

// replaced returns the value of the row with exactly this key, or nil. relay.mu is held.
func (t *AnyTable) replaced(key []byte) ([]byte, error) {
	if t.desc.Kind == abi.TableLPM {
		if t.prefixes == nil {
			keys, err := t.keys()
			if err != nil {
				return nil, err
			}
			t.prefixes = make(map[string]bool, len(keys))
			for _, k := range keys {
				t.prefixes[string(k)] = true
			}
		}
		if !t.prefixes[string(key)] {
			return nil, nil
		}
	}
	return t.m.LookupBytes(key)
}

// All iterates over the rows, in the kernel's order. Rows that come or go meanwhile may be seen or not; none is seen
// twice. Of an array, rows that are all zero are left out. An error ends the iteration.
func (t *AnyTable) All() iter.Seq2[AnyRow, error] {
	return eachRow(t, func(row rowBytes) AnyRow { return AnyRow{t.keyValues(row.key), t.anyValue(row.value)} })
}

// AnyRow is a row without types: the values of its members, in the order of the spec.
type AnyRow = Row[[]any, []any]

// eachRow iterates over the rows as decode makes them of bytes. An error ends the iteration.
func eachRow[R any](t *AnyTable, decode func(rowBytes) R) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for row, err := range t.each() {
			var out R
			if err == nil {
				out = decode(row)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// each iterates over the rows as bytes. An error ends the iteration.
func (t *AnyTable) each() iter.Seq2[rowBytes, error] {
	return func(yield func(rowBytes, error) bool) {
		keys, err := t.keys()
		if err != nil {
			yield(rowBytes{}, err)
			return
		}
		for _, k := range keys {
			v, err := t.find(k)
			switch {
			case errors.Is(err, ErrNotFound): // it was removed meanwhile
				continue
			case err != nil:
				yield(rowBytes{}, err)
				return
			case t.desc.Kind == abi.TableArray && strings.Trim(string(v), "\x00") == "":
				continue
			}
			if !yield(rowBytes{k, v}, nil) {
				return
			}
		}
	}
}

// keys lists the keys of the rows. They come first: if the row under the cursor is deleted, the kernel starts again
// from the first one.
func (t *AnyTable) keys() ([][]byte, error) {
	var keys [][]byte
	seen := map[string]bool{}
	var key []byte
	for steps := 0; steps < 2*t.desc.Size+16; steps++ {
		var cursor any
		if key != nil {
			cursor = key
		}
		var next []byte
		err := t.relay.using(func() (err error) {
			next, err = t.m.NextKeyBytes(cursor)
			return err
		})
		if err != nil {
			return nil, t.explain(err)
		}
		if next == nil {
			break
		}
		if !seen[string(next)] {
			seen[string(next)] = true
			keys = append(keys, next)
		}
		key = next
	}
	return keys, nil
}

func (t *AnyTable) writable() error {
	if t.desc.Session != "" {
		return fmt.Errorf("%s holds the rows of sessions; open and close sessions of kind %q instead", t.where(),
			t.desc.Session)
	}
	if t.learned() {
		return fmt.Errorf("%s holds rows that packets make, and that end with sessions; close the session instead",
			t.where())
	}
	return nil
}

// learned reports whether packets make the rows, which end with sessions.
func (t *AnyTable) learned() bool { return t.desc.Bound() && t.desc.Session == "" }

func (t *AnyTable) anyKey(key []any) ([]byte, error) {
	k, err := t.keyLayout().encodeAny(key)
	if err != nil {
		return nil, err
	}
	return k.data, t.checkKey(k.data)
}

// checkKey refuses what can't be a key of an array.
func (t *AnyTable) checkKey(k []byte) error {
	if t.desc.Kind != abi.TableArray {
		return nil
	}
	if i := abi.Order.Uint32(k); int(i) >= t.desc.Size {
		return &ValueError{
			Where: t.where(), Value: i, Reason: fmt.Sprintf("is no index of it: it has %d entries", t.desc.Size),
		}
	}
	return nil
}

// keyValues is the inverse of anyKey.
func (t *AnyTable) keyValues(key []byte) []any { return t.keyLayout().decodeAny(key, nil) }

// anyValue decodes a row as read from the kernel.
func (t *AnyTable) anyValue(b []byte) []any {
	b = t.sum(b)
	return t.valueLayout().decodeAny(b, t.refersTo(b))
}

// sum returns the values of a row as read from the kernel. Of a row per processor, integers are summed.
func (t *AnyTable) sum(b []byte) []byte {
	if t.cpus > 1 {
		sum := append([]byte(nil), b[:t.desc.ValueSize]...)
		stride := mapmem.Stride(t.desc.ValueSize)
		for cpu := 1; cpu < t.cpus; cpu++ {
			for _, m := range t.desc.Value {
				if m.Kind != abi.KindUint || m.Hidden {
					continue
				}
				size := m.Size / m.Count()
				for off := m.Off; off < m.Off+m.Size; off += size {
					at := sum[off : off+size]
					putUint(at, getUint(at)+getUint(b[cpu*stride+off:][:size]))
				}
			}
		}
		b = sum
	}
	return b
}

// changing announces to the kernel's programs that the memory of rows may be used for others from now on, so that
// what they are reading may change. Whoever writes rows does it through update and remove, one at a time: relay.mu is
// held.
func (t *AnyTable) changing() (done func()) {
	lease := t.relay.lease
	if t.desc.Kind != abi.TableArray {
		lease.Add64(0, abi.LeaseChanges, 1)
		return func() {}
	}
	lease.Add64(0, abi.LeaseStoring, 1)
	return func() { lease.Add64(0, abi.LeaseStoring, 1) }
}

// removeAll deletes rows, and reports which of them were there. Of an array it makes them zero.
func (t *AnyTable) removeAll(keys [][]byte) (gone []bool, err error) {
	switch {
	case t.desc.Kind == abi.TableArray:
		gone = make([]bool, len(keys))
		for i, k := range keys {
			if err := t.update(k, make([]byte, t.desc.ValueSize), ebpf.UpdateAny); err != nil {
				return gone, err
			}
			gone[i] = true
		}
		return gone, nil
	case len(keys) == 1:
		if err = t.remove(keys[0]); errors.Is(err, ebpf.ErrKeyNotExist) {
			return []bool{false}, nil
		}
		return []bool{err == nil}, err
	}
	defer t.changing()()
	return deleteKeys(t.m, keys)
}

// remove deletes a row.
func (t *AnyTable) remove(key []byte) error {
	defer t.changing()()
	return t.m.Delete(key)
}

// update writes a row as bytes.
func (t *AnyTable) update(key, value []byte, flags ebpf.MapUpdateFlags) error {
	defer t.changing()()
	if !t.desc.PerCPU {
		return t.m.Update(key, value, flags)
	}
	values := make([][]byte, t.cpus)
	for i := range values {
		values[i] = append([]byte(nil), value...)
		for _, m := range t.desc.Value {
			if i > 0 && m.Kind == abi.KindUint {
				clear(values[i][m.Off : m.Off+m.Size])
			}
		}
	}
	return t.m.Update(key, values, flags)
}

// explain says which table the kernel's error is about.
func (t *AnyTable) explain(err error) error {
	if isFull(err) {
		return &FullError{What: t.where(), Size: t.desc.Size}
	}
	return fmt.Errorf("%s: %w", t.where(), err)
}

func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

func (t *AnyTable) keyString(key []byte) string {
	var parts []string
	i := 0
	for _, v := range t.keyValues(key) {
		parts = append(parts, fmt.Sprintf("%s=%v", t.desc.Key[i].Name, formatValue(v)))
		i++
	}
	return strings.Join(parts, " ")
}

// rowOf reads which of its session's rows a row is; the only one in its table is the one that is given.
func (t *AnyTable) rowOf(value []byte, only int) int {
	for _, m := range t.desc.Value {
		if m.Hidden && m.Name == abi.MemberRow {
			return int(abi.Order.Uint32(value[m.Off:]))
		}
	}
	return only
}

// slotOf reads the hidden members that tie a row to its session.
func (t *AnyTable) slotOf(value []byte) (slot, gen uint32) {
	for _, m := range t.desc.Value {
		switch {
		case !m.Hidden:
		case m.Name == abi.MemberSlot:
			slot = abi.Order.Uint32(value[m.Off:])
		case m.Name == abi.MemberGen:
			gen = abi.Order.Uint32(value[m.Off:])
		}
	}
	return slot, gen
}
