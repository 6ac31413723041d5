package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// fakeMap has keys of one byte; its batches do what a kernel may do.
type fakeMap struct {
	there  map[byte]bool
	batch  func(keys []byte) (n int, err error) // nil: as the kernel's generic ones
	single error                                // of deleting a key alone
	calls  []string
}

func (m *fakeMap) BatchDelete(keys any, _ *ebpf.BatchOptions) (int, error) {
	var all []byte
	for _, k := range keys.([][1]byte) {
		all = append(all, k[0])
	}
	m.calls = append(m.calls, fmt.Sprintf("batch of %d", len(all)))
	if m.batch != nil {
		return m.batch(all)
	}
	for i, k := range all {
		if !m.there[k] {
			return i, fmt.Errorf("batch delete: %w", ebpf.ErrKeyNotExist)
		}
		delete(m.there, k)
	}
	return len(all), nil
}

func (m *fakeMap) BatchUpdate(keys, values any, _ *ebpf.BatchOptions) (int, error) {
	m.calls = append(m.calls, fmt.Sprintf("batch of %d", len(keys.([]uint32))))
	if m.batch != nil {
		return m.batch(nil)
	}
	for i, k := range keys.([]uint32) {
		m.there[byte(k)] = values.([][1]byte)[i][0] != 0
	}
	return len(keys.([]uint32)), nil
}

func (m *fakeMap) Delete(key any) error {
	k := key.([]byte)[0]
	m.calls = append(m.calls, fmt.Sprint("delete ", k))
	switch {
	case m.single != nil:
		return m.single
	case !m.there[k]:
		return ebpf.ErrKeyNotExist
	}
	delete(m.there, k)
	return nil
}

func (m *fakeMap) Put(key, value any) error {
	m.calls = append(m.calls, fmt.Sprint("put ", key))
	m.there[byte(key.(uint32))] = value.([]byte)[0] != 0
	return m.single
}

// A batch stops at a key that isn't there, says how far it came, or not, and isn't there for every type of map.
func TestDeleteKeys(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		there, keys string
		batch       func(m *fakeMap) func([]byte) (int, error)
		single      error
		want        []bool
		err         error
		calls       []string
	}{
		"all are there": {there: "abc", keys: "abc", want: []bool{true, true, true}, calls: []string{"batch of 3"}},
		"none to do":    {there: "a", keys: "", want: []bool{}},
		"some are gone": {there: "ad", keys: "abcd", want: []bool{true, false, false, true},
			calls: []string{"batch of 4", "batch of 2", "batch of 1"}},
		"one twice": {there: "ab", keys: "aab", want: []bool{true, false, true},
			calls: []string{"batch of 3", "batch of 1"}},
		"the last is gone": {there: "a", keys: "ab", want: []bool{true, false}, calls: []string{"batch of 2"}},
		"no batches": {there: "ac", keys: "abc", want: []bool{true, false, true},
			batch: func(*fakeMap) func([]byte) (int, error) {
				return func(keys []byte) (int, error) { return len(keys), ebpf.ErrNotSupported }
			}, calls: []string{"batch of 3", "delete 97", "delete 98", "delete 99"}},
		"it stops in the middle": {there: "abc", keys: "abc", want: []bool{true, true, true},
			batch: func(m *fakeMap) func([]byte) (int, error) {
				return func(keys []byte) (int, error) { delete(m.there, keys[0]); return 1, unix.EBUSY }
			}, calls: []string{"batch of 3", "delete 98", "delete 99"}},
		"nothing works": {there: "abc", keys: "abc", want: []bool{true, false, false}, single: broken, err: broken,
			batch: func(m *fakeMap) func([]byte) (int, error) {
				return func(keys []byte) (int, error) { delete(m.there, keys[0]); return 1, unix.EBUSY }
			}, calls: []string{"batch of 3", "delete 98"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &fakeMap{there: map[byte]bool{}, single: tt.single}
			for _, k := range []byte(tt.there) {
				m.there[k] = true
			}
			if tt.batch != nil {
				m.batch = tt.batch(m)
			}
			var keys [][]byte
			for _, k := range []byte(tt.keys) {
				keys = append(keys, []byte{k})
			}
			got, err := deleteKeys(m, keys)
			if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) || !slices.Equal(m.calls, tt.calls) {
				t.Errorf("deleted %v, want %v; %v, want %v; calls %q, want %q", got, tt.want, err, tt.err, m.calls,
					tt.calls)
			}
		})
	}
	m := &fakeMap{there: map[byte]bool{}}
	many := make([][]byte, maxBatch+1)
	for i := range many {
		many[i] = []byte{7}
	}
	m.batch = func(keys []byte) (int, error) { return len(keys), nil }
	if _, err := deleteKeys(m, many); err != nil || len(m.calls) != 2 {
		t.Errorf("%v, %q", err, m.calls)
	}
}

