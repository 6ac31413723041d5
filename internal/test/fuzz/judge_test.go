package fuzz

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// What was wrong inside a tunnel may leave it so; what a relay makes wrong may not.
func TestJudgeOfTunnels(t *testing.T) {
	packet := func(l ...gopacket.SerializableLayer) []byte {
		t.Helper()
		b := gopacket.NewSerializeBuffer()
		err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...)
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	eth := func() *layers.Ethernet {
		return &layers.Ethernet{
			SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4,
		}
	}
	ip := func(last byte, ttl uint8) *layers.IPv4 {
		return &layers.IPv4{
			Version: 4, TTL: ttl, Protocol: layers.IPProtocolUDP,
			SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, last},
		}
	}
	plain := func(ttl uint8) []byte {
		n, udp := ip(9, ttl), &layers.UDP{SrcPort: 1, DstPort: 2}
		if err := udp.SetNetworkLayerForChecksum(n); err != nil {
			t.Fatal(err)
		}
		return packet(eth(), n, udp, gopacket.Payload("hello, at least as long as Ethernet wants"))
	}
	tunnel := func(inner []byte) []byte {
		n, udp := ip(1, 64), &layers.UDP{SrcPort: 3, DstPort: 4} // no port that gopacket knows a protocol of
		if err := udp.SetNetworkLayerForChecksum(n); err != nil {
			t.Fatal(err)
		}
		return packet(eth(), n, udp, gopacket.Payload(slices.Concat([]byte("header, then"), inner)))
	}
	const sum, length = 14 + 20 + 6, 14 + 20 + 4
	change := func(b []byte, at int) []byte {
		b = slices.Clone(b)
		binary.BigEndian.PutUint16(b[at:], binary.BigEndian.Uint16(b[at:])^0x1234)
		return b
	}
	for _, c := range []struct {
		name       string
		came, left []byte
		wrong      bool
	}{
		{"right", tunnel(plain(9)), plain(8), false},
		{"a checksum was wrong inside", tunnel(change(plain(9), sum)), change(plain(8), sum), false},
		{"a length was wrong inside", tunnel(change(plain(9), length)), change(plain(8), length), false},
		{"a checksum becomes wrong", tunnel(plain(9)), change(plain(8), sum), true},
		{"a length becomes wrong", tunnel(plain(9)), change(plain(8), length), true},
		{"the IPv4 checksum becomes wrong", tunnel(plain(9)), change(plain(8), 14+10), true},
		{"the hop limit changes and the checksum stays", tunnel(plain(9)), change(plain(9), 14+8), true},
		{"a wrong checksum inside becomes another one", tunnel(change(plain(9), sum)), change(plain(8), sum-4), true},
		{"no tunnel: what came was right", plain(9), change(plain(8), sum), true},
		{"the tunnel itself leaves wrong", tunnel(plain(9)), change(tunnel(plain(9)), sum), true},
	} {
		f := &fuzzer{}
		if got := f.decode(c.came, c.left); (got != "") != c.wrong {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
