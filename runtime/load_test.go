package runtime

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

// loaded are the maps that the kernel holds and that have names of this relay's. Other processes may have some, and
// those of tests before may go yet. A number comes once.
func loaded(t *testing.T) map[ebpf.MapID]bool {
	t.Helper()
	all := map[ebpf.MapID]bool{}
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if err != nil {
			break
		}
		id = next
		if m, err := ebpf.NewMapFromID(id); err == nil {
			if info, err := m.Info(); err == nil && (strings.HasPrefix(info.Name, "tbl_things") ||
				info.Name == "tbl_by_client") {
				all[id] = true
			}
			m.Close()
		}
	}
	return all
}

func TestLoadRefuses(t *testing.T) {
	object := build(t)
	tests := []struct {
		name   string
		change func(d *abi.Desc, opt *Options)
		object []byte
		want   []string
	}{
		{name: "no object", object: []byte{}, want: []string{"0 bytes can't be read"}},
		{name: "not an object", object: []byte("hello, world"), want: []string{"damaged or belongs to another relay"}},
		{name: "truncated by half", object: object[:len(object)/2], want: []string{"damaged"}},
		{name: "truncated at the end", object: object[:len(object)-100], want: []string{"damaged"}},
		{name: "another table", change: func(d *abi.Desc, _ *Options) {
			d.Tables[2].Name = "sinks"
		}, want: []string{"no map tbl_sinks", "build both again"}},
		{name: "another key", change: func(d *abi.Desc, _ *Options) {
			d.Tables[2].KeySize = 20
		}, want: []string{"tbl_sources has keys of 16 and values of 8 bytes, not 20 and 8"}},
		{name: "another size", change: func(d *abi.Desc, _ *Options) {
			d.Tables[2].Size = 5
		}, want: []string{"tbl_sources has 4 entries, not 5"}},
		{name: "another kind", change: func(d *abi.Desc, _ *Options) {
			d.Tables[2].Kind = abi.TableLRU
		}, want: []string{"of type Hash, not LRUHash"}},
		{name: "more reasons", change: func(d *abi.Desc, _ *Options) {
			d.Programs[1].Reasons = []abi.Reason{{Number: 2}}
		}, want: []string{"fr_reasons has 5 entries, not 8"}},
		{name: "another program", change: func(d *abi.Desc, _ *Options) {
			d.Programs[0].Name = "gone"
		}, want: []string{"no program prog_gone"}},
		{name: "another setting", change: func(d *abi.Desc, _ *Options) {
			d.Settings[0].Name = "gone"
		}, want: []string{"no variable set_gone"}},
		{name: "a setting of another size", change: func(d *abi.Desc, _ *Options) { d.Settings[0].Size = 4 },
			want: []string{"set_port has 2 bytes, not 4"}},
		{name: "unknown setting", change: func(_ *abi.Desc, o *Options) { o.Settings = map[string]any{"prot": 1} },
			want: []string{`no setting "prot"`}},
		{name: "setting out of range", change: func(_ *abi.Desc, o *Options) {
			o.Settings = map[string]any{"port": 60001}
		}, want: []string{`setting "port": 60001 is out of range: 0 to 60000`}},
		{name: "setting too wide", change: func(_ *abi.Desc, o *Options) { o.Settings = map[string]any{"port": 70000} },
			want: []string{"doesn't fit in 16 bits"}},
		{name: "setting of another type", change: func(_ *abi.Desc, o *Options) {
			o.Settings = map[string]any{"self": "::1"}
		}, want: []string{"is a string, netip.Addr is needed"}},
		{name: "setting left out", change: func(d *abi.Desc, _ *Options) { d.Settings[0].Required = true },
			want: []string{"has no default and must be given"}},
		{name: "short lease", change: func(_ *abi.Desc, o *Options) {
			o.Lease = time.Millisecond
		}, want: []string{"too short"}},
		{name: "linger without pins", change: func(_ *abi.Desc, o *Options) {
			o.Linger = time.Second
		}, want: []string{"needs a PinPath"}},
		{name: "pins elsewhere", change: func(_ *abi.Desc, o *Options) {
			o.PinPath = t.TempDir()
		}, want: []string{"not in a BPF file system", "/sys/fs/bpf"}},
		{name: "rejected by the verifier", object: build(t, "UNSAFE"),
			want: []string{"verifier rejects it", "invalid access to packet"}},
	}
	before := loaded(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, opt := flowDesc(), Options{}
			if tt.change != nil {
				tt.change(d, &opt)
			}
			if tt.object == nil {
				tt.object = object
			}
			r, err := Load(d, tt.object, quiet(opt))
			if err == nil {
				r.Close()
				t.Fatal("it was loaded")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q doesn't say %q", err, want)
				}
			}
			if strings.Contains(strings.ToLower(tt.name), "verifier") {
				var ve *ebpf.VerifierError
				var ke *KernelError
				if !errors.As(err, &ve) || !errors.As(err, &ke) || len(ve.Log) == 0 {
					t.Errorf("no log in %#v", err)
				}
			}
		})
	}
	after := loaded(t)
	maps.DeleteFunc(after, func(id ebpf.MapID, _ bool) bool { return before[id] })
	until(t, 10*time.Second, "the kernel frees what was loaded", func() bool {
		now := loaded(t)
		maps.DeleteFunc(after, func(id ebpf.MapID, _ bool) bool { return !now[id] })
		return len(after) == 0
	})
}

