package runtime

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// A Counter is a 64-bit number in memory that the kernel's programs and user space both work on, without translation
// and without losing an update. It belongs to a member of a row; when the row is deleted or the relay closed, it reads
// 0 and changes nothing.
type Counter struct {
	mem   *mapmem.Array
	index uint32
	gone  atomic.Bool
}

// Add adds n and returns the new value. n may be the two's complement of a negative number.
func (c *Counter) Add(n uint64) uint64 {
	if c == nil || c.gone.Load() {
		return 0
	}
	return c.mem.Add64(c.index, 0, n)
}

// Load returns the value.
func (c *Counter) Load() uint64 {
	if c == nil || c.gone.Load() {
		return 0
	}
	return c.mem.Load64(c.index, 0)
}

// Store sets the value. If the kernel counts at the same time, use Add.
func (c *Counter) Store(n uint64) {
	if c != nil && !c.gone.Load() {
		c.mem.Store64(c.index, 0, n)
	}
}

// Alloc allocates a number: it returns the value and adds step to it in one atomic operation, as the spec's
// alloc(ROW.COUNTER, STEP) does. No number is allocated twice, by the kernel or by user space. ok is false if the
// counter's row is gone; n means nothing then.
func (c *Counter) Alloc(step uint64) (n uint64, ok bool) {
	if c == nil || c.gone.Load() {
		return 0, false
	}
	return c.mem.Add64(c.index, 0, step) - step, true
}

// CompareAndSwap sets the value to new if it is old, and says whether it did.
func (c *Counter) CompareAndSwap(old, new uint64) bool {
	return c != nil && !c.gone.Load() && c.mem.CompareAndSwap64(c.index, 0, old, new)
}

// Memory returns the value as memory that the kernel's programs share, for what counts in it by itself. It must not be
// used when the counter's row is gone, since another row has it then, nor when nothing refers to the counter any more.
func (c *Counter) Memory() *atomic.Uint64 {
	if c == nil || c.gone.Load() {
		return new(atomic.Uint64)
	}
	return c.mem.Atomic64(c.index, 0)
}

// String formats the value.
func (c *Counter) String() string { return fmt.Sprint(c.Load()) }

// counters hands out the entries of the array of shared counters. Entry 0 means none. Freed entries are reused last, so
// that a packet or a caller that still holds one is unlikely to meet its next owner.
type counters struct {
	mu   sync.Mutex
	mem  *mapmem.Array
	free []uint32
	all  []*Counter // by index; nil: free
}

func newCounters(m *ebpf.Map) (*counters, error) {
	mem, err := mapmem.Map(m)
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

// alloc returns a counter that reads first, or nil if none is free.
func (c *counters) alloc(first uint64) *Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.free) == 0 {
		return nil
	}
	i := c.free[0]
	c.free = c.free[1:]
	c.mem.Store64(i, 0, first)
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

// keep replaces what is in use by exactly the indices given, which were found in rows: after an adoption, or when the
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
