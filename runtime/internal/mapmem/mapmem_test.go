package mapmem

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

// The memory is that of the map: what one side writes is what the other reads, in entries of any size.
func TestArray(t *testing.T) {
	bpftest.Rights(t)
	const entries, mmapable = 1000, 1 << 10
	for _, size := range []uint32{4, 8, 12, 20} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{
			Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: entries, Flags: mmapable,
		})
		if err != nil {
			t.Fatal(err)
		}
		mem, err := Map(m)
		if err != nil {
			t.Fatal(err)
		}
		value := make([]byte, size)
		for _, i := range []uint32{0, 1, entries - 1} {
			value[0] = byte(i + 1)
			if err := m.Put(i, value); err != nil {
				t.Fatal(err)
			}
			if got := mem.Load32(i, 0); got != uint32(value[0]) {
				t.Errorf("values of %d bytes: entry %d reads %d, want %d", size, i, got, value[0])
			}
			mem.Store32(i, 0, 0x01020304)
			if b, err := m.LookupBytes(i); err != nil || b[0] != 4 || b[3] != 1 {
				t.Errorf("values of %d bytes: entry %d is %x, %v", size, i, b, err)
			}
		}
		if size >= 8 {
			mem.Store64(7, 0, 1<<40)
			if mem.Add64(7, 0, 2) != 1<<40+2 || mem.CompareAndSwap64(7, 0, 1, 5) || !mem.CompareAndSwap64(7, 0,
				1<<40+2, 5) ||
				mem.Load64(7, 0) != 5 {
				t.Errorf("values of %d bytes: entry 7 reads %d", size, mem.Load64(7, 0))
			}
		}
		m.Close()
		mem.Store32(entries-1, 0, 1) // the memory stays
	}

	// A map whose memory can't be mapped.
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := Map(m); err == nil {
		t.Error("it is mapped without BPF_F_MMAPABLE")
	}
}
