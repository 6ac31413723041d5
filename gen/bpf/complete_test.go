//go:build linux

package bpf_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A device that sums up whole packets (CHECKSUM_COMPLETE) is not at hand, but a VXLAN tunnel with checksums is one:
// what it has verified goes on with its sum. After the relay that sum has to be the one of the packet that left.
func TestCompleteChecksums(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../examples/turn/spec.cue")
	line, relayIn, clientDev := tunnel(t)
	capture, err := line.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Stop()
	sums := watchSums(t, line.PeerDev)
	relay := &turn{u.load(t), u.plan}
	relay.attach(t, "to_peer", relayIn)

	n := uint64(0)
	for _, families := range [][2]int{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		from := map[int]testnet.Addrs{
			4: {V4: netip.MustParseAddr("198.51.100.2")}, 6: {V6: netip.MustParseAddr("2001:db8:9::2")},
		}[families[0]].Of(families[0])
		to := map[int]testnet.Addrs{
			4: {V4: netip.MustParseAddr("198.51.100.1")}, 6: {V6: netip.MustParseAddr("2001:db8:9::1")},
		}[families[0]].Of(families[0])
		client, server := netip.AddrPortFrom(from, uint16(40000+n)), netip.AddrPortFrom(to, 3478)
		relayed, peer := netip.AddrPortFrom(line.RelayOutAddr.Of(families[1]), 50000),
			netip.AddrPortFrom(line.PeerAddr.Of(families[1]), uint16(7000+n))
		relay.open(t, client, server, relayed, peer, hop(ir.HopDirect, line.RelayOut, line.PeerDev),
			hop(ir.HopDirect, relayIn, clientDev))
		atClient, atPeer := listen(t, line.Client, client), listen(t, line.Peer, peer)
		for _, size := range []int{1, 2, 7, 120} {
			for padding := range 4 {
				payload := make([]byte, size)
				for i := range payload {
					payload[i] = byte(i*13 + size)
				}
				data := append([]byte{0x40, 0x01, 0, byte(size)}, payload...)
				exchange(t, atClient, server, append(data, 0xEE, 0xDD, 0xCC)[:4+size+padding], atPeer, relayed, payload)
				n++
				if err := testnet.Until(2*time.Second, "the packet's sum", func() bool {
					return sums(t).count >= n && len(arrived(capture)) >= int(n)
				}); err != nil {
					t.Fatal(err)
				}
				frame := arrived(capture)[n-1].Data
				what := fmt.Sprintf("IPv%d to IPv%d, %d bytes, %d of padding", families[0], families[1], size, padding)
				if got := sums(t); got.sum < 0 && padding > 0 {
					continue // the kernel gives the sum up when it cuts the tail off
				} else if got.sum < 0 {
					t.Fatalf("%s: the packet came without a sum (%d): this test shows nothing", what, got.sum)
				} else if want := sumOf(frame[14:]); fold(uint64(got.sum)) != want {
					t.Errorf("%s: the device's sum is %#04x, the packet's %#04x", what, fold(uint64(got.sum)), want)
				}
			}
		}
	}
}

// tunnel joins the line's client and relay by a tunnel whose packets are summed up: 198.51.100.2 and 2001:db8:9::2 at
// the client, 198.51.100.1 and 2001:db8:9::1 at the relay.
func tunnel(t *testing.T) (line *testnet.Line, relayIn, clientDev *testnet.Dev) {
	t.Helper()
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []*testnet.Dev{line.ClientDev, line.RelayIn, line.RelayOut, line.PeerDev} {
		if err := offloads.TxChecksum(dev, false); err != nil {
			t.Fatal(err)
		}
	}
	end := func(host *testnet.Host, local, remote netip.Addr, addr4, addr6 string) *testnet.Dev {
		t.Helper()
		for _, args := range [][]string{
			{"link", "add", "vx9", "type", "vxlan", "id", "9", "dstport", "4789", "local", local.String(), "remote",
				remote.String(), "udpcsum"},
			{"link", "set", "vx9", "up"},
			{"addr", "add", addr4, "dev", "vx9"},
			{"addr", "add", addr6, "dev", "vx9", "nodad"},
		} {
			if err := host.Run("ip", args...); err != nil {
				t.Fatal(err)
			}
		}
		dev := &testnet.Dev{Host: host, Name: "vx9"}
		err := host.Do(func() error {
			i, err := net.InterfaceByName("vx9")
			if err == nil {
				dev.Index, dev.MAC = i.Index, i.HardwareAddr
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := offloads.TxChecksum(dev, false); err != nil {
			t.Fatal(err)
		}
		return dev
	}
	relayIn = end(line.Relay, line.RelayInAddr.V4, line.ClientAddr.V4, "198.51.100.1/24", "2001:db8:9::1/64")
	clientDev = end(line.Client, line.ClientAddr.V4, line.RelayInAddr.V4, "198.51.100.2/24", "2001:db8:9::2/64")
	return line, relayIn, clientDev
}

type watched struct {
	count uint64
	sum   int64
}

// onlyUDP keeps the context in R6, and goes to a label with packets that aren't UDP over IP: a kernel sends others on
// its own.
func onlyUDP(otherwise string) asm.Instructions {
	const protocol, data, dataEnd = 16, 76, 80 // in struct __sk_buff
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, dataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 34),
		asm.JGT.Reg(asm.R4, asm.R3, otherwise),
		asm.LoadMem(asm.R4, asm.R6, protocol, asm.Word),
		asm.HostTo(asm.BE, asm.R4, asm.Half),      // it is in network byte order
		asm.LoadMem(asm.R5, asm.R2, 23, asm.Byte), // the protocol over IPv4
		asm.JEq.Imm(asm.R4, unix.ETH_P_IP, "ip"),
		asm.LoadMem(asm.R5, asm.R2, 20, asm.Byte), // the next header over IPv6
		asm.JNE.Imm(asm.R4, unix.ETH_P_IPV6, otherwise),
		asm.JNE.Imm(asm.R5, unix.IPPROTO_UDP, otherwise).WithSymbol("ip"),
	}
}

// watchSums counts UDP packets that arrive at a device, and keeps what the kernel says of the sum of the last one, or
// of an earlier one of the last 64.
func watchSums(t *testing.T, dev *testnet.Dev) func(t *testing.T, before ...uint64) watched {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 65})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	code := append(onlyUDP("out"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnCsumUpdate.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.And.Imm(asm.R1, 63), // after the count stand 64 sums
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R10, -4, asm.R1, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.StoreMem(asm.R0, 0, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	err = dev.Host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, before ...uint64) watched {
		t.Helper()
		var w watched
		if err := m.Lookup(uint32(0), &w.count); err != nil {
			t.Fatal(err)
		}
		n := w.count
		for _, b := range before {
			n -= b
		}
		if err := m.Lookup(uint32(1+n&63), &w.sum); err != nil {
			t.Fatal(err)
		}
		return w
	}
}

func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// sumOf is the ones' complement sum of bytes, of words as they lie in memory.
func sumOf(b []byte) uint16 {
	s := uint64(0)
	for i, x := range b {
		s += uint64(x) << (8 * (i % 2))
	}
	return fold(s)
}
