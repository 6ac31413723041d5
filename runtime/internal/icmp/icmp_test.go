package icmp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// error4 is "fragmentation needed" about a UDP datagram, with its IPv4 header.
func error4(from, to netip.AddrPort, mtu int) []byte {
	header := func(size int, protocol byte, from, to netip.Addr) []byte {
		b := make([]byte, 20)
		b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, protocol
		binary.BigEndian.PutUint16(b[2:], uint16(20+size))
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		return b
	}
	icmp := make([]byte, 8)
	icmp[0], icmp[1] = 3, 4
	binary.BigEndian.PutUint16(icmp[6:], uint16(mtu))
	icmp = slices.Concat(icmp, header(1308, unix.IPPROTO_UDP, from.Addr(), to.Addr()), udp(from, to))
	sum := uint32(0)
	for i, v := range icmp {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum))
	return append(header(len(icmp), unix.IPPROTO_ICMP, netip.MustParseAddr("192.0.2.254"), from.Addr()), icmp...)
}

// error6 is "packet too big" about a UDP datagram, without its IPv6 header.
func error6(from, to netip.AddrPort, mtu int) []byte {
	b := make([]byte, 8+40)
	b[0] = 2
	binary.BigEndian.PutUint32(b[4:], uint32(mtu))
	b[8], b[8+6], b[8+7] = 0x60, unix.IPPROTO_UDP, 64
	copy(b[8+8:], from.Addr().AsSlice())
	copy(b[8+24:], to.Addr().AsSlice())
	return slices.Concat(b, udp(from, to), make([]byte, 1152))
}

func udp(from, to netip.AddrPort) []byte {
	b := make([]byte, 8)
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint16(b[4:], 1308)
	return b
}

// Errors cut short are no errors, and are never read beyond their end.
func TestCutShort(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to string
		mtu      int
		packet   func(from, to netip.AddrPort, mtu int) []byte
		parse    func([]byte) (Quote, int, bool)
	}{
		{"IPv4", "192.0.2.1:50001", "203.0.113.9:7001", 1000, error4, tooBig4},
		{"IPv6", "[2001:db8::1]:50001", "[2001:db8:9::9]:7001", 1280, error6, tooBig6},
	} {
		from, to := netip.MustParseAddrPort(tt.from), netip.MustParseAddrPort(tt.to)
		packet := tt.packet(from, to, tt.mtu)
		right, none := Ports{50001, 7001}, Ports{AnyPort, AnyPort}
		if q, mtu, ok := tt.parse(packet); !ok || mtu != tt.mtu || q != (Quote{from.Addr(), to.Addr(), right}) {
			t.Errorf("%s: %+v, %d, %v", tt.name, q, mtu, ok)
		}
		for n := range packet {
			if q, _, ok := tt.parse(packet[:n:n]); ok && q.Ports != none && q.Ports != right {
				t.Errorf("%s: %d bytes are read as %+v", tt.name, n, q)
			}
		}
		for i := range min(len(packet), 100) {
			for _, v := range []byte{0, 0x0f, 0x4f, 0x6f, 0xff} {
				b := slices.Clone(packet)
				b[i] = v
				tt.parse(b)
			}
		}
	}
}
