package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

// groupsDesc describes testdata/fan.bpf.c.
func groupsDesc() *abi.Desc {
	uint := func(name string, size, off int) abi.Member {
		return abi.Member{Name: name, Kind: abi.KindUint, Bits: 8 * size, Size: size, Off: off}
	}
	index := func(name string, kind abi.Kind, levels, off int) abi.Member {
		return abi.Member{Name: name, Kind: kind, Levels: levels, Size: 4, Off: off}
	}
	return &abi.Desc{
		Name:   "fan",
		Kernel: [2]int{5, 17},
		Tables: []abi.Table{{
			Name: "quota", Kind: abi.TableHash, Size: 4, Key: []abi.Member{uint("id", 4, 0)}, KeySize: 4, ValueSize: 16,
			Value: []abi.Member{
				index("hits", abi.KindCounter, 0, 0), index("credit", abi.KindCredit, 2, 4),
				index("rate", abi.KindBucket, 0, 8), index("ids", abi.KindTranslation, 0, 12),
			},
		}},
		Groups: []abi.Group{{
			Name: "subs", Max: 64, Rows: 128, Size: 4, Base: 1, Key: []abi.Member{uint("id", 4, 0)}, KeySize: 4,
			ReceiverSize: 80,
			Receiver: []abi.Member{
				{Name: "local", Kind: abi.KindEndpoint, Size: 18},
				{Name: "remote", Kind: abi.KindEndpoint, Size: 18, Off: 18},
				{Name: "hop_remote", Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true, To: "remote", From: "local"},
				uint("value", 4, 56), index("skipped", abi.KindCounter, 0, 60), index("credit", abi.KindCredit, 2, 64),
				index("rate", abi.KindBucket, 0, 68),
				index("ids", abi.KindTranslation, 0, 72),
				{Name: "receiver", Kind: abi.KindUint, Bits: 32, Size: 4, Off: 76, Hidden: true},
			},
		}},
		Events: []abi.Event{
			{
				Name: "sent", Size: 40, Fields: []abi.Member{
					uint("packet", 8, 16), uint("number", 8, 24), uint("value", 4, 32), uint("of", 4, 36),
				},
			},
			{Name: "made", Size: 16},
		},
		Programs: []abi.Program{
			{Name: "fan", Hook: abi.HookIngress, Reasons: []abi.Reason{{Name: "fanned", Kind: abi.ReasonPassed},
				{Name: "no_subs", Kind: abi.ReasonPunted, Number: 1},
				{Name: "ring_full", Kind: abi.ReasonPunted, Number: 2}}},
			{Name: "alloc", Hook: abi.HookIngress, Base: 3}, {Name: "translate", Hook: abi.HookIngress, Base: 3},
		},
		Levels: 2, Receivers: 129, Credits: 397, Shared: 133, Translations: 1024, Ring: 65536,
	}
}

var direct = func(from, to netip.Addr) Hop { return Hop{State: HopDirect, Ifindex: 1, MTU: 1500} }

func loadGroups(t testing.TB, opt Options) *Relay {
	t.Helper()
	if opt.routes == nil {
		opt.routes = direct
	}
	return mustLoad(t, groupsDesc(), buildFile(t, "fan"), opt)
}

// loadRing loads the relay with another size of the ring.
func loadRing(t testing.TB, size int) *Relay {
	t.Helper()
	desc := groupsDesc()
	desc.Ring = size
	return mustLoad(t, desc, buildFile(t, "fan", fmt.Sprintf("RING=%d", size)), Options{routes: direct})
}

func openGroup(t testing.TB, r *Relay, key int) *AnyGroup {
	t.Helper()
	g, err := r.GroupKind("subs").Open(bg, key)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// subscriber is the n-th receiver's values.
func subscriber(n, value int) []any {
	return []any{
		netip.MustParseAddrPort("192.0.2.1:5004"),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), uint16(6000+n)), value,
	}
}

