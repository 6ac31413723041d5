package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type testOptions struct {
	kernel, verbose bool
	run             string
	format          string
}

func (a *app) testCommand() *cobra.Command {
	var opt testOptions
	cmd := &cobra.Command{
		Use:   "test SPEC...",
		Short: "Run the tests of specs, in the model or in the kernel",
		Long: `Runs the tests of a spec. A test has the state before, a packet, and the expected result. The reference
model needs no rights. With --kernel, the tests run in the model and then in the kernel, with the compiled program
(root). Tests that can't run in the kernel (a VLAN tag in the metadata, a route) are listed, and run in the model only.
For a test that fails, it prints what differs, with its place in the packet, the headers and fields of the packet, and
what the program changed in it.

Exit status 1 if a test fails.`,
		Example: `  fastrelay-gen test examples/turn/spec.cue
  sudo fastrelay-gen test --kernel examples/*/spec.cue
  fastrelay-gen test -v --run 'length' examples/turn/spec.cue`,
		ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactly("SPEC")(cmd, args)
			}
			if err := a.setFormat(opt.format); err != nil {
				return err
			}
			return a.test(cmd.Context(), args, opt)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&opt.kernel, "kernel", false, "run the tests in the kernel as well")
	flags.BoolVarP(&opt.verbose, "verbose", "v", false, "name every test")
	flags.StringVar(&opt.run, "run", "", "only tests whose name matches this regular expression")
	formatFlag(cmd, &opt.format)
	return cmd
}

// testResult is what `test` prints for machines, one for each test and place.
type testResult struct {
	Spec        string   `json:"spec"`
	Test        string   `json:"test"`
	Program     string   `json:"program"`
	Line        int      `json:"line"`
	In          string   `json:"in"`     // "model" or "kernel"
	Status      string   `json:"status"` // "passed", "failed", "not shown"
	Why         string   `json:"why,omitempty"`
	Differences []string `json:"differences,omitempty"`
}

var statusWords = map[spectest.Status]string{spectest.Passed: "passed", spectest.Failed: "failed",
	spectest.NotShown: "not shown"}

func (a *app) test(ctx context.Context, files []string, opt testOptions) error {
	pattern, err := regexp.Compile(opt.run)
	if err != nil {
		return usage("--run is not a regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	results := []testResult{}
	found, failed := 0, false
	for _, file := range files {
		some, bad, err := a.testFile(ctx, file, pattern, opt, &results)
		if err != nil {
			return err
		}
		found += some
		failed = failed || bad
	}
	if opt.format == "json" {
		if err := a.json(struct {
			Tests []testResult `json:"tests"`
		}{results}); err != nil {
			return err
		}
	}
	switch {
	case failed:
		return exit(statusError)
	case found == 0 && opt.run != "":
		return usage("no test has a name that matches %q", opt.run)
	}
	return nil
}

// testFile runs the tests of one spec and returns how many there are, and whether one failed.
func (a *app) testFile(ctx context.Context, file string, pattern *regexp.Regexp, opt testOptions,
	results *[]testResult) (int, bool, error) {
	var r *build.Result
	var err error
	if opt.kernel {
		if err := kernelTests(); err != nil {
			return 0, false, err
		}
		r, err = a.compile(ctx, file, build.Options{})
	} else {
		r, err = a.plan(ctx, file)
	}
	if err != nil {
		return 0, false, err
	}
	s := matching(r.Spec, pattern)
	if err := spectest.Check(s, r.Plan).Err(); err != nil {
		return 0, false, err
	}
	runs := []testRun{{"model", spectest.Model(ctx, s, r.Plan)}}
	if opt.kernel {
		outcomes, err := spectest.Kernel(ctx, s, r.Plan, r.Object())
		if err != nil {
			return 0, false, runError(r.Explain(err))
		}
		runs = append(runs, testRun{"kernel", outcomes})
	}
	for _, run := range runs {
		for _, o := range run.outcomes {
			*results = append(*results, testResult{file, o.Name, o.Program, o.Pos.Line, run.in, statusWords[o.Status],
				o.Why,
				o.Differences})
		}
	}
	return len(s.Tests), a.outcomes(file, s, runs, opt), ctx.Err()
}

// testRun is the outcomes of all tests in one place.
type testRun struct {
	in       string
	outcomes []spectest.Outcome
}

// matching returns the spec with those of its tests whose name matches.
func matching(s *spec.Spec, pattern *regexp.Regexp) *spec.Spec {
	some := *s
	some.Tests = nil
	for _, t := range s.Tests {
		if pattern.MatchString(t.Name.Value) {
			some.Tests = append(some.Tests, t)
		}
	}
	return &some
}

// outcomes prints the tests of a spec and reports whether one failed.
func (a *app) outcomes(file string, s *spec.Spec, runs []testRun, opt testOptions) (failed bool) {
	var places, hidden []string
	text := opt.format == "text"
	for _, run := range runs {
		shown := 0
		for _, o := range run.outcomes {
			if o.Status != spectest.NotShown {
				shown++
			}
			if o.Status == spectest.Failed {
				failed = true
			}
			if text {
				a.outcome(run.in, o, opt.verbose)
			}
		}
		places = append(places, "the "+run.in)
		if n := len(run.outcomes) - shown; n > 0 {
			hidden = append(hidden, fmt.Sprintf("%d can't be shown in the %s", n, run.in))
		}
	}
	if !text {
		return failed
	}
	word := "ok  "
	if failed {
		word = "FAIL"
	}
	line := fmt.Sprintf("%s %s  %s in %s", word, filepath.ToSlash(file), plural(len(s.Tests), "test"),
		strings.Join(places,
			" and "))
	if len(hidden) > 0 {
		line += "; " + strings.Join(hidden, ", ")
		if !opt.verbose {
			line += " (-v says why)"
		}
	}
	fmt.Fprintln(a.out, line)
	return failed
}

func (a *app) outcome(in string, o spectest.Outcome, verbose bool) {
	where := diag.Pos{File: filepath.ToSlash(o.Pos.File), Line: o.Pos.Line, Column: o.Pos.Column}
	switch {
	case o.Status == spectest.Failed:
		fmt.Fprintf(a.out, "FAIL %q (%s, %s)\n  --> %s\n", o.Name, o.Program, in, where)
		for _, d := range o.Differences {
			fmt.Fprintf(a.out, "  %s\n", d)
		}
		for line := range strings.Lines(o.Fields) {
			fmt.Fprintf(a.out, "  %s", line)
		}
	case !verbose:
	case o.Status == spectest.NotShown:
		fmt.Fprintf(a.out, "  -  %q (%s, %s): %s\n", o.Name, o.Program, in, o.Why)
	default:
		fmt.Fprintf(a.out, "  ok %q (%s, %s)\n", o.Name, o.Program, in)
	}
}
