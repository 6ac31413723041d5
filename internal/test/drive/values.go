//go:build linux

package drive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// This file makes values, and says which bytes they are in the kernel: docs/internals.md, written a second time.

// value makes a value of a member for a field of generated Go, and its bytes: any of its bits differ from value to
// value. All addresses of a row are of one family.
func (d *driver) value(m abi.Member, typ reflect.Type, v4 bool, ranges [][2]uint64) (reflect.Value, []byte) {
	if m.Kind.IsState() {
		return reflect.Zero(typ), nil
	}
	if m.Levels > 0 {
		all := reflect.New(typ).Elem()
		if all.Len() != m.Levels {
			panic(stop{fmt.Errorf("%s is a %v, for %d levels", m.Name, typ, m.Levels)})
		}
		one := m
		one.Levels, one.Size = 0, m.Size/m.Levels
		var raw []byte
		for i := range m.Levels {
			v, b := d.value(one, typ.Elem(), v4, ranges)
			all.Index(i).Set(v)
			raw = append(raw, b...)
		}
		return all, raw
	}
	d.next++
	raw := make([]byte, m.Size)
	for i := range raw {
		raw[i] = byte(d.rng.Uint32())
	}
	var v any
	switch m.Kind {
	case abi.KindUint:
		n := d.rng.Uint64()
		if m.Bits < 64 {
			n %= 1 << m.Bits
		}
		if len(ranges) > 0 {
			r := ranges[d.rng.IntN(len(ranges))]
			if n = r[0]; r[1] > r[0] {
				n += d.rng.Uint64N(r[1] - r[0])
			}
		}
		var wide [8]byte
		binary.NativeEndian.PutUint64(wide[:], n)
		copy(raw, wide[:])
		return reflect.ValueOf(n).Convert(typ), raw
	case abi.KindBool:
		raw[0] %= 2
		v = raw[0] == 1
	case abi.KindBytes:
		array := reflect.New(typ).Elem()
		reflect.Copy(array, reflect.ValueOf(raw))
		return array, raw
	case abi.KindData:
		raw = raw[:d.rng.IntN(len(raw)+1)]
		v = slices.Clone(raw)
	case abi.KindMAC:
		raw[0] = 2
		v = net.HardwareAddr(slices.Clone(raw))
	case abi.KindAddr:
		v, raw = d.addr(v4)
	case abi.KindEndpoint:
		a, b := d.addr(v4)
		port := uint16(d.rng.Uint32())
		v, raw = netip.AddrPortFrom(a, port), binary.NativeEndian.AppendUint16(b, port)
	case abi.KindNextHop:
		a, b := d.addr(v4)
		v, raw = a, append(make([]byte, 20), b...)
	case abi.KindPrefix:
		_, b := d.addr(v4)
		bits, mapped := 8+d.rng.IntN(25), 96
		if !v4 {
			mapped = 0
		}
		for i := range 128 {
			if i >= bits+mapped {
				b[i/8] &^= 0x80 >> (i % 8)
			}
		}
		a := netip.AddrFrom16([16]byte(b))
		if v4 {
			a = a.Unmap()
		}
		v, raw = netip.PrefixFrom(a, bits), append(binary.NativeEndian.AppendUint32(nil, uint32(bits+mapped)), b...)
	default:
		panic(stop{fmt.Errorf("%s is a %v", m.Name, m.Kind)})
	}
	return reflect.ValueOf(v), raw
}

// addr makes the address of a host.
func (d *driver) addr(v4 bool) (netip.Addr, []byte) {
	raw := make([]byte, 16)
	for i := range raw {
		raw[i] = byte(d.rng.Uint32())
	}
	if v4 {
		copy(raw, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203})
		return netip.AddrFrom4([4]byte(raw[12:])), raw
	}
	copy(raw, []byte{0x20, 0x01, 0x0d, 0xb8})
	return netip.AddrFrom16([16]byte(raw)), raw
}

// shown are the members that have fields in generated Go.
func shown(members []abi.Member) (out []abi.Member) {
	for _, m := range members {
		if !m.Hidden {
			out = append(out, m)
		}
	}
	return out
}

// row fills a structure of generated Go, or a single value, with values of members that have fields; raw are their
// bytes.
func (d *driver) row(typ reflect.Type, members []abi.Member, v4 bool) (v reflect.Value, raw [][]byte) {
	v = reflect.New(typ).Elem()
	if typ.Kind() != reflect.Struct || typ.PkgPath() == "net/netip" {
		one, b := d.value(members[0], typ, v4, nil)
		v.Set(one)
		return v, [][]byte{b}
	}
	for i, m := range members {
		one, b := d.value(m, typ.Field(i).Type, v4, nil)
		v.Field(i).Set(one)
		raw = append(raw, b)
	}
	return v, raw
}

// lay puts the bytes of members where they belong.
func lay(size int, members []abi.Member, raw [][]byte) []byte {
	out := make([]byte, size)
	for i, m := range members {
		copy(out[m.Off:m.Off+m.Size], raw[i])
	}
	return out
}

// holds compares the bytes of members with those of a row. What a row refers to has an index; raw has none.
func (d *driver) holds(what string, row []byte, members []abi.Member, raw [][]byte) {
	for i, m := range members {
		got, want := row[m.Off:m.Off+m.Size], raw[i]
		switch {
		case m.Kind.IsState():
			if bytes.Equal(got, make([]byte, 4)) {
				d.errorf("%s, %s: it refers to nothing", what, m.Name)
			}
			continue
		case m.Kind == abi.KindNextHop:
			got, want = got[20:], want[20:]
		}
		if !bytes.Equal(got, want) {
			d.errorf("%s, %s: the kernel has %x, not %x", what, m.Name, got, want)
		}
	}
}

// get reads an entry of a map; nil: there is none. That of a map with values for each processor is all of them.
func (d *driver) get(m *ebpf.Map, key []byte) []byte {
	switch m.Type() {
	case ebpf.PerCPUHash, ebpf.PerCPUArray, ebpf.LRUCPUHash:
		var all [][]byte
		if err := m.Lookup(key, &all); err != nil {
			return nil
		}
		return slices.Concat(all...)
	}
	b, err := m.LookupBytes(key)
	d.must("a map", err)
	return b
}

// at32 is the entry of an array.
func (d *driver) at32(name string, i uint32) []byte {
	return d.get(d.maps[name], binary.NativeEndian.AppendUint32(nil, i))
}

func u32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// perCPU writes numbers into an entry of a map, others for each processor, and returns their sums by offset.
func (d *driver) perCPU(name string, i int, offsets ...int) (sums []any) {
	m := d.maps[name]
	if m == nil {
		panic(stop{fmt.Errorf("there is no map %s", name)})
	}
	cpus := ebpf.MustPossibleCPU()
	all := make([][]byte, cpus)
	for cpu := range all {
		all[cpu] = make([]byte, m.ValueSize())
	}
	for _, off := range offsets {
		sum := uint64(0)
		for cpu := range all {
			n := uint64(d.rng.Uint32())
			binary.NativeEndian.PutUint64(all[cpu][off:], n)
			sum += n
		}
		sums = append(sums, sum)
	}
	d.must(name, m.Put(uint32(i), all))
	return sums
}
