package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/skbfacts"
)

// readObject parses an object and checks that it is the one that desc describes.
func readObject(desc *Desc, object []byte) (*ebpf.CollectionSpec, error) {
	bad := func(err error, format string, args ...any) error {
		return &ObjectError{Relay: desc.Name, Reason: fmt.Sprintf(format, args...), Err: err}
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, bad(err, "its %d bytes can't be read", len(object))
	}
	check := func(name string, typ ebpf.MapType, key, value, entries int) error {
		m := spec.Maps[name]
		switch {
		case m == nil:
			return bad(nil, "it has no map %s", name)
		case m.Type != typ:
			return bad(nil, "map %s is of type %v, not %v", name, m.Type, typ)
		case int(m.KeySize) != key || int(m.ValueSize) != value:
			return bad(nil, "map %s has keys of %d and values of %d bytes, not %d and %d", name, m.KeySize, m.ValueSize, key, value)
		case entries > 0 && int(m.MaxEntries) != entries:
			return bad(nil, "map %s has %d entries, not %d", name, m.MaxEntries, entries)
		}
		return nil
	}
	shared := func(name string) error {
		if spec.Maps[name].Flags&unix.BPF_F_MMAPABLE == 0 {
			return bad(nil, "map %s can't be mapped into memory", name)
		}
		return nil
	}
	errs := []error{check("fr_lease", ebpf.Array, 4, leaseSize, 1)}
	reasons := 0
	for _, p := range desc.Programs {
		reasons = max(reasons, p.Base+len(p.Reasons))
	}
	if reasons > 0 {
		errs = append(errs, check("fr_reasons", ebpf.PerCPUArray, 4, 16, reasons))
	}
	if desc.Slots > 0 {
		errs = append(errs, check("fr_slots", ebpf.Array, 4, 16, desc.Slots), check("fr_usage", ebpf.PerCPUArray, 4, 8+16*desc.Usages, desc.Slots))
	}
	if desc.Shared > 0 {
		errs = append(errs, check("fr_shared", ebpf.Array, 4, 8, desc.Shared))
	}
	if len(desc.Counters) > 0 {
		errs = append(errs, check("fr_named", ebpf.PerCPUArray, 4, 8, len(desc.Counters)))
	}
	levels := max(desc.Levels, 1)
	for _, m := range []struct {
		name              string
		typ               ebpf.MapType
		key, value, count int
		entries           int
	}{
		{"fr_receivers", ebpf.PerCPUArray, 4, 32, desc.Receivers, desc.Receivers},
		{"fr_credits", ebpf.Array, 4, creditRefused + 8*levels, desc.Credits, desc.Credits},
		{"fr_translate", ebpf.Hash, translateKeySize, translateSize, desc.Translations, desc.Translations},
		{"fr_events", ebpf.RingBuf, 0, 0, desc.Ring, desc.Ring},
		{"fr_lost", ebpf.Array, 4, 8, desc.Ring, len(desc.Events) + 1},
	} {
		if m.count > 0 {
			errs = append(errs, check(m.name, m.typ, m.key, m.value, m.entries))
		}
	}
	for _, g := range desc.Groups {
		errs = append(errs, check("grp_"+g.Name, ebpf.HashOfMaps, g.KeySize, 4, g.Size), check("rcv_"+g.Name, ebpf.Array, 4, g.ReceiverSize, g.Rows+g.Max))
		if outer := spec.Maps["grp_"+g.Name]; outer != nil && (outer.InnerMap == nil || outer.InnerMap.Type != ebpf.Array || int(outer.InnerMap.ValueSize) != 4+4*g.Max) {
			errs = append(errs, bad(nil, "map grp_%s has no lists of %d receivers", g.Name, g.Max))
		}
	}
	for _, t := range desc.Tables {
		typ, err := t.mapType()
		if err != nil {
			return nil, err
		}
		errs = append(errs, check("tbl_"+t.Name, typ, t.KeySize, max(t.ValueSize, 1), t.Size))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, firstError(errs)
	}
	errs = []error{shared("fr_lease")}
	if desc.Slots > 0 {
		errs = append(errs, shared("fr_slots"))
	}
	if desc.Shared > 0 {
		errs = append(errs, shared("fr_shared"))
	}
	if desc.Credits > 0 {
		errs = append(errs, shared("fr_credits"))
	}
	if desc.Ring > 0 {
		errs = append(errs, shared("fr_lost"))
	}
	for _, name := range append([]string{"fr_clock"}, programNames(desc)...) {
		if p := spec.Programs[name]; p == nil {
			errs = append(errs, bad(nil, "it has no program %s", name))
		} else if p.Type != ebpf.SchedCLS {
			errs = append(errs, bad(nil, "program %s is of type %v, not %v", name, p.Type, ebpf.SchedCLS))
		}
	}
	for _, s := range desc.Settings {
		if v := spec.Variables["set_"+s.Name]; v == nil {
			errs = append(errs, bad(nil, "it has no variable set_%s", s.Name))
		} else if int(v.Size()) != s.Size {
			errs = append(errs, bad(nil, "variable set_%s has %d bytes, not %d", s.Name, v.Size(), s.Size))
		}
	}
	return spec, firstError(errs)
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func programNames(desc *Desc) []string {
	var names []string
	for _, p := range desc.Programs {
		names = append(names, "prog_"+p.Name)
	}
	return names
}

func (t *TableDesc) mapType() (ebpf.MapType, error) {
	types := map[string][2]ebpf.MapType{
		"hash":  {ebpf.Hash, ebpf.PerCPUHash},
		"lru":   {ebpf.LRUHash, ebpf.LRUCPUHash},
		"array": {ebpf.Array, ebpf.PerCPUArray},
		"lpm":   {ebpf.LPMTrie, ebpf.UnspecifiedMap},
	}
	typ := types[t.Kind][0]
	if t.PerCPU {
		typ = types[t.Kind][1]
	}
	if typ == ebpf.UnspecifiedMap {
		return typ, fmt.Errorf("table %q: the kernel has no such table: %s, per CPU: %v", t.Name, t.Kind, t.PerCPU)
	}
	return typ, nil
}

// applySettings writes the settings into the object's read-only data.
func applySettings(desc *Desc, spec *ebpf.CollectionSpec, given map[string]any) error {
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
		if n := getUintOf(s.Kind, buf); s.Kind == KindUint && (n < s.Min || n > s.Max) {
			return &ValueError{Where: where, Value: v, Reason: fmt.Sprintf("is out of range: %d to %d", s.Min, s.Max)}
		}
		if err := spec.Variables["set_"+s.Name].Set(buf); err != nil {
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

func getUintOf(kind Kind, buf []byte) uint64 {
	if kind != KindUint {
		return 0
	}
	return getUint(buf)
}

// loadCollection loads maps and programs, using the maps found instead of new ones.
func loadCollection(desc *Desc, spec *ebpf.CollectionSpec, found map[string]*ebpf.Map) (*ebpf.Collection, error) {
	doing := fmt.Sprintf("load relay %q", desc.Name)
	// Kernels before 5.11 account maps against the limit of locked memory. A process that may do nothing fails here first.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, explainLoad(desc, doing, fmt.Errorf("raise the limit of locked memory: %w", err))
	}
	facts, err := skbfacts.Prepare(spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: found, Programs: facts})
	if err != nil {
		return nil, explainLoad(desc, doing, err)
	}
	return coll, nil
}

// explainLoad says in a person's words why the kernel refused.
func explainLoad(desc *Desc, doing string, err error) error {
	e := &KernelError{Doing: doing, Err: err}
	major, minor, release := kernelVersion()
	var verifier *ebpf.VerifierError
	want := desc.Kernel
	switch {
	case major != 0 && (major < want[0] || major == want[0] && minor < want[1]):
		e.Cause = fmt.Sprintf("it needs Linux %d.%d or newer, this is %s", want[0], want[1], release)
		e.Fix = "use a newer kernel"
	case errors.Is(err, unix.EPERM):
		e.Cause = "this process may not load BPF programs"
		e.Fix = "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (before Linux 5.8, CAP_SYS_ADMIN; before 5.11, CAP_SYS_RESOURCE as well)"
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

// kernelVersion returns zeros where the release can't be understood.
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
