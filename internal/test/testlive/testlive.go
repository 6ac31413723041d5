// Package testlive runs programs on devices, for what BPF_PROG_TEST_RUN can't show.
package testlive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Live runs a relay's programs on devices, for what BPF_PROG_TEST_RUN can't show: checksums that are left to a
// device, GSO packets that are cut up, tags in the metadata, data that isn't linear, and what the next program and
// the device after get.
//
//	inN: gate --- inNp: watch, the Nth program, watch        fr0 --- fr1: watch
//
// A packet socket on inN sends; on fr0 everything leaves. A program of an egress hook runs on inN, where a watch is
// in front of it. A program whose packets have no link-layer header runs on a tun device (see entrance.tun). Watches
// write down what they see of struct sk_buff. All happens in the thread's namespace and, most often, inside of the
// system call that sends.
type Live struct {
	plan      *ir.Plan
	relay     *testrun.Relay
	out       uint32
	ring      *testrun.Ring
	records   *ebpf.Map
	layout    skbLayout
	entrances map[string]*entrance
	progs     []*ebpf.Program
	links     []link.Link
	markers   int // the socket that sends markers after packets without a link-layer header; -1 before there is one
	marks     uint32
	dropped   uint64
	seen      []Seen
	bytes     []byte
}

// entrance is where packets for one program come in.
type entrance struct {
	fd      int // the packet socket
	mark    uint32
	dev     netlink.Link
	device  int  // of a tun device, the file whose packets come in by it; else -1
	written bool // packets are written to it
}

// tun reports whether the packets have no link-layer header.
func (e *entrance) tun() bool { return e.device >= 0 }

// Where a packet was seen.
const (
	SeenComing  = iota // in front of the program
	SeenPassed         // after it: the next program, or the stack
	SeenLeaving        // at the other end of the cable
)

// Seen is a packet as a watch saw it. The bytes are valid until the next Send.
type Seen struct {
	Where   int
	Packet  sim.Packet
	GSOType uint32 // SKB_GSO_…
	// Of a GSO packet in a tunnel: where the frame inside begins, and its protocol (ETH_P_TEB: Ethernet).
	Inner      int
	InnerProto uint16
}

// Shot is a packet to send. If the frame has a tag after the link-layer addresses, the kernel puts it into the
// metadata.
type Shot struct {
	Data    []byte
	Partial sim.Partial // a checksum that is left to a device: as offsets in Data
	GSOType uint8       // VIRTIO_NET_HDR_GSO_…
	GSOSize uint16
	Linear  uint16 // bytes that should be linear; the kernel may make them more
	Mark    uint32
}

