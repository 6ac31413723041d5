package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/doctor"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// relay is a spec with its plan and object.
type relay struct {
	dir    string
	spec   *spec.Spec
	plan   *ir.Plan
	object []byte
}

// read reads a relay from its folder. The plan is made anew here, from the spec that the object was made of.
func read(dir string) (*relay, error) {
	file := filepath.Join(dir, testkernel.SpecName)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &relay{dir: dir}
	if r.object, err = os.ReadFile(filepath.Join(dir, testkernel.ObjectName)); err != nil {
		return nil, err
	}
	s, list := spec.Load(file, text)
	if list.Len() > 0 {
		return nil, list.Err()
	}
	r.spec = s
	if r.plan, list = gen.Compile(s); list.Len() > 0 {
		return nil, list.Err()
	}
	return r, nil
}

// checkSpec runs all checks of the relay in a folder.
func checkSpec(rep *reporter, dir string, packets int) {
	var r *relay
	if !rep.check(dir, "read", func() (_ string, err error) { r, err = read(dir); return "", err }) {
		return
	}
	if old, err := r.tooOld(); err != nil || old {
		rep.check(dir, "refuse", func() (string, error) { return r.refuse(err) })
		return
	}
	if !rep.check(dir, "verify", func() (string, error) { return r.verify(rep) }) {
		return
	}
	rep.check(dir, "load", r.load)
	rep.check(dir, "tests", r.tests)
	if packets > 0 {
		rep.check(dir, "packets", func() (string, error) { return r.packets(packets) })
	}
}

// tooOld reports whether this kernel is older than what the plan says it needs.
func (r *relay) tooOld() (bool, error) {
	release, major, minor := doctor.Release()
	if major == 0 {
		return false, fmt.Errorf("the kernel's release %q is not understood", release)
	}
	k := r.plan.Kernel
	return major < k.Major || major == k.Major && minor < k.Minor, nil
}

// refuse checks that a kernel which is too old for a plan refuses it (otherwise the plan asks for too new a
// kernel), and that the runtime then says what is wrong.
func (r *relay) refuse(err error) (string, error) {
	if err != nil {
		return "", err
	}
	collection, err := r.collection()
	if err != nil {
		return "", err
	}
	options, err := skbfacts.Prepare(collection)
	if err != nil {
		return "", err
	}
	if loaded, err := ebpf.NewCollectionWithOptions(collection, ebpf.CollectionOptions{Programs: options}); err == nil {
		loaded.Close()
		return "", fmt.Errorf("it loads here, although its plan needs %d.%d", r.plan.Kernel.Major, r.plan.Kernel.Minor)
	}
	desc := glue.Desc(r.plan)
	loaded, err := runtime.Load(&desc, r.object, runtime.Options{Settings: settings(&desc)})
	if err == nil {
		loaded.Close()
		return "", errors.New("the runtime loads it on a kernel that is too old")
	}
	var refused *runtime.KernelError
	want := fmt.Sprintf("it needs Linux %d.%d or newer", r.plan.Kernel.Major, r.plan.Kernel.Minor)
	if !errors.As(err, &refused) || !strings.Contains(refused.Cause, want) {
		return "", fmt.Errorf("the runtime refuses it, but doesn't say that %s: %w", want, err)
	}
	return "refused: " + refused.Cause, nil
}

// collection reads the object and gives each setting its default; one that must be given stays 0.
func (r *relay) collection() (*ebpf.CollectionSpec, error) {
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(r.object))
	if err != nil {
		return nil, err
	}
	for _, s := range r.plan.Settings {
		v := collection.Variables[abi.SettingPrefix+s.Name]
		if v == nil {
			return nil, fmt.Errorf("the object has no variable for the setting %q", s.Name)
		}
		if s.Default == nil {
			continue
		}
		if err := v.Set(s.Default); err != nil {
			return nil, fmt.Errorf("setting %q: %w", s.Name, err)
		}
	}
	return collection, nil
}

// loadWith loads the object, whose programs may learn of packets by some methods only. If these come to the same as
// before, of those that the kernel has, it loads nothing.
func (r *relay) loadWith(allowed skbfacts.Methods, before map[skbfacts.Methods]bool) (*ebpf.Collection, error) {
	skbfacts.Allowed = allowed
	defer func() { skbfacts.Allowed = skbfacts.All }()
	collection, err := r.collection()
	if err != nil {
		return nil, err
	}
	options, err := skbfacts.Prepare(collection)
	if err != nil {
		return nil, err
	}
	var found skbfacts.Methods // none in programs that don't ask
	if v := collection.Variables[abi.FactsVariable]; v != nil {
		if err := v.Get(&found); err != nil {
			return nil, err
		}
	}
	if before[found] {
		return nil, nil
	}
	before[found] = true
	options.LogLevel = ebpf.LogLevelStats
	loaded, err := ebpf.NewCollectionWithOptions(collection, ebpf.CollectionOptions{Programs: options})
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) {
		return nil, fmt.Errorf("%+v", rejected) // with the whole log
	}
	return loaded, err
}

