package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(m.Run())
}

// build compiles the relay of the tests, with what the variant defines. Objects are there to be loaded, so a test that
// asks for one needs root.
func build(t testing.TB, defines ...string) []byte {
	t.Helper()
	return buildFile(t, "flow", defines...)
}

func buildFile(t testing.TB, name string, defines ...string) []byte {
	t.Helper()
	needs.Root(t)
	object, err := compileFile(name, defines...)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func compileFile(name string, defines ...string) ([]byte, error) {
	if built := os.Getenv("FASTRELAY_TEST_OBJECTS"); built != "" { // if there is no clang: on another kernel
		return os.ReadFile(filepath.Join(built, strings.Join(append([]string{name}, defines...), "-")+".o"))
	}
	return bpftest.Compile("testdata/"+name+".bpf.c", defines...)
}

// flowDesc describes testdata/flow.bpf.c.
func flowDesc() *abi.Desc {
	ep := func(name string, off int) abi.Member {
		return abi.Member{Name: name, Kind: abi.KindEndpoint, Size: 18, Off: off}
	}
	uint := func(name string, size, off int) abi.Member {
		return abi.Member{Name: name, Kind: abi.KindUint, Bits: 8 * size, Size: size, Off: off}
	}
	hidden := func(name string, off int) abi.Member {
		return abi.Member{Name: name, Kind: abi.KindUint, Bits: 32, Size: 4, Off: off, Hidden: true}
	}
	return &abi.Desc{
		Name:   "flow",
		Kernel: [2]int{5, 10},
		Settings: []abi.Setting{
			{Name: "port", Kind: abi.KindUint, Size: 2, Bits: 16, Default: uint64(3478), Max: 60000},
			{Name: "on", Kind: abi.KindBool, Size: 1, Default: false},
			{Name: "self", Kind: abi.KindAddr, Size: 16, Default: netip.MustParseAddr("192.0.2.1")},
		},
		Tables: []abi.Table{
			{Name: "by_client", Kind: abi.TableHash, Size: 8, KeySize: 40, ValueSize: 64, Session: "flow",
				Key: []abi.Member{ep("client", 0), ep("server", 18), uint("number", 2, 36)},
				Value: []abi.Member{ep("relayed", 0), ep("peer", 18),
					{Name: "hop_peer", Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true, To: "peer", From: "relayed"},
					hidden("slot", 56), hidden("gen", 60)}},
			{Name: "by_peer", Kind: abi.TableHash, Size: 8, KeySize: 36, ValueSize: 72, Session: "flow",
				Key: []abi.Member{ep("peer", 0), ep("relayed", 18)},
				Value: []abi.Member{ep("client", 0), ep("server", 18), uint("number", 2, 36),
					{Name: "hop_client", Kind: abi.KindHop, Size: 20, Off: 40, Hidden: true, To: "client",
						From: "server"},
					hidden("slot", 60), hidden("gen", 64)}},
			{Name: "sources", Kind: abi.TableHash, Size: 4, KeySize: 16, ValueSize: 8,
				Key: []abi.Member{{Name: "addr", Kind: abi.KindAddr, Size: 16}},
				Value: []abi.Member{{Name: "connections", Kind: abi.KindCounter, Size: 4},
					{Name: "refused", Kind: abi.KindCounter, Size: 4, Off: 4}}},
			{Name: "routes", Kind: abi.TableLPM, Size: 16, KeySize: 20, ValueSize: 40,
				Key:   []abi.Member{{Name: "dst", Kind: abi.KindPrefix, Size: 20}},
				Value: []abi.Member{{Name: "via", Kind: abi.KindNextHop, Size: 36}}},
			{Name: "things", Kind: abi.TableHash, Size: 2, KeySize: 8, ValueSize: 56,
				Key: []abi.Member{uint("id", 4, 0), uint("kind", 1, 4)},
				Value: []abi.Member{uint("n", 8, 0), ep("at", 8), {Name: "mac", Kind: abi.KindMAC, Size: 6, Off: 26},
					{Name: "tag", Kind: abi.KindBytes, Size: 8, Off: 32},
					{Name: "on", Kind: abi.KindBool, Size: 1, Off: 40},
					{Name: "level", Kind: abi.KindUint, Bits: 3, Size: 1, Off: 41}}},
			{Name: "loads", Kind: abi.TableHash, PerCPU: true, Size: 4, KeySize: 4, ValueSize: 16,
				Key:   []abi.Member{uint("id", 4, 0)},
				Value: []abi.Member{uint("n", 8, 0), {Name: "on", Kind: abi.KindBool, Size: 1, Off: 8}}},
			{Name: "levels", Kind: abi.TableArray, Size: 4, KeySize: 4, ValueSize: 8,
				Key: []abi.Member{uint("index", 4, 0)}, Value: []abi.Member{uint("limit", 8, 0)}},
		},
		Sessions: []abi.Session{{
			Name: "flow", Size: 8,
			Fields: []abi.Field{
				{Name: "client", Kind: abi.KindEndpoint, Size: 18}, {Name: "server", Kind: abi.KindEndpoint, Size: 18},
				{Name: "number", Kind: abi.KindUint, Bits: 16, Size: 2, Ranges: [][2]uint64{{0x4000, 0x4fff}}},
				{Name: "relayed", Kind: abi.KindEndpoint, Size: 18}, {Name: "peer", Kind: abi.KindEndpoint, Size: 18},
			},
			Rows: []abi.Row{
				{Table: 0, Key: []int{0, 1, 2}, Value: []int{3, 4}},
				{Table: 1, Key: []int{4, 3}, Value: []int{0, 1, 2}},
			},
		}},
		Programs: []abi.Program{
			{Name: "fwd", Hook: abi.HookIngress, L2: true, Reasons: []abi.Reason{
				{Name: "inactive", Kind: abi.ReasonPunted}, {Name: "no_by_client", Kind: abi.ReasonPunted, Number: 1},
				{Name: "sent", Kind: abi.ReasonSent, Number: 2}, {Name: "port", Kind: abi.ReasonPunted, Number: 3},
				{Name: "other", Kind: abi.ReasonPunted, Number: 4}}},
			{Name: "out", Hook: abi.HookEgress, Base: 5},
		},
		Counters: []string{"hits"},
		Slots:    8,
		Usages:   2,
		Shared:   9,
	}
}

func quiet(opt Options) Options {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return opt
}

// load loads the relay of the tests; every address is behind device 1, unless opt says otherwise.
func load(t testing.TB, opt Options) *Relay {
	t.Helper()
	if opt.routes == nil {
		opt.routes = func(from, to netip.Addr) Hop { return Hop{State: HopNeighbour, Ifindex: 1, MTU: 1500} }
	}
	return mustLoad(t, flowDesc(), build(t), opt)
}

func mustLoad(t testing.TB, desc *abi.Desc, object []byte, opt Options) *Relay {
	t.Helper()
	r, err := Load(desc, object, quiet(opt))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// flow returns the values of a session; n distinguishes one from another.
func flow(n int) []any {
	port := func(addr string, base int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(base+n))
	}
	return []any{
		port("198.51.100.7", 40000), port("192.0.2.1", 3478-n), 0x4000 + n, port("192.0.2.1", 50000),
		port("203.0.113.9", 7000),
	}
}

func open(t testing.TB, r *Relay, n int) *AnySession {
	t.Helper()
	s, err := r.Open("flow", flow(n)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// packet is what the client of flow(n) sends.
func packet(n int) []byte {
	v := flow(n)
	client, server := v[0].(netip.AddrPort), v[1].(netip.AddrPort)
	b := make([]byte, 60)
	b[12] = 8
	b[14] = 0x45
	binary.BigEndian.PutUint16(b[16:], 46)
	b[22], b[23] = 64, 17
	copy(b[26:], client.Addr().AsSlice())
	copy(b[30:], server.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[34:], client.Port())
	binary.BigEndian.PutUint16(b[36:], server.Port())
	binary.BigEndian.PutUint16(b[38:], 26)
	binary.BigEndian.PutUint16(b[42:], uint16(0x4000+n))
	return b
}

// verdicts of the test relay's program.
const (
	forwarded = uint32(2)          // TC_ACT_SHOT stands for it
	passes    = uint32(0xffffffff) // TC_ACT_UNSPEC
)

func run(t testing.TB, r *Relay, data []byte) uint32 {
	t.Helper()
	ret, err := r.Program("fwd").Kernel().Run(&ebpf.RunOptions{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	return ret
}

// rows counts the rows of a table.
func rows(r *Relay, table string) int {
	n := 0
	for range r.Table(table).All() {
		n++
	}
	return n
}

// receive waits for a value, or for a channel to be closed.
func receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
	return v
}

// until waits for a condition: for limit, and longer, since the machine may have other things to do.
func until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	limit *= 5
	end := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// bg is the context of calls that nothing interrupts.
var bg = context.Background()

// found returns the group that was looked for; nil: there is none.
func found(g *AnyGroup, err error) *AnyGroup {
	if err != nil && !errors.Is(err, ErrNotFound) {
		panic(err)
	}
	return g
}

// reasons returns what a program counted, by the names of its reasons.
func reasons(r *Relay, program string) map[string]uint64 {
	p := r.Program(program)
	out := map[string]uint64{}
	for i, n := range must(p.Counts()) {
		out[p.Desc().Reasons[i].Name] += n.Packets
	}
	return out
}

// must returns a value that has to be there.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// read iterates over events, until the iteration ends.
func read(r *Relay, ctx context.Context) iter.Seq[*Event] {
	return func(yield func(*Event) bool) {
		for ev, err := range r.Events(ctx) {
			if err != nil || !yield(ev) {
				return
			}
		}
	}
}
