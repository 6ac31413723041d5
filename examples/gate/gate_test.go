package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/caddy"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// few are quotas that a test exceeds at once.
var few = gate.Quotas{
	Newcomers: runtime.Rate{PerSecond: 20, Burst: 40}, Strays: runtime.Rate{PerSecond: 20, Burst: 40},
	Elsewhere: runtime.Rate{PerSecond: 20, Burst: 40},
}

var at = netip.AddrPortFrom(lab.Addr, lab.Port)

// pin is a folder for the gate of a test, which is removed with it.
func pin(t *testing.T) string {
	path := filepath.Join("/sys/fs/bpf", fmt.Sprintf("gate-test-%d", time.Now().UnixNano()))
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return path
}

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// start makes a lab with a server behind a gate.
func start(t *testing.T, hook runtime.Hook, v lab.Variant, change func(*gate.Config)) (*lab.Lab, *lab.Server) {
	t.Helper()
	l, err := lab.New(testnet.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	c := gate.Config{
		Interfaces: []string{"eth0", "eth1"}, Hook: hook, Quotas: few, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	var s *lab.Server
	err = l.Server.Do(func() error {
		s, err = lab.Serve(v, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, s
}

func load(l *lab.Lab) lab.Load {
	return lab.Load{Bytes: 4096, Reconnect: 25, Host: l.Clients, Server: at}
}

// clients has clients at work for a while, and until they have made ten requests each.
func clients(t *testing.T, l lab.Load, d time.Duration) {
	t.Helper()
	for requests := 0; requests < 10*lab.Clients; {
		ctx, stop := context.WithTimeout(t.Context(), d)
		r, err := l.Run(ctx)
		stop()
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed > 0 {
			t.Fatalf("%d of %d requests failed: %v", r.Failed, r.Requests, r.Err)
		}
		requests += r.Requests
	}
}

// Each attack's packets are dropped under its reason, and all requests succeed, of connections that move to another
// port and of new ones.
func TestAttacks(t *testing.T) { hooks.Each(t, true, testAttacks) }

func testAttacks(t *testing.T, hook runtime.Hook) {
	l, s := start(t, hook, lab.Kernel, nil)
	all := load(l)
	all.Move = true
	clients(t, all, time.Second)
	before, err := s.Gate.Count()
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"over_source", "over_network", "over_total", "over_newcomers", "stray"} {
		if before[reason] > 0 {
			t.Errorf("%d packets of clients were dropped as %s", before[reason], reason)
		}
	}
	for attack, reasons := range map[lab.Attack][]string{
		lab.Handshakes: {"over_source", "over_network", "over_newcomers"},
		lab.Initials:   {"over_network", "over_newcomers"},
		lab.Garbage:    {"too_short", "stray"}, lab.UnknownIDs: {"stray"},
		lab.Flood: {"too_short", "stray", "over_network", "over_newcomers"},
	} {
		t.Run(string(attack), func(t *testing.T) {
			if hook != runtime.HookTC && attack != lab.Flood { // which has packets of all kinds
				needs.All(t)
			}
			before, err := s.Gate.Count()
			if err != nil {
				t.Fatal(err)
			}
			beforeAtXDP, err := s.Gate.CountAtXDP()
			if err != nil {
				t.Fatal(err)
			}
			stop, err := l.Attack(lab.Rates{attack: 1500})
			if err != nil {
				t.Fatal(err)
			}
			clients(t, all, time.Second)
			sent, err := stop()
			if err != nil {
				t.Fatal(err)
			}
			after, err := s.Gate.Count()
			if err != nil {
				t.Fatal(err)
			}
			dropped := uint64(0)
			for _, reason := range reasons {
				dropped += after[reason] - before[reason]
			}
			// What buckets admit passes: the burst, and the rate of about a second.
			if dropped > sent || dropped+400 < sent {
				t.Errorf("%d packets were sent, and %d were dropped as %v: %v", sent, dropped, reasons, after)
			}
			atXDP, err := s.Gate.CountAtXDP()
			if err != nil {
				t.Fatal(err)
			}
			early := uint64(0)
			for _, reason := range reasons {
				early += atXDP[reason] - beforeAtXDP[reason]
			}
			// What a bucket had left for a packet at XDP, another one has spent if several come to tc/ingress together.
			if hook == runtime.HookXDP && 2*early < dropped || hook == runtime.HookTC && early > 0 {
				t.Errorf("%d packets were dropped, %d of them at XDP: %v", dropped, early, atXDP)
			}
		})
	}
}

// Connection IDs are announced before they are used, and removed when their connections end.
func TestIDs(t *testing.T) { hooks.Each(t, true, testIDs) }

func testIDs(t *testing.T, hook runtime.Hook) {
	l, s := start(t, hook, lab.Kernel, nil)
	c, err := lab.Dial(l.Clients, lab.ClientAddr(0), at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Get(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	counts, err := s.Gate.Count()
	if err != nil {
		t.Fatal(err)
	}
	if counts["stray"]+counts["too_short"] > 0 {
		t.Error(counts)
	}
	err = testnet.Until(2*time.Second, "the client has a quota of its own", func() bool {
		rate, ok := s.Gate.Quota(lab.ClientAddr(0))
		return ok && rate == gate.Defaults.Source
	})
	if err != nil {
		t.Error(err)
	}
}

// A network has a quota of its own, also inside of one that has a row already.
func TestNetworks(t *testing.T) {
	needs.Root(t)
	relay, err := gaterelay.Load(gaterelay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	for i, text := range []string{"0.0.0.0/0", "192.0.2.0/24", "192.0.0.0/16"} {
		p := netip.MustParsePrefix(text)
		for range 2 { // again: the row stays what it is
			if err := relay.Networks.Put(p, gaterelay.NetworksRow{}); err != nil {
				t.Fatal(err)
			}
		}
		row, err := relay.Networks.Get(p)
		if err != nil {
			t.Fatal(err)
		}
		if rate := row.New.Rate(); rate != (runtime.Rate{}) {
			t.Errorf("%s begins with %v", text, rate)
		}
		row.New.SetRate(runtime.Rate{PerSecond: uint64(i + 1), Burst: 1})
	}
	if _, err := relay.Networks.DeleteMany(netip.MustParsePrefix("192.0.2.0/24")); err != nil {
		t.Fatal(err)
	}
	row, err := relay.Networks.Get(netip.MustParsePrefix("192.0.0.0/16"))
	if err != nil || row.New.Rate().PerSecond != 3 {
		t.Error(row.New, err)
	}
}

// Quotas change and the gate is replaced while clients run, and no request fails.
func TestReplace(t *testing.T) { hooks.Each(t, false, testReplace) }

func testReplace(t *testing.T, hook runtime.Hook) {
	config := gate.Config{}
	l, s := start(t, hook, lab.Kernel, func(c *gate.Config) {
		c.PinPath = pin(t)
		config = *c
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for i := 0; i < 5 || ctx.Err() == nil; i++ {
				q := few
				q.Newcomers.PerSecond += uint64(i)
				s.Gate.SetQuotas(q)
				c := config
				c.Quotas, c.Closed = q, i%2 == 0
				if err := l.Server.Do(func() error { return s.Gate.Replace(c) }); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	all := load(l)
	all.Move = true
	clients(t, all, 3*time.Second)
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A replacement that fails ends nothing: the kernel goes on, and another one takes over. One that comes after the end
// of the gate is refused, since nothing would close it.
func TestReplaceFails(t *testing.T) { hooks.Each(t, true, testReplaceFails) }

func testReplaceFails(t *testing.T, hook runtime.Hook) {
	config := gate.Config{}
	l, s := start(t, hook, lab.Kernel, func(c *gate.Config) {
		c.PinPath = pin(t)
		config = *c
	})
	replace := func(change func(*gate.Config)) error {
		c := config
		change(&c)
		return l.Server.Do(func() error { return s.Gate.Replace(c) })
	}
	for what, change := range map[string]func(*gate.Config){
		"no folder for the control socket": func(c *gate.Config) { c.Control.Socket = "/dev/null/gate.sock" },
		"no such interface":                func(c *gate.Config) { c.Interfaces = []string{"eth9"} },
	} {
		if err := replace(change); err == nil {
			t.Fatalf("%s, and the gate was replaced", what)
		}
		if _, err := s.Gate.Count(); !errors.Is(err, runtime.ErrClosed) {
			t.Errorf("%s: the counters of a relay that is closed: %v", what, err)
		}
		if err := replace(func(*gate.Config) {}); err != nil {
			t.Fatalf("after %s: %v", what, err)
		}
		client, err := lab.Dial(l.Clients, lab.ClientAddr(0), at)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Get(t.Context(), 100); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
		client.Close()
	}
	if err := s.Gate.Close(); err != nil {
		t.Error(err)
	}
	if err := replace(func(*gate.Config) {}); !errors.Is(err, runtime.ErrClosed) {
		t.Errorf("a gate that is closed was replaced: %v", err)
	}
}

// What isn't a port is not taken for another one.
func TestPort(t *testing.T) {
	for text, want := range map[string]uint16{"443": 443, "65535": 65535, "0": 0, "65536": 0, "65979": 0, "-1": 0} {
		if got, err := port(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%s: port %d, %v", text, got, err)
		}
	}
}

// A gate in a process of its own, which then dies: new connections are refused, or pass, as its setting says. Those
// that exist go on.
func TestDeath(t *testing.T) { hooks.Each(t, true, testDeath) }

func testDeath(t *testing.T, hook runtime.Hook) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed %v", closed), func(t *testing.T) {
			l, _ := start(t, hook, lab.NoGate, nil)
			c := gate.Config{
				Interfaces: []string{"eth0", "eth1"}, Hook: hook, Watch: true, IDLength: 4, Closed: closed,
				PinPath: pin(t),
			}
			if !closed { // what the process would refuse
				c.Quotas.Newcomers = runtime.Rate{PerSecond: 1, Burst: 1}
			}
			p, err := l.Start(lab.Watcher, c)
			if err != nil {
				t.Fatal(err)
			}
			old, err := lab.Dial(l.Clients, lab.ClientAddr(0), at)
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			if err := old.Get(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
			if !closed { // while the process lives, the attack takes what newcomers may have
				stop, err := l.Attack(lab.Rates{lab.Initials: 200})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if _, err := stop(); err != nil {
						t.Error(err)
					}
				}()
			}
			p.Kill()
			refused := func() bool {
				c, err := lab.Dial(l.Clients, lab.ClientAddr(1), at)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ctx, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				return c.Get(ctx, 100) != nil
			}
			if closed {
				err = testnet.Until(5*time.Second, "new connections are refused", refused)
			} else {
				err = testnet.Until(5*time.Second, "new connections pass", func() bool { return !refused() })
			}
			if err != nil {
				t.Error(err)
			}
			if err := old.Get(t.Context(), 100); err != nil {
				t.Errorf("a connection from before: %v", err)
			}
			err = l.Server.Do(func() error {
				successor, err := gate.Start(c)
				if err != nil {
					return err
				}
				atXDP, err := successor.CountAtXDP()
				if (atXDP["closed"] > 0) != (closed && hook == runtime.HookXDP) {
					t.Errorf("at XDP: %v", atXDP)
				}
				return errors.Join(err, successor.Close())
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Caddy knows nothing of the gate that watches it. Clients connect, use further connection IDs, and go on under attack;
// connections that have ended are forgotten.
func TestCaddy(t *testing.T) {
	needs.All(t)
	hooks.Each(t, true, testCaddy)
}

func testCaddy(t *testing.T, hook runtime.Hook) {
	l, err := lab.New(testnet.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "4096"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := caddy.Start(t.Context(), l.Server, "gate.test", lab.Addr, root)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var g *gate.Gate
	err = l.Server.Do(func() error {
		g, err = gate.Start(gate.Config{
			Interfaces: []string{"eth0", "eth1"}, Hook: hook, Watch: true, IDLength: 4, Idle: 2 * time.Second,
			Quotas: few,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	clients(t, load(l), time.Second)
	stop, err := l.Attack(lab.Rates{lab.UnknownIDs: 500, lab.Garbage: 500, lab.Initials: 500, lab.Handshakes: 500})
	if err != nil {
		t.Fatal(err)
	}
	clients(t, load(l), 2*time.Second)
	sent, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	dropped, err := g.Dropped()
	if err != nil || dropped < sent*3/4 {
		t.Errorf("%d packets of %d were dropped: %v", dropped, sent, err)
	}
	if rate, ok := g.Quota(lab.ClientAddr(0)); !ok || rate != gate.Defaults.Source && rate != gate.Defaults.Best {
		t.Errorf("the quota of a client is %v", rate)
	}
	err = testnet.Until(5*time.Second, "connections are forgotten", func() bool { return g.Flows() == 0 })
	if err != nil {
		t.Errorf("%v: %d are left", err, g.Flows())
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
