package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diagram"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type diagramOptions struct{ format, header, program string }

func (a *app) diagramCommand() *cobra.Command {
	var opt diagramOptions
	cmd := &cobra.Command{
		Use:   "diagram SPEC",
		Short: "Draw a spec: the layout of its headers, and what its programs decide",
		Long: `diagram prints a picture of a spec. Headers are drawn as in RFCs, 32 bits a row. A program is drawn as
its decision: headers, conditions, rows and rules from the top to the bottom, and beside each of them where packets end,
with all reasons that they are counted under. --header and --program choose one; without them, the picture has all
headers that the spec declares and all programs.

The picture is SVG, or with --format dot the language of Graphviz. It is the same for the same spec.`,
		Example: `  fastrelay-gen diagram examples/turn/spec.cue > turn.svg
  fastrelay-gen diagram examples/sfu/spec.cue --program video > video.svg
  fastrelay-gen diagram examples/sfu/spec.cue --header rtp > rtp.svg
  fastrelay-gen diagram examples/turn/spec.cue --format dot | dot -Tpdf > turn.pdf`,
		Args: exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("format", opt.format, "svg", "dot"); err != nil {
				return err
			}
			return a.diagram(cmd.Context(), args[0], opt)
		},
	}
	cmd.Flags().StringVar(&opt.format, "format", "svg", "svg, or dot")
	cmd.Flags().StringVar(&opt.header, "header", "", "draw this header; standard ones as well")
	cmd.Flags().StringVar(&opt.program, "program", "", "draw this program")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"header": named(headersOf), "program": named(programsOf),
		"format": cobra.FixedCompletions([]string{"svg", "dot"}, cobra.ShellCompDirectiveNoFileComp),
	})
	return cmd
}

func (a *app) diagram(ctx context.Context, file string, opt diagramOptions) error {
	r, err := a.plan(ctx, file)
	if err != nil {
		return err
	}
	headers, err := chooseHeaders(r.Spec, opt)
	if err != nil {
		return err
	}
	decisions, err := chooseDecisions(r, opt)
	if err != nil {
		return err
	}
	name := r.Spec.Name.Value
	if opt.format == "dot" {
		_, err = fmt.Fprint(a.out, diagram.DOT(name, headers, decisions))
		return err
	}
	var parts []*diagram.Picture
	for _, h := range headers {
		parts = append(parts, diagram.Layout(h))
	}
	for _, d := range decisions {
		parts = append(parts, d.Picture(false))
	}
	_, err = fmt.Fprint(a.out, diagram.SVG(name, parts...))
	return err
}

// chooseHeaders returns the header that is asked for, or all that the spec declares.
func chooseHeaders(s *spec.Spec, opt diagramOptions) (chosen []*spec.Header, err error) {
	var names []string
	for _, h := range s.Headers {
		names = append(names, h.Name.Value)
		switch {
		case opt.header == h.Name.Value:
			return []*spec.Header{h}, nil
		case opt.header == "" && opt.program == "" && !h.Std:
			chosen = append(chosen, h)
		}
	}
	if opt.header != "" {
		return nil, unknown("header", opt.header, names)
	}
	return chosen, nil
}

// chooseDecisions returns the program that is asked for, or all.
func chooseDecisions(r *build.Result, opt diagramOptions) (chosen []*diagram.Decision, err error) {
	var names []string
	for i, p := range r.Spec.Programs {
		names = append(names, p.Name.Value)
		if opt.program == p.Name.Value || opt.program == "" && opt.header == "" {
			chosen = append(chosen, diagram.Decide(r.Spec, p, r.Plan.Programs[i]))
		}
	}
	if opt.program != "" && len(chosen) == 0 {
		return nil, unknown("program", opt.program, names)
	}
	return chosen, nil
}
