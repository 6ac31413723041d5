//go:build linux

package drive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// refers sets what a member of a row refers to, and looks for that where the row's index says.
func (d *driver) refers(what string, v reflect.Value, m abi.Member, index uint32) {
	if v.Kind() == reflect.Array {
		for i := range v.Len() {
			d.refers(fmt.Sprintf("%s, level %d", what, i), v.Index(i), m, index+uint32(i))
		}
		return
	}
	if v.IsNil() {
		d.errorf("%s: nil", what)
		return
	}
	a, b := d.rng.Uint64()>>32, d.rng.Uint64()>>32
	var at []byte
	off := map[int]uint64{0: a}
	switch v := v.Interface().(type) {
	case *runtime.Counter:
		v.Store(a)
		at = d.at32(abi.MapShared, index)
	case *runtime.Credit:
		off[8] = b + binary.NativeEndian.Uint64(d.at32(abi.MapCredits, index)[8:])
		v.SetLimit(a)
		d.must(what, v.Charge(b))
		at = d.at32(abi.MapCredits, index)
	case *runtime.Bucket:
		v.SetRate(runtime.Rate{PerSecond: a, Burst: b})
		off[16] = b
		at = d.at32(abi.MapCredits, index)
	case *runtime.Translation:
		now, stored, err := v.Put(b, a)
		d.must(what, err)
		d.same(what, []any{now, stored}, []any{a, true})
		key := binary.NativeEndian.AppendUint64(nil, b)
		key = binary.NativeEndian.AppendUint64(key, uint64(index))
		at = d.get(d.maps[abi.MapTranslate], key)
	}
	for off, want := range off {
		if len(at) < off+8 || binary.NativeEndian.Uint64(at[off:]) != want {
			d.errorf("%s: entry %d has %x, not %x at %d", what, index, at, want, off)
		}
	}
}

// table puts, gets, lists and deletes rows.
func (d *driver) table(t reflect.Value, desc *abi.Table) {
	m := d.maps[abi.TablePrefix+desc.Name]
	keys, members := shown(desc.Key), shown(desc.Value)
	get, _ := t.Type().MethodByName("Get")
	keyType, rowType := get.Type.In(1), get.Type.Out(0)
	if desc.Bound() { // packets make its rows
		key, _ := d.row(keyType, keys, true)
		d.fails(runtime.ErrNotFound, t, "Get", key)
		for range d.call(t, "All")[0].Seq2() {
			d.errorf("table %s: a row without a packet", desc.Name)
		}
		return
	}
	array := desc.Kind == abi.TableArray
	type entry struct {
		key, row reflect.Value
		rawKey   []byte
	}
	var rows []entry
	raws := map[string]bool{}
	for n := range min(4, desc.Size) {
		what := fmt.Sprintf("table %s, row %d", desc.Name, n)
		v4 := n%2 == 0
		key, raw := d.row(keyType, keys, v4)
		rawKey := lay(desc.KeySize, keys, raw)
		if array {
			if keys[0].Bits < 64 && n>>keys[0].Bits > 0 {
				break // what the key can't name
			}
			key, rawKey = reflect.ValueOf(uint64(n)).Convert(keyType), binary.NativeEndian.AppendUint32(nil, uint32(n))
		}
		if raws[string(rawKey)] {
			continue
		}
		raws[string(rawKey)] = true
		e := entry{key: key, rawKey: rawKey}
		var states []uint32
		for again := range 2 {
			row, raw := d.row(rowType, members, v4)
			if again == 1 {
				for i, m := range members {
					if m.Kind.IsState() {
						row.Field(i).Set(e.row.Field(i))
					}
				}
			}
			d.ok(t, "Put", key, row)
			if e.row = d.ok(t, "Get", key)[0]; len(members) > 0 {
				d.stored(what, m, desc, rawKey, members, raw)
			}
			for i, member := range members {
				at := d.get(m, rawKey)
				switch got := e.row.Field(i); {
				case !member.Kind.IsState():
					d.same(what+", "+member.Name, got.Interface(), row.Field(i).Interface())
				case again == 0:
					states = append(states, u32(at[member.Off:]))
					d.refers(what+", "+member.Name, got, member, states[len(states)-1])
				default:
					d.same(what+", "+member.Name+", replaced", got.Interface(), row.Field(i).Interface())
					d.same(what+", "+member.Name+", replaced", u32(at[member.Off:]), states[0])
					states = states[1:]
				}
			}
		}
		rows = append(rows, e)
	}
	if desc.Kind == abi.TableLRU { // in a small one, a row takes the place of any other
		rows = slices.DeleteFunc(rows, func(e entry) bool { return d.get(m, e.rawKey) == nil })
	}
	listed, want := 0, 0
	for _, e := range rows {
		if b := d.get(m, e.rawKey); !array || !bytes.Equal(b, make([]byte, len(b))) { // else All leaves it out
			want++
		}
	}
	for e, err := range d.call(t, "All")[0].Seq2() {
		d.must("All", asError(err))
		for _, r := range rows {
			if reflect.DeepEqual(e.Field(0).Interface(), r.key.Interface()) {
				listed++
				d.same("table "+desc.Name+", All", e.Field(1).Interface(), r.row.Interface())
			}
		}
	}
	d.same("table "+desc.Name+": rows listed", listed, want)
	d.ok(t, "Delete", rows[0].key)
	var rest []any
	for _, e := range rows[1:] {
		rest = append(rest, e.key)
	}
	n := d.ok(t, "DeleteMany", rest...)[0].Interface()
	d.same("table "+desc.Name+": rows deleted", n, len(rest))
	for _, e := range rows {
		if b := d.get(m, e.rawKey); b != nil && (!array || !bytes.Equal(b, make([]byte, len(b)))) {
			d.errorf("table %s: a row is there after it was deleted: %x", desc.Name, b)
		}
		if !array {
			d.fails(runtime.ErrNotFound, t, "Get", e.key)
		}
	}
}

