// Package pins keeps a relay's maps and links in a folder of a BPF file system, so that another process can go on with
// them. It checks that no other user could have changed what is there, and that its layout is the expected one.
package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Pins is the folder in a BPF file system where a relay outlives its process:
//
//	PATH/live/fr_lease, …, tbl_T    the maps that a successor goes on with
//	PATH/live/layout                what is in them: an array whose only value is the layout, in JSON
//	PATH/live/link_PROGRAM_IFINDEX  TCX links
//	PATH/live/link_@HOOK_IFINDEX    links at XDP
//	PATH/live/drops                 a folder of package xdpdrops: what counts frames that are dropped after XDP
//	PATH/live/registered            the link by which a congestion control is registered
//	PATH/new                        what is being made; whoever finds it removes it
//
// live appears and disappears by one rename, so it is whole whenever it is there. A lock on PATH, which the kernel
// takes back from a process that dies, keeps two processes apart.
type Pins struct {
	path    string
	lock    *os.File
	old     *abi.Layout          // what live holds; nil: nothing
	smaller map[string]*ebpf.Map // see Maps
}

func (p *Pins) live(name string) string { return filepath.Join(p.path, "live", name) }

// Open locks the folder, which it makes if there is none. The error is a *FolderError if others than root and the
// caller could change what is there, and wraps ErrLocked if another process has the lock.
func Open(path string) (*Pins, error) {
	path = filepath.Clean(path)
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder for pins: %w", err)
		}
		// Another user may have been faster in a folder where all may make one.
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
				return nil, fmt.Errorf("the relay pinned at %s is %w; stop it first, or choose another PinPath",
					path, err)
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
		p := &Pins{path: path, lock: lock}
		// What another user put there while the folder was open to them isn't ours.
		if info, err := os.Lstat(p.live("")); err == nil {
			if err := checkOwner(path, p.live(""), "the folder", info); err != nil {
				lock.Close()
				return nil, err
			}
		}
		if err := os.RemoveAll(filepath.Join(path, "new")); err != nil {
			p.Abandon()
			return nil, fmt.Errorf("remove what a process left unfinished: %w", err)
		}
		return p, nil
	}
}

func layoutOf(d *abi.Desc) *abi.Layout { return &abi.Layout{Version: abi.Version, Desc: *d} }

// Maps opens the maps that are pinned and fit desc. It returns none if nothing is pinned, and a *LayoutError if
// something was laid out otherwise. A table that is new in desc, and counters that are for people only and have other
// names now, are left out, and start afresh. If it may grow, maps that fit but for having less entries than desc are
// among the smaller ones: their entries are to be copied.
func (p *Pins) Maps(desc *abi.Desc, spec *ebpf.CollectionSpec, grow bool) (found, smaller map[string]*ebpf.Map,
	err error) {
	if _, err := os.Stat(filepath.Join(p.path, "live")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err := p.Check(desc, grow); err != nil {
		return nil, nil, err
	}
	found, p.smaller = map[string]*ebpf.Map{}, map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		if !abi.Pinned(name) || !p.keeps(name, desc) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(p.live(name), nil)
		into := found
		if err == nil {
			ms := ms.Copy()
			if grow && m.MaxEntries() < ms.MaxEntries {
				into, ms.MaxEntries = p.smaller, m.MaxEntries()
			}
			if err = ms.Compatible(m); err != nil {
				m.Close()
			}
		}
		if err != nil {
			all := slices.AppendSeq(slices.Collect(maps.Values(found)), maps.Values(p.smaller))
			for _, m := range all {
				m.Close()
			}
			return nil, nil, fmt.Errorf("open what is pinned at %s: %w", p.live(name), err)
		}
		into[name] = m
	}
	return found, p.smaller, nil
}

// Check reads the layout of what is pinned, and returns a *LayoutError if a relay of another description can't go on
// with it, even if it may grow.
func (p *Pins) Check(desc *abi.Desc, grow bool) (err error) {
	if p.old, err = p.readLayout(); err != nil {
		return fmt.Errorf("read what is pinned at %s: %w", p.path, err)
	}
	now := layoutOf(desc)
	larger := compare(p.path, grown(p.old, now), now)
	if grow {
		return larger
	}
	err = compare(p.path, p.old, now)
	if e, ok := err.(*LayoutError); ok {
		e.Larger = larger == nil
	}
	return err
}

// keeps reports whether the pinned map of that name serves desc as well.
func (p *Pins) keeps(name string, desc *abi.Desc) bool {
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
			names = append(names, fmt.Sprint(p.Name, " ", r.Kind, " ", r.Name, " ", p.XDPBase > 0))
		}
	}
	return names
}

func (p *Pins) readLayout() (*abi.Layout, error) {
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
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "fr_layout", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1,
	})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(uint32(0), text); err != nil {
		return err
	}
	return m.Pin(path)
}

