package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A successor goes on with groups, receivers and all that belongs to them, and with the events that were not read.
func TestAdoptGroups(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := loadGroups(t, Options{PinPath: pins, Linger: time.Minute})
	g, empty := openGroup(t, r, 7), openGroup(t, r, 8)
	_ = empty
	anna, gone, bert := add(t, g, 1, 10), add(t, g, 2, 20), add(t, g, 3, 30)
	credits := anna.State(1).([]*Credit)
	credits[1].SetLimit(100)
	if err := credits[1].Spend(40); err != nil {
		t.Fatal(err)
	}
	anna.State(2).(*Bucket).SetRate(Rate{PerSecond: 5, Burst: 6})
	for v, to := range map[*AnyReceiver]uint64{anna: 11, gone: 12, bert: 13} {
		if _, _, err := v.State(3).(*Translation).Put(1, to); err != nil {
			t.Fatal(err)
		}
	}
	runOn(t, r, "fan", groupPacket(7, 0), 2)
	if err := gone.Remove(bg); err != nil {
		t.Fatal(err)
	}
	if err := anna.Set(bg, subscriber(1, 11)...); err != nil {
		t.Fatal(err)
	}
	for ev := range read(r, t.Context()) {
		if ev.Receiver == bert {
			break
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if credits[1].Spend(1) != ErrClosed {
		t.Error("the credit of a relay that is closed")
	}

	next := loadGroups(t, Options{PinPath: pins})
	k := next.GroupKind("subs")
	g2 := must(k.Get(7))
	if groups, receivers := k.Count(); groups != 2 || receivers != 2 || g2 == nil || g2.Len() != 2 ||
		found(k.Get(8)).Len() != 0 {
		t.Fatalf("%d groups, %d receivers", groups, receivers)
	}
	anna2, bert2 := g2.Receivers()[0], g2.Receivers()[1]
	if anna2.ID() != anna.ID() || bert2.ID() != bert.ID() || fmt.Sprint(anna2.Values()) != "[192.0.2.1:5004 "+
		"203.0.113.1:6001 11]" {
		t.Errorf("%v, %v; %v", anna2, bert2, anna2.Values())
	}
	c := anna2.State(1).([]*Credit)[1]
	to, err := anna2.State(3).(*Translation).Get(1)
	if c.Limit() != 100 || c.Spent() != 40 || anna2.State(2).(*Bucket).Rate() != (Rate{5, 6}) ||
		anna2.State(0).(*Counter).Load() != 2 || to != 11 || err != nil {
		t.Errorf("credit %v, bucket %v, counter %v, translation %d %v", c, anna2.State(2), anna2.State(0), to,
			err)
	}
	if u := must(anna2.Usage()); u.Packets != 2 {
		t.Errorf("usage %+v", u)
	}
	// The rest of the events: the first packet was read. Who is gone is unknown to this process.
	var names []*AnyReceiver
	drain(t, next, func(ev *Event) { names = append(names, ev.Receiver) })
	if !slices.Equal(names, []*AnyReceiver{anna2, nil, bert2}) {
		t.Errorf("events of %v", names)
	}
	rows := 0
	next.spaces.each(func(_, _ []byte) { rows++ })
	if len(k.free) != 190 || len(k.ids) != 126 || len(next.counters.free) != 130 || rows != 2 {
		t.Errorf("%d free rows, %d identities, %d counters, %d translations", len(k.free), len(k.ids),
			len(next.counters.free), rows)
	}
	runOn(t, next, "fan", groupPacket(7, 0), 1)
	drain(t, next, func(ev *Event) {
		if ev.Uint(1) != 2 {
			t.Errorf("number %d of %v", ev.Uint(1), ev.Receiver)
		}
	})
	// New ones take nothing from them.
	carl := add(t, g2, 4, 40)
	if _, stored, err := carl.State(3).(*Translation).Put(1, 14); !stored || err != nil || carl.ID() == anna.ID() ||
		carl.ID() == bert.ID() || carl.State(0).(*Counter).Load() != 0 {
		t.Errorf("%v, %v, %v", carl, stored, err)
	}
	if err := anna2.Remove(bg); err != nil {
		t.Error(err)
	}
	for g := range k.All() {
		if err := g.Close(bg); err != nil {
			t.Error(err)
		}
	}
	if len(k.free) != 192 || len(k.ids) != 128 {
		t.Errorf("%d free rows, %d identities", len(k.free), len(k.ids))
	}
}

// Records that a process left in the ring name no receiver that its successor makes, which has the identity of one that
// is gone.
func TestAdoptedEvents(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := loadGroups(t, Options{PinPath: pins, Linger: time.Minute})
	g := openGroup(t, r, 7)
	gone := add(t, g, 1, 10)
	add(t, g, 2, 20)
	runOn(t, r, "fan", groupPacket(7, 0), 1)
	if err := errors.Join(gone.Remove(bg), r.Close()); err != nil {
		t.Fatal(err)
	}
	next := loadGroups(t, Options{PinPath: pins})
	g = must(next.GroupKind("subs").Get(7))
	stayed, made := g.Receivers()[0], add(t, g, 3, 30)
	if made.ID() != gone.ID() {
		t.Fatalf("receiver %d after %d", made.ID(), gone.ID())
	}
	runOn(t, next, "fan", groupPacket(7, 0), 1)
	var names []*AnyReceiver
	drain(t, next, func(ev *Event) { names = append(names, ev.Receiver) })
	if !slices.Equal(names, []*AnyReceiver{nil, stayed, stayed, made}) {
		t.Errorf("events of %v", names)
	}
}

func TestOtherGroupLayout(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := loadGroups(t, Options{PinPath: pins, Linger: time.Second})
	add(t, openGroup(t, r, 7), 1, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(d *abi.Desc)
		want   string
	}{
		{"a member renamed", func(d *abi.Desc) { d.Groups[0].Receiver[3].Name = "other" }, `group "subs"`},
		{"a key renamed", func(d *abi.Desc) { d.Groups[0].Key[0].Name = "other" }, `group "subs"`},
		{"a group renamed", func(d *abi.Desc) { d.Groups[0].Name = "others" }, `group "subs" is laid out otherwise`},
		{"no groups", func(d *abi.Desc) { d.Groups, d.Receivers = nil, 0 }, `group "subs"`},
		{"an event's field renamed", func(d *abi.Desc) { d.Events[0].Fields[1].Name = "other" }, `the ring's events`},
		{"events the other way round", func(d *abi.Desc) { d.Events[0].Name, d.Events[1].Name = "made", "sent" },
			`the ring's events`},
		{"another ring", func(d *abi.Desc) { d.Ring = 4096 }, `the ring of events is laid out otherwise`},
		{"fewer translations", func(d *abi.Desc) { d.Translations = 512 }, `the table of translations`},
		{"fewer credits", func(d *abi.Desc) { d.Credits = 3 }, `the array of credits`},
		{"other levels", func(d *abi.Desc) { d.Levels = 3 }, `priority is laid out otherwise`},
	} {
		d := groupsDesc()
		tt.change(d)
		err := compareLayout(t, pins, d)
		var le *LayoutError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), pins) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	next := loadGroups(t, Options{PinPath: pins})
	if found(next.GroupKind("subs").Get(7)).Len() != 1 {
		t.Error("what was refused has done harm")
	}
}

// compareLayout compares what is pinned with a description.
func compareLayout(t *testing.T, pins string, d *abi.Desc) error {
	t.Helper()
	held, err := openPins(pins)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	return pinsError(held.Check(d, false))
}

// A relay's process is killed at random moments while it changes a group. The next one finds a group all of whose
// receivers are from one change, and nothing else.
func TestKilledWhileChanging(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	sizes := map[int]bool{}
	for round := 0; round < 12 || len(sizes) < 3 && round < 100; round++ {
		cmd := startChild(t, "fan", "PINS="+pins)
		time.Sleep(time.Duration(rnd.IntN(200_000)) * time.Microsecond) // the random moment
		kill(t, cmd)
		r := loadGroups(t, Options{PinPath: pins, Linger: time.Second})
		k := r.GroupKind("subs")
		g := must(k.Get(7))
		if g == nil {
			t.Fatal("the group is gone")
		}
		all := g.Receivers()
		sizes[len(all)] = true
		for _, v := range all {
			to, err := v.State(3).(*Translation).Get(1)
			if v.Values()[2] != all[0].Values()[2] || v.State(0).(*Counter).Load() != uint64(v.ID()) ||
				v.State(1).([]*Credit)[1].Limit() != uint64(v.ID()) || to != uint64(v.ID()) || err != nil {
				t.Errorf("%v: %v of %v, counter %v, credit %v, translation %d %v", v, v.Values(), all[0].Values(),
					v.State(0), v.State(1), to, err)
			}
		}
		runOn(t, r, "fan", groupPacket(7, 0), 1)
		n := 0
		drain(t, r, func(ev *Event) {
			if n >= len(all) || ev.Receiver != all[n] {
				t.Errorf("event %d is of %v", n, ev.Receiver)
			}
			n++
		})
		rows := 0
		r.spaces.each(func(_, _ []byte) { rows++ })
		if n != len(all) || rows != n || len(k.ids)+n != 128 || len(k.free)+n != 192 || len(r.counters.free)+n != 132 {
			t.Errorf("%d receivers, %d events, %d translations; free: %d identities, %d rows, %d counters", len(all), n,
				rows, len(k.ids), len(k.free), len(r.counters.free))
		}
		for g := range k.All() {
			if err := g.Close(bg); err != nil {
				t.Error(err)
			}
		}
		r.Close()
	}
	if len(sizes) < 3 {
		t.Errorf("groups of %v receivers alone", sizes)
	}
	loadGroups(t, Options{PinPath: pins})
}

// A translation that a process left, killed before or after its receiver was in a list, is removed by the next one,
// also if no receiver is left.
func TestAdoptOrphans(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := loadGroups(t, Options{PinPath: pins, Linger: time.Second})
	openGroup(t, r, 7)
	orphan := &Translation{spaces: r.spaces, space: r.spaces.alloc()}
	if _, stored, err := orphan.Put(1, 2); !stored || err != nil {
		t.Fatal(stored, err)
	}
	r.Close()
	next := loadGroups(t, Options{PinPath: pins})
	rows := 0
	if err := next.spaces.each(func(_, _ []byte) { rows++ }); err != nil || rows != 0 {
		t.Errorf("%d translations are left, %v", rows, err)
	}
	if space := next.spaces.alloc(); space <= orphan.space {
		t.Errorf("namespace %d was one before", space)
	}
}

// A list that can't be understood is taken out, with a warning; the others go on.
func TestAdoptRepairsGroups(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	for _, tt := range []struct {
		name  string
		wreck func(r *Relay, g *AnyGroup, row []byte) // row is the receiver's
	}{
		{"too many", func(r *Relay, g *AnyGroup, _ []byte) { putList(t, g, 65, 0) }},
		{"a row that there is not", func(r *Relay, g *AnyGroup, _ []byte) { putList(t, g, 1, 192) }},
		{"a row twice", func(r *Relay, g *AnyGroup, _ []byte) { putList(t, g, 2, g.list[0].at, g.list[0].at) }},
		{"a row of no receiver", func(r *Relay, g *AnyGroup, row []byte) { abi.Order.PutUint32(row[76:], 0) }},
		{"another's credit", func(r *Relay, g *AnyGroup, row []byte) { abi.Order.PutUint32(row[64:], 1+3*5) }},
		{"no counter", func(r *Relay, g *AnyGroup, row []byte) { abi.Order.PutUint32(row[60:], 133) }},
		{"two families", func(r *Relay, g *AnyGroup, row []byte) { row[0] = 0x20 }},
	} {
		r := loadGroups(t, Options{PinPath: pins, Linger: time.Second})
		bad, good := openGroup(t, r, 7), openGroup(t, r, 8)
		v := add(t, bad, 1, 1)
		add(t, good, 2, 2)
		row := bytes.Clone(v.row.value)
		tt.wreck(r, bad, row)
		if err := bad.kind.rows.Put(v.at, row); err != nil {
			t.Fatal(err)
		}
		r.Close()
		var log bytes.Buffer
		next := loadGroups(t, Options{
			PinPath: pins, Linger: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		k := next.GroupKind("subs")
		if found(k.Get(7)) != nil || found(k.Get(8)) == nil || found(k.Get(8)).Len() != 1 ||
			!strings.Contains(log.String(), "subs id=0x7") {
			t.Errorf("%s: %v, %v; %s", tt.name, found(k.Get(7)), found(k.Get(8)), log.String())
		}
		if len(k.ids) != 127 || len(k.free) != 191 {
			t.Errorf("%s: %d identities, %d rows are free", tt.name, len(k.ids), len(k.free))
		}
		if err := found(k.Get(8)).Close(bg); err != nil {
			t.Error(err)
		}
		next.Close()
	}
	loadGroups(t, Options{PinPath: pins})
}

// putList writes a list as a broken process might.
func putList(t *testing.T, g *AnyGroup, n uint32, rows ...uint32) {
	t.Helper()
	b := make([]byte, 4+4*64)
	abi.Order.PutUint32(b, n)
	for i, row := range rows {
		abi.Order.PutUint32(b[4+4*i:], row)
	}
	if err := g.inner.Update(uint32(0), b, ebpf.UpdateAny); err != nil {
		t.Fatal(err)
	}
}
