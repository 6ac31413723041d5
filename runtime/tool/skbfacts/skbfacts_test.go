package skbfacts

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// A kernel that has no BTF, or allows less, loads the same object, and it forwards: what it can't ask, it infers.
func TestEveryKernelLoads(t *testing.T) {
	needs.Root(t)
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	object, err := os.ReadFile("../../../examples/turn/turnrelay/relay_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	running := kernelTypes
	defer func() { kernelTypes, Allowed = running, All }()
	for _, kernel := range []struct {
		what    string
		types   func() (*btf.Spec, error)
		allowed Methods
		want    Methods
	}{
		{"this one", running, All, All},
		{"before 6.2", running, Read, Read},
		{"locked down", running, Cast, Cast},
		{"before 6.2 and locked down", running, None, None},
		{"without BTF", func() (*btf.Spec, error) { return nil, fmt.Errorf("none: %w", ebpf.ErrNotSupported) },
			All, None},
	} {
		t.Run(kernel.what, func(t *testing.T) {
			kernelTypes, Allowed = kernel.types, kernel.allowed
			spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
			if err != nil {
				t.Fatal(err)
			}
			options, err := Prepare(spec)
			if err != nil {
				t.Fatal(err)
			}
			var ways uint32
			if err := spec.Variables[variable].Get(&ways); err != nil || Methods(ways) != kernel.want {
				t.Errorf("ways %d (%v), want %d", ways, err, kernel.want)
			}
			coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: options})
			if err != nil {
				t.Fatalf("%+v", err)
			}
			coll.Close()
		})
	}
}

// An object that asks nothing is left alone.
func TestNothingToPrepare(t *testing.T) {
	if options, err := Prepare(&ebpf.CollectionSpec{}); err != nil || options.KernelTypes != nil {
		t.Error(options, err)
	}
}
