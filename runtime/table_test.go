package runtime

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestTableValues(t *testing.T) {
	r := load(t, Options{})
	things := r.Table("things")
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	value := []any{
		uint64(math.MaxUint64), netip.MustParseAddrPort("[2001:db8::1]:53"), mac, []byte("12345678"), true, uint64(7),
	}
	if err := things.Put([]any{7, 1}, value); err != nil {
		t.Fatal(err)
	}
	got, err := things.Get(uint32(7), uint8(1))
	if err != nil || !reflect.DeepEqual(got, value) {
		t.Errorf("Get: %v, %v", got, err)
	}
	// Fixed arrays, as generated code passes them, and the other direction of booleans.
	value[3], value[4] = [8]byte{1}, false
	if err := things.Put([]any{7, 1}, value); err != nil {
		t.Fatal(err)
	}
	n := 0
	for row, err := range things.All() {
		n++
		if err != nil || !reflect.DeepEqual(row.Key, []any{uint64(7), uint64(1)}) || row.Value[4] != false {
			t.Errorf("row %v, %v", row, err)
		}
	}
	if n != 1 {
		t.Errorf("%d rows", n)
	}

	for _, tt := range []struct {
		key, value []any
		want       string
	}{
		{[]any{7}, value, `table "things", key: 1 values given, 2 needed (id, kind)`},
		{[]any{7, 256}, value, `table "things", key, "kind": 256 doesn't fit in 8 bits (at most 255)`},
		{[]any{-1, 2}, value, "-1 is negative"},
		{[]any{7, 1}, append(append([]any{}, value[:5]...), 8), `"level": 8 doesn't fit in 3 bits`},
		{[]any{7, 1}, append([]any{1.5}, value[1:]...), "is a float64, an integer is needed"},
		{[]any{7, 1}, []any{1, value[1], mac[:4], value[3], true, 1}, "has 4 bytes, must have 6"},
		{[]any{7, 1}, []any{1, value[1], mac, []byte("short"), true, 1}, "has 5 bytes, must have 8"},
		{[]any{7, 1}, []any{1, value[1], mac, value[3], 1, 1}, "is a int, bool is needed"},
	} {
		var bad *ValueError
		err := things.Put(tt.key, tt.value)
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(tt.key) == 2 && !errors.As(err, &bad) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}

	if err := things.Put([]any{8, 1}, value); err != nil {
		t.Fatal(err)
	}
	var full *FullError
	if err := things.Put([]any{9, 1}, value); !errors.Is(err, ErrFull) || !errors.As(err, &full) ||
		full.What != `table "things"` || full.Size != 2 {
		t.Errorf("a third row of two: %v", err)
	}
	if err := things.Delete(8, 1); err != nil {
		t.Error(err)
	}
	if err := things.Delete(8, 1); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "id=0x8") {
		t.Errorf("deleting again: %v", err)
	}
	if _, err := things.Get(8, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("getting what was deleted: %v", err)
	}
}

func TestSessionTablesAreReadOnly(t *testing.T) {
	r := load(t, Options{})
	open(t, r, 1)
	by := r.Table("by_peer")
	key := []any{flow(1)[4], flow(1)[3]}
	got, err := by.Get(key...)
	if err != nil || got[2] != uint64(0x4001) {
		t.Errorf("Get: %v, %v", got, err)
	}
	for _, err := range []error{by.Put(key, got), by.Delete(key...)} {
		if err == nil || !strings.Contains(err.Error(), `sessions of kind "flow"`) {
			t.Errorf("error %v", err)
		}
	}
}

