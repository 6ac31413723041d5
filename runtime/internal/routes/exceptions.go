package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Exception is one to a route: another MTU, or another gateway. Addresses are 16 bytes, IPv4 mapped.
type Exception struct {
	to, gateway [16]byte
	table       uint32
	oif         uint32
}

// Dst is the destination that the exception is about.
func (e Exception) Dst() netip.Addr { return netip.AddrFrom16(e.to).Unmap() }

// Exceptions asks the kernel for exceptions to routes, one request at a time. Its methods are called by one goroutine
// at a time.
type Exceptions struct {
	inside func(func() error) error // runs a function where the socket has to be opened
	fd     int                      // -1: not open
	seq    uint32
	buf    []byte
}

// ErrTooMany says that a dump was given up.
var ErrTooMany = errors.New("too many exceptions to routes")

// NewExceptions returns an Exceptions without a socket: Open opens it, or the first Dump, by inside, which has to call
// its argument in the network namespace in question.
func NewExceptions(inside func(func() error) error) *Exceptions {
	return &Exceptions{inside: inside, fd: -1}
}

// Open opens the socket, in the network namespace of the calling thread.
func (x *Exceptions) Open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	// Without the option, which Linux has since 4.20, the answer has all routes as well.
	err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	if err == nil {
		// The kernel answers at once. Should it ever not, the relay must still be able to close.
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	x.fd, x.buf = fd, make([]byte, 64<<10)
	return nil
}

// Close closes the socket, if it is open.
func (x *Exceptions) Close() {
	if x.fd >= 0 {
		unix.Close(x.fd)
		x.fd = -1
	}
}

// Dump visits all exceptions of a family. They may be incomplete, and the error is netlink.ErrDumpInterrupted then. The
// kernel lists one of IPv4 once for each route that shares its next hop, which can be millions of times: the error is
// ErrTooMany if more than limit are listed.
func (x *Exceptions) Dump(family uint8, limit int, visit func(Exception, uint32)) error {
	if x.fd < 0 {
		if err := x.inside(x.Open); err != nil {
			return err
		}
	}
	if err := x.request(family); err != nil {
		return err
	}
	d := dump{seq: x.seq, family: family, visit: visit}
	for d.listed <= limit {
		n, _, err := unix.Recvfrom(x.fd, x.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if done, err := d.read(x.buf[:n]); done || err != nil {
			return err
		}
	}
	x.Close() // which ends the dump: another request would have to wait for it
	return ErrTooMany
}

// request asks for all exceptions of a family.
func (x *Exceptions) request(family uint8) error {
	x.seq++
	req := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(req[8:], x.seq)
	req[16] = family
	binary.NativeEndian.PutUint32(req[24:], unix.RTM_F_CLONED)
	return unix.Sendto(x.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// A dump is the answer to a request, as far as it is read.
type dump struct {
	seq         uint32 // of the request
	family      uint8
	visit       func(Exception, uint32)
	listed      int
	interrupted bool
}

// read reads the messages of a datagram, and reports whether one of them was the last.
func (d *dump) read(b []byte) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fmt.Errorf("a netlink message of %d bytes in %d", size, len(b))
		}
		kind, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		data := b[unix.SizeofNlMsghdr:size]
		answer := binary.NativeEndian.Uint32(b[8:]) == d.seq
		b = b[min((size+3)&^3, len(b)):]
		if !answer { // of a request that had no answer in time
			continue
		}
		d.interrupted = d.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		switch kind {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			return true, d.result(data)
		case unix.RTM_NEWROUTE:
			d.listed++
			if e, mtu, ok := parseException(data, d.family); ok {
				d.visit(e, mtu)
			}
		}
	}
	return false, nil
}

// result is the error that the data of the last message names.
func (d *dump) result(data []byte) error {
	if len(data) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
			return unix.Errno(-code)
		}
	}
	if d.interrupted {
		return netlink.ErrDumpInterrupted
	}
	return nil
}

// parseException reads a route's message.
func parseException(b []byte, family uint8) (e Exception, mtu uint32, ok bool) {
	if len(b) < unix.SizeofRtMsg || b[0] != family || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED == 0 {
		return Exception{}, 0, false
	}
	e.table = uint32(b[4])
	for kind, v := range attributes(b[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			e.to = mapped(v)
			ok = true
		case unix.RTA_GATEWAY:
			e.gateway = mapped(v)
		case unix.RTA_OIF:
			e.oif = uint32At(v)
		case unix.RTA_TABLE:
			e.table = uint32At(v)
		case unix.RTA_METRICS:
			for kind, v := range attributes(v) {
				if kind == unix.RTAX_MTU {
					mtu = uint32At(v)
				}
			}
		}
	}
	return e, mtu, ok
}

// attributes iterates over netlink attributes.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			size := int(binary.NativeEndian.Uint16(b))
			if size < 4 || size > len(b) {
				return
			}
			const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
			if !yield(binary.NativeEndian.Uint16(b[2:])&^flags, b[4:size]) {
				return
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

func mapped(b []byte) (a [16]byte) {
	if addr, ok := netip.AddrFromSlice(b); ok {
		a = addr.As16()
	}
	return a
}

func uint32At(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
