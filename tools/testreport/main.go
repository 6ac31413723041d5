// Command testreport reads `go test -json` on standard input and prints a summary: one line a package, the output
// of failed tests, and a last line with totals. It fails where a test failed or was skipped, so that a machine that
// can't run a test doesn't pass.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of test2json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64
}

type report struct {
	out             io.Writer
	output          map[string][]string // of tests that are running, by package and test
	passed, failed  int
	packages        int
	skipped, broken []string
}

func main() {
	r := &report{out: os.Stdout, output: map[string][]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.close() {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		text, err := lines.ReadBytes('\n')
		if len(text) > 0 {
			var e event
			if json.Unmarshal(text, &e) != nil { // output of the go command itself
				fmt.Fprint(r.out, string(text))
			} else {
				r.event(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if strings.HasPrefix(e.Output, "=== ") { // RUN, PAUSE, CONT, NAME
			return
		}
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.pkg(e)
		} else {
			r.test(e, key)
		}
		delete(r.output, key)
	}
}

func (r *report) test(e event, key string) {
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, key+": "+strings.TrimSpace(strings.Join(r.output[key], "")))
	case "fail":
		r.failed++
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
	}
}

// pkg prints go test's own closing line of a package. A package without test files is "skip", and no test was skipped.
func (r *report) pkg(e event) {
	key := e.Package + " "
	if e.Action == "skip" {
		return
	}
	r.packages++
	if e.Action == "fail" {
		r.broken = append(r.broken, e.Package)
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		return
	}
	for _, line := range r.output[key] {
		if strings.HasPrefix(line, "ok") {
			fmt.Fprint(r.out, line)
		}
	}
}

// close prints the last lines and reports whether all is well.
func (r *report) close() bool {
	slices.Sort(r.skipped)
	for _, s := range r.skipped {
		fmt.Fprintln(r.out, "SKIPPED", s)
	}
	for _, p := range r.broken {
		fmt.Fprintln(r.out, "FAILED ", p)
	}
	fmt.Fprintf(r.out, "%d packages: %d tests passed, %d failed, %d skipped\n",
		r.packages, r.passed, r.failed, len(r.skipped))
	return r.packages > 0 && r.passed > 0 && r.failed == 0 && len(r.broken) == 0 && len(r.skipped) == 0
}
