package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func (a *app) vetCommand() *cobra.Command {
	var format string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "vet SPEC...",
		Short: "Check specs, and write nothing",
		Long:  "Loads and compiles each spec and its tests, without clang, runs its programs in the model on random packets, and shows all mistakes at once.",
		Example: `  fastrelay-gen vet examples/*/spec.cue
  fastrelay-gen vet --format json spec.cue`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(format); err != nil {
				return err
			}
			if len(args) == 0 {
				return exactly("SPEC")(cmd, args)
			}
			var mistakes diag.List
			var fine []string
			for _, file := range args {
				text, err := a.read(file)
				if err != nil {
					return err
				}
				s, list := spec.LoadWithin(cmd.Context(), file, text)
				var p *ir.Plan
				if list.Len() == 0 {
					p, list = gen.Compile(s)
				}
				if list.Len() == 0 {
					list = spectest.Check(s, p)
				}
				if list.Len() == 0 {
					if list, err = build.Rehearse(cmd.Context(), s, p); err != nil {
						return err
					}
				}
				if list.Len() == 0 {
					fine = append(fine, fmt.Sprintf("%s: no mistakes (%s, %s)", file, parts(p), plural(len(s.Tests), "test")))
				}
				mistakes.Append(list)
			}
			if err := mistakes.Err(); err != nil {
				return err
			}
			if format == "json" {
				return diag.RenderJSON(a.out, &mistakes)
			}
			for _, line := range fine {
				if !quiet {
					fmt.Fprintln(a.out, line)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing on success")
	formatFlag(cmd, &format)
	return cmd
}

func (a *app) dumpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dump plan|c|go SPEC",
		Short: "Print what a stage of the compiler makes of a spec",
		Example: `  fastrelay-gen dump plan examples/turn/spec.cue
  fastrelay-gen dump c examples/turn/spec.cue | less`,
		Args:      exactly("STAGE", "SPEC"),
		ValidArgs: []string{"plan", "c", "go"},
		RunE: func(cmd *cobra.Command, args []string) error {
			stages := map[string]string{"c": build.SourceName, "go": build.PackageName}
			if args[0] != "plan" && stages[args[0]] == "" {
				return usage("there is no stage %q", args[0]).nearest(args[0], cmd.ValidArgs, "").hint("stages are plan, c and go")
			}
			if args[0] == "plan" {
				return a.dumpPlan(cmd.Context(), args[1])
			}
			r, err := a.compile(cmd.Context(), args[1], build.Options{})
			if err != nil {
				return err
			}
			_, err = a.out.Write(r.Files[stages[args[0]]])
			return err
		},
	}
}

func (a *app) dumpPlan(ctx context.Context, file string) error {
	r, err := a.plan(ctx, file)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(a.out, planfmt.Text(r.Plan))
	return err
}
