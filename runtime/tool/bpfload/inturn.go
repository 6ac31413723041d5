package bpfload

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// InTurn returns a program at XDP that runs others of an object, each if those before it have passed the frame on. One
// that they have left to tc/ingress comes there first to them (FR_XDP_LEFT in xdp.h, which isn't 2 in 64 bits).
func InTurn(all []*ebpf.ProgramSpec) *ebpf.ProgramSpec {
	const (
		passed = 2 // XDP_PASS
		end    = "fr_in_turn_end"
	)
	if len(all) == 1 {
		return all[0]
	}
	out, first := all[0].Copy(), all[0].Instructions[0]
	ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for i, p := range all {
		if i > 0 {
			ins = append(ins, asm.JNE.Imm(asm.R0, passed, end), asm.Mov.Reg(asm.R1, asm.R6))
		}
		ins = append(ins, asm.Call.Label(p.Instructions[0].Symbol()))
	}
	ins = append(ins, asm.Return().WithSymbol(end))
	ins[0] = ins[0].WithSymbol("fr_in_turn").WithSource(first.Source())
	if of := btf.FuncMetadata(&first); of != nil {
		ins[0] = btf.WithFuncMetadata(ins[0], &btf.Func{Name: "fr_in_turn", Type: of.Type, Linkage: btf.GlobalFunc})
	}
	known, keep := map[string]bool{}, false
	for _, p := range all {
		for _, i := range p.Instructions {
			if f := btf.FuncMetadata(&i); f != nil { // functions that several call are there once
				keep = !known[f.Name]
				known[f.Name] = true
			}
			if keep {
				ins = append(ins, i)
			}
		}
	}
	out.Instructions = ins
	return out
}
