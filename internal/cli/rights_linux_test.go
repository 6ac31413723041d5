package cli_test

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// restricted runs a relay for a moment in a process with less than root has. It works, or what is missing is named.
func restricted(t *testing.T, what string, line *testnet.Line, limits string, attr *syscall.SysProcAttr,
	names ...string) bool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../gen/bpf/testdata/echo/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rights") // unlike t.TempDir, others may be let in
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program, spec := filepath.Join(dir, "fastrelay-gen"), filepath.Join(dir, "spec.cue")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(spec, text, 0o644), os.Symlink(self, program))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{program, "run", spec, "--attach", "back=" + line.RelayIn.Name, "--duration", "1ms"}
	if limits != "" {
		args = append([]string{"/bin/sh", "-c", limits + ` && exec "$0" "$@"`}, args...)
	} else {
		args[0] = "/proc/self/exe" // the folder of the test may be closed to others
	}
	cmd := exec.Command(args[0], args[1:]...)
	if limits == "" {
		cmd.Args[0] = "fastrelay-gen"
	}
	// Objects that are kept by others aren't for this process to write.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FASTRELAY_OBJECTS=") && attr != nil
	}), "HOME=/")
	cmd.SysProcAttr = attr
	var out []byte
	err = line.Relay.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	for _, wrong := range []string{"fault of fastrelay-gen", "lacks a feature", "goroutine ", "clang here"} {
		if strings.Contains(string(out), wrong) {
			t.Errorf("%s: it says %q:\n%.2000s", what, wrong, out)
		}
	}
	if err == nil {
		return true
	}
	for _, name := range names {
		if !strings.Contains(string(out), name) {
			t.Errorf("%s: %v; it doesn't say %q:\n%.2000s", what, err, name, out)
		}
	}
	return false
}

// For each capability that is missing, the message names it and no other, and how to give it.
func TestCapabilities(t *testing.T) {
	needs.Root(t)
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	all := []struct {
		bit  uintptr
		name string
	}{{unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_PERFMON, "CAP_PERFMON"}}
	for without := range 1 << len(all) {
		if bits.OnesCount(uint(without)) > needs.Of(1, len(all)) {
			continue
		}
		attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var lacking []string
		for i, c := range all {
			if without&(1<<i) != 0 {
				lacking = append(lacking, c.name)
			} else {
				attr.AmbientCaps = append(attr.AmbientCaps, c.bit)
			}
		}
		what := "without " + strings.Join(lacking, ", ")
		works := restricted(t, what, line, "", attr, "lacks "+strings.Join(lacking, ", ")+";", "setcap ",
			"AmbientCapabilities=")
		if works != (without == 0) {
			t.Errorf("%s: works: %v", what, works)
		}
	}
}

// In a user namespace no capability helps. The kernel makes none for a process in a chroot, such as that of make fresh.
func TestUserNamespace(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	namespace := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	if restricted(t, "in a user namespace", line, "", namespace, "user namespace") {
		t.Error("it works in a user namespace")
	}
}

// With any limit of open files, a relay works, or the message names the limit. Below 8 there is no program to say so:
// the protobuf package, which CUE needs, opens a file before main.
func TestOpenFiles(t *testing.T) {
	needs.Root(t)
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	const enough = 128
	limits := []int{8, 9, 10, 12, 16, 20, 24, 32, 48, 64}
	if needs.Of(1, 2) == 2 {
		limits = limits[:0]
		for n := 8; n < enough; n++ {
			limits = append(limits, n)
		}
	}
	for _, n := range append(limits, enough) {
		what := fmt.Sprintf("ulimit -n %d", n)
		works := restricted(t, what, line, what, nil, fmt.Sprintf("no more than %d files open (RLIMIT_NOFILE)", n),
			"ulimit -n 1024", "LimitNOFILE=")
		if n == enough && !works {
			t.Error(what + " isn't enough")
		}
	}
	if !restricted(t, "ulimit -l 0", line, "ulimit -l 0", nil, "RLIMIT_MEMLOCK") {
		t.Error("it doesn't work with ulimit -l 0, which newer kernels have no use for")
	}
}
