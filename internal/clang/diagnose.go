package clang

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Unit is a program that is to be loaded: all that is needed to say what a refusal is about, and to report it.
type Unit struct {
	Source string     // relay.bpf.c
	Header string     // fastrelay.h
	Lines  []diag.Pos // the position in the spec of each line of Source that has one
	Object []byte     // nil before clang has made it
	Plan   string     // as text
}

// find returns the position in the spec of a line that clang or the verifier names.
func (u *Unit) find(file string, line int) diag.Pos {
	file = path.Base(file)
	if file == sourceName {
		return u.near(line)
	}
	for _, pos := range u.Lines {
		if pos.Line == line && path.Base(pos.File) == file {
			return pos
		}
	}
	return diag.Pos{}
}

// near returns the position of a line of Source, or of the last line in front of it in the same function that has one.
func (u *Unit) near(line int) diag.Pos {
	text := strings.Split(u.Source, "\n")
	for n := min(line, len(u.Lines), len(text)); n >= 1; n-- {
		if pos := u.Lines[n-1]; pos.IsValid() {
			return pos
		}
		if text[n-1] == "}" && n < line {
			break
		}
	}
	return diag.Pos{}
}

var clangPattern = regexp.MustCompile(`(?m)^([^\s:]+):(\d+):(\d+): (?:fatal )?error: (.*)$`)

// firstError is what clang says first that is wrong, and the first line of the spec that it says something of.
func (u *Unit) firstError(log string) (text string, pos diag.Pos) {
	for _, m := range clangPattern.FindAllStringSubmatch(log, -1) {
		text = cmp.Or(text, m[4])
		line, _ := strconv.Atoi(m[2])
		if pos = u.find(m[1], line); pos.IsValid() {
			break
		}
	}
	return text, pos
}

// Clang explains clang's refusal of the generated C (an *Error). All that a report needs is written
// to a new folder in parent.
func (u *Unit) Clang(err *Error, parent string) *diag.Diagnostic {
	text, pos := u.firstError(err.Log)
	d := &diag.Diagnostic{Code: codeClang, Pos: pos}
	d.Message = fmt.Sprintf("clang %s refuses the generated C: %s", err.Version, cmp.Or(text, err.Err.Error()))
	d.Hint = u.keep(parent, err.Log)
	return d
}

// Verifier explains the kernel's refusal of an object, if err has an *ebpf.VerifierError in it; else it returns nil.
// All that a report needs is written to a new folder in parent.
func (u *Unit) Verifier(err error, parent string) *diag.Diagnostic {
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) {
		return nil
	}
	program := programIn(err)
	log := strings.Join(refused.Log, "\n")
	why := reason(refused.Log)
	if tooWide.MatchString(why) {
		return &diag.Diagnostic{
			Code: codePaths, Pos: u.begins(program),
			Message: fmt.Sprintf("program %q has more paths than the kernel's verifier follows: %s",
				strings.TrimPrefix(program, abi.ProgramPrefix), why),
			Hint: "fewer alternatives or optional headers in its stack, smaller bounds of variable fields, or fewer " +
				"rules; or two programs, each with some of them",
		}
	}
	d := &diag.Diagnostic{Code: codeVerifier, Pos: u.locate(program, refused.Log)}
	d.Message = fmt.Sprintf("the kernel's verifier rejects program %q: %s",
		strings.TrimPrefix(program, abi.ProgramPrefix), why)
	var hint []string
	if words := inWords(why); words != "" {
		hint = append(hint, "in words: "+words)
	}
	d.Hint = strings.Join(append(hint, u.keep(parent, fmt.Sprintf("%v\n\n%s\n", err, log))), "\n")
	return d
}

// tooWide is what the verifier says of a program with more paths than it follows.
var tooWide = regexp.MustCompile(
	`program is too large|too many (instructions|states)|sequence of \d+ jumps is too complex`)

var programPattern = regexp.MustCompile(`program (\w+):`)

// programIn finds out which program an error of cilium/ebpf is about.
func programIn(err error) string {
	if m := programPattern.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return ""
}

var (
	insnPattern = regexp.MustCompile(`^(\d+): (?:\([0-9a-f]{2}\)|R\d)`)
	noise       = regexp.MustCompile(
		`^(;|\d+: |from \d+|processed |verification time|stack depth|mark_precise|regs=|R\d+(_w)?=|last_idx|parent |` +
			`\s*frame\d|caller:|callee:|returning from|to caller|max_states|-- )`)
)

// reason finds the sentence that says why the verifier stopped: a line that begins with "Reason:" if the kernel
// writes one, else the first line after the last instruction that is not a part of its walk.
func reason(log []string) string {
	why := ""
	for i := len(log) - 1; i >= 0; i-- {
		line := strings.TrimSpace(log[i])
		if text, ok := strings.CutPrefix(line, "Reason:"); ok {
			return strings.TrimSpace(text)
		}
		if insnPattern.MatchString(line) && why != "" {
			break
		}
		if line != "" && !noise.MatchString(line) {
			why = line
		}
	}
	if why == "" {
		return "it gives no reason"
	}
	return why
}

