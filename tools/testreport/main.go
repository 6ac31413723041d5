// Command testreport reads `go test -json` on standard input and prints a summary: one line a package, the output
// of failed tests with the command that repeats them, the slowest packages and tests, and a last line with totals. It
// fails if a test failed or was skipped, so that a machine that can't run a test doesn't pass. Tests that
// `make test` leaves to `make test-all` are counted apart.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
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
	left            int // to make test-all
	packages        int
	skipped, broken []string
	slow            []slow // packages, and tests with their subtests
	seed            string // FASTRELAY_TEST_SEED
}

// slow is a package or a test and how long it took.
type slow struct {
	pkg, test string
	seconds   float64
}

// leftToAll is what a test says that make test doesn't run (runtime/tool/needs).
const leftToAll = "left to make test-all"

func main() {
	r := &report{out: os.Stdout, output: map[string][]string{}, seed: os.Getenv("FASTRELAY_TEST_SEED")}
	before := backlogDrops(readSoftnet())
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if n := backlogDrops(readSoftnet()) - before; n > 0 {
		fmt.Fprintf(r.out, "the kernel dropped %d packets, since a processor's backlog was full\n", n)
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
	if !strings.Contains(e.Test, "/") {
		r.slow = append(r.slow, slow{e.Package, e.Test, e.Elapsed})
	}
	output := strings.Join(r.output[key], "")
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		if strings.Contains(output, leftToAll) {
			r.left++
			return
		}
		r.skipped = append(r.skipped, key+": "+strings.TrimSpace(output))
	case "fail":
		r.failed++
		fmt.Fprint(r.out, output)
		r.repeat(e)
	}
}

// repeat prints the command that runs a failed test again.
func (r *report) repeat(e event) {
	var parts []string
	for part := range strings.SplitSeq(e.Test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	seed := ""
	if r.seed != "" {
		seed = "FASTRELAY_TEST_SEED=" + r.seed + " "
	}
	fmt.Fprintf(r.out, "    again: %sgo test -count=1 -run '%s' %s\n", seed, strings.Join(parts, "/"), e.Package)
}

// pkg prints go test's own closing line of a package. A package without test files is "skip", and no test was skipped.
func (r *report) pkg(e event) {
	key := e.Package + " "
	if e.Action == "skip" {
		return
	}
	r.packages++
	r.slow = append(r.slow, slow{e.Package, "", e.Elapsed})
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
	r.slowest("package", func(s slow) bool { return s.test == "" })
	r.slowest("test", func(s slow) bool { return s.test != "" })
	if r.left > 0 {
		fmt.Fprintf(r.out, "%d tests are left to make test-all\n", r.left)
	}
	fmt.Fprintf(r.out, "%d packages: %d tests passed, %d failed, %d skipped\n",
		r.packages, r.passed, r.failed, len(r.skipped))
	return r.packages > 0 && r.passed > 0 && r.failed == 0 && len(r.broken) == 0 && len(r.skipped) == 0
}

// slowest prints what took the longest, of one kind.
func (r *report) slowest(kind string, is func(slow) bool) {
	const most, least = 10, 1 // lines, seconds
	of := slices.DeleteFunc(slices.Clone(r.slow), func(s slow) bool { return !is(s) || s.seconds < least })
	slices.SortStableFunc(of, func(a, b slow) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, s := range of[:min(most, len(of))] {
		if i == 0 {
			fmt.Fprintf(r.out, "slowest %ss:\n", kind)
		}
		fmt.Fprintf(r.out, "%7.1f s  %s\n", s.seconds, strings.TrimSpace(s.pkg+" "+s.test))
	}
}

// readSoftnet returns the kernel's counters of each processor's backlog, or nothing if there are none.
func readSoftnet() string {
	text, _ := os.ReadFile("/proc/net/softnet_stat")
	return string(text)
}

// backlogDrops is how many packets found no room in a processor's backlog (net.core.netdev_max_backlog), which all
// network namespaces share: a test that fills it takes packets from the others. They are in the second column.
func backlogDrops(softnet string) (n uint64) {
	for line := range strings.Lines(softnet) {
		var processed, dropped uint64
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err == nil {
			n += dropped
		}
	}
	return n
}
