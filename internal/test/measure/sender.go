package measure

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Sender sends copies of one datagram in batches, each with one system call that the kernel cuts into datagrams
// (UDP_SEGMENT, Linux 4.18). That is the cheapest way to make load, and like a network card under load it hands over
// several packets at once. Segmentation has to be off on the device (testnet.Dev.SetSegmentation), or GSO packets
// would reach the relay.
type Sender struct {
	fd      int
	batch   int
	message unix.Msghdr
	payload []byte
	iov     unix.Iovec
	name    []byte
	segment []byte
	most    int     // datagrams in payload
	number  int     // where numbers are
	last    *uint16 // the last number; nil: none
}

// Limits of UDP_SEGMENT: the segments of a call (UDP_MAX_SEGMENTS of older kernels) and its bytes.
const (
	maxBatch = 32
	maxBytes = 60_000
)

// NewSender makes a sender of a payload through a UDP socket, to an address, or if that is not valid, to where the
// socket is connected.
func NewSender(fd int, to netip.AddrPort, payload []byte) *Sender {
	s := &Sender{fd: fd, batch: min(maxBatch, maxBytes/len(payload))}
	s.most = s.batch
	s.payload = bytes.Repeat(payload, s.most)
	s.iov.Base = &s.payload[0]
	s.iov.SetLen(len(s.payload))
	s.message.Iov = &s.iov
	s.message.SetIovlen(1)
	if to.IsValid() {
		s.name = rawSockaddr(to)
		s.message.Name = &s.name[0]
		s.message.Namelen = uint32(len(s.name))
	}
	s.segment = make([]byte, unix.CmsgSpace(2))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&s.segment[0]))
	header.Level, header.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	header.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(s.segment[unix.CmsgLen(0):], uint16(len(payload)))
	s.message.Control = &s.segment[0]
	s.message.SetControllen(len(s.segment))
	return s
}

// SetBatch sets how many datagrams a call sends: n, or as many as fit into one.
func (s *Sender) SetBatch(n int) {
	s.batch = min(n, s.most)
	s.iov.SetLen(len(s.payload) / s.most * s.batch)
}

// SetNumber has each datagram carry a number of its own: 16 bits in network order at a place in the payload, one
// more than *last, which becomes that.
func (s *Sender) SetNumber(at int, last *uint16) { s.number, s.last = at, last }

// fill numbers the datagrams of the next call.
func (s *Sender) fill() {
	if s.last == nil {
		return
	}
	size := len(s.payload) / s.most
	for at := s.number; at < int(s.iov.Len); at += size {
		*s.last++
		binary.BigEndian.PutUint16(s.payload[at:], *s.last)
	}
}

// rawSockaddr is an address as the kernel takes it (ip(7), ipv6(7)).
func rawSockaddr(a netip.AddrPort) []byte {
	if a.Addr().Is4() {
		b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		b = append(b, a.Addr().AsSlice()...)
		return append(b, make([]byte, unix.SizeofSockaddrInet4-len(b))...)
	}
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, 0, 0, 0, 0) // flow
	b = append(b, a.Addr().AsSlice()...)
	return append(b, 0, 0, 0, 0) // scope
}

// Send sends datagrams for a time at a rate (datagrams a second; 0: as fast as it can) from one processor. It returns
// how many it sent.
func (s *Sender) Send(cpu int, d time.Duration, rate float64) (sent int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := pinThread(cpu); err != nil {
		return 0, err
	}
	start := now()
	for {
		elapsed := now() - start
		if elapsed >= int64(d) {
			return sent, nil
		}
		if rate > 0 && float64(sent) > float64(elapsed)/1e9*rate {
			continue // too early: wait without giving up the processor
		}
		s.fill()
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.message)), 0)
		switch errno {
		case 0, unix.ENOBUFS, unix.EAGAIN, unix.EINTR: // what is dropped after the socket was offered, too
			sent += s.batch
		default:
			return sent, errno
		}
	}
}

func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// now is CLOCK_MONOTONIC in nanoseconds, the same in every process.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // can't fail for this clock
	return ts.Nano()
}

// BlockingSocket makes a blocking UDP socket on a host, and returns it with its address. The caller closes it.
func BlockingSocket(host *testnet.Host, local netip.AddrPort) (fd int, addr netip.AddrPort, err error) {
	err = host.Do(func() error {
		family, sa := sockaddr(local)
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, sa); err != nil {
			unix.Close(fd)
			return err
		}
		bound, err := unix.Getsockname(fd)
		if err != nil {
			unix.Close(fd)
			return err
		}
		addr = addrPortOf(bound)
		return nil
	})
	return fd, addr, err
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// SendTo sends a datagram from a socket.
func SendTo(fd int, payload []byte, to netip.AddrPort) error {
	_, sa := sockaddr(to)
	return unix.Sendto(fd, payload, 0, sa)
}

// Once sends one batch of n datagrams, at most as many as fit into a call.
func (s *Sender) Once(n int) error {
	if n > s.batch {
		return fmt.Errorf("%d datagrams don't fit into one call, which takes %d", n, s.batch)
	}
	defer s.iov.SetLen(int(s.iov.Len))
	s.iov.SetLen(len(s.payload) / s.most * n)
	s.fill()
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.message)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
