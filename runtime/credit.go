package runtime

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

const (
	// Larger numbers count as these, so that times fit in 64 bits.
	maxBucketCost  = 1<<32 - 1
	maxBucketBurst = 1<<33 - 1
)

// balance is an entry of fr_credits: the memory that a Credit or a Bucket works on.
type balance struct {
	mem    *mapmem.Array
	index  uint32
	levels int
	gone   atomic.Bool
	first  *first // of one that is in no row: what the row that is given it begins with
}

func (b *balance) retire() { b.gone.Store(true) }

func (b *balance) alive() bool { return b != nil && !b.gone.Load() }

// begins returns first.
func (b *balance) begins() *first {
	if b == nil {
		return nil
	}
	return b.first
}

func (b *balance) load(off int) uint64 {
	if !b.alive() {
		return 0
	}
	return b.mem.Load64(b.index, off)
}

func (b *balance) store(off int, n uint64) {
	if b.alive() {
		b.mem.Store64(b.index, off, n)
	}
}

func (b *balance) refused(level int) uint64 {
	if level < 0 || !b.alive() || level >= b.levels {
		return 0
	}
	return b.mem.Load64(b.index, abi.CreditRefused+8*level)
}

// spend swaps what is spent for what next makes of it, unless next refuses.
func (b *balance) spend(next func(spent uint64) (uint64, bool)) error {
	for range abi.CreditTries {
		if !b.alive() {
			return ErrClosed
		}
		spent := b.mem.Load64(b.index, abi.CreditSpent)
		now, ok := next(spent)
		if !ok {
			return ErrRefused
		}
		if b.mem.CompareAndSwap64(b.index, abi.CreditSpent, spent, now) {
			return nil
		}
	}
	return ErrContended
}

// A Credit bounds what is sent: in the kernel by `admit`, in user space by Spend. What is spent only grows, and the
// limit is absolute, so that neither side has to know what the other does. It lies in memory that both map: nothing
// here is a system call. When its row or receiver is removed, it reads 0 and admits nothing.
type Credit struct{ *balance }

// NewCredit returns a value for a new row or session, whose credit has that limit before a packet finds it. What is
// returned is no credit: it reads 0, and spends nothing.
func NewCredit(limit uint64) *Credit { return &Credit{newBalance(first{n: limit})} }

// newBalance is one that is in no row.
func newBalance(f first) *balance {
	b := &balance{first: &f}
	b.retire()
	return b
}

// SetLimit sets how much may be spent in all, since the credit began, in the units of the spec's costs (bytes or
// packets).
func (c *Credit) SetLimit(n uint64) {
	if c != nil {
		c.store(abi.CreditLimit, n)
	}
}

// Limit returns how much may be spent in all.
func (c *Credit) Limit() uint64 {
	if c == nil {
		return 0
	}
	return c.load(abi.CreditLimit)
}

// Spent returns how much was spent, by the kernel and by user space.
func (c *Credit) Spent() uint64 {
	if c == nil {
		return 0
	}
	return c.load(abi.CreditSpent)
}

// Available returns how much may still be spent; 0 if the limit was moved below what was spent.
func (c *Credit) Available() uint64 {
	spent, limit := c.Spent(), c.Limit()
	if spent > limit {
		return 0
	}
	return limit - spent
}

// Spend spends n, for what user space sends itself. It is all or nothing: [ErrRefused] if n doesn't fit,
// [ErrContended] if the credit changed at each of 16 attempts (nothing was spent; trying again is sound),
// [ErrClosed] if the credit is gone.
func (c *Credit) Spend(n uint64) error {
	if c == nil {
		return ErrClosed
	}
	return c.spend(func(spent uint64) (uint64, bool) {
		sum, carry := bits.Add64(spent, n, 0)
		return sum, carry == 0 && sum <= c.Limit()
	})
}

// Charge spends n, whatever is left, as `admit` with `overdraft` does. It reports [ErrClosed] if the credit is gone.
func (c *Credit) Charge(n uint64) error {
	if !c.alive() {
		return ErrClosed
	}
	c.mem.Add64(c.index, abi.CreditSpent, n)
	return nil
}

