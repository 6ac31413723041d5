//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// What the kernel knows of a packet, and its bytes don't show, on live devices: each test runs with what programs learn
// by bpf_cast_to_kern_ctx, and as before Linux 6.2.

func eachWay(t *testing.T, f func(t *testing.T)) {
	for name, ways := range map[string]skbfacts.Methods{"cast": skbfacts.All, "read": skbfacts.Read} {
		if testing.Short() && ways != skbfacts.All {
			continue
		}
		t.Run(name, func(t *testing.T) {
			skbfacts.Allowed = ways
			defer func() { skbfacts.Allowed = skbfacts.All }()
			f(t)
		})
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// received waits for a datagram.
func received(t *testing.T, what string, at *net.UDPConn) []byte {
	t.Helper()
	buf := make([]byte, 4096)
	must(t, at.SetReadDeadline(time.Now().Add(patience)))
	n, err := at.Read(buf)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return buf[:n]
}

// ownTransport takes a tunnel apart whose transport header is the spec's own, and has no checksum that the spec knows.
func ownTransport(size int) string {
	return fmt.Sprintf(`
name: "own"
headers: {
	tudp: {
		after: {ipv4: protocol: 17}
		fields: [
			{name: "src_port", bits: 16}, {name: "dst_port", bits: 16, is: 5555},
			{name: "length", bits: 16, counts: "all"}, {name: "sum", bits: 16},
		]
	}
	tun: fields: [{name: "id", bytes: %d}]
}
tables: t: {key: src: "ip", value: hop: "next_hop"}
programs: up: {
	hook: "tc/ingress"
	stack: ["eth", {outer: "ipv4"}, "tudp", "tun", {inner: "ipv4"}]
	lookup: r: t: ["outer.src"]
	do: [{pop: "tun"}, {pop: "tudp"}, {pop: "outer"}, {send: via: "r.hop"}]
}
`, size)
}

// A checksum of a header that the stack doesn't name is left to a device: the packet passes to the stack untouched.
// One that is complete is of no consequence.
func TestOwnTransport(t *testing.T) {
	needs.Root(t)
	for _, size := range []int{1, 2, 4, 6, 8} {
		u := compileText(t, "own.cue", []byte(ownTransport(size)), nil)
		for _, partial := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bytes, partial %v", size, partial), func(t *testing.T) {
				eachWay(t, func(t *testing.T) { ownTransportOn(t, u, size, partial) })
			})
		}
	}
}

func ownTransportOn(t *testing.T, u *unit, size int, partial bool) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	must(t, offloads.TxChecksum(line.ClientDev, partial), offloads.TxChecksum(line.RelayOut, false))
	relay := loadRelay(t, u, line.Relay)
	must(t, relay.Table("t").Put([]any{line.ClientAddr.V4}, []any{line.PeerAddr.V4}))
	must(t, relay.Program("up").Attach("eth0"))
	server := netip.AddrPortFrom(line.RelayInAddr.V4, 5555)
	atClient, atRelay := listen(t, line.Client, netip.AddrPortFrom(line.ClientAddr.V4, 40001)),
		listen(t, line.Relay, server)
	inner := netip.AddrPortFrom(line.PeerAddr.V4, 7000)
	atPeer := listen(t, line.Peer, inner)
	for n := range 20 {
		text := fmt.Appendf(nil, "datagram %d %s", n, strings.Repeat("x", n*60))
		frame := udpFrame(t, nil, nil, netip.AddrPortFrom(line.ClientAddr.V4, 9), inner, text)
		data := append(bytes.Repeat([]byte{0xAB}, size), frame[14:]...)
		if _, err := atClient.WriteToUDPAddrPort(data, server); err != nil {
			t.Fatal(err)
		}
		if partial {
			if got := received(t, "up", atRelay); !bytes.Equal(got, data) {
				t.Fatalf("the stack got\n%x, want\n%x", got, data)
			}
		} else if got := received(t, "the peer", atPeer); !bytes.Equal(got, text) {
			t.Fatalf("the peer got\n%x, want\n%x", got, text)
		}
	}
	want := map[bool]string{true: "partial_checksum", false: "sent"}[partial]
	if got := reasons(relay.Program("up")); got[want] != 20 {
		t.Errorf("%v, want 20 %s", got, want)
	}
}

