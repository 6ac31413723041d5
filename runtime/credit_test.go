package runtime

import (
	"errors"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// onEach runs f on each processor, several times at once, on threads of their own.
func onEach(times int, f func(cpu int)) *sync.WaitGroup {
	var wg sync.WaitGroup
	for cpu := range goruntime.NumCPU() {
		for range times {
			wg.Go(func() {
				goruntime.LockOSThread() // and never unlocked: the thread ends with its processor
				var set unix.CPUSet
				set.Set(cpu)
				_ = unix.SchedSetaffinity(0, &set) // a processor that this process may not use is as good as another
				f(cpu)
			})
		}
	}
	return &wg
}

// Millions of numbers, allocated by programs on all processors and by goroutines at once: none twice, none left
// out.
func TestAlloc(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 1)
	c := v.State(0).(*Counter)
	allocated, err := mapmem.Map(r.coll.Maps["allocated"])
	if err != nil {
		t.Fatal(err)
	}
	var twice atomic.Int64
	mark := func(n uint64) {
		for {
			old := allocated.Load64(uint32(n/64), 0)
			switch {
			case old&(1<<(n%64)) != 0:
				twice.Add(1)
			case !allocated.CompareAndSwap64(uint32(n/64), 0, old, old|1<<(n%64)):
				continue
			}
			return
		}
	}
	const batch, user = 10_000, 400_000
	batches := max(80/goruntime.NumCPU(), 1) // of each of two threads on each processor
	programs := onEach(2, func(int) {
		for range batches {
			runOn(t, r, "alloc", groupPacket(v.at, 0), batch)
		}
	})
	want := uint64(2 * goruntime.NumCPU() * batches * batch)
	var goroutines sync.WaitGroup
	for _, step := range []uint64{1, 4} {
		want += user * step
		goroutines.Go(func() {
			for range user {
				n, ok := c.Alloc(step)
				if !ok {
					t.Error("the counter is gone")
					return
				}
				for i := range step {
					mark(n + i)
				}
			}
		})
	}
	programs.Wait()
	goroutines.Wait()
	if got := c.Load(); got != want {
		t.Errorf("%d numbers allocated, the counter is at %d", want, got)
	}
	for n := range want {
		if allocated.Load64(uint32(n/64), 0)&(1<<(n%64)) == 0 {
			t.Fatalf("%d was never allocated", n)
		}
	}
	var kernelTwice uint64
	if err := r.coll.Variables["twice"].Get(&kernelTwice); err != nil || kernelTwice > 0 || twice.Load() > 0 {
		t.Errorf("%d and %d numbers were allocated twice, %v", kernelTwice, twice.Load(), err)
	}
	t.Logf("%d numbers", want)
}

