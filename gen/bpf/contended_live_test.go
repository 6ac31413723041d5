//go:build linux

package bpf_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const contention = `
name: "contention"
tables: sources: {key: addr: "ip", value: {left: "credit", rate: "bucket"}}
groups: taps: {
	key: port: "u16", receiver: {local: "endpoint", remote: "endpoint", left: "credit"}, max: 4
}
programs: {
	for name, do in {
		credit: [{admit: {credit: "s.left", cost: 5}}, "pass"]
		bucket: [{admit: {credit: "s.left", cost: 5}}, {admit: {credit: "s.rate", cost: 1}}, "pass"]
		dropped: [{admit: {credit: "s.left", cost: 5, else: drop: "over"}}, "pass"]
		copies: [{fan_out: {group: taps: ["udp.dst_port"], each: [
			{admit: {credit: "r.left", cost: 5}}, {send: {from: "r.local", to: "r.remote"}},
		]}}]
	} {(name): {hook: "tc/ingress", stack: ["eth", "ipv4", "udp"], lookup: s: sources: ["ipv4.src"], "do": do}}
}
`

// Between reading what is spent and adding to it, another processor adds to it, each time: after 16 attempts nothing is
// spent, and the packet or the copy is counted as contended. At the 16th attempt it still succeeds. The other processor
// is planted into the helpers, since none is always in time.
func TestContended(t *testing.T) {
	needs.Root(t)
	const limit, burst = 1000, 100
	for _, test := range []struct {
		program string
		helper  string // into which it is planted
		reason  string
		kind    abi.ReasonKind
	}{
		{"credit", "fr_admit", "contended", abi.ReasonPunted},
		{"bucket", "fr_admit_timed", "contended", abi.ReasonPunted},
		{"dropped", "fr_admit", "over", abi.ReasonDropped},
		{"copies", "fr_admit", "contended", abi.ReasonDeclined},
	} {
		for _, times := range []int{abi.CreditTries - 1, abi.CreditTries} {
			contended := times == abi.CreditTries
			if test.kind == abi.ReasonDeclined && !contended {
				continue // there is no device to send the copy to
			}
			t.Run(fmt.Sprintf("%s, %d times", test.program, times), func(t *testing.T) {
				u := compileText(t, "contention.cue", []byte(contention), func(s *bpf.Source) {
					const swap = "if (likely(__sync_val_compare_and_swap(&c->spent,"
					front, helper, found := strings.Cut(s.Header, " "+test.helper+"(__u32 credit")
					if !found || !strings.Contains(helper, swap) {
						t.Fatalf("%s swaps nothing", test.helper)
					}
					s.Header = front + " " + test.helper + "(__u32 credit" + strings.Replace(helper, swap,
						fmt.Sprintf("if (i < %d) __sync_fetch_and_add(&c->spent, 1);\n%s", times, swap), 1)
				})
				desc := glue.Desc(u.plan)
				var r *runtime.Relay
				must(t, testnet.Stub(t).Host.Do(func() (err error) {
					r, err = runtime.Load(&desc, u.object, runtime.Options{Lease: time.Minute})
					return err
				}))
				defer r.Close()
				client := netip.MustParseAddrPort("198.51.100.7:40001")
				server := netip.MustParseAddrPort("192.0.2.1:7000")
				must(t, r.Table("sources").Put([]any{client.Addr()}, []any{nil, nil}))
				row, err := r.Table("sources").Get(client.Addr())
				must(t, err)
				left, rate := row[0].(*runtime.Credit), row[1].(*runtime.Bucket)
				group, err := r.GroupKind("taps").Open(t.Context(), 7000)
				must(t, err)
				v, err := group.Add(t.Context(), server, netip.MustParseAddrPort("203.0.113.9:9000"))
				must(t, err)
				left.SetLimit(limit)
				v.State(0).(*runtime.Credit).SetLimit(limit)
				rate.SetRate(runtime.Rate{PerSecond: 1, Burst: burst}) // nothing refills while the test runs
				mac := make(net.HardwareAddr, 6)
				frame, err := turnlab.UDPFrame(mac, mac, client, server, []byte("hello"))
				must(t, err)
				program := r.Program(test.program)
				_, err = bpftest.Run(program.Kernel(), ebpf.RunOptions{Data: frame, Repeat: 1})
				must(t, err)
				counts, err := program.Counts()
				must(t, err)
				for i, reason := range program.Desc().Reasons {
					want := uint64(0)
					if contended && reason.Name == test.reason && reason.Kind == test.kind ||
						reason.Name == "pass" && (!contended || test.kind == abi.ReasonDeclined) {
						want = 1
					}
					if counts[i].Packets != want {
						t.Errorf("%s: %d packets, want %d", reason.Name, counts[i].Packets, want)
					}
				}
				spent := func(c *runtime.Credit, helper string) uint64 { // not by the other processor
					if test.helper == helper && c.Spent() > 0 {
						return c.Spent() - uint64(times)
					}
					return c.Spent()
				}
				var cost, taken uint64
				if !contended {
					cost = 5
				}
				if !contended && test.program == "bucket" {
					taken = 1
				}
				if got := spent(left, "fr_admit"); got != cost {
					t.Errorf("%d spent, want %d", got, cost)
				}
				if got := rate.Available(); got != burst-taken {
					t.Errorf("the bucket has %d, want %d", got, burst-taken)
				}
				use, err := v.Usage()
				must(t, err)
				declined := uint64(0)
				if test.kind == abi.ReasonDeclined {
					declined = 1
					if got := spent(v.State(0).(*runtime.Credit), "fr_admit"); got != 0 {
						t.Errorf("%d spent of the receiver's credit", got)
					}
				}
				if use.Declined != declined || use.Packets != 0 {
					t.Errorf("the receiver: %+v", use)
				}
			})
		}
	}
}