// Debt returns by how much more was spent than the limit: by Charge, by `admit` with `overdraft`, or since the limit
// was moved below. A higher limit or Refund repays it.
func (c *Credit) Debt() uint64 {
	spent, limit := c.Spent(), c.Limit()
	return spent - min(spent, limit)
}

// Refund gives back n that was spent and not sent after all.
func (c *Credit) Refund(n uint64) {
	if c.alive() {
		c.mem.Add64(c.index, abi.CreditSpent, -n)
	}
}

// Refused returns how many packets of a level of priority the kernel has refused for want of this credit. A spec
// without priority has level 0 alone.
func (c *Credit) Refused(level int) uint64 {
	if c == nil {
		return 0
	}
	return c.refused(level)
}

// String formats what was spent and the limit.
func (c *Credit) String() string { return fmt.Sprintf("%d of %d", c.Spent(), c.Limit()) }

func (c *Credit) alive() bool { return c != nil && c.balance.alive() }

// A Bucket bounds what is sent by a rate: it refills by time, up to a burst. It lies in memory that the kernel's
// programs and user space both map: nothing here is a system call. When its row or receiver is removed, it reads 0 and
// admits nothing.
type Bucket struct{ *balance }

// Rate is how a [Bucket] refills.
type Rate struct {
	PerSecond uint64 // units a second; 0: nothing is admitted
	Burst     uint64 // units that may be spent at once, after a pause; at most 2³³-1
}

// NewBucket returns a value for a new row or session, whose bucket has that rate before a packet finds it. What is
// returned is no bucket: it reads 0, and spends nothing.
func NewBucket(r Rate) *Bucket { return &Bucket{newBalance(first{rate: r})} }

// SetRate sets how many units refill in a second, and how many may be spent at once after a pause. A packet that comes
// while SetRate runs may see the one without the other.
func (b *Bucket) SetRate(r Rate) {
	if b != nil {
		b.store(abi.CreditBurst, r.Burst)
		b.store(abi.CreditLimit, r.PerSecond)
	}
}

// Rate returns what SetRate set.
func (b *Bucket) Rate() Rate {
	if b == nil {
		return Rate{}
	}
	return Rate{PerSecond: b.load(abi.CreditLimit), Burst: b.load(abi.CreditBurst)}
}

// Available returns how many units may be spent now.
func (b *Bucket) Available() uint64 {
	rate := b.Rate()
	if rate.PerSecond == 0 {
		return 0
	}
	burst := min(rate.Burst, maxBucketBurst)
	ahead := b.load(abi.CreditSpent) - monotonic()
	if int64(ahead) <= 0 {
		return burst
	}
	used := unitsIn(ahead, rate.PerSecond)
	return burst - min(used, burst)
}

// unitsIn returns how many units refill in a time in nanoseconds, rounded up.
func unitsIn(time, perSecond uint64) uint64 {
	hi, lo := bits.Mul64(time, perSecond)
	if hi >= nanosecond {
		return math.MaxUint64
	}
	units, rest := bits.Div64(hi, lo, nanosecond)
	if rest > 0 {
		units++
	}
	return units
}

// Debt returns how many units have to refill before the first one may be spent: what was spent beyond the burst by
// Charge or by `admit` with `overdraft`. Time repays it, at the bucket's rate; Refund does, too.
func (b *Bucket) Debt() uint64 {
	rate := b.Rate()
	ahead := b.load(abi.CreditSpent) - monotonic()
	if rate.PerSecond == 0 || int64(ahead) <= 0 {
		return 0
	}
	used := unitsIn(ahead, rate.PerSecond)
	return used - min(used, min(rate.Burst, maxBucketBurst))
}

const nanosecond = 1_000_000_000 // of a second

