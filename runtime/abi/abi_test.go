package abi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Members follow each other without gaps.
func TestStructsHaveNoGaps(t *testing.T) {
	sizes := map[string]int{"u8": 1, "u16": 2, "u32": 4, "u64": 8}
	for _, s := range abi.Structs() {
		sizes["struct "+s.Name] = s.Size
		at := 0
		for _, m := range s.Members {
			if m.Off != at {
				t.Errorf("%s.%s is at %d, and the member before it ends at %d", s.Name, m.Name, m.Off, at)
			}
			typ, count, array := strings.Cut(strings.TrimSuffix(m.Type, "]"), "[")
			n := 1
			if array && count != "" {
				fmt.Sscan(count, &n)
			}
			if sizes[typ] == 0 {
				t.Fatalf("%s.%s is of type %s", s.Name, m.Name, m.Type)
			}
			at += n * sizes[typ]
		}
		if at != s.Size {
			t.Errorf("%s has %d bytes, and its members %d", s.Name, s.Size, at)
		}
	}
}

// full is a description that has one of everything.
func full() *abi.Desc {
	id := []abi.Member{{Name: "id", Kind: abi.KindUint, Bits: 32, Size: 4}}
	return &abi.Desc{
		Name: "full", Kernel: [2]int{5, 10},
		Tables: []abi.Table{
			{Name: "flows", Kind: abi.TableHash, Size: 8, Key: id, KeySize: 4, ValueSize: 48, Session: "flow",
				Value: []abi.Member{
					{Name: "to", Kind: abi.KindEndpoint, Size: abi.EndpointSize},
					{Name: "hop_to", Kind: abi.KindHop, Size: abi.HopSize, Off: 20, Hidden: true, To: "to", Proto: 17},
					{Name: abi.MemberSlot, Kind: abi.KindUint, Bits: 32, Size: 4, Off: 40, Hidden: true},
					{Name: abi.MemberGen, Kind: abi.KindUint, Bits: 32, Size: 4, Off: 44, Hidden: true},
				}},
			{Name: "seen", Kind: abi.TableLRU, PerCPU: true, Size: 4, Key: id, KeySize: 4},
		},
		Sessions: []abi.Session{{
			Name: "flow", Size: 8, Idle: 90 * time.Second,
			Fields: []abi.Field{
				{Name: "id", Kind: abi.KindUint, Bits: 32, Size: 4, Ranges: [][2]uint64{{1, 9}}},
				{Name: "to", Kind: abi.KindEndpoint, Size: abi.EndpointSize},
			},
			Rows: []abi.Row{{Key: []int{0}, Value: []int{1}}},
		}},
		Programs: []abi.Program{{Name: "p", Hook: abi.HookIngress, L2: true, Reasons: []abi.Reason{
			{Name: "sent", Kind: abi.ReasonSent, Number: 1, Doc: "not pinned"},
			{Name: "inactive", Kind: abi.ReasonPunted, Number: 2},
		}}},
		Counters: []string{"hits"}, Slots: 8, Usages: 1, Shared: 2, Levels: 2,
		Groups: []abi.Group{
			{Name: "all", Key: id, KeySize: 4, Receiver: id, ReceiverSize: 4, Max: 16, Rows: 32, Size: 2, Base: 1},
		},
		Events:    []abi.Event{{Name: "sent", Fields: id, Size: 20, Required: true}},
		Receivers: 33, Credits: 5, Translations: 64, Ring: 4096, Lookups: true,
	}
}

// What is pinned has a format of its own, which doesn't change with the names in Go.
func TestLayout(t *testing.T) {
	text, err := full().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var indented any
	if err := json.Unmarshal(text, &indented); err != nil {
		t.Fatal(err)
	}
	got, _ := json.MarshalIndent(indented, "", "\t")
	const file = "testdata/layout.json"
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(want)) != string(got) {
		t.Errorf("the format of what is pinned is another one than that of %s (raise abi.Version, then "+
			"FASTRELAY_UPDATE=1):\n%s", file, got)
	}
	l, err := abi.ReadLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	back := full()
	back.Kernel = [2]int{}
	back.Programs[0].Reasons[0].Doc = ""
	if l.Version != abi.Version || !reflect.DeepEqual(l.Desc, *back) {
		t.Errorf("read back: %+v, want %+v", l.Desc, *back)
	}
}

// A layout of another version has its version alone, whatever else is in it.
func TestLayoutOfAnotherVersion(t *testing.T) {
	l, err := abi.ReadLayout([]byte(`{"Version":2,"Tables":[{"Kind":"hash","Key":[{"Kind":5}]}]}`))
	if err != nil || l.Version != 2 || l.Tables != nil {
		t.Errorf("%+v, %v", l, err)
	}
	for _, text := range []string{"", "{", `{"version":5,"tables":[{"kind":"heap"}]}`, `{"version":5,"slots":"many"}`} {
		if l, err := abi.ReadLayout([]byte(text)); err == nil {
			t.Errorf("%q was read as %+v", text, l)
		}
	}
}

