package testrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// lists are the lists of receivers of one kind of group. Putting one into the kernel's hash of maps, or taking it out,
// waits for all programs that may still read the old one, some milliseconds each time. No program runs between two runs
// here, so lists are written in place, and those that come and go do so in one batch.
type lists struct {
	inner *ebpf.MapSpec
	byKey map[string]*list
	spare []*list
}

type list struct {
	m    *ebpf.Map
	rows []uint32 // what it has: places in the array of rows
}

func (l *lists) close() {
	for _, one := range l.byKey {
		one.m.Close()
	}
	for _, one := range l.spare {
		one.m.Close()
	}
}

// take returns a list for a new key.
func (l *lists) take() (*list, error) {
	if n := len(l.spare); n > 0 {
		one := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return one, nil
	}
	m, err := ebpf.NewMap(l.inner)
	if err != nil {
		return nil, fmt.Errorf("make a list of receivers: %w", err)
	}
	return &list{m: m}, nil
}

// write gives a list its receivers.
func (l *list) write(rows []uint32) error {
	if slices.Equal(rows, l.rows) {
		return nil
	}
	value := make([]byte, l.m.ValueSize())
	binary.LittleEndian.PutUint32(value, uint32(len(rows)))
	for i, row := range rows {
		binary.LittleEndian.PutUint32(value[4+4*i:], row)
	}
	if err := l.m.Put(uint32(0), value); err != nil {
		return fmt.Errorf("write a list of receivers: %w", err)
	}
	l.rows = slices.Clone(rows)
	return nil
}

// group makes the groups of a kind, and their receivers' rows, those of want.
func (r *Relay) group(g *ir.Group, want *sim.Group) error {
	outer, l := r.coll.Maps[abi.GroupPrefix+g.Name], r.lists[g.Name]
	if outer == nil || l == nil {
		return fmt.Errorf("the object has no map grp_%s", g.Name)
	}
	next := uint32(0)
	var gone, come [][]byte
	for _, k := range slices.Sorted(maps.Keys(l.byKey)) {
		if _, known := want.Get([]byte(k)); !known {
			gone = append(gone, []byte(k))
		}
	}
	if err := remove(outer, gone); err != nil {
		return fmt.Errorf("take groups out: %w", err)
	}
	for _, k := range gone {
		l.spare = append(l.spare, l.byKey[string(k)])
		delete(l.byKey, string(k))
	}
	var fds []uint32
	for _, k := range want.Keys() {
		receivers, _ := want.Get([]byte(k))
		rows := make([]uint32, len(receivers))
		for i, row := range receivers {
			r.mark(abi.MapReceivers, int(want.Identity(row)))
			r.markMembers(&g.Receivers.Value, row)
			rows[i] = next
			if err := r.put(abi.RowsPrefix+g.Name, int(next), row); err != nil {
				return err
			}
			next++
		}
		one := l.byKey[k]
		if one == nil {
			var err error
			if one, err = l.take(); err != nil {
				return err
			}
			l.byKey[k] = one
			come, fds = append(come, []byte(k)), append(fds, uint32(one.m.FD()))
		}
		if err := one.write(rows); err != nil {
			return err
		}
	}
	if err := insert(outer, come, fds); err != nil {
		return fmt.Errorf("put groups in: %w", err)
	}
	return nil
}

// insert puts maps into a map, remove takes them out: in a batch if the kernel has that for maps of maps (5.19).
func insert(m *ebpf.Map, keys [][]byte, fds []uint32) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := m.BatchUpdate(sized(keys), fds, nil); !errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	for i, k := range keys {
		if err := m.Put(k, fds[i]); err != nil {
			return err
		}
	}
	return nil
}

func remove(m *ebpf.Map, keys [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := m.BatchDelete(sized(keys), nil); !errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	for _, k := range keys {
		if err := m.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// sized makes a list of arrays of keys of one size, which is what a batch takes.
func sized(keys [][]byte) any {
	list := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(len(keys[0]), reflect.TypeFor[byte]())), len(keys),
		len(keys))
	for i, k := range keys {
		reflect.Copy(list.Index(i), reflect.ValueOf(k))
	}
	return list.Interface()
}

// markMembers marks the counters and credits that a row names: a run may change them.
func (r *Relay) markMembers(s *ir.Struct, row []byte) {
	for _, m := range s.Members {
		switch m.Type.Kind {
		case ir.Ctr:
			if i := index(m, row); i > 0 && i < r.plan.Shared {
				r.mark(abi.MapShared, i)
			}
		case ir.Credit, ir.Bucket:
			for i := index(m, row); i > 0 && i < r.plan.Credits && i < index(m, row)+m.Type.Count(); i++ {
				r.mark(abi.MapCredits, i)
			}
		}
	}
}

func index(m *ir.Member, row []byte) int {
	return int(binary.LittleEndian.Uint32(row[m.Off:]))
}

// Buckets are the credits that rows use as ones that refill by time.
func Buckets(s *sim.Relay) map[int]bool {
	out := map[int]bool{}
	find := func(st *ir.Struct, row []byte) {
		for _, m := range st.Members {
			if m.Type.Kind == ir.Bucket {
				for i := range m.Type.Count() {
					out[index(m, row)+i] = true
				}
			}
		}
	}
	for _, g := range s.Plan().Groups {
		group := s.Group(g.Name)
		for _, k := range group.Keys() {
			rows, _ := group.Get([]byte(k))
			for _, row := range rows {
				find(&g.Receivers.Value, row)
			}
		}
	}
	for _, t := range s.Plan().Tables {
		table := s.Table(t.Name)
		for _, k := range table.Keys() {
			find(&t.Value, table.Get([]byte(k)))
		}
	}
	return out
}

const translateValue = 16 // bytes of a row of fr_translate: docs/internals.md

// translations makes the kernel's table of translations that of s.
func (r *Relay) translations(s *sim.Relay) error {
	m := r.coll.Maps[abi.MapTranslate]
	if m == nil {
		return nil
	}
	keys, err := keysOf(m)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := m.Delete(k); err != nil {
			return fmt.Errorf("forget a translation: %w", err)
		}
	}
	for k, v := range s.Translations { // the order makes no difference to the kernel
		key := binary.LittleEndian.AppendUint64(nil, k.Key)
		key = append(binary.LittleEndian.AppendUint32(key, k.Namespace), 0, 0, 0, 0)
		value := binary.LittleEndian.AppendUint64(nil, v.Value)
		done := uint64(0)
		if v.Done {
			done = 1
		}
		if err := m.Put(key, binary.LittleEndian.AppendUint64(value, done)); err != nil {
			return fmt.Errorf("put a translation in: %w", err)
		}
	}
	return nil
}

func (r *Relay) readTranslations(s *sim.Relay) error {
	m := r.coll.Maps[abi.MapTranslate]
	if m == nil {
		return nil
	}
	clear(s.Translations)
	keys, err := keysOf(m)
	if err != nil {
		return err
	}
	for _, k := range keys {
		value := make([]byte, translateValue)
		if err := m.Lookup(k, value); err != nil {
			return fmt.Errorf("read a translation: %w", err)
		}
		key := sim.TranslationKey{Key: binary.LittleEndian.Uint64(k), Namespace: binary.LittleEndian.Uint32(k[8:])}
		s.Translations[key] = sim.Translation{
			Value: binary.LittleEndian.Uint64(value), Done: binary.LittleEndian.Uint64(value[8:]) != 0,
		}
	}
	return nil
}