// stored looks for a row of a table.
func (d *driver) stored(what string, m *ebpf.Map, desc *abi.Table, key []byte, members []abi.Member, raw [][]byte) {
	b := d.get(m, key)
	if b == nil {
		d.errorf("%s: there is no row %x", what, key)
		return
	}
	d.holds(what, b, members, raw)
	if !desc.PerCPU {
		return
	}
	size := len(b) / ebpf.MustPossibleCPU()
	for at := size; at < len(b); at += size {
		for i, member := range members {
			want := raw[i]
			if member.Kind == abi.KindUint {
				want = make([]byte, member.Size)
			}
			if got := b[at+member.Off : at+member.Off+member.Size]; !bytes.Equal(got, want) {
				d.errorf("%s, %s, another processor: the kernel has %x, not %x", what, member.Name, got, want)
			}
		}
	}
}

// values of a session.
type sessionValues struct {
	fields  reflect.Value
	raw     [][]byte
	members []abi.Member
}

func (d *driver) sessionValues(typ reflect.Type, desc *abi.Session) *sessionValues {
	v := &sessionValues{fields: reflect.New(typ).Elem()}
	v4 := d.rng.Uint32()%2 == 0
	for i, f := range desc.Fields {
		m := abi.Member{Name: f.Name, Kind: f.Kind, Bits: f.Bits, Levels: f.Levels, Size: f.Size}
		one, raw := d.value(m, typ.Field(i).Type, v4, f.Ranges)
		v.fields.Field(i).Set(one)
		v.raw, v.members = append(v.raw, raw), append(v.members, m)
	}
	return v
}

// in are the bytes of fields as members of a row, which may be wider.
func (v *sessionValues) in(members []abi.Member, fields []int) (raw [][]byte) {
	for i, m := range members {
		b := v.raw[fields[i]]
		if m.Kind == abi.KindUint && m.Levels == 0 {
			b = append(append([]byte{}, b...), make([]byte, m.Size)...)[:m.Size]
		}
		raw = append(raw, b)
	}
	return raw
}

