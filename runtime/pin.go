package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
)

// openPins opens the folder of pins.
func openPins(path string) (*pins.Pins, error) {
	if err := checkBPFFS(path); err != nil {
		return nil, err
	}
	p, err := pins.Open(path)
	return p, pinsError(err)
}

// pinsError returns an error of package pins as one of this package.
func pinsError(err error) error {
	switch e := err.(type) {
	case *pins.LayoutError:
		return (*LayoutError)(e)
	case *pins.FolderError:
		return (*FolderError)(e)
	}
	return err
}

// checkBPFFS says what to do if path can't hold pins.
func checkBPFFS(path string) error {
	if !filepath.IsAbs(path) || strings.Contains(filepath.Base(path), ".") {
		return fmt.Errorf("PinPath %q must be absolute, and its name can't have a dot in it", path)
	}
	dir := path
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		// What can't be entered is pins' to explain: EACCES, too, if fs.protected_symlinks doesn't let root follow a
		// link of another user's in a sticky folder.
		if (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES)) && dir != filepath.Dir(dir) {
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

// Remove takes away what a relay whose process is dead has left at its PinPath: attachments, the name of a congestion
// control, and the maps with its sessions. It says in words what that was. Filters of clsact are found in the network
// namespace of the caller. The error wraps [ErrNotFound] if there is nothing, and [ErrLocked] if a process has
// the relay.
func Remove(path string) (removed []string, err error) {
	if err := checkBPFFS(path); err != nil {
		return nil, err
	}
	if !pins.Held(path) {
		return nil, fmt.Errorf("no relay is pinned at %s: %w", path, ErrNotFound)
	}
	p, err := openPins(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Abandon()
		}
	}()
	lease, err := p.Lease()
	if err != nil {
		return nil, err
	}
	if lease != nil {
		defer lease.Close()
		for l, err := range p.Links() {
			if err != nil {
				return nil, err
			}
			what := "program " + l.Program + " is"
			if strings.HasPrefix(l.Program, pinMark) {
				what = "what runs at XDP is"
			}
			removed = append(removed, fmt.Sprintf("%s detached from %s", what, placeOf(l)))
			defer l.Close() // that is what detaches, since by then the pin is gone; the kernel lets a pin go later
		}
		err := eachFilter(lease, func(l netlink.Link, f *netlink.BpfFilter, _ bool) error {
			removed = append(removed, fmt.Sprintf("filter %s is removed from %s", f.Name, l.Attrs().Name))
			return gone(netlink.FilterDel(f))
		})
		if err != nil {
			return nil, err
		}
		registered, err := p.Registered()
		if err != nil {
			return nil, err
		}
		if registered != nil {
			registered.Close()
			removed = append(removed, "its congestion control isn't registered any more")
		}
	}
	return append(removed, "what was pinned at "+path+" is removed"), p.Remove()
}

// placeOf names the interface of a link. Its index may be that of another interface in this network namespace.
func placeOf(l *pins.Link) string {
	index := 0
	here := func(netlink.Link) bool { return false }
	info, err := l.Info()
	switch {
	case err != nil:
	case info.TCX() != nil:
		index = int(info.TCX().Ifindex)
		here = func(netlink.Link) bool {
			at := link.QueryOptions{Target: index, Attach: ebpf.AttachType(info.TCX().AttachType)}
			all, err := link.QueryPrograms(at)
			return err == nil && slices.ContainsFunc(all.Programs, func(p link.AttachedProgram) bool {
				id, ok := p.LinkID()
				return ok && id == info.ID
			})
		}
	case info.XDP() != nil:
		index = int(info.XDP().Ifindex)
		here = func(dev netlink.Link) bool {
			x := dev.Attrs().Xdp
			return x != nil && x.Attached && ebpf.ProgramID(x.ProgId) == info.Program
		}
	}
	if index == 0 {
		return "an interface that is gone"
	}
	if dev, err := netlink.LinkByIndex(index); err == nil && here(dev) {
		return dev.Attrs().Name
	}
	return fmt.Sprintf("interface %d of another network namespace", index)
}
