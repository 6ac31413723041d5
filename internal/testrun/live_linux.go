package testrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/skbfacts"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
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
	relay     *Relay
	out       uint32
	ring      *ring
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
	SeenUp             // after it: the next program, or the stack
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

// Shot is a packet to send. Where the frame has a tag after the link-layer addresses, the kernel puts it into the
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

	// Records of watches.
	seenWhere  = 0
	seenFacts  = 4 // the facts below, 4 bytes each
	seenSKB    = 56
	skbSize    = 256
	seenShared = seenSKB + skbSize
	sharedSize = 64
	seenHeader = seenShared + sharedSize
	seenRecord = seenHeader + MaxShot
)

// Offsets in struct __sk_buff (include/uapi/linux/bpf.h).
const (
	ctxPktType     = 4
	ctxProtocol    = 16
	ctxVLANPresent = 20
	ctxVLANTCI     = 24
	ctxVLANProto   = 28
	ctxTCIndex     = 44
)

// facts are what watches read of struct __sk_buff.
var facts = []int16{
	ctxLen, ctxPktType, ctxProtocol, ctxVLANPresent, ctxVLANTCI, ctxVLANProto, ctxMark, ctxPriority, ctxGSOSize,
}

// skbLayout says where members of the kernel's structures are.
type skbLayout struct {
	ipSummed, csumLevel        int // in bits: numbers of two bits
	csumStart, csumOffset      int
	head, data, end, sharedGSO int
	innerMAC, innerProto       int
}

func findLayout() (l skbLayout, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return l, fmt.Errorf("read the kernel's types: %w", err)
	}
	var skb, shared *btf.Struct
	if err := errors.Join(kernel.TypeByName("sk_buff", &skb),
		kernel.TypeByName("skb_shared_info", &shared)); err != nil {
		return l, err
	}
	for name, at := range map[string]*int{
		"csum_start": &l.csumStart, "csum_offset": &l.csumOffset,
		"head": &l.head, "data": &l.data, "end": &l.end,
		"inner_mac_header": &l.innerMAC, "inner_protocol": &l.innerProto,
	} {
		n, ok := skbfacts.Offset(skb.Members, name)
		if !ok {
			return l, fmt.Errorf("struct sk_buff has no member %s", name)
		}
		*at = n / 8
	}
	for name, at := range map[string]*int{"ip_summed": &l.ipSummed, "csum_level": &l.csumLevel} {
		var ok bool
		if *at, ok = skbfacts.Offset(skb.Members, name); !ok {
			return l, fmt.Errorf("struct sk_buff has no member %s", name)
		}
	}
	n, ok := skbfacts.Offset(shared.Members, "gso_type")
	l.sharedGSO = n / 8
	last := max(l.csumStart, l.head, l.data, l.end, l.ipSummed/8, l.csumLevel/8, l.innerMAC, l.innerProto)
	if !ok || l.sharedGSO+4 > sharedSize || last+8 > skbSize {
		return l, errors.New("struct sk_buff is larger than watches expect")
	}
	return l, nil
}

// Live puts the programs of a relay on devices of the network. Offload says whether the device that they send through
// takes checksums and GSO packets as they are.
func (n *Net) Live(r *Relay, offload bool) (*Live, error) {
	l := &Live{relay: r, out: n.out, entrances: map[string]*entrance{}, markers: -1}
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
		l.ring.close()
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
		return refused(fmt.Errorf("make a ring buffer: %w", err))
	}
	if l.ring, err = openRing(l.records); err != nil {
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
	for _, where := range []int{SeenComing, SeenUp, SeenLeaving} {
		if watches[where], err = l.load("watch", l.watch(where)); err != nil {
			return err
		}
	}
	if err := l.attach(far, ebpf.AttachTCXIngress, watches[SeenLeaving]); err != nil {
		return err
	}
	for i, p := range l.relay.plan.Programs {
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
		return nil, refused(fmt.Errorf("load a %s: %w", name, err))
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
	if err := l.attach(dev, ebpf.AttachTCXEgress, guard); err != nil {
		return err
	}
	at, hook := netlink.Link(in), ebpf.AttachTCXIngress
	if p.Hook == "tc/egress" {
		at, hook = dev, ebpf.AttachTCXEgress
	}
	if err := errors.Join(
		l.attach(at, hook, watches[SeenComing]),
		l.attach(at, hook, l.relay.progs[p.Name]),
		l.attach(in, ebpf.AttachTCXIngress, watches[SeenUp]),
	); err != nil {
		return err
	}
	if e.fd, err = packetSocket(dev.Attrs().Index); err != nil {
		return fmt.Errorf("a packet socket on %s: %w", name, err)
	}
	return nil
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

func packetSocket(index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, ours),
		unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index}),
	); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
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

