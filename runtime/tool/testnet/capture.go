package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// Frame is a frame as a device's capture saw it, from the link-layer header on.
type Frame struct {
	Data []byte
	At   time.Time // when the kernel had it, by the wall clock

	// Partial says that the transport checksum holds the pseudo-header's sum only (TP_STATUS_CSUMNOTREADY): whoever
	// sends the frame on to a real device still has to complete it.
	Partial bool
	// VLAN is the tag in the packet's metadata, or nil. A tag in the frame is part of Data.
	VLAN *Tag
	// Outgoing frames are those that the device sends.
	Outgoing bool
}

// Tag is a VLAN tag: its EtherType (0x8100 or 0x88a8) and its control information.
type Tag struct{ Proto, TCI uint16 }

// Capture records the frames of one device.
type Capture struct {
	fd    int
	done  chan struct{} // closed by Stop
	ended chan struct{} // closed when nothing is recorded any more

	mu     sync.Mutex
	frames []Frame
	err    error
}

// PacketSocket opens a raw socket on the device (namespace.PacketSocket).
func (d *Dev) PacketSocket(protocol uint16, options ...func(fd int) error) (fd int, err error) {
	fd, err = namespace.PacketSocket(d.Host.ns, d.Index, protocol, options...)
	return fd, d.wrap("open", err)
}

// Capture starts to record all frames that the device receives and sends, until Stop.
func (d *Dev) Capture() (*Capture, error) {
	fd, err := d.PacketSocket(unix.ETH_P_ALL,
		namespace.Option(unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		namespace.Option(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		namespace.Option(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		func(fd int) error { // how long it takes at most until Stop is noticed
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000})
		},
	)
	if err != nil {
		return nil, err
	}
	c := &Capture{fd: fd, done: make(chan struct{}), ended: make(chan struct{})}
	go c.run()
	return c, nil
}

func (c *Capture) run() {
	defer close(c.ended)
	stopped := func() bool {
		select {
		case <-c.done:
			return true
		default:
			return false
		}
	}
	buf := make([]byte, 128<<10)
	oob := make([]byte, unix.CmsgSpace(auxSize)+unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	end := func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
	}
	for {
		last := stopped() // before it reads: what came before it was stopped is in the queue, or has been read
		n, oobn, _, from, err := unix.Recvmsg(c.fd, buf, oob, 0)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN && !last:
			continue
		case err == unix.EAGAIN:
			stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err == nil && stats.Drops > 0 {
				err = fmt.Errorf("the capture lacks %d frames, for which its socket had no room", stats.Drops)
			}
			end(err)
			return
		case err != nil:
			end(err)
			return
		}
		f := Frame{Data: append([]byte(nil), buf[:n]...), At: time.Now()}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok {
			f.Outgoing = ll.Pkttype == unix.PACKET_OUTGOING
		}
		f.readAux(oob[:oobn])
		c.mu.Lock()
		c.frames = append(c.frames, f)
		c.mu.Unlock()
	}
}

// auxSize is the size of struct tpacket_auxdata (linux/if_packet.h): u32 status, len, snaplen; u16 mac, net, vlan_tci,
// vlan_tpid.
const auxSize = 20

func (f *Frame) readAux(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			f.At = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < auxSize {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		f.Partial = status&unix.TP_STATUS_CSUMNOTREADY != 0
		if status&unix.TP_STATUS_VLAN_VALID != 0 {
			f.VLAN = &Tag{Proto: binary.NativeEndian.Uint16(m.Data[18:]), TCI: binary.NativeEndian.Uint16(m.Data[16:])}
		}
	}
}

// Frames returns what was recorded so far.
func (c *Capture) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Frame(nil), c.frames...)
}

// Stop ends the capture and returns what it recorded: all that came before.
func (c *Capture) Stop() ([]Frame, error) {
	select {
	case <-c.done:
	default:
		// Nothing more is received: a filter takes no byte of any frame.
		none := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}
		err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &none)
		close(c.done)
		<-c.ended
		if err = errors.Join(err, unix.Close(c.fd)); err != nil {
			return nil, fmt.Errorf("stop a capture: %w", err)
		}
	}
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frames, c.err
}

// Inject puts a frame on the cable as if the device's host had sent it. What is in front of the IP header is up to the
// caller, so that VLAN tags, padding and wrong lengths can be sent. The checksum is not touched.
func (d *Dev) Inject(frame []byte) error {
	fd, err := d.PacketSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return d.wrap("inject", unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: d.Index}))
}

// Offload is the checksum of an injected frame that is left to a device, as offsets in the frame: the first byte that
// it covers, and its field.
type Offload struct{ SumStart, SumField int }

// InjectOffloaded is Inject for a frame of which a checksum is left to a device.
func (d *Dev) InjectOffloaded(frame []byte, o Offload) error {
	fd, err := d.PacketSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	head := make([]byte, 10) // struct virtio_net_hdr (linux/virtio_net.h)
	head[0] = 1              // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(head[6:], uint16(o.SumStart))
	binary.NativeEndian.PutUint16(head[8:], uint16(o.SumField-o.SumStart))
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	if err == nil {
		_, err = unix.SendmsgBuffers(fd, [][]byte{head, frame}, nil, &unix.SockaddrLinklayer{Ifindex: d.Index}, 0)
	}
	return d.wrap("inject", err)
}
