package runtime

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A Translation maps numbers to numbers for one row or receiver. The kernel's programs make a value if there is none
// for a key (`translate`), and so may user space; whoever comes first decides, and all others find that value. When its
// row or receiver is removed, its translations go with it.
type Translation struct {
	spaces *spaces
	space  uint32
	gone   atomic.Bool
}

// Get returns the value of a key; an error that wraps [ErrNotFound] if there is none, or if a program is making
// it at this moment.
func (t *Translation) Get(key uint64) (value uint64, err error) {
	value, done, found, err := t.find(key)
	if err == nil && !(found && done) {
		return 0, notTranslated(key)
	}
	return value, err
}

func notTranslated(key uint64) error { return fmt.Errorf("translation of %d: %w", key, ErrNotFound) }

func (t *Translation) find(key uint64) (value uint64, done, found bool, err error) {
	err = t.using(func() error {
		b, err := t.spaces.m.LookupBytes(t.key(key))
		if err != nil {
			return fmt.Errorf("translations: %w", err)
		}
		if b != nil {
			value, done, found = abi.Order.Uint64(b[abi.TranslationValue:]),
				abi.Order.Uint64(b[abi.TranslationDone:]) != 0, true
		}
		return nil
	})
	return value, done, found, err
}

// Put gives a key a value unless it has one, and returns the one that it has now. Errors: a [*FullError];
// [ErrContended] if a program has begun to make a value and doesn't finish; [ErrClosed].
func (t *Translation) Put(key, value uint64) (now uint64, stored bool, err error) {
	row := make([]byte, abi.TranslationSize)
	abi.Order.PutUint64(row[abi.TranslationValue:], value)
	abi.Order.PutUint64(row[abi.TranslationDone:], 1)
	for range abi.CreditTries {
		err := t.using(func() error { return t.spaces.m.Update(t.key(key), row, ebpf.UpdateNoExist) })
		if err == nil {
			return value, true, nil
		}
		if isFull(err) {
			return 0, false, &FullError{What: "the table of translations", Size: int(t.spaces.m.MaxEntries())}
		}
		if !errors.Is(err, ebpf.ErrKeyExist) {
			return 0, false, err
		}
		now, done, found, err := t.find(key)
		if err != nil || found && done {
			return now, false, err
		}
		goruntime.Gosched() // a program is making it, or another goroutine has just deleted it
	}
	return 0, false, fmt.Errorf("translate %d: %w", key, ErrContended)
}

// Delete removes a key; an error that wraps [ErrNotFound] if it has no value. The next one to translate it makes a
// new value. No packet should be able to need the key at that moment: the kernel uses the memory of a row again at
// once.
func (t *Translation) Delete(key uint64) error {
	err := t.using(func() error { return t.spaces.m.Delete(t.key(key)) })
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return notTranslated(key)
	}
	return err
}

// A TranslationKey is a key of one translation.
type TranslationKey struct {
	Translation *Translation
	Key         uint64
}

