package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever may write to a folder of pins, or to one above it, decides what a successor adopts, and whoever may read it
// can hold its lock. So the whole way to the folder has to be in the hands of root or of the caller: each folder on
// it is theirs, and can't be written by others unless it is sticky, as /tmp is; there, nobody can rename or remove
// what is somebody else's. What passes this check can't be changed by others afterwards.

// checkFolder checks the way to the folder of pins, as far as it exists. Symbolic links on it have to be trusted as
// folders have to, and what they lead to as well; the folder itself can't be one.
func checkFolder(path string) error {
	return checkWay(path, path, 0)
}

func checkWay(pins, path string, links int) error {
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
				return &FolderError{Path: pins, Cause: "it is a symbolic link", Fix: "give the folder itself as PinPath"}
			}
			if err := checkOwner(pins, at, "the symbolic link", info); err != nil {
				return err
			}
			to, err := os.Readlink(at)
			if err != nil {
				return fmt.Errorf("look at %s: %w", at, err)
			}
			if links++; links > 40 {
				return fmt.Errorf("look at %s: %w", at, unix.ELOOP)
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			return checkWay(pins, filepath.Join(append([]string{to}, parts[i:]...)...), links)
		}
		if !info.IsDir() {
			return &FolderError{Path: pins, Cause: at + " is no folder", Fix: "remove it, or choose another PinPath"}
		}
		if err := checkOwner(pins, at, "the folder", info); err != nil {
			return err
		}
		// The folder itself holds names that only its owner makes.
		sticky := info.Mode()&fs.ModeSticky != 0 && !last
		if mode := info.Mode().Perm(); mode&0o022 != 0 && !sticky {
			who := "everybody"
			if mode&0o002 == 0 {
				who = fmt.Sprintf("group %s", groupName(info.Sys().(*syscall.Stat_t).Gid))
			}
			return &FolderError{Path: pins, Cause: fmt.Sprintf("%s may be written by %s (mode %04o)", at, who, mode),
				Fix: fmt.Sprintf("chmod go-w %s, if nobody else has put anything there, or choose another PinPath", at)}
		}
		if last {
			return nil
		}
		at = filepath.Join(at, parts[i])
	}
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

// How long the lock of the folder is waited for. A process that was killed holds its lock until the kernel has taken
// down its memory.
const (
	lockPatience = 500 * time.Millisecond // of a holder that lives: it may be closing
	lockDying    = 5 * time.Second        // of one that is dying
	lockLook     = time.Millisecond
)

// lockFolder locks an open folder, and waits for a predecessor that is on its way out. The kernel announces no free
// lock to somebody who doesn't wait for it in a system call, so it is asked.
func lockFolder(folder *os.File) error {
	var holder *lockHolder
	for began := time.Now(); ; time.Sleep(lockLook) {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		waited := time.Since(began)
		if waited < lockPatience {
			continue
		}
		if holder = findHolder(folder); waited < lockDying && holder != nil && holder.dying() {
			continue
		}
		if holder == nil {
			return ErrLocked
		}
		return fmt.Errorf("%w: %v", ErrLocked, holder)
	}
}

// lockHolder is a process that holds a lock.
type lockHolder struct {
	pid  int
	name string
	uid  uint32
}

func (h *lockHolder) String() string {
	return fmt.Sprintf("process %d (%s) of user %s", h.pid, h.name, userName(h.uid))
}

// findHolder finds the process that has locked a file; nil where the kernel doesn't show it.
func findHolder(file *os.File) *lockHolder {
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	st := info.Sys().(*syscall.Stat_t)
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer locks.Close()
	// "3: FLOCK  ADVISORY  WRITE 4711 00:1b:29 0 EOF"
	for s := bufio.NewScanner(locks); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != want {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			continue
		}
		h := &lockHolder{pid: pid, name: "?"}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			h.name = strings.TrimSpace(string(name))
		}
		if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			h.uid = info.Sys().(*syscall.Stat_t).Uid
		}
		return h
	}
	return nil
}

// dying says whether the process is being taken down.
func (h *lockHolder) dying() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// The second field is the program's name in parentheses and may hold anything, so count from its end.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 7 {
		return false
	}
	flags, _ := strconv.ParseUint(f[6], 10, 64)
	const exiting, signaled = 0x4, 0x400 // PF_EXITING, PF_SIGNALED
	return f[0] == "Z" || f[0] == "X" || flags&(exiting|signaled) != 0
}
