// Hookcheck shows that each hook has a test that fails without it. For each patch that names a test it makes the fork
// without that patch, and for each change in _fork/without, which disables something in our own files, the fork with
// it; then it runs the test, which has to fail.
//
//	hookcheck [NAME...]
//
// Without names, all are tried. It runs in the folder of the module.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hookcheck:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	upstream, err := quicfork.Upstream()
	if err != nil {
		return err
	}
	faults, err := quicfork.Faults()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "hookcheck")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	for _, name := range []string{"go.mod", "go.sum", "test"} {
		if out, err := exec.Command("cp", "-r", name, folder).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	var missed []error
	for _, f := range faults {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		tree, err := f.Fork(upstream)
		if err == nil {
			tree, err = tree.Library("github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go")
		}
		if err == nil {
			err = tree.Write(filepath.Join(folder, "quic-go"))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		vet := exec.Command("go", "build", "./quic-go")
		vet.Dir = folder
		if out, err := vet.CombinedOutput(); err != nil {
			return fmt.Errorf("%s doesn't compile: %s", f.Name, out)
		}
		test := exec.Command("go", "test", "-count=1", "-timeout", "3m", "-run", "^"+f.Test+"$", "./test",
			"-args", "-patience", "3s")
		test.Dir = folder
		out, err := test.CombinedOutput()
		switch {
		case err == nil || !strings.Contains(string(out), "FAIL"):
			missed = append(missed, fmt.Errorf("%s: %s passes without it", f.Name, f.Test))
			fmt.Printf("%-28s %-24s PASSES\n", f.Name, f.Test)
		default:
			fmt.Printf("%-28s %-24s fails, as it should: %s\n", f.Name, f.Test, reason(string(out)))
		}
	}
	return errors.Join(missed...)
}

// reason returns the first line of a test's output that says why it failed.
func reason(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") || strings.HasPrefix(line, "panic:") {
			return strings.TrimSpace(line)
		}
	}
	return "it failed"
}
