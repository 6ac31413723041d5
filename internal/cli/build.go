package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
)

type buildOptions struct {
	build.Options
	check, quiet, plan bool
	format             string
}

func (a *app) buildCommand() *cobra.Command {
	var opt buildOptions
	cmd := &cobra.Command{
		Use:   "build SPEC",
		Short: "Compile a spec: write its C, its object and its Go package",
		Long: `Writes relay.bpf.c, fastrelay.h, relay_bpfel.o, relay.go and a manifest that lists them, into a folder
beside the spec. The folder has the name of the Go package; with -o, the package has the name of the folder. Files of an
earlier build that are no longer needed are removed; files that no build has written are never changed.

Warnings (unused declarations) go to standard error, also with -q, and don't stop the build.

If the folder already has these files, made from the same spec, nothing is written, and clang isn't run.

With --check nothing is written. Exit status: 0 if the folder is up to date, 2 if it isn't, 1 on errors.`,
		Example: `  fastrelay-gen build examples/turn/spec.cue
  fastrelay-gen build spec.cue -o internal/turnrelay
  fastrelay-gen build --check spec.cue`,
		Args: exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error { return a.build(cmd.Context(), args[0], opt) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&opt.Dir, "output", "o", "",
		"the folder to write to (default: beside the spec, with the package's name)")
	flags.StringVar(&opt.Package, "package", "",
		"the name of the Go package (default: the name of -o's folder, else the spec's name and relay)")
	flags.BoolVar(&opt.check, "check", false, "write nothing; report whether the output is up to date")
	flags.BoolVarP(&opt.quiet, "quiet", "q", false, "print nothing on success but warnings")
	flags.BoolVar(&opt.plan, "plan", false, "print the plan, and write nothing")
	formatFlag(cmd, &opt.format)
	return cmd
}

// summary is what `build` prints for machines.
type summary struct {
	Name     string           `json:"name"`
	Kernel   string           `json:"kernel"`
	Needs    []string         `json:"needs"`
	Tables   int              `json:"tables"`
	Sessions int              `json:"sessions"`
	Groups   int              `json:"groups"`
	Events   int              `json:"events"`
	Programs []programSummary `json:"programs"`
	Clang    string           `json:"clang"`
	Dir      string           `json:"dir"`
	Package  string           `json:"package"`
	Files    []string         `json:"files"`
	Removed  []string         `json:"removed,omitempty"`
	Kept     []string         `json:"kept,omitempty"`
	Current  bool             `json:"current"` // nothing had to be written
	Seconds  float64          `json:"seconds"`
	Warnings *diag.List       `json:"warnings"`

	parts string
}

type programSummary struct {
	Name         string          `json:"name"`
	Hook         string          `json:"hook"`
	Left         string          `json:"left,omitempty"` // by XDP to tc/ingress
	Instructions int             `json:"instructions"`
	Verifier     *build.Verified `json:"verifier,omitempty"`
}

func (a *app) build(ctx context.Context, file string, opt buildOptions) error {
	if err := a.setFormat(opt.format); err != nil {
		return err
	}
	if opt.plan {
		return a.dumpPlan(ctx, file)
	}
	start := time.Now()
	opt.Reuse = !opt.check
	r, err := a.compile(ctx, file, opt.Options)
	if err != nil {
		return err
	}
	if opt.format == "text" {
		a.warn(r.Warnings)
	}
	if opt.check {
		return a.check(r, opt)
	}
	s, err := summarise(r)
	if err != nil {
		return err
	}
	release := interrupt.Hold(ctx)
	w, err := build.Write(r)
	release()
	if err != nil {
		return err
	}
	s.Current = !w.Changed
	s.Files, s.Removed, s.Kept = append(w.Files, build.ManifestName), w.Removed, w.Kept
	s.Seconds = time.Since(start).Seconds()
	switch {
	case opt.quiet:
	case opt.format == "json":
		return a.json(s)
	default:
		a.summary(s)
	}
	return nil
}

func summarise(r *build.Result) (*summary, error) {
	p := r.Plan
	counts, err := r.Instructions()
	if err != nil {
		return nil, err
	}
	figures, err := verified(r)
	if err != nil {
		return nil, err
	}
	s := &summary{
		Name: p.Name, Kernel: version(p.Kernel), Needs: []string{}, Clang: r.Clang, Dir: r.Dir, Package: r.Package,
		Warnings: r.Warnings, Tables: len(p.Tables), Sessions: len(p.Sessions),
		Groups: len(p.Groups), Events: len(p.Events), parts: parts(p),
	}
	for _, n := range p.Needs {
		if n.Version == p.Kernel && !slices.Contains(s.Needs, n.What) {
			s.Needs = append(s.Needs, n.What)
		}
	}
	for _, prog := range p.Programs {
		s.Programs = append(s.Programs, programSummary{
			prog.Name, prog.Hooks(), planfmt.Left(prog), counts[prog.Name], figures[prog.Name],
		})
	}
	return s, nil
}

// verified asks the kernel's verifier, if this process may.
func verified(r *build.Result) (map[string]*build.Verified, error) {
	figures, err := build.Verify(r)
	if errors.Is(err, build.ErrNoRights) {
		return nil, nil
	}
	return figures, err
}

// parts says what a relay consists of; groups and events only if there are any.
func parts(p *ir.Plan) string {
	out := []string{
		plural(len(p.Programs), "program"), plural(len(p.Tables), "table"), plural(len(p.Sessions), "session"),
	}
	if n := len(p.Groups); n > 0 {
		out = append(out, plural(n, "group"))
	}
	if n := len(p.Events); n > 0 {
		out = append(out, plural(n, "event"))
	}
	return strings.Join(out, ", ")
}

func version(v ir.Version) string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (a *app) summary(s *summary) {
	why := ""
	if len(s.Needs) > 0 {
		why = " (" + strings.Join(s.Needs, ", ") + ")"
	}
	fmt.Fprintf(a.out, "%s  %s   kernel ≥ %s%s\n", s.Name, s.parts, s.Kernel, why)
	width, hooks := 0, 0
	for _, p := range s.Programs {
		width, hooks = max(width, len(p.Name)), max(hooks, len(p.Hook))
	}
	asked := true
	for _, p := range s.Programs {
		line := fmt.Sprintf("  %-*s  %-*s  %5s instructions", width, p.Name, hooks, p.Hook,
			thousands(uint64(p.Instructions)))
		if p.Verifier != nil {
			line += fmt.Sprintf("   verifier %s   stack %d", thousands(uint64(p.Verifier.Processed)), p.Verifier.Stack)
		} else {
			asked = false
		}
		fmt.Fprintln(a.out, line)
		if p.Left != "" {
			fmt.Fprintf(a.out, "  %-*s  %s\n", width, "", p.Left)
		}
	}
	if !asked && runtime.GOOS == "linux" {
		fmt.Fprintln(a.out, "  (run as root to see the verifier's counts)")
	}
	for _, name := range s.Removed {
		fmt.Fprintf(a.out, "removed %s, of an earlier build\n", filepath.Join(s.Dir, name))
	}
	for _, name := range s.Kept {
		fmt.Fprintf(a.out, "kept %s: it is of an earlier build, and has been changed since\n",
			filepath.Join(s.Dir, name))
	}
	if s.Current {
		fmt.Fprintf(a.out, "%s is up to date   %.1f s\n", s.Dir, s.Seconds)
		return
	}
	fmt.Fprintf(a.out, "wrote %s: %s   %.1f s\n", s.Dir, strings.Join(s.Files, " "), s.Seconds)
}

// check compares, and says what differs.
func (a *app) check(r *build.Result, opt buildOptions) error {
	d, err := build.Check(r)
	if err != nil {
		return err
	}
	if opt.format == "json" {
		if err := a.json(struct {
			Same      bool     `json:"same"`
			OnlyClang bool     `json:"only_clang"`
			Missing   []string `json:"missing,omitempty"`
			Changed   []string `json:"changed,omitempty"`
			Stale     []string `json:"stale,omitempty"`
		}{d.Same(), d.OnlyClang, d.Missing, d.Changed, d.Stale}); err != nil {
			return err
		}
	}
	switch {
	case d.Same():
		if !opt.quiet && opt.format == "text" {
			fmt.Fprintf(a.out, "%s is up to date\n", r.Dir)
		}
		return nil
	case opt.format == "json":
	case d.OnlyClang:
		fmt.Fprintf(a.err, "%s: only the clang version differs: the object was made by %s, this machine has %s\n",
			r.Dir,
			d.Compilers[0], d.Compilers[1])
	default:
		for _, group := range []struct {
			what  string
			names []string
		}{{"missing", d.Missing}, {"differs", d.Changed}, {"stale", d.Stale}} {
			for _, name := range group.names {
				fmt.Fprintf(a.err, "%s: %s\n", group.what, filepath.Join(r.Dir, name))
			}
		}
		fmt.Fprintf(a.err, "%s is not up to date: fastrelay-gen build %s\n", r.Dir, r.File)
	}
	return exit(statusDiffers)
}