// Spend spends n units, for what user space sends itself. It is all or nothing: [ErrRefused] if n doesn't fit now,
// [ErrContended] if the bucket changed at each of 16 attempts (nothing was spent; trying again is sound),
// [ErrClosed] if the bucket is gone.
func (b *Bucket) Spend(n uint64) error {
	if !b.alive() {
		return ErrClosed
	}
	rate, now := b.Rate(), monotonic()
	if rate.PerSecond == 0 {
		return ErrRefused
	}
	takes := min(n, maxBucketCost) * nanosecond / rate.PerSecond
	room := min(rate.Burst, maxBucketBurst) * nanosecond / rate.PerSecond
	return b.spend(func(spent uint64) (uint64, bool) {
		from := max(spent, now)
		return from + takes, takes <= room && from-now <= room-takes
	})
}

// Charge spends n units, whatever is left, as `admit` with `overdraft` does: the bucket admits nothing then until time
// has repaid its debt. Nothing is charged at a rate of 0. It reports [ErrClosed] if the bucket is gone.
func (b *Bucket) Charge(n uint64) error {
	if !b.alive() {
		return ErrClosed
	}
	rate, now := b.Rate(), monotonic()
	if rate.PerSecond == 0 {
		return nil
	}
	takes := min(n, maxBucketCost) * nanosecond / rate.PerSecond
	err := b.spend(func(spent uint64) (uint64, bool) { return max(spent, now) + takes, true })
	if err == ErrContended { // others have just spent from it, so it isn't full, and time is only added
		b.mem.Add64(b.index, abi.CreditSpent, takes)
		return nil
	}
	return err
}

// Refund gives back n units that were spent and not sent after all, at the rate of now. A bucket from which less was
// spent is full then.
func (b *Bucket) Refund(n uint64) {
	rate := b.Rate()
	if rate.PerSecond == 0 || !b.alive() {
		return
	}
	takes := min(n, maxBucketCost) * nanosecond / rate.PerSecond
	for b.spend(func(spent uint64) (uint64, bool) { return spent - min(spent, takes), true }) == ErrContended {
	}
}

// Refused returns how many packets of a level of priority the kernel has refused because the bucket was empty. A spec
// without priority has level 0 alone.
func (b *Bucket) Refused(level int) uint64 {
	if b == nil {
		return 0
	}
	return b.refused(level)
}

// String formats the rate and the burst.
func (b *Bucket) String() string {
	r := b.Rate()
	return fmt.Sprintf("%d a second, burst %d", r.PerSecond, r.Burst)
}

func (b *Bucket) alive() bool { return b != nil && b.balance.alive() }

// monotonic returns the kernel's monotonic clock in nanoseconds, which is what bpf_ktime_get_ns returns. Go reads that
// clock as well, but shows only differences: so it is read by a system call once.
func monotonic() uint64 {
	began := clockBegan()
	return began.kernel + uint64(time.Since(began.at))
}

// clockBegan is one moment by both clocks.
var clockBegan = sync.OnceValue(func() (began struct {
	at     time.Time
	kernel uint64
}) {
	shortest := time.Duration(math.MaxInt64)
	for range 8 { // between two readings this thread may have had to wait
		var ts unix.Timespec
		at := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return began // can't happen: the clock exists since Linux 2.6
		}
		if took := time.Since(at); took < shortest {
			shortest, began.at, began.kernel = took, at.Add(took/2), uint64(ts.Nano())
		}
	}
	return began
})

// credits hands out the entries of fr_credits, in blocks: each row that has credits has a block of its own, and the
// rows of a table or of a kind of group have blocks of one size side by side. So memory never falls to pieces.
type credits struct {
	mem    *mapmem.Array
	levels int

	mu  sync.Mutex
	all []interface{ retire() } // by index: a *Credit or a *Bucket; nil: it is free
}

// creditBlocks are the blocks of one table, kind of group or kind of session.
type creditBlocks struct {
	credits    *credits
	first      uint32   // index of the first block's first entry
	size       uint32   // entries in a block; 0: rows have no credits
	offsets    []uint32 // by index of the member: where in the block its entries begin
	free       []uint32 // blocks of a table or of sessions
	byIdentity bool     // blocks of a kind of group: a receiver's identity says which one it has
}