// gate lets packets of the socket out, and none of the kernel's own. It says that two checksums are verified, unless
// one is left to a device.
var gate = asm.Instructions{
	asm.LoadMem(asm.R2, asm.R1, ctxPriority, asm.Word),
	asm.Mov.Imm(asm.R0, actShot),
	asm.JNE.Imm(asm.R2, ours, "out"),
	asm.StoreImm(asm.R1, ctxTCIndex, ours, asm.Word),
	asm.StoreImm(asm.R1, ctxPriority, 0, asm.Word),
	asm.Mov.Reg(asm.R6, asm.R1),
	asm.Mov.Imm(asm.R2, levelUp),
	asm.FnCsumLevel.Call(),
	asm.Mov.Reg(asm.R1, asm.R6),
	asm.Mov.Imm(asm.R2, levelUp),
	asm.FnCsumLevel.Call(),
	asm.Mov.Imm(asm.R0, -1),
	asm.Return().WithSymbol("out"),
}

// levelUp is BPF_CSUM_LEVEL_INC.
const levelUp = 1

// watch writes a packet down; after the program it keeps it as well.
func (l *Live) watch(where int) asm.Instructions {
	const noWakeup = 1
	onward := int32(actShot)
	var code asm.Instructions
	code = append(code, asm.Mov.Reg(asm.R6, asm.R1))
	code = append(code, asm.LoadMem(asm.R1, asm.R6, ctxTCIndex, asm.Word), asm.JNE.Imm(asm.R1, ours, "out"))
	if where == SeenComing {
		onward = -1
		code = append(code,
			asm.LoadMem(asm.R1, asm.R6, ctxProtocol, asm.Word),
			asm.JEq.Imm(asm.R1, int32(swap16(markerProto)), "marker"),
		)
	}
	code = append(code,
		asm.LoadMapPtr(asm.R1, l.records.FD()),
		asm.Mov.Imm(asm.R2, seenRecord),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.StoreImm(asm.R7, seenWhere, int64(where), asm.Word),
	)
	for i, off := range facts {
		code = append(code,
			asm.LoadMem(asm.R1, asm.R6, off, asm.Word),
			asm.StoreMem(asm.R7, int16(seenFacts+4*i), asm.R1, asm.Word),
		)
	}
	read := func(to, size int32) asm.Instructions { // of the kernel's memory at R3, to the record
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R7), asm.Add.Imm(asm.R1, to), asm.Mov.Imm(asm.R2, size),
			asm.FnProbeReadKernel.Call(),
		}
	}
	code = append(code, asm.Mov.Reg(asm.R3, asm.R6))
	code = append(code, read(seenSKB, skbSize)...)
	code = append(code,
		asm.LoadMem(asm.R3, asm.R7, int16(seenSKB+l.layout.head), asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, int16(seenSKB+l.layout.end), asm.Word),
		asm.Add.Reg(asm.R3, asm.R1),
	)
	code = append(code, read(seenShared, sharedSize)...)
	code = append(code,
		asm.LoadMem(asm.R8, asm.R6, ctxLen, asm.Word),
		asm.JLE.Imm(asm.R8, MaxShot, "short"),
		asm.Mov.Imm(asm.R8, MaxShot),
		asm.JLT.Imm(asm.R8, 1, "empty").WithSymbol("short"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Add.Imm(asm.R3, seenHeader),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.FnSkbLoadBytes.Call(),
		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("empty"),
		asm.Mov.Imm(asm.R2, noWakeup),
		asm.FnRingbufSubmit.Call(),
		asm.Mov.Imm(asm.R0, onward).WithSymbol("out"),
		asm.Return(),
	)
	if where == SeenComing {
		code = append(code,
			asm.Mov.Imm(asm.R1, int32(l.out)).WithSymbol("marker"),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		)
	}
	return code
}

