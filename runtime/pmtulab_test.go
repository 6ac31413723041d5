package runtime

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tooBig is an ICMP error about a UDP datagram of 1,300 bytes, in an IP packet from a router to the datagram's source.
type tooBig struct {
	from, to netip.AddrPort
	mtu      int
	host     netip.Addr          // that it is sent to; not valid: the datagram's source
	change   func(packet []byte) // what a test has wrong in it
}

var routers = map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.254"), false: netip.MustParseAddr("2001:db8::fe")}

func (e tooBig) packet() []byte {
	quoted := ipPacket(e.from.Addr(), e.to.Addr(), unix.IPPROTO_UDP, make([]byte, 1308))
	udp := quoted[len(quoted)-1308:]
	binary.BigEndian.PutUint16(udp, e.from.Port())
	binary.BigEndian.PutUint16(udp[2:], e.to.Port())
	binary.BigEndian.PutUint16(udp[4:], 1308)
	icmp := make([]byte, 8)
	protocol := byte(unix.IPPROTO_ICMP)
	if e.to.Addr().Is4() {
		icmp[0], icmp[1] = 3, 4
		binary.BigEndian.PutUint16(icmp[6:], uint16(e.mtu))
		icmp = append(icmp, quoted[:28]...)
	} else {
		protocol = unix.IPPROTO_ICMPV6
		icmp[0] = 2
		binary.BigEndian.PutUint32(icmp[4:], uint32(e.mtu))
		icmp = append(icmp, quoted[:1200]...)
	}
	router, host := routers[e.to.Addr().Is4()], e.from.Addr()
	if e.host.IsValid() {
		host = e.host
	}
	if e.change != nil {
		e.change(icmp)
	}
	pseudo := uint32(0)
	if e.to.Addr().Is6() {
		pseudo = onesSum(router.AsSlice()) + onesSum(host.AsSlice()) + uint32(len(icmp)) + uint32(protocol)
	}
	wrong := icmp[2]
	icmp[2] = 0
	binary.BigEndian.PutUint16(icmp[2:], ^fold(pseudo+onesSum(icmp)))
	icmp[2] ^= wrong
	return ipPacket(router, host, protocol, icmp)
}

// ipPacket is a packet of the addresses' family.
func ipPacket(from, to netip.Addr, protocol byte, payload []byte) []byte {
	if from.Is6() {
		b := make([]byte, 40)
		b[0], b[6], b[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
		copy(b[8:], from.AsSlice())
		copy(b[24:], to.AsSlice())
		return append(b, payload...)
	}
	b := make([]byte, 20)
	b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^fold(onesSum(b)))
	return append(b, payload...)
}

func onesSum(b []byte) (sum uint32) {
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// report puts errors on the cable to the relay.
func (b *bench) report(t testing.TB, errors ...tooBig) {
	t.Helper()
	for _, e := range errors {
		protocol := []byte{8, 0}
		if e.to.Addr().Is6() {
			protocol = []byte{0x86, 0xdd}
		}
		frame := slices.Concat(b.dev.MAC, b.there.MAC, protocol, e.packet())
		if err := unix.Sendto(b.sock, frame, 0, &unix.SockaddrLinklayer{Ifindex: b.there.Index}); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) ip(t testing.TB, args ...string) {
	t.Helper()
	if err := b.host.Run("ip", args...); err != nil {
		t.Fatal(err)
	}
}

// udp opens a socket on the relay's host that could have sent what an error is about.
func (b *bench) udp(t testing.TB, at string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	if err := b.host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// flow6 are the values of a session between IPv6 addresses.
func flow6(n int) []any {
	port := func(addr string, base int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(base+n))
	}
	return []any{port("2001:db8:9::7", 40000), port("2001:db8::1", 3478-n), 0x4000 + n,
		port("2001:db8::1", 50000), port("2001:db8:9::9", 7000)}
}

// pathCase is a session of one family, and an error about what it sends to its peer.
type pathCase struct {
	family    string
	values    []any
	mtu       int          // that the error reports
	listen    string       // where a socket is that could have sent the packet
	flush     []string     // makes the kernel forget its exceptions
	elsewhere netip.Addr   // another peer
	gateway   netip.Prefix // another one
	session   *AnySession
	error     tooBig
}

func pathCases() []pathCase {
	all := []pathCase{
		{family: "IPv4", values: flow(1), mtu: 1000,
			listen: "0.0.0.0:50001", flush: []string{"route", "flush", "cache"},
			elsewhere: netip.MustParseAddr("203.0.113.10"), gateway: netip.MustParsePrefix("192.0.2.253/24")},
		{family: "IPv6", values: flow6(1), mtu: 1280,
			listen: "[::]:50001", flush: []string{"-6", "route", "flush", "cache"},
			elsewhere: netip.MustParseAddr("2001:db8:9::a"), gateway: netip.MustParsePrefix("2001:db8::fd/64")},
	}
	for i := range all {
		c := &all[i]
		c.error = tooBig{from: c.values[3].(netip.AddrPort), to: c.values[4].(netip.AddrPort), mtu: c.mtu}
	}
	return all
}

const soon = 1500 * time.Millisecond // in which an error has to be followed

func (c *pathCase) open(t testing.TB, r *Relay) {
	t.Helper()
	var err error
	if c.session, err = r.Open("flow", c.values...); err != nil {
		t.Fatal(err)
	}
	until(t, 3*time.Second, "the next hop is known", func() bool { return hopIn(t, c.session, 0).State == HopDirect })
}

// is waits until the row to the peer has an MTU; the row to the client keeps that of the device.
func (c *pathCase) is(t testing.TB, what string, mtu int) {
	t.Helper()
	until(t, soon, fmt.Sprintf("%s: an MTU of %d", what, mtu), func() bool { return hopIn(t, c.session, 0).MTU == mtu })
	if got := hopIn(t, c.session, 1).MTU; got != 1500 {
		t.Errorf("%s: the other path's MTU became %d", what, got)
	}
}
