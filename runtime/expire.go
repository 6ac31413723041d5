package runtime

import (
	"container/heap"
	"errors"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A session has up to two ends: its lifetime's, which the kernel keeps exactly, and its idle time's, which moves with
// every packet. User space looks at a session when its next end comes, and either finds that packets moved it, or
// closes it.

// next is when the session has to be looked at; zero: never.
func (s *AnySession) next() time.Time {
	if s.idle.IsZero() || !s.expires.IsZero() && s.expires.Before(s.idle) {
		return s.expires
	}
	return s.idle
}

// deadline is what the kernel compares with, in jiffies.
func (s *AnySession) deadline() uint64 {
	c := s.relay.clock
	d := uint64(never)
	if !s.expires.IsZero() {
		d = c.now() + c.jiffies(time.Until(s.expires))
	}
	if !s.idle.IsZero() {
		d = min(d, c.now()+c.jiffies(time.Until(s.idle)+idleGrace))
	}
	return d
}

// Refresh gives the session its whole lifetime and idle time again. It returns the session's Err if it is over.
func (s *AnySession) Refresh() error { return s.RefreshFor(0) }

// RefreshFor is Refresh for a session that has to end by itself unless it is refreshed: it ends after d, used or not,
// or after its kind's lifetime if that is shorter; 0 is Refresh. The kernel knows this end as well, so that it comes
// on time if this process has died. (A successor that adopts the relay keeps it, unless the kind has an idle time:
// then only the kind's lifetime counts, and begins anew.)
func (s *AnySession) RefreshFor(d time.Duration) error {
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !s.over && !s.expires.IsZero() && !now.Before(s.expires) {
		if err := r.end(ErrExpired, s); err != nil {
			return errors.Join(s.err, err)
		}
	}
	if s.over {
		return s.err
	}
	if whole := s.desc.Lifetime; whole > 0 && (d <= 0 || whole < d) {
		d = whole
	}
	s.expires = time.Time{}
	if d > 0 {
		s.expires = now.Add(d)
	}
	if d := s.desc.Idle; d > 0 {
		s.idle = now.Add(d)
	}
	r.slots.mem.Store64(s.slot, abi.SlotDeadline, s.deadline())
	r.enqueue(s)
	return nil
}

// Expires returns when the session ends unless it is refreshed or used; zero: never.
func (s *AnySession) Expires() time.Time {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return s.next()
}

// enqueue puts the session where its next end belongs. r.mu is held.
func (r *Relay) enqueue(s *AnySession) {
	if s.next().IsZero() {
		if s.queued >= 0 {
			heap.Remove(&r.expiries, s.queued)
		}
		return
	}
	if s.queued >= 0 {
		heap.Fix(&r.expiries, s.queued)
	} else {
		heap.Push(&r.expiries, s)
	}
	if r.expiries[0] == s {
		select {
		case r.sweep <- struct{}{}:
		default:
		}
	}
}

// endSessions ends sessions when their time has come.
func (r *Relay) endSessions() {
	defer r.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if d, ok := r.sweepOnce(); ok {
			timer.Reset(d)
		}
		select {
		case <-r.done:
			return
		case <-r.sweep:
		case <-timer.C:
		}
	}
}

// maxSweep is how many sessions are looked at before others get their turn.
const maxSweep = 256

// sweepOnce looks at sessions whose time has come, and returns how long to wait for the next. It stops now and then, so
// that others get their turn if many end at once.
func (r *Relay) sweepOnce() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ending []*AnySession
	defer func() {
		if err := r.end(ErrExpired, ending...); err != nil {
			r.log.Warn("sessions expired", "relay", r.desc.Name, "error", err)
		}
	}()
	for n := 0; len(r.expiries) > 0 && !r.closed; n++ {
		if n == maxSweep {
			return 0, true
		}
		s := r.expiries[0]
		if d := time.Until(s.next()); d > 0 {
			return d, true
		}
		if s.used() {
			r.slots.mem.Store64(s.slot, abi.SlotDeadline, s.deadline())
			heap.Fix(&r.expiries, s.queued)
			continue
		}
		heap.Pop(&r.expiries)
		ending = append(ending, s)
	}
	return 0, false
}

// removeLearned removes rows that were learned with sessions which are over: soon after they end, and at most once a
// second, since it reads whole tables.
func (r *Relay) removeLearned() {
	defer r.wg.Done()
	pause := time.NewTicker(time.Second)
	defer pause.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-r.stale:
		}
		for _, t := range r.tables {
			if !t.learned() {
				continue
			}
			if err := t.removeEnded(); err != nil && !errors.Is(err, ErrClosed) {
				r.log.Warn("rows of sessions that are over remain until their keys are learned again", "relay",
					r.desc.Name, "error", err)
			}
		}
		select {
		case <-r.done:
			return
		case <-pause.C:
		}
	}
}

// removeEnded removes the rows of sessions that are over.
func (t *AnyTable) removeEnded() error {
	rows, err := t.scan()
	if err != nil {
		return err
	}
	for some := range slices.Chunk(rows, maxSweep) {
		if err := t.removeEndedOf(some); err != nil {
			return t.explain(err)
		}
	}
	return nil
}

func (t *AnyTable) removeEndedOf(rows []rowBytes) error {
	r := t.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	over := func(value []byte) bool { return r.holder(t.slotOf(value)) == nil }
	for _, row := range rows {
		if r.closed {
			return nil
		}
		if !over(row.value) {
			continue
		}
		t.changing()()
		was := make([]byte, t.desc.ValueSize)
		err := t.m.LookupAndDelete(row.key, was)
		if errors.Is(err, ebpf.ErrNotSupported) { // before Linux 5.14
			if was, err = t.m.LookupBytes(row.key); was != nil && over(was) {
				err = t.m.Delete(row.key)
			}
			if was == nil || over(was) {
				was = row.value
			}
		}
		if err == nil && !over(was) { // meanwhile, a packet of another session has had the row
			err = t.update(row.key, was, ebpf.UpdateNoExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, ebpf.ErrKeyExist) {
			return err
		}
	}
	return nil
}

// noteStale has rows removed that were learned with sessions which are over, or were changed.
func (r *Relay) noteStale() {
	select {
	case r.stale <- struct{}{}:
	default:
	}
}

// used moves the session's idle end by its last use, and says whether the session lives on. relay.mu is held.
func (s *AnySession) used() bool {
	now := time.Now()
	if !s.expires.IsZero() && !now.Before(s.expires) {
		return false
	}
	last, err := s.lastUsed()
	if err != nil { // not a reason to end it
		s.relay.log.Warn("a session's last use can't be read; it lives for its idle time again", "relay",
			s.relay.desc.Name, "error", err)
		s.idle = now.Add(s.desc.Idle)
		return true
	}
	if last == 0 {
		return false
	}
	end := s.relay.clock.time(last).Add(s.desc.Idle)
	if !end.After(now) {
		return false
	}
	s.idle = end
	return true
}

// expiryQueue is a heap of sessions by their next end.
type expiryQueue []*AnySession

func (q expiryQueue) Len() int           { return len(q) }
func (q expiryQueue) Less(i, j int) bool { return q[i].next().Before(q[j].next()) }
func (q expiryQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].queued, q[j].queued = i, j
}

// Push implements heap.Interface.
func (q *expiryQueue) Push(x any) {
	s := x.(*AnySession)
	s.queued = len(*q)
	*q = append(*q, s)
}

// Pop implements heap.Interface.
func (q *expiryQueue) Pop() any {
	old := *q
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	s.queued = -1
	return s
}
