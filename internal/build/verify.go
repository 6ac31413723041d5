package build

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// Verified is what the running kernel's verifier says of a program.
type Verified struct {
	Processed int `json:"processed"` // instructions that it looked at, all paths together
	States    int `json:"states"`
	Stack     int `json:"stack"` // bytes, with what the program calls
}

// ErrNoRights is returned by [Verify] if this process may not ask the kernel.
var ErrNoRights = errors.New("the right to load programs is missing")

// Verify loads the object of r into the running kernel, attaches nothing, and returns what the verifier says of each
// program. If it rejects one, the error is a [*Refusal].
func Verify(r *Result) (map[string]*Verified, error) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return nil, ErrNoRights
	}
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(r.Object()))
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	// How many rows a table has room for means nothing to the verifier, and memory to the kernel.
	for _, m := range collection.Maps {
		switch m.Type {
		case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.LPMTrie:
			m.MaxEntries = 1
		}
	}
	load := func(level ebpf.LogLevel) (*ebpf.Collection, error) {
		return bpfload.Load(collection, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: level}})
	}
	loaded, err := load(ebpf.LogLevelStats)
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) { // once more, with all that the verifier can say
		loaded, err = load(ebpf.LogLevelBranch | ebpf.LogLevelStats)
	}
	if denied := (*bpfload.Refusal)(nil); errors.As(err, &denied) {
		return nil, ErrNoRights
	}
	if err != nil {
		return nil, r.Explain(err)
	}
	defer loaded.Close()
	stacks, err := clang.Stacks(r.Object(), r.kernel())
	if err != nil {
		return nil, err
	}
	out := map[string]*Verified{}
	for _, p := range r.Plan.Programs {
		if prog := loaded.Programs[p.Symbol()]; prog != nil {
			out[p.Name] = parseStats(prog.VerifierLog)
			out[p.Name].Stack = stacks[p.Symbol()]
		}
	}
	return out, nil
}

var (
	processedPattern = regexp.MustCompile(`processed (\d+) insns`)
	statesPattern    = regexp.MustCompile(`total_states (\d+)`)
)

// parseStats reads the last lines of a verifier's log: "processed 1904 insns (limit 1000000) … total_states 90 …".
func parseStats(log string) *Verified {
	number := func(p *regexp.Regexp) int {
		m := p.FindStringSubmatch(log)
		if m == nil {
			return 0
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	return &Verified{Processed: number(processedPattern), States: number(statesPattern)}
}

// Instructions returns the number of instructions of each program in the object.
func (r *Result) Instructions() (map[string]int, error) {
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(r.Object()))
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	out := map[string]int{}
	for _, p := range r.Plan.Programs {
		if prog := collection.Programs[p.Symbol()]; prog != nil {
			out[p.Name] = len(prog.Instructions)
		}
	}
	return out, nil
}