// locate finds the line of the spec that the verifier stopped at: that of the last instruction which it looked at, or,
// if that is in a helper, of the last one in front of it that has one. Its log names instructions by number; older
// kernels print no file and line, so the object's own line information decides.
func (u *Unit) locate(program string, log []string) diag.Pos {
	lines := u.lineInfo(program)
	for i := len(log) - 1; i >= 0; i-- {
		m := insnPattern.FindStringSubmatch(log[i])
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		if line := lines[n]; line != nil {
			if pos := u.find(line.FileName(), int(line.LineNumber())); pos.IsValid() {
				return pos
			}
		}
	}
	return diag.Pos{}
}

// begins finds the first line of the spec that is in a program: its declaration.
func (u *Unit) begins(program string) diag.Pos {
	lines := u.lineInfo(program)
	for _, n := range slices.Sorted(maps.Keys(lines)) {
		if line := lines[n]; line != nil {
			if pos := u.ofSpec(line); pos.IsValid() {
				return pos
			}
		}
	}
	return diag.Pos{}
}

// lineInfo returns the line of each instruction of a program, by its number in the verifier's log.
func (u *Unit) lineInfo(program string) map[int]*btf.Line {
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(u.Object))
	if err != nil || collection.Programs[program] == nil {
		return nil
	}
	out := map[int]*btf.Line{}
	var last *btf.Line
	offset := asm.RawInstructionOffset(0)
	for _, ins := range collection.Programs[program].Instructions {
		if line, ok := ins.Source().(*btf.Line); ok {
			last = line
		}
		out[int(offset)] = last
		offset += asm.RawInstructionOffset(ins.Size() / asm.InstructionSize)
	}
	return out
}

var sentences = []struct {
	pattern *regexp.Regexp
	words   func(m []string) string
}{
	{regexp.MustCompile(`invalid access to packet, off=(-?\d+) size=(\d+), R\d+\(.*off=(-?\d+),r=(\d+)\)`),
		func(m []string) string {
			return fmt.Sprintf("%s bytes at offset %s are read or written, but only %s bytes were checked on this path",
				m[2], m[1], m[4])
		}},
	{regexp.MustCompile(`invalid mem access '(map_value_or_null|map_value_or_null_or_null)'`), func([]string) string {
		return "a row is used that may not be there"
	}},
	{regexp.MustCompile(`misaligned stack access`), func([]string) string {
		return "a value on the stack is not at a multiple of its size"
	}},
	{regexp.MustCompile(`invalid (indirect )?read from stack`), func([]string) string {
		return "memory on the stack is read before anything was written there"
	}},
	{regexp.MustCompile(`unbounded (min value|memory access)|math between pkt pointer`), func([]string) string {
		return "an offset into the packet varies, and the verifier doesn't know by how much"
	}},
	{regexp.MustCompile(`(?:unknown|invalid) func (\S+)|program of this type cannot use helper (\S+)`),
		func(m []string) string {
			return "this kernel has no helper " + m[1] + m[2]
		}},
	{regexp.MustCompile(`combined stack size`), func([]string) string {
		return "the program needs more than the 512 bytes of stack that there are"
	}},
}

// inWords says in plain words what the verifier means, or "".
func inWords(why string) string {
	for _, s := range sentences {
		if m := s.pattern.FindStringSubmatch(why); m != nil {
			return s.words(m)
		}
	}
	return ""
}

const failureName = "fastrelay-failure"

// keep writes all that a report needs to a new folder, and returns the sentence that says so.
func (u *Unit) keep(parent, log string) string {
	const fault = "this is a fault of fastrelay-gen, not of your spec"
	dir, err := newFolder(parent)
	if err == nil {
		for name, text := range map[string][]byte{
			"log.txt": []byte(log), sourceName: []byte(u.Source), headerName: []byte(u.Header), objectName: u.Object,
			"plan.txt": []byte(u.Plan),
		} {
			if len(text) > 0 && err == nil {
				err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
			}
		}
	}
	if err != nil {
		return fmt.Sprintf("%s; what a report needs could not be kept: %v", fault, err)
	}
	return fmt.Sprintf("%s: everything needed for a report is in %s%c", fault, dir, filepath.Separator)
}

// newFolder makes the first folder of its name that isn't there.
func newFolder(parent string) (string, error) {
	for n := 1; n < 1000; n++ {
		dir := filepath.Join(parent, fmt.Sprintf("%s-%d", failureName, n))
		if n == 1 {
			dir = filepath.Join(parent, failureName)
		}
		err := os.Mkdir(dir, 0o755)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
	}
	return "", fmt.Errorf("%s: there are a thousand of them already", filepath.Join(parent, failureName))
}
