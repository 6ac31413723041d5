package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// pins is the folder in a BPF file system where a relay outlives its process:
//
//	PATH/live/fr_lease, …, tbl_T    the maps that a successor goes on with
//	PATH/live/layout                what is in them: an array whose only value is the layout, in JSON
//	PATH/live/link_PROGRAM_IFINDEX  TCX links
//	PATH/new                        what is being made; whoever finds it removes it
//
// live appears and disappears by one rename, so it is whole whenever it is there. A lock on PATH, which the kernel
// takes back from a process that dies, keeps two processes apart.
type pins struct {
	path string
	lock *os.File
	old  *abi.Layout // what live holds; nil: nothing
}

func (p *pins) live(name string) string { return filepath.Join(p.path, "live", name) }

func openPins(path string) (*pins, error) {
	if err := checkBPFFS(path); err != nil {
		return nil, err
	}
	path = filepath.Clean(path)
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder for pins: %w", err)
		}
		// Somebody else may have been faster in a folder where everybody may make one.
		if err := checkFolder(path); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("open the folder for pins: %w", err)
		}
		if err := lockFolder(lock); err != nil {
			lock.Close()
			if errors.Is(err, ErrLocked) {
				return nil, fmt.Errorf("the relay pinned at %s is %w; stop it first, or choose another PinPath", path, err)
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The folder may have been removed by its last owner between open and lock.
		mine, err1 := lock.Stat()
		there, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			lock.Close()
			continue
		}
		p := &pins{path: path, lock: lock}
		// What somebody else put there while the folder was open to them isn't ours.
		if info, err := os.Lstat(p.live("")); err == nil {
			if err := checkOwner(path, p.live(""), "the folder", info); err != nil {
				lock.Close()
				return nil, err
			}
		}
		if err := os.RemoveAll(filepath.Join(path, "new")); err != nil {
			p.abandon()
			return nil, fmt.Errorf("remove what a process left unfinished: %w", err)
		}
		return p, nil
	}
}

// checkBPFFS says what to do where path can't hold pins.
func checkBPFFS(path string) error {
	if !filepath.IsAbs(path) || strings.Contains(filepath.Base(path), ".") {
		return fmt.Errorf("PinPath %q must be absolute, and its name can't have a dot in it", path)
	}
	dir := path
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", dir, err)
		}
		if st.Type != unix.BPF_FS_MAGIC {
			return &KernelError{Doing: "pin at " + path, Cause: dir + " is not in a BPF file system",
				Fix: "use a folder under /sys/fs/bpf (mount -t bpf bpf /sys/fs/bpf, where that is missing)"}
		}
		return nil
	}
}

func layoutOf(d *abi.Desc) *abi.Layout { return &abi.Layout{Version: abi.Version, Desc: *d} }

// maps opens the maps that are pinned and fit desc. It returns none where nothing is pinned, and a *LayoutError where
// something was laid out otherwise. A table that is new in desc, and counters that are for people only and have other
// names now, are left out, and start afresh.
func (p *pins) maps(desc *abi.Desc, spec *ebpf.CollectionSpec) (_ map[string]*ebpf.Map, err error) {
	if _, err := os.Stat(filepath.Join(p.path, "live")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if p.old, err = p.readLayout(); err != nil {
		return nil, fmt.Errorf("read what is pinned at %s: %w", p.path, err)
	}
	if err := p.compare(p.old, layoutOf(desc)); err != nil {
		return nil, err
	}
	found := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		if !abi.Pinned(name) || !p.keeps(name, desc) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(p.live(name), nil)
		if err == nil {
			if err = ms.Compatible(m); err != nil {
				m.Close()
			}
		}
		if err != nil {
			closeMaps(found)
			return nil, fmt.Errorf("open what is pinned at %s: %w", p.live(name), err)
		}
		found[name] = m
	}
	return found, nil
}

// keeps says whether the pinned map of that name serves desc as well.
func (p *pins) keeps(name string, desc *abi.Desc) bool {
	switch {
	case name == abi.MapReasons:
		return reflect.DeepEqual(reasonNames(p.old.Programs), reasonNames(desc.Programs))
	case name == abi.MapNamed:
		return reflect.DeepEqual(p.old.Counters, desc.Counters)
	}
	return slices.ContainsFunc(p.old.Maps(), func(m abi.Map) bool { return m.Name == name })
}

func reasonNames(programs []abi.Program) []string {
	var names []string
	for _, p := range programs {
		for _, r := range p.Reasons {
			names = append(names, fmt.Sprint(p.Name, " ", r.Kind, " ", r.Name))
		}
	}
	return names
}

