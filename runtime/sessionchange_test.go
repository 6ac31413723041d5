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

// changed returns the values of flow n with another peer, or another client.
func changed(n int, field int, to string) []any {
	values := flow(n)
	values[field] = netip.MustParseAddrPort(to)
	return values
}

// A session that is changed forwards by its new values, and keeps its identity, its counters and its end.
func TestSessionChange(t *testing.T) {
	r := load(t, Options{})
	s := open(t, r, 1)
	id := s.ID()
	if run(t, r, packet(1)) != forwarded {
		t.Fatal("it doesn't forward")
	}
	// A value that is no key of the row that packets find, a key of it, and all of them.
	for i, values := range [][]any{changed(1, 4, "203.0.113.9:7100"), flow(2), flow(1)} {
		if err := s.Change(values...); err != nil {
			t.Fatal(err)
		}
		n := 1 + i%2
		if run(t, r, packet(n)) != forwarded || run(t, r, packet(3-n)) != passes {
			t.Errorf("change %d: packets go by other values", i)
		}
		for v := range values {
			if s.Values()[v] != must(r.Session(id)).Values()[v] {
				t.Errorf("change %d: the values are %v", i, s.Values())
			}
		}
		if rows(r, "by_client") != 1 || rows(r, "by_peer") != 1 || r.OpenSessions("flow") != 1 {
			t.Errorf("change %d: rows remain", i)
		}
		info := must(r.Table("by_client").Row(values[0], values[1], values[2]))
		if info.Session != s {
			t.Errorf("change %d: the row is that of %v", i, info.Session)
		}
	}
	if got := must(s.Counters())[0]; got.Packets != 4 || s.ID() != id {
		t.Errorf("it counted %v, and its ID is %#x, was %#x", got, s.ID(), id)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Change(flow(2)...); !errors.Is(err, ErrClosed) || rows(r, "by_client")+rows(r, "by_peer") != 0 {
		t.Errorf("a session that is over: %v", err)
	}
}

// A change that can't be made leaves all as it was.
func TestSessionChangeRefused(t *testing.T) {
	r := load(t, Options{})
	s, other := open(t, r, 1), open(t, r, 2)
	same := func(why string) {
		t.Helper()
		if run(t, r, packet(1)) != forwarded || run(t, r, packet(2)) != forwarded || run(t, r, packet(3)) != passes {
			t.Errorf("%s: packets don't go as before", why)
		}
		if rows(r, "by_client") != 2 || rows(r, "by_peer") != 2 || s.Values()[2] != uint64(0x4001) {
			t.Errorf("%s: rows or values changed: %v", why, s.Values())
		}
	}
	taken := flow(3) // its client is new, and the rest is another session's
	taken[3], taken[4] = flow(2)[3], flow(2)[4]
	var collision *CollisionError
	if err := s.Change(taken...); !errors.As(err, &collision) || collision.Other != other {
		t.Errorf("another session's key: %v", err)
	}
	same("another session's key")
	var bad *ValueError
	if err := s.Change(changed(3, 4, "127.0.0.1:1")...); !errors.As(err, &bad) {
		t.Errorf("a wrong value: %v", err)
	}
	same("a wrong value")
	broken := errors.New("broken")
	for _, op := range []string{"insert by_client", "insert by_peer", "update by_client", "update by_peer"} {
		r.fault = func(did, table string) error {
			if did+" "+table == op {
				return broken
			}
			return nil
		}
		values := flow(3)
		if strings.HasPrefix(op, "update") { // one row stays where it is
			values = flow(1)
			values[2] = 0x4009
			if op == "update by_client" {
				values = changed(1, 4, "203.0.113.9:7100")
			}
		}
		err := s.Change(values...)
		r.fault = nil
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", op, err)
		}
		same(op)
	}
	// The row that was overwritten can't be restored: then the session is over, and nothing forwards by half of it.
	r.fault = func(op, table string) error {
		if op == "update" && table == "by_client" {
			r.fault = func(op, _ string) error {
				if op != "delete" {
					return broken
				}
				return nil
			}
		}
		return nil
	}
	err := s.Change(changed(1, 4, "203.0.113.9:7100")...)
	if !errors.Is(err, broken) || !errors.Is(s.Err(), ErrClosed) {
		t.Errorf("it can't be restored: %v, %v", err, s.Err())
	}
	r.fault = nil
	if run(t, r, packet(1)) != passes || rows(r, "by_client") != 1 || rows(r, "by_peer") != 1 {
		t.Error("half of a session forwards")
	}
}