func TestPutEntries(t *testing.T) {
	for _, unsupported := range []bool{false, true} {
		m := &fakeMap{there: map[byte]bool{}}
		if unsupported {
			m.batch = func([]byte) (int, error) { return 2, ebpf.ErrNotSupported }
		}
		if err := putEntries(m, []uint32{3, 4}, [][]byte{{1}, {0}}); err != nil {
			t.Fatal(err)
		}
		if want := map[byte]bool{3: true, 4: false}; !reflect.DeepEqual(m.there, want) {
			t.Errorf("%v: it has %v", unsupported, m.there)
		}
		m.single = errors.New("broken")
		if err := putEntries(m, []uint32{3}, [][]byte{{1}}); unsupported && !errors.Is(err, m.single) {
			t.Errorf("an error is lost: %v", err)
		}
	}
}

// Every type of map that the kernel has deletes what is there, whether it knows batches or not.
func TestDeleteKeysOfMaps(t *testing.T) {
	needs.Root(t)
	for _, spec := range []*ebpf.MapSpec{
		{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 9000},
		{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 20000},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 9000},
		{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 9000, Flags: unix.BPF_F_NO_PREALLOC},
	} {
		t.Run(spec.Type.String(), func(t *testing.T) {
			m, err := ebpf.NewMap(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			var keys [][]byte
			var want []bool
			for i := range uint32(9000) {
				key := binary.LittleEndian.AppendUint32(nil, 32)
				key = binary.BigEndian.AppendUint32(key[:spec.KeySize-4], i)
				if keys = append(keys, key); i%500 == 499 {
					want = append(want, false)
					continue
				}
				want = append(want, true)
				if spec.Type == ebpf.PerCPUHash {
					err = m.Put(key, make([]uint64, ebpf.MustPossibleCPU()))
				} else {
					err = m.Put(key, uint64(i))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := deleteKeys(m, keys)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v; %d were there, want %d", err, count(got), count(want))
			}
			if next, err := m.NextKeyBytes(nil); err != nil || next != nil {
				t.Errorf("%x remains, %v", next, err)
			}
		})
	}
}

func count(all []bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

func TestDeleteMany(t *testing.T) {
	r := load(t, Options{})
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	sources := r.Table("sources")
	for round := range 3 { // counters are free again
		for i := range 4 {
			if err := sources.Put([]any{addr(i)}, []any{5, nil}); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		row := must(sources.Get(addr(1)))
		var wrong *ValueError
		if n, err := sources.DeleteMany([]any{addr(0)}, []any{"192.0.2.1"}); n != 0 || !errors.As(err, &wrong) ||
			rows(r, "sources") != 4 {
			t.Fatalf("with a wrong key: %d, %v", n, err)
		}
		n, err := sources.DeleteMany([]any{addr(0)}, []any{addr(9)}, []any{addr(1)}, []any{addr(1)}, []any{addr(2)})
		if n != 3 || err != nil || rows(r, "sources") != 1 {
			t.Errorf("%d deleted, %v; %d remain", n, err, rows(r, "sources"))
		}
		if n := row[0].(*Counter).Load(); n != 0 {
			t.Errorf("the counter of a row that is gone is %d", n)
		}
		if err := sources.Delete(addr(1)); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted twice: %v", err)
		}
		if err := sources.Delete(addr(3)); err != nil {
			t.Error(err)
		}
	}

	// Rows with next hops; a table per processor; an array; the rows of sessions.
	routes := r.Table("routes")
	var prefixes [][]any
	for i := range 8 {
		prefixes = append(prefixes, []any{netip.PrefixFrom(addr(0), 24+i).Masked()})
		if err := routes.Put(prefixes[i], []any{netip.MustParseAddr("192.0.2.254")}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := routes.DeleteMany(prefixes...); n != 8 || err != nil || len(routes.rows) != 0 {
		t.Errorf("routes: %d, %v, %d are followed", n, err, len(routes.rows))
	}
	loads, levels := r.Table("loads"), r.Table("levels")
	for i := range 3 {
		if err := errors.Join(loads.Put([]any{i}, []any{7, true}), levels.Put([]any{i}, []any{7})); err != nil {
			t.Fatal(err)
		}
	}
	some := [][]any{{0}, {1}, {3}}
	if n, err := loads.DeleteMany(some...); n != 2 || err != nil || rows(r, "loads") != 1 {
		t.Errorf("loads: %d, %v", n, err)
	}
	if n, err := levels.DeleteMany(some...); n != 3 || err != nil || rows(r, "levels") != 1 {
		t.Errorf("levels: %d, %v", n, err)
	}
	if n, err := r.Table("by_client").DeleteMany(); n != 0 || err == nil {
		t.Errorf("rows of sessions: %d, %v", n, err)
	}
	r.Close()
	if n, err := sources.DeleteMany([]any{addr(0)}); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed relay: %d, %v", n, err)
	}
}

// Rows come and go while others delete them: each that is deleted is reported once, and everything is free in the end.
func TestDeleteManyAtOnce(t *testing.T) {
	r := load(t, Options{})
	sources := r.Table("sources")
	var all [][]any
	for i := range 4 {
		all = append(all, []any{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})})
	}
	var put, deleted [3]int
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for i := range 300 {
				if _, err := sources.Get(all[i%4]...); errors.Is(err, ErrNotFound) {
					if err := sources.Put(all[i%4], []any{1, nil}); err != nil {
						t.Error(err)
					}
					put[g]++
				}
				n, err := sources.DeleteMany(all...)
				if err != nil {
					t.Error(err)
				}
				deleted[g] += n
			}
		})
	}
	wg.Wait()
	if rows(r, "sources") != 0 || deleted[0]+deleted[1]+deleted[2] > put[0]+put[1]+put[2] {
		t.Errorf("%d rows remain; %v were put, %v deleted", rows(r, "sources"), put, deleted)
	}
	for i := range 4 { // all counters are free
		if err := sources.Put(all[i], []any{1, 1}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCloseSessions(t *testing.T) {
	r, other := load(t, Options{}), load(t, Options{})
	broken := errors.New("broken")
	for _, fail := range []string{"", "by_client", "by_peer"} {
		var all []*AnySession
		for n := range 8 {
			all = append(all, open(t, r, n))
		}
		if err := r.CloseSessions(all[0], open(t, other, 1)); err == nil || run(t, r, packet(0)) != forwarded {
			t.Fatalf("a session of another relay: %v", err)
		}
		all[7].Close()
		calls := 0
		r.fault = func(op, table string) error {
			if calls++; op == "delete" && table == fail && calls < 4 {
				return broken
			}
			return nil
		}
		err := r.CloseSessions(append(all, all[2])...)
		if r.fault = nil; (fail != "") != errors.Is(err, broken) {
			t.Errorf("%q: %v", fail, err)
		}
		for n, s := range all {
			if !errors.Is(s.Err(), ErrClosed) || run(t, r, packet(n)) != passes {
				t.Errorf("%q: session %d: Err %v", fail, n, s.Err())
			}
		}
		if n := rows(r, "by_client") + rows(r, "by_peer"); (n > 0) != (fail != "") || r.OpenSessions("flow") != 0 {
			t.Errorf("%q: %d rows remain, %d sessions", fail, n, r.OpenSessions("flow"))
		}
		for s := range other.Sessions() {
			s.Close()
		}
	}
	for n := range 8 { // slots and keys are free
		open(t, r, n)
	}
}

// The translations of many receivers that go at once go with them.
func TestTranslationsOfMany(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 1)
	ids := func(v *AnyReceiver) *Translation { return v.State(3).(*Translation) }
	var receivers []*AnyReceiver
	err := g.Change(bg, func(c *AnyChange) error {
		for n := range 64 {
			v, err := c.Add(subscriber(n, 0)...)
			if err != nil {
				return err
			}
			receivers = append(receivers, v)
			for key := range uint64(15) {
				if _, _, err := ids(v).Put(key, 100*uint64(n)+key); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = g.Change(bg, func(c *AnyChange) error {
		for _, v := range receivers[1:] {
			c.Remove(v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := r.spaces.each(func(key, _ []byte) {
		if n++; abi.Order.Uint32(key[abi.TranslationKeySpace:]) != ids(receivers[0]).space {
			t.Errorf("%x remains", key)
		}
	}); err != nil || n != 15 {
		t.Errorf("%d translations remain, %v", n, err)
	}
	if all, err := ids(receivers[0]).All(); err != nil || len(all) != 15 || all[14] != 14 {
		t.Errorf("%v, %v", all, err)
	}

	// Keys of several receivers, of which some have no value, and of one that is gone.
	other := add(t, g, 64, 0)
	if _, _, err := ids(other).Put(1, 2); err != nil {
		t.Fatal(err)
	}
	if err := r.DeleteTranslations([]TranslationKey{
		{ids(receivers[0]), 99}, {ids(receivers[0]), 14}, {ids(receivers[1]), 1}, {ids(receivers[0]), 98},
		{ids(other), 1}, {ids(receivers[0]), 0}, {nil, 1},
	}...); err != nil {
		t.Error(err)
	}
	if all, err := ids(receivers[0]).All(); err != nil || len(all) != 13 || all[13] != 13 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := ids(other).Get(1); !errors.Is(err, ErrNotFound) {
		t.Errorf("a translation that was deleted is there: %v", err)
	}
	for _, key := range []uint64{0, 14} {
		if _, _, err := ids(receivers[0]).Put(key, key); err != nil {
			t.Fatal(err)
		}
	}

	// Rows of a table, which are so many that all of it is read.
	quota := r.Table("quota")
	var keys [][]any
	for id := range 20 {
		if keys = append(keys, []any{id}); id >= 4 {
			continue
		}
		if err := quota.Put(keys[id], []any{7, 8, Rate{1, 2}, nil}); err != nil {
			t.Fatal(err)
		}
		row := must(quota.Get(keys[id]...))
		if _, _, err := row[3].(*Translation).Put(1, 2); err != nil {
			t.Fatal(err)
		}
	}
	row := must(quota.Get(keys[3]...))
	if n, err := quota.DeleteMany(keys...); n != 4 || err != nil || rows(r, "quota") != 0 {
		t.Errorf("%d rows deleted, %v", n, err)
	}
	if _, err := row[3].(*Translation).Get(1); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation of a row that is gone: %v", err)
	}
	if limit := row[1].([]*Credit)[0].Limit(); limit != 0 {
		t.Errorf("the credit of a row that is gone has the limit %d", limit)
	}
	if err := testnet.Until(5*time.Second, "the translations of rows", func() bool {
		n := 0
		return r.spaces.each(func(_, _ []byte) { n++ }) == nil && n == 15
	}); err != nil {
		t.Fatal(err)
	}
	for id := range 4 { // blocks of credits are free
		if err := quota.Put(keys[id], []any{7, 8, Rate{1, 2}, nil}); err != nil {
			t.Fatal(err)
		}
	}
}
