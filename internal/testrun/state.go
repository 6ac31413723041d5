package testrun

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Sync makes the kernel's tables, groups, slots, counters and credits those of s, and the same conditions hold.
// Deadlines in s are compared with the kernel's clock: only 0 (past) and the far future make sense.
func (r *Relay) Sync(s *sim.Relay) error {
	if err := r.put(abi.MapLease, 0, lease(s.World.Conditions)); err != nil {
		return err
	}
	for _, t := range r.plan.Tables {
		if err := r.fill(t, s.Table(t.Name)); err != nil {
			return fmt.Errorf("table %q: %w", t.Name, err)
		}
	}
	for _, g := range r.plan.Groups {
		if err := r.group(g, s.Group(g.Name)); err != nil {
			return fmt.Errorf("group %q: %w", g.Name, err)
		}
	}
	if err := r.translations(s); err != nil {
		return err
	}
	if err := r.slots(s); err != nil {
		return err
	}
	if err := r.tallies(s); err != nil {
		return err
	}
	r.Events() // what came before belongs to no test
	return nil
}

// lease is an entry of MapLease: conditions hold of the relay, and no others.
func lease(conditions []string) []byte {
	value := make([]byte, abi.LeaseSize)
	if !slices.Contains(conditions, spec.Lapsed) {
		binary.LittleEndian.PutUint64(value[abi.LeaseDeadline:], math.MaxUint64)
	}
	return value
}

// slots writes the slots of sessions and their use, and the receivers and credits.
func (r *Relay) slots(s *sim.Relay) error {
	for i, u := range s.Receivers {
		value := binary.LittleEndian.AppendUint64(nil, u.Packets)
		value = binary.LittleEndian.AppendUint64(value, u.Bytes)
		value = binary.LittleEndian.AppendUint64(value, u.Declined)
		if err := r.put(abi.MapReceivers, i, binary.LittleEndian.AppendUint64(value, u.Failed)); err != nil {
			return err
		}
	}
	for i, c := range s.Credits {
		value := binary.LittleEndian.AppendUint64(nil, c.Limit)
		value = binary.LittleEndian.AppendUint64(value, c.Spent)
		value = binary.LittleEndian.AppendUint64(value, c.Burst)
		for _, n := range c.Refused {
			value = binary.LittleEndian.AppendUint64(value, n)
		}
		if err := r.put(abi.MapCredits, i, value); err != nil {
			return err
		}
	}
	for i, slot := range s.Slots {
		value := binary.LittleEndian.AppendUint64(nil, slot.Deadline)
		value = binary.LittleEndian.AppendUint32(value, slot.Gen)
		if err := r.put(abi.MapSlots, i, append(value, 0, 0, 0, 0)); err != nil {
			return err
		}
	}
	for i, u := range s.Usage {
		value := binary.LittleEndian.AppendUint64(nil, u.Last)
		for _, t := range u.Rows {
			value = appendTally(value, t)
		}
		if s.Slots[i].Gen != 0 {
			r.mark(abi.MapUsage, i)
		}
		if err := r.put(abi.MapUsage, i, value); err != nil {
			return err
		}
	}
	return nil
}

// tallies writes counters, those of reasons and of lost events included.
func (r *Relay) tallies(s *sim.Relay) error {
	for i, n := range s.Lost[1:] {
		r.mark(abi.MapLost, 1+i)
		if err := r.put(abi.MapLost, 1+i, binary.LittleEndian.AppendUint64(nil, n)); err != nil {
			return err
		}
	}
	for i, v := range s.Shared {
		if err := r.put(abi.MapShared, i, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			return err
		}
	}
	for i, v := range s.Named {
		r.mark(abi.MapNamed, i)
		if err := r.put(abi.MapNamed, i, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			return err
		}
	}
	for i, t := range s.Reasons {
		r.mark(abi.MapReasons, i)
		if err := r.put(abi.MapReasons, i, appendTally(nil, t)); err != nil {
			return err
		}
	}
	return nil
}

