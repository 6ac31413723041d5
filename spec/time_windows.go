package spec

import (
	"syscall"
	"time"
)

// cpuTime is the CPU time of the process, on all processors together.
func cpuTime() time.Duration {
	var created, ended, kernel, user syscall.Filetime
	process, err := syscall.GetCurrentProcess()
	if err == nil {
		err = syscall.GetProcessTimes(process, &created, &ended, &kernel, &user)
	}
	if err != nil {
		return 0
	}
	return span(kernel) + span(user)
}

// span is a FILETIME that is a length of time: 100 nanoseconds each.
func span(t syscall.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