// Types of GSO packets (include/uapi/linux/virtio_net.h).
const (
	GSOTCPv4 = 1
	GSOTCPv6 = 4
	GSOUDP   = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

const (
	actShot = 2 // TC_ACT_SHOT (include/uapi/linux/pkt_cls.h)

	gsoEncap = 0x3f << 6 // SKB_GSO_GRE to SKB_GSO_UDP_TUNNEL_CSUM

	unnecessary, partialSum = 1, 3 // CHECKSUM_UNNECESSARY, CHECKSUM_PARTIAL

	// MaxShot is the largest packet that watches write down.
	MaxShot  = 9000
	liveMTU  = 9216
	liveRing = 1 << 24

	// skb->tc_index of packets that came from Send, and at the gate their priority: the kernel sends others.
	ours = 0x5eed
	// An EtherType for experiments: such a frame comes after all that was sent before.
	markerProto = 0x88b5
)

// Open puts the programs of a relay on devices of a network. Offload says whether the device that they send through
// takes checksums and GSO packets as they are.
func Open(n *testrun.Net, plan *ir.Plan, r *testrun.Relay, offload bool) (*Live, error) {
	l := &Live{plan: plan, relay: r, out: n.Out(), entrances: map[string]*entrance{}, markers: -1}
	if err := l.open(offload); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close takes the devices away.
func (l *Live) Close() {
	sockets := []int{l.markers}
	for _, e := range l.entrances {
		sockets = append(sockets, e.fd)
	}
	for _, fd := range sockets {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, k := range l.links {
		_ = k.Close()
	}
	for _, e := range l.entrances {
		if e.tun() {
			_ = unix.Close(e.device) // the device ends with it
		} else if e.dev != nil {
			_ = netlink.LinkDel(e.dev)
		}
	}
	for _, p := range l.progs {
		_ = p.Close()
	}
	if l.ring != nil {
		l.ring.Close()
	}
	if l.records != nil {
		_ = l.records.Close()
	}
}

func (l *Live) open(offload bool) (err error) {
	if l.layout, err = findLayout(); err != nil {
		return err
	}
	if l.records, err = ebpf.NewMap(&ebpf.MapSpec{Name: "seen", Type: ebpf.RingBuf, MaxEntries: liveRing}); err != nil {
		return fmt.Errorf("make a ring buffer: %w", err)
	}
	if l.ring, err = testrun.OpenRing(l.records); err != nil {
		return err
	}
	far, err := netlink.LinkByName("fr1")
	if err != nil {
		return fmt.Errorf("find fr1: %w", err)
	}
	if err := errors.Join(netlink.LinkSetMTU(far, liveMTU), setOffload("fr0", offload)); err != nil {
		return fmt.Errorf("set up the devices after the relay: %w", err)
	}
	guard, err := l.load("gate", gate)
	if err != nil {
		return err
	}
	watches := map[int]*ebpf.Program{}
	for _, where := range []int{SeenComing, SeenPassed, SeenLeaving} {
		if watches[where], err = l.load("watch", l.watch(where)); err != nil {
			return err
		}
	}
	if err := l.attach(far, ebpf.AttachTCXIngress, watches[SeenLeaving]); err != nil {
		return err
	}
	for i, p := range l.plan.Programs {
		e := &entrance{fd: -1, device: -1}
		l.entrances[p.Name] = e
		enter := l.cable
		if !p.L2 {
			enter = l.tunnel
		}
		if err := enter(e, fmt.Sprintf("in%d", i), p, guard, watches); err != nil {
			return err
		}
	}
	return nil
}

func (l *Live) load(name string, code asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, Instructions: code, License: "GPL",
	})
	if err != nil {
		return nil, fmt.Errorf("load a %s: %w", name, err)
	}
	l.progs = append(l.progs, p)
	return p, nil
}

// cable puts a program on one end of a cable.
func (l *Live) cable(e *entrance, name string, p *ir.Program, guard *ebpf.Program,
	watches map[int]*ebpf.Program) error {
	dev := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: liveMTU, HardwareAddr: packet.DefaultSource[:]},
		PeerName:  name + "p", PeerHardwareAddr: packet.DefaultDestination[:], PeerMTU: liveMTU,
	}
	if err := netlink.LinkAdd(dev); err != nil {
		return fmt.Errorf("make a device: %w", err)
	}
	e.dev = dev
	in, err := netlink.LinkByName(dev.PeerName)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev.PeerName, err)
	}
	if err := errors.Join(netlink.LinkSetUp(dev), netlink.LinkSetUp(in)); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	if err := ready(dev); err != nil {
		return err
	}
	if err := l.attach(dev, ebpf.AttachTCXEgress, guard); err != nil {
		return err
	}
	at, hook := netlink.Link(in), ebpf.AttachTCXIngress
	if p.Hook == "tc/egress" {
		at, hook = dev, ebpf.AttachTCXEgress
	}
	if err := errors.Join(
		l.attach(at, hook, watches[SeenComing]),
		l.attach(at, hook, l.relay.Program(p.Name)),
		l.attach(in, ebpf.AttachTCXIngress, watches[SeenPassed]),
	); err != nil {
		return err
	}
	if e.fd, err = packetSocket(dev.Attrs().Index); err != nil {
		return fmt.Errorf("a packet socket on %s: %w", name, err)
	}
	return nil
}

// ready waits until the kernel has noticed that a device's cable is up: before, it drops what the device is to send.
func ready(dev netlink.Link) (err error) {
	var now netlink.Link
	waited := testnet.Until(2*time.Second, dev.Attrs().Name+" can send", func() bool {
		now, err = netlink.LinkByIndex(dev.Attrs().Index)
		return err != nil || now.Attrs().OperState == netlink.OperUp
	})
	return errors.Join(err, waited)
}

func (l *Live) attach(at netlink.Link, hook ebpf.AttachType, prog *ebpf.Program) error {
	options := link.TCXOptions{Interface: at.Attrs().Index, Program: prog, Attach: hook, Anchor: link.Tail()}
	k, err := link.AttachTCX(options)
	if err != nil {
		return fmt.Errorf("%s: attach a program: %w", at.Attrs().Name, err)
	}
	l.links = append(l.links, k)
	return nil
}