// shim puts a header after VXLAN, or takes it out.
const shim = `
name: "shim"
headers: {
	vxlan: fields: [{name: "flags", bits: 8}, {name: "r", bits: 24}, {name: "vni", bits: 24}, {name: "r2", bits: 8}]
	tag: fields: [{name: "id", bits: 32}]
}
tables: peers: {key: at: "endpoint", value: {from: "endpoint", to: "endpoint"}}
programs: {
	widen: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "vxlan"]
		lookup: p: peers: ["udp.dst"]
		do: [{push: tag: id: 0xdeadbeef}, {send: {from: "p.from", to: "p.to"}}]
	}
	narrow: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "vxlan"]
		lookup: p: peers: ["udp.dst"]
		do: [{pop: "vxlan"}, {push: tag: id: "vxlan.vni"}, {send: {from: "p.from", to: "p.to"}}]
	}
	same: {
		hook: "tc/ingress"
		stack: ["eth", "ip", "udp", "vxlan"]
		lookup: p: peers: ["udp.dst"]
		do: [{set: "vxlan.r2": 9}, {send: {from: "p.from", to: "p.to"}}]
	}
}
`

// A tunnel device completes the outer checksum while the inner one is left to a device (local checksum offload). One
// flow in 65,536 has an outer checksum that is the sum of the pseudo-header, as if it were the one that is left.
func TestLocalChecksumOffload(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "shim.cue", []byte(shim), nil)
	for program, front := range map[string]int{"same": 8, "widen": 12, "narrow": 4} {
		t.Run(program, func(t *testing.T) {
			eachWay(t, func(t *testing.T) { localChecksumOffload(t, u, program, front) })
		})
	}
}

func localChecksumOffload(t *testing.T, u *unit, program string, front int) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	must(t, offloads.TxChecksum(line.RelayOut, false))
	inner := netip.MustParseAddrPort("198.51.100.9:7")
	neighbour := func(mac net.HardwareAddr) {
		must(t, line.Client.Run("ip", "neigh", "replace", inner.Addr().String(), "lladdr", mac.String(), "dev", "vx"))
	}
	// Its address is in the outer checksum: with a random one that is now and then what it mustn't be below.
	must(t,
		line.Client.Run("ip", "link", "add", "vx", "address", "02:aa:00:00:00:02", "type", "vxlan", "id", "0x1234",
			"dstport", "4789", "srcport", "50000", "50001",
			"local", line.ClientAddr.V4.String(), "remote", line.RelayInAddr.V4.String(), "udpcsum"),
		line.Client.Run("ip", "link", "set", "vx", "up"),
		line.Client.Run("ip", "addr", "add", "198.51.100.2/24", "dev", "vx"))
	relay := loadRelay(t, u, line.Relay)
	server := netip.AddrPortFrom(line.RelayInAddr.V4, 4789)
	from, to := netip.AddrPortFrom(line.RelayOutAddr.V4, 7000), netip.AddrPortFrom(line.PeerAddr.V4, 7000)
	must(t, relay.Table("peers").Put([]any{server}, []any{from, to}))
	must(t, relay.Program(program).Attach("eth0"))
	atClient := listen(t, line.Client, netip.MustParseAddrPort("198.51.100.2:40001"))
	in, err := line.RelayIn.Capture()
	must(t, err)
	defer in.Stop()
	out, err := line.PeerDev.Capture()
	must(t, err)
	defer out.Stop()

	mac := net.HardwareAddr{2, 0xaa, 0, 0, 0, 1}
	n := 0
	// send sends a datagram through the tunnel and returns what came in at the relay.
	send := func(size int) (came testnet.Frame) {
		neighbour(mac)
		if _, err := atClient.WriteToUDPAddrPort(make([]byte, size), inner); err != nil {
			t.Fatal(err)
		}
		n++
		must(t, testnet.Until(2*time.Second, "the packet", func() bool {
			return len(tunnelled(in)) == n && len(tunnelled(out)) == n
		}))
		left := tunnelled(out)[n-1]
		if err := dissect.Check(left); err != nil {
			t.Errorf("%d bytes: %v\n%x", size, err, left.Data[:54])
		}
		payload := left.Data[42:]
		if err := dissect.Check(testnet.Frame{Data: payload[front:]}); err != nil {
			t.Errorf("%d bytes, the inner packet: %v\n%x", size, err, payload[:54])
		}
		return tunnelled(in)[n-1]
	}
	for _, size := range []int{1, 100, 1000} {
		came := send(size)
		udp := came.Data[34:]
		if sum := binary.BigEndian.Uint16(udp[6:]); sum == 0 || sum == pseudo(came) {
			t.Fatalf("the outer checksum is %04x: this test shows nothing", sum)
		}
		// Another link-layer address makes it what the pseudo-header's sum is: a word goes up by
		// what the checksum goes down.
		sum, word := uint64(binary.BigEndian.Uint16(udp[6:])), uint64(binary.BigEndian.Uint16(mac[4:]))
		binary.BigEndian.PutUint16(mac[4:], fold(word+sum+uint64(^pseudo(came))))
		came = send(size)
		if sum := binary.BigEndian.Uint16(came.Data[40:]); sum != pseudo(came) {
			t.Fatalf("the outer checksum is %04x, the pseudo-header's sum %04x: this test shows nothing", sum,
				pseudo(came))
		}
		mac[4], mac[5] = 0, byte(size)
	}
	if got := reasons(relay.Program(program)); got["sent"] < uint64(n) {
		t.Errorf("%v, want %d sent", got, n)
	}
}

