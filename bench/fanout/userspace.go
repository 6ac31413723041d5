package fanout

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A userRelay is the best that a user-space relay of this kind can do in Go: one thread, one socket, as many datagrams
// as there are in each system call (recvmmsg, sendmmsg), payloads never copied, no allocation. Each receiver gets each
// packet with an RTP header of its own. With gso, the packets of a batch that one receiver gets leave as one
// GSO packet (UDP_SEGMENT), and the GSO packets of many receivers with one call.
type userRelay struct {
	gso       bool
	receivers []userReceiver

	in *reader

	out      [sendBatch]mmsghdr
	segment  [sendBatch][24]byte // control messages: UDP_SEGMENT
	messages int                 // of out that are filled in
	iovs     [2 * segmentBatch]unix.Iovec
	headers  [segmentBatch][rtpHeader]byte
	segments int // of iovs (two each) and headers that are filled in
}

// userReceiver is one receiver, and its address as the kernel wants it.
type userReceiver struct {
	receiver
	name [unix.SizeofSockaddrInet4]byte
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   uint32
}

const (
	sendBatch    = 1024 // UIO_MAXIOV: as many messages as one call takes
	segmentBatch = 4096
	maxSegments  = 64 // UDP_MAX_SEGMENTS of older kernels
	maxSuper     = 65_000
	rtpHeader    = 12
	markerBit    = 0x80    // beside the payload type
	userBuffer   = 1 << 20 // bytes of the socket's buffers: milliseconds of packets, at the rates that it can take
)

// userMain is the process of a user-space relay. It says "ready" and relays until it is killed.
func userMain(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("user", flag.ContinueOnError)
	listen := flags.String("listen", "", "")
	to := flags.String("to", "", "")
	n := flags.Int("receivers", 0, "")
	gso := flags.Bool("gso", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	local, err := netip.ParseAddrPort(*listen)
	if err != nil {
		return err
	}
	first, err := netip.ParseAddrPort(*to)
	if err != nil {
		return err
	}
	r := &userRelay{gso: *gso}
	for _, to := range receiversAt(first, *n) {
		r.receivers = append(r.receivers, userReceiver{to, inet4(to.addr)})
	}
	fd, err := listenUDP(local, userBuffer)
	if err != nil {
		return err
	}
	r.in = newReader(fd)
	r.prepare()
	fmt.Fprintln(stdout, ready)
	return r.run()
}

func inet4(a netip.AddrPort) (name [unix.SizeofSockaddrInet4]byte) {
	binary.NativeEndian.PutUint16(name[:], unix.AF_INET)
	binary.BigEndian.PutUint16(name[2:], a.Port())
	copy(name[4:], a.Addr().AsSlice())
	return name
}

// listenUDP makes a blocking socket with buffers of so many bytes.
func listenUDP(local netip.AddrPort, buffer int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}))
	return fd, err
}

func (r *userRelay) prepare() {
	for i := range r.out {
		header := (*unix.Cmsghdr)(unsafe.Pointer(&r.segment[i][0]))
		header.Level, header.Type = unix.SOL_UDP, unix.UDP_SEGMENT
		header.SetLen(unix.CmsgLen(2))
		r.out[i].hdr.Namelen = unix.SizeofSockaddrInet4
	}
}

func (r *userRelay) run() error {
	var packets [readBatch][]byte
	for {
		n, err := r.in.read(unix.MSG_WAITFORONE)
		if err != nil {
			return err
		}
		count := 0
		for i := range n {
			if p := r.in.packet(i); len(p) >= rtpHeader {
				packets[count] = p
				count++
			}
		}
		for from := 0; from < count; {
			to := from + 1
			if r.gso {
				to = superPacket(packets[:count], from)
			}
			for i := range r.receivers {
				if err := r.add(&r.receivers[i], packets[from:to]); err != nil {
					return err
				}
			}
			from = to
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
}

// superPacket returns the end of the packets from the given one on that fit into one GSO packet: all of the same
// size, only the last may be shorter.
func superPacket(packets [][]byte, from int) int {
	size, total := len(packets[from]), 0
	to := from
	for to < len(packets) && to-from < maxSegments && len(packets[to]) <= size && total+len(packets[to]) <= maxSuper {
		total += len(packets[to])
		to++
		if len(packets[to-1]) < size {
			break
		}
	}
	return to
}

// add queues packets to a receiver as one message.
func (r *userRelay) add(to *userReceiver, packets [][]byte) error {
	if r.messages == sendBatch || r.segments+len(packets) > segmentBatch {
		if err := r.flush(); err != nil {
			return err
		}
	}
	m := &r.out[r.messages].hdr
	m.Name = &to.name[0]
	m.Iov = &r.iovs[2*r.segments]
	m.SetIovlen(2 * len(packets))
	m.Control = nil
	m.SetControllen(0)
	if len(packets) > 1 {
		control := &r.segment[r.messages]
		binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(len(packets[0])))
		m.Control = &control[0]
		m.SetControllen(len(control))
	}
	r.messages++
	for _, p := range packets {
		header, iov := &r.headers[r.segments], r.iovs[2*r.segments:]
		r.segments++
		*header = [rtpHeader]byte(p)
		header[1] = p[1]&markerBit | to.payloadType
		binary.BigEndian.PutUint16(header[2:], binary.BigEndian.Uint16(p[2:])+to.sequence)
		binary.BigEndian.PutUint32(header[4:], binary.BigEndian.Uint32(p[4:])+to.timestamp)
		binary.BigEndian.PutUint32(header[8:], to.ssrc)
		iov[0].Base = &header[0]
		iov[0].SetLen(rtpHeader)
		iov[1].Base = unsafe.SliceData(p[rtpHeader:])
		iov[1].SetLen(len(p) - rtpHeader)
	}
	return nil
}

// flush sends what is queued.
func (r *userRelay) flush() error {
	for sent := 0; sent < r.messages; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(r.in.fd), uintptr(unsafe.Pointer(&r.out[sent])),
			uintptr(r.messages-sent), 0, 0, 0)
		switch errno {
		case 0:
			sent += int(n)
		case unix.EINTR:
		case unix.ENOBUFS, unix.ENOMEM: // the first message is lost
			sent++
		default:
			return errno
		}
	}
	r.messages, r.segments = 0, 0
	return nil
}
