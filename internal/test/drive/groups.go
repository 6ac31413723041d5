//go:build linux

package drive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// group opens a group, and adds, changes and removes receivers.
func (d *driver) group(kind reflect.Value, desc *abi.Group) {
	what := "group " + desc.Name
	keys := shown(desc.Key)
	open, _ := kind.Type().MethodByName("Open")
	key, raw := d.row(open.Type.In(2), keys, true)
	rawKey := lay(desc.KeySize, keys, raw)
	g := d.ok(kind, "Open", background, key)[0]
	d.same(what+", Get", d.ok(kind, "Get", key)[0].Interface(), g.Interface())
	d.same(what+", Key", d.call(g, "Key")[0].Interface(), key.Interface())
	for one := range d.call(kind, "All")[0].Seq() {
		d.same(what+", All", one.Interface(), g.Interface())
	}
	if text := d.call(g, "String")[0].String(); len(text) < len(desc.Name) || text[:len(desc.Name)] != desc.Name {
		d.errorf("%s is %q", what, text)
	}

	if v := d.call(kind, "Of", &runtime.Event{})[0]; !v.IsNil() {
		d.errorf("%s: an event that names no receiver names %v", what, v)
	}

	add, _ := g.Type().MethodByName("Add")
	rowType := add.Type.In(2)
	var plain, state []abi.Member
	for _, m := range shown(desc.Receiver) {
		if m.Kind.IsState() {
			state = append(state, m)
		} else {
			plain = append(plain, m)
		}
	}
	// has compares the list that the kernel has for the group.
	has := func(when string, want ...reflect.Value) (rows [][]byte) {
		list := d.list(desc, rawKey)
		d.same(what+", Len, "+when, d.call(g, "Len")[0].Interface(), len(want))
		groups, receivers := 0, 0
		out := d.call(kind, "Count")
		groups, receivers = int(out[0].Int()), int(out[1].Int())
		d.same(what+", Count, "+when, []int{groups, receivers}, []int{1, len(want)})
		all := d.call(g, "Receivers")[0]
		if len(list) != len(want) || all.Len() != len(want) {
			d.errorf("%s, %s: %d receivers, %d in the kernel, not %d", what, when, all.Len(), len(list), len(want))
			return nil
		}
		for i, v := range want {
			d.same(what+", Receivers, "+when, all.Index(i).Interface(), v.Interface())
			row := d.at32(abi.RowsPrefix+desc.Name, list[i])
			rows = append(rows, row)
			for _, m := range desc.Receiver {
				if m.Hidden && m.Name == abi.MemberReceiver {
					d.same(what+", ID, "+when, uint64(u32(row[m.Off:])), d.call(v, "ID")[0].Uint())
				}
			}
		}
		return rows
	}
	is := func(when string, v reflect.Value, row []byte, want reflect.Value, raw [][]byte) {
		if raw != nil {
			d.holds(what+", "+when, row, plain, raw)
		}
		d.same(what+", Row, "+when, d.call(v, "Row")[0].Interface(), want.Interface())
	}
	d.maps[abi.RowsPrefix+desc.Name].Type() // its type is known
	row, raw := d.row(rowType, plain, true)
	v := d.ok(g, "Add", background, row)[0]
	rows := has("added", v)
	if rows == nil {
		return
	}
	is("added", v, rows[0], row, raw)
	d.same(what+", Group", d.call(v, "Group")[0].Interface(), g.Interface())
	if d.call(v, "String")[0].Len() == 0 {
		d.errorf("%s: a receiver without a name", what)
	}
	hops := 0
	for _, m := range desc.Receiver {
		if m.Kind == abi.KindHop || m.Kind == abi.KindNextHop {
			hops++
		}
	}
	d.same(what+", Hops", d.call(v, "Hops")[0].Len(), hops)
	for i, m := range state {
		d.refers(what+", "+m.Name, v.Elem().FieldByName("State").Field(i), m, u32(rows[0][m.Off:]))
	}
	n := d.perCPU(abi.MapReceivers, int(d.call(v, "ID")[0].Uint()), abi.ReceiverPackets, abi.ReceiverBytes,
		abi.ReceiverDeclined, abi.ReceiverFailed)
	d.same(what+", Usage", d.ok(v, "Usage")[0].Interface(), runtime.Usage{
		Packets: n[0].(uint64), Bytes: n[1].(uint64), Declined: n[2].(uint64), Failed: n[3].(uint64),
	})

	row, raw = d.row(rowType, plain, false)
	d.ok(v, "Set", background, row)
	is("set", v, has("set", v)[0], row, raw)
	// update makes a function that replaces the values which it finds.
	update := func(typ reflect.Type, was, now reflect.Value) reflect.Value {
		return reflect.MakeFunc(typ, func(in []reflect.Value) []reflect.Value {
			d.same(what+", Update", in[0].Elem().Interface(), was.Interface())
			in[0].Elem().Set(now)
			return nil
		})
	}
	was := row
	row, raw = d.row(rowType, plain, true)
	f, _ := v.Type().MethodByName("Update")
	d.ok(v, "Update", background, update(f.Type.In(2), was, row))
	is("updated", v, has("updated", v)[0], row, raw)

	d.change(what, desc, g, v, plain, has, is, update)

	d.ok(g, "Close", background)
	if list := d.list(desc, rawKey); list != nil {
		d.errorf("%s: the kernel has %v after Close", what, list)
	}
	d.fails(runtime.ErrNotFound, kind, "Get", key)
	// One that stays for events.
	g = d.ok(kind, "Open", background, key)[0]
	row, _ = d.row(rowType, plain, true)
	v = d.ok(g, "Add", background, row)[0]
	if d.receivers == nil {
		d.receivers = map[uint32]reflect.Value{}
	}
	d.receivers[uint32(d.call(v, "ID")[0].Uint())] = v
}