func TestTooOldKernel(t *testing.T) {
	d := flowDesc()
	d.Kernel = [2]int{99, 7}
	// The kernel has the last word: what it takes, it takes.
	mustLoad(t, d, build(t), Options{}).Close()
	_, err := Load(d, build(t, "UNSAFE"), quiet(Options{}))
	var ke *KernelError
	if !errors.As(err, &ke) || !strings.Contains(err.Error(), "it needs Linux 99.7 or newer, this is ") {
		t.Errorf("error %v", err)
	}
}

func TestSettings(t *testing.T) {
	b := packet(1)
	tests := []struct {
		name     string
		settings map[string]any
		reason   string
	}{
		{"defaults", nil, "no_by_client"},
		{"on, for another port", map[string]any{"on": true, "port": uint16(3477)}, "no_by_client"},
		{"on, for the port", map[string]any{"on": true}, "port"},
		{
			"on, for the port, self unspecified",
			map[string]any{"on": true, "port": 3478, "self": netip.IPv6Unspecified()}, "no_by_client",
		},
		{"port 0", map[string]any{"on": true, "port": 0}, "no_by_client"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := load(t, Options{Settings: tt.settings})
			run(t, r, b)
			for reason, n := range reasons(r, "fwd") {
				if want := reason == tt.reason; (n == 1) != want {
					t.Errorf("%s: %d packets", reason, n)
				}
			}
		})
	}
}