// session opens, changes and closes sessions of a kind.
func (d *driver) session(kind reflect.Value, desc *abi.Session) {
	open, _ := kind.Type().MethodByName("Open")
	typ := open.Type.In(1)
	what := "session " + desc.Name
	// Values that another session has already, or two rows of this one: there are few if a field is small. A change
	// needs room for the new rows beside the old ones.
	taken := func(try func(*sessionValues) error) (v *sessionValues) {
		for range 64 {
			v = d.sessionValues(typ, desc)
			err := try(v)
			var collides *runtime.CollisionError
			if errors.As(err, &collides) || err != nil && strings.Contains(err.Error(), "have one key") {
				continue
			}
			var full *runtime.FullError
			if errors.As(err, &full) && slices.ContainsFunc(desc.Rows, func(row abi.Row) bool {
				t := &d.Desc.Tables[row.Table]
				return full.What == fmt.Sprintf("table %q", t.Name) && t.Size < 2*rowsIn(desc, row.Table)
			}) {
				return nil
			}
			d.must(what, err)
			return v
		}
		return nil
	}
	opened := func() (s reflect.Value, v *sessionValues) {
		v = taken(func(v *sessionValues) error {
			out := d.call(kind, "Open", v.fields)
			s = out[0]
			return asError(out[1])
		})
		return s, v
	}
	s, v := opened()
	if v == nil && impossible(desc) {
		for range d.call(kind, "All")[0].Seq() {
			d.errorf("%s: there is one", what)
		}
		d.ok(kind, "Close")
		return
	}
	if v == nil {
		d.errorf("%s: every one collides", what)
		return
	}
	slot := d.sessionRows(what, desc, v, true)
	d.fields(what, s, v, desc)
	if at := d.call(s, "LastUsed"); !at[0].IsZero() {
		d.errorf("%s: used before it was: %v", what, at[0])
	}
	counters := d.sessionCounters(what, s, desc, slot)
	if counters {
		if at := d.ok(s, "LastUsed")[0]; at.IsZero() {
			d.errorf("%s: never used", what)
		}
	}
	deadline := func() uint64 { return binary.NativeEndian.Uint64(d.at32(abi.MapSlots, slot)) }
	before := deadline()
	d.ok(s, "Refresh")
	if now := deadline(); now < before || now == 0 {
		d.errorf("%s: refreshed from %d to %d", what, before, now)
	}
	if ends := desc.Lifetime > 0 || desc.Idle > 0; d.call(s, "Expires")[0].IsZero() == ends {
		d.errorf("%s: whether it expires isn't %v", what, ends)
	}
	if text := d.call(s, "String")[0].String(); len(text) < len(desc.Name) || text[:len(desc.Name)] != desc.Name {
		d.errorf("%s is %q", what, text)
	}
	old := v
	v = taken(func(v *sessionValues) error {
		for i, m := range v.members { // that stays
			if m.Kind.IsState() {
				v.fields.Field(i).Set(d.call(s, "Fields")[0].Field(i))
			}
		}
		return asError(d.call(s, "Change", v.fields)[0])
	})
	if v == nil {
		v = old
	}
	d.sessionRows(what+", changed", desc, v, true)
	d.fields(what+", changed", s, v, desc)
	n := 0
	for other := range d.call(kind, "All")[0].Seq() {
		n++
		d.same(what+", listed", values(d.call(other, "Fields")[0]), values(d.call(s, "Fields")[0]))
	}
	d.same(what+": how many", n, 1)
	done := d.call(s, "Done")[0]
	if _, closed := done.TryRecv(); closed || asError(d.call(s, "Err")[0]) != nil {
		d.errorf("%s: over", what)
	}
	d.ok(s, "Close")
	d.sessionRows(what+", closed", desc, v, false)
	if chosen, _, _ := reflect.Select([]reflect.SelectCase{
		{Dir: reflect.SelectRecv, Chan: done}, {Dir: reflect.SelectDefault},
	}); chosen != 0 || !errors.Is(asError(d.call(s, "Err")[0]), runtime.ErrClosed) {
		d.errorf("%s: not over after Close", what)
	}
	a, v := opened()
	both := []any{a}
	if desc.Size > 1 {
		if b, w := opened(); w != nil {
			both = append(both, b)
		}
	}
	d.ok(kind, "Close", both...)
	d.sessionRows(what+", all closed", desc, v, false)
}

