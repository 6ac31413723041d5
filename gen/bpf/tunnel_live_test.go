//go:build linux

package bpf_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// around puts datagrams into UDP with a checksum, at an even or an odd distance, and takes them out.
func around(filler int) string {
	return fmt.Sprintf(`
name: "around"
headers: tun: {
	after: udp: dst_port: 5999
	fields: [{name: "id", bits: 16}, {name: "filler", bytes: %d}]
}
settings: {
	local6: {type: "ip"}
	local4: {type: "ip"}
}
tables: {
	six: {key: dst: "ip", value: {remote: "ip", filler: "bytes%d"}}
	four: {key: dst: "ip", value: {remote: "ip", filler: "bytes%d"}}
}
programs: {
	enter: {
		hook: "tc/ingress"
		stack: ["eth", {inner: "ip_any"}]
		rules: [
			{lookup: r: six: ["inner.dst"], do: [
				{push: {ipv6: {dscp: 0, ecn: 0}, before: "inner"}},
				{push: {udp: src_port: 9, before: "inner"}},
				{push: {tun: {id: 7, filler: "r.filler"}, before: "inner"}},
				{send: {from: "setting.local6", to: "r.remote"}},
			]},
			{lookup: r: four: ["inner.dst"], do: [
				{push: {ipv4: {dscp: 0, ecn: 0}, before: "inner"}},
				{push: {udp: {src_port: 9, checksum: "computed"}, before: "inner"}},
				{push: {tun: {id: 7, filler: "r.filler"}, before: "inner"}},
				{send: {from: "setting.local4", to: "r.remote"}},
			]},
		]
	}
	leave: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ip"}, "udp", "tun", {inner: "ip_any"}]
		do: [{pop: "tun"}, {pop: "udp"}, {pop: "outer"}, "pass"]
	}
}
`, filler, filler, filler)
}

// A checksum over a packet whose own may be partial is right, when the relay sends it and when the kernel or a device
// has completed the inner one; and the other end, which verifies it, delivers the inner packet to a socket.
func TestChecksumOfTunnel(t *testing.T) {
	needs.Root(t)
	for i, filler := range []int{1, 6} {
		u := compileText(t, "around.cue", []byte(around(filler)), nil)
		for j, outer := range []int{4, 6} {
			for k, inner := range []int{4, 6} {
				if needs.Left(i+j+k, 2) {
					continue
				}
				for _, partial := range []bool{true, false} {
					t.Run(fmt.Sprintf("filler %d, IPv%d in IPv%d, partial %v", filler, inner, outer, partial),
						func(t *testing.T) {
							eachWay(t, func(t *testing.T) { checksumOfTunnel(t, u, filler, outer, inner, partial) })
						})
				}
			}
		}
	}
}

func checksumOfTunnel(t *testing.T, u *unit, filler, outer, inner int, partial bool) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	must(t, offloads.TxChecksum(line.ClientDev, partial))
	settings := map[string]any{"local4": line.RelayOutAddr.V4, "local6": line.RelayOutAddr.V6}
	relay, far := loadRelayWith(t, u, line.Relay, settings), loadRelayWith(t, u, line.Peer, settings)
	table := map[int]string{4: "four", 6: "six"}[outer]
	// The peer owns the inner address, too.
	to := netip.AddrPortFrom(line.PeerAddr.Of(inner), 7000)
	must(t,
		relay.Table(table).Put([]any{to.Addr()}, []any{line.PeerAddr.Of(outer), bytes.Repeat([]byte{0xA5}, filler)}),
		relay.Program("enter").Attach("eth0"), far.Program("leave").Attach("eth0"))
	atClient := listen(t, line.Client, netip.AddrPortFrom(line.ClientAddr.Of(inner), 40001))
	atPeer := listen(t, line.Peer, to)
	seen, err := line.PeerDev.Capture()
	must(t, err)
	defer seen.Stop()
	n := 0
	for size := range 40 {
		text := bytes.Repeat([]byte{byte(size + 1)}, size*31)
		if _, err := atClient.WriteToUDPAddrPort(text, to); err != nil {
			t.Fatal(err)
		}
		n++
		if got := received(t, fmt.Sprintf("%d bytes", len(text)), atPeer); !bytes.Equal(got, text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
	}
	if got := reasons(relay.Program("enter")); got["sent"] != uint64(n) {
		t.Errorf("%v, want %d sent", got, n)
	}
	if got := reasons(far.Program("leave")); got["pass"] != uint64(n) {
		t.Errorf("%v, want %d passed", got, n)
	}
	if partial {
		return // the capture shows the inner checksum as it is, to be completed
	}
	must(t, testnet.Until(2*time.Second, "all packets", func() bool { return len(arrived(seen)) >= n }))
	for _, f := range arrived(seen) {
		if err := dissect.Check(f); err != nil {
			t.Errorf("%v\n%x", err, f.Data[:62])
		}
	}
}