// pseudo is the sum of the pseudo-header of a UDP datagram in IPv4.
func pseudo(f testnet.Frame) uint16 {
	sum := uint64(17) + uint64(binary.BigEndian.Uint16(f.Data[38:]))
	for i := 26; i < 34; i += 2 {
		sum += uint64(binary.BigEndian.Uint16(f.Data[i:]))
	}
	return fold(sum)
}

// tunnelled returns the tunnel's packets that carry UDP.
func tunnelled(c *testnet.Capture) (out []testnet.Frame) {
	for _, f := range c.Frames() {
		if !f.Outgoing && bytes.Contains(f.Data, []byte{198, 51, 100, 2, 198, 51, 100, 9}) {
			out = append(out, f)
		}
	}
	return out
}

// segments changes a header of one's own, which is said to be in front of each segment.
const segments = `
name: "segments"
headers: tag: {
	segmented: true
	fields: [{name: "id", bits: 32}]
}
programs: mark: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "tag"]
	do: [{set: "tag.id": 7}, "pass"]
}
`

// Of datagrams that came as one GSO packet all are changed, or none: the kernel repeats no header after UDP.
func TestSegmentedDatagrams(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "segments.cue", []byte(segments), nil)
	eachWay(t, func(t *testing.T) {
		line, err := testnet.Start(t).Line()
		must(t, err)
		relay := loadRelay(t, u, line.Relay)
		must(t, relay.Program("mark").Attach("eth0"))
		server := netip.AddrPortFrom(line.RelayInAddr.V4, 5555)
		atClient, atRelay := listen(t, line.Client, netip.AddrPortFrom(line.ClientAddr.V4, 40001)),
			listen(t, line.Relay, server)
		raw, err := atClient.SyscallConn()
		must(t, err)
		for _, segmented := range []bool{false, true} {
			size, id := 0, []byte{0, 0, 0, 7}
			if segmented {
				size, id = 100, []byte{1, 2, 3, 4}
			}
			var set error
			must(t, raw.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
			}), set)
			data := bytes.Repeat(append([]byte{1, 2, 3, 4}, make([]byte, 96)...), 3)
			if !segmented {
				data = data[:100]
			}
			if _, err := atClient.WriteToUDPAddrPort(data, server); err != nil {
				t.Fatal(err)
			}
			for n := range len(data) / 100 {
				if got := received(t, "the stack", atRelay); len(got) != 100 || !bytes.Equal(got[:4], id) {
					t.Errorf("datagram %d, segmented %v: %x, want %x", n+1, segmented, got[:4], id)
				}
			}
		}
		if got := reasons(relay.Program("mark")); got["gso_packet"] != 1 || got["pass"] != 1 {
			t.Errorf("%v, want one gso_packet and one pass", got)
		}
	})
}

// overlay renumbers a virtual network, whose tunnel's header is in front of each segment.
const overlay = `
name: "overlay"
headers: vxlan: {
	after: {udp: dst_port: 4789}
	segmented: true
	fields: [{name: "flags", bits: 8, is: 8}, {name: "r", bits: 24}, {name: "vni", bits: 24}, {name: "r2", bits: 8}]
}
tables: peers: {key: at: "ip", value: {from: "ip", to: "ip", vni: "u24"}}
programs: renumber: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "vxlan"]
	lookup: p: peers: ["ip.src"]
	do: [{set: "vxlan.vni": "p.vni"}, {send: {from: "p.from", to: "p.to"}}]
}
`

// TCP through a tunnel whose headers the relay changes, in GSO packets: all of it arrives.
func TestSegmentedTunnel(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "overlay.cue", []byte(overlay), nil)
	for _, offload := range []bool{true, false} {
		for _, outer := range []string{"udpcsum", "noudpcsum"} {
			t.Run(fmt.Sprintf("relay's devices %v, %s", offload, outer), func(t *testing.T) {
				eachWay(t, func(t *testing.T) { segmentedTunnel(t, u, offload, outer) })
			})
		}
	}
}

