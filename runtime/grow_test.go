package runtime

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// largeDesc is flowDesc with room for more, which build(t, "FLOWS=16", "SOURCES=8") has.
func largeDesc() *abi.Desc {
	d := flowDesc()
	d.Tables[0].Size, d.Tables[1].Size, d.Sessions[0].Size, d.Slots = 16, 16, 16, 16
	d.Tables[2].Size, d.Shared = 8, 17
	return d
}

// A relay grows while packets come: each is forwarded, by the old tables or by the new ones, or passes to the stack as
// inactive, and all that was there is there.
func TestGrow(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		b := newBench(t)
		large := build(t, "FLOWS=16", "SOURCES=8")
		opt := Options{PinPath: "/sys/fs/bpf/" + pinName(t), Linger: time.Minute, Clsact: clsact, routes: someHop}
		old := b.load(t, opt)
		if err := old.Program("fwd").Attach("in0"); err != nil {
			t.Fatal(err)
		}
		was := open(t, old, 1)
		open(t, old, 2)
		source, load := []any{netip.MustParseAddr("192.0.2.7")}, []any{uint64(3)}
		if err := errors.Join(old.Table("sources").Put(source, []any{41, nil}),
			old.Table("loads").Put(load, []any{7, true})); err != nil {
			t.Fatal(err)
		}
		stop := b.flood(t)
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		load2 := func(opt Options) (r *Relay, err error) {
			err = b.host.Do(func() error { r, err = Load(largeDesc(), large, quiet(opt)); return err })
			return r, err
		}
		_, err := load2(opt)
		var le *LayoutError
		if !errors.As(err, &le) || !le.Larger || !strings.Contains(err.Error(), "run --grow") {
			t.Errorf("without Grow: %v", err)
		}
		opt.Grow = true
		now, err := load2(opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { now.Close() })
		count := func(reason string) uint64 { return must(now.Program("fwd").Count(reason)).Packets }
		before := count("sent")
		until(t, 2*time.Second, "packets go on", func() bool { return count("sent") > before+100 })
		total := uint64(stop())
		until(t, 2*time.Second, "all packets are counted", func() bool {
			return count("sent")+count("inactive") >= total // among the inactive are the hosts' own
		})
		if n := count("no_by_client"); n > 0 || count("sent") > total {
			t.Errorf("of %d packets %d are sent, and %d have found no session", total, count("sent"), n)
		}
		var s *AnySession
		for one := range now.Sessions() {
			if one.String() == was.String() {
				s = one
			}
		}
		if s == nil || must(s.Counters())[0].Packets != count("sent") || now.OpenSessions("flow") != 2 {
			t.Errorf("session %v of %d; %d packets are sent", s, now.OpenSessions("flow"), count("sent"))
		}
		row, err := now.Table("sources").Get(source...)
		if err != nil || row[0].(*Counter).Load() != 41 {
			t.Errorf("row %v, %v", row, err)
		}
		if row, err := now.Table("loads").Get(load...); err != nil || row[1] != true {
			t.Errorf("row of a table that doesn't grow: %v, %v", row, err)
		}
		for n := 3; n <= 16; n++ {
			open(t, now, n)
		}
		if err := now.Leave(time.Minute); err != nil {
			t.Fatal(err)
		}
		opt.Grow, opt.Linger = false, 0
		last, err := load2(opt)
		if err != nil {
			t.Fatal(err)
		}
		if n := last.OpenSessions("flow"); n != 16 || len(last.Program("fwd").Attachments()) != 1 {
			t.Errorf("%d sessions, attached to %v", n, last.Program("fwd").Attachments())
		}
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What can't grow is refused, and stays as it was.
func TestGrowRefused(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := mustLoad(t, largeDesc(), build(t, "FLOWS=16", "SOURCES=8"), Options{PinPath: pins, routes: someHop})
	open(t, r, 1)
	if err := r.Leave(time.Minute); err != nil {
		t.Fatal(err)
	}
	_, err := Load(flowDesc(), build(t), quiet(Options{PinPath: pins, Grow: true}))
	var le *LayoutError
	if !errors.As(err, &le) || le.Larger {
		t.Errorf("to grow smaller: %v", err)
	}
	next := mustLoad(t, largeDesc(), build(t, "FLOWS=16", "SOURCES=8"),
		Options{PinPath: pins, routes: someHop, Grow: true})
	if run(t, next, packet(1)) != forwarded {
		t.Error("the session is gone")
	}
}

// A process that dies while it grows a relay leaves some maps that are small, and copies of others: the next one goes
// on with any of these.
func TestDiesWhileGrowing(t *testing.T) {
	large := build(t, "FLOWS=16", "SOURCES=8")
	spec, err := readObject(largeDesc(), large)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{abi.MapSlots, abi.MapUsage, abi.MapShared, "tbl_by_client", "tbl_by_peer", "tbl_sources"}
	for done := range 1 << len(names) {
		path := "/sys/fs/bpf/" + pinName(t)
		r := load(t, Options{PinPath: path})
		open(t, r, 1)
		if err := r.Leave(time.Minute); err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if done&(1<<i) == 0 {
				continue
			}
			at := filepath.Join(path, "live", name)
			small, err1 := ebpf.LoadPinnedMap(at, nil)
			copied, err2 := ebpf.NewMap(spec.Maps[name])
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(copyMap(copied, small), os.Remove(at), copied.Pin(at), small.Close(),
				copied.Close()); err != nil {
				t.Fatal(err)
			}
		}
		next := mustLoad(t, largeDesc(), large, Options{PinPath: path, routes: someHop, Grow: true})
		if next.OpenSessions("flow") != 1 || run(t, next, packet(1)) != forwarded {
			t.Errorf("%06b: %d sessions", done, next.OpenSessions("flow"))
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