// Watch says that a run may change a shared counter, although it is 0 before.
func (r *Relay) Watch(counter int) { r.mark(abi.MapShared, counter) }

// mark says that an entry of an array may hold something other than zeros: it is written and read from now on. Large
// arrays are mostly empty, and each entry takes a system call.
func (r *Relay) mark(name string, index int) {
	if r.live[name] == nil {
		r.live[name] = map[int]bool{}
	}
	r.live[name][index] = true
}

func appendTally(b []byte, t sim.Tally) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, t.Packets), t.Bytes)
}

// put writes an entry of an array; in a per-CPU array the first processor gets it, and the others zeros.
func (r *Relay) put(name string, index int, value []byte) error {
	m := r.coll.Maps[name]
	if m == nil {
		return fmt.Errorf("the object has no map %s", name)
	}
	if isZero(value) && !r.live[name][index] {
		return nil
	}
	r.mark(name, index)
	var v any = value
	if perCPU(m) {
		all := make([][]byte, r.cpus)
		for i := range all {
			all[i] = make([]byte, len(value))
		}
		all[0] = value
		v = all
	}
	if err := m.Put(uint32(index), v); err != nil {
		return fmt.Errorf("write %s[%d]: %w", name, index, err)
	}
	return nil
}

func isZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

func perCPU(m *ebpf.Map) bool {
	switch m.Type() {
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return true
	}
	return false
}

// fill makes a table's content that of t. Rows of a per-CPU table are the same on all processors.
func (r *Relay) fill(t *ir.Table, want *sim.Table) error {
	m := r.coll.Maps[abi.TablePrefix+t.Name]
	if m == nil {
		return fmt.Errorf("the object has no map %s%s", abi.TablePrefix, t.Name)
	}
	keys, err := r.keys(t, m)
	if err != nil {
		return err
	}
	for _, k := range keys {
		var err error
		if t.Kind == "array" {
			err = r.row(m, k, make([]byte, m.ValueSize()))
		} else {
			err = m.Delete(k)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear: %w", err)
		}
	}
	for _, k := range want.Keys() {
		v := want.Get([]byte(k))
		r.markMembers(&t.Value, v)
		if t.Kind == "array" {
			r.mark(abi.TablePrefix+t.Name, int(binary.LittleEndian.Uint32([]byte(k))))
		}
		if err := r.row(m, []byte(k), append(slices.Clone(v), make([]byte, int(m.ValueSize())-len(v))...)); err != nil {
			return fmt.Errorf("put a row: %w", err)
		}
	}
	return nil
}

func (r *Relay) row(m *ebpf.Map, key, value []byte) error {
	if perCPU(m) {
		return m.Put(key, slices.Repeat([][]byte{value}, r.cpus))
	}
	return m.Put(key, value)
}

// keys lists the keys of a table's rows; of an array, those that were ever written.
func (r *Relay) keys(t *ir.Table, m *ebpf.Map) ([][]byte, error) {
	var keys [][]byte
	if t.Kind == "array" {
		for _, i := range slices.Sorted(maps.Keys(r.live[abi.TablePrefix+t.Name])) {
			keys = append(keys, binary.LittleEndian.AppendUint32(nil, uint32(i)))
		}
		return keys, nil
	}
	return keysOf(m)
}

func keysOf(m *ebpf.Map) ([][]byte, error) {
	var keys [][]byte
	var prev any
	for {
		next := make([]byte, m.KeySize())
		err := m.NextKey(prev, next)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return keys, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the rows: %w", err)
		}
		keys = append(keys, next)
		prev = next
	}
}

