//go:build linux

package fuzz_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// liveFaultPackets is within how many packets a fault has to be found, on devices of one kind, with one of so many
// seeds: some faults show in few of the states that a seed gives.
const liveFaultPackets, liveFaultSeeds = 8000, 4

// Packets on devices find faults that nothing else shows: in what the kernel knows of a packet beside its bytes.
func TestLivePlantedFaults(t *testing.T) {
	needs.All(t)
	bpftest.Rights(t)
	for i, f := range liveFaults {
		name := fmt.Sprintf("%02d %s: %s", i+1, f.where, f.what)
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			file := specFile(t, f.spec)
			c, plan := planned(t, file), planOf(t, file)
			if f.plan != nil && !f.plan(plan) {
				t.Fatal("the plan has no place for the fault any more")
			}
			src, err := bpf.Render(plan, bpf.Options{})
			if err != nil {
				t.Fatal(err)
			}
			switch f.where {
			case "helper":
				src.Header = plant(t, f, src.Header)
			case "code":
				src.C = plant(t, f, src.C)
			}
			object, _, err := clang.Compile(context.Background(), src.C, src.Header, clang.Options{})
			if err != nil {
				t.Fatal(err)
			}
			packets, start := 0, time.Now()
			c.object = object
			for n := range liveFaultSeeds * len(devices) {
				config := fuzz.Config{Packets: liveFaultPackets, Seed: uint64(1 + n/len(devices))}
				r := runLive(t, c, devices[n%len(devices)], config)
				packets += r.Packets
				if d := r.Difference; d != nil {
					text, _, _ := strings.Cut(d.Text, "\n")
					t.Logf("%s (%s): caught after %d packets and %d ms: %.300s", name, f.spec, packets,
						time.Since(start).Milliseconds(), text)
					return
				}
			}
			t.Errorf("%s (%s): not caught by %d packets", name, f.spec, packets)
		})
	}
}

var liveFaults = []fault{
	{
		where: "helper", spec: "turn", what: "no checksum is ever left to a device, where struct sk_buff can't be " +
			"looked at", old: `return fr_facts & FR_FACTS_READ \? fr_partial_read\(skb\) : 0;`, new: `return 0;`,
	},
	{where: "helper", spec: "turn", what: "no checksum is ever left to a device",
		old: `if \(fr_facts & FR_FACTS_CAST\) \{`, new: `if (1) return 0; else {`},
	{where: "helper", spec: "turn", what: "what looks partial is partial",
		old: `return \(__u16\)partial == field;`, new: `return old == fr_fold(pseudo);`},
	{where: "helper", spec: "lco", what: "what looks partial is partial, in a tunnel",
		old: `return \(__u16\)partial == field;`, new: `return old == fr_fold(pseudo);`},
	{where: "back end", spec: "own", what: "a header that the spec doesn't name leaves its checksum",
		plan: noGuard("partial_checksum")},
	{where: "back end", spec: "turn", what: "a header that the spec doesn't name leaves its checksum, after UDP",
		plan: noGuard("partial_checksum")},
	{where: "helper", spec: "turn", what: "headers move although a checksum is left", old: `__s32 grow = to - from;`,
		new: `__s32 grow = to - from; how &= ~FR_PAYLOAD;`},
	{where: "code", spec: "lco", what: "the payload moves although it leaves a checksum",
		old: `\w+\.partial \? FR_PAYLOAD : 0`, new: `FR_PAYLOAD`},
	{where: "helper", spec: "tunnels", what: "a checksum inside that is left to a device counts as it is",
		old: `if \(start >= off && start < off \+ len\)`, new: `if (start == off)`},
	{where: "code", spec: "tunnels", what: "what a device has verified outside is verified inside",
		old: `bpf_csum_level\(skb, BPF_CSUM_LEVEL_DEC\);`, new: ``},
	{where: "helper", spec: "segments", what: "every GSO packet is a tunnel's", old: `& FR_GSO_ENCAP_ALL\) != 0;`,
		new: `& FR_GSO_ENCAP_ALL) != 0 || 1;`},
	{where: "helper", spec: "encap", what: "segments get smaller where a tunnel's headers are in front",
		old: `= BPF_F_ADJ_ROOM_FIXED_GSO \| `, new: `= `},
	{where: "helper", spec: "encap", what: "headers of a packet are not a part of its segments' size",
		old: `start \+ words \* 4`, new: `start`},
	{where: "helper", spec: "encap", what: "UDP's header is not a part of its segments' size",
		old: `return start \+ 8;`, new: `return start;`},
	{where: "code", spec: "encap", what: "segments fit as those that came",
		old: `skb->gso_size \+ segment_front \+\s+\([^)]*\)`, new: `skb->gso_size + segment_front - 14`},
	{where: "helper", spec: "encap", what: "the kernel doesn't learn where the frame in a GSO packet begins",
		old: `flags \|= \(__u64\)ETH_HLEN << BPF_ADJ_ROOM_ENCAP_L2_SHIFT;`, new: `flags |= 0;`},
	{where: "helper", spec: "encap", what: "the kernel doesn't learn that GSO packets have frames inside",
		old: `flags \| BPF_F_ADJ_ROOM_ENCAP_L2_ETH\)`, new: `flags)`},
	{where: "helper", spec: "encap", what: "the kernel doesn't learn that UDP is in front of GSO packets",
		old: `flags \|= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;`, new: `flags |= 0;`},
	{where: "helper", spec: "encap", what: "the kernel doesn't learn that IPv6 is in front of GSO packets",
		old: `how & FR_IN_IPV6 \?`, new: `0 ?`},
	{where: "helper", spec: "encap", what: "the kernel doesn't learn that GSO packets are in a tunnel",
		old: `if \(how & \(FR_IN_IPV4 \| FR_IN_IPV6\)\)`, new: `if (0)`},
	{where: "back end", spec: "encap", what: "all GSO packets go into tunnels", plan: noGuard("gso_packet")},
	{where: "code", spec: "families", what: "the kernel doesn't learn that IPv6 is IPv4 now", old: `\bFR_TO_IPV4\b`,
		new: `0`},
	{where: "code", spec: "families", what: "the kernel doesn't learn that IPv4 is IPv6 now", old: `\bFR_TO_IPV6\b`,
		new: `0`},
	{where: "code", spec: "bare", what: "a packet without a link-layer header has no room for one",
		old: `bpf_skb_change_head\(skb, 14, 0\)`, new: `0`},
	{where: "code", spec: "bare", what: "the kernel doesn't learn that IPv6 is IPv4 now, on a tun device",
		old: `, FR_TO_IPV4\b`, new: `, 0`},
	{where: "code", spec: "bare", what: "the kernel doesn't learn that IPv4 is IPv6 now, on a tun device",
		old: `, FR_TO_IPV6\b`, new: `, 0`},
	{where: "helper", spec: "echo", what: "segments may be larger than the MTU of their route",
		old: `fib->tot_len = len < 0xFFFF \? len : 0xFFFF;`,
		new: `fib->tot_len = ((struct __sk_buff *)ctx)->gso_size ? 0 : len;`},
}