// Create pins a new relay's maps, all at once.
func (p *Pins) Create(desc *abi.Desc, maps map[string]*ebpf.Map) error {
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

// Renew pins what is new in desc among the adopted maps, each by one rename.
func (p *Pins) Renew(desc *abi.Desc, maps map[string]*ebpf.Map) error {
	for name, m := range maps {
		if !abi.Pinned(name) || p.keeps(name, desc) && p.smaller[name] == nil {
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

// Settle makes desc the layout of what is pinned, and drops the maps that it has no use for.
func (p *Pins) Settle(desc *abi.Desc, maps map[string]*ebpf.Map) (dropped []string, err error) {
	if err := os.RemoveAll(p.live("next_" + abi.PinnedLayout)); err != nil {
		return nil, err
	}
	if err := writeLayout(desc, p.live("next_"+abi.PinnedLayout)); err != nil {
		return nil, err
	}
	if err := os.Rename(p.live("next_"+abi.PinnedLayout), p.live(abi.PinnedLayout)); err != nil {
		return nil, err
	}
	p.old = layoutOf(desc)
	entries, err := os.ReadDir(p.live(""))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if maps[e.Name()] == nil && (abi.Pinned(e.Name()) || strings.HasPrefix(e.Name(), "next_")) {
			if err := os.Remove(p.live(e.Name())); err != nil {
				return dropped, err
			}
			dropped = append(dropped, e.Name())
		}
	}
	return dropped, nil
}

// Held reports whether a folder is one of pins: it has some, or is empty, since a process that made it has ended.
func Held(path string) bool {
	entries, err := os.ReadDir(path)
	return err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() != "live" && e.Name() != "new"
	})
}

// Lease opens the map of the relay's lease; nil if nothing is pinned.
func (p *Pins) Lease() (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(p.live(abi.MapLease), nil)
	return m, gone(err)
}

const linkPrefix = "link_"

func (p *Pins) linkPath(program string, index int) string {
	return p.live(fmt.Sprintf("%s%s_%d", linkPrefix, program, index))
}

// AddLink pins the link by which a program is attached to the interface of that index.
func (p *Pins) AddLink(program string, index int, l link.Link) error {
	// A link of a device that is gone, and whose index another one has now.
	if err := p.DropLink(program, index); err != nil {
		return err
	}
	return l.Pin(p.linkPath(program, index))
}

// DropLink removes the pin of a link, if there is one.
func (p *Pins) DropLink(program string, index int) error {
	return gone(os.Remove(p.linkPath(program, index)))
}

// Link is a pinned link.
type Link struct {
	link.Link
	Program string // that it attaches; the kernel may name another
	path    string
}

// Drop closes the link and removes its pin.
func (l *Link) Drop() error { return errors.Join(os.Remove(l.path), l.Close()) }

// Links opens the pinned links one after the other. The caller closes them, or uses them further.
func (p *Pins) Links() iter.Seq2[*Link, error] {
	return func(yield func(*Link, error) bool) {
		entries, err := os.ReadDir(p.live(""))
		if err != nil {
			yield(nil, err)
			return
		}
		for _, e := range entries {
			name, ok := strings.CutPrefix(e.Name(), linkPrefix)
			if !ok {
				continue
			}
			l := &Link{Program: name[:max(0, strings.LastIndexByte(name, '_'))], path: p.live(e.Name())}
			if l.Link, err = link.LoadPinnedLink(l.path, nil); err != nil {
				yield(nil, err)
				return
			}
			if !yield(l, nil) {
				return
			}
		}
	}
}

// Drops is the folder of what counts frames that are dropped after XDP.
func (p *Pins) Drops() string { return p.live("drops") }

func (p *Pins) registeredPath() string { return p.live("registered") }

// AddRegistered pins the link by which a congestion control is registered.
func (p *Pins) AddRegistered(l link.Link) error { return l.Pin(p.registeredPath()) }

// DropRegistered removes the pin of that link, if there is one.
func (p *Pins) DropRegistered() error { return gone(os.Remove(p.registeredPath())) }

// Registered opens that link; nil if there is none.
func (p *Pins) Registered() (link.Link, error) {
	l, err := link.LoadPinnedLink(p.registeredPath(), nil)
	return l, gone(err)
}

// gone is err, unless it says that there is no such file.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove takes all pins away, and lets go of the folder.
func (p *Pins) Remove() error {
	fresh := filepath.Join(p.path, "new")
	err := os.Rename(filepath.Join(p.path, "live"), fresh)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(fresh)
	}
	return errors.Join(err, os.Remove(p.path), p.Release())
}

// Release lets go of the folder, and leaves the pins.
func (p *Pins) Release() error { return p.lock.Close() }

// Abandon lets go of the folder after a failed Load, which must not leave an empty one.
func (p *Pins) Abandon() {
	os.RemoveAll(filepath.Join(p.path, "new"))
	os.Remove(p.path) // fails if something was pinned before
	p.lock.Close()
}