func add(t testing.TB, g *AnyGroup, n, value int) *AnyReceiver {
	t.Helper()
	v, err := g.Add(bg, subscriber(n, value)...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// groupPacket is a packet of a group, or one that names a row, with a key after it.
func groupPacket(group uint32, key uint64) []byte {
	b := make([]byte, 60)
	binary.LittleEndian.PutUint32(b[14:], group)
	binary.LittleEndian.PutUint64(b[18:], key)
	return b
}

func runOn(t testing.TB, r *Relay, program string, data []byte, repeat uint32) uint32 {
	t.Helper()
	return runKernel(t, r.Program(program).Kernel(), data, repeat)
}

// runKernel runs a program so many times, exactly.
func runKernel(t testing.TB, p *ebpf.Program, data []byte, repeat uint32) uint32 {
	t.Helper()
	ret, err := bpftest.Run(p, ebpf.RunOptions{Data: data, Repeat: repeat})
	if err != nil {
		t.Error(err)
	}
	return ret
}

// drain reads the events that are there.
func drain(t testing.TB, r *Relay, visit func(*Event)) {
	t.Helper()
	if bytes, _ := r.EventsWaiting(); bytes == 0 {
		return
	}
	for ev := range read(r, t.Context()) {
		visit(ev)
		r.events.ring.Release()
		if bytes, _ := r.EventsWaiting(); bytes == 0 {
			return
		}
	}
}

// What a receiver has used is never read from the one that has its identity next.
func TestUsageOfOneThatGoes(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	g.kind.ids = g.kind.ids[:1] // so that it is used again at once
	v := add(t, g, 1, 1)
	runOn(t, r, "fan", groupPacket(7, 0), 3)
	use, err := v.usage(func(id uint32) (Usage, error) {
		if err := v.Remove(bg); err != nil {
			t.Fatal(err)
		}
		if next := add(t, g, 2, 2); next.ID() != id {
			t.Fatalf("receiver %d after %d", next.ID(), id)
		}
		return r.receiverUsage(id)
	})
	if use.Packets != 3 || err != nil {
		t.Errorf("%+v, %v", use, err)
	}
}

func TestGroup(t *testing.T) {
	r := loadGroups(t, Options{})
	k := r.GroupKind("subs")
	g := openGroup(t, r, 7)
	if got := found(k.Get(7)); got != g || found(k.Get(8)) != nil {
		t.Errorf("groups 7 and 8 are %v, %v", got, found(k.Get(8)))
	}
	var exists *ExistsError
	if _, err := k.Open(bg, 7); !errors.As(err, &exists) || !errors.Is(err, ErrExists) || exists.Group != g {
		t.Errorf("opened again: %v", err)
	}
	runOn(t, r, "fan", groupPacket(8, 0), 1)
	runOn(t, r, "fan", groupPacket(7, 0), 1) // no receiver
	anna, bert := add(t, g, 1, 10), add(t, g, 2, 20)
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	if got := must(r.Program("fan").Count("no_subs")).Packets; got != 1 {
		t.Errorf("%d packets without a group", got)
	}
	var got []*AnyReceiver
	drain(t, r, func(ev *Event) {
		got = append(got, ev.Receiver)
		if ev.Desc().Name != "sent" || ev.Uint(2) != 10*uint64(len(got)) || ev.Uint(1) != 0 ||
			time.Since(ev.Time) > time.Minute || time.Since(ev.Time) < 0 {
			t.Errorf("event %v of %v at %v", ev.Values(), ev.Receiver, ev.Time)
		}
	})
	if !slices.Equal(got, []*AnyReceiver{anna, bert}) || !slices.Equal(g.Receivers(), got) {
		t.Errorf("events of %v, receivers %v", got, g.Receivers())
	}
	if u := must(anna.Usage()); u != (Usage{Packets: 1, Bytes: 60}) {
		t.Errorf("usage %+v", u)
	}
	skipped := anna.State(0).(*Counter)
	if skipped.Load() != 1 {
		t.Errorf("the counter is at %d", skipped.Load())
	}
	// New values; what belongs to the receiver stays.
	if err := anna.Set(bg, subscriber(1, 11)...); err != nil {
		t.Fatal(err)
	}
	if v := anna.Values(); fmt.Sprint(v) != "[192.0.2.1:5004 203.0.113.1:6001 11]" ||
		anna.State(0).(*Counter) != skipped {
		t.Errorf("values %v", v)
	}
	if err := bert.Remove(bg); err != nil {
		t.Fatal(err)
	}
	if err := bert.Remove(bg); err != nil {
		t.Errorf("removed again: %v", err)
	}
	if err := bert.Set(bg, subscriber(2, 0)...); !errors.Is(err, ErrClosed) {
		t.Errorf("set after it was removed: %v", err)
	}
	runOn(t, r, "fan", groupPacket(7, 0), 2)
	n := 0
	drain(t, r, func(ev *Event) {
		if n++; ev.Receiver != anna || ev.Uint(1) != uint64(n) || ev.Uint(2) != 11 {
			t.Errorf("event %v of %v", ev.Values(), ev.Receiver)
		}
	})
	if u := must(anna.Usage()); n != 2 || u.Packets != 3 || must(bert.Usage()).Packets != 1 {
		t.Errorf("%d events, usage %+v, %+v", n, u, must(bert.Usage()))
	}
	if err := g.Close(bg); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(bg); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if _, ok := skipped.Alloc(1); ok || skipped.Load() != 0 {
		t.Error("the counter of a receiver that is gone allocates numbers")
	}
	if _, err := g.Add(bg, subscriber(1, 1)...); !errors.Is(err, ErrClosed) {
		t.Errorf("added to a closed group: %v", err)
	}
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	if got := must(r.Program("fan").Count("no_subs")).Packets; got != 2 {
		t.Errorf("%d packets without a group", got)
	}
	g = openGroup(t, r, 7)
	if g.Len() != 0 || len(k.free) != 192 || len(k.ids) != 128 || len(k.live) != 0 {
		t.Errorf("%d receivers, %d free rows, %d identities, %d alive", g.Len(), len(k.free), len(k.ids), len(k.live))
	}
}
