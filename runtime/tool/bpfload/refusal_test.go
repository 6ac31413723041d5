package bpfload

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
)

// What is named is what is in the way, and how to mend it; a program's own mistakes are none of a process's.
func TestExplain(t *testing.T) {
	perfmon, all := []string{"CAP_PERFMON"}, []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}
	rejected := &ebpf.VerifierError{Cause: syscall.EACCES, Log: []string{"R3 partial copy of pointer"}}
	helper := &ebpf.VerifierError{
		Cause: syscall.EINVAL, Log: []string{"program of this type cannot use helper bpf_probe_read_kernel#113"},
	}
	for _, tt := range []struct {
		process process
		err     error
		says    []string // nil: there is nothing to say
	}{
		{process{}, syscall.EMFILE, []string{"RLIMIT_NOFILE", "ulimit -n", "LimitNOFILE="}},
		{process{lacking: all}, syscall.EMFILE, []string{"RLIMIT_NOFILE"}},
		{process{}, syscall.ENFILE, []string{"fs.file-max"}},
		{process{lacking: perfmon}, rejected, []string{"lacks CAP_PERFMON;", "setcap", "AmbientCapabilities="}},
		{process{}, rejected, nil},
		{process{lacking: all}, syscall.EPERM, []string{"lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON;"}},
		{process{lacking: all}, ebpf.ErrNotSupported, []string{"lacks CAP_BPF"}},
		{process{}, ebpf.ErrNotSupported, nil},
		{process{}, syscall.EINVAL, nil},
		{process{lacking: all}, syscall.EINVAL, nil},
		{process{locked: 65536}, fmt.Errorf("failed to set memlock rlimit: %w", syscall.EPERM),
			[]string{"65536 bytes", "RLIMIT_MEMLOCK", "ulimit -l unlimited", "LimitMEMLOCK=", "CAP_SYS_RESOURCE"}},
		{process{userns: true}, syscall.EPERM, []string{"user namespace"}},
		{process{}, syscall.EPERM, []string{"seccomp", "security module"}},
		{process{lockdown: "integrity"}, syscall.EPERM, []string{"lockdown is integrity"}},
		{process{lockdown: "confidentiality"}, helper, []string{"lockdown is confidentiality", "boot with"}},
		{process{lockdown: "integrity"}, helper, nil},
	} {
		if full := Full(tt.err); full != nil {
			check(t, tt.err, full, tt.says)
		} else {
			check(t, tt.err, tt.process.explain(fmt.Errorf("load: %w", tt.err)), tt.says)
		}
	}
}

func check(t *testing.T, err error, got *Refusal, says []string) {
	t.Helper()
	if says == nil {
		if got != nil {
			t.Errorf("%v: %v", err, got)
		}
		return
	}
	if got == nil {
		t.Errorf("%v isn't explained; wanted %q", err, says)
		return
	}
	for _, text := range says {
		if !strings.Contains(got.Error(), text) {
			t.Errorf("%v: %v: it doesn't say %q", err, got, text)
		}
	}
	var verifier *ebpf.VerifierError
	if errors.As(got, &verifier) {
		t.Errorf("%v: it is still the verifier's, whose errors are reported as mistakes of the program", got)
	}
}
