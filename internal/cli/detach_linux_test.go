package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Who interrupts `run --detach` before it has returned gets no relay in the background. The process in the background
// reads the spec from a pipe here, and so waits for the test.
func TestDetachInterrupted(t *testing.T) {
	needs.Root(t)
	n := testnet.Start(t)
	host, err := n.Host("relay")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../examples/paths/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	dir, pin := t.TempDir(), fmt.Sprintf("/sys/fs/bpf/detach-%d", os.Getpid())
	spec, socket := filepath.Join(dir, "spec.cue"), filepath.Join(dir, "paths.sock")
	if err := unix.Mkfifo(spec, 0o600); err != nil {
		t.Fatal(err)
	}
	reader := func() *os.File { // waits for one
		f, err := os.OpenFile(spec, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	write := func(f *os.File, mayHaveEnded bool) {
		if _, err := f.Write(text); err != nil && !(mayHaveEnded && errors.Is(err, unix.EPIPE)) {
			t.Fatal(err)
		}
		f.Close()
	}
	var says bytes.Buffer
	command := func(args ...string) *exec.Cmd {
		return &exec.Cmd{
			Path: "/proc/self/exe", Args: append([]string{"fastrelay-gen"}, args...), Stdout: &says, Stderr: &says,
		}
	}
	cmd := command("run", spec, "--attach", "forward=lo", "--control", socket, "--pin", pin, "--detach")
	if err := host.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = command("stop", "--socket", socket).Run()
		}
	})
	write(reader(), false)
	if err := testnet.Until(time.Minute, "the spec is read", func() bool {
		pid := cmd.Process.Pid
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, path := range children {
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
				return true
			}
		}
		return err != nil
	}); err != nil {
		t.Fatal(err)
	}
	background := reader()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	write(background, true)
	err = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(says.String(), "stopped") {
		t.Fatalf("it ended with %v:\n%s", err, &says)
	}
	for _, path := range []string{socket, pin} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind: %v", path, err)
		}
	}
}

// The terminal of a relay in the foreground goes away: it ends as at Ctrl-C, and leaves nothing.
func TestTerminalGoesAway(t *testing.T) {
	needs.Root(t)
	n := testnet.Start(t)
	host, err := n.Host("relay")
	if err != nil {
		t.Fatal(err)
	}
	dir, pin := t.TempDir(), fmt.Sprintf("/sys/fs/bpf/terminal-%d", os.Getpid())
	socket := filepath.Join(dir, "paths.sock")
	var term *terminal
	if err := host.Do(func() error {
		term = onTerminal(t, "run", "../../examples/paths/spec.cue", "--attach", "forward=lo", "--control", socket,
			"--pin", pin)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(pin) })
	if err := testnet.Until(time.Minute, "it is attached", func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		return strings.Contains(term.out.String(), "attached: forward")
	}); err != nil {
		t.Fatal(err)
	}
	if err := term.master.Close(); err != nil {
		t.Fatal(err)
	}
	if err := term.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	for _, path := range []string{socket, socket + ".lock", pin} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind: %v", path, err)
		}
	}
}
