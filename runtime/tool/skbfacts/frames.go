package skbfacts

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
)

const (
	boundOnly    = 1 << 6 // BPF_F_XDP_DEV_BOUND_ONLY
	notSupported = 95     // EOPNOTSUPP
)

// ErrBlinded says that no program is bound to a device here: the kernel blinds constants (net.core.bpf_jit_harden is
// 2), which moves a program.
var ErrBlinded = errors.New("net.core.bpf_jit_harden is 2, with which Linux takes a program that is bound to a" +
	" device for another when that goes")

// BoundTo has the programs at XDP of an object loaded for one device alone. Only so may they ask it for a VLAN tag that
// it has taken out of a frame (Linux 6.8). Once they are loaded, Unmoved says whether they can stay.
//
// The kernel remembers where a bound program was when its load began (bpf_prog_dev_bound_init), and follows that when
// the device goes. A program that the verifier makes longer than its pages is somewhere else by then: the kernel reads
// freed memory with its lock of all devices held, and no network of the host works again (seen: Linux 6.12 to 7.2). So
// a bound program gets room first.
func BoundTo(spec *ebpf.CollectionSpec, index int) error {
	blinds, err := blinds()
	if err != nil || blinds {
		return cmp.Or(err, ErrBlinded)
	}
	for _, p := range spec.Programs {
		if p.Type == ebpf.XDP {
			p.Ifindex, p.Flags = uint32(index), p.Flags|boundOnly
			p.Instructions = withRoom(p.Instructions)
		}
	}
	return nil
}

// withRoom lets a program begin with as many instructions as it has that are never run. The verifier takes them out
// before it makes others longer; what was allocated for them stays.
func withRoom(ins asm.Instructions) asm.Instructions {
	const end = "fr_room_end"
	first := ins[0]
	out := make(asm.Instructions, 0, 2*len(ins)+2)
	out = append(out, asm.Mov.Imm(asm.R0, 0), asm.JEq.Imm(asm.R0, 0, end))
	for range min(len(ins), math.MaxInt16-1) { // as far as a jump reaches
		out = append(out, asm.Mov.Imm(asm.R0, 0))
	}
	out[0] = out[0].WithSymbol(first.Symbol()).WithSource(first.Source())
	out[0] = btf.WithFuncMetadata(out[0], btf.FuncMetadata(&first))
	out = append(out, ins...)
	out[len(out)-len(ins)] = btf.WithFuncMetadata(first, nil).WithSymbol(end)
	return out
}

// headOf is more than what stands in front of a program's instructions in the kernel's struct bpf_prog, in bytes.
const headOf = 128

// Unmoved returns an error if the kernel may have moved a program, which was loaded from spec, to make it longer.
func Unmoved(spec *ebpf.ProgramSpec, prog *ebpf.Program) error {
	info, err := prog.Info()
	if err != nil {
		return err
	}
	now, err := info.TranslatedSize()
	if err != nil {
		return err
	}
	page := os.Getpagesize()
	pages := (int(spec.Instructions.Size()) + page - 1) / page
	if now+headOf > pages*page {
		return fmt.Errorf("the program has become longer than its pages, %d bytes of %d, and Linux would take it for"+
			" another when the device goes", now, pages*page)
	}
	return nil
}

// blinds reports whether the kernel replaces constants of programs as it compiles them. The setting can be read in the
// first network namespace alone, so a program tells.
func blinds() (bool, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return false, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return false, err
	}
	size, err := info.TranslatedSize()
	return size != 2*asm.InstructionSize, err
}

// tagOf is the kernel's function that only a program may call that is bound to a device.
const tagOf = "bpf_xdp_metadata_rx_vlan_tag"

// Frames reports whether the kernel loads programs at XDP for frames of several buffers (Linux 5.18). For others,
// Prepare leaves them out.
func Frames() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 5<<16|18<<8
}

// AnyDevice leaves out programs at XDP that the kernel can't load, if they are in front of one at tc/ingress. In those
// that are bound to no device, calls of tagOf are replaced by its answer where a device has none.
func AnyDevice(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		switch {
		case p.Type != ebpf.XDP || p.Flags&boundOnly != 0:
			continue
		case !Frames():
			if spec.Programs["prog_"+strings.TrimPrefix(name, "xdp_")] != nil { // it does all there
				delete(spec.Programs, name)
			}
		}
		for i, ins := range p.Instructions {
			if ins.IsKfuncCall() && ins.Reference() == tagOf {
				answer := asm.Mov.Imm(asm.R0, -notSupported)
				p.Instructions[i] = answer.WithSource(ins.Source()).WithSymbol(ins.Symbol())
			}
		}
	}
}
