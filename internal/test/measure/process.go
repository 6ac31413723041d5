package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// role is the environment variable that gives a copy of the running program another role.
const role = "FASTRELAY_MEASURE"

// Main lets the program that calls it first of all be started again by NewBusy, to measure a processor. There it
// doesn't return.
func Main() {
	if os.Getenv(role) != "busy" {
		return
	}
	if err := busyMain(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// CPUTime returns the CPU time that a process's threads have used, interrupts that came meanwhile included.
func CPUTime(pid int) (total time.Duration, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		stat, err := os.ReadFile(filepath.Join(dir, t.Name(), "schedstat"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		// The first number is the time on the processor in nanoseconds
		// (Documentation/scheduler/sched-stats.rst).
		first, _, _ := strings.Cut(string(stat), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n)
	}
	return total, nil
}

// Prefer has all threads of a process, and those it starts later, run on one processor, before other work of the
// machine.
func Prefer(pid, cpu int) error {
	const first = -20 // the best of the ordinary priorities (setpriority(2))
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		err = errors.Join(unix.SchedSetaffinity(tid, &set), unix.Setpriority(unix.PRIO_PROCESS, tid, first))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// SetRealTime has all threads of a process, and those it starts later, run before all ordinary work, and with a
// priority above 1 before what Busy measures with. They share the processor in turns (SCHED_RR): Go's sweeper yields in
// a loop until another thread has swept, which with SCHED_FIFO might never run again. Priority 0 makes them ordinary
// again.
func SetRealTime(pid, priority int) error {
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return err
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: uint32(priority)}
	if priority == 0 {
		attr.Policy = unix.SCHED_NORMAL
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
