//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Bytes after the IP datagram stay where they are: short frames are padded on their way in, and what is as large as
// the next hop takes would not arrive with anything after it.
func TestBytesAfterTheDatagram(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../golden/trailing/spec.cue")
	for _, family := range []int{4, 6} {
		for _, program := range []string{"route", "spread"} {
			t.Run(fmt.Sprintf("IPv%d, %s", family, program), func(t *testing.T) {
				afterTheDatagram(t, u, family, program)
			})
		}
	}
}

func afterTheDatagram(t *testing.T, u *unit, family int, program string) {
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []*testnet.Dev{line.ClientDev, line.RelayIn} { // the next hop takes 1500 bytes
		if err := dev.SetMTU(1600); err != nil {
			t.Fatal(err)
		}
	}
	client, relayed := line.ClientAddr.Of(family), netip.AddrPortFrom(line.RelayOutAddr.Of(family), 9)
	peer := netip.AddrPortFrom(line.PeerAddr.Of(family), 7000)
	relay := &fan{turn{u.load(t), u.plan}}
	put(t, relay.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	to, out := peer, hop(1, line.RelayOut, line.PeerDev)
	dst := peer.Addr().As16()
	put(t, relay.Maps["tbl_routes"], dst[:], append(append(bytes.Clone(out), dst[:]...), make([]byte, 4)...))
	if program == "spread" {
		to = netip.AddrPortFrom(line.RelayInAddr.Of(family), 9)
		relay.openGroup(t, "listeners", values{"server": to},
			values{"local": relayed, "remote": peer, "hop_remote": out})
	}
	relay.attach(t, program, line.RelayIn)
	at := listen(t, line.Peer, peer)
	up := at // where else the packet goes
	if program == "spread" {
		up = listen(t, line.Relay, to)
	}
	seen, err := line.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()

	head := map[int]int{4: 28, 6: 48}[family]
	cases := []struct {
		payload, after int
	}{{0, 60}, {1, 17}, {2, 1}, {101, 4}, {1500 - head, 40}, {1499 - head, 1}, {5, 0}}
	for n, c := range cases {
		payload := bytes.Repeat([]byte{byte(n + 1)}, c.payload)
		frame := append(datagram(t, line, client, to, payload), bytes.Repeat([]byte{0xEE}, c.after)...)
		if err := line.ClientDev.Inject(frame); err != nil {
			t.Fatal(err)
		}
		for _, conn := range []interface {
			SetReadDeadline(time.Time) error
			Read([]byte) (int, error)
		}{at, up}[:map[string]int{"route": 1, "spread": 2}[program]] {
			buf := make([]byte, 2048)
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if got, err := conn.Read(buf); err != nil || !bytes.Equal(buf[:got], payload) {
				t.Errorf("%d bytes, %d after them: %d bytes arrived, %v", c.payload, c.after, got, err)
			}
		}
	}
	if err := testnet.Until(2*time.Second, "all of them at the peer", func() bool {
		return len(arrived(seen)) >= len(cases)
	}); err != nil {
		t.Error(err)
	}
	for _, f := range arrived(seen) {
		if _, payload, _ := dissect.UDP(f); len(f.Data) != 14+head+len(payload) {
			t.Errorf("a frame of %d bytes arrived, whose datagram ends at %d", len(f.Data), 14+head+len(payload))
		}
		if err := dissect.Check(f); err != nil {
			t.Errorf("%v\n%x", err, f.Data)
		}
	}
	if got := relay.counts(t, program); got["sent"]+got["copy"] != uint64(len(cases)) {
		t.Errorf("counted: %v", got)
	}
}

// datagram is a UDP datagram as the client puts it on the wire.
func datagram(t *testing.T, line *testnet.Line, from netip.Addr, to netip.AddrPort, payload []byte) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: line.ClientDev.MAC, DstMAC: line.RelayIn.MAC, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: 40001, DstPort: layers.UDPPort(to.Port())}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.AsSlice(), DstIP: to.Addr().AsSlice(),
		Flags: layers.IPv4DontFragment,
	}
	if from.Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{
			Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: from.AsSlice(),
			DstIP: to.Addr().AsSlice(),
		}
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth,
		ip, udp, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
