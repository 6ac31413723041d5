//go:build linux

package glue_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// caseOf builds the relay of a golden case; load loads it, in a network namespace where everything has a next hop.
func caseOf(t *testing.T, name string) (load func(runtime.Options) (*runtime.Relay, error)) {
	t.Helper()
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), filepath.Join("../../golden", name, "spec.cue"), build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	net := testnet.Start(t)
	here, err1 := net.Host("relay")
	far, err2 := net.Host("far")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	in, _, err := net.Join(here, "in0", far, "out0")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{in.AddAddr("192.0.2.1/24"), in.AddRoute("0.0.0.0/0", "192.0.2.254")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	desc := glue.Desc(built.Plan)
	return func(opt runtime.Options) (relay *runtime.Relay, err error) {
		err = here.Do(func() error {
			relay, err = runtime.Load(&desc, built.Object(), opt)
			return err
		})
		return relay, err
	}
}

// pinsOf is a folder for pins, which is removed after the test.
func pinsOf(t *testing.T) string {
	pins := fmt.Sprintf("/sys/fs/bpf/fastrelay_test_%s_%d", strings.ToLower(t.Name()), os.Getpid())
	t.Cleanup(func() {
		if err := os.RemoveAll(pins); err != nil {
			t.Error(err)
		}
	})
	return pins
}

// successor closes a relay so that another process can take it over, loads that, and closes it in the end.
func successor(t *testing.T, r *runtime.Relay, load func(runtime.Options) (*runtime.Relay, error),
	opt runtime.Options) *runtime.Relay {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	opt.Linger = 0
	next, err := load(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	})
	return next
}

// packetOf runs a program on a packet without a payload to speak of, and returns under which reason it was counted.
func packetOf(t *testing.T, r *runtime.Relay, program, from, to string, payload ...byte) string {
	t.Helper()
	frame, err := turnlab.UDPFrame(make(net.HardwareAddr, 6), make(net.HardwareAddr, 6), netip.MustParseAddrPort(from),
		netip.MustParseAddrPort(to), append([]byte("hello"), payload...))
	if err != nil {
		t.Fatal(err)
	}
	p := r.Program(program)
	before := must(p.Counts())
	if _, err := bpftest.Run(p.Kernel(), ebpf.RunOptions{Data: frame, Repeat: 1}); err != nil {
		t.Fatal(err)
	}
	for i, c := range must(p.Counts()) {
		if c.Packets > before[i].Packets {
			return p.Desc().Reasons[i].Name
		}
	}
	return ""
}

// keysOf are the keys in a table, as text.
func keysOf(t *testing.T, table *runtime.AnyTable) (keys []string) {
	t.Helper()
	for row, err := range table.All() {
		if err != nil {
			t.Fatal(err)
		}
		var parts []string
		for _, v := range row.Key {
			parts = append(parts, v.(netip.AddrPort).String())
		}
		keys = append(keys, strings.Join(parts, " "))
	}
	slices.Sort(keys)
	return keys
}

