package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// setFormat takes the value of --format; from then on errors are shown in it, too.
func (a *app) setFormat(format string) error {
	if err := oneOf("format", format, "text", "json"); err != nil {
		return err
	}
	a.machine = format == "json"
	return nil
}

// showError shows whatever went wrong: mistakes in a spec, on the command line, or of the machine.
func (a *app) showError(err error) {
	list := listOf(err)
	if a.machine && diag.RenderJSON(a.out, list) == nil {
		return
	}
	// If standard error can't be written to either, the error can't be reported.
	_ = diag.Render(a.err, list, diag.RenderOptions{Source: a.source, Color: colored(a.err)})
}

// warn shows warnings to a person.
func (a *app) warn(list *diag.List) {
	_ = diag.Render(a.err, list, diag.RenderOptions{Source: a.source, Color: colored(a.err)}) // as in showError
}

// source returns the text that a message shows a line of.
func (a *app) source(file string) []byte {
	if text := spec.Source(file); text != nil {
		return text
	}
	if file == "-" {
		return a.stdin
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return text
}

// listOf makes a list of any error. What has no code yet is a fault of the machine or of this program.
func listOf(err error) *diag.List {
	var list diag.List
	var mistakes *diag.Error
	var one *diag.Diagnostic
	var use *usageError
	var refusal *build.Refusal
	var noClang *clang.NotFoundError
	switch {
	case errors.As(err, &refusal):
		one = refusal.Diagnose(".")
		d := list.Add(one.Code, one.Pos, "%s", one.Message)
		d.Hint = one.Hint
	case errors.As(err, &mistakes):
		return mistakes.List
	case errors.As(err, &noClang):
		one = noClang.Diagnostic()
		list.Add(one.Code, one.Pos, "%s", one.Message).Hint = one.Hint
	case errors.As(err, &one):
		d := list.Add(one.Code, one.Pos, "%s", one.Message)
		d.Label, d.Hint, d.Related = one.Label, one.Hint, one.Related
	case errors.As(err, &use):
		d := list.Add(codeUsage, diag.Pos{}, "%s", use.message)
		d.Hint = use.hintText()
	case errors.Is(err, context.Canceled):
		_ = list.Add(codeFailure, diag.Pos{}, "stopped")
	default:
		first, others, _ := strings.Cut(err.Error(), "\n") // each line of several errors is a line of the message
		list.Add(codeFailure, diag.Pos{}, "%s", first).Hint = others
	}
	return &list
}

// compile runs the whole pipeline on a spec; mistakes in it are the error.
func (a *app) compile(ctx context.Context, file string, opt build.Options) (*build.Result, error) {
	r, list, err := build.Spec(ctx, file, opt)
	return checked(r, list, err)
}

// plan compiles a spec as far as its plan, without clang.
func (a *app) plan(ctx context.Context, file string) (*build.Result, error) {
	r, list, err := build.Plan(ctx, file)
	return checked(r, list, err)
}

func checked(r *build.Result, list *diag.List, err error) (*build.Result, error) {
	if err != nil {
		return nil, fileError(err)
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

// fileError gives an error of the operating system about a file that can't be read its code.
func fileError(err error) error {
	var path *fs.PathError
	switch {
	case !errors.As(err, &path) || path.Op != "open" && path.Op != "read":
		return err
	case errors.Is(err, syscall.EISDIR):
		return folderError(path.Path)
	}
	return &diag.Diagnostic{Code: codeFile, Message: err.Error()}
}

// folderError says which of a folder's files may be meant.
func folderError(dir string) error {
	d := &diag.Diagnostic{Code: codeFile, Message: fmt.Sprintf("%s is a folder, and a spec is a file", dir)}
	specs, err := filepath.Glob(filepath.Join(dir, "*.cue"))
	if err == nil && len(specs) == 0 {
		specs, err = filepath.Glob(filepath.Join(dir, "*", "*.cue"))
	}
	switch {
	case err != nil || len(specs) == 0:
		d.Hint = "there is no spec in it: fastrelay-gen init NAME writes one to begin with"
	case len(specs) == 1:
		d.Hint = "did you mean " + specs[0] + "?"
	default:
		d.Hint = "specs in it: " + strings.Join(specs[:min(len(specs), 8)], ", ")
	}
	return d
}