// Nothing of a session whose rows can't be restored is followed: its keys may be another's by then.
func TestSessionChangeFollowsNothing(t *testing.T) {
	desc := flowDesc()
	rows := &desc.Sessions[0].Rows
	*rows = append(*rows, abi.Row{Table: 1, Key: []int{3, 4}, Value: []int{0, 1, 2}})
	r := mustLoad(t, desc, build(t), Options{routes: someHop})
	s := open(t, r, 1)
	broken, updates := errors.New("broken"), 0
	r.fault = func(op, _ string) error {
		if op == "update" {
			if updates++; updates > 2 { // the third row, and then the first one again
				return broken
			}
		}
		return nil
	}
	if err := s.Change(flow(1)...); !errors.Is(err, broken) || !errors.Is(s.Err(), ErrClosed) {
		t.Fatalf("it can't be restored: %v, %v", err, s.Err())
	}
	if len(r.hops.byKey) != 0 {
		t.Errorf("%d hops are followed", len(r.hops.byKey))
	}
}

// Whatever is changed meanwhile, others read a session's values.
func TestSessionChangeConcurrently(t *testing.T) {
	r := load(t, Options{})
	s := open(t, r, 1)
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Go(func() {
			for range 100 {
				if err := s.Change(changed(1, 4, []string{"203.0.113.9:7100", "203.0.113.9:7200"}[n])...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		if v := s.Values(); v[0] != flow(1)[0] || s.String() == "" {
			t.Errorf("its values are %v", v)
		}
		run(t, r, packet(1))
	}
	wg.Wait()
	if rows(r, "by_client") != 1 || rows(r, "by_peer") != 1 || run(t, r, packet(1)) != forwarded {
		t.Error("rows remain, or none does")
	}
}

// A session that is refreshed for a time ends after it, in the kernel as well, used or not.
func TestRefreshFor(t *testing.T) {
	r := load(t, Options{})
	s, kept := open(t, r, 1), open(t, r, 2)
	const d = 500 * time.Millisecond
	began := time.Now()
	if err := s.RefreshFor(d); err != nil {
		t.Fatal(err)
	}
	refreshed := time.Now()
	if err := kept.RefreshFor(time.Hour); err != nil {
		t.Fatal(err)
	}
	if end := s.Expires(); end.Before(began.Add(d)) || end.After(refreshed.Add(d)) {
		t.Errorf("it ends at %v; it was refreshed for %v between %v and %v", end, d, began, refreshed)
	}
	until(t, 10*time.Second, "the session ends", func() bool { run(t, r, packet(1)); return s.Err() != nil })
	if ended := time.Since(began); ended < d || !errors.Is(s.Err(), ErrExpired) {
		t.Errorf("it ended after %v: %v", ended, s.Err())
	}
	if run(t, r, packet(1)) != passes || run(t, r, packet(2)) != forwarded {
		t.Error("the session that ended forwards, or the other one doesn't")
	}
	if err := kept.Refresh(); err != nil || !kept.Expires().IsZero() || len(r.expiries) != 0 {
		t.Errorf("a kind without a lifetime has no end: %v, %v", err, kept.Expires())
	}
	timed := timed(t, time.Second, 0)
	short := open(t, timed, 1)
	if err := short.RefreshFor(time.Hour); err != nil || time.Until(short.Expires()) > time.Second {
		t.Errorf("longer than its kind's lifetime: %v, %v", err, short.Expires())
	}
}