// Read copies the kernel's tables, counters and credits into s: of arrays, the entries that a Sync wrote, or all of
// them. Counters are the sums over all processors; groups stay as they are, since no program changes them. The time of
// a session's last use becomes s.World.Now, since the clocks differ.
func (r *Relay) Read(s *sim.Relay, all bool) error {
	for _, t := range r.plan.Tables {
		if err := r.dump(t, s.Table(t.Name)); err != nil {
			return fmt.Errorf("table %q: %w", t.Name, err)
		}
	}
	if err := r.readTranslations(s); err != nil {
		return err
	}
	each := func(name string, n int, set func(i int, words []uint64)) error {
		for i := range n {
			if !all && !r.live[name][i] {
				continue
			}
			words, err := r.sum(name, i)
			if err != nil {
				return err
			}
			set(i, words)
		}
		return nil
	}
	return errors.Join(
		each(abi.MapUsage, len(s.Usage), func(i int, words []uint64) {
			s.Usage[i].Last = 0
			if words[0] != 0 {
				s.Usage[i].Last = s.World.Now
			}
			for j := range s.Usage[i].Rows {
				s.Usage[i].Rows[j] = sim.Tally{Packets: words[1+2*j], Bytes: words[2+2*j]}
			}
		}),
		each(abi.MapReceivers, len(s.Receivers), func(i int, words []uint64) {
			s.Receivers[i] = sim.ReceiverUsage{Packets: words[0], Bytes: words[1], Declined: words[2], Failed: words[3]}
		}),
		each(abi.MapCredits, len(s.Credits), func(i int, words []uint64) {
			c := &s.Credits[i]
			c.Limit, c.Spent, c.Burst = words[0], words[1], words[2]
			copy(c.Refused, words[3:])
		}),
		each(abi.MapLost, len(s.Lost), func(i int, words []uint64) { s.Lost[i] = words[0] }),
		each(abi.MapShared, len(s.Shared), func(i int, words []uint64) { s.Shared[i] = words[0] }),
		each(abi.MapNamed, len(s.Named), func(i int, words []uint64) { s.Named[i] = words[0] }),
		each(abi.MapReasons, len(s.Reasons), func(i int, words []uint64) {
			s.Reasons[i] = sim.Tally{Packets: words[0], Bytes: words[1]}
		}),
	)
}

// sum reads an entry of an array as 64-bit words, added up over all processors.
func (r *Relay) sum(name string, index int) ([]uint64, error) {
	m := r.coll.Maps[name]
	if m == nil {
		return nil, fmt.Errorf("the object has no map %s", name)
	}
	var all [][]byte
	var err error
	if perCPU(m) {
		err = m.Lookup(uint32(index), &all)
	} else {
		all = [][]byte{make([]byte, m.ValueSize())}
		err = m.Lookup(uint32(index), &all[0])
	}
	if err != nil {
		return nil, fmt.Errorf("read %s[%d]: %w", name, index, err)
	}
	words := make([]uint64, m.ValueSize()/8)
	for _, one := range all {
		for i := range words {
			words[i] += binary.LittleEndian.Uint64(one[8*i:])
		}
	}
	return words, nil
}

