package runtime

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

var pinCount atomic.Int32

// pinName returns a name for pins that no other test uses, and takes away what a failed test leaves there.
func pinName(t testing.TB) string {
	name := fmt.Sprintf("fastrelay_test_%d_%d", os.Getpid(), pinCount.Add(1))
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/fs/bpf/" + name); err == nil {
			os.RemoveAll("/sys/fs/bpf/" + name)
			if !t.Failed() {
				t.Errorf("pins are left at %s", name)
			}
		}
	})
	return name
}

// pinnedReasons reads the counters of a relay of another process.
func pinnedReasons(t testing.TB, pins string) func(reason uint32) uint64 {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(pins, "live", abi.MapReasons), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return func(reason uint32) uint64 {
		b, err := m.LookupBytes(reason)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		for ; len(b) >= 16; b = b[16:] {
			n += abi.Order.Uint64(b)
		}
		return n
	}
}

func someHop(from, to netip.Addr) Hop { return Hop{State: HopNeighbour, Ifindex: 1, MTU: 1500} }

func TestAdopt(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "tcx", true: "clsact"}[clsact], func(t *testing.T) {
			b := newBench(t)
			opt := Options{
				PinPath: "/sys/fs/bpf/" + pinName(t), Linger: 5 * time.Second, Clsact: clsact, routes: someHop,
			}
			old := b.load(t, opt)
			if err := old.Program("fwd").Attach("in0"); err != nil {
				t.Fatal(err)
			}
			was := open(t, old, 1)
			key := []any{netip.MustParseAddr("192.0.2.7")}
			if err := old.Table("sources").Put(key, []any{41, nil}); err != nil {
				t.Fatal(err)
			}
			if err := old.Table("routes").
				Put([]any{netip.MustParsePrefix("10.0.0.0/8")}, []any{netip.MustParseAddr("192.0.2.9")}); err != nil {
				t.Fatal(err)
			}
			b.send(t, 1)
			until(t, 2*time.Second, "a packet is forwarded", func() bool {
				return must(was.Counters())[0].Packets == 1
			})

			// A second process is kept out while the first is there.
			err := b.host.Do(func() error { _, err := Load(flowDesc(), build(t), quiet(opt)); return err })
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), opt.PinPath) {
				t.Errorf("a second process: %v", err)
			}

			// Packets flow all the while: each is forwarded by the old program or by the new one.
			stop := b.flood(t)
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			now := b.load(t, opt)
			before := must(now.Program("fwd").Count("sent")).Packets
			until(t, 2*time.Second, "packets go on", func() bool {
				return must(now.Program("fwd").Count("sent")).Packets > before+100
			})
			total := uint64(stop()) + 1
			until(t, 2*time.Second, "all packets are counted", func() bool {
				return must(now.Program("fwd").Count("sent")).Packets == total
			})

			var s *AnySession
			for s = range now.Sessions() {
			}
			if s == nil || s.String() != was.String() || must(s.Counters())[0].Packets != total {
				t.Fatalf("session %v, counters %v", s, must(s.Counters()))
			}
			if got := now.Program("fwd").Attachments(); len(got) != 1 || got[0].Interface != "in0" {
				t.Errorf("attachments %v", got)
			}
			if err := now.Program("fwd").Attach("in0"); err != nil {
				t.Errorf("attaching again: %v", err)
			}
			row, err := now.Table("sources").Get(key...)
			if err != nil || row[0].(*Counter).Load() != 41 {
				t.Errorf("row %v, %v", row, err)
			}
			router := hopKey{To: netip.MustParseAddr("192.0.2.9"), Router: true}
			if len(now.counters.free) != 6 || now.hops.byKey[router] == nil {
				t.Errorf("%d counters free; hops %v", len(now.counters.free), now.hops.byKey)
			}
			if _, err := now.Open("flow", flow(1)...); err == nil {
				t.Error("the adopted session's keys were given away")
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			before = must(now.Program("fwd").Count("sent")).Packets
			b.send(t, 1)
			until(t, 2*time.Second, "a packet passes to the stack", func() bool {
				return must(now.Program("fwd").Count("no_by_client")).Packets == 1
			})
			if must(now.Program("fwd").Count("sent")).Packets != before {
				t.Error("a closed session forwards")
			}
			now.opt.Linger = 0
			if err := now.Close(); err != nil {
				t.Fatal(err)
			}
			if q := b.tc(t, "filter", "in0", "ingress"); strings.Contains(q, "fastrelay") {
				t.Errorf("left behind: %s", q)
			}
		})
	}
}

