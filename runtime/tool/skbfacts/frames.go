package skbfacts

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

const (
	boundOnly    = 1 << 6 // BPF_F_XDP_DEV_BOUND_ONLY
	notSupported = 95     // EOPNOTSUPP
)

// BoundTo has the programs at XDP of an object loaded for one device alone. Only so may they ask it for a VLAN tag that
// it has taken out of a frame (Linux 6.8).
func BoundTo(spec *ebpf.CollectionSpec, index int) {
	for _, p := range spec.Programs {
		if p.Type == ebpf.XDP {
			p.Ifindex, p.Flags = uint32(index), p.Flags|boundOnly
		}
	}
}

// tagOf is the kernel's function that only a program may call that is bound to a device.
const tagOf = "bpf_xdp_metadata_rx_vlan_tag"

// Frames reports whether the kernel loads programs at XDP for frames of several buffers (Linux 5.18). For others,
// Prepare leaves them out.
func Frames() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 5<<16|18<<8
}

// AnyDevice leaves out programs at XDP that the kernel can't load. In those that are bound to no device, calls of tagOf
// are replaced by its answer where a device has none.
func AnyDevice(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		switch {
		case p.Type != ebpf.XDP || p.Flags&boundOnly != 0:
			continue
		case !Frames():
			delete(spec.Programs, name)
		}
		for i, ins := range p.Instructions {
			if ins.IsKfuncCall() && ins.Reference() == tagOf {
				answer := asm.Mov.Imm(asm.R0, -notSupported)
				p.Instructions[i] = answer.WithSource(ins.Source()).WithSymbol(ins.Symbol())
			}
		}
	}
}