// change makes changes in one step, and removes receivers.
func (d *driver) change(what string, desc *abi.Group, g, v reflect.Value, plain []abi.Member,
	has func(when string, want ...reflect.Value) [][]byte,
	is func(when string, v reflect.Value, row []byte, want reflect.Value, raw [][]byte),
	update func(typ reflect.Type, was, now reflect.Value) reflect.Value) {
	step := func(f func(c reflect.Value) error) error {
		method, _ := g.Type().MethodByName("Change")
		return asError(d.call(g, "Change", background, reflect.MakeFunc(method.Type.In(2),
			func(in []reflect.Value) []reflect.Value {
				out := reflect.New(reflect.TypeFor[error]()).Elem()
				if err := f(in[0]); err != nil {
					out.Set(reflect.ValueOf(err))
				}
				return []reflect.Value{out}
			}))[0])
	}
	was := d.call(v, "Row")[0]
	rowType := was.Type()
	second := desc.Max > 1 && desc.Rows > 1
	row1, raw1 := d.row(rowType, plain, true)
	row2, raw2 := d.row(rowType, plain, false)
	var w reflect.Value
	var full *runtime.FullError
	err := step(func(c reflect.Value) error {
		method, _ := c.Type().MethodByName("Update")
		d.call(c, "Update", v, update(method.Type.In(2), was, row1))
		out := d.call(c, "Add", row2)
		w = out[0]
		return asError(out[1])
	})
	if !second {
		if !errors.As(err, &full) {
			d.errorf("%s: a receiver too many: %v", what, err)
		}
		is("unchanged", v, has("unchanged", v)[0], was, nil)
	} else {
		d.must(what, err)
		if rows := has("changed", v, w); rows != nil {
			is("changed", v, rows[0], row1, raw1)
			is("changed", w, rows[1], row2, raw2)
		}
	}
	broken := errors.New("changed my mind")
	if err := step(func(c reflect.Value) error { d.call(c, "Remove", v); return broken }); !errors.Is(err, broken) {
		d.errorf("%s: a change that is given up: %v", what, err)
	}
	row1, raw1 = d.row(rowType, plain, false)
	left := v
	d.must(what, step(func(c reflect.Value) error {
		if second {
			d.call(c, "Remove", v)
			left = w
		}
		return asError(d.call(c, "Set", left, row1)[0])
	}))
	is("set in a step", left, has("set in a step", left)[0], row1, raw1)
	if !second {
		d.must(what, step(func(c reflect.Value) error { d.call(c, "Remove", v); return nil }))
	}
	d.ok(left, "Remove", background)
	has("removed")
}

// list are the rows of a group in the kernel; nil: it isn't there.
func (d *driver) list(desc *abi.Group, key []byte) []uint32 {
	b := d.get(d.maps[abi.GroupPrefix+desc.Name], key)
	if b == nil {
		return nil
	}
	inner, err := ebpf.NewMapFromID(ebpf.MapID(u32(b)))
	d.must("a list", err)
	defer inner.Close()
	b = d.get(inner, make([]byte, 4))
	out := []uint32{}
	for i := range u32(b) {
		out = append(out, u32(b[4+4*i:]))
	}
	return out
}

// events writes a record of each event, and reads it, once by each of both iterations.
func (d *driver) events() {
	if len(d.Desc.Events) == 0 {
		return
	}
	var want []any
	for i := range d.Desc.Events {
		n := d.rng.Uint64()
		d.must("the lost records", d.maps[abi.MapLost].Put(uint32(i+1), binary.NativeEndian.AppendUint64(nil, n)))
		want = append(want, n)
	}
	d.same("Lost", values(d.call(d.relay, "Lost")[0]), want)
	types := map[string]reflect.Type{}
	for i := range d.Desc.Events {
		for _, iteration := range []string{"Events", "Pending"} {
			for _, receiver := range d.ids() {
				d.event(uint16(i+1), &d.Desc.Events[i], iteration, receiver, types)
			}
		}
	}
	d.same("types of events", len(types), len(d.Desc.Events))
}

