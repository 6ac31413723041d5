package testrun

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Verdicts of an XDP program (include/uapi/linux/bpf.h).
const (
	xdpAborted  = 0 // the device that it should have left by isn't known
	xdpDrop     = 1
	xdpPass     = 2
	xdpNext     = 3 // XDP_TX, as only next returns it
	xdpRedirect = 4
)

// watchNext has a program behind each one at XDP, which is given what the first passes on.
func watchNext(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		if p.Type == ebpf.XDP {
			spec.Programs[name] = bpfload.InTurn([]*ebpf.ProgramSpec{p, next(p)})
		}
	}
}

// next is a program behind another one at XDP.
func next(first *ebpf.ProgramSpec) *ebpf.ProgramSpec {
	begin := first.Instructions[0]
	of := btf.Func{Name: "fr_next", Type: btf.FuncMetadata(&begin).Type, Linkage: btf.GlobalFunc}
	ins := asm.Mov.Imm(asm.R0, xdpNext).WithSymbol(of.Name).WithSource(begin.Source())
	ins = btf.WithFuncMetadata(ins, &of)
	return &ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{ins, asm.Return()}}
}

// loopback is the device that a run at XDP comes in by.
const loopback = uint32(1)

// devmap lets frames leave by the devices that states name (sim.TakesFrames): a run records where, and sends nothing.
func (r *Relay) devmap() error {
	devmap := r.coll.Maps[abi.MapDevmap]
	if devmap == nil {
		return nil
	}
	all := append([]uint32{loopback, sim.Wire}, sim.Devices...)
	here, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range here {
		all = append(all, uint32(i.Index))
	}
	for _, index := range all {
		if !sim.TakesFrames(index) {
			continue
		}
		if err := devmap.Put(index, [2]uint32{loopback}); err != nil {
			return fmt.Errorf("let frames leave by device %d: %w", index, err)
		}
	}
	return nil
}

// runFrame runs the program at XDP on a frame, and reports whether it takes it.
func (r *Relay) runFrame(first *ebpf.Program, program string, p *sim.Packet) (res Result, taken bool, err error) {
	mac := make([]byte, 8)
	if copy(mac, p.Data[:6]); p.Link != ir.ToHost {
		mac[5]++
	}
	if err := r.coll.Maps[abi.MapMACs].Put(loopback, mac); err != nil {
		return res, false, fmt.Errorf("the address of the device: %w", err)
	}
	opts := ebpf.RunOptions{Data: p.Data, DataOut: r.out[:cap(r.out)]}
	act, err := first.Run(&opts)
	if errors.Is(err, syscall.EINVAL) {
		return res, false, fmt.Errorf("%d bytes: %w", len(p.Data), ErrRefused)
	}
	if err != nil {
		return res, false, fmt.Errorf("run %q at xdp: %w", program, err)
	}
	res = Result{Data: opts.DataOut, Mark: p.Mark, Priority: p.Priority}
	switch act {
	case xdpPass, xdpNext:
		res.Others = act == xdpNext
		return res, false, nil
	case xdpAborted, xdpDrop:
		res.Verdict = sim.VerdictDrop
	case xdpRedirect:
		res.Verdict = sim.VerdictSent
	default:
		return res, false, fmt.Errorf("run %q at xdp: unknown verdict %d", program, act)
	}
	return res, true, nil
}