// packetSocket opens a socket to send from, on a device of this thread's namespace.
func packetSocket(index int) (int, error) {
	here, err := netns.Get()
	if err != nil {
		return -1, err
	}
	defer here.Close()
	return namespace.PacketSocket(here, index, 0, namespace.Option(unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		namespace.Option(unix.SOL_SOCKET, unix.SO_PRIORITY, ours))
}

// setOffload switches the checksums of what a device sends, and with them GSO packets (ETHTOOL_STXCSUM in
// linux/ethtool.h).
func setOffload(device string, on bool) error {
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	if on {
		value.data = 1
	}
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = unsafe.Pointer(&value)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("ethtool: %s: %w", device, errno)
	}
	return nil
}

// Send sends a packet to a program, and returns all that watches saw of it, in order. The error is testrun.ErrRefused
// if the kernel doesn't take such a packet; if it finds out later, nothing is seen.
func (l *Live) Send(program string, s *Shot) ([]Seen, error) {
	e := l.entrances[program]
	if e == nil {
		return nil, fmt.Errorf("the relay has no program %q", program)
	}
	if s.Mark != e.mark && !e.written {
		if err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.Mark)); err != nil {
			return nil, fmt.Errorf("set the mark: %w", err)
		}
		e.mark = s.Mark
	}
	var head [10]byte // struct virtio_net_hdr
	if s.Partial != (sim.Partial{}) {
		head[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(head[6:], uint16(s.Partial.Start))
		binary.NativeEndian.PutUint16(head[8:], uint16(s.Partial.Field-s.Partial.Start))
	}
	head[1] = s.GSOType
	binary.NativeEndian.PutUint16(head[2:], s.Linear)
	binary.NativeEndian.PutUint16(head[4:], s.GSOSize)
	err := e.send([][]byte{head[:], s.Data})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMSGSIZE) {
		return nil, testrun.ErrRefused
	}
	// What is dropped in between is not seen.
	if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("send %d bytes: %w", len(s.Data), err)
	}
	return l.await(e)
}

func (e *entrance) send(packet [][]byte) error {
	if e.tun() {
		return e.sendBare(packet)
	}
	_, err := unix.SendmsgBuffers(e.fd, packet, nil, nil, 0)
	return err
}

// await sends a marker after what was sent, and waits until it is there.
func (l *Live) await(e *entrance) ([]Seen, error) {
	l.marks++
	markers := e.fd
	if e.tun() {
		markers = l.markers
	}
	frame := make([]byte, 60+10)
	binary.BigEndian.PutUint16(frame[10+12:], markerProto)
	binary.BigEndian.PutUint32(frame[10+14:], l.marks)
	l.seen, l.bytes = l.seen[:0], l.bytes[:0]
	start := time.Now()
	for sent := start; ; {
		if sent == start || time.Since(sent) > 100*time.Millisecond { // on a busy machine even a marker may be dropped
			sent = time.Now()
			if _, err := unix.SendmsgBuffers(markers, [][]byte{frame}, nil, nil, 0); err != nil {
				return nil, fmt.Errorf("send a marker: %w", err)
			}
		}
		there := false
		l.ring.Drain(func(record []byte) {
			s := l.parse(record)
			if s.Packet.Proto == markerProto {
				there = there || binary.BigEndian.Uint32(s.Packet.Data[14:]) == l.marks
			} else {
				l.seen = append(l.seen, s)
			}
		})
		if there {
			return l.seen, nil
		}
		if time.Since(start) > 10*time.Second {
			return nil, errors.New("a marker that was sent after a packet doesn't come through within 10 s")
		}
		runtime.Gosched()
	}
}

// Dropped reports whether a cable has dropped packets since the last call: all devices of a machine share the queues
// after them.
func (l *Live) Dropped() (bool, error) {
	total := uint64(0)
	for _, e := range l.entrances {
		d, err := netlink.LinkByIndex(e.dev.Attrs().Index)
		if err != nil {
			return false, fmt.Errorf("read a device's counters: %w", err)
		}
		total += d.Attrs().Statistics.TxDropped
	}
	d, err := netlink.LinkByIndex(int(l.out))
	if err != nil {
		return false, fmt.Errorf("read a device's counters: %w", err)
	}
	total += d.Attrs().Statistics.TxDropped
	more := total > l.dropped
	l.dropped = total
	return more, nil
}