func (r *Relay) dump(t *ir.Table, into *sim.Table) error {
	m := r.coll.Maps[abi.TablePrefix+t.Name]
	keys, err := r.keys(t, m)
	if err != nil {
		return err
	}
	into.Clear()
	for _, k := range keys {
		var value []byte
		if perCPU(m) {
			var all [][]byte
			err = m.Lookup(k, &all)
			if err == nil {
				value = all[0]
			}
		} else {
			err = m.Lookup(k, &value)
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		value = value[:t.Value.Size]
		into.Put(k, value)
	}
	return nil
}

// Compare names the differences in state between a model's relay and what the kernel has (got), at most 16 of them.
func Compare(plan *ir.Plan, got, want *sim.Relay) []string {
	d := &differences{got: got, want: want}
	d.counters(plan)
	d.entries()
	d.translations()
	for _, t := range plan.Tables {
		d.table(t.Name)
	}
	return d.texts[:min(len(d.texts), 16)]
}

// differences between what the kernel has (got) and a model's relay.
type differences struct {
	got, want *sim.Relay
	texts     []string
}

func (d *differences) add(format string, args ...any) {
	d.texts = append(d.texts, fmt.Sprintf(format, args...))
}

// counters compares counters that the plan has names for.
func (d *differences) counters(plan *ir.Plan) {
	for p := range plan.Flow() {
		for i, reason := range p.Reasons {
			if g, w := d.got.Reasons[d.got.Tally(p, i)], d.want.Reasons[d.want.Tally(p, i)]; g != w {
				d.add("%s, reason %s: got %d packets and %d bytes, want %d and %d", p.Title(), reason.Name, g.Packets,
					g.Bytes, w.Packets, w.Bytes)
			}
		}
	}
	for _, c := range plan.Counters {
		if g, w := d.got.Named[c.Index], d.want.Named[c.Index]; g != w {
			d.add("counter %s: got %d, want %d", c.Name, g, w)
		}
	}
	for id, e := range plan.Events {
		if g, w := d.got.Lost[id+1], d.want.Lost[id+1]; g != w {
			d.add("records of %s lost: got %d, want %d", e.Name, g, w)
		}
	}
}

// entries compares what rows, sessions and receivers refer to by numbers.
func (d *differences) entries() {
	for i := range d.want.Shared {
		if g, w := d.got.Shared[i], d.want.Shared[i]; g != w {
			d.add("shared counter %d: got %d, want %d", i, g, w)
		}
	}
	for i := range d.want.Usage {
		g, w := d.got.Usage[i], d.want.Usage[i]
		if !slices.Equal(g.Rows, w.Rows) || (g.Last == 0) != (w.Last == 0) {
			d.add("usage of slot %d: got %+v, want %+v", i, g, w)
		}
	}
	for i := range d.want.Receivers {
		if g, w := d.got.Receivers[i], d.want.Receivers[i]; g != w {
			d.add("receiver %d: got %+v, want %+v", i, g, w)
		}
	}
	refill := Buckets(d.want)
	for i := range d.want.Credits {
		g, w := d.got.Credits[i], d.want.Credits[i]
		spent := g.Spent == w.Spent || refill[i] && max(g.Spent, w.Spent)-min(g.Spent, w.Spent) < clockApart
		if g.Limit != w.Limit || g.Burst != w.Burst || !spent || !slices.Equal(g.Refused, w.Refused) {
			d.add("credit %d: got %+v, want %+v", i, g, w)
		}
	}
}

func (d *differences) translations() {
	for _, k := range slices.SortedFunc(maps.Keys(d.want.Translations), byNamespace) {
		if g, known := d.got.Translations[k]; !known || g != d.want.Translations[k] {
			d.add("translation of %d in namespace %d: got %+v (there: %t), want %+v", k.Key, k.Namespace, g, known,
				d.want.Translations[k])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(d.got.Translations), byNamespace) {
		if _, known := d.want.Translations[k]; !known {
			d.add("translation of %d in namespace %d: got %+v, want none", k.Key, k.Namespace, d.got.Translations[k])
		}
	}
}

func (d *differences) table(name string) {
	g, w := d.got.Table(name), d.want.Table(name)
	keys := map[string]bool{}
	for _, k := range append(g.Keys(), w.Keys()...) {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		gv, wv := g.Get([]byte(k)), w.Get([]byte(k))
		if string(gv) != string(wv) || (gv == nil) != (wv == nil) {
			d.add("table %s, key %x: got %s, want %s", name, k, rowText(gv), rowText(wv))
		}
	}
}

// clockApart is how far the clocks of the kernel and the model may be apart, in nanoseconds.
const clockApart = 500_000_000

func byNamespace(a, b sim.TranslationKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Key, b.Key))
}

func rowText(v []byte) string {
	if v == nil {
		return "no row"
	}
	return fmt.Sprintf("%x", v)
}

// Counted is how many packets a reason has counted, by its place in the relay's array (sim.Relay.Tally).
func (r *Relay) Counted(reason int) (uint64, error) {
	words, err := r.sum(abi.MapReasons, reason)
	if err != nil {
		return 0, err
	}
	return words[0], nil
}
