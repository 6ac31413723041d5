package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Whoever may write to a folder of pins, or to one above it, decides what a successor adopts, and whoever may read it
// can hold its lock. So the whole path to the folder has to be in the hands of root or of the caller: each folder on
// it is theirs, and can't be written by others unless it is sticky, as /tmp is; there, only the owner of something can
// rename or remove it. What passes this check can't be changed by others afterwards.

// FolderError says why a relay can't be pinned in a folder: others than root and the caller could change what is
// adopted from there.
type FolderError struct {
	Path  string // of the folder
	Cause string // what is wrong, and whose it is
	Fix   string // what to do
}

func (e *FolderError) Error() string {
	return fmt.Sprintf("nothing is pinned at or adopted from %s: %s; %s", e.Path, e.Cause, e.Fix)
}

// checkFolder checks the path of the folder of pins, as far as it exists. Symbolic links on it have to be trusted as
// folders have to, and what they lead to as well; the folder itself can't be one.
func checkFolder(path string) error {
	return checkPath(path, path, 0)
}

// checkPath checks the folders and symbolic links of a path to the folder of pins, after so many links were followed.
func checkPath(pins, path string, links int) error {
	at := "/"
	parts := strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	for i := 0; ; i++ {
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		last := i == len(parts)
		if info.Mode()&fs.ModeSymlink != 0 {
			if last && path == pins {
				return &FolderError{
					Path: pins, Cause: "it is a symbolic link", Fix: "give the folder itself as PinPath",
				}
			}
			to, err := checkLink(pins, at, info)
			if err != nil {
				return err
			}
			if links++; links > 40 {
				return fmt.Errorf("look at %s: %w", at, unix.ELOOP)
			}
			return checkPath(pins, filepath.Join(append([]string{to}, parts[i:]...)...), links)
		}
		if err := checkOneFolder(pins, at, info, last); err != nil || last {
			return err
		}
		at = filepath.Join(at, parts[i])
	}
}

// checkLink checks who may change a symbolic link, and returns what it leads to as an absolute path.
func checkLink(pins, at string, info fs.FileInfo) (to string, err error) {
	if err := checkOwner(pins, at, "the symbolic link", info); err != nil {
		return "", err
	}
	if to, err = os.Readlink(at); err != nil {
		return "", fmt.Errorf("look at %s: %w", at, err)
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(at), to)
	}
	return to, nil
}

// checkOneFolder checks who may change the names in a folder. The last one of a path holds names that only its owner
// makes.
func checkOneFolder(pins, at string, info fs.FileInfo, last bool) error {
	if !info.IsDir() {
		return &FolderError{Path: pins, Cause: at + " is no folder", Fix: "remove it, or choose another PinPath"}
	}
	if err := checkOwner(pins, at, "the folder", info); err != nil {
		return err
	}
	sticky := info.Mode()&fs.ModeSticky != 0 && !last
	mode := info.Mode().Perm()
	if mode&0o022 == 0 || sticky {
		return nil
	}
	who := "all users"
	if mode&0o002 == 0 {
		who = fmt.Sprintf("group %s", groupName(info.Sys().(*syscall.Stat_t).Gid))
	}
	return &FolderError{Path: pins, Cause: fmt.Sprintf("%s may be written by %s (mode %04o)", at, who, mode),
		Fix: fmt.Sprintf("chmod go-w %s, if no other user has changed it, or choose another PinPath", at)}
}

// checkOwner refuses what is neither root's nor the caller's.
func checkOwner(pins, at, what string, info fs.FileInfo) error {
	uid := info.Sys().(*syscall.Stat_t).Uid
	if uid == 0 || int(uid) == os.Geteuid() {
		return nil
	}
	return &FolderError{Path: pins,
		Cause: fmt.Sprintf("%s %s belongs to user %s, who decides what is adopted from there", what, at, userName(uid)),
		Fix:   "remove it, or choose another PinPath; what is pinned there isn't to be trusted"}
}

func userName(uid uint32) string {
	id := strconv.Itoa(int(uid))
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("%s (%s)", u.Username, id)
	}
	return id
}

func groupName(gid uint32) string {
	id := strconv.Itoa(int(gid))
	if g, err := user.LookupGroupId(id); err == nil {
		return fmt.Sprintf("%s (%s)", g.Name, id)
	}
	return id
}
