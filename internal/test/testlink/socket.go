package testlink

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	batch = 64 // frames a system call

	// vnetSize is the size of struct virtio_net_hdr (linux/virtio_net.h), in front of each frame of a socket with
	// PACKET_VNET_HDR: u8 flags, gso_type; u16 hdr_len, gso_size, csum_start, csum_offset. It says which checksum is
	// partial, and how a GSO packet is segmented.
	vnetSize    = 10
	needsCsum   = 1        // VIRTIO_NET_HDR_F_NEEDS_CSUM
	largest     = 68 << 10 // a GSO packet with its headers
	socketSpace = 64 << 20 // how many bytes may wait in a socket, by the kernel's count
	auxSize     = 20       // struct tpacket_auxdata (linux/if_packet.h)
)

// listen opens a packet socket for what a device receives, and to send from it.
func listen(d *testnet.Dev) (fd int, err error) {
	return d.PacketSocket(unix.ETH_P_ALL,
		namespace.Option(unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		namespace.Option(unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		namespace.Option(unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		namespace.Option(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		namespace.Option(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketSpace),
		namespace.Option(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketSpace),
		func(fd int) error { return unix.SetNonblock(fd, true) },
	)
}

// message is struct mmsghdr (recvmmsg(2)).
type message struct {
	unix.Msghdr
	size uint32
}

// socket reads and writes frames in batches.
type socket struct {
	fd      int
	in, out [batch]message
	iovIn   [batch]unix.Iovec
	iovOut  [batch]unix.Iovec
	space   [batch][]byte
	control [batch][]byte
	overrun uint64
}

func newSocket(fd int) *socket {
	s := &socket{fd: fd}
	for i := range batch {
		s.space[i] = make([]byte, largest)
		s.control[i] = make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{})))+unix.CmsgSpace(auxSize))
		s.iovIn[i].Base = &s.space[i][0]
		s.iovIn[i].SetLen(largest)
		for _, m := range []*message{&s.in[i], &s.out[i]} {
			m.SetIovlen(1)
		}
		s.in[i].Iov, s.out[i].Iov = &s.iovIn[i], &s.iovOut[i]
		s.in[i].Control = &s.control[i][0]
	}
	return s
}

// read returns how many frames it read; a device that went down sends none.
func (s *socket) read() (int, error) {
	for i := range s.in {
		s.in[i].SetControllen(len(s.control[i]))
	}
	n, err := mmsg(unix.SYS_RECVMMSG, s.fd, s.in[:])
	if err == unix.EAGAIN || err == unix.ENETDOWN {
		err = nil
	}
	return n, err
}

func mmsg(call uintptr, fd int, messages []message) (int, error) {
	for {
		n, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)),
			unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// frame copies the i'th frame that was read, and returns when the kernel had it. A VLAN tag goes from
// the packet's metadata into the frame, where the sending socket looks for it.
func (s *socket) frame(i int, f *frame) (at time.Time, err error) {
	data := s.space[i][:s.in[i].size]
	if s.in[i].Flags&unix.MSG_TRUNC != 0 || len(data) < vnetSize+14 {
		return at, fmt.Errorf("a frame of %d bytes is too long or too short", len(data))
	}
	var tag []byte
	for rest := s.control[i][:s.in[i].Controllen]; len(rest) > 0; {
		var header unix.Cmsghdr
		var value []byte
		if header, value, rest, err = unix.ParseOneSocketControlMessage(rest); err != nil {
			return at, err
		}
		switch {
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS:
			at = time.Unix((*unix.Timespec)(unsafe.Pointer(&value[0])).Unix())
		case header.Level == unix.SOL_PACKET && header.Type == unix.PACKET_AUXDATA:
			if binary.NativeEndian.Uint32(value)&unix.TP_STATUS_VLAN_VALID != 0 {
				tag = binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(value[18:])) // vlan_tpid
				tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(value[16:])) // vlan_tci
			}
		}
	}
	const addresses = vnetSize + 12
	f.data = append(append(append(f.data[:0], data[:addresses]...), tag...), data[addresses:]...)
	f.data[0] &= needsCsum               // other flags are for receivers
	for _, offset := range []int{2, 6} { // hdr_len and csum_start count from the frame's beginning
		field := f.data[offset : offset+2 : offset+2]
		if v := binary.NativeEndian.Uint16(field); v != 0 {
			binary.NativeEndian.PutUint16(field, v+uint16(len(tag)))
		}
	}
	return at, nil
}

// send sends frames, at most a batch, and returns how many the device refused: its queue is full, it is down, or the
// frame is too long for it.
func (s *socket) send(frames []*frame) (refused int) {
	for i, f := range frames {
		s.iovOut[i].Base = &f.data[0]
		s.iovOut[i].SetLen(len(f.data))
	}
	for at := 0; at < len(frames); {
		n, err := mmsg(unix.SYS_SENDMMSG, s.fd, s.out[at:len(frames)])
		if err != nil {
			refused++
			n = 1
		}
		at += n
	}
	return refused
}

// overruns returns how many frames were lost because the socket was full.
func (s *socket) overruns() (uint64, error) {
	stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, err
	}
	s.overrun += uint64(stats.Drops) // the kernel begins anew at each call
	return s.overrun, nil
}