// The lease after Close is as long as the user chose.
func TestLinger(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	opt := Options{PinPath: pins, Linger: 300 * time.Millisecond}
	r := load(t, opt)
	open(t, r, 1)
	fwd, err := r.Program("fwd").Kernel().Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer fwd.Close()
	closed := time.Now()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, 2*time.Second, "packets pass to the stack", func() bool {
		ret, err := fwd.Run(&ebpf.RunOptions{Data: packet(1)})
		return err == nil && ret == passes
	})
	if d := time.Since(closed); d < 280*time.Millisecond {
		t.Errorf("it lingered %v", d)
	}
	// Adopted later, it goes on.
	next := load(t, Options{PinPath: pins})
	if run(t, next, packet(1)) != forwarded {
		t.Error("the adopted session doesn't forward")
	}
}

// A relay that is left, though it would be closed, is adopted by the next one.
func TestLeave(t *testing.T) {
	if err := load(t, Options{}).Leave(time.Second); err == nil {
		t.Error("a relay without pins is left")
	}
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins})
	open(t, r, 1)
	if r.Adopted() || r.Leave(0) == nil {
		t.Error("it is adopted, or left for no time")
	}
	if err := r.Leave(time.Minute); err != nil {
		t.Fatal(err)
	}
	next := load(t, Options{PinPath: pins})
	if !next.Adopted() || run(t, next, packet(1)) != forwarded {
		t.Errorf("adopted: %v; or its session doesn't forward", next.Adopted())
	}
}

func TestOtherLayout(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins, Linger: time.Second})
	open(t, r, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(d *abi.Desc)
		define string
		want   string
	}{
		{"a table of another size", func(d *abi.Desc) { d.Tables[2].Size = 5; d.Shared = 11 }, "SOURCES=5",
			`table "sources" is laid out otherwise`},
		{"members swapped", func(d *abi.Desc) { v := d.Tables[4].Key; v[0].Name, v[1].Name = v[1].Name, v[0].Name },
			"SOURCES=4", `table "things"`},
		{"another name", func(d *abi.Desc) { d.Name = "other" }, "SOURCES=4", `it is another one (found "flow" with`},
		{"a field of sessions renamed", func(d *abi.Desc) { d.Sessions[0].Fields[0].Name = "caller" }, "SOURCES=4",
			`table "by_client"`},
	}
	for _, tt := range tests {
		d := flowDesc()
		tt.change(d)
		_, err := Load(d, build(t, tt.define), quiet(Options{PinPath: pins, routes: someHop}))
		var le *LayoutError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), pins) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	// What was refused has done no harm.
	next := load(t, Options{PinPath: pins})
	if run(t, next, packet(1)) != forwarded {
		t.Error("the session is gone")
	}
}

// Other reasons and counters, and a table more: people's counters start afresh, everything else goes on.
func TestSmallChanges(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	old := flowDesc()
	old.Tables = append(old.Tables[:4:4], old.Tables[5:]...) // without "things"
	old.Programs[0].Reasons[4].Name = "strange"
	r := mustLoad(t, old, build(t), Options{PinPath: pins, Linger: time.Second, routes: someHop})
	open(t, r, 1)
	run(t, r, packet(1))
	r.Close()
	next := load(t, Options{PinPath: pins, Linger: time.Second})
	if run(t, next, packet(1)) != forwarded || must(next.Program("fwd").Count("sent")).Packets != 1 {
		t.Errorf("sent: %v", must(next.Program("fwd").Count("sent")))
	}
	if err := next.Table("things").
		Put([]any{1, 1}, []any{1, netip.MustParseAddrPort("192.0.2.1:1"), [6]byte{}, [8]byte{}, true, 1}); err != nil {
		t.Error(err)
	}
	next.Close()
	last := load(t, Options{PinPath: pins})
	if n := rows(last, "things"); n != 1 || must(last.Program("fwd").Count("sent")).Packets != 1 {
		t.Errorf("%d things, sent %v", n, must(last.Program("fwd").Count("sent")))
	}
}

// A relay's process is killed at random moments while it opens and closes sessions. The next one finds sessions that
// are whole, and nothing else.
func TestKilledWhileRegistering(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	repaired := 0
	for round := 0; round < 25 || repaired < 3 && round < 200; round++ {
		cmd := startChild(t, "churn", "PINS="+pins)
		time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Microsecond) // the random moment
		kill(t, cmd)
		left := leftRows(t, pins)
		r := load(t, Options{PinPath: pins, Linger: time.Second})
		n := 0
		for s := range r.Sessions() {
			n++
			v := s.Values()
			if run(t, r, packet(int(v[0].(netip.AddrPort).Port())-40000)) != forwarded {
				t.Errorf("%v doesn't forward", s)
			}
		}
		if a, b := rows(r, "by_client"), rows(r, "by_peer"); a != n || b != n {
			t.Fatalf("%d sessions, %d and %d rows", n, a, b)
		}
		if left != 2*n {
			repaired++
		}
		counters := 0
		for range r.Table("sources").All() {
			counters += 2
		}
		if free := len(r.counters.free); free != 8-counters {
			t.Errorf("%d counters are free, %d in rows", free, counters)
		}
		for s := range r.Sessions() {
			s.Close()
		}
		for n := range 8 {
			open(t, r, n)
		}
		if n := len(r.sessions); n != 8 {
			t.Errorf("%d sessions could be opened", n)
		}
		for s := range r.Sessions() {
			s.Close()
		}
		r.Close()
	}
	if repaired == 0 {
		t.Error("there was never anything to repair")
	}
	load(t, Options{PinPath: pins})
}

