package clang

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A program and the functions that it calls share a stack of stackSize bytes (MAX_BPF_STACK).
const stackSize = 512

// finer is the first kernel that rounds what a function needs up to 16 bytes, with its JIT compiler. Those before it
// round up to 32.
var finer = [2]int{6, 9}

func rounded(bytes int, kernel [2]int) int {
	if slices.Compare(kernel[:], finer[:]) < 0 {
		return (max(bytes, 1) + 31) &^ 31
	}
	return (bytes + 15) &^ 15
}

// Frame is what one function needs of the stack.
type Frame struct {
	Function string
	Bytes    int      // as the kernel rounds them
	Pos      diag.Pos // the line of the spec that takes most of them
}

// total is what functions that call each other need together.
func total(frames []Frame) (n int) {
	for _, f := range frames {
		n += f.Bytes
	}
	return n
}

// StackError says that a program needs more stack than the kernel has.
type StackError struct {
	Program string
	Frames  []Frame // the program and what it calls, each what the one before calls; none if clang can't say
	Newer   int     // bytes as kernels from 6.9 on count, if they have so many; else 0
	Object  []byte  // what the kernel would refuse
	Pos     diag.Pos
}

// Bytes is how much the program needs, as the oldest kernel that has to run it counts.
func (e *StackError) Bytes() int { return total(e.Frames) }

func (e *StackError) Error() string {
	if e.Frames == nil {
		return fmt.Sprintf("a program needs more than the %d bytes of stack that the kernel has", stackSize)
	}
	with := ""
	if slices.ContainsFunc(e.Frames, Frame.fansOut) {
		with = " with its fan-out"
	}
	return fmt.Sprintf("program %q needs %d bytes of stack%s, and the kernel has %d", e.Program, e.Bytes(), with,
		stackSize)
}

var turnPattern = regexp.MustCompile(`_turn\d+$`)

// fansOut reports whether a function is what a fan-out does for each receiver.
func (f Frame) fansOut() bool { return turnPattern.MatchString(f.Function) }

// Diagnostic is the message for a person.
func (e *StackError) Diagnostic() *diag.Diagnostic {
	hint := "change fewer or smaller headers in a rule, or give some of the rules a program of their own"
	var parts []string // of the bytes
	for i, f := range e.Frames {
		what := "for the helper " + f.Function
		switch {
		case i == 0:
			what = "for the program's rules"
		case f.fansOut():
			what = "for each receiver of the fan-out"
			hint = "set less for each receiver or in another rule, or give the fan-out a program of its own"
		}
		if f.Pos.IsValid() {
			what += fmt.Sprintf(", most of it for line %d", f.Pos.Line)
		}
		parts = append(parts, fmt.Sprintf("%d %s", f.Bytes, what))
	}
	if e.Newer > 0 {
		hint += fmt.Sprintf("; or demand kernel: \"%d.%d\", from which on it counts as %d", finer[0], finer[1], e.Newer)
	}
	if parts != nil {
		hint = strings.Join(parts, "; ") + "\n" + hint
	}
	return &diag.Diagnostic{Code: codeStack, Pos: e.Pos, Message: e.Error(), Hint: hint}
}

// checkStack returns a *StackError if a program of an object needs more stack than the kernel has. u has the C that it
// was made of.
func (u *Unit) checkStack(kernel [2]int) error {
	programs, err := programsOf(u.Object)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if total(chain(functionsOf(programs[name], nil), name, kernel)) <= stackSize {
			continue
		}
		functions := functionsOf(programs[name], u.ofSpec)
		e := &StackError{
			Program: strings.TrimPrefix(name, abi.ProgramPrefix), Frames: chain(functions, name, kernel),
			Object: u.Object,
		}
		if n := total(chain(functions, name, finer)); n <= stackSize {
			e.Newer = n
		}
		e.Pos = slices.MaxFunc(e.Frames, func(a, b Frame) int { return cmp.Compare(a.Bytes, b.Bytes) }).Pos
		return e
	}
	return nil
}

// ofSpec is the line of the spec that a line of the object's debug information is of, unless it is one of a standard
// header: users can't change these.
func (u *Unit) ofSpec(line *btf.Line) diag.Pos {
	pos := u.find(line.FileName(), int(line.LineNumber()))
	if spec.Source(pos.File) != nil {
		return diag.Pos{}
	}
	return pos
}

// Stacks says how many bytes of stack each program of an object needs, with all that it calls, as a kernel counts them.
func Stacks(object []byte, kernel [2]int) (map[string]int, error) {
	programs, err := programsOf(object)
	if err != nil {
		return nil, err
	}
	stacks := map[string]int{}
	for name, instructions := range programs {
		stacks[name] = total(chain(functionsOf(instructions, nil), name, kernel))
	}
	return stacks, nil
}

// programsOf returns the instructions of each program of an object, in which all functions that it calls follow it.
func programsOf(object []byte) (map[string]asm.Instructions, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	out := map[string]asm.Instructions{}
	for name, p := range spec.Programs {
		out[name] = p.Instructions
	}
	return out, nil
}

// A frame is what a function needs itself, and what it calls.
type frame struct {
	bytes int
	calls []string
	slots map[diag.Pos]map[int64]bool // places of the stack that a line of the spec writes to
}

// functionsOf splits the instructions of a program into functions. ofSpec, if not nil, finds lines of the spec.
func functionsOf(all asm.Instructions, ofSpec func(*btf.Line) diag.Pos) map[string]*frame {
	functions := map[string]*frame{}
	var f *frame
	var at diag.Pos
	var places map[asm.Register]int64 // of registers that point to the stack
	for i := range all {
		ins := &all[i]
		if btf.FuncMetadata(ins) != nil || f == nil {
			f, places = &frame{slots: map[diag.Pos]map[int64]bool{}}, map[asm.Register]int64{asm.RFP: 0}
			functions[ins.Symbol()], at = f, diag.Pos{}
		}
		if line, ok := ins.Source().(*btf.Line); ok && ofSpec != nil {
			if pos := ofSpec(line); pos.IsValid() {
				at = pos
			}
		}
		if ins.IsFunctionReference() && !slices.Contains(f.calls, ins.Reference()) {
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
			if place, ok := places[ins.Dst]; ok && at.IsValid() {
				if f.slots[at] == nil {
					f.slots[at] = map[int64]bool{}
				}
				f.slots[at][(place+int64(ins.Offset))/8] = true
			}
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

// chain is the function and what it calls, and what that calls, that need most together. The verifier allows no
// recursion.
func chain(functions map[string]*frame, name string, kernel [2]int) []Frame {
	f := functions[name]
	if f == nil {
		return nil
	}
	var most []Frame
	for _, called := range f.calls {
		if c := chain(functions, called, kernel); total(c) > total(most) {
			most = c
		}
	}
	self := Frame{Function: name, Bytes: rounded(f.bytes, kernel)}
	for pos, slots := range f.slots {
		if n := len(slots); n > len(f.slots[self.Pos]) || n == len(f.slots[self.Pos]) && pos.Compare(self.Pos) < 0 {
			self.Pos = pos
		}
	}
	return append([]Frame{self}, most...)
}
