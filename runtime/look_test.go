package runtime

import (
	"encoding/binary"
	"iter"
	"math/rand/v2"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// lookedAt is how many entries are there all the time while lists are read; as many come and go.
const lookedAt = 2 * lookAtOnce

// readWhile reads a list in pages, while change changes it, and looks whether what is there all the time comes, and
// nothing twice.
func readWhile[T comparable](t *testing.T, stays []T, page func(last T) iter.Seq[T], change func(n int)) {
	t.Helper()
	over, changed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(changed)
		for {
			select {
			case <-over:
				return
			default:
				change(rand.IntN(lookedAt))
			}
		}
	}()
	defer func() { close(over); <-changed }()
	seen := map[T]bool{}
	var last T
	for more := true; more; {
		more = false
		n := 0
		for one := range page(last) {
			if n++; n > 100 {
				more = true
				break
			}
			if seen[one] {
				t.Fatal("one comes twice")
			}
			last, seen[one] = one, true
		}
	}
	for _, one := range stays {
		if !seen[one] {
			t.Fatal("one is missing")
		}
	}
}

// Sessions are read in pages while others are opened and closed.
func TestSessionsInPages(t *testing.T) {
	r := &Relay{desc: &abi.Desc{Slots: 2 * lookedAt}, sessions: map[uint32]*AnySession{}}
	var stay []*AnySession
	for i := range uint32(lookedAt) {
		s := &AnySession{slot: 2 * i}
		r.sessions[s.slot] = s
		stay = append(stay, s)
	}
	readWhile(t, stay, func(last *AnySession) iter.Seq[*AnySession] {
		if last == nil {
			return r.Sessions()
		}
		return r.sessionsFrom(uint64(last.slot) + 1)
	}, func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		slot := uint32(2*n + 1)
		if r.sessions[slot] == nil {
			r.sessions[slot] = &AnySession{slot: slot}
		} else {
			delete(r.sessions, slot)
		}
	})
}

// Groups are read in pages while others are opened and closed.
func TestGroupsInPages(t *testing.T) {
	k := &AnyGroups{relay: &Relay{lists: &receiverLists{}}, open: map[string]*AnyGroup{}}
	group := func(n int) *AnyGroup {
		return &AnyGroup{kind: k, key: binary.LittleEndian.AppendUint32(nil, uint32(n)), installed: true}
	}
	var stay []*AnyGroup
	for i := range lookedAt {
		g := group(2 * i)
		k.open[string(g.key)] = g
		stay = append(stay, g)
	}
	readWhile(t, stay, func(last *AnyGroup) iter.Seq[*AnyGroup] {
		if last == nil {
			return k.All()
		}
		return k.after(last.key)
	}, func(n int) {
		g := group(2*n + 1)
		k.relay.lists.mu.Lock()
		defer k.relay.lists.mu.Unlock()
		if k.open[string(g.key)] == nil {
			k.open[string(g.key)] = g
		} else {
			delete(k.open, string(g.key))
		}
	})
}

// While sessions are read, the lock is free, and those that come much later haven't been looked at.
func TestSessionsInSteps(t *testing.T) {
	r := &Relay{desc: &abi.Desc{Slots: 16 * lookAtOnce}, sessions: map[uint32]*AnySession{}}
	for slot := range uint32(r.desc.Slots) {
		r.sessions[slot] = &AnySession{slot: slot}
	}
	n := 0
	for s := range r.Sessions() {
		if !r.mu.TryLock() {
			t.Fatal("the lock is held")
		}
		delete(r.sessions, s.slot+lookAtOnce)
		r.mu.Unlock()
		n++
	}
	if n != r.desc.Slots/2 {
		t.Errorf("%d sessions of %d, of which half was closed", n, r.desc.Slots)
	}
}

// BenchmarkPage reads a page of 100 from the middle of a million sessions.
func BenchmarkPage(b *testing.B) {
	r := &Relay{desc: &abi.Desc{Slots: 1_000_000}, sessions: map[uint32]*AnySession{}}
	for slot := range uint32(1_000_000) {
		r.sessions[slot] = &AnySession{slot: slot}
	}
	for b.Loop() {
		n := 0
		for range r.sessionsFrom(500_000) {
			if n++; n > 100 {
				break
			}
		}
	}
}
