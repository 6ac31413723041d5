package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

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
