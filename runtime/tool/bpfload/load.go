// Package bpfload loads objects into the kernel, and says in a person's words what keeps this process from it: a
// capability, a limit, or the kernel's lockdown.
package bpfload

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
)

// spare is how many files a relay opens beside its maps and programs: sockets, probes of the kernel, links.
const spare = 40

// RoomFor returns a [*Refusal] if this process can't open the files that a relay needs. Without room for a file,
// probes of the kernel's features would find none of them, for as long as this process lives.
func RoomFor(spec *ebpf.CollectionSpec) error {
	return Room(2*len(spec.Maps) + len(spec.Programs) + spare) // a map that is adopted is open twice
}

// Load loads a collection. The error is a [*Refusal] if something of this process or of the host is in the way.
func Load(spec *ebpf.CollectionSpec, options ebpf.CollectionOptions) (*ebpf.Collection, error) {
	if err := RoomFor(spec); err != nil {
		return nil, err
	}
	// Kernels before 5.11 account maps against the limit of locked memory. A process that may do nothing fails here
	// first.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, Explained(fmt.Errorf("raise the limit of locked memory: %w", err))
	}
	facts, err := skbfacts.Prepare(spec)
	if err != nil {
		return nil, Explained(err)
	}
	options.Programs.KernelTypes = facts.KernelTypes
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return nil, Explained(err)
	}
	return collection, nil
}

// Explained is err, as a [*Refusal] if it is one.
func Explained(err error) error {
	if refusal := Explain(err); refusal != nil {
		return refusal
	}
	return err
}
