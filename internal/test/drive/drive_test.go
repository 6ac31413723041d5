//go:build linux

package drive_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/test/drive"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const root = "../../.."

// Generated Go of every golden spec and every example does what it says.
func TestGolden(t *testing.T) {
	here := newHost(t)
	set := newSet(t)
	for _, pattern := range []string{"golden/*/spec.cue", "examples/*/spec.cue", "bench/fanout/*/spec.cue"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			name, err := filepath.Rel(root, filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			if err := add(t, set, name, file); err != nil {
				t.Fatal(name, err)
			}
		}
	}
	run(t, here, set)
}

// Likewise of random specs.
func TestRandom(t *testing.T) {
	needs.All(t)
	here := newHost(t)
	set := newSet(t)
	dir := t.TempDir()
	for seed := needs.Seed(t); set.Len() < 200; seed++ {
		_, plan, compiled := specgen.Plan(specgen.Generate(seed))
		if plan == nil {
			continue
		}
		file := filepath.Join(dir, fmt.Sprintf("seed%d.cue", seed))
		if err := os.WriteFile(file, compiled.Source, 0o600); err != nil {
			t.Fatal(err)
		}
		var known *diag.Diagnostic
		err := add(t, set, fmt.Sprintf("seed %d", seed), file)
		if err != nil && !(errors.As(err, &known) && known.Code == tooDeep) {
			t.Fatal(seed, err)
		}
	}
	run(t, here, set)
}

func newSet(t *testing.T) *drive.Set {
	t.Helper()
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return drive.NewSet(t.TempDir(), here)
}

// tooDeep says that a program needs more stack than it has, which is known when clang has compiled it.
const tooDeep = "FR0904"

// add adds a spec to a set.
func add(t *testing.T, set *drive.Set, name, file string) error {
	t.Helper()
	r, list, err := build.Spec(t.Context(), file, build.Options{})
	if err == nil {
		err = list.Err()
	}
	if err == nil {
		err = set.Add(name, r)
	}
	return err
}

// newHost makes the host that programs run on, from where everything has a next hop: first of all, as it needs rights.
func newHost(t *testing.T) *testnet.Host {
	t.Helper()
	needs.Root(t)
	net := testnet.Start(t)
	here, err1 := net.Host("relay")
	far, err2 := net.Host("far")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	in, _, err := net.Join(here, "in0", far, "out0")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		in.AddAddr("192.0.2.1/24"), in.AddRoute("0.0.0.0/0", "192.0.2.254"),
		in.AddAddr("2001:db8:ffff::1/64"), in.AddRoute("::/0", "2001:db8:ffff::254"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return here
}

// run runs the program of a set on a host.
func run(t *testing.T, here *testnet.Host, set *drive.Set) {
	t.Helper()
	program, err := set.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pins := fmt.Sprintf("/sys/fs/bpf/fastrelay_drive_%d", os.Getpid())
	t.Cleanup(func() {
		if err := os.RemoveAll(pins); err != nil {
			t.Error(err)
		}
	})
	job, err := set.Job(pins, "in0")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, job)
	if err := here.Do(func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%d packages: %v, %v in the kernel", set.Len(), cmd.ProcessState.UserTime(), cmd.ProcessState.SystemTime())
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
