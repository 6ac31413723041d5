package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func (a *app) vetCommand() *cobra.Command {
	var format string
	var quiet, strict bool
	cmd := &cobra.Command{
		Use:   "vet SPEC...",
		Short: "Check specs, and write nothing",
		Long: `Loads and compiles each spec and its tests, without clang, and runs its programs in the model on random
packets. Shows all mistakes of all specs, warnings about unused declarations and rules that never apply, and for each
program what always passes to the stack, whatever its rules say, under the reason that it is counted by; and what XDP
leaves to tc/ingress of those that run there, too.

Whether the compiled programs have enough stack (FR0904), and what the verifier says of them (FR0902, FR0905), build
finds out.

Exit status: 0 without mistakes, even with warnings; 1 with mistakes or, with --strict, with warnings.`,
		Example: `  fastrelay-gen vet examples/*/spec.cue
  fastrelay-gen vet --strict --format json spec.cue`,
		ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(format); err != nil {
				return err
			}
			if len(args) == 0 {
				return exactly("SPEC")(cmd, args)
			}
			found := findings{always: []alwaysPunted{}, left: []leftByXDP{}}
			for _, file := range args {
				if err := a.vet(cmd.Context(), file, &found); err != nil {
					return err
				}
			}
			if err := found.mistakes.Err(); err != nil {
				return err
			}
			var status error
			if strict && len(found.mistakes.All()) > 0 {
				status = exit(statusError)
			}
			if format == "json" {
				return errors.Join(a.vetJSON(&found), status)
			}
			a.warn(&found.mistakes)
			for _, line := range found.fine {
				if !quiet {
					fmt.Fprintln(a.out, line)
				}
			}
			return status
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing on success but warnings")
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as mistakes")
	formatFlag(cmd, &format)
	return cmd
}

// findings are what vet found in specs: mistakes and warnings of all of them, and what there is to say of those without
// mistakes.
type findings struct {
	mistakes diag.List
	fine     []string
	always   []alwaysPunted
	left     []leftByXDP
}

// vet adds the findings in a spec. The error says why it could not be checked.
func (a *app) vet(ctx context.Context, file string, found *findings) error {
	text, err := a.read(file)
	if err != nil {
		return err
	}
	s, list := spec.LoadWithin(ctx, file, text)
	var p *ir.Plan
	if list.Len() == 0 {
		p, list = gen.Compile(s)
	}
	if list.Len() == 0 {
		list.Append(spectest.Check(s, p))
	}
	if list.Len() == 0 {
		if _, err := bpf.Render(p, bpf.Options{}); err != nil {
			list.Append(build.Unwritable(p, err))
		}
	}
	if list.Len() == 0 {
		rehearsed, err := build.Rehearse(ctx, s, p)
		if err != nil {
			return err
		}
		list.Append(rehearsed)
	}
	if list.Len() == 0 {
		warnings := ""
		if n := len(list.All()); n > 0 {
			warnings = ", " + plural(n, "warning")
		}
		found.fine = append(found.fine, fmt.Sprintf("%s: no mistakes%s (%s, %s)", file, warnings, parts(p),
			plural(len(s.Tests), "test")))
		punts := collectAlways(file, s, p)
		found.fine = append(found.fine, alwaysText(punts, len(p.Programs))...)
		found.always = append(found.always, punts...)
		found.addLeft(file, p)
	}
	found.mistakes.Append(list)
	return nil
}

func (a *app) dumpCommand() *cobra.Command {
	known := []string{"plan", "c", "go"}
	return &cobra.Command{
		Use:   "dump plan|c|go SPEC",
		Short: "Print the output of a stage of the compiler",
		Example: `  fastrelay-gen dump plan examples/turn/spec.cue
  fastrelay-gen dump c examples/turn/spec.cue | less`,
		Args: exactly("STAGE", "SPEC"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return known, cobra.ShellCompDirectiveNoFileComp
			}
			return specFiles(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			stages := map[string]string{"c": build.SourceName, "go": build.PackageName}
			if args[0] != "plan" && stages[args[0]] == "" {
				return usage("unknown stage %q", args[0]).nearest(args[0], known, "").hint("stages are plan, c and go")
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
