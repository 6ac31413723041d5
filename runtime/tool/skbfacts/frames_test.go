//go:build linux

package skbfacts

import (
	"bytes"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// growing is a program that the verifier makes longer by pages: each load of a context's member becomes two.
func growing() *ebpf.ProgramSpec {
	var ins asm.Instructions
	for range 2 * os.Getpagesize() / asm.InstructionSize {
		ins = append(ins, asm.LoadMem(asm.R0, asm.R1, 16, asm.Word)) // xdp_md.rx_queue_index
	}
	ins[0] = ins[0].WithSymbol("grows")
	ins = append(ins, asm.Mov.Imm(asm.R0, 2), asm.Return())
	return &ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: ins}
}

func load(t *testing.T, spec *ebpf.ProgramSpec) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// A program that has grown over its pages is told from one that had room. It isn't bound, so the kernel comes to no
// harm.
func TestMoved(t *testing.T) {
	needs.Root(t)
	spec := growing()
	if err := Unmoved(spec, load(t, spec)); err == nil {
		t.Error("a program that has grown over its pages is taken for one that hasn't moved")
	}
	spec.Instructions = withRoom(spec.Instructions)
	if err := Unmoved(spec, load(t, spec)); err != nil {
		t.Error(err)
	}
}

// Devices go under programs that are bound to them: ones that grow, and those of a relay. With programs that the kernel
// has moved, no network of the host would work after this; so it's looked at first.
func TestBoundDeviceGoes(t *testing.T) {
	needs.Root(t)
	object, err := os.ReadFile("../../../examples/turn/turnrelay/relay_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	relay, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range relay.Programs {
		if p.Type != ebpf.XDP {
			delete(relay.Programs, name)
		}
	}
	grows := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"grows": growing()}}
	for name, object := range map[string]*ebpf.CollectionSpec{"grows": grows, "relay": relay} {
		t.Run(name, func(t *testing.T) {
			dev := testnet.Stub(t)
			if err := BoundTo(object, dev.Index); err != nil {
				t.Fatal(err)
			}
			options, err := Prepare(object)
			if err != nil {
				t.Fatal(err)
			}
			var coll *ebpf.Collection
			err = dev.Host.Do(func() error {
				coll, err = ebpf.NewCollectionWithOptions(object, ebpf.CollectionOptions{Programs: options})
				return err
			})
			if err != nil {
				t.Fatalf("%+v", err)
			}
			defer coll.Close()
			for name, prog := range coll.Programs {
				if err := Unmoved(object.Programs[name], prog); err != nil {
					t.Fatal(err)
				}
			}
			if err := dev.Host.Run("ip", "link", "del", dev.Name); err != nil {
				t.Fatal(err)
			}
			if err := dev.Host.Do(func() error { _, err := netlink.LinkList(); return err }); err != nil {
				t.Error(err)
			}
		})
	}
}