// DeleteTranslations removes keys of any of the relay's translations, many in a system call. Keys without a value, and
// translations whose row or receiver was removed, are left out. What [Translation.Delete] asks for holds here as well.
func (r *Relay) DeleteTranslations(keys ...TranslationKey) error {
	rows := make([][]byte, 0, len(keys))
	for _, k := range keys {
		if k.Translation != nil && !k.Translation.gone.Load() {
			rows = append(rows, k.Translation.key(k.Key))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := r.using(func() error { _, err := deleteKeys(r.spaces.m, rows); return err }); err != nil {
		return fmt.Errorf("delete translations: %w", err)
	}
	return nil
}

// All returns all keys with their values. It reads the whole table of translations, those of other rows included.
func (t *Translation) All() (map[uint64]uint64, error) {
	if t == nil || t.gone.Load() {
		return nil, errTranslationGone
	}
	all := map[uint64]uint64{}
	err := t.spaces.each(func(key, value []byte) {
		if abi.Order.Uint32(key[abi.TranslationKeySpace:]) == t.space &&
			abi.Order.Uint64(value[abi.TranslationDone:]) != 0 {
			all[abi.Order.Uint64(key[abi.TranslationKeyNumber:])] = abi.Order.Uint64(value[abi.TranslationValue:])
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

var errTranslationGone = fmt.Errorf("translation: its row is %w", ErrClosed)

func (t *Translation) key(key uint64) []byte {
	b := make([]byte, abi.TranslationKeySize)
	abi.Order.PutUint64(b[abi.TranslationKeyNumber:], key)
	abi.Order.PutUint32(b[abi.TranslationKeySpace:], t.space)
	return b
}

func (t *Translation) using(f func() error) error {
	if t == nil || t.gone.Load() {
		return errTranslationGone
	}
	return t.spaces.relay.using(f)
}

// spaces allocates namespaces in fr_translate. None is used twice (but for 2³² in between), so a packet that still
// translates for a receiver that is gone can't meet its successor.
type spaces struct {
	relay *Relay
	m     *ebpf.Map

	mu       sync.Mutex
	next     uint32
	all      map[uint32]*Translation
	dead     bool     // namespaces were released whose rows may still be there
	retired  []uint32 // to be released after a grace period
	retiring bool     // releaseRetired runs
}

func newSpaces(r *Relay, m *ebpf.Map) *spaces {
	// A process before this one may have left rows of receivers that it removed.
	return &spaces{relay: r, m: m, next: 1, all: map[uint32]*Translation{}, dead: true}
}

func (s *spaces) alloc() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.next == 0 || s.all[s.next] != nil {
		s.next++
	}
	space := s.next
	s.next++
	s.all[space] = &Translation{spaces: s, space: space}
	return space
}

func (s *spaces) get(space uint32) *Translation {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[space]
}

// adopt enters a namespace found in a row.
func (s *spaces) adopt(space uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space != 0 && s.all[space] == nil {
		s.all[space] = &Translation{spaces: s, space: space}
		s.next = max(s.next, space+1)
	}
}

// retire ends the namespaces of a row that was deleted: for user space at once, for programs, which may still have the
// row, after a grace period. relay.mu is held, and the relay isn't closed.
func (s *spaces) retire(members []abi.Member, row []byte) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range members {
		if m.Kind != abi.KindTranslation {
			continue
		}
		space := abi.Order.Uint32(row[m.Off:])
		if t := s.all[space]; t != nil && !t.gone.Swap(true) {
			s.retired = append(s.retired, space)
		}
	}
	if len(s.retired) > 0 && !s.retiring {
		s.retiring = true
		s.relay.wg.Add(1)
		go s.releaseRetired()
	}
}

// releaseRetired releases and sweeps what was retired, until there is nothing left.
func (s *spaces) releaseRetired() {
	defer s.relay.wg.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.retired) > 0 {
		n := len(s.retired)
		s.mu.Unlock()
		err := s.relay.grace()
		if err != nil {
			s.relay.log.Warn("translations of deleted rows take up room: waiting for programs failed",
				"relay", s.relay.desc.Name, "error", err)
			s.mu.Lock()
			break // until the next row is deleted
		}
		s.mu.Lock()
		for _, space := range s.retired[:n] {
			delete(s.all, space)
		}
		s.retired, s.dead = s.retired[n:], true
		s.mu.Unlock()
		s.relay.sweepTranslations()
		s.mu.Lock()
	}
	s.retiring = false
}

// release ends a namespace that no program uses any more, unless it is retired. Its rows remain until sweep.
func (s *spaces) release(space uint32) {
	if s == nil || space == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.all[space]; t != nil && !t.gone.Swap(true) {
		delete(s.all, space)
		s.dead = true
	}
}

// sweep deletes the rows of namespaces that were released.
func (s *spaces) sweep() (err error) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	dead := s.dead
	s.dead = false
	s.mu.Unlock()
	if !dead {
		return nil
	}
	defer func() {
		if err != nil { // the next one looks again
			s.mu.Lock()
			defer s.mu.Unlock()
			s.dead = true
		}
	}()
	var keys [][]byte
	err = s.each(func(key, _ []byte) {
		space := abi.Order.Uint32(key[abi.TranslationKeySpace:])
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all[space] == nil {
			keys = append(keys, append([]byte(nil), key...))
			s.next = max(s.next, space+1)
		}
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(keys, maxBatch) {
		err := s.relay.using(func() error { _, err := deleteKeys(s.m, some); return err })
		if err != nil {
			return fmt.Errorf("remove translations of receivers that are gone: %w", err)
		}
	}
	return nil
}

// sweepTranslations deletes translations whose rows were removed. The removal has succeeded even if this fails.
func (r *Relay) sweepTranslations() {
	if err := r.spaces.sweep(); err != nil {
		r.log.Warn("translations of what was removed take up room", "relay", r.desc.Name, "error", err)
	}
}

// gracePeriod returns when every program has ended that runs now.
func gracePeriod() error {
	const global = 1 // MEMBARRIER_CMD_GLOBAL (include/uapi/linux/membarrier.h), which is synchronize_rcu
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	if errno != 0 {
		return fmt.Errorf("membarrier: %w", errno)
	}
	return nil
}

// each visits all rows, in the kernel's order.
func (s *spaces) each(visit func(key, value []byte)) error {
	const chunk = 1024
	var cursor ebpf.MapBatchCursor
	keys, values := make([][abi.TranslationKeySize]byte, chunk), make([][abi.TranslationSize]byte, chunk)
	for {
		var n int
		err := s.relay.using(func() (err error) {
			n, err = s.m.BatchLookup(&cursor, keys, values, nil)
			return err
		})
		for i := range n {
			visit(keys[i][:], values[i][:])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist): // those were the last
			return nil
		case err != nil:
			return fmt.Errorf("read the table of translations: %w", err)
		}
	}
}

func (s *spaces) closeAll() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		t.gone.Store(true)
	}
}