// A process is killed at random moments while it takes a relay over. The next one takes over what was there.
func TestKilledWhileAdopting(t *testing.T) {
	for _, clsact := range []string{"", "1"} {
		b := newBench(t)
		pins := "/sys/fs/bpf/" + pinName(t)
		opt := Options{PinPath: pins, Linger: time.Minute, Clsact: clsact != "", routes: someHop}
		r := b.load(t, opt)
		open(t, r, 1)
		open(t, r, 2)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(3, 4))
		for range 15 {
			var cmd *exec.Cmd
			if err := b.host.Do(func() error {
				cmd = startChild(t, "adopt", "PINS="+pins, "CLSACT="+clsact, "DEV=in0")
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rnd.IntN(30_000)) * time.Microsecond) // the random moment
			kill(t, cmd)
			next := b.load(t, opt)
			if n := next.OpenSessions("flow"); n != 2 {
				t.Fatalf("%d sessions", n)
			}
			if n := rows(next, "by_client") + rows(next, "by_peer"); n != 4 {
				t.Errorf("%d rows", n)
			}
			if err := next.Program("fwd").Attach("in0"); err != nil {
				t.Fatal(err)
			}
			if n := len(next.Program("fwd").Attachments()); n != 1 {
				t.Errorf("%d attachments", n)
			}
			before := must(next.Program("fwd").Count("sent")).Packets
			b.send(t, 3)
			until(t, 2*time.Second, "three packets are forwarded, each once", func() bool {
				return must(next.Program("fwd").Count("sent")).Packets == before+3
			})
			if err := next.Close(); err != nil {
				t.Fatal(err)
			}
		}
		opt.Linger = 0
		b.load(t, opt).Close()
		if q := b.tc(t, "filter", "in0", "ingress"); strings.Contains(q, "fastrelay") {
			t.Errorf("left behind: %s", q)
		}
	}
}

func leftRows(t *testing.T, pins string) int {
	n := 0
	for _, name := range []string{"tbl_by_client", "tbl_by_peer"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(pins, "live", name), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		var k, v []byte
		for it := m.Iterate(); it.Next(&k, &v); {
			n++
		}
	}
	return n
}

// Every half-done state that a process can leave, made by hand.
func TestRepairs(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins, Linger: time.Second})
	keep, unopened, closing, lonely := open(t, r, 1), open(t, r, 2), open(t, r, 3), open(t, r, 4)
	r.slots.mem.Store32(unopened.slot, abi.SlotGen, 0)
	r.slots.mem.Store32(closing.slot, abi.SlotGen, 0)
	if err := closing.rows[0].table.m.Delete(closing.rows[0].key); err != nil {
		t.Fatal(err)
	}
	if err := lonely.rows[1].table.m.Delete(lonely.rows[1].key); err != nil { // the slot is open, a row is missing
		t.Fatal(err)
	}
	r.slots.mem.Store32(7, abi.SlotGen, 9) // a slot without rows
	gen := unopened.gen
	r.Close()
	if err := os.Mkdir(filepath.Join(pins, "new"), 0o700); err != nil {
		t.Fatal(err)
	}
	next := load(t, Options{PinPath: pins})
	n := 0
	for s := range next.Sessions() {
		n++
		if s.String() != keep.String() {
			t.Errorf("session %v", s)
		}
	}
	if a, b := rows(next, "by_client"), rows(next, "by_peer"); n != 1 || a != 1 || b != 1 {
		t.Errorf("%d sessions, %d and %d rows", n, a, b)
	}
	if next.slots.mem.Load32(7, abi.SlotGen) != 0 || next.slots.mem.Load32(lonely.slot, abi.SlotGen) != 0 {
		t.Error("a slot without a whole session is open")
	}
	for range 7 {
		if s := open(t, next, 2); s.slot == unopened.slot && s.gen <= gen {
			t.Errorf("generation %d comes again", s.gen)
		} else {
			s.Close()
		}
	}
}