func TestCounters(t *testing.T) {
	r := load(t, Options{})
	sources := r.Table("sources")
	key := func(n byte) []any { return []any{netip.AddrFrom4([4]byte{192, 0, 2, n})} }
	for n := range byte(4) {
		if err := sources.Put(key(n), []any{int(n), nil}); err != nil {
			t.Fatal(err)
		}
	}
	row, err := sources.Get(key(3)...)
	if err != nil {
		t.Fatal(err)
	}
	connections := row[0].(*Counter)
	if connections.Load() != 3 || connections.Add(2) != 5 || connections.String() != "5" {
		t.Errorf("connections: %v", connections)
	}
	// A row put again keeps its counters: nil and the counter itself leave the value, a number sets it.
	for _, tt := range []struct {
		v    any
		want uint64
	}{{nil, 5}, {connections, 5}, {uint8(9), 9}} {
		if err := sources.Put(key(3), []any{tt.v, nil}); err != nil || connections.Load() != tt.want {
			t.Errorf("after %v: %v, %v", tt.v, connections, err)
		}
	}
	other, _ := sources.Get(key(1)...)
	if err := sources.Put(key(3), []any{other[0], nil}); err == nil || !strings.Contains(err.Error(),
		"counter of another row") {
		t.Errorf("the counter of another row: %v", err)
	}
	var full *FullError
	if err := sources.Put(key(5), []any{0, 0}); !errors.As(err, &full) {
		t.Errorf("a fifth row of four: %v", err)
	}
	// The row that didn't fit has taken no counters along.
	if err := sources.Delete(key(3)...); err != nil {
		t.Fatal(err)
	}
	if connections.Add(1) != 0 {
		t.Error("the counter of a row that is gone counts")
	}
	if err := sources.Put(key(5), []any{nil, nil}); err != nil {
		t.Fatal(err)
	}
	if row, _ := sources.Get(key(5)...); row[0].(*Counter).Load() != 0 {
		t.Errorf("a new counter reads %v", row[0])
	}

	// The kernel counts on the same memory: prog_out adds 1 to entry 1.
	one := r.counters.get(1)
	if one == nil {
		t.Fatal("entry 1 isn't in use")
	}
	before := one.Load()
	out := r.Program("out").Kernel()
	const n = 5000
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for range n {
			one.Add(1)
		}
	}()
	for range n / 50 {
		runKernel(t, out, make([]byte, 64), 50)
	}
	wg.Wait()
	if got := one.Load() - before; got != 2*n {
		t.Errorf("%d of %d were counted", got, 2*n)
	}
	if got := must(r.Counters()); len(got) != 1 || got[0] != n {
		t.Errorf("named counters: %d", got)
	}
}

