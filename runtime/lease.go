package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// never is a deadline that does not come.
const never = math.MaxUint64

// clock reads the kernel's jiffies, in which leases and deadlines are kept. A reading costs a system call; between
// readings jiffies follow from the monotonic clock, which stops when they stop.
type clock struct {
	prog   *ebpf.Program
	lease  *mapmem.Array
	hz     uint64
	sample atomic.Pointer[clockSample]
}

type clockSample struct {
	jiffies uint64
	at      time.Time
}

func newClock(prog *ebpf.Program, lease *mapmem.Array) (*clock, error) {
	hz, err := kernelHZ()
	if err != nil {
		return nil, err
	}
	c := &clock{prog: prog, lease: lease, hz: hz}
	if _, err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// kernelHZ returns the kernel's jiffies per second. The resolution of a coarse clock is one tick; kernels with a legacy
// timer base report some ppm less than 1/HZ.
func kernelHZ() (uint64, error) {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return 0, fmt.Errorf("read the kernel's tick: %w", err)
	}
	tick := res.Nano()
	if tick < 100_000 || tick > int64(time.Second) {
		return 0, fmt.Errorf("read the kernel's tick: %v is not plausible", time.Duration(tick))
	}
	return uint64(math.Round(1e9 / float64(tick))), nil
}

// read asks the kernel.
func (c *clock) read() (uint64, error) {
	// TC programs want a frame to run on: a link-layer header at least.
	ret, err := c.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		return 0, fmt.Errorf("run fr_clock: %w", err)
	}
	j := c.lease.Load64(0, abi.LeaseNow)
	if j == 0 {
		return 0, fmt.Errorf("run fr_clock: it returned %d and wrote no time", ret)
	}
	c.sample.Store(&clockSample{j, time.Now()})
	return j, nil
}

// now follows from the last reading.
func (c *clock) now() uint64 {
	s := c.sample.Load()
	return s.jiffies + c.jiffies(time.Since(s.at))
}

// jiffies rounds up, so that a deadline never comes early.
func (c *clock) jiffies(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	sec, ns := uint64(d/time.Second), uint64(d%time.Second)
	return sec*c.hz + (ns*c.hz+999_999_999)/1_000_000_000
}

// time returns when the jiffies were or will be.
func (c *clock) time(j uint64) time.Time {
	s := c.sample.Load()
	// A difference of unsigned numbers, as signed: the past is negative.
	d := int64(j - s.jiffies)
	return s.at.Add(time.Duration(d/int64(c.hz))*time.Second + time.Duration(d%int64(c.hz))*time.Second/
		time.Duration(c.hz))
}

// recently is how long after a lease has lapsed its relay is still taken over as it is: until then, hops are hardly
// older than the kernel's own.
const recently = 5 * time.Second

// takeLease renews the lease of a relay that is being adopted, and keeps it from then on: what its last process has
// registered goes on while this one reads it. It comes as soon as it is clear that this process understands the relay's
// maps, and needs nothing but the lease's map and the clock. If nothing was forwarded for long, nothing is until all
// has been read, and every hop is known anew.
func (r *Relay) takeLease(spec *ebpf.CollectionSpec, found *ebpf.Map) (err error) {
	if r.lease, err = mapmem.Map(found); err != nil {
		return err
	}
	alone := &ebpf.CollectionSpec{
		Maps:      map[string]*ebpf.MapSpec{abi.MapLease: spec.Maps[abi.MapLease]},
		Programs:  map[string]*ebpf.ProgramSpec{abi.ClockProgram: spec.Programs[abi.ClockProgram]},
		Types:     spec.Types,
		ByteOrder: spec.ByteOrder,
	}
	coll, err := loadCollection(r.desc, alone, map[string]*ebpf.Map{abi.MapLease: found})
	if err != nil {
		return err
	}
	defer coll.Close()
	r.leaseClock = coll.DetachProgram(abi.ClockProgram)
	if r.clock, err = newClock(r.leaseClock, r.lease); err != nil {
		return err
	}
	r.leaseWas = r.lease.Load64(0, abi.LeaseDeadline)
	if now := r.clock.now(); now > r.leaseWas && now-r.leaseWas > r.clock.jiffies(recently) {
		return nil
	}
	if err := r.renew(r.opt.Lease); err != nil {
		return err
	}
	r.leaseTaken = true
	r.wg.Add(1)
	go r.keepLease()
	return nil
}

