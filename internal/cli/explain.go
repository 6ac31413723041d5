package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/diagram"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type explainOptions struct {
	header, program string
	rule            string // "2", or "2.1": the first one of its fan_out; "": the whole program
}

func (a *app) explainCommand() *cobra.Command {
	var opt explainOptions
	cmd := &cobra.Command{
		Use:   "explain [CODE | SPEC]",
		Short: "Explain the code of a message, a header, or a program",
		Long: `With a code (FR0201): its meaning, with a wrong and a right example. Without an argument: all codes.
With a spec: its headers, programs and reasons. --header shows a header as RFCs do; --program shows the spec's text, the
plan, the C and the BPF instructions of one program, with --rule only those of one of its rules, or (2.1) of one of the
rules of a rule's fan_out. Rules are counted from 1.`,
		Example: `  fastrelay-gen explain FR0201
  fastrelay-gen explain examples/turn/spec.cue
  fastrelay-gen explain examples/turn/spec.cue --header channel_data
  fastrelay-gen explain examples/paths/spec.cue --program forward --rule 1
  fastrelay-gen explain examples/sfu/spec.cue --program video --rule 2.3`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: codeOrSpec,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				a.codes()
				return nil
			case opt.header != "":
				return a.explainHeader(cmd.Context(), args[0], opt.header)
			case opt.program != "":
				return a.explainProgram(cmd.Context(), args[0], opt)
			case opt.rule != "":
				return usage("--rule needs --program").hint("--program PROGRAM").see("fastrelay-gen explain --help")
			case isSpec(args[0]):
				return a.explainSpec(cmd.Context(), args[0])
			}
			return a.explainCode(args[0])
		},
	}
	cmd.Flags().StringVar(&opt.header, "header", "", "show this header")
	cmd.Flags().StringVar(&opt.program, "program", "", "show the plan, the C and the instructions of this program")
	cmd.Flags().StringVar(&opt.rule, "rule", "", "only this rule of the program: 2, or 2.1 in its fan_out")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"header": named(headersOf), "program": named(programsOf)})
	return cmd
}

func (a *app) codes() {
	for _, i := range diag.Infos() {
		fmt.Fprintf(a.out, "%s  %s\n", i.Code, i.Title)
	}
}

func (a *app) explainCode(arg string) error {
	info, ok := diag.Lookup(diag.Code(strings.ToUpper(arg)))
	if !ok {
		var codes []string
		for _, i := range diag.Infos() {
			codes = append(codes, string(i.Code))
		}
		d := &diag.Diagnostic{Code: codeCode, Message: fmt.Sprintf("unknown code %q", arg),
			Hint: "fastrelay-gen explain lists all codes"}
		if n := spell.Nearest(strings.ToUpper(arg), codes); n != "" {
			d.Hint = fmt.Sprintf("did you mean %s? %s", n, d.Hint)
		}
		return d
	}
	fmt.Fprintf(a.out, "%s: %s\n\n%s\n", info.Code, info.Title, strings.TrimSpace(info.Text))
	if info.Wrong != "" {
		fmt.Fprintf(a.out, "\nwrong:\n\n%s\n", indented(info.Wrong))
	}
	if info.Right != "" {
		fmt.Fprintf(a.out, "\nright:\n\n%s\n", indented(info.Right))
	}
	return nil
}

// isSpec reports whether an argument is a spec rather than a code.
func isSpec(arg string) bool {
	_, err := os.Stat(arg)
	return err == nil || strings.HasSuffix(arg, ".cue") || strings.ContainsRune(arg, filepath.Separator)
}

// explainSpec lists what a spec has, and how to see more of it.
func (a *app) explainSpec(ctx context.Context, file string) error {
	r, err := a.plan(ctx, file)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "%s  %s\n", r.Plan.Name, parts(r.Plan))
	example := ""
	for _, h := range r.Spec.Headers {
		if h.Std {
			continue
		}
		if example == "" {
			example = h.Name.Value
			fmt.Fprintln(a.out, "\nheaders")
		}
		var fields []string
		for _, f := range h.Fields {
			fields = append(fields, f.Name.Value)
		}
		fmt.Fprintf(a.out, "  %s: %s\n", h.Name.Value, strings.Join(fields, " "))
	}
	if example == "" {
		example = "udp"
	}
	for i, p := range r.Spec.Programs {
		var stack []string
		for _, e := range p.Stack {
			name := e.Var.Value
			if e.Optional {
				name += "?"
			}
			stack = append(stack, name)
		}
		planned := r.Plan.Programs[i]
		fmt.Fprintf(a.out, "\nprogram %s  %s  %s  %s\n", p.Name.Value, planned.Hooks(), strings.Join(stack, " "),
			plural(len(p.Rules), "rule"))
		if left := planfmt.Left(planned); left != "" {
			fmt.Fprintf(a.out, "  %s\n", left)
		}
		width := 0
		for _, reason := range planned.Reasons {
			width = max(width, len(reason.Name))
		}
		for _, reason := range planned.Reasons {
			kind := planfmt.ReasonKind(reason.Kind)
			if kind == reason.Name {
				kind = ""
			}
			fmt.Fprintf(a.out, "  %-12s %-*s  %s\n", kind, width, reason.Name, reason.Doc)
		}
	}
	fmt.Fprintf(a.out, "\nmore: fastrelay-gen explain %s --header %s\n", file, example)
	if len(r.Spec.Programs) > 0 {
		fmt.Fprintf(a.out, "      fastrelay-gen explain %s --program %s --rule 1\n", file,
			r.Spec.Programs[0].Name.Value)
	}
	return nil
}

func indented(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	return "    " + strings.Join(lines, "\n    ")
}

func (a *app) explainHeader(ctx context.Context, file, name string) error {
	s, err := a.load(ctx, file)
	if err != nil {
		return err
	}
	var names []string
	for _, h := range s.Headers {
		if h.Name.Value == name {
			fmt.Fprint(a.out, diagram.Header(h))
			return nil
		}
		names = append(names, h.Name.Value)
	}
	return unknown("header", name, names)
}

// unknown says that the spec has no such thing, and what it has.
func unknown(what, name string, names []string) error {
	d := &diag.Diagnostic{Code: codeUnknown, Message: fmt.Sprintf("the spec has no %s %q", what, name)}
	if n := spell.Nearest(name, names); n != "" {
		d.Hint = fmt.Sprintf("did you mean %s?", n)
	} else if len(names) > 0 {
		d.Hint = "it has " + strings.Join(names, ", ")
	} else {
		d.Hint = "it has none"
	}
	return d
}

// load reads and checks a spec, without compiling it.
func (a *app) load(ctx context.Context, file string) (*spec.Spec, error) {
	text, err := a.read(file)
	if err != nil {
		return nil, err
	}
	s, list := spec.LoadWithin(ctx, file, text)
	if err := list.Err(); err != nil {
		return nil, err
	}
	return s, nil
}
