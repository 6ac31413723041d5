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
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// counted finds a session's row for all packets, and does with them what their port says.
const counted = `
name: "counted"
headers: seal: {
	after: ipv4: protocol: 253
	fields: [{name: "id", bits: 32}]
}
sessions: flow: {
	fields: {client: "endpoint", from: "endpoint", to: "endpoint", near: "ip", far: "ip"}
	rows: by_client: {key: ["client"], value: ["from", "to", "near", "far"]}
	size: 8
}
groups: taps: {key: port: "u16", receiver: {local: "endpoint", remote: "endpoint"}, max: 4}
programs: counted: {
	hook: "tc/ingress"
	stack: ["eth", {inner: "ipv4"}, "udp"]
	lookup: s: by_client: ["udp.src"]
	rules: [
		{match: "udp.dst_port": 7001, do: [{send: {from: "s.from", to: "s.to"}}]},
		{match: "udp.dst_port": 7002, do: [{drop: "unwanted"}]},
		{match: "udp.dst_port": 7003, do: ["pass"]},
		{match: "udp.dst_port": 7004, do: [{fan_out: {
			group: taps: ["udp.dst_port"], each: [{send: {from: "r.local", to: "r.remote"}}]
		}}]},
		{match: "udp.dst_port": 7005, do: [
			{push: {ipv4: {dscp: 0, ecn: 0}, before: "inner"}}, {send: {from: "s.near", to: "s.far"}},
		]},
		{match: "udp.dst_port": 7006, do: [
			{push: {ipv4: {dscp: 0, ecn: 0}, before: "inner"}}, {push: {seal: id: 1, before: "inner"}},
			{send: {from: "s.near", to: "s.far"}},
		]},
	]
}
`

// A session's count is of the packets that a rule sent, passed or fanned out, each once, and of their bytes as they
// came: not of copies, nor of headers that are put in, nor of the segments of a GSO packet (docs/operate.md). Those
// that a rule drops, that go up or that the kernel fails to send are in the program's counts alone, which have all.
func TestSessionBytes(t *testing.T) {
	needs.Root(t)
	works := compileText(t, "counted.cue", []byte(counted), nil)
	fails := compileText(t, "counted.cue", []byte(counted), func(s *bpf.Source) {
		s.C = strings.Replace(s.C, "#include", "#define FR_INJECT_FAULT 1\n#include", 1)
	})
	const datagram, super = 100, 3 * 100 // bytes of payload
	for _, test := range []struct {
		what     string
		port     uint16
		payload  int
		behind   int // bytes after the datagram
		reason   string
		sessions bool // the packet is the session's
	}{
		{"sent", 7001, datagram, 0, "sent", true},
		{"sent, with bytes after the datagram", 7001, datagram, 7, "sent", true},
		{"a GSO packet", 7001, super, 0, "sent", true},
		{"dropped", 7002, datagram, 0, "unwanted", false},
		{"passed", 7003, datagram, 0, "pass", true},
		{"a GSO packet that is passed", 7003, super, 0, "pass", true},
		{"three copies", 7004, datagram, 0, "pass", true},
		{"into a tunnel", 7005, datagram, 0, "sent", true},
		{"a GSO packet into a tunnel", 7005, super, 0, "sent", true},
		{"behind another header", 7006, datagram, 0, "sent", true},
		{"a GSO packet that can't go behind another header", 7006, super, 0, "gso_packet", false},
		{"the kernel fails", 7006, datagram, 0, "fault", false},
		{"no rule", 7007, datagram, 0, "no_rule", false},
	} {
		t.Run(test.what, func(t *testing.T) {
			u := works
			if test.reason == "fault" {
				u = fails
			}
			line, err := testnet.Start(t).Line()
			must(t, err)
			relay := loadRelay(t, u, line.Relay)
			at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
			client, server := at(line.ClientAddr.V4, 40001), at(line.RelayInAddr.V4, test.port)
			near, far := line.RelayOutAddr.V4, line.PeerAddr.V4
			s, err := relay.Open("flow", client, at(near, 50000), at(far, 9000), near, far)
			must(t, err)
			taps, err := relay.GroupKind("taps").Open(t.Context(), 7004)
			must(t, err)
			var receivers []*runtime.AnyReceiver
			for n := range uint16(3) {
				v, err := taps.Add(t.Context(), at(near, 50000), at(far, 9001+n))
				must(t, err)
				receivers = append(receivers, v)
			}
			program := relay.Program("counted")
			came := runtime.Count{Packets: 1, Bytes: uint64(14 + 20 + 8 + test.payload + test.behind)}
			if test.behind > 0 {
				frame, err := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC, client, server,
					make([]byte, test.payload))
				must(t, err)
				must(t, line.Relay.Do(func() error {
					_, err := bpftest.Run(program.Kernel(), ebpf.RunOptions{
						Data: append(frame, make([]byte, test.behind)...), Repeat: 1,
						Context: testrun.OnDevice(line.RelayIn.Index),
					})
					return err
				}))
			} else {
				must(t, program.Attach(line.RelayIn.Name))
				sendSegments(t, listen(t, line.Client, client), server, test.payload, datagram)
				awaitReason(t, test.what, program, map[string]uint64{}, test.reason)
			}
			// The hosts' own packets, such as ARP, are under other reasons.
			for _, reason := range []string{"sent", "pass", "copy", "fault", "unwanted", "gso_packet", "no_rule"} {
				want := runtime.Count{}
				switch {
				case reason == test.reason:
					want = came
				case reason == "copy" && test.port == 7004:
					want = runtime.Count{Packets: 3, Bytes: 3 * came.Bytes}
				}
				got, err := program.Count(reason)
				must(t, err)
				if got != want {
					t.Errorf("reason %s: %v, want %v", reason, got, want)
				}
			}
			want := runtime.Count{}
			if test.sessions {
				want = came
			}
			var got []runtime.Count
			err = testnet.Until(2*time.Second, "the session's count", func() bool { // which follows the reason's
				got, err = s.Counters()
				return err != nil || len(got) == 1 && got[0].Packets >= want.Packets
			})
			must(t, err)
			if got[0] != want {
				t.Errorf("the session's: %v, want %v", got, want)
			}
			for i, v := range receivers {
				want := runtime.Count{}
				if test.port == 7004 {
					want = came
				}
				use, err := v.Usage()
				must(t, err)
				if got := (runtime.Count{Packets: use.Packets, Bytes: use.Bytes}); got != want {
					t.Errorf("receiver %d: %v, want %v", i+1, got, want)
				}
			}
		})
	}
}

// sendSegments sends bytes in datagrams of a size, of which several are one GSO packet.
func sendSegments(t *testing.T, from *net.UDPConn, to netip.AddrPort, bytes, size int) {
	t.Helper()
	raw, err := from.SyscallConn()
	must(t, err)
	var set error
	must(t, raw.Control(func(fd uintptr) {
		if bytes > size {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
		}
	}), set)
	if _, err := from.WriteToUDPAddrPort(make([]byte, bytes), to); err != nil {
		t.Fatal(fmt.Errorf("%d bytes: %w", bytes, err))
	}
}
