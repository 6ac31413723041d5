// Upstreamtests runs quic-go's own tests on the fork.
//
//	upstreamtests DIR
//
// The fork is written into DIR, under quic-go's path. Many of the tests measure time, and some fail on a busy machine,
// with and without our patches; so a test that fails is run again by itself, twice at most.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "upstreamtests:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("say which folder the fork goes to: upstreamtests DIR")
	}
	upstream, err := quicfork.Upstream()
	if err != nil {
		return err
	}
	fork, err := quicfork.Fork(upstream)
	if err != nil {
		return err
	}
	if err := fork.Write(args[0]); err != nil {
		return err
	}
	began := time.Now()
	r, err := tests(args[0], "./...")
	if err != nil {
		return err
	}
	for _, f := range r.failed {
		fmt.Fprintf(out, "failed: %s of %s\n", f.name, f.pkg)
		var again results
		for range 2 {
			if again, err = tests(args[0], "-run", "^"+f.name+"$", f.pkg); err != nil {
				return err
			}
			if len(again.failed) == 0 {
				break
			}
		}
		if len(again.failed) > 0 {
			return fmt.Errorf("%s of %s fails again:\n%s", f.name, f.pkg, again.failed[0].output)
		}
		fmt.Fprintln(out, "passed by itself")
	}
	const atLeast = 1000 // v0.65.0 has more; fewer mean that packages weren't built
	if r.passed < atLeast {
		return fmt.Errorf("only %d tests passed, of %d at least", r.passed, atLeast)
	}
	fmt.Fprintf(out, "%d tests of %s %s pass on the fork, %d of them by themselves, in %.0f s\n",
		r.passed+len(r.failed), quicfork.UpstreamPath, quicfork.UpstreamVersion, len(r.failed),
		time.Since(began).Seconds())
	return nil
}

// results are those of many tests.
type results struct {
	passed int
	failed []failure
}

// failure is a test that failed, without the subtests in it.
type failure struct{ pkg, name, output string }

// tests runs go test in a folder.
func tests(folder string, args ...string) (r results, err error) {
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1", "-p=1"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS="), os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	output := map[[2]string]*strings.Builder{} // by package and test, with its subtests
	broken := ""
	in := bufio.NewScanner(pipe)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(in.Bytes(), &e) != nil {
			continue
		}
		name, _, _ := strings.Cut(e.Test, "/")
		test := [2]string{e.Package, name}
		if output[test] == nil {
			output[test] = &strings.Builder{}
		}
		output[test].WriteString(e.Output)
		switch {
		case e.Action == "build-fail" || e.Action == "fail" && e.Test == "":
			broken = e.Package + output[test].String()
		case e.Action == "fail" && name == e.Test:
			r.failed = append(r.failed, failure{e.Package, name, output[test].String()})
		case e.Action == "pass" && e.Test != "":
			r.passed++
		}
	}
	err = errors.Join(in.Err(), cmd.Wait())
	if len(r.failed) > 0 {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("%w: %s", err, broken)
	}
	return r, nil
}