// A session with two rows in one table: both are there or none, each is counted by itself, a change moves both, keys
// that others have or that are the same are refused, and a process that takes over finds which row is which.
func TestTwoRows(t *testing.T) {
	load := caseOf(t, "two-rows")
	opt := runtime.Options{PinPath: pinsOf(t), Linger: time.Minute}
	r, err := load(opt)
	if err != nil {
		t.Fatal(err)
	}
	ep := netip.MustParseAddrPort
	const client, inside, outside, peer = "198.51.100.7:40001", "192.0.2.1:7000", "192.0.2.1:50000", "203.0.113.9:9000"
	s, err := r.Open("call", ep(client), ep(inside), ep(outside), ep(peer), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	flows := r.Table("flows")
	both := []string{client + " " + inside, peer + " " + outside}
	if got := keysOf(t, flows); !slices.Equal(got, both) {
		t.Errorf("rows %q", got)
	}
	reason := func(from, to string) string { return packetOf(t, r, "forward", from, to) }
	if a, b, c := reason(client, inside), reason(peer, outside), reason(peer, inside); a != "sent" || b != a ||
		c != "no_flows" {
		t.Errorf("from the client %s, from the peer %s, in neither direction %s", a, b, c)
	}
	reason(peer, outside)
	counts := func(s *runtime.AnySession) [3]uint64 {
		c := must(s.Counters())
		return [3]uint64{c[0].Packets, c[1].Packets, c[2].Packets}
	}
	if got := counts(s); got != [3]uint64{1, 2, 0} {
		t.Errorf("packets by row: %v", got)
	}
	// The second row's key is another session's first one.
	var collision *runtime.CollisionError
	_, err = r.Open("call", ep("198.51.100.8:1"), ep(inside), ep(inside), ep(client), 1, 2)
	if !errors.As(err, &collision) || collision.Table != "flows" || collision.Other != s {
		t.Errorf("a key twice: %v", err)
	}
	// Its own two.
	if _, err := r.Open("call", ep("198.51.100.8:1"), ep(inside), ep(inside), ep("198.51.100.8:1"), 1, 2); err == nil ||
		!strings.Contains(err.Error(), "two rows of the session have one key") {
		t.Errorf("both rows have one key: %v", err)
	}
	if got := keysOf(t, flows); !slices.Equal(got, both) || len(keysOf(t, r.Table("peers"))) != 1 {
		t.Errorf("rows of sessions that weren't opened: %q", got)
	}
	if err := s.Change(ep(client), ep(inside), ep(inside), ep(client), 1, 2); err == nil {
		t.Error("a change to rows with one key")
	}
	// The directions change places: the keys stay, but are other rows'.
	if err := s.Change(ep(peer), ep(outside), ep(inside), ep(client), 3, 4); err != nil {
		t.Fatal(err)
	}
	reason(client, inside)
	if got := counts(s); got != [3]uint64{1, 3, 0} || !slices.Equal(keysOf(t, flows), both) {
		t.Errorf("packets by row after a change: %v", got)
	}
	// Another process.
	r = successor(t, r, load, opt)
	all := slices.Collect(r.Sessions())
	if len(all) != 1 || all[0].Values()[0] != ep(peer) || all[0].Values()[3] != ep(client) {
		t.Fatalf("taken over: %v", all)
	}
	reason(peer, outside)
	if got := counts(all[0]); got != [3]uint64{2, 3, 0} {
		t.Errorf("packets by row after a takeover: %v", got)
	}
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	if got := keysOf(t, r.Table("flows")); len(got) > 0 {
		t.Errorf("rows of a session that is closed: %q", got)
	}
	// There is room for all rows of all sessions.
	for i := range uint16(16) {
		if _, err := r.Open("tunnel", 0x200+2*i, 0x201+2*i, ep(inside), ep(peer)); err != nil {
			t.Fatal(i, err)
		}
	}
	var full *runtime.FullError
	if _, err := r.Open("tunnel", 0x100, 0x101, ep(inside), ep(peer)); !errors.As(err, &full) {
		t.Errorf("a session too many: %v", err)
	}
}

// What a session counts and may spend is one for all of its rows, stays through changes and takeovers, is new in the
// next session, and is gone with it.
func TestSessionState(t *testing.T) {
	load := caseOf(t, "session-state")
	opt := runtime.Options{PinPath: pinsOf(t), Linger: time.Minute}
	r, err := load(opt)
	if err != nil {
		t.Fatal(err)
	}
	ep := netip.MustParseAddrPort
	const client, server, relayed, peer = "198.51.100.7:40001", "192.0.2.1:7000", "192.0.2.1:50000", "203.0.113.9:9000"
	open := func(r *runtime.Relay) *runtime.AnySession {
		s, err := r.Open("call", ep(client), ep(relayed), ep(peer), 3, nil, 100,
			runtime.Rate{PerSecond: 1, Burst: 50}, 2)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	type state struct {
		packets, next *runtime.Counter
		volume        *runtime.Credit
		rate          *runtime.Bucket
		share         []*runtime.Credit
	}
	of := func(s *runtime.AnySession) state {
		v := s.Values()
		return state{v[3].(*runtime.Counter), v[4].(*runtime.Counter), v[5].(*runtime.Credit), v[6].(*runtime.Bucket),
			v[7].([]*runtime.Credit)}
	}
	s := open(r)
	v := of(s)
	there := func() string { return packetOf(t, r, "to_peer", client, server) }
	back := func() string { return packetOf(t, r, "to_client", peer, relayed) }
	if a, b := there(), back(); a != "sent" || b != "sent" {
		t.Errorf("there %s, back %s", a, b)
	}
	check := func(when string, v state, packets, next, spent uint64) {
		t.Helper()
		if v.packets.Load() != packets || v.next.Load() != next || v.volume.Spent() != spent ||
			v.volume.Limit() != 100 || v.rate.Rate() != (runtime.Rate{PerSecond: 1, Burst: 50}) ||
			len(v.share) != 2 || v.share[1].Limit() != 2 {
			t.Errorf("%s: %v packets, next %v, volume %v, rate %v, share %v", when, v.packets, v.next, v.volume, v.rate,
				v.share)
		}
	}
	check("one packet each way", v, 5, 1, 10)
	if err := v.volume.Charge(90); err != nil || v.volume.Debt() != 0 {
		t.Error(err)
	}
	there()
	if v.share[0].Spent() != 2 || v.volume.Debt() != 5 {
		t.Errorf("share %v, debt %d", v.share, v.volume.Debt())
	}
	if got := there(); got != "refused_share" {
		t.Errorf("no share is left: %s", got)
	}
	check("all is spent", v, 6, 1, 105)
	// A change leaves what it isn't given, and gives the rest.
	next := append(s.Values()[:2], ep("203.0.113.9:9001"), v.packets, nil, nil, nil, []any{9, nil})
	if err := s.Change(next...); err != nil {
		t.Fatal(err)
	}
	if v.share[0].Limit() != 9 || there() != "sent" {
		t.Errorf("share %v after a change", v.share)
	}
	err = s.Change(ep(client), ep(relayed), ep(peer), 40, nil, nil, nil, nil)
	if err != nil || v.packets.Load() != 40 {
		t.Errorf("%v packets after a change, %v", v.packets, err)
	}
	var bad *runtime.ValueError
	other, err := r.Open("call", ep("198.51.100.8:40001"), ep("192.0.2.1:50001"), ep(peer), nil, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Change(append(other.Values()[:3], v.packets, nil, nil, nil, nil)...); !errors.As(err, &bad) {
		t.Errorf("another session's counter: %v", err)
	}
	if of(other).packets.Load() != 0 || of(other).volume.Limit() != 0 {
		t.Error("another session has this one's")
	}
	// Another process finds them, and knows what is free.
	r = successor(t, r, load, opt)
	if v.packets.Load() != 0 || v.volume.Charge(1) != runtime.ErrClosed {
		t.Error("what a closed relay counted")
	}
	var all []*runtime.AnySession
	for s := range r.Sessions() {
		all = append(all, s)
	}
	if len(all) != 2 {
		t.Fatalf("taken over: %v", all)
	}
	i := slices.IndexFunc(all, func(s *runtime.AnySession) bool { return s.Values()[0] == ep(client) })
	s, other = all[i], all[1-i]
	v = of(s)
	check("taken over", v, 40, 1, 110)
	back()
	check("and it goes on", v, 41, 2, 115)
	if of(other).packets.Load() != 0 {
		t.Error("the other session's counter has changed")
	}
	// The end.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if v.packets.Load() != 0 || v.volume.Limit() != 0 || v.rate.Spend(1) != runtime.ErrClosed ||
		back() != "no_by_peer" {
		t.Error("a closed session's are there")
	}
	// As many as the spec says, over and over; each begins anew.
	for range 3 {
		var all []*runtime.AnySession
		for i := range uint16(15) {
			s, err := r.Open("call", netip.AddrPortFrom(ep(client).Addr(), 1+i),
				netip.AddrPortFrom(ep(relayed).Addr(), 1+i), ep(peer), nil, nil, nil, nil, nil)
			if err != nil {
				t.Fatal(i, err)
			}
			v := of(s)
			if err := v.share[1].Charge(1); err != nil || v.packets.Add(1) != 1 || v.volume.Spent() != 0 ||
				v.share[1].Spent() != 1 {
				t.Fatalf("session %d doesn't begin anew: %v, %v, %v", i, v.packets, v.volume, v.share)
			}
			all = append(all, s)
		}
		if err := r.CloseSessions(all...); err != nil {
			t.Fatal(err)
		}
	}
	// What a row of a session refers to is the session's, also where rows of tables are listed.
	for row, err := range r.Table("by_client").All() {
		if err != nil || row.Value[2] != any(of(other).packets) {
			t.Errorf("%v, %v", row, err)
		}
	}
	if k := r.Desc().Sessions[0].Fields[3].Kind; k != abi.KindCounter {
		t.Errorf("%v", k)
	}
}
