package runtime

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

func TestSessionForwards(t *testing.T) {
	r := load(t, Options{})
	if got := run(t, r, packet(1)); got != passes {
		t.Fatalf("without a session: verdict %#x", got)
	}
	s := open(t, r, 1)
	before := time.Now()
	for range 3 {
		if got := run(t, r, packet(1)); got != forwarded {
			t.Fatalf("with a session: verdict %#x", got)
		}
	}
	if got := must(s.Counters()); got[0] != (Count{3, 180}) || got[1] != (Count{}) {
		t.Errorf("counters %v", got)
	}
	if at := must(s.LastUsed()); at.Before(before.Add(-50*time.Millisecond)) || at.After(time.Now().
		Add(50*time.Millisecond)) {
		t.Errorf("last used at %v, not after %v", at, before)
	}
	if got := must(r.Program("fwd").Count("sent")); got != (Count{3, 180}) {
		t.Errorf("sent: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := run(t, r, packet(1)); got != passes {
		t.Errorf("after Close: verdict %#x", got)
	}
	if n := rows(r, "by_client") + rows(r, "by_peer"); n != 0 {
		t.Errorf("%d rows remain", n)
	}
	if err := s.Close(); err != nil || !errors.Is(s.Err(), ErrClosed) {
		t.Errorf("closing again: %v, Err %v", err, s.Err())
	}
	select {
	case <-s.Done():
	default:
		t.Error("Done is open")
	}
}

func TestSlotIsReusedWithAnotherGeneration(t *testing.T) {
	r := load(t, Options{})
	first := open(t, r, 1)
	gen, slot := first.gen, first.slot
	first.Close()
	for range 8 {
		s := open(t, r, 2)
		if s.slot == slot {
			if s.gen == gen {
				t.Fatalf("slot %d came back with generation %d", slot, gen)
			}
			if got := must(s.Counters())[0]; got != (Count{}) || !must(s.LastUsed()).IsZero() {
				t.Errorf("it began with %v", got)
			}
			return
		}
		s.Close()
	}
	t.Fatal("the slot never came back")
}

func TestGenerationWraps(t *testing.T) {
	r := load(t, Options{})
	for i := range uint32(8) {
		r.slots.mem.Store32(i, abi.SlotLast, 1<<32-1)
	}
	s := open(t, r, 1)
	if s.gen != 1 || run(t, r, packet(1)) != forwarded {
		t.Errorf("generation %d", s.gen)
	}
}

func TestCollision(t *testing.T) {
	r := load(t, Options{})
	s := open(t, r, 1)
	other := flow(2)
	other[3], other[4] = flow(1)[3], flow(1)[4] // the same pair of relayed address and peer
	_, err := r.Open("flow", other...)
	var collision *CollisionError
	if !errors.As(err, &collision) || collision.Other != s || collision.Table != "by_peer" {
		t.Fatalf("error %v", err)
	}
	if !strings.Contains(err.Error(), "client=198.51.100.7:40001") {
		t.Errorf("the other session isn't named: %v", err)
	}
	if n := rows(r, "by_client"); n != 1 {
		t.Errorf("%d rows in by_client, one was there before", n)
	}
	if run(t, r, packet(1)) != forwarded || run(t, r, packet(2)) != passes {
		t.Error("the first session doesn't forward, or the second does")
	}
}

func TestSessionsFull(t *testing.T) {
	r := load(t, Options{})
	for n := range 8 {
		open(t, r, n)
	}
	_, err := r.Open("flow", flow(9)...)
	var full *FullError
	if !errors.Is(err, ErrFull) || !errors.As(err, &full) || full.Size != 8 || !strings.Contains(err.Error(),
		`"flow"`) {
		t.Fatalf("error %v", err)
	}
	var collision *CollisionError
	if _, err := r.Open("flow", flow(3)...); !errors.As(err, &collision) {
		t.Errorf("a session that is open, of full: %v", err)
	}
	n := 0
	for s := range r.Sessions() {
		n++
		s.Close()
	}
	if n != 8 {
		t.Errorf("%d sessions", n)
	}
	open(t, r, 9)
}

// The kernel refuses a row, and user space refuses to remove one: nothing forwards, and the keys can be used again.
func TestPartialFailure(t *testing.T) {
	r := load(t, Options{})
	broken := errors.New("broken")
	for _, fail := range []string{"insert by_client", "insert by_peer", "insert by_peer, delete by_client"} {
		r.fault = func(op, table string) error {
			if strings.Contains(fail, op+" "+table) {
				return broken
			}
			return nil
		}
		if _, err := r.Open("flow", flow(1)...); !errors.Is(err, broken) {
			t.Fatalf("%s: error %v", fail, err)
		}
		if run(t, r, packet(1)) != passes {
			t.Errorf("%s: a packet was forwarded", fail)
		}
		r.fault = nil
		s := open(t, r, 1)
		if run(t, r, packet(1)) != forwarded {
			t.Errorf("%s: the next session doesn't forward", fail)
		}
		r.fault = func(op, table string) error {
			if op == "delete" {
				return broken
			}
			return nil
		}
		if err := s.Close(); !errors.Is(err, broken) {
			t.Errorf("close: %v", err)
		}
		if run(t, r, packet(1)) != passes {
			t.Error("a session whose rows can't be removed forwards")
		}
		r.fault = nil
		open(t, r, 1).Close()
	}
}

func TestSessionValues(t *testing.T) {
	r := load(t, Options{})
	ap := netip.MustParseAddrPort
	tests := []struct {
		name  string
		field int
		value any
		want  string // "": it is accepted
	}{
		{"unspecified IPv4", 0, ap("0.0.0.0:1"), `"client": 0.0.0.0:1 is unspecified`},
		{"unspecified IPv6", 0, ap("[::]:1"), "is unspecified"},
		{"unspecified, mapped", 0, ap("[::ffff:0.0.0.0]:1"), "is unspecified"},
		{"loopback", 0, ap("127.0.0.1:1"), `"client": 127.0.0.1:1 is a loopback address`},
		{"loopback IPv6", 0, ap("[::1]:1"), "is a loopback address"},
		{"net 0", 0, ap("0.1.2.3:1"), "is in 0.0.0.0/8"},
		{"a peer that is a group", 4, ap("224.0.0.251:7001"), `"peer": 224.0.0.251 is a multicast address`},
		{"a peer that is a group, mapped", 4, ap("[::ffff:224.0.0.251]:7001"), "is a multicast address"},
		{"the broadcast address", 4, ap("255.255.255.255:7001"), `"peer": 255.255.255.255 is the broadcast address`},
		{"a group as a source", 3, ap("239.1.1.1:50000"), `"relayed": 239.1.1.1 is a multicast address`},
		{"class E", 4, ap("240.0.0.1:7001"), ""},
		{"zone", 0, ap("[fe80::1%eth0]:1"), "has a zone"},
		{"invalid", 0, netip.AddrPort{}, "is not an address"},
		{"type", 0, "192.0.2.1:3", "is a string, netip.AddrPort is needed"},
		{"missing", 0, nil, "is missing"},
		{"mapped", 0, ap("[::ffff:198.51.100.7]:40001"), ""},
		{"below its range", 2, 0x3fff, "is out of range: 0x4000 to 0x4fff"},
		{"above its range", 2, uint64(0x5000), "is out of range"},
		{"too wide", 2, 0x14000, "doesn't fit in 16 bits"},
		{"negative", 2, -1, "is negative"},
		{"in its range", 2, uint16(0x4fff), ""},
		{"two families in one packet", 4, ap("[2001:db8::9]:7001"), `"relayed" and "peer"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values := flow(1)
			values[tt.field] = tt.value
			s, err := r.Open("flow", values...)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				s.Close()
				return
			}
			var bad *ValueError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
		})
	}
	// A client of one family and a peer of the other are fine.
	values := flow(1)
	values[3], values[4] = ap("[2001:db8::1]:50000"), ap("[2001:db8::9]:7001")
	s, err := r.Open("flow", values...)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Values()[4]; got != values[4] {
		t.Errorf("peer %v", got)
	}
	if _, err := r.Open("flow", values[:4]...); err == nil || !strings.Contains(err.Error(),
		"4 values given, 5 needed") {
		t.Errorf("too few values: %v", err)
	}
	if _, err := r.Open("nothing"); err == nil {
		t.Error("a session of no kind was opened")
	}
}

func timed(t *testing.T, lifetime, idle time.Duration) *Relay {
	desc := flowDesc()
	desc.Sessions[0].Lifetime, desc.Sessions[0].Idle = lifetime, idle
	return mustLoad(t, desc, build(t), Options{routes: func(from, to netip.Addr) Hop { return Hop{} }})
}

func TestLifetime(t *testing.T) {
	r := timed(t, time.Second, 0)
	began := time.Now()
	s, kept := open(t, r, 1), open(t, r, 2)
	refreshed := began
	refresh := func() {
		last := refreshed
		refreshed = time.Now()
		if err := kept.Refresh(); errors.Is(err, ErrExpired) && time.Since(last) > time.Second {
			kept = open(t, r, 2) // nothing ran here for its lifetime
		} else if err != nil {
			t.Fatal(err)
		}
	}
	until(t, 10*time.Second, "the session ends", func() bool {
		refresh()
		run(t, r, packet(1)) // use doesn't prolong it
		select {
		case <-s.Done():
			return true
		default:
			return false
		}
	})
	if d := time.Since(began); d < 990*time.Millisecond {
		t.Errorf("it ended after %v", d)
	}
	if !errors.Is(s.Err(), ErrExpired) || !errors.Is(s.Refresh(), ErrExpired) {
		t.Errorf("Err %v", s.Err())
	}
	until(t, 10*time.Second, "the one that was refreshed forwards, alone", func() bool {
		refresh()
		return run(t, r, packet(2)) == forwarded && rows(r, "by_peer") == 1
	})
	if run(t, r, packet(1)) != passes {
		t.Error("the session that ended forwards")
	}
}

// The kernel ends a session on time even if user space doesn't come to it.
func TestKernelKeepsDeadline(t *testing.T) {
	r := timed(t, time.Hour, 0)
	s := open(t, r, 1)
	r.slots.mem.Store64(s.slot, abi.SlotDeadline, r.clock.now()+r.clock.jiffies(50*time.Millisecond))
	until(t, 10*time.Second, "packets pass to the stack", func() bool { return run(t, r, packet(1)) == passes })
	if s.Err() != nil {
		t.Error("user space ended it")
	}
}

func TestIdle(t *testing.T) {
	r := timed(t, 0, time.Second)
	idle, used := open(t, r, 1), open(t, r, 2)
	began, last := time.Now(), time.Time{}
	until(t, 10*time.Second, "the idle session ends", func() bool {
		last = time.Now()
		if run(t, r, packet(2)) != forwarded {
			t.Fatal("the session in use ended")
		}
		return idle.Err() != nil && time.Since(began) > 2200*time.Millisecond
	})
	receive(t, "the session in use ends", used.Done())
	if d := time.Since(last); d < 900*time.Millisecond {
		t.Errorf("the session in use ended %v after its last packet", d)
	}
}

func TestConcurrentSessions(t *testing.T) {
	r := load(t, Options{})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 50 {
				s, err := r.Open("flow", flow(n)...)
				if err != nil {
					t.Error(err)
					return
				}
				s.Counters()
				s.LastUsed()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range 200 {
		run(t, r, packet(3))
		for s := range r.Sessions() {
			_ = s.String()
		}
		for range r.Table("by_client").All() {
		}
	}
	wg.Wait()
	if n := rows(r, "by_client") + rows(r, "by_peer"); n != 0 || len(r.slots.free) != 8 {
		t.Errorf("%d rows and %d free slots at the end", n, len(r.slots.free))
	}
}