func TestMaps(t *testing.T) {
	var got []string
	for _, m := range full().Maps() {
		text := fmt.Sprintf("%s: %v, %d of %d -> %d", m.Name, m.Type, m.Entries, m.KeySize, m.ValueSize)
		if m.List > 0 {
			text += fmt.Sprint(", lists of ", m.List)
		}
		if m.Mmap {
			text += ", mapped"
		}
		if m.Pinned != abi.Pinned(m.Name) || !m.Pinned {
			t.Errorf("%s: pinned %v, %v", m.Name, m.Pinned, abi.Pinned(m.Name))
		}
		got = append(got, text)
	}
	want := []string{
		"fr_lease: array, 1 of 4 -> 40, mapped", "fr_reasons: per-CPU array, 3 of 4 -> 16",
		"fr_slots: array, 8 of 4 -> 16, mapped",
		"fr_usage: per-CPU array, 8 of 4 -> 24", "fr_shared: array, 2 of 4 -> 8, mapped",
		"fr_named: per-CPU array, 1 of 4 -> 8",
		"fr_receivers: per-CPU array, 33 of 4 -> 32", "fr_credits: array, 5 of 4 -> 40, mapped",
		"fr_translate: hash, 64 of 16 -> 16",
		"fr_events: ring buffer, 4096 of 0 -> 0", "fr_lost: array, 2 of 4 -> 8, mapped",
		"grp_all: hash of maps, 2 of 4 -> 4, lists of 68",
		"rcv_all: array, 48 of 4 -> 4", "tbl_flows: hash, 8 of 4 -> 48", "tbl_seen: per-CPU LRU hash, 4 of 4 -> 1",
	}
	if !slices.Equal(want, got) {
		t.Errorf("%q, want %q", got, want)
	}
	if maps := (&abi.Desc{}).Maps(); len(maps) != 1 || maps[0].Name != abi.MapLease {
		t.Errorf("a relay without anything has %+v", maps)
	}
	for _, name := range []string{
		"fr_scratch", "fr_front", "fr_copies", "fr_rows", "fr_learned", ".rodata", "other", "tbl_", "",
	} {
		if abi.Pinned(name) {
			t.Errorf("%q is pinned", name)
		}
	}
}

// Kinds are words where people and files meet them; the zero kind is none.
func TestKinds(t *testing.T) {
	var k abi.Kind
	if err := k.UnmarshalText([]byte("next_hop")); err != nil || k != abi.KindNextHop || k.String() != "next_hop" {
		t.Errorf("%v, %v", k, err)
	}
	if s := abi.Kind(0).String() + " " + abi.Kind(200).String(); s != "Kind(0) Kind(200)" {
		t.Error(s)
	}
	for _, text := range []string{"", "Kind(0)", "hash"} {
		if err := k.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is a kind", text)
		}
	}
}

// A program whose packets come to it at XDP first says both of its hooks.
func TestHooks(t *testing.T) {
	for want, p := range map[string]abi.Program{
		"tc/egress":       {Hook: abi.HookEgress},
		"xdp, tc/ingress": {Hook: abi.HookIngress, XDPBase: 3},
	} {
		if got := p.Hooks(); got != want {
			t.Errorf("%+v runs at %q, not at %q", p, got, want)
		}
	}
}

// A record with bytes of the packet is as long as it says; one that can't be is none.
func TestRecord(t *testing.T) {
	plain := abi.Event{Size: 24, Fields: []abi.Member{{Kind: abi.KindUint, Size: 4, Off: 16}}}
	data := abi.Event{Size: 32, Fields: []abi.Member{
		{Kind: abi.KindUint, Size: 4, Off: 16}, {Kind: abi.KindData, Size: 10, Off: 20},
	}}
	copies := abi.Event{Size: 40, Copies: &abi.Copies{Off: 16, Size: 8}}
	for _, c := range []struct {
		event     abi.Event
		ring, say int
		want      int // -1: it is none
	}{
		{plain, 24, 24, 24},
		{plain, 32, 24, 24},
		{plain, 23, 24, -1},
		{plain, 24, 23, -1},
		{plain, 24, 25, -1},
		{data, 32, 20, 20},
		{data, 32, 30, 30},
		{data, 32, 19, -1},
		{data, 32, 33, -1},
		{data, 25, 25, 25},
		{data, 24, 25, -1},
		{copies, 40, 16, 16},
		{copies, 40, 40, 40},
		{copies, 32, 32, 32},
		{copies, 40, 15, -1},
		{copies, 40, 41, -1},
		{abi.Event{}, 15, 0, -1},
	} {
		b := make([]byte, c.ring)
		if c.ring > abi.EventSize+1 {
			abi.Order.PutUint16(b[abi.EventSize:], uint16(c.say))
		}
		got, ok := c.event.Record(b)
		if n := len(got); ok != (c.want >= 0) || ok && n != c.want {
			t.Errorf("%d bytes that say %d, of an event of %d: %d, %t", c.ring, c.say, c.event.Size, n, ok)
		}
	}
	if got := data.Fields[1].In(make([]byte, 23)); len(got) != 3 {
		t.Errorf("%d bytes of the packet", len(got))
	}
}
