package runtime

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// icmpFilter is ICMP_FILTER of linux/icmp.h, of level SOL_RAW.
const icmpFilter = 1

// openICMP4 returns a socket that receives "fragmentation needed", with the IPv4 header.
func openICMP4() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return -1, err
	}
	// The option knows types alone; most errors of this type say that nobody listens on a port.
	program := []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0}, // the length of the IPv4 header
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 0},  // type and code
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 3<<8 | 4, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1 << 3))
	}
	// Otherwise the kernel takes this for the socket that an error which quotes any ICMP packet is about, and makes an
	// exception for whatever destination somebody names.
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_INTERFACE)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openICMP6 returns a socket that receives "packet too big", without the IPv6 header. The kernel checks its checksum.
func openICMP6() (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return -1, err
	}
	var filter unix.ICMPv6Filter
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0) // a bit that is set blocks its type
	}
	filter.Data[0] &^= 1 << 2
	err = unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &filter)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_INTERFACE)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// tooBig4 reads "fragmentation needed" (RFC 792, RFC 1191), with its IPv4 header.
func tooBig4(b []byte) (q quote, mtu int, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return quote{}, 0, false
	}
	size := int(b[0]&15) * 4
	if size < 20 || len(b) < size+8+20 {
		return quote{}, 0, false
	}
	b = b[size:]
	if b[0] != 3 || b[1] != 4 || !sums(b) { // the kernel hands errors over before it looks at their checksums
		return quote{}, 0, false
	}
	packet := b[8:]
	size = int(packet[0]&15) * 4
	later := binary.BigEndian.Uint16(packet[6:])&0x1fff != 0 // a fragment without ports
	if packet[0]>>4 != 4 || size < 20 || later {
		return quote{}, 0, false
	}
	q.from, q.to = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	q.ports = portsOf(packet[9], packet[min(size, len(packet)):])
	return q, max(int(binary.BigEndian.Uint16(b[6:])), minPath4), true // 0 from routers older than RFC 1191
}

// tooBig6 reads "packet too big" (RFC 4443), without its IPv6 header.
func tooBig6(b []byte) (q quote, mtu int, ok bool) {
	if len(b) < 8+40 || b[0] != 2 {
		return quote{}, 0, false
	}
	size, packet := binary.BigEndian.Uint32(b[4:]), b[8:]
	if packet[0]>>4 != 6 || size < minPath6 || size > 1<<16 { // RFC 8201: one that is smaller is discarded
		return quote{}, 0, false
	}
	q.from, q.to = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	q.ports = portsOf(packet[6], packet[40:])
	return q, int(size), true
}

// portsOf reads the ports of a transport header: UDP, TCP, SCTP, DCCP and UDP-Lite begin with them.
func portsOf(protocol byte, b []byte) ports {
	switch protocol {
	case unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE:
		if len(b) >= 4 {
			return ports{int32(binary.BigEndian.Uint16(b)), int32(binary.BigEndian.Uint16(b[2:]))}
		}
	}
	return ports{anyPort, anyPort}
}

// sums says whether a message's checksum is right.
func sums(b []byte) bool {
	sum := uint32(0)
	for i, v := range b {
		sum += uint32(v) << (8 * uint(1-i&1))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}