// impossible reports whether no session can be: two of its rows have one key, since the fields of their keys may have
// one value only.
func impossible(desc *abi.Session) bool {
	for i, a := range desc.Rows {
		if slices.ContainsFunc(desc.Rows[:i], func(b abi.Row) bool {
			return a.Table == b.Table && slices.EqualFunc(a.Key, b.Key, func(x, y int) bool {
				r := desc.Fields[x].Ranges
				return x == y || len(r) == 1 && r[0][0] == r[0][1] && slices.Equal(r, desc.Fields[y].Ranges)
			})
		}) {
			return true
		}
	}
	return false
}

// rowsIn is how many rows a session has in a table.
func rowsIn(desc *abi.Session, table int) (n int) {
	for _, row := range desc.Rows {
		if row.Table == table {
			n++
		}
	}
	return n
}

// fields compares what a session says that it has, and looks for what it refers to.
func (d *driver) fields(what string, s reflect.Value, v *sessionValues, desc *abi.Session) {
	got := d.call(s, "Fields")[0]
	for i, m := range v.members {
		if !m.Kind.IsState() {
			d.same(what+", "+m.Name, got.Field(i).Interface(), v.fields.Field(i).Interface())
			continue
		}
		for _, row := range desc.Rows {
			t := &d.Desc.Tables[row.Table]
			for j, f := range row.Value {
				if f == i {
					member := shown(t.Value)[j]
					key := lay(t.KeySize, shown(t.Key), v.in(shown(t.Key), row.Key))
					if b := d.get(d.maps[abi.TablePrefix+t.Name], key); b != nil {
						d.refers(what+", "+m.Name, got.Field(i), m, u32(b[member.Off:]))
					}
				}
			}
		}
	}
}

// sessionRows looks for the rows of a session, and returns its slot.
func (d *driver) sessionRows(what string, desc *abi.Session, v *sessionValues, there bool) (slot uint32) {
	for _, row := range desc.Rows {
		t := &d.Desc.Tables[row.Table]
		m := d.maps[abi.TablePrefix+t.Name]
		keys, members := shown(t.Key), shown(t.Value)
		key := lay(t.KeySize, keys, v.in(keys, row.Key))
		b := d.get(m, key)
		if b == nil || !there {
			if (b != nil) != there {
				d.errorf("%s: row %x of %s is there: %v", what, key, t.Name, b != nil)
			}
			continue
		}
		d.holds(what+", "+t.Name, b, members, v.in(members, row.Value))
		var gen uint32
		for _, m := range t.Value {
			switch {
			case m.Hidden && m.Name == abi.MemberSlot:
				slot = u32(b[m.Off:])
			case m.Hidden && m.Name == abi.MemberGen:
				gen = u32(b[m.Off:])
			}
		}
		if at := d.at32(abi.MapSlots, slot); gen == 0 || u32(at[abi.SlotGen:]) != gen {
			d.errorf("%s: the row has generation %d of slot %d: %x", what, gen, slot, at)
		}
	}
	return slot
}

// sessionCounters writes what the kernel counts for a session, and reads it.
func (d *driver) sessionCounters(what string, s reflect.Value, desc *abi.Session, slot uint32) bool {
	if len(desc.Rows) == 0 {
		d.call(s, "Counters")
		return false
	}
	offsets := []int{abi.UsageLast}
	for i := range desc.Rows {
		offsets = append(offsets, abi.UsageRows+abi.ReasonSize*i, abi.UsageRows+abi.ReasonSize*i+8)
	}
	sums := d.perCPU(abi.MapUsage, int(slot), offsets...)[1:]
	var want []any
	for i := range desc.Rows {
		want = append(want, runtime.Count{Packets: sums[2*i].(uint64), Bytes: sums[2*i+1].(uint64)})
	}
	d.same(what+", Counters", values(d.ok(s, "Counters")[0]), want)
	return true
}