// Rows that lost their counters, as when the kernel replaced them, don't use them up.
func TestLostCounters(t *testing.T) {
	r := load(t, Options{})
	sources := r.Table("sources")
	for n := range byte(40) {
		key := []any{netip.AddrFrom4([4]byte{192, 0, 2, n})}
		if err := sources.Put(key, []any{1, 1}); err != nil {
			t.Fatalf("row %d: %v", n, err)
		}
		k, err := sources.anyKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := sources.Map().Delete(k); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPrefixesAndNextHops(t *testing.T) {
	asked := map[string]int{}
	needs.Root(t)
	host, err := testnet.Start(t).Host("quiet") // where nothing changes, after which all would be asked for again
	if err != nil {
		t.Fatal(err)
	}
	r := (&bench{host: host}).load(t, Options{routes: func(from, to netip.Addr) Hop {
		if from.IsValid() {
			t.Errorf("a next hop has source %v", from)
		}
		asked[to.String()]++
		return Hop{State: HopDirect, Ifindex: 7, MTU: 70000, Dst: [6]byte{1}, Src: [6]byte{2}}
	}})
	routes := r.Table("routes")
	put := func(prefix, via string) error {
		return routes.Put([]any{netip.MustParsePrefix(prefix)}, []any{netip.MustParseAddr(via)})
	}
	for _, p := range []string{"0.0.0.0/0", "203.0.113.0/24", "::/0", "2001:db8::/32", "203.0.113.9/32"} {
		if err := put(p, "192.0.2.9"); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
	}
	if asked["192.0.2.9"] != 1 {
		t.Errorf("the next hop was asked for %d times", asked["192.0.2.9"])
	}
	var found []string
	for row, err := range routes.All() {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, row.Key[0].(netip.Prefix).String()+" "+row.Value[0].(netip.Addr).String())
	}
	if len(found) != 5 || !strings.Contains(strings.Join(found, ","), "203.0.113.0/24 192.0.2.9") ||
		!strings.Contains(strings.Join(found, ","), "0.0.0.0/0 192") {
		t.Errorf("rows %v", found)
	}
	b, err := routes.Map().LookupBytes(mustKey(t, routes, netip.MustParsePrefix("203.0.113.0/24")))
	if err != nil || abi.Order.Uint32(b) != 7 || abi.Order.Uint16(b[4:]) != 65535 || HopState(b[6]) != HopDirect ||
		b[8] != 1 || b[14] != 2 {
		t.Errorf("hop % x, %v", b, err)
	}
	if k := mustKey(t, routes, netip.MustParsePrefix("203.0.113.0/24")); abi.Order.Uint32(k) != 120 {
		t.Errorf("prefix length %d", abi.Order.Uint32(k))
	}
	if err := put("203.0.113.1/24", "192.0.2.9"); err == nil || !strings.Contains(err.Error(),
		"did you mean 203.0.113.0/24?") {
		t.Errorf("bits after the prefix: %v", err)
	}
	if err := put("::ffff:0:0/80", "192.0.2.9"); err == nil {
		t.Error("a prefix that covers more than the mapped addresses")
	}
	for i := range byte(11) {
		if err := routes.Put([]any{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16)},
			[]any{netip.MustParseAddr("192.0.2.9")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("10.99.0.0/16", "192.0.2.9"); !errors.Is(err, ErrFull) {
		t.Errorf("one row too many: %v", err)
	}
	for row, err := range routes.All() {
		if err := errors.Join(err, routes.Delete(row.Key...)); err != nil {
			t.Error(err)
		}
	}
	if len(r.hops.byKey) != 0 || len(routes.rows) != 0 {
		t.Errorf("%d hops and %d rows are still followed", len(r.hops.byKey), len(routes.rows))
	}
}

// A row that has lost its next hop is followed no more: a change of the old one's doesn't bring the old row back.
func TestNoNextHop(t *testing.T) {
	var device atomic.Int64
	device.Store(7)
	r := load(t, Options{routes: func(_, _ netip.Addr) Hop {
		return Hop{State: HopDirect, Ifindex: int(device.Load())}
	}})
	routes, key := r.Table("routes"), []any{netip.MustParsePrefix("203.0.113.0/24")}
	for _, via := range []string{"192.0.2.9", "::"} {
		if err := routes.Put(key, []any{netip.MustParseAddr(via)}); err != nil {
			t.Fatal(err)
		}
	}
	device.Store(8)
	if err := r.RefreshRoutes(bg); err != nil {
		t.Fatal(err)
	}
	if row, err := routes.Get(key...); err != nil || row[0] != netip.IPv6Unspecified() {
		t.Errorf("the row is %v, %v", row, err)
	}
	if len(r.hops.byKey) != 0 || len(routes.rows) != 0 {
		t.Errorf("%d hops and %d rows are followed", len(r.hops.byKey), len(routes.rows))
	}
}

func mustKey(t *testing.T, table *AnyTable, key ...any) []byte {
	t.Helper()
	k, err := table.anyKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestPerCPU(t *testing.T) {
	r := load(t, Options{})
	loads := r.Table("loads")
	if err := loads.Put([]any{0}, []any{40, true}); err != nil {
		t.Fatal(err)
	}
	runOn(t, r, "out", make([]byte, 64), 2)
	got, err := loads.Get(0)
	if err != nil || got[0] != uint64(42) || got[1] != true {
		t.Errorf("sum %v, %v", got, err)
	}
	each, err := loads.GetPerCPU(0)
	if err != nil || len(each) != ebpf.MustPossibleCPU() {
		t.Fatalf("%v, %v", each, err)
	}
	sum := uint64(0)
	for _, v := range each {
		sum += v[0].(uint64)
		if v[1] != true {
			t.Errorf("not the same on all processors: %v", each)
		}
	}
	if sum != 42 {
		t.Errorf("%v adds up to %d", each, sum)
	}
}

func TestArray(t *testing.T) {
	r := load(t, Options{})
	levels := r.Table("levels")
	if err := levels.Put([]any{2}, []any{5}); err != nil {
		t.Fatal(err)
	}
	if err := levels.Put([]any{4}, []any{5}); err == nil || !strings.Contains(err.Error(), "it has 4 entries") {
		t.Errorf("index 4 of 4: %v", err)
	}
	n := 0
	for row, err := range levels.All() {
		n++
		if err != nil || row.Key[0] != uint64(2) || row.Value[0] != uint64(5) {
			t.Errorf("row %v, %v", row, err)
		}
	}
	if err := levels.Delete(2); err != nil {
		t.Error(err)
	}
	if v, err := levels.Get(2); err != nil || v[0] != uint64(0) || n != 1 {
		t.Errorf("%d rows; after Delete: %v, %v", n, v, err)
	}
}

// What NewCredit and NewBucket return says how a row begins, or goes on, as the typed rows of generated Go give it; the
// row's own are others. A bucket's is no credit's.
func TestNewState(t *testing.T) {
	r := loadGroups(t, Options{})
	type row struct {
		counter *Counter
		credits [2]*Credit
		bucket  *Bucket
		ids     *Translation
	}
	quota := TypedTable(r, "quota", Uint[uint32], func(c *Codec, v *row) {
		c.Counter(&v.counter)
		Each(c, v.credits[:], (*Codec).Credit)
		c.Bucket(&v.bucket)
		c.Translation(&v.ids)
	})
	bucket, credits := NewBucket(Rate{10, 20}), [2]*Credit{NewCredit(100), nil}
	if bucket.Rate() != (Rate{}) || credits[0].Limit() != 0 || credits[0].Spend(0) != ErrClosed {
		t.Errorf("before there is a row: %v, %v", bucket, credits[0])
	}
	for range 2 {
		for i, want := range []uint64{100, 200} {
			credits[0] = NewCredit(want)
			if err := quota.Put(1, row{credits: credits, bucket: bucket}); err != nil {
				t.Fatal(i, err)
			}
			own := must(quota.Get(1))
			if own.bucket.Rate() != (Rate{10, 20}) || own.credits[0].Limit() != want || own.credits[1].Limit() != 0 {
				t.Errorf("%d: %v", i, own)
			}
			own.bucket.SetRate(Rate{PerSecond: 1, Burst: 1})
			if err := quota.Put(1, own); err != nil || own.bucket.Rate() != (Rate{1, 1}) {
				t.Errorf("its own, put again: %v, %v", own, err)
			}
		}
		if err := quota.Delete(1); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []row{{bucket: &Bucket{}}, {credits: [2]*Credit{{}, nil}}, {counter: &Counter{}}} {
		if value := (*ValueError)(nil); !errors.As(quota.Put(1, row), &value) {
			t.Errorf("%v was taken", row)
		}
	}
	var value *ValueError
	for i, v := range [][]any{
		{nil, nil, NewCredit(1), nil}, {nil, []*Credit{{}, nil}, nil, nil}, {nil, nil, &Bucket{}, nil},
		{nil, []*Bucket{bucket, bucket}, nil, nil}, {nil, []*Credit{NewCredit(1)}, nil, nil},
	} {
		if err := r.Table("quota").Put([]any{1}, v); !errors.As(err, &value) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Rows of tables have credits, buckets and translations as receivers do: they stay while the row does, and go with it.
func TestTableState(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := loadGroups(t, Options{PinPath: pins, Linger: time.Second})
	quota := r.Table("quota")
	key := func(n int) []any { return []any{n} }
	if err := quota.Put(key(1), []any{5, 100, Rate{10, 20}, nil}); err != nil {
		t.Fatal(err)
	}
	row, err := quota.Get(key(1)...)
	if err != nil {
		t.Fatal(err)
	}
	credits, bucket, ids := row[1].([]*Credit), row[2].(*Bucket), row[3].(*Translation)
	if row[0].(*Counter).Load() != 5 || len(credits) != 2 || credits[0].Limit() != 100 || credits[1].Limit() != 100 ||
		bucket.Rate() != (Rate{10, 20}) {
		t.Errorf("%v", row)
	}
	if _, stored, err := ids.Put(1, 2); !stored || err != nil {
		t.Error(err)
	}
	if err := credits[1].Spend(60); err != nil {
		t.Error(err)
	}
	// Put again: what is left out, or the row's own, stays; another row's isn't taken.
	if err := quota.Put(key(2), []any{nil, nil, nil, nil}); err != nil {
		t.Fatal(err)
	}
	other, _ := quota.Get(key(2)...)
	for _, v := range [][]any{
		{nil, nil, nil, nil}, row, {(*Counter)(nil), []*Credit(nil), (*Bucket)(nil), (*Translation)(nil)},
	} {
		if err := quota.Put(key(1), v); err != nil || credits[1].Spent() != 60 || credits[1].Limit() != 100 ||
			bucket.Rate().Burst != 20 {
			t.Errorf("after %v: %v; %v, %v", v, err, credits, bucket)
		}
	}
	for i, v := range [][]any{
		{nil, other[1], nil, nil}, {nil, nil, other[2], nil}, {nil, nil, nil, other[3]}, {nil, "x", nil, nil},
		{nil, nil, 5, nil}, {nil, nil, nil, 5},
	} {
		var value *ValueError
		if err := quota.Put(key(1), v); !errors.As(err, &value) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := quota.Put(key(1), []any{nil, 200, nil, nil}); err != nil || credits[0].Limit() != 200 ||
		credits[1].Spent() != 60 {
		t.Errorf("%v, %v", err, credits)
	}
	for n := 3; n <= 4; n++ {
		if err := quota.Put(key(n), []any{nil, n, nil, nil}); err != nil {
			t.Fatal(err)
		}
	}
	var full *FullError
	if err := quota.Put(key(5), []any{nil, nil, nil, nil}); !errors.As(err, &full) {
		t.Errorf("a fifth row of four: %v", err)
	}
	if err := quota.Delete(key(2)...); err != nil {
		t.Fatal(err)
	}
	if other[1].([]*Credit)[0].Spend(0) != ErrClosed || other[2].(*Bucket).Spend(0) != ErrClosed {
		t.Error("credits outlive their row")
	}
	if _, err := other[3].(*Translation).Get(1); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation outlives its row: %v", err)
	}
	if err := quota.Put(key(5), []any{nil, 7, nil, nil}); err != nil {
		t.Error(err)
	}
	r.Close()

	next := loadGroups(t, Options{PinPath: pins})
	quota = next.Table("quota")
	for n, want := range map[int]uint64{1: 200, 3: 3, 4: 4, 5: 7} {
		row, err := quota.Get(key(n)...)
		if err != nil || row[1].([]*Credit)[0].Limit() != want {
			t.Errorf("row %d after the adoption: %v, %v", n, row, err)
		}
	}
	row, _ = quota.Get(key(1)...)
	if to, err := row[3].(*Translation).Get(1); to != 2 || err != nil ||
		row[1].([]*Credit)[1].Spent() != 60 {
		t.Errorf("%v, %d %v", row, to, err)
	}
	if len(quota.credits.free) != 0 || len(next.counters.free) != 128 {
		t.Errorf("%d blocks, %d counters are free", len(quota.credits.free), len(next.counters.free))
	}
	if err := quota.Delete(key(1)...); err != nil {
		t.Error(err)
	}
	until(t, time.Second, "its translations are removed", func() bool { return translations(t, next) == 0 })
}

// A row that the kernel doesn't take changes nothing of the row that is there.
func TestPutRefused(t *testing.T) {
	quota := loadGroups(t, Options{}).Table("quota")
	if err := quota.Put([]any{1}, []any{5, 100, Rate{10, 20}, nil}); err != nil {
		t.Fatal(err)
	}
	row := must(quota.Get(1))
	if err := quota.Map().Freeze(); err != nil { // from now on user space can't write it
		t.Fatal(err)
	}
	if err := quota.Put([]any{1}, []any{6, 200, Rate{30, 40}, nil}); err == nil {
		t.Fatal("the kernel has taken the row")
	}
	if n, limit, rate := row[0].(*Counter).Load(), row[1].([]*Credit)[0].Limit(), row[2].(*Bucket).Rate(); n != 5 ||
		limit != 100 || rate != (Rate{10, 20}) {
		t.Errorf("the counter is at %d, the credit's limit %d, the bucket's rate %v", n, limit, rate)
	}
}

// A key of an array that is given twice frees what its row has once.
func TestDeleteTwiceInArray(t *testing.T) {
	r := loadGroups(t, Options{})
	hash := r.Table("quota")
	desc := *hash.desc
	desc.Kind = abi.TableArray
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: uint32(desc.Size)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	array := newTable(r, &desc, m, hash.credits)
	put := func(n int) *Bucket {
		t.Helper()
		if err := array.Put([]any{n}, []any{nil, n, Rate{1, 1}, nil}); err != nil {
			t.Fatal(err)
		}
		return must(array.Get(n))[2].(*Bucket)
	}
	put(1)
	if _, err := array.DeleteMany([]any{1}, []any{1}); err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]int{}
	for n := range desc.Size {
		seen[put(n).index]++
	}
	if len(seen) != desc.Size || len(hash.credits.free) != 0 {
		t.Errorf("%d rows have the buckets %v; %d blocks are free", desc.Size, seen, len(hash.credits.free))
	}
}

func translations(t *testing.T, r *Relay) (n int) {
	t.Helper()
	if err := r.spaces.each(func(_, _ []byte) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

// A row is deleted without waiting for programs that have it: what it translates stays for them, and no other row gets
// its namespace. The relay closes meanwhile as at any time.
func TestDeleteDoesNotWait(t *testing.T) {
	r := loadGroups(t, Options{})
	entered, leave := make(chan struct{}), make(chan struct{})
	r.grace = func() error {
		entered <- struct{}{}
		<-leave
		return nil
	}
	quota := r.Table("quota")
	put := func() *Translation {
		t.Helper()
		if err := quota.Put([]any{1}, []any{nil, nil, nil, nil}); err != nil {
			t.Fatal(err)
		}
		row, err := quota.Get(1)
		if err != nil {
			t.Fatal(err)
		}
		ids := row[3].(*Translation)
		if _, stored, err := ids.Put(1, uint64(ids.space)); !stored || err != nil {
			t.Fatal(stored, err)
		}
		return ids
	}
	first := put()
	if err := quota.Delete(1); err != nil {
		t.Fatal(err)
	}
	receive(t, "the grace period begins", entered)
	second := put()
	if err := quota.Delete(1); err != nil {
		t.Fatal(err)
	}
	put()
	r.sweepTranslations() // as for receivers that go meanwhile
	if n := translations(t, r); first.space == second.space || n != 3 {
		t.Errorf("namespaces %d and %d; %d translations", first.space, second.space, n)
	}
	if _, err := first.Get(1); !errors.Is(err, ErrClosed) {
		t.Errorf("a translation outlives its row: %v", err)
	}
	leave <- struct{}{}
	receive(t, "the next grace period begins", entered)
	if n := translations(t, r); n != 2 {
		t.Errorf("%d translations after the first grace period", n)
	}
	leave <- struct{}{}
	until(t, time.Second, "the second row's translation is removed", func() bool { return translations(t, r) == 1 })
}

// Translations that the kernel doesn't delete are looked for again.
func TestSweepAgain(t *testing.T) {
	r := loadGroups(t, Options{})
	v := add(t, openGroup(t, r, 7), 1, 1)
	if _, stored, err := v.State(3).(*Translation).Put(1, 2); !stored || err != nil {
		t.Fatal(stored, err)
	}
	if err := r.spaces.m.Freeze(); err != nil { // from now on user space can't write it
		t.Fatal(err)
	}
	if err := v.Remove(bg); err != nil {
		t.Fatal(err)
	}
	if n := translations(t, r); n != 1 {
		t.Fatalf("%d translations", n)
	}
	if err := r.spaces.sweep(); err == nil {
		t.Error("the next sweep doesn't look for what is left")
	}
}

// Addresses that are no single host's are refused if a packet would be sent from or to them.
func TestNotAHost(t *testing.T) {
	for _, tt := range []struct{ addr, want string }{
		{"192.0.2.1", ""}, {"169.254.1.1", ""}, {"240.0.0.1", ""}, {"2001:db8::1", ""}, {"::2", ""}, {"fd00::1", ""},
		{"0.0.0.0", "unspecified"}, {"::", "unspecified"}, {"0.0.0.1", "0.0.0.0/8"}, {"127.0.0.1", "loopback"},
		{"::1", "loopback"},
		{"::ffff:127.0.0.1", "loopback"}, {"224.0.0.1", "multicast"}, {"239.255.255.255", "multicast"},
		{"::ffff:224.0.0.1", "multicast"},
		{"ff02::1", "multicast"}, {"255.255.255.255", "broadcast"}, {"fe80::1", "link-local"},
	} {
		if got := notAHost(netip.MustParseAddr(tt.addr)); (got == "") != (tt.want == "") ||
			!strings.Contains(got, tt.want) {
			t.Errorf("%s %q, want %q", tt.addr, got, tt.want)
		}
	}
	hops := load(t, Options{}).Table("routes")
	for _, tt := range []struct{ hop, want string }{
		{"224.0.0.1", "is a multicast address"}, {"127.0.0.1", "is a loopback address"},
		{"255.255.255.255", "is the broadcast address"}, {"fe80::1", ""},
	} {
		err := hops.Put([]any{netip.MustParsePrefix("203.0.113.0/24")}, []any{netip.MustParseAddr(tt.hop)})
		var value *ValueError
		if tt.want == "" && err != nil || tt.want != "" &&
			(!errors.As(err, &value) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("a next hop %s: %v, want %q", tt.hop, err, tt.want)
		}
	}
}
