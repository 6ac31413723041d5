package glue

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// nasty is a plan with one of everything, and with every name that Go could stumble over.
func nasty() *ir.Plan {
	u := ir.UintType
	addr := netip.MustParseAddr("192.0.2.1").As16()
	member := func(name string, t ir.Type) *ir.Member { return &ir.Member{Name: name, Type: t} }
	endpoint := ir.Type{Kind: ir.Endpoint, Size: 18}
	counter := ir.Type{Kind: ir.Ctr, Size: 4}
	evil := "a doc */ with\n// Code that: }\u2028 \x00 `ticks` \"quotes\" "
	session := &ir.Session{Name: "type", Size: 16, Lifetime: 90e9, Idle: 60e9, Fields: []*ir.Field{
		{Name: "func", Type: endpoint}, {Name: "id", Type: u(3), Is: []ir.Range{{Min: 1, Max: 4}}},
		{Name: "tag", Type: ir.Type{Kind: ir.Bytes, Size: 8}},
		{Name: "i_d", Type: u(64)}, {Name: "on", Type: ir.BoolType}, {Name: "hw", Type: ir.MacType},
	}}
	rows := &ir.Table{Name: "map", Kind: "hash", Size: 16, Session: session,
		Key: ir.Struct{Members: []*ir.Member{member("func", endpoint)}, Size: 20},
		Value: ir.Struct{
			Members: []*ir.Member{member("id", u(3)), {Name: "slot", Type: u(32), Hidden: true, Off: 4},
				{Name: "gen", Type: u(32), Hidden: true, Off: 8}}, Size: 16,
		}}
	to, from := member("to", endpoint), member("from", endpoint)
	session.Rows = []*ir.SessionRow{{Table: rows, Key: []int{0}, Value: []int{1}}}
	// Two kinds of groups, one of them with a key of one member and without values of its own; events of either, of
	// both, of none.
	receivers := func(name string, members ...*ir.Member) *ir.Table {
		members = append(members, &ir.Member{Name: "receiver", Type: u(32), Hidden: true})
		return &ir.Table{Name: name, Kind: "receivers", Size: 12, Value: ir.Struct{Members: members, Size: 80}}
	}
	state := func(name string, k ir.Kind, levels int) *ir.Member {
		return member(name, ir.Type{Kind: k, Levels: levels, Size: 4})
	}
	levels := func(t ir.Type) ir.Type {
		t, _ = t.PerLevel(4)
		return t
	}
	subscribers := &ir.Group{Name: "subscribers", Max: 4, Rows: 8, Size: 2, Base: 1,
		Key: ir.Struct{Members: []*ir.Member{member("from", endpoint), member("type", u(8))}, Size: 20},
		Receivers: receivers("subscribers", member("to", endpoint), member("mac", levels(ir.MacType)),
			member("cid", levels(ir.Type{Kind: ir.Bytes, Size: 8})), state("row", ir.Ctr, 0),
			state("credit", ir.Credit, 4), state("id", ir.Credit, 0), member("tag", u(5)),
			state("rates", ir.Bucket, 4), state("rate", ir.Bucket, 0), state("set", ir.Translation, 0))}
	close := &ir.Group{
		Name: "close", Max: 4, Rows: 8, Size: 2, Base: 9,
		Key:       ir.Struct{Members: []*ir.Member{member("via", ir.AddrType)}, Size: 16},
		Receivers: receivers("close", state("tag", ir.Ctr, 0)),
	}
	event := func(id int, name string, fields ...*ir.Member) *ir.Event {
		return &ir.Event{Name: name, ID: id, Fields: ir.Struct{Members: fields, Size: 64}, Required: id == 2}
	}
	sent := event(1, "sent", member("time", u(16)), member("mono", u(64)), member("receiver", endpoint),
		member("on", ir.BoolType), member("hw", ir.MacType), member("at", ir.AddrType),
		member("tag", ir.Type{Kind: ir.Bytes, Size: 8}))
	both, none, other := event(2, "lost"), event(3, "event"), event(4, "receiver")
	row := func(g *ir.Group) *ir.Row { return &ir.Row{Name: "r", Table: g.Receivers} }
	body := func(g *ir.Group, events ...*ir.Event) []ir.Stmt {
		copy := &ir.Copy{}
		for _, e := range events {
			copy.Emits = append(copy.Emits, &ir.Emit{Event: e, Row: row(g), Full: -1})
		}
		each := []ir.Stmt{&ir.If{Then: []ir.Stmt{copy}, Else: []ir.Stmt{&ir.Skip{}}}}
		return []ir.Stmt{
			&ir.FanOut{
				Group: g, Row: row(g), Each: each, Effects: ir.Effects{Emits: []*ir.Emit{{Event: none, Full: -1}}},
			},
		}
	}
	return &ir.Plan{
		Name:   "nasty",
		Levels: 4, Groups: []*ir.Group{subscribers, close}, Receivers: 17, Credits: 99, Translations: 9, Ring: 4096,
		Events: []*ir.Event{sent, both, none, other},
		Kernel: ir.Version{Major: 5, Minor: 10}, Slots: 16, Usages: 1, Shared: 9,
		Settings: []*ir.Setting{
			{Name: "range", Type: u(16), Default: []byte{0x96, 0x0d}, Max: 60000, Doc: evil},
			{Name: "var", Type: u(64), Max: 1<<64 - 1},
			{Name: "url_id", Type: ir.AddrType, Default: addr[:]},
			{Name: "mac", Type: ir.MacType, Default: []byte{2, 0, 0, 0, 0, 1}},
			{Name: "defer", Type: ir.BoolType, Default: []byte{1}},
		},
		Tables: []*ir.Table{
			{Name: "a_b", Kind: "hash", Size: 4, Key: ir.Struct{
				Members: []*ir.Member{member("a_b", u(8)), member("ab", u(12)), member("aB", u(16))}, Size: 8,
			},
				Value: ir.Struct{Members: []*ir.Member{member("hits", counter),
					member("next", ir.Type{Kind: ir.NextHop, Size: 36}), member("mac", ir.MacType),
					state("quota", ir.Credit, 4), state("rate", ir.Bucket, 0), state("ids", ir.Translation, 0)},
					Size: 48}},
			{Name: "a__b", Kind: "lpm", Size: 4, Key: ir.Struct{
				Members: []*ir.Member{member("dst", ir.Type{Kind: ir.Prefix, Size: 20})}, Size: 20,
			},
				Value: ir.Struct{
					Members: []*ir.Member{
						from, to, {Name: "hop_to", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 36, Hidden: true, To: to,
							From: from},
					}, Size: 56,
				}},
			{Name: "counters", Kind: "array", PerCPU: true, Size: 4,
				Key: ir.Struct{Members: []*ir.Member{member("index", u(32))}, Size: 4},
				Value: ir.Struct{
					Members: []*ir.Member{member("key", u(64)), member("row", ir.Type{Kind: ir.Bytes, Size: 4})},
					Size:    16,
				}},
			rows,
		},
		Sessions: []*ir.Session{session},
		Counters: []*ir.Counter{{Name: "switch", Index: 0}, {Name: "a_b", Index: 1}, {Name: "ab", Index: 2}},
		Programs: []*ir.Program{
			{Name: "close", Hook: "tc/ingress", L2: true, Paths: []string{"eth ipv4 udp", "eth ipv6 udp"},
				Reasons: []*ir.Reason{{Name: "sent", Kind: ir.Sent, Doc: evil}, {Name: "go", Kind: ir.Punted}}},
			{Name: "options", Hook: "tc/egress", Reasons: []*ir.Reason{{Name: "type", Kind: ir.Dropped},
				{Name: "reason", Kind: ir.Fault}, {Name: "program", Kind: ir.Passed}}},
			{Name: "open_type", Hook: "tc/egress", Body: body(subscribers, sent, both)},
			{Name: "fan", Hook: "tc/ingress", Body: body(close, both, other)},
		},
	}
}

