package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// namePrefix marks the namespaces of this package. The rest of a name is the process's ID and start time, the
// number of the network in that process, and the host.
const namePrefix = "frnet-"

// runDir is where iproute2 keeps named namespaces, so that `ip netns exec` finds ours.
const runDir = "/run/netns"

var networks atomic.Int64

// Net is a set of hosts that live and die together.
type Net struct {
	prefix string
	closed chan struct{}

	mu    sync.Mutex
	hosts []*Host
}

// ErrNotRoot is returned if the right to make namespaces is missing.
var ErrNotRoot = errors.New("network namespaces need root: run this with sudo")

// New makes an empty network, after removing what killed processes left.
func New() (*Net, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := shareRunDir(); err != nil {
		return nil, err
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	self, err := processID(os.Getpid())
	if err != nil {
		return nil, err
	}
	return &Net{prefix: fmt.Sprintf("%s%s-%d-", namePrefix, self, networks.Add(1)), closed: make(chan struct{})}, nil
}

// shareRunDir makes the folder a mount whose mounts come and go in all mount namespaces, as `ip netns add` does if
// it isn't one yet: done later, by another program, it would cover the mounts of our namespaces, which nothing can
// remove then. The lock is the one that iproute2 takes.
func shareRunDir() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	share := func() error { return unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err := share(); !errors.Is(err, unix.EINVAL) { // nil, or why not; EINVAL: it isn't a mount
		return err
	}
	if err := unix.Mount(runDir, runDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return share()
}

// Close ends all hosts: their programs are killed, their devices vanish. It may be called twice.
func (n *Net) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.closed:
	default:
		close(n.closed)
	}
	var errs []error
	for _, h := range n.hosts {
		errs = append(errs, h.close())
	}
	n.hosts = nil
	return errors.Join(errs...)
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
	Cleanup(func())
}

// Start makes a network for a test and closes it when the test ends.
func Start(t TB) *Net {
	t.Helper()
	n, err := New()
	if err != nil {
		t.Fatal("testnet: ", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("testnet: %v", err)
		}
	})
	return n
}

// sweep removes the namespaces of processes that no longer run.
func sweep() error {
	entries, err := os.ReadDir(runDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), namePrefix)
		maker, _, ok := strings.Cut(rest, "-")
		if !ours || !ok || running(maker) {
			continue
		}
		if err := removeNamespace(e.Name()); err != nil {
			return fmt.Errorf("removing the stale namespace %s: %w", e.Name(), err)
		}
	}
	return nil
}

// processID names a process such that a later one with the same number has another name: its number and its start time
// in clock ticks since boot (proc_pid_stat(5), field 22).
func processID(pid int) (string, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	// The second field is the program's name in parentheses and may hold anything, so count from its end.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const start = 22 - 3
	if len(fields) <= start {
		return "", fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields)+2)
	}
	return fmt.Sprintf("%d.%s", pid, fields[start]), nil
}

func running(id string) bool {
	number, _, _ := strings.Cut(id, ".")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return false
	}
	now, err := processID(pid)
	return err == nil && now == id
}

// removeNamespace kills what runs in a namespace, unmounts it and removes its name.
func removeNamespace(name string) error {
	path := filepath.Join(runDir, name)
	if err := killInside(path); err != nil {
		return err
	}
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// killInside kills the processes that live in the namespace at path. Each is in it from its first thread on; this
// process, which only visits with some of its threads, is not.
func killInside(path string) error {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var of unix.Stat_t
		if err := unix.Stat(filepath.Join("/proc", p.Name(), "ns/net"), &of); err != nil {
			continue // it has ended meanwhile
		}
		if of.Dev == ns.Dev && of.Ino == ns.Ino {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}
