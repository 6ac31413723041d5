package xdpdrops

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
)

// A program at a tracepoint gets the tracepoint's arguments, as many as 64-bit values. Which one is where, and where
// structures have their members, the kernel's types say.

// kernel knows where this kernel has what the programs read.
type kernel struct {
	types                     *btf.Spec
	ifindex, namespace, inode int16 // in struct net_device, likewise, and in struct net; in bytes
}

func newKernel() (*kernel, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	k := &kernel{types: types}
	for _, m := range []struct {
		to           *int16
		name, member string
	}{
		{&k.ifindex, "net_device", "ifindex"},
		{&k.namespace, "net_device", "nd_net"}, // whose only member is the pointer
		{&k.inode, "net", "ns"},
		{&k.inode, "ns_common", "inum"},
	} {
		var s *btf.Struct
		if err := types.TypeByName(m.name, &s); err != nil {
			return nil, err
		}
		bits, ok := skbfacts.Offset(s.Members, m.member)
		if !ok {
			return nil, fmt.Errorf("struct %s has no member %s", m.name, m.member)
		}
		*m.to += int16(bits / 8)
	}
	return k, nil
}

// arguments loads arguments of a tracepoint into registers.
func (k *kernel) arguments(tracepoint string, into map[string]asm.Register) (code asm.Instructions, err error) {
	var f *btf.Func
	if err := k.types.TypeByName("__traceiter_"+tracepoint, &f); err != nil {
		return nil, fmt.Errorf("the kernel has no tracepoint %s: %w", tracepoint, err)
	}
	proto := f.Type.(*btf.FuncProto) // as any function's
	for i, p := range proto.Params {
		if to, ok := into[p.Name]; ok && i > 0 { // the first is the tracepoint's own
			code = append(code, asm.LoadMem(to, asm.R1, int16(8*(i-1)), asm.DWord))
		}
	}
	if len(code) != len(into) {
		return nil, fmt.Errorf("the tracepoint %s has other arguments than were expected: %v", tracepoint, proto.Params)
	}
	return code, nil
}

// What the programs keep on their stack.
const (
	atIn   = -8
	atKey  = -16
	atZero = -24
)

// atDevice counts what a device didn't take of the frames that it was given at once.
func (c *Counter) atDevice(k *kernel) (asm.Instructions, error) {
	code, err := k.arguments("xdp_devmap_xmit", map[string]asm.Register{
		"from_dev": asm.R2, "to_dev": asm.R7, "drops": asm.R6, "err": asm.R8,
	})
	code = append(code,
		asm.Mov.Reg32(asm.R6, asm.R6),
		asm.JEq.Imm(asm.R6, 0, "out"),
		asm.LoadMem(asm.R7, asm.R7, k.ifindex, asm.Word),
	)
	return append(code, c.add(k)...), err
}

// atRedirect counts frames that the kernel didn't give to a device.
func (c *Counter) atRedirect(k *kernel) (asm.Instructions, error) {
	code, err := k.arguments("xdp_redirect_err", map[string]asm.Register{
		"dev": asm.R2, "index": asm.R7, "err": asm.R8,
	})
	code = append(code, asm.Mov.Imm(asm.R6, 1))
	return append(code, c.add(k)...), err
}

// add adds R6 to what was counted for the device of index R7 and the error R8, if the device R2 is one of those that
// frames come in by.
func (c *Counter) add(k *kernel) asm.Instructions {
	with := func(m *ebpf.Map, key int32, code ...asm.Instruction) asm.Instructions {
		return append(asm.Instructions{
			asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		}, code...)
	}
	const onlyNew = 1 // BPF_NOEXIST: another processor may be here as well
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.R2, k.ifindex, asm.Word),
			asm.StoreMem(asm.RFP, atIn+4, asm.R1, asm.Word),
			asm.LoadMem(asm.R1, asm.R2, k.namespace, asm.DWord),
			asm.JEq.Imm(asm.R1, 0, "out"),
			asm.LoadMem(asm.R1, asm.R1, k.inode, asm.Word),
			asm.StoreMem(asm.RFP, atIn, asm.R1, asm.Word),
		},
		with(c.in, atIn, asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out")),
		asm.Instructions{
			asm.StoreMem(asm.RFP, atKey, asm.R7, asm.Word),
			asm.StoreMem(asm.RFP, atKey+4, asm.R8, asm.Word),
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.RFP, atZero, asm.R1, asm.DWord),
		},
		with(c.counts, atKey, asm.FnMapLookupElem.Call(), asm.JNE.Imm(asm.R0, 0, "there")),
		with(c.counts, atKey, asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, atZero), asm.Mov.Imm(asm.R4, onlyNew),
			asm.FnMapUpdateElem.Call()),
		with(c.counts, atKey, asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out")),
		asm.Instructions{
			asm.StoreXAdd(asm.R0, asm.R6, asm.DWord).WithSymbol("there"),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	)
}
