package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/specdoc"
)

func (a *app) docCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "doc SPEC",
		Short: "Write a page about a spec: headers, tables, programs, reasons, and the API",
		Long: `doc prints a page about a spec: its headers, settings, sessions, tables, groups and events; its programs
with their steps, and the reasons that packets are counted under, with their numbers and the lines that they come from;
the Go package and the paths of the control socket.

The page is Markdown, or with --format html a file of its own with pictures, which has no scripts and loads nothing. It
is the same for the same spec.`,
		Example: `  fastrelay-gen doc examples/turn/spec.cue > turn.md
  fastrelay-gen doc examples/turn/spec.cue --format html > turn.html`,
		Args: exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("format", format, "markdown", "html"); err != nil {
				return err
			}
			r, err := a.plan(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			write := specdoc.Markdown
			if format == "html" {
				write = specdoc.HTML
			}
			text, err := write(r.Spec, r.Plan)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "markdown", "markdown, or html")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"format": cobra.FixedCompletions([]string{"markdown", "html"}, cobra.ShellCompDirectiveNoFileComp),
	})
	return cmd
}
