// Package skbfacts finds out how programs can learn what the kernel knows about a packet (struct sk_buff), and writes
// it down in an object before it is loaded. See "What the kernel knows about a packet" in templates/fastrelay.h.
package skbfacts

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Methods are ways to learn something, as bits of the object's variable fr_facts.
type Methods uint32

const (
	Cast Methods = 1 << iota // bpf_cast_to_kern_ctx (Linux 6.2)
	Read                     // bpf_probe_read_kernel

	None Methods = 0
	All          = Cast | Read
)

const variable = abi.FactsVariable

// Allowed are the methods that are used if the kernel has them. Tests take some away, as on older kernels.
var Allowed = All

// Prepare chooses the methods that the running kernel has, and returns what a collection has to be loaded with. Without
// BTF there is none, and under lockdown no Read: programs then infer what they can.
//
// Programs at XDP it makes ready for any device (AnyDevice), but those that are bound to one (BoundTo).
func Prepare(spec *ebpf.CollectionSpec) (ebpf.ProgramOptions, error) {
	AnyDevice(spec)
	v := spec.Variables[variable]
	if v == nil {
		return ebpf.ProgramOptions{}, nil
	}
	methods, types := None, noTypes
	if kernel, err := kernelTypes(); err == nil {
		// Said here, so that the types of all modules needn't be read.
		methods, types = Allowed&available(kernel), func() (*btf.Spec, error) { return kernel, nil }
	}
	if err := v.Set(uint32(methods)); err != nil {
		return ebpf.ProgramOptions{}, fmt.Errorf("variable %s: %w", variable, err)
	}
	target, err := types()
	return ebpf.ProgramOptions{KernelTypes: target}, err
}

// kernelTypes are those of the running kernel. Tests have none.
var kernelTypes = btf.LoadKernelSpec

// available says what a kernel that has BTF allows.
func available(kernel *btf.Spec) (methods Methods) {
	var cast *btf.Func
	if kernel.TypeByName("bpf_cast_to_kern_ctx", &cast) == nil {
		methods |= Cast
	}
	if features.HaveProgramHelper(ebpf.SchedCLS, asm.FnProbeReadKernel) == nil {
		methods |= Read
	}
	return methods
}

// noTypes replaces the types of a kernel that has no BTF: what is said of them is in no program that runs.
var noTypes = sync.OnceValues(func() (*btf.Spec, error) {
	u8 := &btf.Int{Name: "unsigned char", Size: 1}
	u16 := &btf.Int{Name: "unsigned short", Size: 2}
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	pointer := &btf.Pointer{Target: u8}
	b, err := btf.NewBuilder([]btf.Type{
		&btf.Struct{Name: "sk_buff", Size: 32, Members: []btf.Member{
			{Name: "ip_summed", Type: u8, BitfieldSize: 2},
			{Name: "csum_start", Type: u16, Offset: 16},
			{Name: "csum_offset", Type: u16, Offset: 32},
			{Name: "end", Type: u32, Offset: 64},
			{Name: "head", Type: pointer, Offset: 128},
			{Name: "data", Type: pointer, Offset: 192},
		}},
		&btf.Struct{Name: "skb_shared_info", Size: 4, Members: []btf.Member{{Name: "gso_type", Type: u32}}},
	}, nil)
	if err != nil {
		return nil, err
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		return nil, err
	}
	return btf.LoadSpecFromReader(bytes.NewReader(raw))
})

// Offset finds a member of a kernel's structure, also in structures without a name, in bits from the start.
func Offset(members []btf.Member, name string) (bits int, ok bool) {
	for _, m := range members {
		if m.Name == name {
			return int(m.Offset), true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if n, ok := Offset(inner, name); ok {
			return int(m.Offset) + n, true
		}
	}
	return 0, false
}