// compare finds what can't be adopted.
func (p *pins) compare(old, now *abi.Layout) error {
	refuse := func(what string, found, want any) error {
		return &LayoutError{Path: p.path, What: what, Found: fmt.Sprint(found), Want: fmt.Sprint(want)}
	}
	if old.Version != now.Version {
		return refuse("the contract with the kernel's programs", old.Version, now.Version)
	}
	was := map[string]abi.Table{}
	for _, t := range old.Tables {
		was[t.Name] = t
	}
	for _, t := range now.Tables {
		o, ok := was[t.Name]
		if !ok {
			if t.Session != "" && old.Slots > 0 {
				return refuse(fmt.Sprintf("table %q", t.Name), "none", tableSummary(&t)) // sessions that are open have no row in it
			}
			continue
		}
		if found, want := tableSummary(&o)+sessionSummary(&old.Desc, &o), tableSummary(&t)+sessionSummary(&now.Desc, &t); found != want {
			return refuse(fmt.Sprintf("table %q", t.Name), found, want)
		}
	}
	if old.Slots > 0 {
		switch {
		case old.Slots != now.Slots:
			return refuse("the array of sessions", fmt.Sprint(old.Slots, " entries"), fmt.Sprint(now.Slots, " entries"))
		case old.Usages != now.Usages:
			return refuse("the counters of sessions", fmt.Sprint(old.Usages, " rows"), fmt.Sprint(now.Usages, " rows"))
		}
	}
	if old.Shared > 0 && old.Shared != now.Shared {
		return refuse("the array of shared counters", fmt.Sprint(old.Shared, " entries"), fmt.Sprint(now.Shared, " entries"))
	}
	return p.compareFanOut(old, now, refuse)
}

// compareFanOut finds what can't be adopted of groups, credits, translations and events. What the old relay had none of
// starts afresh.
func (p *pins) compareFanOut(old, now *abi.Layout, refuse func(what string, found, want any) error) error {
	if old.Receivers > 0 {
		summaries := func(l *abi.Layout) (names []string, text map[string]string) {
			text = map[string]string{}
			for _, g := range l.Groups {
				names = append(names, g.Name)
				text[g.Name] = groupSummary(&g)
			}
			return names, text
		}
		was, found := summaries(old)
		is, want := summaries(now)
		for _, name := range append(was, is...) {
			if found[name] != want[name] {
				return refuse(fmt.Sprintf("group %q", name), orNone(found[name]), orNone(want[name]))
			}
		}
	}
	if old.Ring > 0 {
		for i := range max(len(old.Events), len(now.Events)) {
			found, want := eventSummary(old, i), eventSummary(now, i)
			if found != want {
				return refuse("the ring's events", orNone(found), orNone(want))
			}
		}
	}
	entries := func(n int) string { return fmt.Sprint(n, " entries") }
	for _, s := range []struct {
		what       string
		found, now int
	}{
		{"the array of receivers", old.Receivers, now.Receivers},
		{"the array of credits", old.Credits, now.Credits},
		{"the table of translations", old.Translations, now.Translations},
		{"the ring of events", old.Ring, now.Ring},
	} {
		if s.found > 0 && s.found != s.now {
			return refuse(s.what, entries(s.found), entries(s.now))
		}
	}
	if old.Credits > 0 && max(old.Levels, 1) != max(now.Levels, 1) {
		return refuse("priority", fmt.Sprint(old.Levels, " levels"), fmt.Sprint(now.Levels, " levels"))
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func eventSummary(l *abi.Layout, i int) string {
	if i >= len(l.Events) {
		return ""
	}
	e := l.Events[i]
	return fmt.Sprintf("%s:%s (%d bytes)", e.Name, summarize(e.Fields), e.Size)
}

// summary names everything that matters about a group's layout.
func groupSummary(g *abi.Group) string {
	return fmt.Sprintf("%d groups of %d, %d receivers from %d on:%s (%d bytes) ->%s (%d bytes)",
		g.Size, g.Max, g.Rows, g.Base, summarize(g.Key), g.KeySize, summarize(g.Receiver), g.ReceiverSize)
}

func summarize(members []abi.Member) string {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, " %s %s@%d+%d", m.Name, m.Kind, m.Off, m.Size)
		if m.Kind == abi.KindCredit || m.Kind == abi.KindBucket {
			fmt.Fprintf(&b, "*%d", m.Bits)
		}
	}
	return b.String()
}