// compile builds the package from memory.
func compile(t *testing.T, src []byte) {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for name, text := range map[string][]byte{"relay.go": src, "relay_bpfel.o": []byte("object")} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, "virtual", name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"),
		"./virtual").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, src)
	}
}

func TestRenderCompiles(t *testing.T) {
	src, err := Render(nasty(), RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	compile(t, src)
	for range 3 {
		again, err := Render(nasty(), RenderOptions{})
		if err != nil || !bytes.Equal(src, again) {
			t.Fatalf("another result for the same plan: %v", err)
		}
	}
	// The smallest plan there is.
	small, err := Render(&ir.Plan{Name: "small", Programs: []*ir.Program{{Name: "p", Hook: "tc/ingress"}}},
		RenderOptions{Package: "x", Object: "y.o"})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(small, []byte("package x\n")) || !bytes.Contains(small, []byte("//go:embed y.o\n")) {
		t.Errorf("package and object aren't named as asked:\n%s", small)
	}
}

// The names that people will use, once each.
func TestRenderNames(t *testing.T) {
	src, err := Render(nasty(), RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "relay.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				got[d.Name.Name]++
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					got[s.Name.Name]++
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() {
							got[n.Name]++
						}
					}
				}
			}
		}
	}
	want := map[string]int{}
	for _, n := range strings.Fields(`Settings Options Relay Load Counters
		CloseProgram CloseReason CloseSent CloseGo OptionsProgram OptionsReason OptionsDropType OptionsReason_2
		OptionsProgram_2
		OpenTypeProgram OpenTypeReason
		ABTable ABRow ABKey ABTable_2 ABRow_2 CountersTable CountersRow
		Type TypeSessions TypeSession TypeCounters
		FanProgram FanReason SubscribersGroups SubscribersKey SubscribersGroup SubscribersRow SubscribersReceiver
		SubscribersChange SubscribersState
		CloseGroups CloseGroup CloseRow CloseReceiver CloseChange CloseState
		Event Lost Receiver SentEvent LostEvent EventEvent ReceiverEvent`) {
		want[n] = 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, text := range []string{"Close_2 *CloseProgram", "OpenType *OpenTypeProgram", "Type *TypeSessions",
		"Counters_2 *CountersTable",
		"AB   uint8\n\tAb   uint16\n\tAB_2 uint16", "Range *uint16", "Var uint64", "URLID netip.Addr",
		"MAC net.HardwareAddr", "Defer *bool",
		"Tag  [8]byte", "ID   uint8 // 0x1 to 0x4", "or 1m0s after its last packet",
		"Quota [4]*runtime.Credit", "Rate  *runtime.Bucket", "Rates  [4]*runtime.Bucket", "Credit [4]*runtime.Credit",
		" [4][8]byte", " [4]net.HardwareAddr",
		"Row    *runtime.Counter", "ID     *runtime.Credit", "Set    *runtime.Translation",
		"Tag *runtime.Counter", "Close_3 *CloseGroups",
		"type CloseGroup = runtime.Group[netip.Addr, CloseRow, CloseState]", "Receiver   *SubscribersReceiver",
		"Receiver Receiver", "Receiver *CloseReceiver",
		"Time_2     uint16", "Mono_2     uint64", "Receiver_2 netip.AddrPort", "what it can't report isn't sent",
		"Event    uint64", "Lost     uint64"} {
		if !bytes.Contains(bytes.ReplaceAll(src, []byte("\n// "), []byte(" ")), []byte(text)) {
			t.Errorf("no %q in the package", text)
		}
	}
}

