// Package mapmem maps the memory of BPF array maps, which the kernel's programs and user space then read and write
// without system calls, by atomic operations.
package mapmem

import (
	"fmt"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Stride is the distance between two values of that size, in an array's memory and in what the kernel returns of a
// per-CPU map.
func Stride(size int) int { return (size + 7) &^ 7 }

// Array is the memory of an array map. It stays mapped until nothing refers to it, so what outlives its relay may go on
// using it.
type Array struct {
	mem    []byte
	stride int
}

// Map maps the memory of an array map that was made with BPF_F_MMAPABLE.
func Map(m *ebpf.Map) (*Array, error) {
	stride := Stride(int(m.ValueSize()))
	page := os.Getpagesize()
	size := (stride*int(m.MaxEntries()) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of %v: %w", m, err)
	}
	mp := &Array{mem: mem, stride: stride}
	goruntime.AddCleanup(mp, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return mp, nil
}

// word64 is the aligned 64-bit word at byte off of entry i.
func (m *Array) word64(i uint32, off int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.mem[int(i)*m.stride+off]))
}

func (m *Array) word32(i uint32, off int) *uint32 {
	return (*uint32)(unsafe.Pointer(&m.mem[int(i)*m.stride+off]))
}

// Each access keeps the Array alive until it is done: the collector doesn't own the memory, so a pointer into it is no
// reference.

// Load64 reads the 64-bit word at byte off of entry i.
func (m *Array) Load64(i uint32, off int) uint64 {
	defer goruntime.KeepAlive(m)
	return atomic.LoadUint64(m.word64(i, off))
}

// Store64 sets the 64-bit word at byte off of entry i.
func (m *Array) Store64(i uint32, off int, v uint64) {
	atomic.StoreUint64(m.word64(i, off), v)
	goruntime.KeepAlive(m)
}

// Add64 adds v to the 64-bit word at byte off of entry i, and returns the sum.
func (m *Array) Add64(i uint32, off int, v uint64) uint64 {
	defer goruntime.KeepAlive(m)
	return atomic.AddUint64(m.word64(i, off), v)
}

// CompareAndSwap64 sets the 64-bit word at byte off of entry i to new if it is old, and reports whether it did.
func (m *Array) CompareAndSwap64(i uint32, off int, old, new uint64) bool {
	defer goruntime.KeepAlive(m)
	return atomic.CompareAndSwapUint64(m.word64(i, off), old, new)
}

// Atomic64 is the 64-bit word at byte off of entry i. It is no reference to the Array.
func (m *Array) Atomic64(i uint32, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(m.word64(i, off)))
}

// Load32 reads the 32-bit word at byte off of entry i.
func (m *Array) Load32(i uint32, off int) uint32 {
	defer goruntime.KeepAlive(m)
	return atomic.LoadUint32(m.word32(i, off))
}

// Store32 sets the 32-bit word at byte off of entry i.
func (m *Array) Store32(i uint32, off int, v uint32) {
	atomic.StoreUint32(m.word32(i, off), v)
	goruntime.KeepAlive(m)
}
