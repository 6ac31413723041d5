//go:build linux

package bpf_test

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// unwrap takes packets out of UDP, and out of a header after UDP, which stays.
const unwrap = `
name: "unwrap"
headers: {
	tun: fields: [{name: "id", bits: 32}]
	options: fields: [{name: "n", bits: 8}, {name: "rest", bytes: "n", max: 15}]
}
programs: {
	pass: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ip"}, "udp", {inner: "ip_any"}]
		when: "udp.dst_port == 5555"
		do: [{pop: "udp"}, {pop: "outer"}, "pass"]
	}
	send: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ip"}, "udp", {inner: "ip_any"}]
		when: "udp.dst_port == 5555"
		do: [{pop: "udp"}, {pop: "outer"}, {send: via: "route"}]
	}
	options: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ip"}, "udp", "options", {inner: "ip_any"}]
		when: "udp.dst_port == 5556"
		do: [{pop: "options"}, {pop: "udp"}, {pop: "outer"}, {send: via: "route"}]
	}
	shorten: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "tun"]
		when: "udp.dst_port == 5555"
		do: [{pop: "tun"}, "pass"]
	}
}
`

// A device that has verified checksums says how many, from the outermost header on (CHECKSUM_UNNECESSARY). If one of
// these headers goes, the next checksum isn't taken for verified: a packet that is wrong inside reaches no socket, of
// this host or of the next one, unless the device has verified that one, too.
func TestVerifiedOutside(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "unwrap.cue", []byte(unwrap), nil)
	for _, by := range []struct {
		who      string
		verified int // by the device; -1: by GRO
	}{{"nobody", 0}, {"the device, outside", 1}, {"the device, both", 2}, {"GRO", -1}} {
		for i, program := range []string{"pass", "send"} {
			for j, outer := range []int{4, 6} {
				for k, inner := range []int{4, 6} {
					if needs.Left(i+j+k, 2) {
						continue
					}
					t.Run(fmt.Sprintf("verified by %s, %s, IPv%d in IPv%d", by.who, program, inner, outer),
						func(t *testing.T) { verifiedOutside(t, u, by.verified, program, outer, inner) })
				}
			}
		}
	}
}

func verifiedOutside(t *testing.T, u *unit, verified int, program string, outer, inner int) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	if verified < 0 {
		must(t, offloads.Segmentation(line.ClientDev, false), offloads.GRO(line.RelayIn, true))
	}
	must(t, line.Relay.SetForwarding(true))
	before := levels(t, line.RelayIn, verified)
	relay := loadRelay(t, u, line.Relay)
	must(t, relay.Program(program).Attach("eth0"))
	host, to := line.Relay, netip.AddrPortFrom(line.RelayInAddr.Of(inner), 7000)
	if program == "send" {
		host, to = line.Peer, netip.AddrPortFrom(line.PeerAddr.Of(inner), 7000)
	}
	socket := listen(t, host, to)
	from := netip.AddrPortFrom(line.ClientAddr.Of(inner), 40001)
	for _, wrong := range []bool{true, false} {
		packet := udpFrame(t, nil, nil, from, to, fmt.Appendf(nil, "wrong %v", wrong))[14:]
		if wrong {
			packet[map[int]int{4: 20, 6: 40}[inner]+7] ^= 0x55
		}
		must(t, line.ClientDev.Inject(udpFrame(t, line.ClientDev.MAC, line.RelayIn.MAC,
			netip.AddrPortFrom(line.ClientAddr.Of(outer), 9), netip.AddrPortFrom(line.RelayInAddr.Of(outer), 5555),
			packet)))
	}
	want := "wrong false"
	if verified == 2 {
		want = "wrong true"
	}
	if got := received(t, "the socket", socket); string(got) != want {
		t.Errorf("the first that came is %q", got)
	}
	if got := before(t); verified < 0 && got != 0 {
		t.Errorf("GRO has verified nothing (%d): this test shows nothing", got)
	}
	reason := map[string]string{"pass": "pass", "send": "sent"}[program]
	if got := reasons(relay.Program(program)); got[reason] != 2 {
		t.Errorf("%v, want 2 %s", got, reason)
	}
}

