package cli_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// What check, ps and attach say of the programs in front of a relay agrees with what packets do: in all orders of
// programs that end the chain and of those that don't, and of places that a relay can ask for.
func TestFront(t *testing.T) {
	needs.Root(t)
	const next, ok = -1, 0 // TC_ACT_UNSPEC, TC_ACT_OK
	for i, tt := range []struct {
		others []int32 // what the programs that are there return, in their order
		legacy bool    // a filter of clsact that returns TC_ACT_OK
		place  string
		behind int // how many of them run before the relay
	}{
		{others: nil},
		{others: []int32{next}, behind: 1},
		{others: []int32{ok}, behind: 1},
		{others: []int32{next, ok}, behind: 2},
		{others: []int32{ok}, place: ":first"},
		{others: []int32{next, ok}, place: ":first"},
		{others: []int32{next, ok}, place: ":before=other1", behind: 1},
		{others: []int32{ok, next}, place: ":before=other1", behind: 1},
		{others: []int32{ok, next}, place: ":before=other0"},
		{legacy: true},
		{others: []int32{ok}, legacy: true, place: ":first"},
	} {
		if needs.Left(i, 2) {
			continue
		}
		what := fmt.Sprintf("%v%s, legacy %v", tt.others, tt.place, tt.legacy)
		line, err := testnet.Start(t).Line()
		if err != nil {
			t.Fatal(err)
		}
		dev := line.RelayIn.Name
		counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer counts.Close()
		gets := true
		for i, verdict := range tt.others {
			other(t, line.Relay, line.RelayIn.Index, program(t, fmt.Sprint("other", i), verdict, counts))
			gets = gets && (i >= tt.behind || verdict == next)
		}
		if tt.legacy {
			legacy(t, line.Relay, line.RelayIn.Index, program(t, "legacy", ok, counts))
		}
		r := detach(t, line.Relay, nil, "../../gen/bpf/testdata/echo/spec.cue", "--attach", "back="+dev+tt.place)
		var conn net.Conn
		to := netip.AddrPortFrom(line.RelayInAddr.Of(4), 9)
		if err := line.Client.Do(func() (err error) {
			conn, err = net.Dial("udp", to.String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		seen := func() (n uint64) {
			if err := counts.Lookup(uint32(0), &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		var places []string
		for i := range tt.others {
			places = append(places, fmt.Sprintf("back=%s:before=other%d\n", dev, i))
		}
		for _, line := range [][]string{
			{"attach", "--socket", r.socket, "back=" + dev + ":"},
			{"run", "../../gen/bpf/testdata/echo/spec.cue", "--attach", "back=" + dev + ":"},
		} {
			offered := r.must(t, nil, append([]string{"__complete"}, line...)...)
			for _, want := range append(places, "back="+dev+":first\n") {
				if !strings.Contains(offered, want) {
					t.Errorf("%s: of %q, %q isn't completed: %s", what, line, want, offered)
				}
			}
		}
		before, came := seen(), false
		if err := testnet.Until(20*time.Second, "packets come", func() bool {
			_, _ = conn.Write([]byte("x")) // refused: nothing listens there
			came = !strings.Contains(r.must(t, nil, "show", "programs", "--socket", r.socket), "no packet")
			return came || !gets && seen() > before+5
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if came != gets {
			t.Errorf("%s: packets come: %v, want %v", what, came, gets)
		}
		check := r.must(t, nil, "check", "--socket", r.socket)
		attach := r.must(t, nil, "attach", "--socket", r.socket, "back="+dev)
		for i := range tt.others {
			name := fmt.Sprint("other", i, " (program ")
			if says := strings.Contains(check, name); says != (i < tt.behind) {
				t.Errorf("%s: %d run before it, and check says:\n%s", what, tt.behind, check)
			}
			if says := strings.Contains(attach, "behind "+name); says != (i < tt.behind) {
				t.Errorf("%s: %d run before it, and attach says:\n%s", what, tt.behind, attach)
			}
		}
		if says := strings.Contains(check, "none has come"); says != !gets {
			t.Errorf("%s: packets come: %v, and check says:\n%s", what, gets, check)
		}
		if out, err := r.cli("attach", "--socket", r.socket, "back="+dev+":first"); (err != nil) != (tt.behind > 0) {
			t.Errorf("%s: attached first, when %d run before it: %v: %s", what, tt.behind, err, out)
		}
	}
}

// program counts and returns a verdict.
func program(t *testing.T, name string, verdict int32, counts *ebpf.Map) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, verdict).WithSymbol("end"),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// other attaches a program by TCX, after those that are there.
func other(t *testing.T, host *testnet.Host, index int, prog *ebpf.Program) {
	t.Helper()
	var l link.Link
	if err := host.Do(func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{
			Interface: index, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail(),
		})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// legacy attaches a program by a filter of clsact.
func legacy(t *testing.T, host *testnet.Host, index int, prog *ebpf.Program) {
	t.Helper()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
	}, Fd: prog.FD(), Name: "legacy", DirectAction: true}
	if err := host.Do(func() error {
		return errors.Join(netlink.QdiscAdd(qdisc), netlink.FilterAdd(filter))
	}); err != nil {
		t.Fatal(err)
	}
}
