package pins

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds the pins.
var ErrLocked = errors.New("in use by another process")

// How long the lock of the folder is waited for. A process that was killed holds its lock until the kernel has taken
// down its memory.
const (
	lockPatience = 500 * time.Millisecond // of a holder that lives: it may be closing
	lockDying    = 5 * time.Second        // of one that is dying
	lockLook     = time.Millisecond
)

// lockFolder locks an open folder, and waits for a predecessor that is ending. It asks again and again: the kernel
// announces a free lock only to a process that waits in flock, and a Go program can't give up that call when the time
// is over (closing the file doesn't end it). A thread would stay in it, and take the lock from the next one later.
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

// findHolder finds the process that has locked a file; nil if the kernel doesn't show it.
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

// dying reports whether the process is being taken down.
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
