package bpfload

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
)

// Refusal says why the kernel refuses something to this process, and what to do about it.
type Refusal struct {
	Cause string
	Fix   string
	Err   error
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s; %s (%v)", r.Cause, r.Fix, r.Err) }

func (r *Refusal) Unwrap() error { return r.Err }

// process is what matters of a process and of its kernel.
type process struct {
	lacking  []string // capabilities that loading and attaching need
	userns   bool     // it is in a user namespace of its own: capabilities there don't count for BPF
	lockdown string   // "", integrity or confidentiality
	locked   uint64   // how many bytes it may lock
}

// Explain returns nil if neither this process nor the host is why the kernel refuses to load or attach something.
func Explain(err error) *Refusal {
	if full := Full(err); full != nil {
		return full
	}
	return self().explain(err)
}

// Full is [Explain] for files that can't be opened since there are too many. It opens none.
func Full(err error) *Refusal {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return &Refusal{
			Cause: fmt.Sprintf("this process may have no more than %d files open (RLIMIT_NOFILE)", fileLimit()),
			Fix:   moreFiles, Err: err,
		}
	case errors.Is(err, syscall.ENFILE):
		return &Refusal{
			Cause: "this host has as many files open as it may have (fs.file-max)",
			Fix:   "raise it: sysctl -w fs.file-max=NUMBER", Err: err,
		}
	}
	return nil
}

const moreFiles = "raise the limit: ulimit -n 1024, or LimitNOFILE=1024 in a unit of systemd"

func (p process) explain(err error) *Refusal {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return p.unverified(verifier)
	}
	denied := errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
	switch {
	case len(p.lacking) > 0 && (denied || errors.Is(err, ebpf.ErrNotSupported)): // probes of features were denied
		return p.lacks(err)
	case !denied:
		return nil
	case p.userns:
		return &Refusal{
			Cause: "this process has its capabilities in a user namespace, where they don't count for BPF programs",
			Fix:   "run it outside, as root or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON", Err: err,
		}
	case strings.Contains(err.Error(), "memlock"): // not an error of its own in the library
		return &Refusal{
			Cause: fmt.Sprintf("this kernel counts maps as locked memory, of which this process may have %d bytes "+
				"(RLIMIT_MEMLOCK), and it may not raise this limit", p.locked),
			Fix: "raise the limit: ulimit -l unlimited, or LimitMEMLOCK=infinity in a unit of systemd; or give the " +
				"process CAP_SYS_RESOURCE", Err: err,
		}
	}
	r := &Refusal{
		Cause: "the kernel denies it to this process, which has CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
		Fix: "look for a filter of system calls (seccomp: SystemCallFilter= of systemd, a container's profile), and " +
			"for a security module that denies it (the kernel's log)", Err: err,
	}
	if p.lockdown != "" {
		r.Cause += "; its lockdown is " + p.lockdown
	}
	return r
}

// unverified tells what a process may not do from what a program does wrong. The verifier's error isn't wrapped, since
// it says nothing of the program.
func (p process) unverified(err *ebpf.VerifierError) *Refusal {
	if len(p.lacking) > 0 {
		return p.lacks(err.Cause)
	}
	log := strings.Join(err.Log, "\n")
	if p.lockdown == "confidentiality" && strings.Contains(log, "helper bpf_probe_read_kernel") {
		return &Refusal{
			Cause: "the kernel's lockdown is confidentiality, which takes from programs what reads its memory",
			Fix:   "boot with lockdown=integrity, or without lockdown", Err: err.Cause,
		}
	}
	return nil
}

func (p process) lacks(err error) *Refusal {
	return &Refusal{
		Cause: "this process lacks " + strings.Join(p.lacking, ", "),
		Fix: fmt.Sprintf("run it as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (before Linux 5.8, "+
			"CAP_SYS_ADMIN; before 5.11, CAP_SYS_RESOURCE as well): setcap %s+ep PROGRAM, or AmbientCapabilities=%s "+
			"in a unit of systemd",
			strings.ToLower(strings.Join(allCapabilities, ",")), strings.Join(allCapabilities, " ")),
		Err: err,
	}
}

var allCapabilities = []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}
