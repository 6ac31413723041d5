package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// readObject parses an object and checks that it is the one that desc describes.
func readObject(desc *abi.Desc, object []byte) (*ebpf.CollectionSpec, error) {
	bad := func(err error, format string, args ...any) error {
		return &ObjectError{Relay: desc.Name, Reason: fmt.Sprintf(format, args...), Err: err}
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, bad(err, "its %d bytes can't be read", len(object))
	}
	for _, m := range desc.Maps() {
		if reason := wrongMap(spec.Maps[m.Name], m); reason != "" {
			return nil, bad(nil, "%s", reason)
		}
	}
	var errs []error
	for _, want := range programsOf(desc) {
		if p := spec.Programs[want.name]; p == nil {
			errs = append(errs, bad(nil, "it has no program %s", want.name))
		} else if p.Type != want.typ {
			errs = append(errs, bad(nil, "program %s is of type %v, not %v", want.name, p.Type, want.typ))
		}
	}
	for _, s := range desc.Settings {
		if v := spec.Variables[abi.SettingPrefix+s.Name]; v == nil {
			errs = append(errs, bad(nil, "it has no variable %s%s", abi.SettingPrefix, s.Name))
		} else if int(v.Size()) != s.Size {
			errs = append(errs, bad(nil, "variable %s%s has %d bytes, not %d", abi.SettingPrefix, s.Name, v.Size(),
				s.Size))
		}
	}
	if ring := spec.Maps[abi.MapEvents]; ring != nil {
		ring.MaxEntries = ringEntries(ring.MaxEntries, os.Getpagesize())
	}
	return spec, firstError(errs)
}

// ringEntries returns the size of a ring of so many bytes: at least a page. A spec may ask for 4096 bytes; kernels for
// arm64 may have pages of 64 KiB, and take no smaller ring.
func ringEntries(bytes uint32, page int) uint32 { return max(bytes, uint32(page)) }

// wrongMap says why a map isn't the one that the relay needs, or "".
func wrongMap(got *ebpf.MapSpec, want abi.Map) string {
	switch {
	case want.Type == 0:
		return fmt.Sprintf("the kernel has no maps such as %s is to be", want.Name)
	case got == nil:
		return "it has no map " + want.Name
	case got.Type != ebpf.MapType(want.Type):
		return fmt.Sprintf("map %s is of type %v, not %v", want.Name, got.Type, ebpf.MapType(want.Type))
	case int(got.KeySize) != want.KeySize || int(got.ValueSize) != want.ValueSize:
		return fmt.Sprintf("map %s has keys of %d and values of %d bytes, not %d and %d",
			want.Name, got.KeySize, got.ValueSize, want.KeySize, want.ValueSize)
	case int(got.MaxEntries) != want.Entries:
		return fmt.Sprintf("map %s has %d entries, not %d", want.Name, got.MaxEntries, want.Entries)
	case want.Mmap && got.Flags&unix.BPF_F_MMAPABLE == 0:
		return fmt.Sprintf("map %s can't be mapped into memory", want.Name)
	case want.List > 0 && (got.InnerMap == nil || got.InnerMap.Type != ebpf.Array ||
		int(got.InnerMap.ValueSize) != want.List):
		return fmt.Sprintf("map %s has no lists of %d bytes", want.Name, want.List)
	}
	return ""
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// symbol is a program that an object has to have.
type symbol struct {
	name string
	typ  ebpf.ProgramType
}

func programsOf(desc *abi.Desc) []symbol {
	all := []symbol{{abi.ClockProgram, ebpf.SchedCLS}}
	for _, p := range desc.Programs {
		if p.Hook != abi.HookXDP {
			all = append(all, symbol{p.Symbol(), ebpf.SchedCLS})
		}
		if p.AtXDP() {
			all = append(all, symbol{abi.XDPPrefix + p.Name, ebpf.XDP})
		}
	}
	return all
}

// applySettings writes the settings into the object's read-only data.
func applySettings(desc *abi.Desc, spec *ebpf.CollectionSpec, given map[string]any) error {
	known := map[string]bool{}
	for _, s := range desc.Settings {
		known[s.Name] = true
		where := fmt.Sprintf("relay %q: setting %q", desc.Name, s.Name)
		v, ok := given[s.Name]
		if !ok {
			if s.Required {
				return fmt.Errorf("%s has no default and must be given", where)
			}
			v = s.Default
		}
		buf := make([]byte, s.Size)
		if err := encode(buf, s.Kind, s.Bits, v); err != nil {
			return &ValueError{Where: where, Value: v, Reason: err.Error()}
		}
		if n := getUintOf(s.Kind, buf); s.Kind == abi.KindUint && (n < s.Min || n > s.Max) {
			return &ValueError{Where: where, Value: v, Reason: fmt.Sprintf("is out of range: %d to %d", s.Min, s.Max)}
		}
		if err := spec.Variables[abi.SettingPrefix+s.Name].Set(buf); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	}
	for name := range given {
		if !known[name] {
			return fmt.Errorf("relay %q has no setting %q", desc.Name, name)
		}
	}
	return nil
}

func getUintOf(kind abi.Kind, buf []byte) uint64 {
	if kind != abi.KindUint {
		return 0
	}
	return getUint(buf)
}

// loadCollection loads maps and programs, using the maps found instead of new ones.
func loadCollection(desc *abi.Desc, spec *ebpf.CollectionSpec, found map[string]*ebpf.Map) (*ebpf.Collection, error) {
	coll, err := bpfload.Load(spec, ebpf.CollectionOptions{MapReplacements: found})
	if err != nil {
		return nil, explainLoad(desc, err)
	}
	return coll, nil
}

// explainLoad says in a person's words why the kernel refused.
func explainLoad(desc *abi.Desc, err error) error {
	e := &KernelError{Doing: fmt.Sprintf("load relay %q", desc.Name), Err: err}
	major, minor, release := kernelVersion()
	var refusal *bpfload.Refusal
	var verifier *ebpf.VerifierError
	want := desc.Kernel
	switch {
	case major != 0 && (major < want[0] || major == want[0] && minor < want[1]):
		e.Cause = fmt.Sprintf("it needs Linux %d.%d or newer, this is %s", want[0], want[1], release)
		e.Fix = "use a newer kernel"
	case errors.As(err, &refusal):
		e.Cause, e.Fix, e.Err = refusal.Cause, refusal.Fix, refusal.Err
	case errors.As(err, &verifier):
		e.Cause = "the kernel's verifier rejects it"
		e.Fix = "this is a fault of fastrelay-gen: please report it with the whole log"
	case errors.Is(err, unix.ENOMEM):
		e.Cause = "the kernel has no memory for its tables"
		e.Fix = "make the tables smaller in the spec, or allow more memory (ulimit -l, the control group's limit)"
	case errors.Is(err, ebpf.ErrNotSupported):
		e.Cause = fmt.Sprintf("this kernel (%s) lacks a feature", release)
		e.Fix = "use a kernel with BPF built in (CONFIG_BPF_SYSCALL)"
	default:
		e.Cause = "the kernel refuses"
	}
	return e
}

// kernelVersion returns zeros if the release can't be understood.
func kernelVersion() (major, minor int, release string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0, 0, "unknown"
	}
	release = unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(strings.ReplaceAll(release, "-", "."), "%d.%d", &major, &minor); err != nil {
		return 0, 0, release
	}
	return major, minor, release
}