func segmentedTunnel(t *testing.T, u *unit, offload bool, outer string) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	must(t, offloads.TxChecksum(line.RelayOut, offload), offloads.TxChecksum(line.RelayIn, offload))
	for i, end := range []struct {
		host          *testnet.Host
		local, remote netip.Addr
	}{{line.Client, line.ClientAddr.V4, line.RelayInAddr.V4}, {line.Peer, line.PeerAddr.V4, line.RelayOutAddr.V4}} {
		must(t,
			end.host.Run("ip", "link", "add", "vx", "type", "vxlan", "id", fmt.Sprint(100+i), "dstport", "4789",
				"local", end.local.String(), "remote", end.remote.String(), outer),
			end.host.Run("ip", "link", "set", "vx", "up"),
			end.host.Run("ip", "addr", "add", fmt.Sprintf("198.51.100.%d/24", i+1), "dev", "vx"))
	}
	relay := loadRelay(t, u, line.Relay)
	must(t,
		relay.Table("peers").Put([]any{line.ClientAddr.V4}, []any{line.RelayOutAddr.V4, line.PeerAddr.V4, 101}),
		relay.Table("peers").Put([]any{line.PeerAddr.V4}, []any{line.RelayInAddr.V4, line.ClientAddr.V4, 100}),
		relay.Program("renumber").Attach("eth0"), relay.Program("renumber").Attach("eth1"))
	var server net.Listener
	must(t, line.Peer.Do(func() (err error) {
		server, err = net.Listen("tcp", "198.51.100.2:80")
		return err
	}))
	defer server.Close()
	data := make([]byte, 20<<20)
	for i := range data {
		data[i] = byte(i % 251)
	}
	sent := make(chan error, 1)
	go func() {
		sent <- line.Client.Do(func() error {
			conn, err := net.DialTimeout("tcp", "198.51.100.2:80", 5*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
				return err
			}
			_, err = conn.Write(data)
			return err
		})
	}()
	must(t, server.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	conn, err := server.Accept()
	must(t, err)
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(conn)
	must(t, err, <-sent)
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived of %d, and they differ", len(got), len(data))
	}
	count, err := relay.Program("renumber").Count("sent")
	must(t, err)
	if mean := count.Bytes / max(count.Packets, 1); mean < 2000 {
		t.Errorf("packets of %d bytes on average: there were no GSO packets, and this test shows nothing", mean)
	}
}

// families takes tunnels apart, and puts them around packets, for the stack of the same host.
const families = `
name: "families"
headers: {
	tun: fields: [{name: "id", bits: 32, is: 7}]
	seal: {
		after: ipv6: next_header: 253
		fields: [{name: "id", bits: 32, is: 7}]
	}
}
settings: {
	here4: {type: "ip", default: "192.0.2.1"}
	here6: {type: "ip", default: "2001:db8:1::1"}
	from4: {type: "ip", default: "192.0.2.2"}
	from6: {type: "ip", default: "2001:db8:1::2"}
}
programs: {
	open6: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ipv4"}, "udp", "tun", {inner: "ipv6"}]
		do: [{pop: "tun"}, {pop: "udp"}, {pop: "outer"}, "pass"]
	}
	open4: {
		hook: "tc/ingress"
		stack: ["eth", {outer: "ipv6"}, "seal", {inner: "ipv4"}]
		do: [{pop: "seal"}, {pop: "outer"}, "pass"]
	}
	wrap6: {
		hook: "tc/ingress"
		stack: ["eth", {inner: "ipv6"}]
		when: "inner.next_header == 17"
		do: [
			{push: {ipv4: {dscp: 0, ecn: 0, src: "setting.from4", dst: "setting.here4"}, before: "inner"}},
			{push: {udp: {src_port: 9, dst_port: 6000}, before: "inner"}},
			{push: {tun: {}, before: "inner"}},
			"pass",
		]
	}
	wrap4: {
		hook: "tc/ingress"
		stack: ["eth", {inner: "ipv4"}]
		when: "inner.protocol == 17"
		do: [
			{push: {ipv6: {dscp: 0, ecn: 0, src: "setting.from6", dst: "setting.here6"}, before: "inner"}},
			{push: {seal: {}, before: "inner"}},
			"pass",
		]
	}
}
`

