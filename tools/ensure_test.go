// Package tools tests the scripts of this folder.
package tools

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// aptGet stands for the real one: while it reads what there is, the test says when it goes on.
const aptGet = `#!/bin/sh
[ "$2" = update ] || exit 0
echo >"$STARTED"
read -r _ <"$GO"
`

// A script that is interrupted while it installs packages doesn't leave behind what keeps the services of all packages
// from being started.
func TestEnsureInterrupted(t *testing.T) {
	needs.Root(t) // for a mount namespace
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		t.Run(unix.SignalName(s), func(t *testing.T) {
			dir, sbin, bin := t.TempDir(), t.TempDir(), t.TempDir()
			open := func(name string) *os.File {
				path := filepath.Join(dir, name)
				if err := unix.Mkfifo(path, 0o600); err != nil {
					t.Fatal(err)
				}
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return f
			}
			started, proceed := open("started"), open("go")
			for _, name := range []string{"sh", "id", "mktemp", "rm", "chmod", "tail"} {
				path, err := exec.LookPath(name)
				if err == nil {
					err = os.Symlink(path, filepath.Join(bin, name))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(aptGet), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("unshare", "--mount", "sh", "-c",
				`mount --bind "$SBIN" /usr/sbin && PATH=$BIN exec ./ensure kernels`)
			cmd.Env = append(os.Environ(), "SBIN="+sbin, "BIN="+bin, "STARTED="+started.Name(), "GO="+proceed.Name())
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			began := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			go func() {
				_, err := started.Read(make([]byte, 1))
				began <- err
			}()
			select {
			case err := <-ended:
				t.Fatalf("it has ended before it installs anything: %v", err)
			case err := <-began:
				if err != nil {
					t.Fatal(err)
				}
			}
			policy := filepath.Join(sbin, "policy-rc.d")
			if _, err := os.Stat(policy); err != nil {
				t.Fatalf("services would be started: %v", err)
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if _, err := proceed.WriteString("\n"); err != nil {
				t.Fatal(err)
			}
			<-ended
			if _, err := os.Stat(policy); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("services of packages will never be started again: %s is there (%v)", policy, err)
			}
		})
	}
}