// ids are 0 and the identities of receivers.
func (d *driver) ids() []uint32 {
	out := []uint32{0}
	for id := range d.receivers {
		out = append(out, id)
	}
	return out
}

func (d *driver) event(id uint16, desc *abi.Event, iteration string, receiver uint32, types map[string]reflect.Type) {
	what := "event " + desc.Name
	record := make([]byte, desc.Size)
	mono := d.rng.Uint64N(1 << 30)
	binary.NativeEndian.PutUint64(record, mono)
	binary.NativeEndian.PutUint16(record[12:], id)
	binary.NativeEndian.PutUint16(record[14:], uint16(desc.Size))
	// The fields' types are known when there is an event, and whose receivers it names.
	d.emit(record)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	read := func() (out reflect.Value) {
		for e, err := range d.call(d.relay, iteration, ctx)[0].Seq2() {
			d.must(what, asError(err))
			out = reflect.New(e.Elem().Type()).Elem()
			out.Set(e.Elem())
			break
		}
		if !out.IsValid() {
			panic(stop{fmt.Errorf("%s: %s has nothing", what, iteration)})
		}
		return out
	}
	e := read()
	types[e.Type().Name()] = e.Type()
	first := e.NumField() - len(desc.Fields)
	if desc.Copies != nil {
		first--
	}
	v, named := d.receivers[receiver]
	if first == 3 && named && !v.Type().AssignableTo(e.Field(0).Type()) {
		return
	}
	binary.NativeEndian.PutUint32(record[8:], receiver)
	var fields []any
	for i, m := range desc.Fields {
		v, raw := d.value(m, e.Field(first+i).Type(), d.next%2 == 0, nil)
		copy(record[m.Off:m.Off+m.Size], raw)
		fields = append(fields, v.Interface())
		if m.Kind == abi.KindData {
			binary.NativeEndian.PutUint16(record[14:], uint16(m.Off+len(raw)))
		}
	}
	if desc.Copies != nil {
		fields = append(fields, d.copies(desc, record, receiver, e.FieldByName("Copies").Type()))
	}
	d.emit(record)
	e = read()
	d.same(what+": fields", values(e)[first:], append([]any{}, fields...))
	d.same(what+", Mono", e.FieldByName("Mono").Interface(), time.Duration(mono))
	if at := e.FieldByName("Time"); at.IsZero() {
		d.errorf("%s has no time", what)
	}
	if first == 3 { // it names a receiver
		switch got := e.Field(0); {
		case named:
			d.same(what+", Receiver", got.Interface(), v.Interface())
		case !got.IsNil():
			d.errorf("%s names %v", what, got)
		}
	}
}

// copies puts entries for a receiver into a record, as many as there is room for or none, and returns what is to come
// out.
func (d *driver) copies(desc *abi.Event, record []byte, receiver uint32, typ reflect.Type) any {
	c := desc.Copies
	n := d.rng.IntN((desc.Size-c.Off)/c.Size + 1)
	out := reflect.MakeSlice(typ, n, n)
	for i := range n {
		entry, one := c.Entry(record, i), out.Index(i)
		first := one.NumField() - len(c.Values)
		if v, known := d.receivers[receiver]; known && first == 1 && v.Type().AssignableTo(one.Field(0).Type()) {
			binary.NativeEndian.PutUint32(entry, receiver)
			one.Field(0).Set(v)
		}
		for k, m := range c.Values {
			v, raw := d.value(m, one.Field(first+k).Type(), d.next%2 == 0, nil)
			copy(m.In(entry), raw)
			one.Field(first + k).Set(v)
		}
	}
	binary.NativeEndian.PutUint16(record[14:], uint16(c.Off+n*c.Size))
	return out.Interface()
}

// emit puts a record into the ring of events as a program does.
func (d *driver) emit(record []byte) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(record)), MaxEntries: 1})
	d.must("a record", err)
	defer m.Close()
	d.must("a record", m.Put(uint32(0), record))
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R2, asm.R0), asm.LoadMapPtr(asm.R1, d.maps[abi.MapEvents].FD()),
		asm.Mov.Imm(asm.R3, int32(len(record))), asm.Mov.Imm(asm.R4, 0), asm.FnRingbufOutput.Call(),
		asm.Return().WithSymbol("end"),
	}})
	d.must("a program that emits", err)
	defer p.Close()
	got, _, err := p.Test(make([]byte, 14))
	d.must("a record", err)
	if got != 0 {
		d.must("a record", fmt.Errorf("the ring refuses it: %d", int32(got)))
	}
}
