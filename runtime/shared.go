package runtime

import (
	"fmt"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mapping is the memory of an array map that kernel and user space both see. It stays mapped until nothing refers to
// it, so a Counter that outlives its relay is harmless.
type mapping struct {
	mem    []byte
	stride int
}

func mapArray(m *ebpf.Map) (*mapping, error) {
	stride := align8(int(m.ValueSize()))
	page := os.Getpagesize()
	size := (stride*int(m.MaxEntries()) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of %v: %w", m, err)
	}
	mp := &mapping{mem: mem, stride: stride}
	goruntime.AddCleanup(mp, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return mp, nil
}

// word64 is the aligned 64-bit word at byte off of entry i.
func (m *mapping) word64(i uint32, off int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.mem[int(i)*m.stride+off]))
}

func (m *mapping) word32(i uint32, off int) *uint32 {
	return (*uint32)(unsafe.Pointer(&m.mem[int(i)*m.stride+off]))
}

// Each access keeps the mapping alive until it is done: the memory is not the collector's, so a pointer into it is no
// reference.

func (m *mapping) load64(i uint32, off int) uint64 {
	defer goruntime.KeepAlive(m)
	return atomic.LoadUint64(m.word64(i, off))
}

func (m *mapping) store64(i uint32, off int, v uint64) {
	atomic.StoreUint64(m.word64(i, off), v)
	goruntime.KeepAlive(m)
}

func (m *mapping) add64(i uint32, off int, v uint64) uint64 {
	defer goruntime.KeepAlive(m)
	return atomic.AddUint64(m.word64(i, off), v)
}

func (m *mapping) swap64(i uint32, off int, old, new uint64) bool {
	defer goruntime.KeepAlive(m)
	return atomic.CompareAndSwapUint64(m.word64(i, off), old, new)
}

func (m *mapping) load32(i uint32, off int) uint32 {
	defer goruntime.KeepAlive(m)
	return atomic.LoadUint32(m.word32(i, off))
}

func (m *mapping) store32(i uint32, off int, v uint32) {
	atomic.StoreUint32(m.word32(i, off), v)
	goruntime.KeepAlive(m)
}

func align8(n int) int { return (n + 7) &^ 7 }

// A Counter is a 64-bit number in memory that the kernel's programs and user space both work on, without translation
// and without losing an update. It belongs to a member of a row; when the row is deleted or the relay closed, it reads
// 0 and changes nothing.
type Counter struct {
	mem   *mapping
	index uint32
	gone  atomic.Bool
}

// Add adds n and returns the new value. n may be the two's complement of a negative number.
func (c *Counter) Add(n uint64) uint64 {
	if c == nil || c.gone.Load() {
		return 0
	}
	return c.mem.add64(c.index, 0, n)
}

// Load returns the value.
func (c *Counter) Load() uint64 {
	if c == nil || c.gone.Load() {
		return 0
	}
	return c.mem.load64(c.index, 0)
}

// Store sets the value. Where the kernel counts at the same time, use Add.
func (c *Counter) Store(n uint64) {
	if c != nil && !c.gone.Load() {
		c.mem.store64(c.index, 0, n)
	}
}

// Alloc allocates a number: it returns the value and adds step to it in one atomic operation, as the spec's
// alloc(ROW.COUNTER, STEP) does. No number is allocated twice, by the kernel or by user space. ok is false where the
// counter's row is gone; n means nothing then.
func (c *Counter) Alloc(step uint64) (n uint64, ok bool) {
	if c == nil || c.gone.Load() {
		return 0, false
	}
	return c.mem.add64(c.index, 0, step) - step, true
}

// CompareAndSwap sets the value to new if it is old, and says whether it did.
func (c *Counter) CompareAndSwap(old, new uint64) bool {
	return c != nil && !c.gone.Load() && c.mem.swap64(c.index, 0, old, new)
}

// String formats the value.
func (c *Counter) String() string { return fmt.Sprint(c.Load()) }

// counters hands out the entries of the array of shared counters. Entry 0 means none. Freed entries are reused last, so
// that a packet or a caller that still holds one is unlikely to meet its next owner.
type counters struct {
	mu   sync.Mutex
	mem  *mapping
	free []uint32
	all  []*Counter // by index; nil: free
}

func newCounters(m *ebpf.Map) (*counters, error) {
	mem, err := mapArray(m)
	if err != nil {
		return nil, err
	}
	n := m.MaxEntries()
	c := &counters{mem: mem, all: make([]*Counter, n)}
	for i := uint32(1); i < n; i++ {
		c.free = append(c.free, i)
	}
	return c, nil
}

// alloc returns a counter that reads first, or nil where none is free.
func (c *counters) alloc(first uint64) *Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.free) == 0 {
		return nil
	}
	i := c.free[0]
	c.free = c.free[1:]
	c.mem.store64(i, 0, first)
	c.all[i] = &Counter{mem: c.mem, index: i}
	return c.all[i]
}

// get returns the counter with an index found in a row, nil for 0 and for an index that is not in use.
func (c *counters) get(i uint32) *Counter {
	if c == nil || i == 0 || int(i) >= len(c.all) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[i]
}

func (c *counters) release(i uint32) {
	if c == nil || i == 0 || int(i) >= len(c.all) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctr := c.all[i]; ctr != nil {
		ctr.gone.Store(true)
		c.all[i] = nil
		c.free = append(c.free, i)
	}
}

// keep replaces what is in use by exactly the indices given, which were found in rows: after an adoption, or where the
// kernel evicted rows of an LRU table.
func (c *counters) keep(used map[uint32]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = c.free[:0]
	for i := uint32(1); int(i) < len(c.all); i++ {
		switch {
		case used[i] && c.all[i] == nil:
			c.all[i] = &Counter{mem: c.mem, index: i}
		case !used[i]:
			if c.all[i] != nil {
				c.all[i].gone.Store(true)
				c.all[i] = nil
			}
			c.free = append(c.free, i)
		}
	}
}

func (c *counters) closeAll() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ctr := range c.all {
		if ctr != nil {
			ctr.gone.Store(true)
		}
	}
}