// verify loads the object and reports what each program costs.
func (r *relay) verify(rep *reporter) (string, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return "", err
	}
	before := map[skbfacts.Methods]bool{}
	loaded, err := r.loadWith(skbfacts.All, before)
	if err != nil {
		return "", err
	}
	defer loaded.Close()
	others := []skbfacts.Methods{skbfacts.None, skbfacts.Read} // as without BTF, as before 6.2
	if goruntime.GOARCH != "amd64" {
		others = nil // what the verifier says is the same, and takes long there
	}
	for _, methods := range others {
		again, err := r.loadWith(methods, before)
		if err != nil {
			return "", err
		}
		if again != nil {
			again.Close()
		}
	}
	_, major, minor := doctor.Release()
	stacks, err := clang.Stacks(r.object, [2]int{major, minor})
	if err != nil {
		return "", err
	}
	for _, symbol := range slices.Sorted(maps.Keys(loaded.Programs)) {
		program := loaded.Programs[symbol]
		name, ours := strings.CutPrefix(symbol, abi.ProgramPrefix)
		if first, atXDP := strings.CutPrefix(symbol, abi.XDPPrefix); atXDP {
			name, ours = first+"@xdp", true
		}
		if !ours {
			continue
		}
		cost, err := testkernel.ParseCost(program.VerifierLog)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		info, err := program.Info()
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		bytes, err := info.TranslatedSize()
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		cost.Stack, cost.Size = stacks[symbol], bytes/asm.InstructionSize
		if err := compiled(info); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		rep.line(testkernel.Line{Spec: r.dir, Program: name, Cost: &cost})
	}
	return "", nil
}

// compiled checks that the kernel has compiled a program to machine code, unless its JIT compiler is turned off.
// If the JIT compiler of an architecture doesn't support an instruction, the kernel silently interprets the
// program, at many times the cost.
func compiled(info *ebpf.ProgramInfo) error {
	enabled, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if err != nil || strings.TrimSpace(string(enabled)) == "0" {
		return err
	}
	if _, err = info.JitedSize(); errors.Is(err, ebpf.ErrNotSupported) {
		return errors.New("the kernel interprets it: its JIT compiler doesn't support all instructions")
	}
	return err
}

// load loads the relay as a user's program does.
func (r *relay) load() (string, error) {
	desc := glue.Desc(r.plan)
	loaded, err := runtime.Load(&desc, r.object, runtime.Options{Settings: settings(&desc)})
	if err != nil {
		return "", err
	}
	return "", loaded.Close()
}

// settings gives each setting that has no default a value.
func settings(desc *abi.Desc) map[string]any {
	out := map[string]any{}
	for _, s := range desc.Settings {
		if !s.Required {
			continue
		}
		switch s.Kind {
		case abi.KindUint:
			out[s.Name] = max(s.Min, 1)
		case abi.KindBool:
			out[s.Name] = true
		case abi.KindAddr:
			out[s.Name] = netip.MustParseAddr("192.0.2.1")
		case abi.KindMAC:
			out[s.Name] = net.HardwareAddr{2, 0, 0, 0, 0, 1}
		}
	}
	return out
}

// tests runs the spec's tests in the kernel.
func (r *relay) tests() (string, error) {
	outcomes, err := spectest.Kernel(context.Background(), r.spec, r.plan, r.object)
	if err != nil {
		return "", err
	}
	passed, modelOnly := 0, 0
	var failed []string
	for _, o := range outcomes {
		switch o.Status {
		case spectest.Passed:
			passed++
		case spectest.NotShown:
			modelOnly++
		default:
			text := fmt.Sprintf("%s: test %q: %s\n%s", o.Pos, o.Name, strings.Join(o.Differences, "; "), o.Fields)
			failed = append(failed, text)
		}
	}
	if len(failed) > 0 {
		return "", errors.New(strings.Join(failed, "\n"))
	}
	return fmt.Sprintf("%d tests passed, %d are for the model only", passed, modelOnly), nil
}

// packets compares the kernel with the model on random packets. The seed is fixed, so that each kernel gets the same.
func (r *relay) packets(n int) (string, error) {
	config := fuzz.Config{Spec: r.spec, Plan: r.plan, Object: r.object, Seed: 1, Packets: n}
	report, err := fuzz.Run(context.Background(), config)
	if err != nil {
		return "", err
	}
	if d := report.Difference; d != nil {
		text, err := json.MarshalIndent(d.Case, "", "\t")
		if err != nil {
			return "", err
		}
		return "", fmt.Errorf("the kernel and the model differ: %s\n%s", d.Text, text)
	}
	return fmt.Sprintf("%d packets", report.Packets-report.Refused), nil
}