// What a tunnel of one IP version holds of the other is delivered to the stack of the relay's own host, and so is what
// the relay puts into such a tunnel. The packets are those of real sockets, with checksums
// left to a device and without.
func TestPassOtherFamily(t *testing.T) {
	needs.Root(t)
	u := compileText(t, "families.cue", []byte(families), nil)
	for _, program := range []string{"open6", "open4", "wrap6", "wrap4"} {
		for _, partial := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, partial %v", program, partial), func(t *testing.T) {
				passOtherFamily(t, u, program, partial)
			})
		}
	}
}

func passOtherFamily(t *testing.T, u *unit, program string, partial bool) {
	line, err := testnet.Start(t).Line()
	must(t, err)
	must(t, offloads.TxChecksum(line.ClientDev, partial))
	relay := loadRelay(t, u, line.Relay)
	must(t, relay.Program(program).Attach("eth0"))
	family := map[string]int{"open6": 6, "wrap6": 6, "open4": 4, "wrap4": 4}[program] // of what is inside
	from, to := netip.AddrPortFrom(line.ClientAddr.Of(family), 40001), netip.AddrPortFrom(line.RelayInAddr.Of(family),
		7000)
	atClient, atRelay := listen(t, line.Client, from), listen(t, line.Relay, to)
	outer4 := listen(t, line.Relay, netip.AddrPortFrom(line.RelayInAddr.V4, 6000))
	var outer6 *net.IPConn
	must(t, line.Relay.Do(func() (err error) {
		outer6, err = net.ListenIP("ip6:253", &net.IPAddr{IP: line.RelayInAddr.V6.AsSlice()})
		return err
	}))
	defer outer6.Close()
	for _, size := range []int{0, 1, 5, 100, 1201} {
		text := bytes.Repeat([]byte{0x5A}, size)
		frame := udpFrame(t, line.ClientDev.MAC, line.RelayIn.MAC, from, to, text)
		switch program {
		case "open6":
			sealed := append([]byte{0, 0, 0, 7}, frame[14:]...)
			outer := udpFrame(t, line.ClientDev.MAC, line.RelayIn.MAC, netip.AddrPortFrom(line.ClientAddr.V4, 9),
				netip.AddrPortFrom(line.RelayInAddr.V4, 9), sealed)
			outer[40], outer[41] = 0, 0 // without a checksum
			must(t, line.ClientDev.Inject(outer))
		case "open4":
			outer := udpFrame(t, line.ClientDev.MAC, line.RelayIn.MAC, netip.AddrPortFrom(line.ClientAddr.V6, 9),
				netip.AddrPortFrom(line.RelayInAddr.V6, 9), nil)[:54]
			binary.BigEndian.PutUint16(outer[18:], uint16(4+len(frame)-14))
			outer[20] = 253
			must(t, line.ClientDev.Inject(slices.Concat(outer, []byte{0, 0, 0, 7}, frame[14:])))
		default:
			if _, err := atClient.WriteToUDPAddrPort(text, to); err != nil {
				t.Fatal(err)
			}
		}
		switch program {
		case "open6", "open4":
			if got := received(t, fmt.Sprintf("%d bytes", size), atRelay); !bytes.Equal(got, text) {
				t.Errorf("%d bytes became %x", size, got)
			}
			continue
		}
		var got []byte
		if program == "wrap6" {
			got = received(t, fmt.Sprintf("%d bytes", size), outer4)
		} else {
			buf := make([]byte, 4096)
			must(t, outer6.SetReadDeadline(time.Now().Add(patience)))
			n, err := outer6.Read(buf)
			if err != nil {
				t.Fatalf("%d bytes: %v; the program counts %v", size, err, reasons(relay.Program(program)))
			}
			got = buf[:n]
		}
		// The inner packet's checksum may still be left to a device: nobody has sent it.
		end := len(got) - size
		if head := 4 + map[int]int{4: 20, 6: 40}[family] + 8; end != head || !bytes.Equal(got[end:], text) {
			t.Errorf("%d bytes became %x", size, got)
		}
	}
	if got := reasons(relay.Program(program)); got["pass"] != 5 {
		t.Errorf("%v, want 5 passed", got)
	}
}

func udpFrame(t *testing.T, srcMAC, dstMAC net.HardwareAddr, src, dst netip.AddrPort, payload []byte) []byte {
	t.Helper()
	if srcMAC == nil {
		srcMAC, dstMAC = make(net.HardwareAddr, 6), make(net.HardwareAddr, 6)
	}
	frame, err := turnlab.UDPFrame(srcMAC, dstMAC, src, dst, payload)
	must(t, err)
	return frame
}
