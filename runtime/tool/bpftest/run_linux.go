package bpftest

import (
	"errors"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Run runs a program exactly opts.Repeat times on a packet, in one call, and returns what the last run returned. A
// signal would interrupt the kernel between two runs, and all of them would begin anew; the Go runtime sends signals to
// preempt goroutines, so this thread takes none meanwhile.
func Run(p *ebpf.Program, opts ebpf.RunOptions) (verdict uint32, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, err
	}
	anew := false
	// nolint:staticcheck // deprecated for benchmarks; this is how an interruption shows
	opts.Reset = func() { anew = true }
	verdict, err = p.Run(&opts)
	if back := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); back != nil {
		return 0, back
	}
	if err == nil && anew {
		err = errors.New("the kernel was interrupted: how often the program ran isn't known")
	}
	return verdict, err
}