func sessionSummary(d *abi.Desc, t *abi.Table) string {
	s := d.SessionOf(t)
	if s == nil {
		return ""
	}
	var fields []string
	for _, f := range s.Fields {
		fields = append(fields, fmt.Sprint(f.Name, ":", f.Kind, ":", f.Size))
	}
	return fmt.Sprintf(", rows of session %s (%s)", s.Name, strings.Join(fields, " "))
}

// summary names everything that matters about a table's layout.
func tableSummary(t *abi.Table) string {
	var b strings.Builder
	b.WriteString(t.Kind.String())
	if t.PerCPU {
		b.WriteString(" per processor")
	}
	fmt.Fprintf(&b, " of %d:", t.Size)
	fmt.Fprintf(&b, "%s (%d bytes) ->%s (%d bytes)", summarize(t.Key), t.KeySize, summarize(t.Value), t.ValueSize)
	return b.String()
}

func (p *pins) readLayout() (*abi.Layout, error) {
	m, err := ebpf.LoadPinnedMap(p.live(abi.PinnedLayout), nil)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	if err != nil {
		return nil, err
	}
	return abi.ReadLayout(text)
}

// writeLayout pins the layout of desc at path.
func writeLayout(desc *abi.Desc, path string) error {
	text, err := desc.Marshal()
	if err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "fr_layout", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(uint32(0), text); err != nil {
		return err
	}
	return m.Pin(path)
}

// create pins a new relay's maps, all at once.
func (p *pins) create(desc *abi.Desc, maps map[string]*ebpf.Map) error {
	fresh := filepath.Join(p.path, "new")
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	for name, m := range maps {
		if abi.Pinned(name) {
			if err := pinCopy(m, filepath.Join(fresh, name)); err != nil {
				return err
			}
		}
	}
	if err := writeLayout(desc, filepath.Join(fresh, abi.PinnedLayout)); err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(p.path, "live")); err != nil {
		return err
	}
	p.old = layoutOf(desc)
	return nil
}

// pinCopy pins a map without tying it to a path that will be renamed.
func pinCopy(m *ebpf.Map, path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(path)
}

// renew pins what is new in desc among the adopted maps, each by one rename.
func (p *pins) renew(desc *abi.Desc, maps map[string]*ebpf.Map) error {
	for name, m := range maps {
		if !abi.Pinned(name) || p.keeps(name, desc) {
			continue
		}
		if err := os.RemoveAll(p.live("next_" + name)); err != nil {
			return err
		}
		if err := pinCopy(m, p.live("next_"+name)); err != nil {
			return err
		}
		if err := os.Rename(p.live("next_"+name), p.live(name)); err != nil {
			return err
		}
	}
	return nil
}

// settle makes desc the layout of what is pinned, and drops what it has no use for.
func (p *pins) settle(desc *abi.Desc, maps map[string]*ebpf.Map) error {
	if err := os.RemoveAll(p.live("next_" + abi.PinnedLayout)); err != nil {
		return err
	}
	if err := writeLayout(desc, p.live("next_"+abi.PinnedLayout)); err != nil {
		return err
	}
	if err := os.Rename(p.live("next_"+abi.PinnedLayout), p.live(abi.PinnedLayout)); err != nil {
		return err
	}
	p.old = layoutOf(desc)
	entries, err := os.ReadDir(p.live(""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if maps[e.Name()] == nil && (abi.Pinned(e.Name()) || strings.HasPrefix(e.Name(), "next_")) {
			if err := os.Remove(p.live(e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

const linkPrefix = "link_"

func (p *pins) linkPath(a *attachment) string {
	return p.live(fmt.Sprintf("%s%s_%d", linkPrefix, a.program, a.index))
}

func (p *pins) addLink(a *attachment) error {
	// A link of a device that is gone, and whose index another one has now.
	if err := os.Remove(p.linkPath(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return a.link.Pin(p.linkPath(a))
}

func (p *pins) dropLink(a *attachment) error {
	if err := os.Remove(p.linkPath(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remove takes all pins away, and lets go of the folder.
func (p *pins) remove() error {
	fresh := filepath.Join(p.path, "new")
	err := os.Rename(filepath.Join(p.path, "live"), fresh)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(fresh)
	}
	return errors.Join(err, os.Remove(p.path), p.release())
}

// release lets go of the folder, and leaves the pins.
func (p *pins) release() error { return p.lock.Close() }

// abandon lets go of the folder after a failed Load, which must not leave an empty one.
func (p *pins) abandon() {
	os.RemoveAll(filepath.Join(p.path, "new"))
	os.Remove(p.path) // fails where something was pinned before
	p.lock.Close()
}
