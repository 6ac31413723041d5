package clang

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A program and the functions that it calls share a stack of so many bytes (MAX_BPF_STACK). The kernel rounds what each
// of them needs up to stackStep bytes (Linux 6.8 with a JIT compiler, others to more).
const (
	stackSize = 512
	stackStep = 16
)

// StackError says that a program needs more stack than the kernel has.
type StackError struct {
	Program string
	Bytes   int
}

func (e *StackError) Error() string {
	return fmt.Sprintf("program %q needs %d bytes of stack, and the kernel has %d", e.Program, e.Bytes, stackSize)
}

// Diagnostic is the message for a person.
func (e *StackError) Diagnostic() *diag.Diagnostic {
	return &diag.Diagnostic{
		Code: codeStack, Message: e.Error(),
		Hint: "it does too much for one program: fewer headers and actions in a rule, fewer rules, or two programs",
	}
}

// checkStack returns a *StackError if a program of an object needs more stack than the kernel has.
func checkStack(object []byte) error {
	stacks, err := Stacks(object)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(stacks)) {
		if n := stacks[name]; n > stackSize {
			return &StackError{Program: strings.TrimPrefix(name, abi.ProgramPrefix), Bytes: n}
		}
	}
	return nil
}

// Stacks says how many bytes of stack each program of an object needs, with all that it calls, as the kernel's verifier
// counts them.
func Stacks(object []byte) (map[string]int, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	stacks := map[string]int{}
	for name, p := range spec.Programs {
		functions := functionsOf(p.Instructions)
		stacks[name] = need(functions, name)
	}
	return stacks, nil
}

// A frame is what a function needs itself, and what it calls.
type frame struct {
	bytes int
	calls []string
}

// functionsOf splits the instructions of a program, in which all functions that it calls follow it.
func functionsOf(all asm.Instructions) map[string]*frame {
	functions := map[string]*frame{}
	var f *frame
	var places map[asm.Register]int64 // of registers that point to the stack
	for i := range all {
		ins := &all[i]
		if btf.FuncMetadata(ins) != nil || f == nil {
			f, places = &frame{}, map[asm.Register]int64{asm.RFP: 0}
			functions[ins.Symbol()] = f
		}
		if ins.IsFunctionReference() {
			f.calls = append(f.calls, ins.Reference())
		}
		touch := func(r asm.Register, off int64) {
			if place, ok := places[r]; ok {
				f.bytes = max(f.bytes, int(-(place + off)))
			}
		}
		op := ins.OpCode
		switch class := op.Class(); {
		case class == asm.LdXClass:
			touch(ins.Src, int64(ins.Offset))
			delete(places, ins.Dst)
		case class == asm.StClass, class == asm.StXClass:
			touch(ins.Dst, int64(ins.Offset))
		case class == asm.ALU64Class && op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
			if place, ok := places[ins.Src]; ok {
				places[ins.Dst] = place
			} else {
				delete(places, ins.Dst)
			}
		case class == asm.ALU64Class && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource:
			if _, ok := places[ins.Dst]; ok {
				places[ins.Dst] += ins.Constant
				touch(ins.Dst, 0)
			}
		case class.IsALU(), class.IsLoad():
			delete(places, ins.Dst)
		}
	}
	return functions
}

// need is what a function needs with what it calls. The verifier allows no recursion.
func need(functions map[string]*frame, name string) int {
	f := functions[name]
	if f == nil {
		return 0
	}
	most := 0
	for _, called := range f.calls {
		most = max(most, need(functions, called))
	}
	return most + (max(f.bytes, 1)+stackStep-1)/stackStep*stackStep
}
