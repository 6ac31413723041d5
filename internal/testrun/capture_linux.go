package testrun

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Unlike redirects, bpf_clone_redirect works under BPF_PROG_TEST_RUN: copies leave through real devices of the thread's
// network namespace. A Net that captures takes them there, in the order in which they are sent, before the run is over.

// Records of captured packets: the packet's length, the device's index, mark and priority, 4 bytes each, then its
// bytes.
const (
	copyHeader = 16
	copyRecord = copyHeader + sim.MaxFrame
	copyRing   = 1 << 24 // ir.MaxReceivers records
)

type capture struct {
	ring    *Ring
	records *ebpf.Map
	progs   []*ebpf.Program
}

// Capture takes copies from now on; see Relay.Join.
func (n *Net) Capture() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return bpfload.Explained(fmt.Errorf("raise the limit of locked memory: %w", err))
	}
	for _, index := range []int{sim.OtherWire, sim.Refusing, sim.Down} {
		dev := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("fr%d", index), Index: index},
			PeerName:  fmt.Sprintf("fr%dp", index),
		}
		if err := netlink.LinkAdd(dev); err != nil {
			return fmt.Errorf("make a device: %w", err)
		}
	}
	n.capture = &capture{}
	if err := n.capture.open(); err != nil {
		return errors.Join(err, n.capture.close())
	}
	return nil
}

func (c *capture) open() error {
	var err error
	c.records, err = ebpf.NewMap(&ebpf.MapSpec{Name: "copies", Type: ebpf.RingBuf, MaxEntries: copyRing})
	if err != nil {
		return bpfload.Explained(fmt.Errorf("make a ring buffer: %w", err))
	}
	if c.ring, err = OpenRing(c.records); err != nil {
		return err
	}
	for _, d := range []struct {
		index int
		code  asm.Instructions
	}{
		{sim.Wire, takes(c.records)}, {sim.OtherWire, takes(c.records)},
		{sim.Refusing, asm.Instructions{asm.Mov.Imm(asm.R0, actShot), asm.Return()}},
	} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "capture", Type: ebpf.SchedCLS, Instructions: d.code, License: "GPL",
		})
		if err != nil {
			return bpfload.Explained(fmt.Errorf("load a program: %w", err))
		}
		c.progs = append(c.progs, prog)
		if err := onEgress(d.index, prog); err != nil {
			return err
		}
	}
	return nil
}

func (c *capture) close() error {
	if c.ring != nil {
		c.ring.Close()
	}
	var errs []error
	if c.records != nil {
		errs = append(errs, c.records.Close())
	}
	for _, p := range c.progs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// onEgress runs a program on all that leaves through a device, which it sets up.
func onEgress(index int, prog *ebpf.Program) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("find device %d: %w", index, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	at := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: at}); err != nil {
		return fmt.Errorf("%s: add a clsact qdisc: %w", l.Attrs().Name, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: "capture", DirectAction: true,
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("%s: attach a program: %w", l.Attrs().Name, err)
	}
	return nil
}

// takes puts a packet into the ring and swallows it (TC_ACT_STOLEN: a success for who sent it).
func takes(records *ebpf.Map) asm.Instructions {
	const noWakeup = 1
	field := func(off, at int16) asm.Instructions { // of struct __sk_buff, to the record in R7
		return asm.Instructions{asm.LoadMem(asm.R1, asm.R6, off, asm.Word), asm.StoreMem(asm.R7, at, asm.R1, asm.Word)}
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapPtr(asm.R1, records.FD()),
		asm.Mov.Imm(asm.R2, copyRecord),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "full"),
		asm.Mov.Reg(asm.R7, asm.R0),
	}
	for i, off := range []int16{ctxLen, ctxIfindex, ctxMark, ctxPriority} {
		code = append(code, field(off, int16(4*i))...)
	}
	return append(code,
		asm.LoadMem(asm.R8, asm.R6, ctxLen, asm.Word),
		asm.JLE.Imm(asm.R8, sim.MaxFrame, "short"),
		asm.Mov.Imm(asm.R8, sim.MaxFrame),
		asm.JLT.Imm(asm.R8, 1, "empty").WithSymbol("short"), // of which Linux 6.1 learns that it isn't 0
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Add.Imm(asm.R3, copyHeader),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.FnSkbLoadBytes.Call(),
		asm.Mov.Reg(asm.R1, asm.R7).WithSymbol("empty"),
		asm.Mov.Imm(asm.R2, noWakeup),
		asm.FnRingbufSubmit.Call(),
		asm.Mov.Imm(asm.R0, actStolen),
		asm.Return(),
		asm.Mov.Imm(asm.R0, actShot).WithSymbol("full"),
		asm.Return(),
	)
}

// copies returns what was sent since the last call, in order. The bytes are appended to buf, which grows; they are the
// caller's until the next call.
func (c *capture) copies(into []Copy, buf *[]byte) []Copy {
	*buf = (*buf)[:0]
	c.ring.Drain(func(record []byte) {
		n := min(int(binary.LittleEndian.Uint32(record)), sim.MaxFrame)
		at := len(*buf)
		*buf = append(*buf, record[copyHeader:copyHeader+n]...)
		into = append(into, Copy{
			Ifindex:  binary.LittleEndian.Uint32(record[4:]),
			Mark:     binary.LittleEndian.Uint32(record[8:]),
			Priority: binary.LittleEndian.Uint32(record[12:]),
			Data:     (*buf)[at : at+n : at+n],
		})
	})
	return into
}

// drop forgets what no one asked for.
func (c *capture) drop() { c.ring.Drain(func([]byte) {}) }
