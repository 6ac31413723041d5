package bpfload

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Lacking returns the capabilities that this thread lacks for loading and attaching programs.
func Lacking() (names []string) {
	bits := []int{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON}
	for i, bit := range bits {
		// CAP_SYS_ADMIN covers those that were split from it, but netlink wants CAP_NET_ADMIN.
		if !Has(bit) && (bit == unix.CAP_NET_ADMIN || !Has(unix.CAP_SYS_ADMIN)) {
			names = append(names, allCapabilities[i])
		}
	}
	return names
}

// Has reports whether this thread has a capability.
func Has(bit int) bool {
	var sets [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]) != nil {
		return true // not known, so not blamed
	}
	return sets[bit/32].Effective&(1<<(bit%32)) != 0
}

// Room returns a [*Refusal] if this process can't open that many more files.
func Room(files int) error {
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	for err == nil && len(open) < files {
		open = append(open, fd)
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		open = append(open, fd)
	}
	full := Full(err)
	if full == nil {
		return nil // who opens a file will say what is wrong
	}
	if errors.Is(err, unix.EMFILE) {
		full.Cause += fmt.Sprintf(", and is about to open up to %d more", files)
	}
	return full
}

func fileLimit() uint64 {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it can't fail
	return limit.Cur
}

func self() process {
	p := process{lacking: Lacking()}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		p.locked = limit.Cur
	}
	if text, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		p.userns = !slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
	}
	p.lockdown = Lockdown()
	return p
}

var lockdownPattern = regexp.MustCompile(`\[(integrity|confidentiality)\]`)

// Lockdown returns integrity or confidentiality, or "" if the kernel isn't locked down, or doesn't say so.
func Lockdown() string {
	text, _ := os.ReadFile("/sys/kernel/security/lockdown")
	if m := lockdownPattern.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}