func newCredits(m *ebpf.Map, levels int) (*credits, error) {
	mem, err := mapmem.Map(m)
	if err != nil {
		return nil, err
	}
	return &credits{mem: mem, levels: max(levels, 1), all: make([]interface{ retire() }, m.MaxEntries())}, nil
}

// layCredits gives each table, kind of group and kind of session its blocks, in the order of desc. What a session's
// rows refer to is the session's.
func layCredits(c *credits, desc *abi.Desc) (tables, groups, sessions []*creditBlocks) {
	next := uint32(1)
	lay := func(members []abi.Member, rows int) *creditBlocks {
		b := &creditBlocks{credits: c, first: next, offsets: make([]uint32, len(members))}
		for i, m := range members {
			if m.Kind == abi.KindCredit || m.Kind == abi.KindBucket {
				b.offsets[i] = b.size
				b.size += uint32(m.Count())
			}
		}
		if b.size > 0 {
			next += b.size * uint32(rows)
		}
		return b
	}
	free := func(b *creditBlocks, rows int) *creditBlocks {
		if b.size > 0 {
			for i := range uint32(rows) {
				b.free = append(b.free, i)
			}
		}
		return b
	}
	for _, t := range desc.Tables {
		if t.Session != "" {
			tables = append(tables, lay(nil, 0))
			continue
		}
		tables = append(tables, free(lay(t.Value, t.Size), t.Size))
	}
	for _, g := range desc.Groups {
		b := lay(g.Receiver, g.Rows)
		b.byIdentity = true
		groups = append(groups, b)
	}
	for i := range desc.Sessions {
		d := &desc.Sessions[i]
		sessions = append(sessions, free(lay(fieldLayout(d).members, d.Size), d.Size))
	}
	return tables, groups, sessions
}

// index is the first entry of a member (by its index) in a block.
func (b *creditBlocks) index(block uint32, member int) uint32 {
	return b.first + block*b.size + b.offsets[member]
}

// block is the inverse of index.
func (b *creditBlocks) block(index uint32, member int) (block uint32, ok bool) {
	at := index - b.first - b.offsets[member]
	return at / max(b.size, 1), index >= b.first+b.offsets[member] && b.size > 0 && at%b.size == 0
}

// clear makes a block's entries new ones.
func (b *creditBlocks) clear(block uint32) {
	c := b.credits
	for i := b.first + block*b.size; i < b.first+(block+1)*b.size; i++ {
		for off := 0; off < abi.CreditRefused+8*c.levels; off += 8 {
			c.mem.Store64(i, off, 0)
		}
	}
}

// take returns a free block of a table.
func (b *creditBlocks) take() (block uint32, ok bool) {
	if b.size == 0 {
		return 0, true
	}
	if len(b.free) == 0 {
		return 0, false
	}
	block, b.free = b.free[0], b.free[1:]
	return block, true
}

// release frees a block, and ends its Credits and Buckets. relay.mu is held.
func (b *creditBlocks) release(block uint32) {
	if b.size == 0 {
		return
	}
	if !b.byIdentity {
		b.free = append(b.free, block)
	}
	c := b.credits
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := b.first + block*b.size; i < b.first+(block+1)*b.size; i++ {
		if one := c.all[i]; one != nil {
			one.retire()
			c.all[i] = nil
		}
	}
}

// make makes the Credits or Buckets that a member of a row refers to, from its first index on.
func (c *credits) make(m abi.Member, index uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := index; i < index+uint32(m.Count()) && int(i) < len(c.all); i++ {
		b := &balance{mem: c.mem, index: i, levels: c.levels}
		if m.Kind == abi.KindBucket {
			c.all[i] = &Bucket{b}
		} else {
			c.all[i] = &Credit{b}
		}
	}
}

// get returns what a level of a member of a row refers to; no pointer if the index is not in use.
func (c *credits) get(m *abi.Member, index uint32, level int) (h handle) {
	if c == nil || index == 0 {
		return h
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := int(index) + level; at < len(c.all) {
		h.credit, _ = c.all[at].(*Credit)
		h.bucket, _ = c.all[at].(*Bucket)
	}
	return h
}

func (c *credits) closeAll() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if one != nil {
			one.retire()
		}
	}
}
