package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
)

// arrived is what the kernel knows of a packet that has come in by a device, before any program sees it.
type arrived struct {
	size, paged uint32 // bytes in all, and those that are not in the first buffer
	pages       uint8  // pieces of the others
	headroom    uint64 // free bytes in front of the link-layer header
	partial     bool   // the checksum is left to a device
	segment     uint16 // of a GSO packet
}

// watch writes down the packets of all devices (the tracepoint netif_receive_skb).
type watch struct {
	layout skbLayout
	prog   *ebpf.Program
	ring   *ebpf.Map
	link   link.Link
	reader *ringbuf.Reader
}

// A record is the beginning of struct sk_buff, and of struct skb_shared_info, and the permanent link-layer address of
// the packet's device.
const (
	seenSKB, skbSize       = 0, 256
	seenShared, sharedSize = skbSize, 64
	seenAddr               = seenShared + sharedSize
	recordSize             = seenAddr + 8
)

// skbLayout says where members of the kernel's structures are, in bytes.
type skbLayout struct {
	len, dataLen, head, data, end, dev int
	ipSummed, bit                      int // the byte, and how far the two bits are from its lowest one
	frags, gsoSize                     int
	addr                               int // of struct net_device
}

func findLayout() (l skbLayout, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return l, fmt.Errorf("read the kernel's types: %w", err)
	}
	bits := 0
	for _, s := range []struct {
		name    string
		members map[string]*int
	}{
		{"sk_buff", map[string]*int{"len": &l.len, "data_len": &l.dataLen, "head": &l.head, "data": &l.data,
			"end": &l.end, "dev": &l.dev, "ip_summed": &bits}},
		{"skb_shared_info", map[string]*int{"nr_frags": &l.frags, "gso_size": &l.gsoSize}},
		{"net_device", map[string]*int{"perm_addr": &l.addr}},
	} {
		var t *btf.Struct
		if err := kernel.TypeByName(s.name, &t); err != nil {
			return l, err
		}
		for name, at := range s.members {
			n, ok := skbfacts.Offset(t.Members, name)
			if !ok {
				return l, fmt.Errorf("struct %s has no member %s", s.name, name)
			}
			if *at = n / 8; at == &bits {
				*at = n
			}
		}
	}
	l.ipSummed, l.bit = bits/8, bits%8
	if max(l.len, l.dataLen, l.head, l.data, l.end, l.dev, l.ipSummed)+8 > skbSize || l.gsoSize+2 > sharedSize {
		return l, errors.New("struct sk_buff is larger than expected")
	}
	return l, nil
}

func newWatch() (w *watch, err error) {
	w = &watch{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("watch what devices receive: %w", err), w.close())
		}
	}()
	if w.layout, err = findLayout(); err != nil {
		return w, err
	}
	if w.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "seen", Type: ebpf.RingBuf, MaxEntries: 1 << 20}); err != nil {
		return w, err
	}
	w.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "watch", Type: ebpf.RawTracepoint, Instructions: w.code(), License: "GPL",
	})
	if err != nil {
		return w, err
	}
	if w.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{
		Name: "netif_receive_skb", Program: w.prog,
	}); err != nil {
		return w, err
	}
	w.reader, err = ringbuf.NewReader(w.ring)
	return w, err
}

func (w *watch) close() error {
	var errs []error
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
	}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	if w.prog != nil {
		errs = append(errs, w.prog.Close())
	}
	if w.ring != nil {
		errs = append(errs, w.ring.Close())
	}
	return errors.Join(errs...)
}

// code copies what a record has from the packet that is the tracepoint's argument.
func (w *watch) code() asm.Instructions {
	l := &w.layout
	read := func(to, size int32) asm.Instructions { // of the kernel's memory at R3, to the record
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R7), asm.Add.Imm(asm.R1, to), asm.Mov.Imm(asm.R2, size),
			asm.FnProbeReadKernel.Call(),
		}
	}
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.LoadMapPtr(asm.R1, w.ring.FD()),
		asm.Mov.Imm(asm.R2, recordSize),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R3, asm.R6),
	}
	code = append(code, read(seenSKB, skbSize)...)
	code = append(code,
		asm.LoadMem(asm.R3, asm.R7, int16(l.head), asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, int16(l.end), asm.Word),
		asm.Add.Reg(asm.R3, asm.R1),
	)
	code = append(code, read(seenShared, sharedSize)...)
	code = append(code,
		asm.LoadMem(asm.R3, asm.R7, int16(l.dev), asm.DWord),
		asm.Add.Imm(asm.R3, int32(l.addr)),
	)
	code = append(code, read(seenAddr, 8)...)
	return append(code,
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}

// since returns the packets that a device has received since the last call.
func (w *watch) since(dev net.HardwareAddr) (list []arrived, err error) {
	var record ringbuf.Record
	order := binary.NativeEndian
	w.reader.SetDeadline(time.Unix(1, 0)) // what is there already
	for {
		err := w.reader.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		skb, shared := record.RawSample[seenSKB:], record.RawSample[seenShared:]
		if string(record.RawSample[seenAddr:][:len(dev)]) != string(dev) {
			continue
		}
		const partial, link = 3, 14 // CHECKSUM_PARTIAL; the header that the device's driver has taken for read
		l := &w.layout
		list = append(list, arrived{
			size: order.Uint32(skb[l.len:]) + link, paged: order.Uint32(skb[l.dataLen:]), pages: shared[l.frags],
			headroom: order.Uint64(skb[l.data:]) - order.Uint64(skb[l.head:]) - link,
			partial:  skb[l.ipSummed]>>l.bit&3 == partial,
			segment:  order.Uint16(shared[l.gsoSize:]),
		})
	}
}
