//go:build linux

package glue_test

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// tunnel relays between clients behind a device without a link layer, and servers on an Ethernet.
const tunnel = `
name: "tunnel"
tables: peers: {key: port: "u16", value: {local: "endpoint", remote: "endpoint"}, size: 16}
programs: {
	out: {
		hook: "tc/ingress"
		stack: ["ip", "udp"]
		lookup: p: peers: ["udp.dst_port"]
		do: [{send: {from: "p.local", to: "p.remote"}}]
	}
	back: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp"]
		lookup: p: peers: ["udp.dst_port"]
		do: [{send: {from: "p.local", to: "p.remote"}}]
	}
}
`

// A relay between a tun device and an Ethernet: packets get a link-layer header, and lose it on the way back, in both
// IP versions and from one to the other.
func TestTunDevice(t *testing.T) {
	needs.Root(t)
	file := filepath.Join(t.TempDir(), "spec.cue")
	if err := os.WriteFile(file, []byte(tunnel), 0o600); err != nil {
		t.Fatal(err)
	}
	built, list, err := build.Spec(t.Context(), file, build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	network := testnet.Start(t)
	here, err1 := network.Host("relay")
	far, err2 := network.Host("server")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	in, there, err := network.Join(here, "in0", far, "out0")
	if err != nil {
		t.Fatal(err)
	}
	var device *os.File
	var relay *runtime.Relay
	servers := map[bool]*net.UDPConn{}
	desc := glue.Desc(built.Plan)
	steps := []func() error{
		func() error { return in.AddAddr("192.0.2.1/24") },
		func() error { return in.AddAddr("2001:db8:1::1/64") },
		func() error { return there.AddAddr("192.0.2.254/24") },
		func() error { return there.AddAddr("2001:db8:1::fe/64") },
		func() error {
			return here.Do(func() error {
				fd, err := lab.OpenTun("tun0", false)
				if err != nil {
					return err
				}
				if err := unix.SetNonblock(fd, true); err != nil {
					return err
				}
				device = os.NewFile(uintptr(fd), "tun0")
				return nil
			})
		},
		func() error { return here.Run("ip", "address", "add", "10.9.0.1/24", "dev", "tun0") },
		func() error { return here.Run("ip", "address", "add", "2001:db8:9::1/64", "dev", "tun0", "nodad") },
		func() error { return here.Run("ip", "link", "set", "tun0", "up") },
		func() error {
			return here.Do(func() (err error) {
				relay, err = runtime.Load(&desc, built.Object(), runtime.Options{})
				return err
			})
		},
		func() error { return relay.Program("out").Attach("tun0") },
		func() error { return relay.Program("back").Attach("in0") },
		func() error {
			return far.Do(func() (err error) {
				for v6, at := range map[bool]string{false: "192.0.2.254:6000", true: "[2001:db8:1::fe]:6000"} {
					at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
					if servers[v6], err = net.ListenUDP("udp", at); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	t.Cleanup(func() {
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range []interface{ Close() error }{device, servers[false], servers[true]} {
			_ = c.Close()
		}
	})
	clients := map[bool]netip.AddrPort{
		false: netip.MustParseAddrPort("10.9.0.2:4000"), true: netip.MustParseAddrPort("[2001:db8:9::2]:4000"),
	}
	locals := map[bool]netip.Addr{
		false: netip.MustParseAddr("10.9.0.1"), true: netip.MustParseAddr("2001:db8:9::1"),
	}
	outer := map[bool]netip.Addr{
		false: netip.MustParseAddr("192.0.2.1"), true: netip.MustParseAddr("2001:db8:1::1"),
	}
	far4, far6 := netip.MustParseAddrPort("192.0.2.254:6000"), netip.MustParseAddrPort("[2001:db8:1::fe]:6000")
	remotes := map[bool]netip.AddrPort{false: far4, true: far6}
	ports := uint16(5000)
	for _, fromV6 := range []bool{false, true} {
		for _, toV6 := range []bool{false, true} {
			ports += 2
			there, back := ports, ports+1
			peers := relay.Table("peers")
			for _, row := range [][2][]any{
				{{there}, {netip.AddrPortFrom(outer[toV6], back), remotes[toV6]}},
				{{back}, {netip.AddrPortFrom(locals[fromV6], there), clients[fromV6]}},
			} {
				if err := peers.Put(row[0], row[1]); err != nil {
					t.Fatal(err)
				}
			}
			for _, size := range []int{0, 1, 33, 1200} {
				payload := bytes.Repeat([]byte{0xA5}, size)
				if _, err := device.Write(datagram(t, clients[fromV6], netip.AddrPortFrom(locals[fromV6], there),
					payload)); err != nil {
					t.Fatal(err)
				}
				server := servers[toV6]
				buffer := make([]byte, 2000)
				_ = server.SetReadDeadline(time.Now().Add(20 * time.Second))
				n, from, err := server.ReadFromUDPAddrPort(buffer)
				if err != nil {
					t.Fatalf("IPv6 %v to %v, %d bytes: %v: %v", fromV6, toV6, size, err, counts(relay, "out"))
				}
				if want := netip.AddrPortFrom(outer[toV6], back); from != want || !bytes.Equal(buffer[:n], payload) {
					t.Fatalf("IPv6 %v to %v: %d bytes from %v, want %d from %v", fromV6, toV6, n, from, size, want)
				}
				if _, err := server.WriteToUDPAddrPort(payload, from); err != nil {
					t.Fatal(err)
				}
				answer(t, device, netip.AddrPortFrom(locals[fromV6], there), clients[fromV6], payload,
					func() any { return counts(relay, "back") })
			}
		}
	}
}

// answer awaits a datagram on a tun device, among what the kernel itself sends.
func answer(t *testing.T, device *os.File, from, to netip.AddrPort, payload []byte, why func() any) {
	t.Helper()
	buffer := make([]byte, 2000)
	if err := device.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := device.Read(buffer)
		if err != nil {
			t.Fatalf("no answer from %v to %v: %v: %v", from, to, err, why())
		}
		want := datagram(t, from, to, payload)
		first := layers.LayerTypeIPv4
		if buffer[0]>>4 == 6 {
			first = layers.LayerTypeIPv6
		}
		p := gopacket.NewPacket(buffer[:n], first, gopacket.Default)
		udp, ok := p.TransportLayer().(*layers.UDP)
		if !ok {
			continue
		}
		at := len(want) - len(payload) - 8
		if p.NetworkLayer().NetworkFlow().Dst().String() != to.Addr().String() ||
			!bytes.Equal(buffer[at:at+6], want[at:at+6]) || !bytes.Equal(udp.Payload, payload) {
			t.Fatalf("the answer is %x, want %x", buffer[:n], want)
		}
		return
	}
}

// datagram makes a UDP datagram without a link-layer header.
func datagram(t *testing.T, from, to netip.AddrPort, payload []byte) []byte {
	t.Helper()
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	var ip gopacket.SerializableLayer
	if from.Addr().Is6() {
		h := &layers.IPv6{
			Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(),
			DstIP: to.Addr().AsSlice(),
		}
		ip = h
		_ = udp.SetNetworkLayerForChecksum(h)
	} else {
		h := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(),
			DstIP: to.Addr().AsSlice(),
		}
		ip = h
		_ = udp.SetNetworkLayerForChecksum(h)
	}
	b := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(b, options, ip, udp, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// counts are the reasons that a program has counted packets under.
func counts(relay *runtime.Relay, program string) map[string]uint64 {
	p, out := relay.Program(program), map[string]uint64{}
	for i, c := range must(p.Counts()) {
		if c.Packets > 0 {
			out[p.Desc().Reasons[i].Name] = c.Packets
		}
	}
	return out
}