func TestLease(t *testing.T) {
	r := load(t, Options{Lease: 800 * time.Millisecond})
	open(t, r, 1)
	first := r.lease.Load64(0, abi.LeaseDeadline)
	until(t, 10*time.Second, "it is renewed for two leases", func() bool {
		end := r.lease.Load64(0, abi.LeaseDeadline)
		forwards := run(t, r, packet(1)) == forwarded
		// A process that is stopped renews nothing, so the lease may lapse for a moment.
		if now, err := r.clock.read(); err != nil || !forwards && now <= end {
			t.Fatalf("at %d nothing is forwarded, and the lease lasts until %d: %v", now, end, err)
		}
		return end >= first+2*r.clock.jiffies(r.opt.Lease)
	})
	fwd := r.Program("fwd").Kernel()
	if fwd, err := fwd.Clone(); err != nil {
		t.Fatal(err)
	} else {
		defer fwd.Close()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		// The program may still be running somewhere: it forwards nothing.
		if ret, err := fwd.Run(&ebpf.RunOptions{Data: packet(1)}); err != nil || ret != passes {
			t.Errorf("after Close: verdict %#x, %v", ret, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestClock(t *testing.T) {
	r := load(t, Options{})
	// The clock is read between two looks at the time, however far apart these are on a busy machine.
	read := func() (from, to time.Time, jiffies uint64) {
		from = time.Now()
		jiffies, err := r.clock.read()
		if err != nil {
			t.Fatal(err)
		}
		return from, time.Now(), jiffies
	}
	from, to, first := read()
	until(t, 10*time.Second, "half a second passes", func() bool { return time.Since(to) > 500*time.Millisecond })
	said := r.clock.now()
	from2, to2, now := read()
	if then := r.clock.now(); now+2 < said || now > then+2 {
		t.Errorf("%d to %d jiffies were extrapolated, %d passed", said-first, then-first, now-first)
	}
	hz := float64(r.clock.hz)
	if n := float64(now - first); n < 0.95*hz*from2.Sub(to).Seconds() || n > 1.05*hz*to2.Sub(from).Seconds() {
		t.Errorf("%v jiffies in %v to %v, at %v a second", n, from2.Sub(to), to2.Sub(from), hz)
	}
	if at := r.clock.time(now); at.Before(from2.Add(-100*time.Millisecond)) || at.After(to2.Add(20*time.Millisecond)) {
		t.Errorf("the clock says %v, between %v and %v", at, from2, to2)
	}
}

func TestClosedRelay(t *testing.T) {
	r := load(t, Options{})
	s := open(t, r, 1)
	sources := r.Table("sources")
	key := []any{netip.MustParseAddr("192.0.2.7")}
	if err := sources.Put(key, []any{nil, nil}); err != nil {
		t.Fatal(err)
	}
	row, err := sources.Get(key...)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if row[0].(*Counter).Add(1) != 0 {
		t.Error("a counter of a closed relay counts")
	}
	if _, err := r.Open("flow", flow(2)...); !errors.Is(err, ErrClosed) {
		t.Errorf("Open: %v", err)
	}
	if err := sources.Put(key, []any{nil, nil}); !errors.Is(err, ErrClosed) {
		t.Errorf("Put: %v", err)
	}
	if _, err := sources.Get(key...); err == nil {
		t.Error("Get has no error")
	}
	if err := r.Program("fwd").Attach("lo"); !errors.Is(err, ErrClosed) {
		t.Errorf("Attach: %v", err)
	}
	if err := r.Program("fwd").Detach("lo"); err != nil {
		t.Errorf("Detach: %v", err)
	}
	if err := s.Close(); err != nil || !errors.Is(s.Err(), ErrClosed) {
		t.Errorf("session: %v, Err %v", err, s.Err())
	}
	if got, err := s.Counters(); !errors.Is(err, ErrClosed) {
		t.Errorf("counters %v, %v", got, err)
	}
	if got, err := r.Program("fwd").Count("sent"); !errors.Is(err, ErrClosed) {
		t.Errorf("reason %v, %v", got, err)
	}
}

// closing is a [Control] that calls itself when it is closed.
type closing func()

func (closing) Listen(*abi.Desc) error { return nil }
func (closing) Serve(*Relay)           {}
func (c closing) Close() error         { c(); return nil }

// Who closes a relay that is just being closed waits until it has ended.
func TestCloseTwice(t *testing.T) {
	var r *Relay
	second := make(chan error, 1)
	waits := regexp.MustCompile(`(?m)^goroutine .* \[chan receive.*\]:\n.*\(\*Relay\)\.close\(`)
	stacks := make([]byte, 1<<20)
	r = load(t, Options{Control: closing(func() {
		if r == nil { // Load has failed
			return
		}
		go func() { second <- r.Close() }()
		until(t, 5*time.Second, "the second call waits, or has returned", func() bool {
			return len(second) > 0 || waits.Match(stacks[:goruntime.Stack(stacks, true)])
		})
		if len(second) > 0 {
			t.Error("it has returned before the relay has ended")
		}
	})})
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := receive(t, "the end of the second call", second); err != nil {
		t.Error(err)
	}
}

// A process without rights gets an error that names them.
func TestRights(t *testing.T) {
	out := runChild(t, "unprivileged")
	if !strings.Contains(out, "lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON") || !strings.Contains(out,
		"CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON") {
		t.Errorf("error %q", out)
	}
}

func TestObjectsOfOtherFolders(t *testing.T) {
	// An object is bytes: it may have come from anywhere.
	file := filepath.Join(t.TempDir(), "o")
	if err := os.WriteFile(file, build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	object, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mustLoad(t, flowDesc(), object, Options{})
}

// Reading goes on in other goroutines while the relay is closed.
func TestCloseWhileReading(t *testing.T) {
	for range 20 {
		r := load(t, Options{})
		s := open(t, r, 1)
		for n := range byte(4) {
			if err := r.Table("sources").Put([]any{netip.AddrFrom4([4]byte{10, 0, 0, n})}, []any{1, nil}); err != nil {
				t.Fatal(err)
			}
		}
		started := make(chan struct{}, 6)
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { r.Program("fwd").Count("sent") },
			func() {
				for row, err := range r.Table("sources").All() {
					if err == nil {
						row.Value[0].(*Counter).Add(1)
					}
				}
			},
			func() { r.Table("by_peer").Get(flow(1)[4], flow(1)[3]) },
			func() { s.Counters(); s.LastUsed(); s.Expires() },
			func() {
				if s, err := r.Open("flow", flow(2)...); err == nil {
					s.Close()
				}
			},
			func() { r.RefreshRoutes(bg); r.DetachAll() },
		} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range 30 {
					f()
					if i == 3 {
						started <- struct{}{}
					}
				}
			}()
		}
		<-started
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