// Both sides spend from one credit, whose limit moves: all of it is spent, and no more.
func TestCredit(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 1)
	credits := v.State(1).([]*Credit)
	c := credits[0]
	if len(credits) != 2 || c.Limit() != 0 || c.Spend(1) != ErrRefused || runOn(t, r, "alloc", groupPacket(v.at, 0),
		1) != 0 {
		t.Errorf("%d credits, limit %d", len(credits), c.Limit())
	}
	const limit = 1_000_000
	var spent, contended atomic.Uint64
	var stop atomic.Bool
	defer stop.Store(true)
	programs := onEach(2, func(int) {
		for !stop.Load() {
			runOn(t, r, "alloc", groupPacket(v.at, 0), 10_000)
		}
	})
	var goroutines sync.WaitGroup
	for range 4 {
		goroutines.Go(func() {
			for !stop.Load() && (c.Limit() < limit || c.Available() > 0) {
				switch err := c.Spend(3); err {
				case nil:
					spent.Add(3)
				case ErrContended:
					contended.Add(1)
				case ErrRefused:
					if c.Available() > 0 && c.Available() < 3 && c.Limit() == limit {
						if c.Spend(1) == nil {
							spent.Add(1)
						}
					}
					goruntime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for n := uint64(0); n <= limit; n += 50_000 {
		c.SetLimit(n)
		until(t, 20*time.Second, "the credit is spent", func() bool { return c.Spent()+3 > n })
	}
	goroutines.Wait()
	stop.Store(true)
	programs.Wait()
	if c.Spent() != limit || spent.Load() == 0 || spent.Load() == limit || c.Available() != 0 {
		t.Errorf("%v spent, %d of it by user space", c, spent.Load())
	}
	if c.Refused(1) == 0 || c.Refused(0) != 0 || c.Refused(2) != 0 || c.Refused(-1) != 0 {
		t.Errorf("refused %d, %d", c.Refused(0), c.Refused(1))
	}
	c.Refund(5)
	if c.Available() != 5 || c.Spend(6) != ErrRefused || c.Spend(5) != nil {
		t.Errorf("after a refund %v", c)
	}
	c.SetLimit(1)
	if c.Available() != 0 || c.Spend(0) != ErrRefused || c.Spend(^uint64(0)) != ErrRefused {
		t.Errorf("a limit below what is spent: %v", c)
	}
	if err := v.Remove(bg); err != nil {
		t.Fatal(err)
	}
	c.SetLimit(9)
	if c.Limit() != 0 || c.Spent() != 0 || c.Refused(1) != 0 || !errors.Is(c.Spend(1), ErrClosed) {
		t.Errorf("a credit that is gone: %v, refused %d", c, c.Refused(1))
	}
	// Its successor has new ones.
	for range 128 {
		v := add(t, found(r.GroupKind("subs").Get(7)), 1, 1)
		for _, c := range v.State(1).([]*Credit) {
			if c.Limit() != 0 || c.Spent() != 0 || c.Refused(1) != 0 {
				t.Fatalf("a new receiver's credit: %v", c)
			}
			c.SetLimit(9)
		}
		if err := v.Remove(bg); err != nil {
			t.Fatal(err)
		}
	}
	var none *Credit
	none.SetLimit(1)
	none.Refund(1)
	if none.Spend(1) != ErrClosed || none.Limit()+none.Spent()+none.Refused(0)+none.Available() != 0 {
		t.Error("no credit at all")
	}
	t.Logf("%d spent by user space, %d times contended", spent.Load(), contended.Load())
}

func TestBucket(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 1)
	b := v.State(2).(*Bucket)
	if b.Spend(0) != ErrRefused || b.Available() != 0 {
		t.Error("a bucket without a rate admits")
	}
	b.SetRate(Rate{PerSecond: 1, Burst: 1000}) // so slow that nothing refills while the test runs
	if b.Rate() != (Rate{1, 1000}) || b.Available() != 1000 {
		t.Errorf("%v, available %d", b, b.Available())
	}
	if b.Spend(1001) != ErrRefused || b.Spend(600) != nil || b.Spend(500) != ErrRefused || b.Available() != 400 {
		t.Errorf("600 of 1000 spent: available %d", b.Available())
	}
	b.Refund(100)
	if b.Spend(500) != nil || b.Spend(1) != ErrRefused {
		t.Errorf("all spent: available %d", b.Available())
	}
	began := time.Now()
	b.SetRate(Rate{PerSecond: 1_000_000_000, Burst: 1 << 62}) // a burst that counts as 2³³-1
	b.mem.Store64(b.index, abi.CreditSpent, 0)
	if b.Available() != maxBucketBurst || b.Spend(1<<40) != nil { // which costs 2³²-1
		t.Errorf("available %d", b.Available())
	}
	if used := maxBucketBurst - b.Available(); used > maxBucketCost || used+uint64(time.Since(began)) < maxBucketCost {
		t.Errorf("used %d", used)
	}
	// It refills.
	const full = 10_000
	began = time.Now()
	b.SetRate(Rate{PerSecond: 1000, Burst: full})
	b.mem.Store64(b.index, abi.CreditSpent, 0)
	n := 1 - full
	if err := b.Spend(1); err != nil {
		t.Error(err)
	}
	refills := time.Now() // by now
	spend := func() {
		for b.Spend(1) == nil {
			n++
		}
	}
	for time.Since(began) < 200*time.Millisecond {
		spend()
	}
	least := time.Since(refills)
	spend()
	if most := time.Since(began); n < int(least.Milliseconds())-1 || n > int(most.Milliseconds())+1 {
		t.Errorf("%d units in %v to %v at 1000 a second", n, least, most)
	}
	if err := v.Remove(bg); err != nil || b.Spend(0) != ErrClosed || b.Rate() != (Rate{}) {
		t.Errorf("a bucket that is gone: %v, %v", b, err)
	}
	var none *Bucket
	none.SetRate(Rate{PerSecond: 1, Burst: 1})
	none.Refund(1)
	if none.Spend(1) != ErrClosed || none.Refused(0)+none.Available() != 0 {
		t.Error("no bucket at all")
	}
}

func TestTranslation(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	v, other := add(t, g, 1, 1), add(t, g, 2, 1)
	tr := v.State(3).(*Translation)
	if _, err := tr.Get(5); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if now, stored, err := tr.Put(5, 50); now != 50 || !stored || err != nil {
		t.Errorf("%v, %v, %v", now, stored, err)
	}
	if now, stored, err := tr.Put(5, 51); now != 50 || stored || err != nil {
		t.Errorf("%v, %v, %v", now, stored, err)
	}
	// The kernel finds what user space has made, and the other way round.
	if ret := runOn(t, r, "translate", groupPacket(v.at, 5), 1); ret != 1 {
		t.Errorf("the kernel made a second value: %d", ret)
	}
	if ret := runOn(t, r, "translate", groupPacket(v.at, 6), 1); ret != 3 {
		t.Errorf("the kernel made no value: %d", ret)
	}
	if now, stored, err := tr.Put(6, 1); now != 12 || stored || err != nil {
		t.Errorf("%v, %v, %v", now, stored, err)
	}
	// Whoever comes first; all find the same value.
	var programs, user atomic.Uint64
	both := onEach(2, func(int) {
		for n := uint64(100); n < 400; n++ {
			if runOn(t, r, "translate", groupPacket(v.at, n), 1) == 3 {
				programs.Add(1)
			}
		}
	})
	for range 2 {
		both.Go(func() {
			for n := uint64(399); n >= 100; n-- {
				now, stored, err := tr.Put(n, 3*n)
				if err != nil || stored != (now == 3*n) || !stored && now != 2*n && now != 3*n {
					if now == 3*n && err == nil { // the other goroutine's
						continue
					}
					t.Errorf("%d became %d, stored %v, %v", n, now, stored, err)
				}
				if stored {
					user.Add(1)
				}
			}
		})
	}
	both.Wait()
	all := map[uint64]uint64{}
	for k, v := range must(tr.All()) {
		all[k] = v
	}
	if len(all) != 302 || programs.Load()+user.Load() != 300 || all[5] != 50 || all[6] != 12 {
		t.Errorf("%d values, %d made by the kernel, %d by user space", len(all), programs.Load(), user.Load())
	}
	if _, err := other.State(3).(*Translation).Get(5); !errors.Is(err, ErrNotFound) {
		t.Error("another receiver's value")
	}
	if err := tr.Delete(5); err != nil {
		t.Error(err)
	}
	if err := tr.Delete(5); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted again: %v", err)
	}
	// A value that is being made is none yet.
	key, unfinished := tr.key(9), make([]byte, abi.TranslationSize)
	if err := r.spaces.m.Put(key, unfinished); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Get(9); !errors.Is(err, ErrNotFound) {
		t.Errorf("a value that is being made: %v", err)
	}
	if _, _, err := tr.Put(9, 1); !errors.Is(err, ErrContended) {
		t.Errorf("a value that is being made: %v", err)
	}
	o := other.State(3).(*Translation)
	var full *FullError
	for n := uint64(0); ; n++ {
		if _, _, err := o.Put(n, n); err != nil {
			if !errors.As(err, &full) || n < 100 {
				t.Errorf("after %d: %v", n, err)
			}
			break
		}
	}
	for _, v := range []*AnyReceiver{v, other} {
		if err := v.Remove(bg); err != nil {
			t.Fatal(err)
		}
	}
	r.spaces.each(func(key, _ []byte) { t.Errorf("%x remains", key) })
	if _, err := tr.Get(6); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation that is gone: %v", err)
	}
	if _, _, err := tr.Put(6, 6); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation that is gone: %v", err)
	}
	if all, err := tr.All(); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation that is gone: %v, %v", all, err)
	}
}

// What a row refers to by an index that is no longer in use: as many credits as the member has levels, since generated
// code has an array for them, and all of them nil.
func TestCreditsOfNoRow(t *testing.T) {
	c := &credits{all: make([]interface{ retire() }, 8)}
	r := &Relay{credits: c}
	l := layout{members: []abi.Member{{Name: "credit", Kind: abi.KindCredit, Levels: 4, Size: 4}}}
	for _, index := range []uint32{0, 1, 6, 100} {
		row := abi.Order.AppendUint32(nil, index)
		got := [4]*Credit{{}, {}, {}, {}}
		l.decode(row, (&AnyTable{relay: r, desc: &abi.Table{Value: l.members}}).refersTo(row), func(c *Codec) {
			Each(c, got[:], (*Codec).Credit)
		})
		if got != [4]*Credit{} || got[0].Available() != 0 || got[3].Spend(1) == nil {
			t.Errorf("index %d: %v", index, got)
		}
	}
}
