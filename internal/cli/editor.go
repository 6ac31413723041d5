package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/internal/lsp"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// moduleFile is a CUE module for specs. The version is that of the language of CUE, and the oldest with modules.
const moduleFile = `module: "relay.example"
language: version: "v0.9.0"
`

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema [FOLDER]",
		Short: "Print the language's schema, or put it where CUE's own tools find it",
		Long: `Without a folder: prints the language's schema in CUE. With a folder: writes FOLDER/cue.mod, a CUE module
that has the schema in it, so that cue vet and cue lsp understand specs in this folder and below, offline. A spec says
that it is one by an import, which the compiler resolves from its own copy:

    import "` + spec.SchemaImport + `"

    spec.#Spec

An existing cue.mod/module.cue isn't changed; the schema is replaced by this version's.`,
		Example: `  fastrelay-gen schema | less
  fastrelay-gen schema .
  fastrelay-gen schema . && cue vet -c=false spec.cue`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := a.out.Write(spec.Schema())
				return err
			}
			defer interrupt.Hold(cmd.Context())()
			return a.writeModule(args[0])
		},
	}
}

func (a *app) writeModule(dir string) error {
	if info, err := os.Stat(dir); err != nil {
		return &diag.Diagnostic{Code: codeFile, Message: err.Error()}
	} else if !info.IsDir() {
		return usage("%s is a file, and cue.mod goes into a folder", dir).hint("fastrelay-gen schema %s",
			filepath.Dir(dir))
	}
	module := filepath.Join(dir, "cue.mod", "module.cue")
	schema := filepath.Join(dir, "cue.mod", "pkg", filepath.FromSlash(spec.SchemaImport), "schema.cue")
	if err := os.MkdirAll(filepath.Dir(schema), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(module, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return err
	default:
		_, err = f.WriteString(moduleFile)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Fprintf(a.out, "wrote %s\n", module)
	}
	if err := os.WriteFile(schema, spec.Schema(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "wrote %s\n", schema)
	return nil
}

// rest is how long a document isn't checked after a change: people type faster than that.
const rest = 150 * time.Millisecond

// codesPage explains the codes of messages.
const codesPage = "https://github.com/fastrelay/fastrelay-gen/blob/main/docs/errors.md#"

func (a *app) lspCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lsp",
		Short: "Serve an editor: diagnostics, hover, definitions and completion for specs",
		Long: `A language server (LSP) on standard input and output; docs/tools.md#editors has the settings of editors.
It publishes the messages of vet for each open spec, saved or not; shows the reference of words and the layout of
fields; finds declarations; and completes words, headers and fields.`,
		Example: `  fastrelay-gen lsp      an editor starts it`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &lsp.Server{Check: vetText, Wait: rest, Version: thisVersion(), Explain: explained}
			err := s.Serve(cmd.Context(), a.in, a.out)
			if errors.Is(err, lsp.ErrNoShutdown) {
				return exit(statusError)
			}
			return err
		},
	}
}

// explained is where a code is explained, as GitHub names the sections of a page.
func explained(code string) string {
	info, ok := diag.Lookup(diag.Code(code))
	if !ok {
		return ""
	}
	section := strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case unicode.IsLetter(c) || unicode.IsDigit(c) || c == '-' || c == '_':
			return unicode.ToLower(c)
		}
		return -1
	}, fmt.Sprintf("%s: %s", info.Code, info.Title))
	return codesPage + section
}

// vetText runs the command vet on a text, in a process of its own, which ends with ctx.
func vetText(ctx context.Context, text string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "vet", "--format", "json", "-")
	cmd.Args[0] = os.Args[0]
	cmd.Stdin = strings.NewReader(text)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	release := interrupt.Hold(ctx)
	err = cmd.Run()
	release()
	if out.Len() > 0 { // mistakes in the spec are exit status 1
		return out.Bytes(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %.300s", err, errors.String())
	}
	return nil, fmt.Errorf("vet says nothing: %.300s", errors.String())
}
