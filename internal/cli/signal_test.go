//go:build linux

package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// command is the command line, in a folder of its own.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(t.TempDir(), "fastrelay-gen") // by this name, the test's binary is the command line
	if err := os.Symlink(self, tool); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), tool, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	return cmd, dir
}

// statusOf is what a shell would say of a command that was started.
func statusOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func fifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// opened waits until a reader has opened a FIFO.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Every command ends at SIGINT, SIGTERM and SIGHUP, whatever keeps it busy: here it is a spec that never ends.
func TestSignals(t *testing.T) {
	// What nohup has told this process to ignore isn't ignored by those that it starts.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(handled) })
	for _, args := range []string{
		"build SPEC", "vet SPEC", "fmt SPEC", "fmt -w SPEC", "test SPEC", "doc SPEC", "diagram SPEC", "dissector SPEC",
		"explain SPEC", "dump plan SPEC", "dump c SPEC", "api SPEC", "try SPEC capture", "run SPEC --traffic", "lsp",
	} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			t.Run(fmt.Sprint(args, " ", sig), func(t *testing.T) {
				t.Parallel()
				cmd, dir := command(t, strings.Fields(strings.ReplaceAll(args, "SPEC", "spec.cue"))...)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				spec := filepath.Join(dir, "spec.cue")
				fifo(t, spec)
				var in io.WriteCloser
				if args == "lsp" {
					var err error
					if in, err = cmd.StdinPipe(); err != nil {
						t.Fatal(err)
					}
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if in == nil {
					in = opened(t, spec)
					// More than a pipe has room for: it is being read.
				} else if _, err := fmt.Fprintf(in, "Content-Length: %d\r\n\r\n%*c", 1<<18, 1<<17, ' '); err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if got, want := statusOf(t, cmd), 128+int(sig); got != want || out.Len() > 0 {
					t.Errorf("status %d, want %d\n%s", got, want, &out)
				}
				if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
					t.Errorf("%v, %v", files, err)
				}
			})
		}
	}
}

// A build that a signal ends while clang runs ends clang, and leaves nothing: neither a temporary folder nor output.
func TestSignalWhileClangRuns(t *testing.T) {
	cmd, dir := command(t, "build", "spec.cue")
	tools, temporary := t.TempDir(), t.TempDir()
	busy := filepath.Join(tools, "busy")
	fifo(t, busy)
	for name, script := range map[string]string{
		"clang-19":      "[ \"$1\" = --version ] && echo clang version 19.0.0 && exit\nexec cat " + busy,
		"llvm-strip-19": "exit",
	} {
		if err := os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../examples/gate/spec.cue")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "spec.cue"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "FASTRELAY_OBJECTS=", "TMPDIR="+temporary,
		"PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := opened(t, busy)
	defer f.Close()
	if files, err := os.ReadDir(temporary); err != nil || len(files) != 1 {
		t.Errorf("while clang runs: %v, %v", files, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := statusOf(t, cmd); got != 143 {
		t.Errorf("status %d", got)
	}
	for _, in := range []string{temporary, dir} {
		files, err := os.ReadDir(in)
		if err != nil || len(files) > 0 && files[0].Name() != "spec.cue" || len(files) > 1 {
			t.Errorf("%v, %v", files, err)
		}
	}
}
