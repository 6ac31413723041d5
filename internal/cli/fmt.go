package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cuelang.org/go/cue/format"
	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type fmtOptions struct{ write, list bool }

func (a *app) fmtCommand() *cobra.Command {
	var opt fmtOptions
	cmd := &cobra.Command{
		Use:   "fmt [SPEC...]",
		Short: "Format specs as CUE's own formatter does",
		Long: `Prints each spec, formatted. Without a file, or with -, reads standard input.
With -l, the exit status is 2 if a file is not formatted.`,
		Example: `  fastrelay-gen fmt -w examples/*/spec.cue
  fastrelay-gen fmt < spec.cue`,
		ValidArgsFunction: specFiles,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.format(cmd.Context(), args, opt) },
	}
	cmd.Flags().BoolVarP(&opt.write, "write", "w", false, "write the result back to the file")
	cmd.Flags().BoolVarP(&opt.list, "list", "l", false, "print the names of files that are not formatted")
	return cmd
}

func (a *app) format(ctx context.Context, files []string, opt fmtOptions) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	var mistakes diag.List
	differs := false
	for _, file := range files {
		text, err := a.read(file)
		if err != nil {
			return err
		}
		formatted, err := format.Source(text)
		if err != nil {
			// CUE's formatter and the loader stumble over the same mistakes; the loader's messages have a place and a
			// hint.
			if _, list := spec.Load(file, text); list.Len() > 0 {
				mistakes.Append(list)
				continue
			}
			return fmt.Errorf("%s: %w", file, err)
		}
		same := bytes.Equal(text, formatted)
		differs = differs || !same
		switch {
		case opt.list && !same:
			fmt.Fprintln(a.out, file)
		case opt.list, opt.write && same:
		case opt.write && file != "-":
			if err := replace(ctx, file, formatted); err != nil {
				return err
			}
		default:
			if _, err := a.out.Write(formatted); err != nil {
				return err
			}
		}
	}
	if mistakes.Len() > 0 {
		return mistakes.Err()
	}
	if opt.list && differs {
		return exit(statusDiffers)
	}
	return nil
}

// read returns the text of a file; "-" is standard input.
func (a *app) read(file string) ([]byte, error) {
	if file == "-" {
		text, err := io.ReadAll(a.in)
		a.stdin = text
		return text, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fileError(err)
	}
	return text, nil
}

// replace puts text in the place of a file's content: beside it first, then renamed, with the same permissions.
func replace(ctx context.Context, file string, text []byte) error {
	defer interrupt.Hold(ctx)()
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".fmt-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Chmod(info.Mode().Perm())
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}
