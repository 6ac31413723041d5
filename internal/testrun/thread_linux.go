package testrun

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Pin ties the calling goroutine to its thread and the thread to one processor, so that per-CPU maps have one writer.
// The function returned undoes both.
func Pin() (func(), error) {
	runtime.LockOSThread()
	var old unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("read the processors of the thread: %w", err)
	}
	for cpu := range 1024 {
		if !old.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			runtime.UnlockOSThread()
			return nil, fmt.Errorf("stay on processor %d: %w", cpu, err)
		}
		break
	}
	return func() {
		if err := unix.SchedSetaffinity(0, &old); err == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}, nil
}

// Now is the monotonic clock in nanoseconds, which programs see as bpf_ktime_get_ns.
func Now() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(t.Nano()), nil
}
