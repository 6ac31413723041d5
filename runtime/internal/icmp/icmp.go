// Package icmp receives the ICMP errors by which routers report that a packet was too big for the next link:
// "fragmentation needed" of IPv4 and "packet too big" of IPv6.
package icmp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	minMTU4 = 552  // the default of net.ipv4.route.min_pmtu
	minMTU6 = 1280 // RFC 8200: no link has less
)

// Quote is what an error says of the packet that was dropped.
type Quote struct {
	From, To netip.Addr
	Ports    Ports // AnyPort if its protocol has none
}

// Ports are the ports of a packet, or those that are wanted of it.
type Ports struct{ From, To int32 }

// AnyPort stands for a port that isn't known, or doesn't matter.
const AnyPort = -1

// Listener receives the errors of one IP version.
type Listener struct {
	file  *os.File
	parse func([]byte) (q Quote, mtu int, ok bool)
	buf   []byte
}

// Listen opens sockets for the errors of all IP versions that the kernel has, in the network namespace of the calling
// thread. This takes CAP_NET_RAW.
func Listen() (all []*Listener, err error) {
	for _, family := range []struct {
		open  func() (int, error)
		parse func([]byte) (q Quote, mtu int, ok bool)
	}{{open4, tooBig4}, {open6, tooBig6}} {
		fd, err := family.open()
		switch {
		case err == nil:
			buf := make([]byte, 2048) // RFC 1812 and RFC 4443 let an error have 576 and 1280 bytes
			all = append(all, &Listener{os.NewFile(uintptr(fd), "icmp"), family.parse, buf})
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT): // a kernel without IPv6
		default:
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
	}
	return all, nil
}

// Close ends Receive, whose error is os.ErrClosed then.
func (l *Listener) Close() { l.file.Close() }

// Receive waits for an error: it returns what the error quotes, and the MTU that it reports. ok is false if it is
// damaged, or none of those that this package is about.
func (l *Listener) Receive() (q Quote, mtu int, ok bool, err error) {
	n, err := l.file.Read(l.buf)
	if err != nil {
		return Quote{}, 0, false, err
	}
	q, mtu, ok = l.parse(l.buf[:n])
	return q, mtu, ok, nil
}

// icmpFilter is ICMP_FILTER of linux/icmp.h, of level SOL_RAW.
const icmpFilter = 1

// open4 returns a socket that receives "fragmentation needed", with the IPv4 header.
func open4() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return -1, err
	}
	// The option knows types alone; most errors of this type say that no socket listens on a port.
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
	// exception for whatever destination a sender names.
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_INTERFACE)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// open6 returns a socket that receives "packet too big", without the IPv6 header. The kernel checks its checksum.
func open6() (int, error) {
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
func tooBig4(b []byte) (q Quote, mtu int, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return Quote{}, 0, false
	}
	size := int(b[0]&15) * 4
	if size < 20 || len(b) < size+8+20 {
		return Quote{}, 0, false
	}
	b = b[size:]
	if b[0] != 3 || b[1] != 4 || !sums(b) { // the kernel hands errors over before it looks at their checksums
		return Quote{}, 0, false
	}
	packet := b[8:]
	size = int(packet[0]&15) * 4
	later := binary.BigEndian.Uint16(packet[6:])&0x1fff != 0 // a fragment without ports
	if packet[0]>>4 != 4 || size < 20 || later {
		return Quote{}, 0, false
	}
	q.From, q.To = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	q.Ports = portsOf(packet[9], packet[min(size, len(packet)):])
	return q, max(int(binary.BigEndian.Uint16(b[6:])), minMTU4), true // 0 from routers older than RFC 1191
}

// tooBig6 reads "packet too big" (RFC 4443), without its IPv6 header.
func tooBig6(b []byte) (q Quote, mtu int, ok bool) {
	if len(b) < 8+40 || b[0] != 2 {
		return Quote{}, 0, false
	}
	size, packet := binary.BigEndian.Uint32(b[4:]), b[8:]
	if packet[0]>>4 != 6 || size < minMTU6 || size > 1<<16 { // RFC 8201: one that is smaller is discarded
		return Quote{}, 0, false
	}
	q.From, q.To = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	q.Ports = portsOf(packet[6], packet[40:])
	return q, int(size), true
}

// portsOf reads the ports of a transport header: UDP, TCP, SCTP, DCCP and UDP-Lite begin with them.
func portsOf(protocol byte, b []byte) Ports {
	switch protocol {
	case unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE:
		if len(b) >= 4 {
			return Ports{int32(binary.BigEndian.Uint16(b)), int32(binary.BigEndian.Uint16(b[2:]))}
		}
	}
	return Ports{AnyPort, AnyPort}
}

// sums reports whether a message's checksum is right.
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