func swap16(v uint16) uint16 { return v<<8 | v>>8 }

// Send sends a packet to a program, and returns all that watches saw of it, in order. The error is ErrRefused where
// the kernel doesn't take such a packet; where it finds out later, nothing is seen.
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
		return nil, ErrRefused
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
		l.ring.drain(func(record []byte) {
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

func (l *Live) parse(record []byte) Seen {
	fact := func(off int16) uint32 {
		for i, f := range facts {
			if f == off {
				return binary.NativeEndian.Uint32(record[seenFacts+4*i:])
			}
		}
		return 0
	}
	n, at := min(int(fact(ctxLen)), MaxShot), len(l.bytes)
	l.bytes = append(l.bytes, record[seenHeader:seenHeader+n]...)
	s := Seen{Where: int(binary.NativeEndian.Uint32(record[seenWhere:]))}
	s.Packet = sim.Packet{
		Data: l.bytes[at : at+n : at+n], GSO: fact(ctxGSOSize), Link: uint8(fact(ctxPktType)), Mark: fact(ctxMark),
		Priority: fact(ctxPriority),
		Proto:    swap16(uint16(fact(ctxProtocol))),
	}
	if fact(ctxVLANPresent) != 0 {
		s.Packet.VLAN = &sim.Tag{Proto: swap16(uint16(fact(ctxVLANProto))), TCI: uint16(fact(ctxVLANTCI))}
	}
	skb := record[seenSKB:]
	front := binary.NativeEndian.Uint64(skb[l.layout.data:]) - binary.NativeEndian.Uint64(skb[l.layout.head:])
	bits := func(at int) int { return int(skb[at/8]) >> (at % 8) & 3 }
	switch bits(l.layout.ipSummed) {
	case unnecessary:
		s.Packet.Verified = 1 + bits(l.layout.csumLevel)
	case partialSum:
		start := int(binary.NativeEndian.Uint16(skb[l.layout.csumStart:])) - int(front)
		offset := int(binary.NativeEndian.Uint16(skb[l.layout.csumOffset:]))
		s.Packet.Partial = sim.Partial{Start: start, Field: start + offset}
	}
	if s.Packet.GSO != 0 {
		s.GSOType = binary.NativeEndian.Uint32(record[seenShared+l.layout.sharedGSO:])
		s.Packet.Tunnel = s.GSOType&gsoEncap != 0
		s.Packet.Segments = segments(s.GSOType)
		s.Inner = int(binary.NativeEndian.Uint16(skb[l.layout.innerMAC:])) - int(front)
		s.InnerProto = binary.BigEndian.Uint16(skb[l.layout.innerProto:])
	}
	return s
}

// segments is the protocol of the segments of a GSO packet of this type, if the kernel can cut it with a tunnel's
// headers in front.
func segments(kind uint32) uint8 {
	const tcp, udp, dodgy, ecn, fixedID, accECN = 1<<0 | 1<<4, 1 << 17, 1 << 1, 1 << 2, 1 << 3, 1 << 19
	switch {
	case kind&^(tcp|udp|dodgy|ecn|fixedID|accECN) != 0:
		return 0
	case kind&udp != 0:
		return 17
	case kind&tcp != 0:
		return 6
	}
	return 0
}

// Counted is how many packets the programs have counted under a reason, by its place in the relay's array.
func (r *Relay) Counted(reason int) (uint64, error) {
	words, err := r.sum(abi.MapReasons, reason)
	if err != nil {
		return 0, err
	}
	return words[0], nil
}
