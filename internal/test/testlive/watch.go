package testlive

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Watches write down what they see of struct sk_buff.

const (
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
	ctxLen         = 0
	ctxPktType     = 4
	ctxMark        = 8
	ctxProtocol    = 16
	ctxVLANPresent = 20
	ctxVLANTCI     = 24
	ctxVLANProto   = 28
	ctxPriority    = 32
	ctxTCIndex     = 44
	ctxGSOSize     = 176
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
	transport                  int
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
		"inner_mac_header": &l.innerMAC, "inner_protocol": &l.innerProto, "transport_header": &l.transport,
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
	last := max(l.csumStart, l.head, l.data, l.end, l.ipSummed/8, l.csumLevel/8, l.innerMAC, l.innerProto,
		l.transport)
	if !ok || l.sharedGSO+4 > sharedSize || last+8 > skbSize {
		return l, errors.New("struct sk_buff is larger than watches expect")
	}
	return l, nil
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

// noTransport is skb->transport_header while it isn't known.
const noTransport = 0xFFFF

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
	if at := binary.NativeEndian.Uint16(skb[l.layout.transport:]); at != noTransport {
		s.Packet.Transport = max(int(at)-int(front), 0)
	}
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
