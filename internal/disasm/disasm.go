// Package disasm writes BPF instructions the way the kernel's verifier does, so that a listing and a verifier's log
// read alike: `r1 = *(u32 *)(r6 + 176)`, `if r7 <= r1 goto 918`.
package disasm

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// Line is one instruction.
type Line struct {
	Index int    // as the verifier counts: a 64-bit load takes two
	Label string // a function begins here, or ""
	Text  string
	Ins   asm.Instruction
}

// Program writes all instructions of a program.
func Program(insns asm.Instructions) []Line {
	out := make([]Line, 0, len(insns))
	index := 0
	for _, ins := range insns {
		next := index + int(ins.Width())
		out = append(out, Line{Index: index, Label: ins.Symbol(), Text: text(ins, next), Ins: ins})
		index = next
	}
	return out
}

// text writes one instruction; next is the index of the one after it.
func text(ins asm.Instruction, next int) string {
	op := ins.OpCode
	switch op.Class() {
	case asm.ALUClass, asm.ALU64Class:
		return alu(ins)
	case asm.JumpClass, asm.Jump32Class:
		return jump(ins, next)
	case asm.LdClass:
		if ref := ins.Reference(); ref != "" {
			return fmt.Sprintf("r%d = %s ll", ins.Dst, ref)
		}
		return fmt.Sprintf("r%d = %#x ll", ins.Dst, uint64(ins.Constant))
	case asm.LdXClass:
		sign := "u"
		if op.Mode() == asm.MemSXMode {
			sign = "s"
		}
		return fmt.Sprintf("%s = %s", register(ins.Dst, op.Size() != asm.DWord),
			memory(sign, op.Size(), ins.Src, ins.Offset))
	case asm.StClass:
		return fmt.Sprintf("%s = %d", memory("u", op.Size(), ins.Dst, ins.Offset), ins.Constant)
	case asm.StXClass:
		if op.Mode() == asm.AtomicMode {
			return atomic(ins)
		}
		return fmt.Sprintf("%s = %s", memory("u", op.Size(), ins.Dst, ins.Offset),
			register(ins.Src, op.Size() != asm.DWord))
	}
	return fmt.Sprintf("%v", ins)
}

// register is w1 if only 32 bits count, else r1.
func register(r asm.Register, half bool) string {
	if half {
		return fmt.Sprintf("w%d", r)
	}
	return fmt.Sprintf("r%d", r)
}

var sizes = map[asm.Size]string{asm.Byte: "8", asm.Half: "16", asm.Word: "32", asm.DWord: "64"}

func memory(sign string, size asm.Size, base asm.Register, off int16) string {
	return fmt.Sprintf("*(%s%s *)(r%d %s)", sign, sizes[size], base, signed(int64(off)))
}

func signed(n int64) string {
	if n < 0 {
		return fmt.Sprintf("- %d", -n)
	}
	return fmt.Sprintf("+ %d", n)
}

var aluOps = map[asm.ALUOp]string{
	asm.Add: "+=", asm.Sub: "-=", asm.Mul: "*=", asm.Div: "/=", asm.SDiv: "s/=", asm.Or: "|=", asm.And: "&=",
	asm.LSh: "<<=",
	asm.RSh: ">>=", asm.Mod: "%=", asm.SMod: "s%=", asm.Xor: "^=", asm.Mov: "=", asm.ArSh: "s>>=",
	asm.MovSX8: "= (s8)", asm.MovSX16: "= (s16)", asm.MovSX32: "= (s32)",
}

func alu(ins asm.Instruction) string {
	op := ins.OpCode
	half := op.Class() == asm.ALUClass
	dst := register(ins.Dst, half)
	switch op.ALUOp() {
	case asm.Neg:
		return fmt.Sprintf("%s = -%s", dst, dst)
	case asm.Swap:
		order := "le"
		if op.Endianness() == asm.BE {
			order = "be"
		}
		return fmt.Sprintf("r%d = %s%d r%d", ins.Dst, order, ins.Constant, ins.Dst)
	}
	return fmt.Sprintf("%s %s %s", dst, aluOps[op.ALUOp()], operand(ins, half))
}

func operand(ins asm.Instruction, half bool) string {
	if ins.OpCode.Source() == asm.RegSource {
		return register(ins.Src, half)
	}
	return fmt.Sprint(ins.Constant)
}

var jumpOps = map[asm.JumpOp]string{
	asm.JEq: "==", asm.JNE: "!=", asm.JGT: ">", asm.JGE: ">=", asm.JLT: "<", asm.JLE: "<=", asm.JSet: "&",
	asm.JSGT: "s>", asm.JSGE: "s>=", asm.JSLT: "s<", asm.JSLE: "s<=",
}

func jump(ins asm.Instruction, next int) string {
	op := ins.OpCode
	half := op.Class() == asm.Jump32Class
	switch op.JumpOp() {
	case asm.Exit:
		return "exit"
	case asm.Call:
		if ins.IsBuiltinCall() {
			return "call " + helper(asm.BuiltinFunc(ins.Constant))
		}
		return "call " + ins.Reference()
	case asm.Ja:
		if half {
			return fmt.Sprintf("goto %d", next+int(ins.Constant))
		}
		return fmt.Sprintf("goto %d", next+int(ins.Offset))
	}
	return fmt.Sprintf("if %s %s %s goto %d", register(ins.Dst, half), jumpOps[op.JumpOp()], operand(ins, half),
		next+int(ins.Offset))
}

// helper is the name that C knows a helper by: FnMapLookupElem is bpf_map_lookup_elem.
func helper(f asm.BuiltinFunc) string {
	var b strings.Builder
	b.WriteString("bpf")
	for i, c := range strings.TrimPrefix(f.String(), "Fn") {
		if i == 0 || c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(c)
	}
	return fmt.Sprintf("%s#%d", strings.ToLower(b.String()), int32(f))
}

var atomicOps = map[asm.AtomicOp]string{
	asm.AddAtomic: "+=", asm.AndAtomic: "&=", asm.OrAtomic: "|=", asm.XorAtomic: "^=",
}

var fetchOps = map[asm.AtomicOp]string{
	asm.FetchAdd: "fetch_add", asm.FetchAnd: "fetch_and", asm.FetchOr: "fetch_or", asm.FetchXor: "fetch_xor",
	asm.Xchg: "xchg",
}

func atomic(ins asm.Instruction) string {
	op := ins.OpCode
	place := memory("u", op.Size(), ins.Dst, ins.Offset)
	half := op.Size() != asm.DWord
	src := register(ins.Src, half)
	if sign, plain := atomicOps[op.AtomicOp()]; plain {
		return fmt.Sprintf("lock %s %s %s", place, sign, src)
	}
	width := "64"
	if half {
		width = ""
	}
	at := strings.TrimPrefix(place, "*")
	if op.AtomicOp() == asm.CmpXchg {
		r0 := register(asm.R0, half)
		return fmt.Sprintf("%s = atomic%s_cmpxchg(%s, %s, %s)", r0, width, at, r0, src)
	}
	return fmt.Sprintf("%s = atomic%s_%s(%s, %s)", src, width, fetchOps[op.AtomicOp()], at, src)
}