func TestPinsAreRemoved(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pins); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
	if _, err := Load(flowDesc(), build(t, "UNSAFE"), quiet(Options{PinPath: pins})); err == nil {
		t.Fatal("it was loaded")
	}
	if _, err := os.Stat(pins); !os.IsNotExist(err) {
		t.Errorf("a failed Load left the folder: %v", err)
	}
}

// A successor keeps the ends of sessions; if a kind has a lifetime and an idle time, no session that is used ends
// early.
func TestAdoptEnds(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		lifetime, idle, refresh time.Duration
		expires, next           time.Duration // of the adopted session; 0: none
	}{
		{"none", 0, 0, 0, 0, 0},
		{"lifetime", time.Hour, 0, 0, time.Hour, time.Hour},
		{"lifetime, shortened", time.Hour, 0, time.Minute, time.Minute, time.Minute},
		{"an end that was given", 0, 0, time.Minute, time.Minute, time.Minute},
		{"idle", 0, time.Minute, 0, 0, time.Minute},
		{"both", time.Hour, time.Minute, 0, time.Hour, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			desc := flowDesc()
			desc.Sessions[0].Lifetime, desc.Sessions[0].Idle = tt.lifetime, tt.idle
			opt := Options{PinPath: "/sys/fs/bpf/" + pinName(t), Linger: time.Minute, routes: someHop}
			old := mustLoad(t, desc, build(t), opt)
			was := open(t, old, 1)
			if err := was.RefreshFor(tt.refresh); err != nil {
				t.Fatal(err)
			}
			if tt.idle > 0 { // as if it had been opened a while ago, and used since
				old.slots.mem.Store64(was.slot, abi.SlotDeadline, old.clock.now()+old.clock.jiffies(tt.idle/2))
			}
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			opt.Linger = 0
			now := mustLoad(t, desc, build(t), opt)
			s := now.sessions[was.slot]
			deadline := now.slots.mem.Load64(s.slot, abi.SlotDeadline)
			if end := now.clock.time(deadline); deadline != never && end.Before(s.next().Add(-time.Second)) {
				t.Errorf("the kernel ends it %v too early", s.next().Sub(end))
			}
			about := func(what string, end time.Time, want time.Duration) {
				if got := time.Until(end); end.IsZero() != (want == 0) ||
					want != 0 && (got > want+time.Second || got < want-10*time.Second) {
					t.Errorf("%s: %v from now, want %v", what, got, want)
				}
			}
			about("the end of its lifetime", s.expires, tt.expires)
			about("its next end", s.next(), tt.next)
		})
	}
}

// Remove takes away what a process has left, and nothing if one has the relay, or if there is none.
func TestRemove(t *testing.T) {
	for _, c := range []struct{ clsact, elsewhere bool }{{}, {clsact: true}, {elsewhere: true}} {
		clsact, b := c.clsact, newBench(t)
		path := "/sys/fs/bpf/" + pinName(t)
		remove := func() (removed []string, err error) {
			if c.elsewhere {
				return Remove(path)
			}
			err = b.host.Do(func() error { removed, err = Remove(path); return err })
			return removed, err
		}
		if _, err := remove(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), path) {
			t.Errorf("there is nothing: %v", err)
		}
		r := b.load(t, Options{PinPath: path, Linger: time.Minute, Clsact: clsact, routes: someHop})
		if err := r.Program("fwd").Attach("in0"); err != nil {
			t.Fatal(err)
		}
		var index int
		if err := b.host.Do(func() error {
			dev, err := net.InterfaceByName("in0")
			index = dev.Index
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s := open(t, r, 1)
		if _, err := remove(); !errors.Is(err, ErrLocked) {
			t.Errorf("a process has it: %v", err)
		}
		b.send(t, 1)
		until(t, 2*time.Second, "the relay goes on", func() bool { return must(s.Counters())[0].Packets == 1 })
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		removed, err := remove()
		want := "program fwd is detached from in0"
		if clsact {
			want = "filter fastrelay:flow:fwd is removed from in0"
		}
		if c.elsewhere { // where another interface may have the index
			want = fmt.Sprintf("program fwd is detached from interface %d of another network namespace", index)
		}
		if err != nil || !slices.Equal(removed, []string{want, "what was pinned at " + path + " is removed"}) {
			t.Errorf("%q, %v", removed, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder: %v", err)
		}
		if q := b.tc(t, "filter", "in0", "ingress"); strings.Contains(q, "fastrelay") {
			t.Errorf("left behind: %s", q)
		}
	}
	// A folder of somebody else is none of a relay.
	path := "/sys/fs/bpf/" + pinName(t)
	if err := os.MkdirAll(filepath.Join(path, "theirs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Remove(path); !errors.Is(err, ErrNotFound) {
		t.Errorf("another folder: %v", err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