// Texts of the spec stay within the comment or the string that they are in.
func TestRenderText(t *testing.T) {
	src, err := Render(nasty(), RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"\x00", "\u2028", "\n// Code that"} {
		if bytes.Contains(src, []byte(bad)) {
			t.Errorf("%q got through", bad)
		}
	}
	if !bytes.Contains(src, []byte("a doc */ with // Code that: } `ticks` \"quotes\"")) {
		t.Error("the text is gone")
	}
}

func TestRenderRefuses(t *testing.T) {
	for _, opt := range []RenderOptions{
		{Package: "type"}, {Package: "a-b"}, {Package: "A"}, {Package: "_"}, {Package: "1a"},
		{Object: "../x.o"}, {Object: "a b.o"}, {Object: "a.o\nvar x"}, {Object: "*.o"}, {Object: "ö.o"},
	} {
		if _, err := Render(nasty(), opt); err == nil {
			t.Errorf("%+v was accepted", opt)
		}
	}
}

// The description in the package is the one that the command line loads relays with.
func TestDescIsTheSame(t *testing.T) {
	text := literal(Desc(nasty()))
	for _, want := range []string{`Default: uint64(3478)`, `Default: netip.MustParseAddr("192.0.2.1")`,
		`Default: net.HardwareAddr{0x02, 0x00, 0x00, 0x00, 0x00, 0x01}`,
		`Required: true`, `To: "to",From: "from"`, `Session: "type"`, `Lifetime: 90000000000`, `Kind: abi.KindBucket`,
		`Ring: 4096`, `Base: 9`, `Ranges: [][2]uint64{{0x1,0x4,},}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	d := Desc(nasty())
	if hop := d.Tables[1].Value[2]; hop.To == "" || hop.From == "" || hop.Kind != abi.KindHop {
		t.Errorf("hop %+v", hop)
	}
	if d.Tables[3].Session == "" || d.Sessions[0].Rows[0].Table != 3 {
		t.Errorf("table %+v, session %+v", d.Tables[3], d.Sessions[0])
	}
}

// Lines of generated Go have at most 120 columns, as all others.
func TestColumns(t *testing.T) {
	lines := 0
	for _, pattern := range []string{"../../golden/*/relay.go.txt", "../../examples/*/*/relay.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 5 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(text), "\n") {
				lines++
				if n := len(strings.ReplaceAll(line, "\t", "    ")); n > 120 {
					t.Errorf("%s:%d has %d columns", file, i+1, n)
				}
			}
		}
	}
	if lines < 10_000 {
		t.Errorf("only %d lines", lines)
	}
}