// returnLease gives the lease back that was taken for an adoption that has failed: it ends when it would have ended.
// If another process has renewed it meanwhile, it is theirs.
func (r *Relay) returnLease() {
	if !r.leaseTaken {
		return
	}
	r.leaseMu.Lock()
	r.leaseOver = true
	r.lease.CompareAndSwap64(0, abi.LeaseDeadline, r.leaseMine, r.leaseWas)
	r.leaseMu.Unlock()
}

// keepLease renews the lease until done. A renewal that fails is tried again at the next tick; if it goes on failing,
// the lease lapses, which is what it is for.
func (r *Relay) keepLease() {
	defer r.wg.Done()
	tick := time.NewTicker(r.opt.Lease / 4)
	defer tick.Stop()
	failing, lapsed := false, false
	for {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		late, err := r.renewLate(r.opt.Lease)
		if errors.Is(err, ErrClosed) {
			return // Close came first
		}
		switch {
		case err == nil && late > 0:
			lapsed = false
			r.say(slog.LevelWarn, "the lease had lapsed, and is regained", "after", late)
		case err != nil && !lapsed && r.lapsed():
			lapsed = true
			r.say(slog.LevelError, "the lease has lapsed; packets pass to the stack", "error", err)
		}
		if err != nil && !failing {
			r.log.Error("the lease can't be renewed; packets pass to the stack when it expires", "relay", r.desc.Name,
				"error", err)
		}
		failing = err != nil
	}
}

// renew sets the lease to lapse d from now. Only the kernel's own reading counts here.
func (r *Relay) renew(d time.Duration) error {
	_, err := r.renewLate(d)
	return err
}

// renewLate is renew. It returns for how long the lease that it renews had lapsed, since this process was stopped, or
// the machine was.
func (r *Relay) renewLate(d time.Duration) (late time.Duration, err error) {
	r.leaseMu.Lock()
	defer r.leaseMu.Unlock()
	now, err := r.clock.read()
	if err != nil {
		return 0, err
	}
	if r.leaseOver {
		return 0, ErrClosed
	}
	if r.leasePaused {
		return 0, nil
	}
	if r.leaseMine > 0 && now > r.leaseMine {
		late = time.Duration(now-r.leaseMine) * time.Second / time.Duration(r.clock.hz)
	}
	r.leaseMine = now + r.clock.jiffies(d)
	r.lease.Store64(0, abi.LeaseDeadline, r.leaseMine)
	return late, nil
}

// lapsed says whether the lease has.
func (r *Relay) lapsed() bool {
	r.leaseMu.Lock()
	defer r.leaseMu.Unlock()
	return r.clock.now() > r.leaseMine
}

// endLease sets the last deadline: after d, or at once.
func (r *Relay) endLease(d time.Duration) {
	var deadline uint64
	if d > 0 {
		if now, err := r.clock.read(); err == nil {
			deadline = now + r.clock.jiffies(d)
		}
	}
	r.leaseMu.Lock()
	defer r.leaseMu.Unlock()
	r.leaseOver = true
	r.lease.Store64(0, abi.LeaseDeadline, deadline)
}

// tellPrograms tells the programs what they don't see for themselves: in the first place, what route lookups in the
// kernel leave out.
func (r *Relay) tellPrograms() {
	policy := uint64(0)
	if r.hops != nil {
		policy = r.hops.routes.Policy()
	}
	r.lease.Store64(0, abi.LeasePolicy, policy)
}