// A header after UDP has no checksum that a device would verify: the one of UDP is still verified.
func TestVerifiedStays(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "unwrap.cue", []byte(unwrap), nil)
	for program, want := range map[string]int64{"shorten": 0, "pass": -13} { // EACCES: nothing is verified
		line, err := testnet.Start(t).Line()
		must(t, err)
		levels(t, line.RelayIn, 1)
		relay := loadRelay(t, u, line.Relay)
		must(t, relay.Program(program).Attach("eth0"))
		after := levels(t, line.RelayIn, 0)
		to := netip.AddrPortFrom(line.RelayInAddr.V4, 5555)
		from := netip.AddrPortFrom(line.ClientAddr.V4, 9)
		data := append([]byte("1234"), udpFrame(t, nil, nil, from, to, nil)[14:]...)
		socket := listen(t, line.Relay, to)
		if program == "pass" {
			data = data[4:]
		}
		must(t, line.ClientDev.Inject(udpFrame(t, line.ClientDev.MAC, line.RelayIn.MAC, from, to, data)))
		received(t, program, socket)
		if got := after(t); got != want {
			t.Errorf("%s: the level is %d, want %d", program, got, want)
		}
	}
}

// A device has summed up the whole packet, here a VXLAN tunnel with checksums (see TestCompleteChecksums). What is
// taken out, by even and odd numbers of bytes, isn't in the sum any more.
func TestCompleteOutside(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "unwrap.cue", []byte(unwrap), nil)
	line, relayIn, _ := tunnel(t)
	must(t, line.Relay.SetForwarding(true))
	for _, family := range []int{4, 6} { // bpf_redirect_neigh leaves the link-layer header that came in the sum
		must(t, line.RelayOut.AddNeighbour(line.PeerAddr.Of(family), line.PeerDev.MAC))
	}
	capture, err := line.PeerDev.Capture()
	must(t, err)
	defer capture.Stop()
	sums := watchSums(t, line.PeerDev)
	relay := loadRelay(t, u, line.Relay)
	must(t, relay.Program("send").Attach(relayIn.Name), relay.Program("options").Attach(relayIn.Name))
	n := 0
	check := func(what string) {
		t.Helper()
		n++
		must(t, testnet.Until(2*time.Second, "the packet's sum", func() bool {
			return sums(t).count >= uint64(n) && len(arrived(capture)) >= n
		}))
		got, want := sums(t), sumOf(arrived(capture)[n-1].Data[14:])
		if got.sum < 0 {
			t.Fatalf("%s: the packet came without a sum (%d): this test shows nothing", what, got.sum)
		} else if fold(uint64(got.sum)) != want {
			t.Errorf("%s: the device's sum is %#04x, the packet's %#04x", what, fold(uint64(got.sum)), want)
		}
	}
	ends := map[int][2]string{4: {"198.51.100.2", "198.51.100.1"}, 6: {"2001:db8:9::2", "2001:db8:9::1"}}
	for _, outer := range []int{4, 6} {
		client := listen(t, line.Client, netip.AddrPortFrom(netip.MustParseAddr(ends[outer][0]), 40001))
		server := netip.MustParseAddr(ends[outer][1])
		for _, inner := range []int{4, 6} {
			to := netip.AddrPortFrom(line.PeerAddr.Of(inner), uint16(7000+n))
			socket := listen(t, line.Peer, to)
			for options := range 8 { // 0: none; else a header of so many bytes
				for _, size := range []int{18, 19, 100, 1201} { // a shorter frame is padded
					text := bytes.Repeat([]byte{byte(size + options)}, size)
					packet := udpFrame(t, nil, nil, netip.AddrPortFrom(line.ClientAddr.Of(inner), 9), to, text)[14:]
					port := uint16(5555)
					if options > 0 {
						port = 5556
						packet = append(bytes.Repeat([]byte{byte(options - 1)}, options), packet...)
					}
					_, err := client.WriteToUDPAddrPort(packet, netip.AddrPortFrom(server, port))
					must(t, err)
					received(t, "the peer", socket)
					check(fmt.Sprintf("IPv%d in IPv%d, %d bytes, %d of options", inner, outer, size, options))
				}
			}
		}
	}
}

// levels has a device say that it has verified one checksum more, that many times, and returns the most that the kernel
// then says of a UDP packet: how many are verified after the first one, or an error.
func levels(t *testing.T, dev *testnet.Dev, more int) func(t *testing.T) int64 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	must(t, m.Put(uint32(0), int64(math.MinInt64)))
	const query, increment = 0, 1 // BPF_CSUM_LEVEL_QUERY, BPF_CSUM_LEVEL_INC
	code := onlyUDP("out")
	level := func(action int32) {
		code = append(code, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, action), asm.FnCsumLevel.Call())
	}
	for range more {
		level(increment)
	}
	level(query)
	code = append(code,
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.JSGE.Reg(asm.R1, asm.R7, "out"),
		asm.StoreMem(asm.R0, 0, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	must(t, err)
	t.Cleanup(func() { prog.Close() })
	must(t, dev.Host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}))
	return func(t *testing.T) (level int64) {
		t.Helper()
		must(t, m.Lookup(uint32(0), &level))
		return level
	}
}
